/* A rank of a job of many ranks. Arguments: the socket of whoever measures, and the experiments as words
 * NAME:BYTES:COUNT. Rank 0 writes `joined` when all are there, and then for each experiment a line: its word,
 * steps, their nanoseconds, and of all ranks together CPU nanoseconds, the sum of the halo exchange, and words
 * read. Collectives are done COUNT times, and twice as often until ENOUGH nanoseconds are over: hundreds of them
 * may take less than a thread's turn on a core. Every buffer is rewritten before each step, and every word of a
 * result is compared with what it must be. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { END = 1, DATA = 2, SIDE = 256, LONGEST = 600, PARTS = 16, PART = 4000, WARM_UP = 8, ENOUGH = 20000000 };

static int rank, size;
static FILE *desk;
/* Words that were read and compared since the time began. */
static uint64_t words_read;

static void fail(const char *what) {
  fprintf(stderr, "rank %d: %s\n", rank, what);
  MPI_Abort(MPI_COMM_WORLD, 1);
}

static void expect(uint64_t is, uint64_t must, const char *what) {
  if (is != must) fail(what);
}

static uint64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t cpu(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return 1000u * (1000000u * (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                  (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec));
}

static uint64_t *words(size_t count) {
  uint64_t *w = calloc(count ? count : 1, sizeof *w);
  if (!w) fail("no memory");
  return w;
}

/* All ranks but the first two wait until the first has done its work. */
static void wait_for_end(void) {
  uint64_t word;
  MPI_Recv(&word, 8, MPI_BYTE, 0, END, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static void end_from(int first) {
  uint64_t word = 0;
  for (int to = first; to < size; to++) MPI_Send(&word, 8, MPI_BYTE, to, END, MPI_COMM_WORLD);
}

/* What rank `from` has for rank `to` in a step. */
static uint64_t content(uint64_t step, int from, int to, uint64_t i) {
  return step * 1000003u + (uint64_t)from * 4099u + (uint64_t)to * 17u + i;
}

static void fill(uint64_t *w, uint64_t n, uint64_t step, int from, int to) {
  for (uint64_t i = 0; i < n; i++) w[i] = content(step, from, to, i);
}

static void check(const uint64_t *w, uint64_t n, uint64_t step, int from, int to, const char *what) {
  uint64_t differs = 0;
  for (uint64_t i = 0; i < n; i++) differs |= w[i] ^ content(step, from, to, i);
  words_read += n;
  expect(differs, 0, what);
}

static int by_value(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* The median of half of a round trip between two ranks, while all others wait. */
static uint64_t ping_pong(int other, uint64_t count) {
  uint64_t *times = words(count), sent, received, median = 0;
  if (rank == 0) {
    for (uint64_t step = 0; step < count; step++) {
      uint64_t begin = now();
      fill(&sent, 1, step, 0, other);
      MPI_Send(&sent, 8, MPI_BYTE, other, DATA, MPI_COMM_WORLD);
      MPI_Recv(&received, 8, MPI_BYTE, other, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      check(&received, 1, step, other, 0, "an answer is wrong");
      times[step] = now() - begin;
    }
    qsort(times, count, sizeof *times, by_value);
    median = times[count / 2] / 2;
    for (int to = 1; to < size; to++)
      if (to != other) MPI_Send(&sent, 8, MPI_BYTE, to, END, MPI_COMM_WORLD);
  } else if (rank == other) {
    for (uint64_t step = 0; step < count; step++) {
      MPI_Recv(&received, 8, MPI_BYTE, 0, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      check(&received, 1, step, 0, other, "a message is wrong");
      fill(&sent, 1, step, other, 0);
      MPI_Send(&sent, 8, MPI_BYTE, 0, DATA, MPI_COMM_WORLD);
    }
  } else {
    wait_for_end();
  }
  free(times);
  return median;
}

/* One step of the grid. A function of its own, at an aligned address: inlined, its loop took up to a third
 * longer with one MPI's header than with another's, whose handles have other types: the code differs. */
static __attribute__((noinline, aligned(64))) void relax(const uint32_t *old, uint32_t *new, int rows,
                                                         size_t row) {
  for (int r = 1; r <= rows; r++) {
    const uint32_t *above = old + (r - 1) * row, *here = old + r * row, *below = old + (r + 1) * row;
    uint32_t *to = new + r * row;
    for (int c = 1; c <= SIDE; c++) to[c] = (above[c] + below[c] + here[c - 1] + here[c + 1]) / 4;
  }
}

/* Rows of a square grid, divided among the ranks; each step exchanges the outer rows with the neighbours. */
static uint64_t halo(uint64_t steps) {
  int first = SIDE * rank / size, rows = SIDE * (rank + 1) / size - first;
  int up = rank > 0 ? rank - 1 : MPI_PROC_NULL, down = rank + 1 < size ? rank + 1 : MPI_PROC_NULL;
  size_t row = SIDE + 2;
  uint32_t *old = calloc((rows + 2) * row, 4), *new = calloc((rows + 2) * row, 4);
  if (!old || !new) fail("no memory");
  for (int r = 1; r <= rows; r++)
    for (int c = 1; c <= SIDE; c++) old[r * row + c] = (uint32_t)((first + r - 1) * SIDE + c) * 2654435761u >> 2;
  for (uint64_t step = 0; step < steps; step++) {
    MPI_Sendrecv(old + row + 1, 4 * SIDE, MPI_BYTE, up, DATA, old + (rows + 1) * row + 1, 4 * SIDE, MPI_BYTE, down,
                 DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    MPI_Sendrecv(old + rows * row + 1, 4 * SIDE, MPI_BYTE, down, DATA, old + 1, 4 * SIDE, MPI_BYTE, up, DATA,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    relax(old, new, rows, row);
    uint32_t *swap = old;
    old = new;
    new = swap;
  }
  uint64_t sum = 0;
  for (int r = 1; r <= rows; r++)
    for (int c = 1; c <= SIDE; c++) sum += old[r * row + c];
  free(old);
  free(new);
  return sum;
}

/* The sum of the contents of ranks 0 to `last`, all meant for rank `to`. */
static void check_sum(const uint64_t *w, uint64_t n, uint64_t step, int last, int to, const char *what) {
  uint64_t differs = 0, ranks = (uint64_t)last + 1;
  for (uint64_t i = 0; i < n; i++)
    differs |= w[i] ^ (ranks * content(step, 0, to, i) + 4099u * (ranks * (ranks - 1) / 2));
  words_read += n;
  expect(differs, 0, what);
}

/* The first rank's words for all others, by a broadcast, by sends that are started together, or by one send
 * after the other. The last rank answers. */
static void multicast(const char *name, uint64_t n, uint64_t step, uint64_t *mine) {
  const MPI_Comm w = MPI_COMM_WORLD;
  const int c = (int)n, last = size - 1;
  if (rank == 0) fill(mine, n, step, 0, 0);
  if (!strcmp(name, "multicast")) {
    MPI_Bcast(mine, c, MPI_UINT64_T, 0, w);
  } else if (rank > 0) {
    MPI_Recv(mine, c, MPI_UINT64_T, 0, DATA, w, MPI_STATUS_IGNORE);
  } else if (!strcmp(name, "multi-send")) {
    MPI_Request sends[size];
    for (int to = 1; to < size; to++) MPI_Isend(mine, c, MPI_UINT64_T, to, DATA, w, &sends[to - 1]);
    MPI_Waitall(last, sends, MPI_STATUSES_IGNORE);
  } else {
    for (int to = 1; to < size; to++) MPI_Send(mine, c, MPI_UINT64_T, to, DATA, w);
  }
  if (rank > 0) check(mine, n, step, 0, 0, name);
  if (rank == last) MPI_Send(mine, 0, MPI_BYTE, 0, END, w);
  if (rank == 0) MPI_Recv(mine, 0, MPI_BYTE, last, END, w, MPI_STATUS_IGNORE);
}

/* A part of a computation, whose result is kept so that it is done. */
static volatile uint64_t computed;
static void compute(void) {
  uint64_t sum = computed;
  for (uint64_t i = 0; i < PART; i++) sum = sum * 31 + i;
  computed = sum;
}

/* A started all-reduce, which is tested after every part of a computation. */
static void overlap(uint64_t n, uint64_t step, uint64_t *mine, uint64_t *all, const char *what) {
  MPI_Request request;
  int done;
  fill(mine, n, step, rank, 0);
  MPI_Iallreduce(mine, all, (int)n, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD, &request);
  for (int part = 0; part < PARTS; part++) {
    compute();
    MPI_Test(&request, &done, MPI_STATUS_IGNORE);
  }
  MPI_Wait(&request, MPI_STATUS_IGNORE);
  check_sum(all, n, step, size - 1, 0, what);
}

/* Words of a rank where parts have different lengths: every other rank has half as many. */
static int part_words(int r, uint64_t n) { return (int)(r % 2 ? (n + 1) / 2 : n); }

/* One step of a collective with parts of different lengths, of `n` words at most. */
static void varied(const char *name, uint64_t n, uint64_t step, uint64_t *mine, uint64_t *all) {
  const MPI_Comm w = MPI_COMM_WORLD;
  uint64_t *got = all + n * (uint64_t)size;
  const int pairs = !strcmp(name, "all-to-all-varied"), to_all = !strcmp(name, "all-gather-varied");
  int lens[size], at[size], sum = 0;
  for (int r = 0; r < size; r++) {
    lens[r] = part_words(pairs ? rank + r : r, n);
    at[r] = sum;
    sum += lens[r];
  }
  if (pairs) {
    for (int to = 0; to < size; to++) fill(all + at[to], lens[to], step, rank, to);
    MPI_Alltoallv(all, lens, at, MPI_UINT64_T, got, lens, at, MPI_UINT64_T, w);
    for (int from = 0; from < size; from++) check(got + at[from], lens[from], step, from, rank, name);
  } else if (!strcmp(name, "scatter-varied")) {
    for (int to = 0; rank == 0 && to < size; to++) fill(all + at[to], lens[to], step, 0, to);
    MPI_Scatterv(all, lens, at, MPI_UINT64_T, mine, lens[rank], MPI_UINT64_T, 0, w);
    check(mine, lens[rank], step, 0, rank, name);
  } else {
    fill(mine, lens[rank], step, rank, 0);
    if (to_all) MPI_Allgatherv(mine, lens[rank], MPI_UINT64_T, all, lens, at, MPI_UINT64_T, w);
    else MPI_Gatherv(mine, lens[rank], MPI_UINT64_T, all, lens, at, MPI_UINT64_T, 0, w);
    for (int from = 0; (rank == 0 || to_all) && from < size; from++)
      check(all + at[from], lens[from], step, from, 0, name);
  }
}

/* Words for both neighbours on a ring, and theirs. */
static void neighbours(uint64_t n, uint64_t step, uint64_t *all, const char *name) {
  static MPI_Comm ring = MPI_COMM_NULL;
  const int periodic = 1, near[2] = {(rank + size - 1) % size, (rank + 1) % size};
  uint64_t *got = all + n * (uint64_t)size;
  if (ring == MPI_COMM_NULL) MPI_Cart_create(MPI_COMM_WORLD, 1, &size, &periodic, 0, &ring);
  for (int i = 0; i < 2; i++) fill(all + i * n, n, step, rank, near[i]);
  MPI_Neighbor_alltoall(all, (int)n, MPI_UINT64_T, got, (int)n, MPI_UINT64_T, ring);
  for (int i = 0; i < 2; i++) check(got + i * n, n, step, near[i], rank, name);
}

/* One step of a collective with `n` words of each rank, or of each pair of ranks. */
static void collective(const char *name, uint64_t n, uint64_t step, uint64_t *mine, uint64_t *all) {
  const MPI_Comm w = MPI_COMM_WORLD;
  const int c = (int)n;
  if (!strcmp(name, "barrier")) {
    MPI_Barrier(w);
  } else if (!strcmp(name, "broadcast")) {
    if (rank == 0) fill(mine, n, step, 0, 0);
    MPI_Bcast(mine, c, MPI_UINT64_T, 0, w);
    check(mine, n, step, 0, 0, name);
  } else if (!strcmp(name, "reduce")) {
    fill(mine, n, step, rank, 0);
    MPI_Reduce(mine, all, c, MPI_UINT64_T, MPI_SUM, 0, w);
    if (rank == 0) check_sum(all, n, step, size - 1, 0, name);
  } else if (!strcmp(name, "all-reduce")) {
    fill(mine, n, step, rank, 0);
    MPI_Allreduce(mine, all, c, MPI_UINT64_T, MPI_SUM, w);
    check_sum(all, n, step, size - 1, 0, name);
  } else if (!strcmp(name, "scan")) {
    fill(mine, n, step, rank, 0);
    MPI_Scan(mine, all, c, MPI_UINT64_T, MPI_SUM, w);
    check_sum(all, n, step, rank, 0, name);
  } else if (!strcmp(name, "exclusive-scan")) {
    fill(mine, n, step, rank, 0);
    MPI_Exscan(mine, all, c, MPI_UINT64_T, MPI_SUM, w);
    if (rank > 0) check_sum(all, n, step, rank - 1, 0, name);
  } else if (!strcmp(name, "neighbours")) {
    neighbours(n, step, all, name);
  } else if (strstr(name, "-varied")) {
    varied(name, n, step, mine, all);
  } else if (!strcmp(name, "gather") || !strcmp(name, "all-gather")) {
    fill(mine, n, step, rank, 0);
    if (name[0] == 'g') MPI_Gather(mine, c, MPI_UINT64_T, all, c, MPI_UINT64_T, 0, w);
    else MPI_Allgather(mine, c, MPI_UINT64_T, all, c, MPI_UINT64_T, w);
    if (rank == 0 || name[0] == 'a')
      for (int from = 0; from < size; from++) check(all + from * n, n, step, from, 0, name);
  } else if (!strcmp(name, "scatter")) {
    for (int to = 0; rank == 0 && to < size; to++) fill(all + to * n, n, step, 0, to);
    MPI_Scatter(all, c, MPI_UINT64_T, mine, c, MPI_UINT64_T, 0, w);
    check(mine, n, step, 0, rank, name);
  } else if (!strcmp(name, "reduce-scatter")) {
    for (int to = 0; to < size; to++) fill(all + to * n, n, step, rank, to);
    MPI_Reduce_scatter_block(all, mine, c, MPI_UINT64_T, MPI_SUM, w);
    check_sum(mine, n, step, size - 1, rank, name);
  } else if (!strcmp(name, "all-to-all")) {
    uint64_t *got = all + n * (uint64_t)size;
    for (int to = 0; to < size; to++) fill(all + to * n, n, step, rank, to);
    MPI_Alltoall(all, c, MPI_UINT64_T, got, c, MPI_UINT64_T, w);
    for (int from = 0; from < size; from++) check(got + from * n, n, step, from, rank, name);
  } else if (!strcmp(name, "multicast") || !strcmp(name, "multi-send") || !strcmp(name, "repeated-send")) {
    multicast(name, n, step, mine);
  } else if (!strcmp(name, "overlap")) {
    overlap(n, step, mine, all, name);
  } else {
    fail("an unknown experiment");
  }
}

/* Rank 0 sleeps for some time and then sends to all others, which wait for that. */
static void let_others_wait(unsigned long long milliseconds) {
  if (rank == 0) {
    struct timespec t = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000) * 1000000};
    nanosleep(&t, 0);
    end_from(1);
  } else {
    wait_for_end();
  }
}

static void experiment(const char *word) {
  char name[32];
  unsigned long long bytes, count;
  if (sscanf(word, "%31[^:]:%llu:%llu", name, &bytes, &count) != 3) fail("an experiment that cannot be read");
  MPI_Barrier(MPI_COMM_WORLD);
  words_read = 0;
  uint64_t cpu_before = cpu(), begin = now(), ns = 0, sum = 0, steps = count;
  if (!strcmp(name, "first")) {
    ns = ping_pong(size - 1, 1);
  } else if (!strcmp(name, "beside")) {
    ns = ping_pong(1, count);
  } else if (!strcmp(name, "halo")) {
    sum = halo(count);
    ns = now() - begin;
  } else if (!strcmp(name, "asleep")) {
    /* Once before, to open the channels: that costs more than a long wait. */
    let_others_wait(0);
    MPI_Barrier(MPI_COMM_WORLD);
    cpu_before = cpu();
    begin = now();
    let_others_wait(count);
    ns = now() - begin;
  } else {
    uint64_t n = bytes / 8, *mine = words(n), *all = words(2 * n * (uint64_t)size);
    /* Some before, so that channels are open and what is set up on demand is there. */
    for (int i = 0; i < WARM_UP; i++) collective(name, n, count, mine, all);
    MPI_Barrier(MPI_COMM_WORLD);
    words_read = 0;
    cpu_before = cpu();
    for (uint64_t first = 0, more = 1; more;) {
      begin = now();
      for (uint64_t step = first; step < steps; step++) collective(name, n, step, mine, all);
      ns += now() - begin;
      /* Rank 0 decides for all whether to do as many again. */
      more = ns < ENOUGH;
      MPI_Bcast(&more, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
      first = steps;
      if (more) steps *= 2;
    }
    free(mine);
    free(all);
  }
  uint64_t own[3] = {cpu() - cpu_before, sum, words_read}, all[3];
  MPI_Reduce(own, all, 3, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    fprintf(desk, "%s %llu %llu %llu %llu %llu\n", word, (unsigned long long)steps, (unsigned long long)ns,
            (unsigned long long)all[0], (unsigned long long)all[1], (unsigned long long)all[2]);
    fflush(desk);
  }
}

int main(int argc, char **argv) {
  alarm(LONGEST);
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (argc < 2) fail("no socket was named");
  if (rank == 0) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(to.sun_path, sizeof to.sun_path, "%s", argv[1]);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) || !(desk = fdopen(fd, "w"))) fail("no desk");
  }
  MPI_Barrier(MPI_COMM_WORLD);
  if (rank == 0) {
    fputs("joined\n", desk);
    fflush(desk);
  }
  for (int i = 2; i < argc; i++) experiment(argv[i]);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Finalize();
  return 0;
}
