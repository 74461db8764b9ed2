//! The objects behind handles, and how they are found. A lookup that fails has the error class of its kind.

use std::collections::HashMap;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::attribute::Attributes;
use crate::constants as c;
use crate::datatype::Type;
use crate::errhandler::Handler;
use crate::error::{Error, Result};
use crate::group::Members;
use crate::handle::{Comm, Datatype, Errhandler, Group, Info, Op};
use crate::op::Operation;
use crate::pool::Pool;

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
    pub context: u32,
    pub members: Arc<Members>,
    /// The rank of this process in it.
    pub rank: u32,
    pub errhandler: Mutex<Arc<Handler>>,
    pub name: Mutex<String>,
    pub attributes: Attributes,
    pub info: Hints,
}

impl Communicator {
    /// A communicator of `members` with the error handler and the info of `like`.
    pub fn like(
        like: &Communicator,
        members: Arc<Members>,
        rank: u32,
        attributes: Attributes,
    ) -> Communicator {
        Communicator {
            handle: OnceLock::new(),
            context: NEXT_CONTEXT.fetch_add(1, Ordering::Relaxed),
            members,
            rank,
            errhandler: Mutex::new(Arc::clone(&lock(&like.errhandler))),
            name: Mutex::default(),
            attributes,
            info: Mutex::new(lock(&like.info).clone()),
        }
    }

    fn predefined(handle: Comm, name: &str) -> Arc<Communicator> {
        Arc::new(Communicator {
            handle: OnceLock::from(handle),
            context: NEXT_CONTEXT.fetch_add(1, Ordering::Relaxed),
            members: Arc::new(Members(vec![0])),
            rank: 0,
            errhandler: Mutex::new(Arc::new(Handler::Fatal)),
            name: Mutex::new(name.to_owned()),
            attributes: Attributes::default(),
            info: Mutex::default(),
        })
    }

    /// The number of members.
    pub fn size(&self) -> usize {
        self.members.0.len()
    }

    /// Its handle.
    pub fn handle(&self) -> Comm {
        self.handle.get().copied().unwrap_or(c::COMM_NULL)
    }
}

static NEXT_CONTEXT: AtomicU32 = AtomicU32::new(0);

/// `MPI_COMM_WORLD` of a job of one. A job of several will make it when it starts.
pub static WORLD: LazyLock<Arc<Communicator>> =
    LazyLock::new(|| Communicator::predefined(c::COMM_WORLD, "MPI_COMM_WORLD"));
pub static SELF: LazyLock<Arc<Communicator>> =
    LazyLock::new(|| Communicator::predefined(c::COMM_SELF, "MPI_COMM_SELF"));

static PREDEFINED: LazyLock<HashMap<Datatype, Arc<TypeObject>>> = LazyLock::new(|| {
    let objects = c::DATATYPES.iter().filter_map(|(handle, name)| {
        Some((*handle, Arc::new(TypeObject::new(Arc::new(Type::predefined(*handle)?), name))))
    });
    objects.collect()
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
        0x200..0x300 => PREDEFINED.get(&handle).cloned(),
        value => TYPES.get(value),
    };
    found.ok_or_else(|| invalid(c::ERR_TYPE, "datatype", handle.0, c::DATATYPE_NULL.0))
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

pub fn group(handle: Group) -> Result<Arc<Members>> {
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
