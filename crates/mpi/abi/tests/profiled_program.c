/* A program that knows nothing of a tool: every rank sends three numbers to the next, twice. */
#include <mpi.h>

int main(int argc, char **argv) {
  int size, rank, numbers[3] = {1, 2, 3}, got[3];
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  for (int i = 0; i < 2; i++) {
    MPI_Send(numbers, 3, MPI_INT, (rank + 1) % size, i, MPI_COMM_WORLD);
    MPI_Recv(got, 3, MPI_INT, (rank + size - 1) % size, i, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  MPI_Finalize();
  return 0;
}
