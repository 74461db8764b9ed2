! Jacobi's method on a grid that is divided in two dimensions. Halos are exchanged by non-blocking messages;
! columns are a vector type. Every rank also computes the whole grid, and its part must be equal bit by bit.
program stencil
  use mpi
  implicit none
  integer, parameter :: steps = 50
  integer :: n, ierror, ranks, me, comm, left, right, below, above, column, step, i, j, width, height
  integer :: dims(2), coords(2), first(2), last(2), requests(8), statuses(MPI_STATUS_SIZE, 8)
  logical :: periods(2), same, all_same
  character(len=16) :: argument
  double precision :: start, time
  double precision, allocatable :: u(:, :), v(:, :), whole(:, :), next(:, :)

  call MPI_Init(ierror)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierror)
  n = 48
  if (command_argument_count() > 0) then
    call get_command_argument(1, argument)
    read (argument, *) n
  end if
  dims = 0
  periods = .false.
  call MPI_Dims_create(ranks, 2, dims, ierror)
  call MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, .true., comm, ierror)
  call MPI_Comm_rank(comm, me, ierror)
  call MPI_Cart_coords(comm, me, 2, coords, ierror)
  call MPI_Cart_shift(comm, 0, 1, left, right, ierror)
  call MPI_Cart_shift(comm, 1, 1, below, above, ierror)
  first = n*coords/dims + 1
  last = n*(coords + 1)/dims
  width = last(1) - first(1) + 1
  height = last(2) - first(2) + 1

  allocate (whole(0:n + 1, 0:n + 1), next(0:n + 1, 0:n + 1))
  do j = 0, n + 1
    do i = 0, n + 1
      whole(i, j) = sin(0.1d0*i) + cos(0.3d0*j)
    end do
  end do
  allocate (u(0:width + 1, 0:height + 1), v(0:width + 1, 0:height + 1))
  u = whole(first(1) - 1:last(1) + 1, first(2) - 1:last(2) + 1)
  v = u

  ! The values at a fixed first index lie apart.
  call MPI_Type_vector(height, 1, width + 2, MPI_DOUBLE_PRECISION, column, ierror)
  call MPI_Type_commit(column, ierror)
  start = MPI_Wtime()
  do step = 1, steps
    call MPI_Irecv(u(0, 1), 1, column, left, 1, comm, requests(1), ierror)
    call MPI_Irecv(u(width + 1, 1), 1, column, right, 2, comm, requests(2), ierror)
    call MPI_Irecv(u(1, 0), width, MPI_DOUBLE_PRECISION, below, 3, comm, requests(3), ierror)
    call MPI_Irecv(u(1, height + 1), width, MPI_DOUBLE_PRECISION, above, 4, comm, requests(4), ierror)
    call MPI_Isend(u(width, 1), 1, column, right, 1, comm, requests(5), ierror)
    call MPI_Isend(u(1, 1), 1, column, left, 2, comm, requests(6), ierror)
    call MPI_Isend(u(1, height), width, MPI_DOUBLE_PRECISION, above, 3, comm, requests(7), ierror)
    call MPI_Isend(u(1, 1), width, MPI_DOUBLE_PRECISION, below, 4, comm, requests(8), ierror)
    call MPI_Waitall(8, requests, statuses, ierror)
    call relax(u, v, width, height)
    u(1:width, 1:height) = v(1:width, 1:height)
  end do
  time = MPI_Wtime() - start
  do step = 1, steps
    call relax(whole, next, n, n)
    whole(1:n, 1:n) = next(1:n, 1:n)
  end do

  same = all(u(1:width, 1:height) == whole(first(1):last(1), first(2):last(2)))
  call MPI_Reduce(same, all_same, 1, MPI_LOGICAL, MPI_LAND, 0, comm, ierror)
  if (me == 0) then
    if (all_same) then
      print '(a)', 'passed'
      call get_environment_variable('KERNEL_TIME', status=ierror)
      if (ierror == 0) write (0, '(f0.6, a)') time, ' seconds'
    else
      print '(a)', 'failed'
      call MPI_Abort(comm, 1, ierror)
    end if
  end if
  call MPI_Type_free(column, ierror)
  call MPI_Comm_free(comm, ierror)
  call MPI_Finalize(ierror)

contains

  subroutine relax(old, new, w, h)
    integer, intent(in) :: w, h
    double precision, intent(in) :: old(0:w + 1, 0:h + 1)
    double precision, intent(inout) :: new(0:w + 1, 0:h + 1)
    integer :: i, j
    do j = 1, h
      do i = 1, w
        new(i, j) = 0.25d0*((old(i - 1, j) + old(i + 1, j)) + (old(i, j - 1) + old(i, j + 1)))
      end do
    end do
  end subroutine relax
end program stencil
