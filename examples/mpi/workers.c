/* A master hands out tasks to whoever is free; the workers return results in any order. Each task is an
 * interval of an integral whose value is known; each must be done once. */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORK = 1, RESULT = 2, STOP = 3 };

typedef struct {
  int task;
  double value;
} Result;

static double integrate(int task, int tasks) {
  double from = (double)task / tasks, step = 1.0 / tasks / 200, sum = 0;
  for (int i = 0; i < 200; i++) {
    double x = from + (i + 0.5) * step;
    sum += 4 / (1 + x * x) * step;
  }
  return sum;
}

static MPI_Datatype result_type(void) {
  Result like;
  int lengths[] = {1, 1};
  MPI_Datatype types[] = {MPI_INT, MPI_DOUBLE}, made, resized;
  MPI_Aint begin, places[2];
  MPI_Get_address(&like, &begin);
  MPI_Get_address(&like.task, &places[0]);
  MPI_Get_address(&like.value, &places[1]);
  for (int i = 0; i < 2; i++) places[i] = MPI_Aint_diff(places[i], begin);
  MPI_Type_create_struct(2, lengths, places, types, &made);
  MPI_Type_create_resized(made, 0, sizeof(Result), &resized);
  MPI_Type_commit(&resized);
  MPI_Type_free(&made);
  return resized;
}

/* Returns the number of tasks that were not done once. */
static int master(int workers, int tasks, MPI_Datatype type, double *sum) {
  int next = 0, wrong = 0;
  int *done = calloc(tasks, sizeof *done);
  if (!done) MPI_Abort(MPI_COMM_WORLD, 2);
  for (int i = 1; i <= workers; i++) {
    MPI_Send(&next, 1, MPI_INT, i, next < tasks ? WORK : STOP, MPI_COMM_WORLD);
    next += next < tasks;
  }
  for (int left = workers ? tasks : 0; left > 0; left--) {
    Result result;
    MPI_Status status;
    int count;
    MPI_Recv(&result, 1, type, MPI_ANY_SOURCE, RESULT, MPI_COMM_WORLD, &status);
    MPI_Get_count(&status, type, &count);
    if (count != 1) MPI_Abort(MPI_COMM_WORLD, 3);
    done[result.task]++;
    *sum += result.value;
    MPI_Send(&next, 1, MPI_INT, status.MPI_SOURCE, next < tasks ? WORK : STOP, MPI_COMM_WORLD);
    next += next < tasks;
  }
  for (int i = 0; !workers && i < tasks; i++) {
    *sum += integrate(i, tasks);
    done[i]++;
  }
  for (int i = 0; i < tasks; i++) wrong += done[i] != 1;
  free(done);
  return wrong;
}

static void worker(int tasks, MPI_Datatype type) {
  for (;;) {
    int task;
    MPI_Status status;
    MPI_Recv(&task, 1, MPI_INT, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
    if (status.MPI_TAG == STOP) return;
    Result result = {task, integrate(task, tasks)};
    MPI_Send(&result, 1, type, 0, RESULT, MPI_COMM_WORLD);
  }
}

int main(int argc, char **argv) {
  int size, rank, failed = 0;
  MPI_Init(&argc, &argv);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  double start = MPI_Wtime();
  int tasks = argc > 1 ? atoi(argv[1]) : 500;
  MPI_Datatype type = result_type();
  if (rank == 0) {
    double sum = 0;
    int wrong = master(size - 1, tasks, type, &sum);
    failed = wrong || fabs(sum - acos(-1.0)) > 1e-6;
    printf("%s\n", failed ? "failed" : "passed");
    if (getenv("KERNEL_TIME")) fprintf(stderr, "%f seconds\n", MPI_Wtime() - start);
  } else {
    worker(tasks, type);
  }
  MPI_Type_free(&type);
  MPI_Finalize();
  return failed;
}
