/* Communicators that are freed, and copies of them. Runs with one rank, whose errors are fatal; prints
 * `passed`. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      printf("line %d: %s\n", __LINE__, #condition);                                      \
      exit(1);                                                                            \
    }                                                                                     \
  } while (0)
#define OK(call) CHECK((call) == MPI_SUCCESS)

static int calls;

static void on_error(MPI_Comm *comm, int *code, ...) {
  (void)comm, (void)code;
  calls++;
}

/* A message that is too long for a receive on a communicator that is freed meanwhile. */
static MPI_Request truncated(MPI_Errhandler handler, int *place) {
  static const int values[2] = {1, 2};
  MPI_Comm comm;
  MPI_Request sent, received;
  OK(MPI_Comm_dup(MPI_COMM_SELF, &comm));
  OK(MPI_Comm_set_errhandler(comm, handler));
  OK(MPI_Irecv(place, 1, MPI_INT, 0, 0, comm, &received));
  OK(MPI_Isend(values, 2, MPI_INT, 0, 0, comm, &sent));
  OK(MPI_Comm_free(&comm));
  OK(MPI_Wait(&sent, MPI_STATUS_IGNORE));
  return received;
}

static void errors(void) {
  int place;
  MPI_Errhandler handler;
  MPI_Status status;
  MPI_Request request = truncated(MPI_ERRORS_RETURN, &place);
  CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_ERR_TRUNCATE);
  request = truncated(MPI_ERRORS_RETURN, &place);
  CHECK(MPI_Waitall(1, &request, &status) == MPI_ERR_IN_STATUS && status.MPI_ERROR == MPI_ERR_TRUNCATE);
  OK(MPI_Comm_create_errhandler(on_error, &handler));
  request = truncated(handler, &place);
  OK(MPI_Errhandler_free(&handler));
  CHECK(MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_ERR_TRUNCATE && calls == 1);
}

/* A copy has none of the hints. */
static void hints(void) {
  MPI_Comm comm, copies[3];
  MPI_Info info;
  MPI_Request request;
  int keys = -1;
  OK(MPI_Comm_dup(MPI_COMM_SELF, &comm));
  OK(MPI_Info_create(&info));
  OK(MPI_Info_set(info, "mpi_assert_no_any_tag", "true"));
  OK(MPI_Comm_set_info(comm, info));
  OK(MPI_Info_free(&info));
  OK(MPI_Comm_get_info(comm, &info));
  OK(MPI_Info_get_nkeys(info, &keys));
  CHECK(keys == 1);
  OK(MPI_Comm_dup(comm, &copies[0]));
  OK(MPI_Comm_idup(comm, &copies[1], &request));
  OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  OK(MPI_Comm_dup_with_info(comm, info, &copies[2]));
  for (int i = 0; i < 3; i++) {
    MPI_Info copied;
    OK(MPI_Comm_get_info(copies[i], &copied));
    OK(MPI_Info_get_nkeys(copied, &keys));
    CHECK(keys == (i == 2));
    OK(MPI_Info_free(&copied));
    OK(MPI_Comm_free(&copies[i]));
  }
  OK(MPI_Info_free(&info));
  OK(MPI_Comm_free(&comm));
}

int main(int argc, char **argv) {
  OK(MPI_Init(&argc, &argv));
  errors();
  hints();
  OK(MPI_Finalize());
  printf("passed\n");
  return 0;
}
