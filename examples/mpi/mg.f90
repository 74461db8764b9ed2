! Multigrid for a boundary value problem in one dimension: V-cycles with damped Jacobi steps, full weighting and
! linear interpolation. Points are divided in blocks; the coarsest level is gathered and solved by every rank.
! The right side belongs to a known solution, which the result is compared with.
program mg
  implicit none
  include 'mpif.h'
  integer, parameter :: coarsest = 64
  integer :: levels, points, level, ierror, ranks, me, cycles, below, above
  double precision :: error, largest, begin, now, start
  character(len=16) :: argument

  ! The part of a level that a rank has: points lo to hi, and one more on each side.
  type :: grid
    integer :: n, lo, hi
    double precision, allocatable :: u(:), f(:), r(:)
  end type grid
  type(grid), allocatable, target :: grids(:)
  double precision, allocatable :: known(:)

  call MPI_Init(ierror)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierror)
  call MPI_Comm_rank(MPI_COMM_WORLD, me, ierror)
  start = MPI_Wtime()
  points = 4096
  if (me == 0 .and. command_argument_count() > 0) then
    call get_command_argument(1, argument)
    read (argument, *) points
  end if
  call MPI_Bcast(points, 1, MPI_INTEGER, 0, MPI_COMM_WORLD, ierror)
  below = me - 1
  above = me + 1
  if (me == 0) below = MPI_PROC_NULL
  if (me == ranks - 1) above = MPI_PROC_NULL

  ! Point i of a level is point 2 i of the level before it, and lives on the same rank.
  levels = 1
  do while (points/2**(levels - 1) > coarsest)
    levels = levels + 1
  end do
  allocate (grids(levels))
  do level = 1, levels
    if (level == 1) then
      grids(1)%n = points
      grids(1)%lo = (points - 1)*me/ranks + 1
      grids(1)%hi = (points - 1)*(me + 1)/ranks
    else
      grids(level)%n = grids(level - 1)%n/2
      grids(level)%lo = (grids(level - 1)%lo + 1)/2
      grids(level)%hi = grids(level - 1)%hi/2
    end if
    associate (g => grids(level))
      allocate (g%u(g%lo - 1:g%hi + 1), g%f(g%lo - 1:g%hi + 1), g%r(g%lo - 1:g%hi + 1))
      g%u = 0
      g%f = 0
      g%r = 0
    end associate
  end do

  associate (g => grids(1))
    allocate (known(g%lo - 1:g%hi + 1))
    known = 0
    do level = g%lo, g%hi
      known(level) = sin(3.1d0*level/points)*level*(points - level)/dble(points)**2
    end do
    g%u = known
    call residual(g)
    g%f = -g%r
    g%u = 0
  end associate
  call residual(grids(1))
  begin = norm(grids(1)%r, grids(1))
  do cycles = 1, 40
    call v_cycle(1)
    call residual(grids(1))
    now = norm(grids(1)%r, grids(1))
    if (now < begin*1d-8) exit
  end do

  error = maxval(abs(grids(1)%u(grids(1)%lo:grids(1)%hi) - known(grids(1)%lo:grids(1)%hi)))
  call MPI_Allreduce(error, largest, 1, MPI_DOUBLE_PRECISION, MPI_MAX, MPI_COMM_WORLD, ierror)
  if (me == 0) then
    if (largest < 1d-6 .and. cycles < 40) then
      print '(a)', 'passed'
      call get_environment_variable('KERNEL_TIME', status=ierror)
      if (ierror == 0) write (0, '(f0.6, a)') MPI_Wtime() - start, ' seconds'
    else
      print '(a, i0, a, es10.2)', 'failed: after ', cycles, ' cycles the error is ', largest
      call MPI_Abort(MPI_COMM_WORLD, 1, ierror)
    end if
  end if
  call MPI_Finalize(ierror)

