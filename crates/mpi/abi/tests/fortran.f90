! What differs in Fortran: addresses that stand for something else, strings, indices from 1, attributes that are
! integers, callbacks that get their arguments by reference.
module callbacks
  use mpi
  implicit none
  integer :: deleted = 0, copied = 0, raised = 0, queried = 0, freed = 0, cancelled = 0
contains
  subroutine larger(in, inout, count, datatype)
    integer :: count, datatype, i
    integer :: in(count), inout(count)
    if (datatype /= MPI_INTEGER) stop 20
    do i = 1, count
      inout(i) = max(in(i), inout(i))
    end do
  end subroutine larger

  subroutine copy(comm, key, extra, value, new, flag, ierror)
    integer :: comm, key, ierror
    integer(kind=MPI_ADDRESS_KIND) :: extra, value, new
    logical :: flag
    copied = copied + 1
    new = value + extra
    flag = .true.
    ierror = MPI_SUCCESS
  end subroutine copy

  subroutine delete(comm, key, value, extra, ierror)
    integer :: comm, key, ierror
    integer(kind=MPI_ADDRESS_KIND) :: value, extra
    if (extra == 1000) deleted = deleted + int(value)
    ierror = MPI_SUCCESS
  end subroutine delete

  subroutine handler(comm, code)
    integer :: comm, code, class, ierror
    call MPI_Error_class(code, class, ierror)
    if (class == MPI_ERR_RANK) raised = raised + 1
  end subroutine handler

  subroutine query(extra, status, ierror)
    integer(kind=MPI_ADDRESS_KIND) :: extra
    integer :: status(MPI_STATUS_SIZE), ierror
    if (extra == 77) queried = queried + 1
    status(MPI_SOURCE) = MPI_UNDEFINED
    status(MPI_TAG) = 5
    call MPI_Status_set_elements(status, MPI_INTEGER, 3, ierror)
    call MPI_Status_set_cancelled(status, .false., ierror)
    ierror = MPI_SUCCESS
  end subroutine query

  subroutine release(extra, ierror)
    integer(kind=MPI_ADDRESS_KIND) :: extra
    integer :: ierror
    if (extra == 77) freed = freed + 1
    extra = 78
    ierror = MPI_SUCCESS
  end subroutine release

  subroutine cancel(extra, complete, ierror)
    integer(kind=MPI_ADDRESS_KIND) :: extra
    logical :: complete
    integer :: ierror
    cancelled = cancelled + 1
    ierror = MPI_SUCCESS
  end subroutine cancel
end module callbacks

program fortran
  use callbacks
  implicit none
  integer :: size, me, ierror, wrong, all_wrong

  call MPI_Init(ierror)
  call MPI_Comm_size(MPI_COMM_WORLD, size, ierror)
  call MPI_Comm_rank(MPI_COMM_WORLD, me, ierror)
  wrong = 0
  call sentinels
  call strings
  call completion
  call attributes
  call operations
  call errors
  call generalized
  call types
  call MPI_Allreduce(wrong, all_wrong, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierror)
  if (me == 0 .and. all_wrong == 0) print '(a)', 'passed'
  call MPI_Finalize(ierror)

