/* A program of any number of ranks: messages, completion, communicators, collectives, a grid, threads. Rank 0
 * prints `passed`. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      fprintf(stderr, "rank %d, line %d: %s\n", rank, __LINE__, #condition);              \
      MPI_Abort(MPI_COMM_WORLD, 3);                                                       \
    }                                                                                     \
  } while (0)
#define OK(call) CHECK((call) == MPI_SUCCESS)

static int rank, size;

static void fill(int *values, int count, int seed) {
  for (int i = 0; i < count; i++) values[i] = seed * 1000003 + i;
}

static int is_filled(const int *values, int count, int seed) {
  for (int i = 0; i < count; i++)
    if (values[i] != seed * 1000003 + i) return 0;
  return 1;
}

/* Every rank sends to every rank, in all modes, with short and long messages. */
static void everybody(int count) {
  int *out = malloc(sizeof(int) * count), *in = malloc(sizeof(int) * count * size);
  MPI_Request *requests = malloc(sizeof *requests * 2 * size);
  MPI_Status *statuses = malloc(sizeof *statuses * 2 * size);
  for (int mode = 0; mode < 4; mode++) {
    fill(out, count, rank + 100 * mode);
    for (int peer = 0; peer < size; peer++)
      OK(MPI_Irecv(in + peer * count, count, MPI_INT, peer, mode, MPI_COMM_WORLD, &requests[peer]));
    OK(MPI_Barrier(MPI_COMM_WORLD));
    for (int peer = 0; peer < size; peer++) {
      MPI_Request *request = &requests[size + peer];
      if (mode == 0) OK(MPI_Isend(out, count, MPI_INT, peer, mode, MPI_COMM_WORLD, request));
      if (mode == 1) OK(MPI_Issend(out, count, MPI_INT, peer, mode, MPI_COMM_WORLD, request));
      if (mode == 2) OK(MPI_Irsend(out, count, MPI_INT, peer, mode, MPI_COMM_WORLD, request));
      if (mode == 3) OK(MPI_Ibsend(out, count, MPI_INT, peer, mode, MPI_COMM_WORLD, request));
    }
    OK(MPI_Waitall(2 * size, requests, statuses));
    for (int peer = 0; peer < size; peer++) {
      int got;
      OK(MPI_Get_count(&statuses[peer], MPI_INT, &got));
      CHECK(got == count && statuses[peer].MPI_SOURCE == peer && statuses[peer].MPI_TAG == mode);
      CHECK(is_filled(in + peer * count, count, peer + 100 * mode));
    }
  }
  free(out), free(in), free(requests), free(statuses);
}

static void wildcards(void) {
  int value = rank, got = -1;
  MPI_Status status;
  if (rank == 0) {
    int sum = 0;
    for (int i = 1; i < size; i++) {
      OK(MPI_Probe(MPI_ANY_SOURCE, 9, MPI_COMM_WORLD, &status));
      int source = status.MPI_SOURCE;
      OK(MPI_Recv(&got, 1, MPI_INT, source, MPI_ANY_TAG, MPI_COMM_WORLD, &status));
      CHECK(got == source && status.MPI_TAG == 9);
      sum += got;
      MPI_Message message;
      OK(MPI_Mprobe(MPI_ANY_SOURCE, 10, MPI_COMM_WORLD, &message, &status));
      OK(MPI_Mrecv(&got, 1, MPI_INT, &message, &status));
      CHECK(message == MPI_MESSAGE_NULL && got == status.MPI_SOURCE);
    }
    CHECK(sum == size * (size - 1) / 2);
  } else {
    OK(MPI_Ssend(&value, 1, MPI_INT, 0, 9, MPI_COMM_WORLD));
    OK(MPI_Send(&value, 1, MPI_INT, 0, 10, MPI_COMM_WORLD));
  }
  OK(MPI_Recv(&got, 1, MPI_INT, MPI_PROC_NULL, 0, MPI_COMM_WORLD, &status));
  CHECK(status.MPI_SOURCE == MPI_PROC_NULL && status.MPI_TAG == MPI_ANY_TAG);
  int right = (rank + 1) % size, left = (rank + size - 1) % size;
  OK(MPI_Sendrecv(&value, 1, MPI_INT, right, 1, &got, 1, MPI_INT, left, 1, MPI_COMM_WORLD, &status));
  CHECK(got == left && status.MPI_SOURCE == left);
  OK(MPI_Sendrecv_replace(&value, 1, MPI_INT, left, 2, right, 2, MPI_COMM_WORLD, &status));
  CHECK(value == right);

  MPI_Request request;
  int cancelled, flag;
  OK(MPI_Irecv(&got, 1, MPI_INT, MPI_ANY_SOURCE, 77, MPI_COMM_WORLD, &request));
  OK(MPI_Test(&request, &flag, &status));
  CHECK(!flag);
  OK(MPI_Cancel(&request));
  OK(MPI_Wait(&request, &status));
  OK(MPI_Test_cancelled(&status, &cancelled));
  CHECK(cancelled && request == MPI_REQUEST_NULL);
}

