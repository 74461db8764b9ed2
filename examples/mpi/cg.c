/* Conjugate gradients for the five-point Laplacian of a square grid, whose rows are divided among the ranks.
 * The right side belongs to a known solution, which the result is compared with. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int size, rank, side, rows, first;

/* A vector has a row above and a row below those of this rank. */
static double *vector(void) {
  double *v = calloc((size_t)(rows + 2) * side, sizeof *v);
  if (!v) MPI_Abort(MPI_COMM_WORLD, 2);
  return v;
}

static double dot(const double *a, const double *b) {
  double sum = 0, all;
  for (int i = side; i < (rows + 1) * side; i++) sum += a[i] * b[i];
  MPI_Allreduce(&sum, &all, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return all;
}

static void exchange(double *v) {
  int above = rank > 0 ? rank - 1 : MPI_PROC_NULL, below = rank < size - 1 ? rank + 1 : MPI_PROC_NULL;
  MPI_Sendrecv(v + side, side, MPI_DOUBLE, above, 1, v + (rows + 1) * side, side, MPI_DOUBLE, below, 1,
               MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Sendrecv(v + rows * side, side, MPI_DOUBLE, below, 2, v, side, MPI_DOUBLE, above, 2, MPI_COMM_WORLD,
               MPI_STATUS_IGNORE);
}

static void multiply(double *v, double *result) {
  exchange(v);
  for (int i = 1; i <= rows; i++)
    for (int j = 0; j < side; j++) {
      int at = i * side + j;
      double left = j > 0 ? v[at - 1] : 0, right = j < side - 1 ? v[at + 1] : 0;
      result[at] = 4 * v[at] - left - right - v[at - side] - v[at + side];
    }
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  double start = MPI_Wtime();
  side = argc > 1 ? atoi(argv[1]) : 64;
  first = (int)((long)side * rank / size);
  rows = (int)((long)side * (rank + 1) / size) - first;

  double *x = vector(), *known = vector(), *r = vector(), *p = vector(), *q = vector();
  for (int i = 1; i <= rows; i++)
    for (int j = 0; j < side; j++) known[i * side + j] = sin(1 + 3.0 * (first + i) + 7.0 * j);
  multiply(known, r);
  for (int i = side; i < (rows + 1) * side; i++) p[i] = r[i];

  double rho = dot(r, r), begin = rho;
  int steps = 0;
  while (rho > begin * 1e-24 && steps < 10 * side) {
    multiply(p, q);
    double alpha = rho / dot(p, q), before = rho;
    for (int i = side; i < (rows + 1) * side; i++) {
      x[i] += alpha * p[i];
      r[i] -= alpha * q[i];
    }
    rho = dot(r, r);
    for (int i = side; i < (rows + 1) * side; i++) p[i] = r[i] + rho / before * p[i];
    steps++;
  }

  double error = 0, largest;
  for (int i = side; i < (rows + 1) * side; i++) error = fmax(error, fabs(x[i] - known[i]));
  MPI_Reduce(&error, &largest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    int good = largest < 1e-8;
    printf("%s\n", good ? "passed" : "failed");
    if (getenv("KERNEL_TIME")) fprintf(stderr, "%f seconds\n", MPI_Wtime() - start);
    if (!good) {
      fprintf(stderr, "after %d steps the error is %g\n", steps, largest);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
  }
  free(x), free(known), free(r), free(p), free(q);
  MPI_Finalize();
  return 0;
}