contains

  subroutine check(good, line)
    logical, intent(in) :: good
    character(len=*), intent(in) :: line
    if (good) return
    wrong = wrong + 1
    print '(a, i0, 2a)', 'rank ', me, ': ', line
  end subroutine check

  subroutine sentinels
    integer :: value, place(4), type, statuses(MPI_STATUS_SIZE)
    integer(kind=MPI_ADDRESS_KIND) :: address(1)
    value = me + 1
    call MPI_Allreduce(MPI_IN_PLACE, value, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierror)
    call check(value == size*(size + 1)/2, 'MPI_IN_PLACE')
    place = 0
    call MPI_Get_address(place, address(1), ierror)
    call MPI_Type_create_hindexed(1, [4], address, MPI_INTEGER, type, ierror)
    call MPI_Type_commit(type, ierror)
    call MPI_Sendrecv([1, 2, 3, me], 4, MPI_INTEGER, mod(me + 1, size), 7, MPI_BOTTOM, 1, type, &
      mod(me + size - 1, size), 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierror)
    call check(all(place == [1, 2, 3, mod(me + size - 1, size)]), 'MPI_BOTTOM')
    call MPI_Type_free(type, ierror)
    call MPI_Sendrecv(me, 1, MPI_INTEGER, me, 8, value, 1, MPI_INTEGER, MPI_ANY_SOURCE, MPI_ANY_TAG, &
      MPI_COMM_WORLD, statuses, ierror)
    call check(statuses(MPI_SOURCE) == me .and. statuses(MPI_TAG) == 8, 'a status')
    call MPI_Get_count(statuses, MPI_INTEGER, value, ierror)
    call check(value == 1, 'MPI_GET_COUNT')
  end subroutine sentinels

  subroutine strings
    character(len=MPI_MAX_PROCESSOR_NAME) :: name
    character(len=4) :: short
    character(len=MPI_MAX_OBJECT_NAME) :: object
    character(len=MPI_MAX_ERROR_STRING) :: text
    integer :: length, info
    logical :: flag
    name = repeat('x', len(name))
    call MPI_Get_processor_name(name, length, ierror)
    call check(length > 0 .and. name(length + 1:) == ' ' .and. name(length:length) /= ' ', 'a name')
    call MPI_Comm_get_name(MPI_COMM_WORLD, object, length, ierror)
    call check(object == 'MPI_COMM_WORLD' .and. length == 14, 'the name of the world')
    call MPI_Error_string(MPI_ERR_RANK, text, length, ierror)
    call check(index(text, 'MPI_ERR_RANK') > 0 .and. text(length + 1:) == ' ', 'MPI_ERROR_STRING')
    call MPI_Info_create(info, ierror)
    call MPI_Info_set(info, '  key ', ' value  ', ierror)
    object = 'unchanged'
    call MPI_Info_get(info, 'nothing', 20, object, flag, ierror)
    call check(.not. flag .and. object == 'unchanged', 'a key that is not there')
    call MPI_Info_get(info, 'key', 20, object, flag, ierror)
    call check(flag .and. object == 'value', 'MPI_INFO_GET')
    call MPI_Info_get(info, 'key', len(short), short, flag, ierror)
    call check(flag .and. short == 'valu', 'a value that is cut off')
    length = len(short)
    call MPI_Info_get_string(info, 'key', length, short, flag, ierror)
    call check(flag .and. short == 'valu' .and. length == 5, 'MPI_INFO_GET_STRING')
    call MPI_Info_free(info, ierror)
    call check(info == MPI_INFO_NULL, 'MPI_INFO_FREE')
  end subroutine strings

  subroutine completion
    integer :: requests(3), indices(3), statuses(MPI_STATUS_SIZE, 3), place(3), index, count
    logical :: flag
    call MPI_Irecv(place(1), 1, MPI_INTEGER, me, 1, MPI_COMM_WORLD, requests(1), ierror)
    call MPI_Irecv(place(2), 1, MPI_INTEGER, me, 2, MPI_COMM_WORLD, requests(2), ierror)
    call MPI_Send(22, 1, MPI_INTEGER, me, 2, MPI_COMM_WORLD, ierror)
    call MPI_Waitany(2, requests, index, statuses(:, 1), ierror)
    call check(index == 2 .and. place(2) == 22 .and. requests(2) == MPI_REQUEST_NULL, 'MPI_WAITANY')
    call MPI_Testany(2, requests, index, flag, MPI_STATUS_IGNORE, ierror)
    call check(.not. flag .and. index == MPI_UNDEFINED, 'MPI_TESTANY')
    call MPI_Send(11, 1, MPI_INTEGER, me, 1, MPI_COMM_WORLD, ierror)
    call MPI_Waitsome(2, requests, count, indices, statuses, ierror)
    call check(count == 1 .and. indices(1) == 1 .and. place(1) == 11, 'MPI_WAITSOME')
    call MPI_Waitall(2, requests, MPI_STATUSES_IGNORE, ierror)
    call MPI_Waitany(2, requests, index, MPI_STATUS_IGNORE, ierror)
    call check(index == MPI_UNDEFINED, 'no active request')
  end subroutine completion

  subroutine attributes
    integer :: key, comm
    integer(kind=MPI_ADDRESS_KIND) :: value, extra
    logical :: flag
    call MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, value, flag, ierror)
    call check(flag .and. value >= 32767, 'MPI_TAG_UB')
    extra = 1000
    call MPI_Comm_create_keyval(copy, delete, key, extra, ierror)
    extra = 0
    value = 7
    call MPI_Comm_set_attr(MPI_COMM_WORLD, key, value, ierror)
    call MPI_Comm_dup(MPI_COMM_WORLD, comm, ierror)
    call MPI_Comm_get_attr(comm, key, value, flag, ierror)
    call check(flag .and. value == 1007 .and. copied == 1, 'a copied attribute')
    call MPI_Comm_free(comm, ierror)
    call check(deleted == 1007, 'the copy is deleted')
    call MPI_Comm_delete_attr(MPI_COMM_WORLD, key, ierror)
    call check(deleted == 1014, 'the attribute is deleted')
    call MPI_Comm_free_keyval(key, ierror)
    call MPI_Comm_create_keyval(MPI_COMM_DUP_FN, MPI_COMM_NULL_DELETE_FN, key, extra, ierror)
    value = -5
    call MPI_Comm_set_attr(MPI_COMM_WORLD, key, value, ierror)
    call MPI_Comm_dup(MPI_COMM_WORLD, comm, ierror)
    call MPI_Comm_get_attr(comm, key, value, flag, ierror)
    call check(flag .and. value == -5, 'MPI_COMM_DUP_FN')
    call MPI_Comm_free(comm, ierror)
    call MPI_Comm_delete_attr(MPI_COMM_WORLD, key, ierror)
  end subroutine attributes

  subroutine operations
    integer :: op, value(3)
    logical :: commutes
    call MPI_Op_create(larger, .true., op, ierror)
    call MPI_Op_commutative(op, commutes, ierror)
    call MPI_Allreduce([me, 5, -me], value, 3, MPI_INTEGER, op, MPI_COMM_WORLD, ierror)
    call check(commutes .and. all(value == [size - 1, 5, 0]), 'an operation of the program')
    call MPI_Op_free(op, ierror)
  end subroutine operations

  subroutine errors
    integer :: errhandler, class
    call MPI_Comm_create_errhandler(handler, errhandler, ierror)
    call MPI_Comm_set_errhandler(MPI_COMM_WORLD, errhandler, ierror)
    call MPI_Send(me, 1, MPI_INTEGER, size, 0, MPI_COMM_WORLD, ierror)
    call MPI_Error_class(ierror, class, ierror)
    call check(raised == 1 .and. class == MPI_ERR_RANK, 'an error handler')
    call MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL, ierror)
    call MPI_Errhandler_free(errhandler, ierror)
  end subroutine errors

  subroutine generalized
    integer :: request, status(MPI_STATUS_SIZE), count
    integer(kind=MPI_ADDRESS_KIND), asynchronous :: state
    state = 77
    call MPI_Grequest_start(query, release, cancel, state, request, ierror)
    call MPI_Cancel(request, ierror)
    call MPI_Grequest_complete(request, ierror)
    call MPI_Wait(request, status, ierror)
    call MPI_Get_count(status, MPI_INTEGER, count, ierror)
    call check(queried == 1 .and. freed == 1 .and. cancelled == 1, 'a generalized request')
    call check(state == 78, 'the extra state is changed')
    call check(count == 3 .and. status(MPI_TAG) == 5, 'the status of a generalized request')
  end subroutine generalized

  subroutine types
    integer :: type, bytes, position, number
    integer(kind=MPI_ADDRESS_KIND) :: lower, extent
    character(len=100) :: buffer
    double precision :: x, y
    call MPI_Type_contiguous(3, MPI_DOUBLE_PRECISION, type, ierror)
    call MPI_Type_get_extent(type, lower, extent, ierror)
    call MPI_Type_size(type, bytes, ierror)
    call check(lower == 0 .and. extent == 24 .and. bytes == 24, 'a datatype')
    call MPI_Type_free(type, ierror)
    x = 2.5d0
    position = 0
    call MPI_Pack(x, 1, MPI_DOUBLE_PRECISION, buffer, 100, position, MPI_COMM_WORLD, ierror)
    call MPI_Pack(9, 1, MPI_INTEGER, buffer, 100, position, MPI_COMM_WORLD, ierror)
    position = 0
    call MPI_Unpack(buffer, 100, position, y, 1, MPI_DOUBLE_PRECISION, MPI_COMM_WORLD, ierror)
    call MPI_Unpack(buffer, 100, position, number, 1, MPI_INTEGER, MPI_COMM_WORLD, ierror)
    call check(y == x .and. number == 9 .and. position == 12, 'packing')
    call check(MPI_Wtime() > 0 .and. MPI_Wtick() > 0, 'time')
  end subroutine types
end program fortran
