/* A program of one rank: datatypes, messages to itself, reductions, attributes, errors. It prints `passed`. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      printf("line %d: %s\n", __LINE__, #condition);                                      \
      exit(1);                                                                            \
    }                                                                                     \
  } while (0)
#define OK(call) CHECK((call) == MPI_SUCCESS)

static int deleted, handled;

static int on_delete(MPI_Comm comm, int keyval, void *value, void *extra) {
  (void)comm, (void)keyval;
  deleted += *(int *)value + *(int *)extra;
  return MPI_SUCCESS;
}

static void on_error(MPI_Comm *comm, int *code, ...) {
  CHECK(*comm == MPI_COMM_SELF);
  handled = *code;
}

static void subtract(void *in, void *inout, int *len, MPI_Datatype *datatype) {
  CHECK(*datatype == MPI_INT);
  for (int i = 0; i < *len; i++) ((int *)inout)[i] = ((int *)in)[i] - ((int *)inout)[i];
}

static void messages(void) {
  int matrix[4][4], column[4] = {0}, count;
  for (int i = 0; i < 16; i++) matrix[i / 4][i % 4] = i;
  MPI_Datatype vector;
  OK(MPI_Type_vector(4, 1, 4, MPI_INT, &vector));
  OK(MPI_Type_commit(&vector));
  MPI_Request requests[2];
  MPI_Status statuses[2];
  OK(MPI_Irecv(column, 4, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &requests[0]));
  OK(MPI_Issend(&matrix[0][2], 1, vector, 0, 7, MPI_COMM_WORLD, &requests[1]));
  OK(MPI_Type_free(&vector));
  CHECK(vector == MPI_DATATYPE_NULL);
  OK(MPI_Waitall(2, requests, statuses));
  CHECK(requests[0] == MPI_REQUEST_NULL && requests[1] == MPI_REQUEST_NULL);
  CHECK(column[0] == 2 && column[1] == 6 && column[2] == 10 && column[3] == 14);
  CHECK(statuses[0].MPI_SOURCE == 0 && statuses[0].MPI_TAG == 7);
  OK(MPI_Get_count(&statuses[0], MPI_INT, &count));
  CHECK(count == 4);

  double value = 1.5, got = 0;
  MPI_Message message;
  OK(MPI_Send_c(&value, 1, MPI_DOUBLE, 0, 3, MPI_COMM_SELF));
  OK(MPI_Mprobe(0, 3, MPI_COMM_SELF, &message, MPI_STATUS_IGNORE));
  OK(MPI_Mrecv(&got, 1, MPI_DOUBLE, &message, MPI_STATUS_IGNORE));
  CHECK(got == 1.5 && message == MPI_MESSAGE_NULL);

  MPI_Request again;
  OK(MPI_Send_init(&value, 1, MPI_DOUBLE, 0, 4, MPI_COMM_SELF, &again));
  for (int round = 0; round < 3; round++) {
    value = round;
    OK(MPI_Start(&again));
    OK(MPI_Recv(&got, 1, MPI_DOUBLE, 0, 4, MPI_COMM_SELF, MPI_STATUS_IGNORE));
    OK(MPI_Wait(&again, MPI_STATUS_IGNORE));
    CHECK(got == round && again != MPI_REQUEST_NULL);
  }
  OK(MPI_Request_free(&again));
}

static void reductions(void) {
  int one[2] = {10, 20}, two[2] = {3, 4};
  MPI_Op op;
  OK(MPI_Op_create(subtract, 0, &op));
  OK(MPI_Reduce_local(one, two, 2, MPI_INT, op));
  CHECK(two[0] == 7 && two[1] == 16);
  OK(MPI_Op_free(&op));
  long double wide[1] = {1.5L}, sum[1] = {2.25L};
  OK(MPI_Reduce_local(wide, sum, 1, MPI_LONG_DOUBLE, MPI_SUM));
  CHECK(sum[0] == 3.75L);
  OK(MPI_Allreduce(MPI_IN_PLACE, two, 2, MPI_INT, MPI_MAX, MPI_COMM_WORLD));
}

static void attributes(void) {
  int key, extra = 100, value = 11, flag, *found;
  MPI_Comm copy;
  OK(MPI_Comm_create_keyval(MPI_COMM_DUP_FN, on_delete, &key, &extra));
  OK(MPI_Comm_set_attr(MPI_COMM_SELF, key, &value));
  OK(MPI_Comm_dup(MPI_COMM_SELF, &copy));
  OK(MPI_Comm_get_attr(copy, key, &found, &flag));
  CHECK(flag && found == &value);
  OK(MPI_Comm_free(&copy));
  CHECK(deleted == 111 && copy == MPI_COMM_NULL);
  OK(MPI_Comm_delete_attr(MPI_COMM_SELF, key));
  CHECK(deleted == 222);
  OK(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &found, &flag));
  CHECK(flag && *found >= 32767);
}

static void errors(void) {
  char text[MPI_MAX_ERROR_STRING];
  int length, small[1], large[2] = {1, 2};
  MPI_Errhandler handler;
  OK(MPI_Comm_create_errhandler(on_error, &handler));
  OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, handler));
  OK(MPI_Errhandler_free(&handler));
  CHECK(MPI_Send(small, 1, MPI_INT, 5, 0, MPI_COMM_SELF) == MPI_ERR_RANK && handled == MPI_ERR_RANK);
  CHECK(MPI_Send(small, -1, MPI_INT, 0, 0, MPI_COMM_SELF) == MPI_ERR_COUNT);
  CHECK(MPI_Send(small, 1, MPI_DATATYPE_NULL, 0, 0, MPI_COMM_SELF) == MPI_ERR_TYPE);
  CHECK(MPI_Send(small, 1, MPI_INT, 0, -9, MPI_COMM_SELF) == MPI_ERR_TAG);
  OK(MPI_Send(large, 2, MPI_INT, 0, 0, MPI_COMM_SELF));
  CHECK(MPI_Recv(small, 1, MPI_INT, 0, 0, MPI_COMM_SELF, MPI_STATUS_IGNORE) == MPI_ERR_TRUNCATE);
  CHECK(MPI_Win_lock_all(0, MPI_WIN_NULL) == MPI_ERR_UNSUPPORTED_OPERATION);
  CHECK(handled == MPI_ERR_UNSUPPORTED_OPERATION);
  OK(MPI_Error_string(MPI_ERR_RANK, text, &length));
  CHECK(strstr(text, "MPI_ERR_RANK") && (int)strlen(text) == length);
  OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
}

int main(int argc, char **argv) {
  int size, rank, flag, provided;
  OK(MPI_Initialized(&flag));
  CHECK(!flag);
  OK(MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided));
  CHECK(provided == MPI_THREAD_MULTIPLE);
  OK(MPI_Comm_size(MPI_COMM_WORLD, &size));
  OK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  CHECK(size == 1 && rank == 0);
  CHECK(MPI_Comm_fromint(MPI_Comm_toint(MPI_COMM_WORLD)) == MPI_COMM_WORLD);
  messages();
  reductions();
  attributes();
  errors();
  /* Errors are fatal in the world: a program that asks for it ends here with a message. */
  if (argc > 1) MPI_Send(&size, 1, MPI_INT, 5, 0, MPI_COMM_WORLD);
  OK(MPI_Finalize());
  OK(MPI_Finalized(&flag));
  CHECK(flag);
  puts("passed");
  return 0;
}
