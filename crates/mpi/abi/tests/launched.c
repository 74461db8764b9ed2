/* What a program has from its launcher: the end of the job by MPI_Abort, and attributes. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void finalize(void) { MPI_Finalize(); }

/* Computes and calls no function of MPI. A job that does not end fails by the signal. */
static void compute(void) {
  volatile unsigned long sum = 0;
  alarm(60);
  for (;;) sum += 1;
}

static void show(const char *name, int key) {
  int *value, flag;
  MPI_Comm_get_attr(MPI_COMM_WORLD, key, &value, &flag);
  if (flag) printf(" %s %d", name, *value);
}

int main(int argc, char **argv) {
  int rank, size;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc > 1 && !strcmp(argv[1], "abort")) {
    atexit(finalize);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank + 1 < size) compute();
    alarm(60);
    /* As much as a pipe takes. */
    for (int i = 0; i < 2500; i++) printf("written before the end\n");
    MPI_Abort(MPI_COMM_WORLD, 42);
  }
  printf("rank %d", rank);
  show("program", MPI_APPNUM);
  show("universe", MPI_UNIVERSE_SIZE);
  printf("\n");
  MPI_Finalize();
  return 0;
}