contains

  subroutine exchange(x, g)
    type(grid), intent(in) :: g
    double precision, intent(inout) :: x(g%lo - 1:g%hi + 1)
    call MPI_Sendrecv(x(g%lo), 1, MPI_DOUBLE_PRECISION, below, 1, x(g%hi + 1), 1, MPI_DOUBLE_PRECISION, &
      above, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierror)
    call MPI_Sendrecv(x(g%hi), 1, MPI_DOUBLE_PRECISION, above, 2, x(g%lo - 1), 1, MPI_DOUBLE_PRECISION, &
      below, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierror)
  end subroutine exchange

  ! The matrix is that of the second difference, scaled so that all levels have the same one up to h*h.
  subroutine residual(g)
    type(grid), intent(inout) :: g
    integer :: i
    call exchange(g%u, g)
    do i = g%lo, g%hi
      g%r(i) = g%f(i) - (2*g%u(i) - g%u(i - 1) - g%u(i + 1))*dble(g%n)**2/dble(points)**2
    end do
  end subroutine residual

  double precision function norm(x, g)
    type(grid), intent(in) :: g
    double precision, intent(in) :: x(g%lo - 1:g%hi + 1)
    norm = sum(x(g%lo:g%hi)**2)
    call MPI_Allreduce(MPI_IN_PLACE, norm, 1, MPI_DOUBLE_PRECISION, MPI_SUM, MPI_COMM_WORLD, ierror)
    norm = sqrt(norm)
  end function norm

  subroutine smooth(g)
    type(grid), intent(inout) :: g
    call residual(g)
    g%u(g%lo:g%hi) = g%u(g%lo:g%hi) + g%r(g%lo:g%hi)/3*dble(points)**2/dble(g%n)**2
  end subroutine smooth

  recursive subroutine v_cycle(level)
    integer, intent(in) :: level
    integer :: i
    associate (fine => grids(level))
      if (level == levels) then
        call solve(fine)
        return
      end if
      do i = 1, 2
        call smooth(fine)
      end do
      call residual(fine)
      call exchange(fine%r, fine)
      associate (coarse => grids(level + 1))
        do i = coarse%lo, coarse%hi
          coarse%f(i) = (fine%r(2*i - 1) + 2*fine%r(2*i) + fine%r(2*i + 1))/4
        end do
        coarse%u = 0
      end associate
      call v_cycle(level + 1)
      associate (coarse => grids(level + 1))
        call exchange(coarse%u, coarse)
        do i = fine%lo, fine%hi
          fine%u(i) = fine%u(i) + (coarse%u(i/2) + coarse%u((i + 1)/2))/2
        end do
      end associate
      do i = 1, 2
        call smooth(fine)
      end do
    end associate
  end subroutine v_cycle

  ! Gathers the right side and solves the system by elimination.
  subroutine solve(g)
    type(grid), intent(inout) :: g
    integer :: counts(ranks), places(ranks), i
    double precision :: f(g%n - 1), d(g%n - 1)
    call MPI_Allgather(g%hi - g%lo + 1, 1, MPI_INTEGER, counts, 1, MPI_INTEGER, MPI_COMM_WORLD, ierror)
    call MPI_Allgather(g%lo - 1, 1, MPI_INTEGER, places, 1, MPI_INTEGER, MPI_COMM_WORLD, ierror)
    call MPI_Allgatherv(g%f(g%lo), counts(me + 1), MPI_DOUBLE_PRECISION, f, counts, places, &
      MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, ierror)
    f = f*dble(points)**2/dble(g%n)**2
    d(1) = 2
    do i = 2, g%n - 1
      d(i) = 2 - 1/d(i - 1)
      f(i) = f(i) + f(i - 1)/d(i - 1)
    end do
    f(g%n - 1) = f(g%n - 1)/d(g%n - 1)
    do i = g%n - 2, 1, -1
      f(i) = (f(i) + f(i + 1))/d(i)
    end do
    g%u(g%lo:g%hi) = f(g%lo:g%hi)
  end subroutine solve
end program mg
