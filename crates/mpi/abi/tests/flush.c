/* Buffers that are flushed without waiting, and only for the messages in them. Runs with one rank;
 * prints `passed`. */
#define _POSIX_C_SOURCE 200112L
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { LONG = 200000, ROOM = 2 * LONG * sizeof(int) + 2 * MPI_BSEND_OVERHEAD };

#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      printf("line %d: %s\n", __LINE__, #condition);                                      \
      exit(1);                                                                            \
    }                                                                                     \
  } while (0)
#define OK(call) CHECK((call) == MPI_SUCCESS)

static int sent[LONG], got[LONG];
static char buffer[ROOM], other[ROOM];

/* A message that stays in a buffer until it is received. */
static void put(MPI_Comm comm, int tag) { OK(MPI_Bsend(sent, LONG, MPI_INT, 0, tag, comm)); }

static void take(MPI_Comm comm, int tag) {
  OK(MPI_Recv(got, LONG, MPI_INT, 0, tag, comm, MPI_STATUS_IGNORE));
}

static void flushes(void) {
  int flag = -1, size;
  void *at;
  MPI_Comm comm;
  MPI_Request request, later;
  OK(MPI_Comm_dup(MPI_COMM_SELF, &comm));
  OK(MPI_Buffer_attach(buffer, sizeof buffer));
  OK(MPI_Comm_attach_buffer(comm, other, sizeof other));

  put(MPI_COMM_SELF, 1);
  OK(MPI_Buffer_iflush(&request));
  OK(MPI_Test(&request, &flag, MPI_STATUS_IGNORE));
  CHECK(!flag);
  /* It waits for what is there when it begins, and not for what is in the other buffer. */
  put(MPI_COMM_SELF, 2);
  put(comm, 3);
  take(MPI_COMM_SELF, 1);
  OK(MPI_Wait(&request, MPI_STATUS_IGNORE));

  OK(MPI_Comm_iflush_buffer(comm, &request));
  OK(MPI_Buffer_iflush(&later));
  OK(MPI_Test(&request, &flag, MPI_STATUS_IGNORE));
  CHECK(!flag);
  take(comm, 3);
  OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  OK(MPI_Comm_flush_buffer(comm));
  OK(MPI_Comm_detach_buffer(comm, &at, &size));
  CHECK(at == other && size == sizeof other);
  OK(MPI_Test(&later, &flag, MPI_STATUS_IGNORE));
  CHECK(!flag);
  take(MPI_COMM_SELF, 2);
  OK(MPI_Wait(&later, MPI_STATUS_IGNORE));
  OK(MPI_Buffer_detach(&at, &size));
  CHECK(at == buffer && size == sizeof buffer);
  OK(MPI_Comm_free(&comm));
}

int main(int argc, char **argv) {
  alarm(60); /* A call that waits for ever fails. */
  OK(MPI_Init(&argc, &argv));
  flushes();
  OK(MPI_Finalize());
  printf("passed\n");
  return 0;
}
