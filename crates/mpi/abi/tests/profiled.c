/* A tool that counts the messages of a program by its own MPI_Send, which calls PMPI_Send. */
#include <mpi.h>
#include <stdio.h>

static int calls, bytes;

int MPI_Send(const void *buf, int count, MPI_Datatype datatype, int dest, int tag, MPI_Comm comm) {
  int size;
  PMPI_Type_size(datatype, &size);
  calls++;
  bytes += count * size;
  return PMPI_Send(buf, count, datatype, dest, tag, comm);
}

int MPI_Finalize(void) {
  int totals[2] = {calls, bytes}, rank;
  PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
  PMPI_Allreduce(MPI_IN_PLACE, totals, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("%d messages, %d bytes\n", totals[0], totals[1]);
  return PMPI_Finalize();
}
