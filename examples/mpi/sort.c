/* A bucket sort: every rank makes keys, sends each to the rank whose range it is in, and sorts what it gets.
 * The keys must be in order within and between the ranks, and none may be lost. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define RANGE (1u << 30)

static int compare(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

/* A key that depends on its number only. */
static uint32_t key(uint64_t number) {
  uint64_t x = number * 0x9e3779b97f4a7c15u + 0x7f4a7c15u;
  x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
  return (uint32_t)(x >> 33) % RANGE;
}

/* The number of keys, their sum, and their sum of squares. */
static void summarize(const uint32_t *keys, int count, uint64_t sums[3]) {
  uint64_t own[3] = {(uint64_t)count, 0, 0};
  for (int i = 0; i < count; i++) {
    own[1] += keys[i];
    own[2] += (uint64_t)keys[i] * keys[i];
  }
  MPI_Allreduce(own, sums, 3, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
}

static void *allocate(size_t count, size_t bytes) {
  void *at = calloc(count ? count : 1, bytes);
  if (!at) MPI_Abort(MPI_COMM_WORLD, 2);
  return at;
}

int main(int argc, char **argv) {
  int size, rank;
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  double start = MPI_Wtime();
  int count = argc > 1 ? atoi(argv[1]) : 20000;

  uint32_t *keys = allocate(count, sizeof *keys), *sent = allocate(count, sizeof *sent);
  for (int i = 0; i < count; i++) keys[i] = key((uint64_t)rank * count + i);
  uint64_t before[3], after[3];
  summarize(keys, count, before);

  int *counts = allocate(size, sizeof(int)), *starts = allocate(size, sizeof(int));
  int *arrive = allocate(size, sizeof(int)), *places = allocate(size, sizeof(int));
  int *next = allocate(size, sizeof(int));
  for (int i = 0; i < count; i++) counts[(uint64_t)keys[i] * size / RANGE]++;
  for (int i = 1; i < size; i++) next[i] = starts[i] = starts[i - 1] + counts[i - 1];
  for (int i = 0; i < count; i++) sent[next[(uint64_t)keys[i] * size / RANGE]++] = keys[i];
  MPI_Alltoall(counts, 1, MPI_INT, arrive, 1, MPI_INT, MPI_COMM_WORLD);
  for (int i = 1; i < size; i++) places[i] = places[i - 1] + arrive[i - 1];
  int have = places[size - 1] + arrive[size - 1];
  uint32_t *sorted = allocate(have, sizeof *sorted);
  MPI_Alltoallv(sent, counts, starts, MPI_UINT32_T, sorted, arrive, places, MPI_UINT32_T, MPI_COMM_WORLD);
  qsort(sorted, have, sizeof *sorted, compare);

  int wrong = 0, all;
  summarize(sorted, have, after);
  for (int i = 0; i < 3; i++) wrong += before[i] != after[i];
  for (int i = 1; i < have; i++) wrong += sorted[i - 1] > sorted[i];
  /* The largest key of all lower ranks. */
  uint32_t largest = have ? sorted[have - 1] : 0, lower = 0;
  MPI_Exscan(&largest, &lower, 1, MPI_UINT32_T, MPI_MAX, MPI_COMM_WORLD);
  if (rank > 0 && have) wrong += lower > sorted[0];
  MPI_Allreduce(&wrong, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) {
    printf("%s\n", all ? "failed" : "passed");
    if (getenv("KERNEL_TIME")) fprintf(stderr, "%f seconds\n", MPI_Wtime() - start);
  }
  free(keys), free(sent), free(counts), free(starts), free(arrive), free(places), free(next), free(sorted);
  MPI_Finalize();
  return all ? 1 : 0;
}
