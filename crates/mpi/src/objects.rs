//! The objects behind handles, and how they are found. A lookup that fails has the error class of its kind.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use tautline::group::{CHOSEN_IDS, Group};
use tautline::tags::Tags;

use crate::attribute::Attributes;
use crate::constants as c;
use crate::datatype::{C_HALF, LOWER_MARK, Type, UPPER_MARK};
use crate::errhandler::Handler;
use crate::error::{Error, Result};
use crate::group::Members;
use crate::handle::{self, Comm, Datatype, Errhandler, Info, Op};
use crate::network::network;
use crate::op::{self, Kernel, Operation};
use crate::pool::Pool;
use crate::topology::Topology;
use crate::waiting::{self, Search};

/// Locks what no panic leaves half done.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A datatype with what programs attach to it.
pub struct TypeObject {
    pub of: Arc<Type>,
    pub name: Mutex<String>,
    pub attributes: Attributes,
}

impl TypeObject {
    pub fn new(of: Arc<Type>, name: &str) -> TypeObject {
        TypeObject { of, name: Mutex::new(name.to_owned()), attributes: Attributes::default() }
    }
}

/// A communicator.
pub struct Communicator {
    /// The handle that it was made with.
    pub handle: OnceLock<Comm>,
    /// The group that carries its messages, once the members have agreed on it.
    group: OnceLock<Group>,
    pub members: Arc<Members>,
    /// The other side of an inter-communicator. Its group then has the members of both sides.
    pub remote: Option<Arc<Members>>,
    /// The rank of this process in it.
    pub rank: u32,
    pub topology: Option<Topology>,
    pub errhandler: Mutex<Arc<Handler>>,
    pub name: Mutex<String>,
    pub attributes: Attributes,
    pub info: Hints,
    /// When lost members are looked for again, as [`waiting::now_ms`] counts.
    next_look_ms: AtomicU64,
}

impl Communicator {
    /// A communicator of `members` with the error handler of `like`, and without hints, as since MPI 4.0. Its
    /// contexts are not known yet.
    pub fn like(
        like: &Communicator,
        members: Arc<Members>,
        rank: u32,
        attributes: Attributes,
        topology: Option<Topology>,
    ) -> Communicator {
        Communicator {
            handle: OnceLock::new(),
            group: OnceLock::new(),
            members,
            remote: None,
            rank,
            topology,
            errhandler: Mutex::new(Arc::clone(&lock(&like.errhandler))),
            name: Mutex::default(),
            attributes,
            info: Mutex::default(),
            next_look_ms: AtomicU64::new(0),
        }
    }

    fn predefined(handle: Comm, name: &str, group: Group) -> Arc<Communicator> {
        let (members, rank) = (group.ranks().to_vec(), group.member() as u32);
        Arc::new(Communicator {
            handle: OnceLock::from(handle),
            group: OnceLock::from(group),
            members: Arc::new(Members(members)),
            remote: None,
            rank,
            topology: None,
            errhandler: Mutex::new(Arc::new(Handler::Fatal)),
            name: Mutex::new(name.to_owned()),
            attributes: Attributes::default(),
            info: Mutex::default(),
            next_look_ms: AtomicU64::new(0),
        })
    }

    /// The number of members.
    pub fn size(&self) -> usize {
        self.members.0.len()
    }

    /// The members that messages go to and come from: those of the other side, if it has one.
    #[inline]
    pub fn peers(&self) -> &Members {
        self.remote.as_ref().unwrap_or(&self.members)
    }

    /// Why a message of any source may never come, if a search finds that a peer is lost.
    pub fn lost_peer(&self, search: Search) -> Option<Error> {
        let looks = match search {
            Search::None => false,
            Search::AtTimes => self.is_time_to_look(),
            Search::Now => true,
        };
        if looks { network().check_alive(&self.peers().0).err() } else { None }
    }

    fn is_time_to_look(&self) -> bool {
        let (now, next) = (waiting::now_ms(), self.next_look_ms.load(Ordering::Relaxed));
        if now >= next {
            self.next_look_ms.store(now + waiting::IDLE.as_millis() as u64, Ordering::Relaxed);
        }
        now >= next
    }

    /// Its handle.
    pub fn handle(&self) -> Comm {
        self.handle.get().copied().unwrap_or(c::COMM_NULL)
    }

    /// Sets what the members have agreed on.
    pub fn set_group(&self, group: Group) {
        let _ = self.group.set(group);
    }

    /// The group that carries its messages.
    #[inline]
    pub fn group(&self) -> Result<&Group> {
        let group = self.group.get();
        group.ok_or_else(|| {
            Error::new(c::ERR_COMM, "the request that makes this communicator is not complete")
        })
    }