static void columns(void) {
  enum { n = 200 };
  static int matrix[n][n], column[n];
  MPI_Datatype vector;
  OK(MPI_Type_vector(n, 1, n, MPI_INT, &vector));
  OK(MPI_Type_commit(&vector));
  int right = (rank + 1) % size, left = (rank + size - 1) % size;
  fill(column, n, rank);
  MPI_Request requests[2];
  OK(MPI_Irecv(&matrix[0][5], 1, vector, left, 3, MPI_COMM_WORLD, &requests[0]));
  OK(MPI_Isend(column, n, MPI_INT, right, 3, MPI_COMM_WORLD, &requests[1]));
  int done = 0;
  while (done < 2) {
    int count, indices[2];
    OK(MPI_Waitsome(2, requests, &count, indices, MPI_STATUSES_IGNORE));
    CHECK(count == 1 || count == 2);
    done += count;
  }
  for (int i = 0; i < n; i++) CHECK(matrix[i][5] == left * 1000003 + i && matrix[i][4] == 0);
  OK(MPI_Type_free(&vector));
}

static void persistent(void) {
  int right = (rank + 1) % size, left = (rank + size - 1) % size, out = 0, in = 0;
  MPI_Request requests[2];
  OK(MPI_Send_init(&out, 1, MPI_INT, right, 4, MPI_COMM_WORLD, &requests[0]));
  OK(MPI_Recv_init(&in, 1, MPI_INT, left, 4, MPI_COMM_WORLD, &requests[1]));
  for (int round = 0; round < 10; round++) {
    out = 100 * round + rank;
    OK(MPI_Startall(2, requests));
    int flag = 0;
    while (!flag) OK(MPI_Testall(2, requests, &flag, MPI_STATUSES_IGNORE));
    CHECK(in == 100 * round + left);
  }
  OK(MPI_Request_free(&requests[0]));
  OK(MPI_Request_free(&requests[1]));

  int sum;
  OK(MPI_Allreduce_init(&out, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, MPI_INFO_NULL, &requests[0]));
  for (int round = 0; round < 5; round++) {
    out = round + rank;
    OK(MPI_Start(&requests[0]));
    OK(MPI_Wait(&requests[0], MPI_STATUS_IGNORE));
    CHECK(sum == round * size + size * (size - 1) / 2);
  }
  OK(MPI_Request_free(&requests[0]));
}

