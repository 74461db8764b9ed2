/* Three ranks, whose errors are returned: the second one kills itself, the third one sends nothing until it is
 * told to, and the first one waits for both in the manner of argv[1]. It prints `passed` if its call learns of
 * the death, and what does not depend on it goes on. */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VICTIM = 1, SILENT = 2, LONG = 200000, WORD = 1, BULK = 2, GO = 9 };

#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      printf("line %d: %s\n", __LINE__, #condition);                                      \
      exit(1);                                                                            \
    }                                                                                     \
  } while (0)
#define OK(call) CHECK((call) == MPI_SUCCESS)

static int bulk[LONG];

static int class_of(int code) {
  int class;
  OK(MPI_Error_class(code, &class));
  return class;
}

/* Waits for both ranks at once: by waiting, or by testing again and again. */
static void wait_for_both(int tests) {
  int words[2] = {0, 0}, flag = 0, code;
  MPI_Request requests[2], silent;
  MPI_Status statuses[2];
  OK(MPI_Irecv(&words[0], 1, MPI_INT, VICTIM, WORD, MPI_COMM_WORLD, &requests[0]));
  OK(MPI_Irecv(&words[1], 1, MPI_INT, SILENT, WORD, MPI_COMM_WORLD, &requests[1]));
  silent = requests[1];
  if (tests) {
    do code = MPI_Testall(2, requests, &flag, statuses);
    while (code == MPI_SUCCESS && !flag);
  } else {
    code = MPI_Waitall(2, requests, statuses);
  }
  CHECK(class_of(code) == MPI_ERR_IN_STATUS);
  CHECK(class_of(statuses[0].MPI_ERROR) == MPI_ERR_PROC_ABORTED && requests[0] == MPI_REQUEST_NULL);
  CHECK(statuses[1].MPI_ERROR == MPI_ERR_PENDING && requests[1] == silent);
  OK(MPI_Send(NULL, 0, MPI_INT, SILENT, GO, MPI_COMM_WORLD));
  OK(MPI_Wait(&requests[1], MPI_STATUS_IGNORE));
  CHECK(words[1] == SILENT);
}

/* The rank that takes the message is not the one that sends. */
static void exchange(void) {
  int word;
  CHECK(class_of(MPI_Sendrecv(bulk, LONG, MPI_INT, SILENT, BULK, &word, 1, MPI_INT, VICTIM, WORD,
                              MPI_COMM_WORLD, MPI_STATUS_IGNORE)) == MPI_ERR_PROC_ABORTED);
}

/* Asks for a message of any rank, again and again. */
static void poll_any(const char *how) {
  int word, flag = 0, index, code;
  MPI_Request request;
  MPI_Message message;
  int has_request = !strncmp(how, "test", 4);
  if (has_request) OK(MPI_Irecv(&word, 1, MPI_INT, MPI_ANY_SOURCE, WORD, MPI_COMM_WORLD, &request));
  do {
    if (!strcmp(how, "test"))
      code = MPI_Test(&request, &flag, MPI_STATUS_IGNORE);
    else if (!strcmp(how, "testany"))
      code = MPI_Testany(1, &request, &index, &flag, MPI_STATUS_IGNORE);
    else if (!strcmp(how, "iprobe"))
      code = MPI_Iprobe(MPI_ANY_SOURCE, WORD, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    else
      code = MPI_Improbe(MPI_ANY_SOURCE, WORD, MPI_COMM_WORLD, &flag, &message, MPI_STATUS_IGNORE);
  } while (code == MPI_SUCCESS && !flag);
  CHECK(class_of(code) == MPI_ERR_PROC_ABORTED);
}

int main(int argc, char **argv) {
  int rank;
  OK(MPI_Init(&argc, &argv));
  CHECK(argc == 2);
  OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  OK(MPI_Barrier(MPI_COMM_WORLD));
  int exchanges = !strcmp(argv[1], "sendrecv"), for_both = !strcmp(argv[1], "waitall") || !strcmp(argv[1], "testall");
  if (rank == VICTIM) kill(getpid(), SIGKILL);
  if (rank == SILENT) {
    OK(MPI_Recv(NULL, 0, MPI_INT, 0, GO, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    if (exchanges) OK(MPI_Recv(bulk, LONG, MPI_INT, 0, BULK, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
    if (for_both) OK(MPI_Send(&rank, 1, MPI_INT, 0, WORD, MPI_COMM_WORLD));
  } else {
    if (for_both)
      wait_for_both(!strcmp(argv[1], "testall"));
    else if (exchanges)
      exchange();
    else
      poll_any(argv[1]);
    if (!for_both) OK(MPI_Send(NULL, 0, MPI_INT, SILENT, GO, MPI_COMM_WORLD));
    printf("passed\n");
    fflush(stdout);
  }
  OK(MPI_Finalize());
  return 0;
}