    /// The messages of point-to-point communication.
    #[inline]
    pub fn tags(&self) -> Result<&Tags> {
        Ok(self.group()?.tags())
    }
}

const SELF_ID: u32 = 0;

/// A number that no other group of the job has or had. Each rank gives out numbers of its own, so that
/// threads and ranks need not agree on a counter.
pub fn new_id() -> Result<u32> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let network = network();
    let share = (CHOSEN_IDS - 1) / network.size;
    let number =
        NEXT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |next| (next < share).then_some(next + 1));
    let number = number.map_err(|_| {
        Error::new(
            c::ERR_OTHER,
            format!("this rank has made {share} communicators by MPI_Comm_idup, the most it may"),
        )
    })?;
    Ok(SELF_ID + 1 + network.rank * share + number)
}

/// `MPI_COMM_WORLD`, for use after the job was joined.
pub static WORLD: LazyLock<Arc<Communicator>> =
    LazyLock::new(|| Communicator::predefined(c::COMM_WORLD, "MPI_COMM_WORLD", network().world().clone()));
/// `MPI_COMM_SELF`, likewise.
pub static SELF: LazyLock<Arc<Communicator>> = LazyLock::new(|| {
    let group = Group::with_id(network().tags(), &[network().rank], SELF_ID);
    let group = group.expect("a group of this rank alone needs no other");
    Communicator::predefined(c::COMM_SELF, "MPI_COMM_SELF", group)
});

/// Predefined handles of datatypes begin with this one.
const FIRST_TYPE: usize = 0x200;

/// The predefined datatypes, by handle.
static PREDEFINED: LazyLock<Vec<Option<Arc<TypeObject>>>> = LazyLock::new(|| {
    let mut objects = vec![None; 0x100];
    for (handle, name) in c::DATATYPES {
        if let (Some(of), Some(place)) = (Type::predefined(handle), objects.get_mut(handle.0 - FIRST_TYPE)) {
            // The standard has two names for these, and calls the others synonyms.
            let name = match handle {
                c::LONG_LONG => "MPI_LONG_LONG_INT",
                c::C_FLOAT_COMPLEX => "MPI_C_COMPLEX",
                _ => name,
            };
            *place = Some(Arc::new(TypeObject::new(Arc::new(of), name)));
        }
    }
    let half = Type::predefined(C_HALF).map(|of| Arc::new(TypeObject::new(Arc::new(of), "MPIX_C_FLOAT16")));
    objects[C_HALF.0 - FIRST_TYPE] = half;
    for (handle, name) in [(LOWER_MARK, "MPI_LB"), (UPPER_MARK, "MPI_UB")] {
        objects[handle.0 - FIRST_TYPE] = Some(Arc::new(TypeObject::new(Arc::new(Type::mark(handle)), name)));
    }
    objects
});

pub static TYPES: Pool<TypeObject> = Pool::new();
pub static COMMS: Pool<Communicator> = Pool::new();
pub static GROUPS: Pool<Members> = Pool::new();
pub static OPS: Pool<Operation> = Pool::new();
pub static ERRHANDLERS: Pool<Handler> = Pool::new();
/// The keys of an info object in order, with their values.
pub type Hints = Mutex<Vec<(String, String)>>;

pub static INFOS: Pool<Hints> = Pool::new();

/// Adds an object to a pool.
pub fn add<T, H: From<usize>>(pool: &Pool<T>, object: Arc<T>) -> Result<H> {
    let handle = pool.insert(object);
    handle.map(H::from).ok_or_else(|| Error::new(c::ERR_OTHER, "there are too many objects of this kind"))
}

fn invalid(code: c_int, what: &str, handle: usize, null: usize) -> Error {
    let text = if handle == null {
        format!("the {what} is null")
    } else {
        format!("{handle:#x} is no {what}, or was freed")
    };
    Error::new(code, text)
}

pub fn datatype(handle: Datatype) -> Result<Arc<TypeObject>> {
    let found = match handle.0 {
        value @ FIRST_TYPE..0x300 => PREDEFINED[value - FIRST_TYPE].clone(),
        value => TYPES.get(value),
    };
    found.ok_or_else(|| invalid(c::ERR_TYPE, "datatype", handle.0, c::DATATYPE_NULL.0))
}

/// Memory of the program that lies as it is packed: `count` copies of a datatype at `at`. None if there is
/// more to do. It takes no reference to the datatype, for calls that are over before its handle can be freed.
#[inline]
pub fn span(at: *mut c_void, count: i64, handle: Datatype) -> Option<(*mut u8, usize)> {
    let size = DENSE_SIZES.get(handle.0.wrapping_sub(FIRST_TYPE)).filter(|size| **size > 0)?;
    let len = usize::try_from(count).ok()?.checked_mul(usize::from(*size))?;
    (isize::try_from(len).is_ok() && (len == 0 || !at.is_null())).then_some((at.cast(), len))
}

