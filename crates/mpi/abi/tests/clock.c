/* The clock of MPI is the monotonic clock of the host. Runs with one rank; prints `passed`. */
#define _POSIX_C_SOURCE 200112L
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      printf("line %d: %s\n", __LINE__, #condition);                                      \
      exit(1);                                                                            \
    }                                                                                     \
  } while (0)
#define OK(call) CHECK((call) == MPI_SUCCESS)

static double monotonic(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec + time.tv_nsec * 1e-9;
}

/* Ranks of one host read the same clock. */
static void times(void) {
  double before = monotonic(), now = MPI_Wtime(), after = monotonic();
  CHECK(before <= now && now <= after);
  CHECK(MPI_Wtick() > 0 && MPI_Wtick() <= 1e-3);
}

int main(int argc, char **argv) {
  OK(MPI_Init(&argc, &argv));
  times();
  OK(MPI_Finalize());
  printf("passed\n");
  return 0;
}
