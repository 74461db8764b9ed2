/* Bad arguments have the error classes of the standard. Runs with one rank; prints `passed`. */
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

static int class_of(int code) {
  int class = -1;
  OK(MPI_Error_class(code, &class));
  return class;
}

#define FAILS(expected, call)                                                                    \
  do {                                                                                           \
    int its_class = class_of(call);                                                              \
    if (its_class != (expected)) {                                                               \
      printf("line %d: %s has the class %d, not %s\n", __LINE__, #call, its_class, #expected);       \
      failures++;                                                                                \
    }                                                                                            \
  } while (0)

static int failures;

static void point_to_point(void) {
  int value = 0, flag;
  MPI_Request request;
  MPI_Status status;
  MPI_Message message;
  FAILS(MPI_ERR_COMM, MPI_Send(&value, 1, MPI_INT, 0, 0, MPI_COMM_NULL));
  FAILS(MPI_ERR_COUNT, MPI_Send(&value, -1, MPI_INT, 0, 0, MPI_COMM_WORLD));
  FAILS(MPI_ERR_TYPE, MPI_Send(&value, 1, MPI_DATATYPE_NULL, 0, 0, MPI_COMM_WORLD));
  FAILS(MPI_ERR_RANK, MPI_Send(&value, 1, MPI_INT, 1, 0, MPI_COMM_WORLD));
  FAILS(MPI_ERR_RANK, MPI_Send(&value, 1, MPI_INT, MPI_ANY_SOURCE, 0, MPI_COMM_WORLD));
  FAILS(MPI_ERR_TAG, MPI_Send(&value, 1, MPI_INT, 0, -7, MPI_COMM_WORLD));
  FAILS(MPI_ERR_TAG, MPI_Send(&value, 1, MPI_INT, 0, MPI_ANY_TAG, MPI_COMM_WORLD));
  FAILS(MPI_ERR_BUFFER, MPI_Send(NULL, 1, MPI_INT, 0, 0, MPI_COMM_WORLD));
  FAILS(MPI_ERR_COMM, MPI_Irecv(&value, 1, MPI_INT, 0, 0, MPI_COMM_NULL, &request));
  FAILS(MPI_ERR_COUNT, MPI_Irecv(&value, -1, MPI_INT, 0, 0, MPI_COMM_WORLD, &request));
  FAILS(MPI_ERR_RANK, MPI_Recv(&value, 1, MPI_INT, 9, 0, MPI_COMM_WORLD, &status));
  FAILS(MPI_ERR_TAG, MPI_Recv(&value, 1, MPI_INT, 0, -7, MPI_COMM_WORLD, &status));
  FAILS(MPI_ERR_RANK, MPI_Iprobe(9, 0, MPI_COMM_WORLD, &flag, &status));
  FAILS(MPI_ERR_COMM, MPI_Improbe(0, 0, MPI_COMM_NULL, &flag, &message, &status));
  FAILS(MPI_ERR_COUNT, MPI_Send_init(&value, -1, MPI_INT, 0, 0, MPI_COMM_WORLD, &request));
  FAILS(MPI_ERR_RANK, MPI_Recv_init(&value, 1, MPI_INT, 9, 0, MPI_COMM_WORLD, &request));

  MPI_Datatype raw;
  OK(MPI_Type_contiguous(2, MPI_INT, &raw));
  FAILS(MPI_ERR_TYPE, MPI_Send(&value, 1, raw, 0, 0, MPI_COMM_WORLD));
  MPI_Datatype freed = raw;
  OK(MPI_Type_free(&raw));
  FAILS(MPI_ERR_TYPE, MPI_Send(&value, 1, freed, 0, 0, MPI_COMM_WORLD));
  FAILS(MPI_ERR_TYPE, MPI_Type_free(&freed));
}

static void truncation(void) {
  int sent[4] = {1, 2, 3, 4}, got[2] = {0, 0};
  MPI_Request requests[2];
  MPI_Status statuses[2];
  OK(MPI_Isend(sent, 4, MPI_INT, 0, 1, MPI_COMM_WORLD, &requests[0]));
  FAILS(MPI_ERR_TRUNCATE, MPI_Recv(got, 2, MPI_INT, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
  OK(MPI_Wait(&requests[0], MPI_STATUS_IGNORE));
  OK(MPI_Irecv(got, 2, MPI_INT, 0, 2, MPI_COMM_WORLD, &requests[0]));
  OK(MPI_Isend(sent, 4, MPI_INT, 0, 2, MPI_COMM_WORLD, &requests[1]));
  FAILS(MPI_ERR_IN_STATUS, MPI_Waitall(2, requests, statuses));
  CHECK(class_of(statuses[0].MPI_ERROR) == MPI_ERR_TRUNCATE);
  CHECK(class_of(statuses[1].MPI_ERROR) == MPI_SUCCESS);
  CHECK(requests[0] == MPI_REQUEST_NULL && requests[1] == MPI_REQUEST_NULL);
  char packed[4];
  int position = 0;
  FAILS(MPI_ERR_TRUNCATE, MPI_Pack(sent, 4, MPI_INT, packed, 4, &position, MPI_COMM_WORLD));
}

static void requests(void) {
  int value = 0, flag, index;
  MPI_Request request, copy, none = MPI_REQUEST_NULL;
  OK(MPI_Test(&none, &flag, MPI_STATUS_IGNORE));
  CHECK(flag);
  FAILS(MPI_ERR_REQUEST, MPI_Start(&none));
  FAILS(MPI_ERR_REQUEST, MPI_Request_free(&none));
  FAILS(MPI_ERR_REQUEST, MPI_Cancel(&none));
  OK(MPI_Isend(&value, 1, MPI_INT, 0, 5, MPI_COMM_WORLD, &request));
  copy = request;
  FAILS(MPI_ERR_REQUEST, MPI_Start(&copy));
  OK(MPI_Recv(&value, 1, MPI_INT, 0, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
  OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  FAILS(MPI_ERR_REQUEST, MPI_Wait(&copy, MPI_STATUS_IGNORE));
  FAILS(MPI_ERR_REQUEST, MPI_Request_free(&copy));
  FAILS(MPI_ERR_COUNT, MPI_Waitall(-1, &none, MPI_STATUSES_IGNORE));
  FAILS(MPI_ERR_COUNT, MPI_Waitany(-1, &none, &index, MPI_STATUS_IGNORE));
  FAILS(MPI_ERR_REQUEST, MPI_Grequest_complete(MPI_REQUEST_NULL));
}

static void collectives(void) {
  int value = 0, result = 0;
  FAILS(MPI_ERR_COMM, MPI_Barrier(MPI_COMM_NULL));
  FAILS(MPI_ERR_ROOT, MPI_Bcast(&value, 1, MPI_INT, 1, MPI_COMM_WORLD));
  FAILS(MPI_ERR_ROOT, MPI_Gather(&value, 1, MPI_INT, &result, 1, MPI_INT, -1, MPI_COMM_WORLD));
  FAILS(MPI_ERR_COUNT, MPI_Allgather(&value, -1, MPI_INT, &result, 1, MPI_INT, MPI_COMM_WORLD));
  FAILS(MPI_ERR_OP, MPI_Allreduce(&value, &result, 1, MPI_INT, MPI_OP_NULL, MPI_COMM_WORLD));
  FAILS(MPI_ERR_OP, MPI_Allreduce(&value, &result, 1, MPI_FLOAT, MPI_BAND, MPI_COMM_WORLD));
  FAILS(MPI_ERR_COUNT, MPI_Reduce(&value, &result, -1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD));
  FAILS(MPI_ERR_TYPE, MPI_Scan(&value, &result, 1, MPI_DATATYPE_NULL, MPI_SUM, MPI_COMM_WORLD));
  MPI_Op op = MPI_SUM;
  FAILS(MPI_ERR_OP, MPI_Op_free(&op));
}

static void objects(void) {
  int number, dims[2] = {3, 3}, periods[2] = {0, 0}, ranks[2] = {0, 0}, keyval = MPI_KEYVAL_INVALID;
  void *value;
  MPI_Comm comm = MPI_COMM_NULL, world = MPI_COMM_WORLD;
  MPI_Group group, made, nothing = MPI_GROUP_NULL;
  MPI_Datatype of;
  MPI_Info info = MPI_INFO_NULL;
  MPI_Errhandler handler = MPI_ERRHANDLER_NULL;
  FAILS(MPI_ERR_COMM, MPI_Comm_rank(MPI_COMM_NULL, &number));
  FAILS(MPI_ERR_COMM, MPI_Comm_free(&comm));
  FAILS(MPI_ERR_COMM, MPI_Comm_free(&world));
  FAILS(MPI_ERR_COMM, MPI_Comm_remote_size(MPI_COMM_WORLD, &number));
  FAILS(MPI_ERR_ARG, MPI_Comm_split(MPI_COMM_WORLD, -3, 0, &comm));
  OK(MPI_Comm_group(MPI_COMM_WORLD, &group));
  FAILS(MPI_ERR_RANK, MPI_Group_incl(group, 2, ranks, &made));
  FAILS(MPI_ERR_GROUP, MPI_Group_size(MPI_GROUP_NULL, &number));
  FAILS(MPI_ERR_GROUP, MPI_Group_free(&nothing));
  FAILS(MPI_ERR_GROUP, MPI_Comm_create(MPI_COMM_WORLD, MPI_GROUP_NULL, &comm));
  OK(MPI_Group_free(&group));
  FAILS(MPI_ERR_TYPE, MPI_Type_contiguous(1, MPI_DATATYPE_NULL, &of));
  FAILS(MPI_ERR_COUNT, MPI_Type_contiguous(-1, MPI_INT, &of));
  FAILS(MPI_ERR_TOPOLOGY, MPI_Cartdim_get(MPI_COMM_WORLD, &number));
  FAILS(MPI_ERR_KEYVAL, MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_KEYVAL_INVALID, &value, &number));
  FAILS(MPI_ERR_KEYVAL, MPI_Comm_free_keyval(&keyval));
  FAILS(MPI_ERR_INFO, MPI_Info_free(&info));
  FAILS(MPI_ERR_INFO, MPI_Info_set(MPI_INFO_NULL, "key", "value"));
  OK(MPI_Info_create(&info));
  FAILS(MPI_ERR_INFO_NOKEY, MPI_Info_delete(info, "none"));
  FAILS(MPI_ERR_INFO_KEY, MPI_Info_set(info, "", "value"));
  OK(MPI_Info_free(&info));
  FAILS(MPI_ERR_ERRHANDLER, MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRHANDLER_NULL));
  FAILS(MPI_ERR_ERRHANDLER, MPI_Errhandler_free(&handler));
  FAILS(MPI_ERR_UNSUPPORTED_DATAREP, MPI_Pack_external_size("native", 1, MPI_INT, &(MPI_Aint){0}));
  number = class_of(MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &comm));
  CHECK(number == MPI_ERR_ARG || number == MPI_ERR_DIMS || number == MPI_ERR_TOPOLOGY);
}

/* A null pointer where the function needs memory is an error, and nothing is begun. */
static void null_pointers(void) {
  int value = 0, flag = 0, ranks[2] = {0, 0}, lengths[1] = {1};
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Group group;
  MPI_Datatype of;
  MPI_Comm comm;
  FAILS(MPI_ERR_ARG, MPI_Wait(NULL, MPI_STATUS_IGNORE));
  FAILS(MPI_ERR_ARG, MPI_Test(NULL, &flag, MPI_STATUS_IGNORE));
  FAILS(MPI_ERR_ARG, MPI_Test(&request, NULL, MPI_STATUS_IGNORE));
  FAILS(MPI_ERR_ARG, MPI_Waitall(2, NULL, MPI_STATUSES_IGNORE));
  FAILS(MPI_ERR_ARG, MPI_Waitany(1, &request, NULL, MPI_STATUS_IGNORE));
  FAILS(MPI_ERR_ARG, MPI_Startall(1, NULL));
  OK(MPI_Waitall(0, NULL, MPI_STATUSES_IGNORE));
  FAILS(MPI_ERR_ARG, MPI_Isend(&value, 1, MPI_INT, 0, 6, MPI_COMM_WORLD, NULL));
  FAILS(MPI_ERR_ARG, MPI_Irecv(&value, 1, MPI_INT, 0, 6, MPI_COMM_WORLD, NULL));
  FAILS(MPI_ERR_ARG, MPI_Ibarrier(MPI_COMM_WORLD, NULL));
  OK(MPI_Iprobe(0, 6, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE));
  CHECK(!flag);
  FAILS(MPI_ERR_ARG, MPI_Comm_rank(MPI_COMM_WORLD, NULL));
  FAILS(MPI_ERR_ARG, MPI_Comm_dup(MPI_COMM_WORLD, NULL));
  FAILS(MPI_ERR_ARG, MPI_Comm_free(NULL));
  FAILS(MPI_ERR_ARG, MPI_Type_size(MPI_INT, NULL));
  FAILS(MPI_ERR_ARG, MPI_Type_commit(NULL));
  FAILS(MPI_ERR_ARG, MPI_Type_indexed(1, NULL, ranks, MPI_INT, &of));
  FAILS(MPI_ERR_ARG, MPI_Type_indexed(1, lengths, NULL, MPI_INT, &of));
  FAILS(MPI_ERR_ARG, MPI_Type_create_struct(1, lengths, NULL, NULL, &of));
  FAILS(MPI_ERR_ARG, MPI_Gatherv(&value, 1, MPI_INT, ranks, NULL, NULL, MPI_INT, 0, MPI_COMM_WORLD));
  FAILS(MPI_ERR_ARG, MPI_Cart_create(MPI_COMM_WORLD, 1, NULL, ranks, 0, &comm));
  OK(MPI_Comm_group(MPI_COMM_WORLD, &group));
  FAILS(MPI_ERR_ARG, MPI_Group_incl(group, 1, NULL, &group));
  OK(MPI_Group_free(&group));
  OK(MPI_Allreduce(lengths, &value, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
  CHECK(value == 1);
}

/* The text of an error names its cause until this thread has another one. */
static void texts(void) {
  int value = 0, length = 0;
  char text[MPI_MAX_ERROR_STRING];
  int code = MPI_Send(&value, 1, MPI_INT, 17, 0, MPI_COMM_WORLD);
  OK(MPI_Error_string(code, text, &length));
  CHECK(strstr(text, "MPI_ERR_RANK") && strstr(text, "MPI_Send") && strstr(text, "17"));
  CHECK((size_t)length == strlen(text));
  OK(MPI_Error_string(MPI_ERR_COUNT, text, &length));
  CHECK(strstr(text, "MPI_ERR_COUNT") && !strstr(text, "MPI_Send"));
  FAILS(MPI_ERR_COMM, MPI_Barrier(MPI_COMM_NULL));
  OK(MPI_Error_string(code, text, &length));
  CHECK(strstr(text, "MPI_ERR_RANK") && !strstr(text, "MPI_Send"));
  OK(MPI_Error_string(MPI_SUCCESS, text, &length));
  CHECK(!strcmp(text, "MPI_SUCCESS: no error"));
}

int main(int argc, char **argv) {
  OK(MPI_Init(&argc, &argv));
  OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
  point_to_point();
  truncation();
  requests();
  collectives();
  objects();
  null_pointers();
  texts();
  OK(MPI_Finalize());
  if (failures) return 1;
  printf("passed\n");
  return 0;
}
