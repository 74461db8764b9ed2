! Text for a file that Fortran has stored when the program calls MPI_ABORT.
program aborts
  use mpi
  implicit none
  integer :: ierror
  character(1000) :: name
  call MPI_INIT(ierror)
  call get_command_argument(1, name)
  open (10, file=trim(name))
  write (10, '(a)') 'written before the end'
  call MPI_ABORT(MPI_COMM_WORLD, 42, ierror)
end program
