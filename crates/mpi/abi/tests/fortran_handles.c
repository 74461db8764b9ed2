/* Handles and statuses that C shares with Fortran. Runs with one rank; prints `passed`. */
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

#define BOTH_WAYS(kind, handle) \
  CHECK(MPI_##kind##_f2c(MPI_##kind##_c2f(handle)) == (handle) && \
        PMPI_##kind##_f2c(PMPI_##kind##_c2f(handle)) == (handle))

/* Fortran calls these. */
void mpi_comm_rank_(MPI_Fint *comm, MPI_Fint *rank, MPI_Fint *ierror);
void mpi_recv_(void *buf, MPI_Fint *count, MPI_Fint *datatype, MPI_Fint *source, MPI_Fint *tag, MPI_Fint *comm,
               MPI_Fint *status, MPI_Fint *ierror);

static void user_operation(void *in, void *inout, int *len, MPI_Datatype *datatype) {
  (void)in, (void)inout, (void)len, (void)datatype;
}

static void handles(void) {
  MPI_Comm comm;
  MPI_Datatype pair;
  MPI_Group group;
  MPI_Op op;
  MPI_Request request;
  MPI_Message message;
  MPI_Info info;
  int value = 1, received = 0;
  OK(MPI_Comm_dup(MPI_COMM_SELF, &comm));
  OK(MPI_Type_contiguous(2, MPI_INT, &pair));
  OK(MPI_Comm_group(comm, &group));
  OK(MPI_Op_create(user_operation, 1, &op));
  OK(MPI_Info_create(&info));
  OK(MPI_Isend(&value, 1, MPI_INT, 0, 0, comm, &request));
  OK(MPI_Mprobe(0, 0, comm, &message, MPI_STATUS_IGNORE));
  BOTH_WAYS(Comm, comm);
  BOTH_WAYS(Type, pair);
  BOTH_WAYS(Group, group);
  BOTH_WAYS(Op, op);
  BOTH_WAYS(Info, info);
  BOTH_WAYS(Request, request);
  BOTH_WAYS(Message, message);
  BOTH_WAYS(Win, MPI_WIN_NULL);
  BOTH_WAYS(File, MPI_FILE_NULL);
  BOTH_WAYS(Errhandler, MPI_ERRORS_RETURN);
  BOTH_WAYS(Session, MPI_SESSION_NULL);
  CHECK(MPI_Comm_c2f(comm) != MPI_Comm_c2f(MPI_COMM_SELF));
  OK(MPI_Mrecv(&received, 1, MPI_INT, &message, MPI_STATUS_IGNORE));
  OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  CHECK(received == 1);

  MPI_Fint rank = -1, ierror = -1, number = MPI_Comm_c2f(comm);
  mpi_comm_rank_(&number, &rank, &ierror);
  CHECK(rank == 0 && ierror == MPI_SUCCESS);
  OK(MPI_Info_free(&info));
  OK(MPI_Op_free(&op));
  OK(MPI_Group_free(&group));
  OK(MPI_Type_free(&pair));
  OK(MPI_Comm_free(&comm));
}

static void statuses(void) {
  MPI_Status status, back;
  MPI_Fint words[MPI_F_STATUS_SIZE];
  MPI_F08_status newer;
  int values[3] = {1, 2, 3}, count = 0;
  OK(MPI_Sendrecv(values, 3, MPI_INT, 0, 9, values, 3, MPI_INT, 0, 9, MPI_COMM_SELF, &status));
  memset(&back, 0, sizeof back);
  OK(MPI_Status_c2f(&status, words));
  CHECK(words[MPI_F_SOURCE] == 0 && words[MPI_F_TAG] == 9);
  OK(MPI_Status_f2c(words, &back));
  CHECK(memcmp(&status, &back, sizeof status) == 0);
  memset(&newer, 0, sizeof newer);
  memset(&back, 0, sizeof back);
  OK(MPI_Status_f2f08(words, &newer));
  OK(MPI_Status_f082c(&newer, &back));
  OK(MPI_Get_count(&back, MPI_INT, &count));
  CHECK(newer.MPI_TAG == 9 && count == 3);
  memset(&newer, 0, sizeof newer);
  memset(words, 0, sizeof words);
  OK(PMPI_Status_c2f08(&status, &newer));
  OK(PMPI_Status_f082f(&newer, words));
  CHECK(memcmp(&status, words, sizeof status) == 0);
  CHECK(MPI_Status_c2f(MPI_STATUS_IGNORE, words) == MPI_ERR_ARG);
}

/* What Fortran passes for a status that it ignores: the library leaves it alone. */
static void ignored(void) {
  MPI_Fint one = 1, tag = 4, source = 0, comm = MPI_Comm_c2f(MPI_COMM_SELF), type = MPI_Type_c2f(MPI_INT);
  MPI_Fint ierror = -1, before[MPI_F_STATUS_SIZE];
  int value = 7, received = 0;
  MPI_Request request;
  void *one_status = MPI_F_STATUS_IGNORE, *more = MPI_F_STATUSES_IGNORE;
  CHECK(one_status != more && one_status == MPI_F08_STATUS_IGNORE && more == MPI_F08_STATUSES_IGNORE);
  memcpy(before, MPI_F_STATUS_IGNORE, sizeof before);
  OK(MPI_Isend(&value, 1, MPI_INT, 0, tag, MPI_COMM_SELF, &request));
  mpi_recv_(&received, &one, &type, &source, &tag, &comm, MPI_F_STATUS_IGNORE, &ierror);
  CHECK(ierror == MPI_SUCCESS && received == 7);
  CHECK(memcmp(before, MPI_F_STATUS_IGNORE, sizeof before) == 0);
  OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
}

int main(int argc, char **argv) {
  OK(MPI_Init(&argc, &argv));
  handles();
  statuses();
  ignored();
  OK(MPI_Finalize());
  printf("passed\n");
  return 0;
}
