/* Prints what the standard defines, from rank 0 alone: with every library of the standard ABI the same. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, size;

static void number(const char *what, long long value) {
    if (rank == 0) printf("%s %lld\n", what, value);
}

static void text(const char *what, const char *value) {
    if (rank == 0) printf("%s %s\n", what, value);
}

static void bytes(const char *what, const unsigned char *at, int count) {
    if (rank != 0) return;
    printf("%s", what);
    for (int i = 0; i < count; i++) printf(" %02x", at[i]);
    printf("\n");
}

static void type(const char *what, MPI_Datatype of) {
    MPI_Aint lower, extent, true_lower, true_extent;
    int type_size, integers, addresses, types, combiner;
    MPI_Type_size(of, &type_size);
    MPI_Type_get_extent(of, &lower, &extent);
    MPI_Type_get_true_extent(of, &true_lower, &true_extent);
    MPI_Type_get_envelope(of, &integers, &addresses, &types, &combiner);
    text("type", what);
    number("  size", type_size);
    number("  lower", lower);
    number("  extent", extent);
    number("  true lower", true_lower);
    number("  true extent", true_extent);
    number("  integers", integers);
    number("  addresses", addresses);
    number("  types", types);
    number("  combiner", combiner);
}

static void datatypes(void) {
    MPI_Datatype basic[] = {MPI_CHAR, MPI_INT, MPI_LONG, MPI_DOUBLE, MPI_LONG_DOUBLE, MPI_C_DOUBLE_COMPLEX,
                            MPI_SHORT_INT, MPI_DOUBLE_INT, MPI_2INT, MPI_INT64_T, MPI_AINT, MPI_COUNT};
    for (unsigned i = 0; i < sizeof basic / sizeof *basic; i++) type("predefined", basic[i]);
    MPI_Datatype made;
    int data[32], out[32], position;
    for (int i = 0; i < 32; i++) data[i] = i;
    unsigned char packed[256];

    MPI_Type_vector(3, 2, 4, MPI_INT, &made);
    type("vector", made);
    MPI_Type_commit(&made);
    position = 0;
    MPI_Pack(data, 1, made, packed, sizeof packed, &position, MPI_COMM_WORLD);
    number("packed", position);
    memset(out, 0, sizeof out);
    position = 0;
    MPI_Unpack(packed, sizeof packed, &position, out, 1, made, MPI_COMM_WORLD);
    bytes("unpacked", (unsigned char *)out, 48);
    MPI_Type_free(&made);

    int lengths[] = {1, 0, 3}, places[] = {5, 0, 1};
    MPI_Type_indexed(3, lengths, places, MPI_SHORT, &made);
    type("indexed", made);
    MPI_Datatype resized;
    MPI_Type_create_resized(made, -4, 24, &resized);
    type("resized", resized);
    MPI_Type_free(&made);
    MPI_Type_free(&resized);

    int sizes[] = {4, 5}, part[] = {2, 3}, start[] = {1, 1};
    MPI_Type_create_subarray(2, sizes, part, start, MPI_ORDER_FORTRAN, MPI_INT, &made);
    type("subarray", made);
    MPI_Type_commit(&made);
    position = 0;
    MPI_Pack(data, 1, made, packed, sizeof packed, &position, MPI_COMM_WORLD);
    bytes("subarray packed", packed, position);
    MPI_Type_free(&made);

    MPI_Datatype members[] = {MPI_CHAR, MPI_DOUBLE, MPI_INT};
    int counts[] = {3, 1, 2};
    MPI_Aint at[] = {0, 8, 16};
    MPI_Type_create_struct(3, counts, at, members, &made);
    type("struct", made);
    MPI_Type_free(&made);

    MPI_Aint room = 0, done = 0;
    long values[] = {1, -2};
    MPI_Pack_external_size("external32", 2, MPI_LONG, &room);
    number("external32 size", room);
    MPI_Pack_external("external32", data, 3, MPI_INT, packed, sizeof packed, &done);
    MPI_Pack_external("external32", values, 2, MPI_LONG, packed, sizeof packed, &done);
    bytes("external32", packed, (int)done);
}

static void communication(void) {
    int next = (rank + 1) % size, previous = (rank + size - 1) % size, got = -1, count;
    MPI_Status status;
    MPI_Sendrecv(&rank, 1, MPI_INT, next, 7, &got, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD,
                 &status);
    number("received", got);
    number("source is the previous rank", status.MPI_SOURCE == previous);
    number("tag", status.MPI_TAG);
    MPI_Get_count(&status, MPI_INT, &count);
    number("count", count);
    MPI_Get_count(&status, MPI_DOUBLE, &count);
    number("count of another type is undefined", count == MPI_UNDEFINED);
    MPI_Recv(&got, 1, MPI_INT, MPI_PROC_NULL, 3, MPI_COMM_WORLD, &status);
    number("source", status.MPI_SOURCE);
    number("tag", status.MPI_TAG);

    double mine[2] = {rank + 1.0, -rank}, all[2];
    MPI_Op ops[] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX};
    for (int i = 0; i < 4; i++) {
        MPI_Allreduce(mine, all, 2, MPI_DOUBLE, ops[i], MPI_COMM_WORLD);
        bytes("allreduce", (unsigned char *)all, sizeof all);
    }
    struct { double value; int at; } pair = {(double)((rank * 7) % 3), rank}, best;
    memset(&best, 0, sizeof best);
    MPI_Allreduce(&pair, &best, 1, MPI_DOUBLE_INT, MPI_MAXLOC, MPI_COMM_WORLD);
    number("maxloc", best.at);
    int sum = rank + 1, scanned = 0;
    MPI_Scan(&sum, &scanned, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    int *every = calloc((size_t)size, sizeof *every);
    MPI_Gather(&scanned, 1, MPI_INT, every, 1, MPI_INT, 0, MPI_COMM_WORLD);
    for (int i = 0; i < size; i++) number("scan", every[i]);
    free(every);
}

static void objects(void) {
    MPI_Group world, odd, rest;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    int range[1][3] = {{0, size - 1, 2}}, compared, number_of;
    MPI_Group_range_incl(world, 1, range, &odd);
    MPI_Group_difference(world, odd, &rest);
    MPI_Group_size(rest, &number_of);
    number("group size", number_of);
    MPI_Group_compare(world, odd, &compared);
    number("groups", compared);
    MPI_Comm split;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &split);
    int new_rank;
    MPI_Comm_rank(split, &new_rank);
    number("rank after a split", new_rank);
    MPI_Comm_compare(split, MPI_COMM_WORLD, &compared);
    number("communicators", compared);
    MPI_Comm_free(&split);
    int dims[2] = {0, 0}, periods[2] = {1, 0}, below, above, coords[2];
    MPI_Dims_create(size, 2, dims);
    number("dims", dims[0] * 100 + dims[1]);
    MPI_Comm grid;
    MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &grid);
    MPI_Cart_coords(grid, rank, 2, coords);
    number("coords", coords[0] * 100 + coords[1]);
    MPI_Cart_shift(grid, 0, 1, &below, &above);
    number("below", below);
    number("above", above);
    MPI_Cart_shift(grid, 1, 1, &below, &above);
    number("left", below);
    number("right", above);
    MPI_Topo_test(grid, &compared);
    number("topology", compared);
    MPI_Comm_free(&grid);
    MPI_Group_free(&world);
    if (odd != MPI_GROUP_EMPTY) MPI_Group_free(&odd);
    if (rest != MPI_GROUP_EMPTY) MPI_Group_free(&rest);

    MPI_Info info;
    char value[64];
    int flag, keys;
    MPI_Info_create(&info);
    MPI_Info_set(info, "one", "1");
    MPI_Info_set(info, "two", "zwei");
    MPI_Info_set(info, "one", "eins");
    MPI_Info_get_nkeys(info, &keys);
    number("keys", keys);
    int room = sizeof value;
    MPI_Info_get_string(info, "one", &room, value, &flag);
    text("value", value);
    number("room", room);
    MPI_Info_free(&info);
    number("null info", info == MPI_INFO_NULL);
}

static void error(const char *what, int code) {
    int class = -1;
    MPI_Error_class(code, &class);
    text("error of", what);
    number("  class", class);
}

static void errors(void) {
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    int value = 0, flag;
    MPI_Request none = MPI_REQUEST_NULL;
    error("a rank", MPI_Send(&value, 1, MPI_INT, size, 0, MPI_COMM_WORLD));
    error("a tag", MPI_Send(&value, 1, MPI_INT, 0, -5, MPI_COMM_WORLD));
    error("a count", MPI_Send(&value, -1, MPI_INT, 0, 0, MPI_COMM_WORLD));
    error("a type", MPI_Send(&value, 1, MPI_DATATYPE_NULL, 0, 0, MPI_COMM_WORLD));
    error("a communicator", MPI_Send(&value, 1, MPI_INT, 0, 0, MPI_COMM_NULL));
    error("a root", MPI_Bcast(&value, 1, MPI_INT, size, MPI_COMM_WORLD));
    error("a null request", MPI_Test(&none, &flag, MPI_STATUS_IGNORE));
    error("success", MPI_SUCCESS);
    int sent[2] = {1, 2}, got = 0;
    MPI_Request request;
    MPI_Isend(sent, 2, MPI_INT, 0, 1, MPI_COMM_SELF, &request);
    error("a truncated receive", MPI_Recv(&got, 1, MPI_INT, 0, 1, MPI_COMM_SELF, MPI_STATUS_IGNORE));
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    number("size", size);
    datatypes();
    communication();
    objects();
    errors();
    MPI_Finalize();
    return 0;
}
