/* Files are not there: calls that need one return an error, though errors of communicators are fatal. Runs
 * with one rank; prints `passed`. */
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
#define UNSUPPORTED(call) CHECK((call) == MPI_ERR_UNSUPPORTED_OPERATION)

static int calls;
static MPI_File last;

static void on_error(MPI_File *file, int *code, ...) {
  calls++, last = *file;
  MPI_Error_class(*code, code);
}

int main(int argc, char **argv) {
  MPI_File file = MPI_FILE_NULL;
  MPI_Errhandler handler, found;
  MPI_Offset size;
  int value = 0;
  OK(MPI_Init(&argc, &argv));
  OK(MPI_File_get_errhandler(MPI_FILE_NULL, &found));
  CHECK(found == MPI_ERRORS_RETURN);
  UNSUPPORTED(MPI_File_open(MPI_COMM_WORLD, "name", MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
  UNSUPPORTED(MPI_File_delete("name", MPI_INFO_NULL));
  UNSUPPORTED(MPI_File_close(&file));
  UNSUPPORTED(MPI_File_get_size(file, &size));
  UNSUPPORTED(MPI_File_write_all(file, &value, 1, MPI_INT, MPI_STATUS_IGNORE));

  OK(MPI_File_create_errhandler(on_error, &handler));
  OK(MPI_File_set_errhandler(MPI_FILE_NULL, handler));
  OK(MPI_Errhandler_free(&handler));
  UNSUPPORTED(MPI_File_open(MPI_COMM_SELF, "name", MPI_MODE_RDONLY, MPI_INFO_NULL, &file));
  CHECK(calls == 1 && last == MPI_FILE_NULL);
  OK(MPI_File_call_errhandler(MPI_FILE_NULL, MPI_ERR_IO));
  CHECK(calls == 2);
  OK(MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN));
  UNSUPPORTED(MPI_File_delete("name", MPI_INFO_NULL));
  CHECK(calls == 2);
  OK(MPI_Finalize());
  printf("passed\n");
  return 0;
}
