/* A ping-pong between two MPI ranks. Prints the median one-way latency in microseconds. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    int bytes = atoi(argv[1]), count = atoi(argv[2]), warmup = count / 10;
    char *out = calloc(1, bytes + 1), *in = calloc(1, bytes + 1);
    double *samples = malloc(sizeof(double) * (count + 1));
    for (int i = -warmup; i < count; i++) {
        double start = MPI_Wtime();
        memset(out, i, bytes);
        if (rank == 0) {
            MPI_Send(out, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
            MPI_Recv(in, bytes, MPI_BYTE, 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        } else {
            MPI_Recv(in, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(out, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
        }
        if (i >= 0) samples[i] = MPI_Wtime() - start;
    }
    if (rank == 0) {
        qsort(samples, count, sizeof(double), ascending);
        printf("one_way_us %.4f\n", samples[count / 2] * 5e5);
    }
    MPI_Finalize();
    return 0;
}