static void communicators(void) {
  MPI_Comm half, copy, some, quick;
  int value = rank, got = -1, number, count, result;
  OK(MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half));
  OK(MPI_Comm_rank(half, &number));
  OK(MPI_Comm_size(half, &count));
  CHECK(count == (size + (rank % 2 == 0)) / 2);
  OK(MPI_Allreduce(&value, &got, 1, MPI_INT, MPI_MAX, half));
  CHECK(got == ((size - 1) % 2 == rank % 2 ? size - 1 : size - 2));
  CHECK(number == (got - rank) / 2);
  OK(MPI_Comm_split(MPI_COMM_WORLD, rank == 0 ? MPI_UNDEFINED : 1, 0, &some));
  CHECK((some == MPI_COMM_NULL) == (rank == 0));
  if (some != MPI_COMM_NULL) OK(MPI_Comm_free(&some));

  /* Messages of one communicator are not received in another. */
  OK(MPI_Comm_dup(MPI_COMM_WORLD, &copy));
  OK(MPI_Comm_compare(copy, MPI_COMM_WORLD, &result));
  CHECK(result == MPI_CONGRUENT);
  int right = (rank + 1) % size, left = (rank + size - 1) % size, other = rank + 50;
  OK(MPI_Send(&value, 1, MPI_INT, right, 0, MPI_COMM_WORLD));
  OK(MPI_Send(&other, 1, MPI_INT, right, 0, copy));
  OK(MPI_Recv(&got, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, copy, MPI_STATUS_IGNORE));
  CHECK(got == left + 50);
  OK(MPI_Recv(&got, 1, MPI_INT, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
  CHECK(got == left);

  MPI_Request request;
  OK(MPI_Comm_idup(copy, &quick, &request));
  OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  OK(MPI_Bcast(&other, 1, MPI_INT, size - 1, quick));
  CHECK(other == size - 1 + 50);
  OK(MPI_Comm_free(&quick));

  MPI_Group world, evens;
  int list[64], evens_count = 0;
  for (int i = 0; i < size; i += 2) list[evens_count++] = i;
  OK(MPI_Comm_group(MPI_COMM_WORLD, &world));
  OK(MPI_Group_incl(world, evens_count, list, &evens));
  OK(MPI_Comm_create(copy, evens, &some));
  CHECK((some == MPI_COMM_NULL) == (rank % 2 == 1));
  if (rank % 2 == 0) {
    MPI_Comm again;
    OK(MPI_Comm_create_group(MPI_COMM_WORLD, evens, 5, &again));
    OK(MPI_Comm_rank(again, &number));
    CHECK(number == rank / 2);
    OK(MPI_Barrier(again));
    OK(MPI_Comm_free(&again));
    OK(MPI_Comm_free(&some));
  }
  OK(MPI_Group_free(&world));
  OK(MPI_Group_free(&evens));
  OK(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &some));
  OK(MPI_Comm_size(some, &count));
  CHECK(count == size);
  OK(MPI_Comm_free(&some));
  OK(MPI_Comm_free(&half));
  OK(MPI_Comm_free(&copy));
  CHECK(copy == MPI_COMM_NULL);
}

/* Composition of affine functions does not commute. */
static void compose(void *in, void *inout, int *len, MPI_Datatype *datatype) {
  (void)datatype;
  long *f = in, *g = inout;
  for (int i = 0; i < *len; i++, f += 2, g += 2) {
    long a = f[0] * g[0] % 9973, b = (f[0] * g[1] + f[1]) % 9973;
    g[0] = a, g[1] = b;
  }
}

