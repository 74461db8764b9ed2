/* The functions that MPI 3.0 removed, as older programs call them. Runs with one rank; prints `passed`. */
#include <mpi.h>
#include <stddef.h>
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

typedef struct {
  char letter;
  double numbers[2];
} Pair;

static int handled;

static void on_error(MPI_Comm *comm, int *code, ...) {
  (void)comm;
  MPI_Error_class(*code, &handled);
}

/* A datatype of a structure whose second pair comes first. */
static void structures(void) {
  Pair sent[2] = {{'a', {1, 2}}, {'b', {3, 4}}}, got[2] = {{'-', {0, 0}}, {'-', {0, 0}}};
  int lengths[2] = {1, 2};
  MPI_Aint places[2], base, extent, lower, upper;
  MPI_Datatype types[2] = {MPI_CHAR, MPI_DOUBLE}, pair, turned;
  OK(MPI_Address(&sent[0], &base));
  OK(MPI_Address(&sent[0].letter, &places[0]));
  OK(MPI_Address(&sent[0].numbers, &places[1]));
  places[0] -= base, places[1] -= base;
  CHECK(places[1] == offsetof(Pair, numbers));
  OK(MPI_Type_struct(2, lengths, places, types, &pair));
  OK(MPI_Type_commit(&pair));
  OK(MPI_Type_extent(pair, &extent));
  CHECK(extent == sizeof(Pair));
  MPI_Aint order[2] = {sizeof(Pair), 0};
  lengths[1] = 1;
  OK(MPI_Type_hindexed(2, lengths, order, pair, &turned));
  OK(MPI_Type_commit(&turned));
  OK(MPI_Sendrecv(sent, 1, turned, 0, 1, got, 2, pair, 0, 1, MPI_COMM_SELF, MPI_STATUS_IGNORE));
  CHECK(got[0].letter == 'b' && got[0].numbers[1] == 4 && got[1].letter == 'a' && got[1].numbers[0] == 1);
  OK(MPI_Type_free(&turned));
  OK(MPI_Type_free(&pair));

  order[0] = 8;
  OK(MPI_Type_hindexed(1, lengths, order, MPI_INT, &pair));
  OK(MPI_Type_lb(pair, &lower));
  OK(MPI_Type_ub(pair, &upper));
  CHECK(lower == 8 && upper == 12);
  OK(MPI_Type_free(&pair));
  OK(MPI_Type_hvector(3, 1, 16, MPI_INT, &pair));
  OK(MPI_Type_extent(pair, &extent));
  CHECK(extent == 36);
  OK(MPI_Type_free(&pair));
}

static void handlers(void) {
  int value = 0;
  MPI_Handler_function *function = on_error;
  MPI_Errhandler handler, found;
  OK(MPI_Errhandler_create(function, &handler));
  OK(MPI_Errhandler_set(MPI_COMM_WORLD, handler));
  OK(MPI_Errhandler_get(MPI_COMM_WORLD, &found));
  CHECK(MPI_Send(&value, 1, MPI_INT, 9, 0, MPI_COMM_WORLD) != MPI_SUCCESS);
  CHECK(handled == MPI_ERR_RANK);
  OK(MPI_Errhandler_free(&found));
  OK(MPI_Errhandler_free(&handler));
}

int main(int argc, char **argv) {
  OK(MPI_Init(&argc, &argv));
  structures();
  handlers();
  OK(MPI_Finalize());
  printf("passed\n");
  return 0;
}
