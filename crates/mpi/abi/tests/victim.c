/* A program that communicates in many ways, without end, until the rank argv[1] kills itself at the step
 * argv[2]. With `return` as argv[3], errors are returned: then every other rank checks that the first error
 * tells of the death, and ends with the code 7. */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LONG = 200000 };

static int rank, size, victim;
static long step, last_step;
static int out[LONG], in[LONG];

/* Every call of MPI is a step. */
static void check(int code) {
  if (code == MPI_SUCCESS) return;
  int class;
  MPI_Error_class(code, &class);
  int expected = class == MPI_ERR_PROC_ABORTED || class == MPI_ERR_IN_STATUS;
  char text[MPI_MAX_ERROR_STRING];
  int len;
  MPI_Error_string(code, text, &len);
  fprintf(stderr, "rank %d: class %d at step %ld: %s\n", rank, class, step, text);
  MPI_Abort(MPI_COMM_WORLD, expected ? 7 : 8);
}

#define STEP(call)                                                            \
  do {                                                                        \
    if (rank == victim && step == last_step) kill(getpid(), SIGKILL);         \
    step++;                                                                   \
    check(call);                                                              \
  } while (0)

static void messages(int count, int round) {
  MPI_Request requests[3];
  int next = (rank + 1) % size, previous = (rank + size - 1) % size;
  STEP(MPI_Irecv(in, count, MPI_INT, round % 2 ? previous : MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, &requests[0]));
  STEP(MPI_Isend(out, count, MPI_INT, next, 1, MPI_COMM_WORLD, &requests[1]));
  STEP(MPI_Iallreduce(&rank, &out[LONG - 1], 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[2]));
  STEP(MPI_Waitall(3, requests, MPI_STATUSES_IGNORE));
  STEP(MPI_Sendrecv(out, count, MPI_INT, next, 2, in, count, MPI_INT, previous, 2, MPI_COMM_WORLD,
                    MPI_STATUS_IGNORE));
}

static void collectives(int count, int round) {
  STEP(MPI_Barrier(MPI_COMM_WORLD));
  STEP(MPI_Bcast(out, count, MPI_INT, round % size, MPI_COMM_WORLD));
  STEP(MPI_Allreduce(out, in, count, MPI_INT, MPI_MAX, MPI_COMM_WORLD));
  STEP(MPI_Alltoall(out, count / size, MPI_INT, in, count / size, MPI_INT, MPI_COMM_WORLD));
  MPI_Comm half;
  STEP(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half));
  STEP(MPI_Reduce(out, in, count, MPI_INT, MPI_SUM, 0, half));
  STEP(MPI_Comm_free(&half));
}

/* The first rank waits for anybody, the others answer. */
static void workers(void) {
  MPI_Status status;
  if (rank != 0) {
    STEP(MPI_Ssend(&rank, 1, MPI_INT, 0, 3, MPI_COMM_WORLD));
    STEP(MPI_Recv(in, 1, MPI_INT, 0, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    return;
  }
  for (int i = 1; i < size; i++) {
    STEP(MPI_Probe(MPI_ANY_SOURCE, 3, MPI_COMM_WORLD, &status));
    STEP(MPI_Recv(in, 1, MPI_INT, status.MPI_SOURCE, 3, MPI_COMM_WORLD, &status));
    STEP(MPI_Send(out, 1, MPI_INT, status.MPI_SOURCE, 4, MPI_COMM_WORLD));
  }
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  if (argc < 3) return 1;
  victim = atoi(argv[1]), last_step = atol(argv[2]);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc > 3 && !strcmp(argv[3], "return")) MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  for (int round = 0;; round++) {
    int count = round % 3 == 0 ? 10 : round % 3 == 1 ? 3000 : LONG - 1;
    messages(count, round);
    collectives(count, round);
    workers();
  }
}