/// As [`span`]; none for more than 2^32 copies, either.
#[inline(always)]
pub fn short_span(at: *mut c_void, count: i64, handle: Datatype) -> Option<(*mut u8, usize)> {
    let size = DENSE_SIZES.get(handle.0.wrapping_sub(FIRST_TYPE)).filter(|size| **size > 0)?;
    let len = usize::try_from(u32::try_from(count).ok()?).ok()? * usize::from(*size);
    (len == 0 || !at.is_null()).then_some((at.cast(), len))
}

/// The loop of a predefined operation over elements of a predefined datatype that lie in memory as they are
/// packed, and the size of an element. None of others, and if the operation is not defined for the datatype.
pub fn kernel(op: Op, handle: Datatype) -> Option<(Kernel, usize)> {
    let place = handle.0.wrapping_sub(FIRST_TYPE);
    let size = DENSE_SIZES.get(place).filter(|size| **size > 0)?;
    let single = PREDEFINED.get(place)?.as_ref()?.of.single()?;
    Some((op::kernel(op, single)?, usize::from(*size)))
}

/// The sizes of predefined datatypes whose copies lie in memory as they are packed; 0 of others.
static DENSE_SIZES: LazyLock<[u16; 0x100]> = LazyLock::new(|| {
    let mut sizes = [0; 0x100];
    for (size, object) in sizes.iter_mut().zip(PREDEFINED.iter()) {
        let dense = object.as_ref().filter(|object| object.of.is_dense());
        *size = dense.and_then(|object| u16::try_from(object.of.size()).ok()).unwrap_or(0);
    }
    sizes
});

/// [`WORLD`] without a reference to count.
#[inline(always)]
pub fn world() -> &'static Communicator {
    &WORLD
}

/// A communicator for the time of one call: that of all ranks without counting a reference.
pub enum CommRef {
    World(&'static Communicator),
    Other(Arc<Communicator>),
}

impl std::ops::Deref for CommRef {
    type Target = Communicator;

    #[inline]
    fn deref(&self) -> &Communicator {
        match self {
            CommRef::World(comm) => comm,
            CommRef::Other(comm) => comm,
        }
    }
}

/// As [`comm`], for the time of one call.
#[inline]
pub fn comm_ref(handle: Comm) -> Result<CommRef> {
    if handle == c::COMM_WORLD { Ok(CommRef::World(&WORLD)) } else { comm(handle).map(CommRef::Other) }
}

pub fn comm(handle: Comm) -> Result<Arc<Communicator>> {
    let found = match handle {
        c::COMM_WORLD => Some(Arc::clone(&WORLD)),
        c::COMM_SELF => Some(Arc::clone(&SELF)),
        handle => COMMS.get(handle.0),
    };
    found.ok_or_else(|| invalid(c::ERR_COMM, "communicator", handle.0, c::COMM_NULL.0))
}

/// Adds a communicator; it knows its handle then.
pub fn add_comm(object: Communicator) -> Result<Comm> {
    let object = Arc::new(object);
    let handle = add(&COMMS, Arc::clone(&object))?;
    let _ = object.handle.set(handle);
    Ok(handle)
}

pub fn group(handle: handle::Group) -> Result<Arc<Members>> {
    let found =
        if handle == c::GROUP_EMPTY { Some(Arc::new(Members::default())) } else { GROUPS.get(handle.0) };
    found.ok_or_else(|| invalid(c::ERR_GROUP, "group", handle.0, c::GROUP_NULL.0))
}

pub fn op(handle: Op) -> Result<Arc<Operation>> {
    let found = Operation::predefined(handle).map(Arc::new).or_else(|| OPS.get(handle.0));
    found.ok_or_else(|| invalid(c::ERR_OP, "operation", handle.0, c::OP_NULL.0))
}

pub fn errhandler(handle: Errhandler) -> Result<Arc<Handler>> {
    let found = match handle {
        c::ERRORS_ARE_FATAL => Some(Arc::new(Handler::Fatal)),
        c::ERRORS_ABORT => Some(Arc::new(Handler::Abort)),
        c::ERRORS_RETURN => Some(Arc::new(Handler::Return)),
        handle => ERRHANDLERS.get(handle.0),
    };
    found.ok_or_else(|| invalid(c::ERR_ERRHANDLER, "error handler", handle.0, c::ERRHANDLER_NULL.0))
}

pub fn info(handle: Info) -> Result<Arc<Hints>> {
    let found = if handle == c::INFO_ENV { Some(Arc::default()) } else { INFOS.get(handle.0) };
    found.ok_or_else(|| invalid(c::ERR_INFO, "info object", handle.0, c::INFO_NULL.0))
}
