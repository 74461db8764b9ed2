/* The tool interface before, between and after MPI_Init and MPI_Finalize, as profilers use it. Runs with one
 * rank, whose errors are fatal; prints `passed`. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(condition)                                                                  \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      printf("line %d: %s\n", __LINE__, #condition);                                      \
      exit(1);                                                                            \
    }                                                                                     \
  } while (0)
#define OK(call) CHECK((call) == MPI_SUCCESS)

/* Everything that a profiler asks for at its beginning. */
static void look_around(void) {
  int number = -1, index = 7, len = 0;
  char name[8];
  MPI_T_pvar_session session = MPI_T_PVAR_SESSION_NULL;
  MPI_T_pvar_handle handle = MPI_T_PVAR_HANDLE_NULL;
  OK(MPI_T_cvar_get_num(&number));
  CHECK(number == 0);
  number = -1;
  OK(MPI_T_pvar_get_num(&number));
  CHECK(number == 0);
  number = -1;
  OK(MPI_T_category_get_num(&number));
  CHECK(number == 0);
  number = -1;
  OK(MPI_T_event_get_num(&number));
  CHECK(number == 0);
  number = -1;
  OK(MPI_T_source_get_num(&number));
  CHECK(number == 0);
  number = -1;
  OK(MPI_T_category_changed(&number));
  CHECK(number == 0);
  CHECK(MPI_T_cvar_get_index("nothing", &index) == MPI_T_ERR_INVALID_NAME);
  CHECK(MPI_T_category_get_info(0, name, &len, NULL, NULL, NULL, NULL, NULL) == MPI_T_ERR_INVALID_INDEX);
  CHECK(MPI_T_cvar_read(MPI_T_CVAR_HANDLE_NULL, &number) == MPI_T_ERR_INVALID_HANDLE);
  CHECK(MPI_T_cvar_get_num(NULL) == MPI_T_ERR_INVALID);
  OK(MPI_T_pvar_session_create(&session));
  CHECK(session != MPI_T_PVAR_SESSION_NULL);
  CHECK(MPI_T_pvar_handle_alloc(session, 0, NULL, &handle, &number) == MPI_T_ERR_INVALID_INDEX);
  OK(MPI_T_pvar_session_free(&session));
  CHECK(session == MPI_T_PVAR_SESSION_NULL);
  CHECK(MPI_T_pvar_session_free(&session) == MPI_T_ERR_INVALID_SESSION);
}

int main(int argc, char **argv) {
  int provided = -1, number = -1;
  CHECK(MPI_T_cvar_get_num(&number) == MPI_T_ERR_NOT_INITIALIZED);
  CHECK(MPI_T_finalize() == MPI_T_ERR_NOT_INITIALIZED);
  OK(MPI_T_init_thread(MPI_THREAD_SERIALIZED, &provided));
  CHECK(provided == MPI_THREAD_SERIALIZED);
  look_around();
  OK(MPI_Init(&argc, &argv));
  look_around();
  OK(MPI_T_init_thread(MPI_THREAD_SINGLE, &provided));
  OK(MPI_T_finalize());
  look_around();
  OK(MPI_Finalize());
  look_around();
  OK(MPI_T_finalize());
  CHECK(MPI_T_pvar_get_num(&number) == MPI_T_ERR_NOT_INITIALIZED);
  printf("passed\n");
  return 0;
}
