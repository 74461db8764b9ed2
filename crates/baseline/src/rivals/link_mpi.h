/* The link between the two sides: MPI. See link_ucx.h for the same over UCX. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

typedef MPI_Request link_request;

static int rank;

static void link_fail(void) { MPI_Abort(MPI_COMM_WORLD, 1); }

static void link_open(int *argc, char ***argv) {
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
}

/* The library has done all of it. */
static void link_join(FILE *orders, FILE *answers) { (void)orders, (void)answers; }

static void link_close(void) { MPI_Finalize(); }

static void link_send(const void *buf, size_t bytes, int tag) {
    MPI_Send(buf, (int)bytes, MPI_BYTE, 1 - rank, tag, MPI_COMM_WORLD);
}

static void link_receive(void *buf, size_t bytes, int tag) {
    MPI_Recv(buf, (int)bytes, MPI_BYTE, 1 - rank, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static link_request link_nothing(void) { return MPI_REQUEST_NULL; }

static link_request link_post_send(const void *buf, size_t bytes, int tag) {
    MPI_Request request;
    MPI_Isend(buf, (int)bytes, MPI_BYTE, 1 - rank, tag, MPI_COMM_WORLD, &request);
    return request;
}

static link_request link_post_receive(void *buf, size_t bytes, int tag) {
    MPI_Request request;
    MPI_Irecv(buf, (int)bytes, MPI_BYTE, 1 - rank, tag, MPI_COMM_WORLD, &request);
    return request;
}

static void link_wait(link_request *request) { MPI_Wait(request, MPI_STATUS_IGNORE); }