static void collectives(int count) {
  int *one = malloc(sizeof(int) * count), *all = malloc(sizeof(int) * count * size);
  int *back = malloc(sizeof(int) * count * size);
  for (int root = 0; root < size; root++) {
    if (rank == root) fill(one, count, root + 7);
    OK(MPI_Bcast(one, count, MPI_INT, root, MPI_COMM_WORLD));
    CHECK(is_filled(one, count, root + 7));
    fill(one, count, rank);
    memset(all, 0, sizeof(int) * count * size);
    OK(MPI_Gather(one, count, MPI_INT, all, count, MPI_INT, root, MPI_COMM_WORLD));
    for (int i = 0; rank == root && i < size; i++) CHECK(is_filled(all + i * count, count, i));
    memset(one, 0, sizeof(int) * count);
    OK(MPI_Scatter(all, count, MPI_INT, one, count, MPI_INT, root, MPI_COMM_WORLD));
    CHECK(is_filled(one, count, rank));
    long function[2] = {rank + 2, 3 * rank + 1}, result[2] = {0, 0}, expected[2] = {2, 1};
    MPI_Op op;
    MPI_Datatype pair;
    OK(MPI_Op_create(compose, 0, &op));
    OK(MPI_Type_contiguous(2, MPI_LONG, &pair));
    OK(MPI_Type_commit(&pair));
    for (int i = 1; i < size; i++) {
      long next[2] = {i + 2, 3 * i + 1};
      int n = 1;
      compose(expected, next, &n, &pair);
      memcpy(expected, next, sizeof next);
    }
    OK(MPI_Reduce(function, result, 1, pair, op, root, MPI_COMM_WORLD));
    CHECK(rank != root || (result[0] == expected[0] && result[1] == expected[1]));
    OK(MPI_Allreduce(MPI_IN_PLACE, function, 1, pair, op, MPI_COMM_WORLD));
    CHECK(function[0] == expected[0] && function[1] == expected[1]);
    OK(MPI_Op_free(&op));
    OK(MPI_Type_free(&pair));
  }
  fill(one, count, rank);
  OK(MPI_Allgather(one, count, MPI_INT, all, count, MPI_INT, MPI_COMM_WORLD));
  for (int i = 0; i < size; i++) CHECK(is_filled(all + i * count, count, i));
  for (int i = 0; i < size; i++) fill(all + i * count, count, 10 * rank + i);
  OK(MPI_Alltoall(all, count, MPI_INT, back, count, MPI_INT, MPI_COMM_WORLD));
  for (int i = 0; i < size; i++) CHECK(is_filled(back + i * count, count, 10 * i + rank));
  for (int i = 0; i < count; i++) one[i] = rank + i;
  OK(MPI_Allreduce(MPI_IN_PLACE, one, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
  for (int i = 0; i < count; i++) CHECK(one[i] == size * (size - 1) / 2 + size * i);
  int value = rank + 1, scan = 0, before = -5;
  OK(MPI_Scan(&value, &scan, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
  CHECK(scan == (rank + 1) * (rank + 2) / 2);
  OK(MPI_Exscan(&value, &before, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
  CHECK(before == (rank == 0 ? -5 : rank * (rank + 1) / 2));
  int *parts = malloc(sizeof(int) * size), mine;
  for (int i = 0; i < size; i++) parts[i] = rank + i;
  OK(MPI_Reduce_scatter_block(parts, &mine, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD));
  CHECK(mine == size * (size - 1) / 2 + size * rank);

  /* Rank i has i + 1 elements. */
  int *counts = malloc(sizeof(int) * size), *displs = malloc(sizeof(int) * size);
  for (int i = 0; i < size; i++) counts[i] = i + 1, displs[i] = i == 0 ? 0 : displs[i - 1] + counts[i - 1] + 1;
  int *varied = calloc(displs[size - 1] + counts[size - 1], sizeof(int));
  int *own = malloc(sizeof(int) * (rank + 1));
  fill(own, rank + 1, rank);
  OK(MPI_Allgatherv(own, rank + 1, MPI_INT, varied, counts, displs, MPI_INT, MPI_COMM_WORLD));
  for (int i = 0; i < size; i++) CHECK(is_filled(varied + displs[i], counts[i], i));
  MPI_Request requests[3];
  int total = 0;
  OK(MPI_Ibarrier(MPI_COMM_WORLD, &requests[0]));
  OK(MPI_Iallreduce(&value, &total, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[1]));
  OK(MPI_Igatherv(own, rank + 1, MPI_INT, varied, counts, displs, MPI_INT, 0, MPI_COMM_WORLD, &requests[2]));
  OK(MPI_Waitall(3, requests, MPI_STATUSES_IGNORE));
  CHECK(total == size * (size + 1) / 2);
  free(one), free(all), free(back), free(parts), free(counts), free(displs), free(varied), free(own);
}

/* Two sides of different sizes: messages, collectives in three forms, duplicates, merging. */
static void two_sides(void) {
  if (size < 2) return;
  int left = rank < (size + 1) / 2, left_size = (size + 1) / 2, value, got, flag, number;
  MPI_Comm side, inter, copy, merged;
  OK(MPI_Comm_split(MPI_COMM_WORLD, left, rank, &side));
  OK(MPI_Intercomm_create(side, 0, MPI_COMM_WORLD, left ? left_size : 0, 77, &inter));
  OK(MPI_Comm_free(&side));
  OK(MPI_Comm_test_inter(inter, &flag));
  OK(MPI_Comm_remote_size(inter, &number));
  int own = left ? left_size : size - left_size, others = size - own, first = left ? left_size : 0;
  CHECK(flag && number == others);
  int local;
  OK(MPI_Comm_rank(inter, &local));
  OK(MPI_Comm_dup(inter, &copy));

  /* Ranks of messages are those of the other side. */
  MPI_Status status;
  value = rank;
  if (local < others && local < own) {
    OK(MPI_Sendrecv(&value, 1, MPI_INT, local, 5, &got, 1, MPI_INT, MPI_ANY_SOURCE, 5, copy, &status));
    CHECK(got == first + local && status.MPI_SOURCE == local);
  }

  int *all = malloc(sizeof(int) * size);
  OK(MPI_Allgather(&value, 1, MPI_INT, all, 1, MPI_INT, inter));
  for (int i = 0; i < others; i++) CHECK(all[i] == first + i);
  MPI_Request request;
  OK(MPI_Iallreduce(&value, &got, 1, MPI_INT, MPI_SUM, inter, &request));
  OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  CHECK(got == others * first + others * (others - 1) / 2);
  /* The root is the last rank of the left side. */
  int root = left ? (local == own - 1 ? MPI_ROOT : MPI_PROC_NULL) : others - 1;
  got = rank == left_size - 1 ? 4711 : 0;
  OK(MPI_Bcast_init(&got, 1, MPI_INT, root, copy, MPI_INFO_NULL, &request));
  for (int i = 0; i < 2; i++) {
    OK(MPI_Start(&request));
    OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
    CHECK(got == (left && root == MPI_PROC_NULL ? 0 : 4711));
  }
  OK(MPI_Request_free(&request));
  OK(MPI_Reduce(&value, &got, 1, MPI_INT, MPI_MAX, root, inter));
  if (root == MPI_ROOT) CHECK(got == size - 1);
  OK(MPI_Barrier(copy));

  OK(MPI_Intercomm_merge(inter, left, &merged));
  OK(MPI_Comm_rank(merged, &number));
  CHECK(number == (left ? size - left_size + local : local));
  OK(MPI_Allreduce(&value, &got, 1, MPI_INT, MPI_SUM, merged));
  CHECK(got == size * (size - 1) / 2);
  OK(MPI_Comm_free(&merged));
  OK(MPI_Comm_free(&copy));
  OK(MPI_Comm_free(&inter));
  free(all);
}

static void grid(void) {
  int dims[2] = {0, 0}, periods[2] = {1, 1}, coords[2], source, dest, kind;
  MPI_Comm cart, row;
  OK(MPI_Dims_create(size, 2, dims));
  CHECK(dims[0] * dims[1] == size && dims[0] >= dims[1]);
  OK(MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &cart));
  OK(MPI_Topo_test(cart, &kind));
  CHECK(kind == MPI_CART);
  OK(MPI_Cart_coords(cart, rank, 2, coords));
  OK(MPI_Cart_shift(cart, 0, 1, &source, &dest));
  int out[4], in[4];
  for (int i = 0; i < 4; i++) out[i] = 10 * rank + i;
  OK(MPI_Neighbor_alltoall(out, 1, MPI_INT, in, 1, MPI_INT, cart));
  for (int dim = 0; dim < 2; dim++) {
    OK(MPI_Cart_shift(cart, dim, 1, &source, &dest));
    CHECK(in[2 * dim] == 10 * source + 2 * dim + 1 && in[2 * dim + 1] == 10 * dest + 2 * dim);
  }
  int keep[2] = {0, 1}, number;
  OK(MPI_Cart_sub(cart, keep, &row));
  OK(MPI_Comm_rank(row, &number));
  CHECK(number == coords[1]);
  OK(MPI_Comm_free(&row));
  OK(MPI_Comm_free(&cart));
}

/* All lengths that take up to four lines and some bytes, then some around the longest that fits a frame. */
enum { IN_LINES = 240, LONGEST = 40000 };
static const int longer[] = {999, 1000, 4096, 16366, 16367, 16368, 16369, 16384, 16385, LONGEST};
enum { LENGTHS = IN_LINES + 1 + sizeof longer / sizeof *longer };

static int length(int at) { return at <= IN_LINES ? at : longer[at - IN_LINES - 1]; }

/* Rank 0 sends messages, which rank 1 receives with a byte more room, or with a byte too little. */
static void short_messages(void) {
  enum { ROUNDS_EACH = 40 };
  static unsigned char out[LONGEST], in[LONGEST + 1];
  MPI_Status status;
  int count, class;
  if (size < 2 || rank > 1) return;
  OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  for (int at = 0; at < LENGTHS; at++) {
    int len = length(at);
    for (int round = 0; round < ROUNDS_EACH; round++) {
      for (int i = 0; i < len; i++) out[i] = (unsigned char)(len + round + i);
      if (rank == 0) {
        OK(MPI_Send(len ? out : NULL, len, MPI_BYTE, 1, len, MPI_COMM_WORLD));
        OK(MPI_Recv(NULL, 0, MPI_BYTE, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
        continue;
      }
      int cut = len > 0 && round % 4 == 3, room = cut ? len - 1 : len + 1;
      int tag = round % 2 ? len : MPI_ANY_TAG;
      memset(in, 0xee, sizeof in);
      status.MPI_ERROR = 12345;
      int code = MPI_Recv(in, room, MPI_BYTE, 0, tag, MPI_COMM_WORLD, &status);
      OK(MPI_Error_class(code, &class));
      CHECK(class == (cut ? MPI_ERR_TRUNCATE : MPI_SUCCESS));
      CHECK(status.MPI_SOURCE == 0 && status.MPI_TAG == len && (cut || status.MPI_ERROR == 12345));
      OK(MPI_Get_count(&status, MPI_BYTE, &count));
      CHECK(cut || count == len);
      CHECK(!memcmp(in, out, cut ? room : len) && in[cut ? room : len] == 0xee);
      OK(MPI_Send(NULL, 0, MPI_BYTE, 0, 1, MPI_COMM_WORLD));
    }
  }
  OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL));
}

/* Ranks exchange messages with their neighbours, of which some are nobody, with MPI_Sendrecv. */
static void exchanged_messages(void) {
  static unsigned char out[LONGEST], in[LONGEST + 1];
  MPI_Status status;
  int class, count;
  OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
  for (int at = 0; at < 4 * LENGTHS; at++) {
    int len = length(at / 4), open = at % 2, cut = at % 4 == 2 && len > 0, room = cut ? len - 1 : len + 1;
    int next = open && rank + 1 == size ? MPI_PROC_NULL : (rank + 1) % size;
    int before = open && rank == 0 ? MPI_PROC_NULL : (rank + size - 1) % size;
    for (int i = 0; i < len; i++) out[i] = (unsigned char)(rank + at + i);
    memset(in, 0xee, sizeof in);
    int code = MPI_Sendrecv(out, len, MPI_BYTE, next, at, in, room, MPI_BYTE, before,
                            at % 3 ? at : MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    OK(MPI_Error_class(code, &class));
    OK(MPI_Get_count(&status, MPI_BYTE, &count));
    CHECK(status.MPI_SOURCE == before);
    if (before == MPI_PROC_NULL) {
      CHECK(class == MPI_SUCCESS && count == 0 && in[0] == 0xee);
      continue;
    }
    CHECK(class == (cut ? MPI_ERR_TRUNCATE : MPI_SUCCESS) && status.MPI_TAG == at && (cut || count == len));
    int kept = cut ? room : len;
    for (int i = 0; i < kept; i++) CHECK(in[i] == (unsigned char)(before + at + i));
    CHECK(in[kept] == 0xee);
  }
  /* Where the receive has a wrong argument, nothing is sent. */
  int value = 1;
  OK(MPI_Error_class(MPI_Sendrecv(&value, 1, MPI_INT, rank, 3, &value, 1, MPI_INT, size, 3, MPI_COMM_WORLD,
                                  MPI_STATUS_IGNORE),
                     &class));
  CHECK(class == MPI_ERR_RANK);
  OK(MPI_Error_class(MPI_Sendrecv(&value, 1, MPI_INT, rank, 3, &value, 1, MPI_INT, rank, -7, MPI_COMM_WORLD,
                                  MPI_STATUS_IGNORE),
                     &class));
  CHECK(class == MPI_ERR_TAG);
  OK(MPI_Iprobe(rank, 3, MPI_COMM_WORLD, &count, MPI_STATUS_IGNORE));
  CHECK(!count);
  OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL));
}

static void errors(void) {
  int value = 0, class;
  OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
#define FAILS(call, expected)                             \
  do {                                                    \
    int code = (call);                                    \
    CHECK(MPI_Error_class(code, &class) == MPI_SUCCESS);  \
    CHECK(class == expected);                             \
  } while (0)
  FAILS(MPI_Send(&value, 1, MPI_INT, size, 0, MPI_COMM_WORLD), MPI_ERR_RANK);
  FAILS(MPI_Send(&value, -1, MPI_INT, 0, 0, MPI_COMM_WORLD), MPI_ERR_COUNT);
  FAILS(MPI_Send(&value, 1, MPI_DATATYPE_NULL, 0, 0, MPI_COMM_WORLD), MPI_ERR_TYPE);
  FAILS(MPI_Send(&value, 1, MPI_INT, 0, -5, MPI_COMM_WORLD), MPI_ERR_TAG);
  FAILS(MPI_Send(NULL, 1, MPI_INT, 0, 0, MPI_COMM_WORLD), MPI_ERR_BUFFER);
  FAILS(MPI_Bcast(&value, 1, MPI_INT, size, MPI_COMM_WORLD), MPI_ERR_ROOT);
  FAILS(MPI_Allreduce(&value, &value, 1, MPI_FLOAT, MPI_BAND, MPI_COMM_WORLD), MPI_ERR_OP);
  int pair[2] = {1, 2};
  MPI_Request request;
  MPI_Status status;
  OK(MPI_Isend(pair, 2, MPI_INT, rank, 6, MPI_COMM_WORLD, &request));
  FAILS(MPI_Recv(&value, 1, MPI_INT, rank, 6, MPI_COMM_WORLD, &status), MPI_ERR_TRUNCATE);
  OK(MPI_Wait(&request, MPI_STATUS_IGNORE));
  MPI_Request stale = request;
  memset(&stale, 0x11, 3);
  OK(MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN));
  FAILS(MPI_Wait(&stale, MPI_STATUS_IGNORE), MPI_ERR_REQUEST);
  FAILS(MPI_Barrier(MPI_COMM_NULL), MPI_ERR_COMM);
  OK(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL));
}

enum { ROUNDS = 500, THREADS = 3, LAST = 77, FIRST_TAG = 100 };

static void *wait_for_last(void *into) {
  OK(MPI_Recv(into, 1, MPI_INT, MPI_ANY_SOURCE, LAST, MPI_COMM_WORLD, MPI_STATUS_IGNORE));
  return 0;
}

/* Exchanges messages with both neighbours, under a tag of the thread's own. */
static void *exchange(void *argument) {
  int tag = *(int *)argument, next = (rank + 1) % size, before = (rank + size - 1) % size;
  for (int i = 0; i < ROUNDS; i++) {
    int sent = tag * 1000000 + rank * 1000 + i, got = -1;
    OK(MPI_Sendrecv(&sent, 1, MPI_INT, next, tag, &got, 1, MPI_INT, before, tag, MPI_COMM_WORLD,
                    MPI_STATUS_IGNORE));
    CHECK(got == tag * 1000000 + before * 1000 + i);
  }
  return 0;
}

/* One thread waits for a message that is sent only after all others have exchanged theirs: a wait that held
 * up the calls of other threads would never end. */
static void threads(void) {
  int last = -1, tags[THREADS];
  pthread_t waiting, exchanging[THREADS];
  CHECK(!pthread_create(&waiting, 0, wait_for_last, &last));
  for (int i = 0; i < THREADS; i++) {
    tags[i] = FIRST_TAG + i;
    CHECK(!pthread_create(&exchanging[i], 0, exchange, &tags[i]));
  }
  for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(exchanging[i], 0));
  OK(MPI_Send(&rank, 1, MPI_INT, (rank + 1) % size, LAST, MPI_COMM_WORLD));
  CHECK(!pthread_join(waiting, 0));
  CHECK(last == (rank + size - 1) % size);
}

int main(int argc, char **argv) {
  int flag, provided;
  if (argc > 1 && !strcmp(argv[1], "early")) MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Initialized(&flag);
  if (flag) return 1;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc > 1 && !strcmp(argv[1], "abort")) {
    if (rank == size - 1) MPI_Abort(MPI_COMM_WORLD, 42);
    MPI_Barrier(MPI_COMM_WORLD);
  }
  if (argc > 1 && !strcmp(argv[1], "death")) {
    int value;
    if (rank == size - 1) {
      MPI_Recv(&value, 1, MPI_INT, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      abort();
    }
    if (rank == 0) MPI_Send(&rank, 1, MPI_INT, size - 1, 1, MPI_COMM_WORLD);
    MPI_Recv(&value, 1, MPI_INT, MPI_ANY_SOURCE, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  }
  CHECK(provided == MPI_THREAD_MULTIPLE);
  everybody(1);
  everybody(300);
  everybody(100000);
  short_messages();
  exchanged_messages();
  wildcards();
  columns();
  persistent();
  communicators();
  collectives(1);
  collectives(50000);
  two_sides();
  grid();
  threads();
  errors();
  MPI_Finalize();
  MPI_Finalized(&flag);
  if (!flag) return 1;
  if (argc > 1 && !strcmp(argv[1], "late")) MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (rank == 0) printf("passed\n");
  return 0;
}
