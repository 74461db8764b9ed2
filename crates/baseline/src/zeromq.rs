//! ZeroMQ's `ipc` transport: a pair of `PAIR` sockets, through the installed `libzmq`. It is loaded on first
//! use, so that nothing here depends on it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::mem::transmute;
use std::ptr::NonNull;
use std::sync::OnceLock;

use crate::transport::{Kind, SILENCE, Setup, Side, SpinLimit, Transport, timed_out};

// From zmq.h, whose numbers are part of libzmq's interface.
const PAIR: c_int = 0;
const LINGER: c_int = 17;
const RCVTIMEO: c_int = 27;
const SNDTIMEO: c_int = 28;
const DONTWAIT: c_int = 1;

/// How long the last message may take to leave.
const LINGER_MS: c_int = 1_000;

/// The functions of the library that we call.
struct Library {
    ctx_new: CtxNew,
    ctx_term: Unary,
    socket: NewSocket,
    close: Unary,
    bind: Join,
    connect: Join,
    setsockopt: SetOption,
    send: Send,
    recv: Receive,
    errno: Errno,
}

type CtxNew = unsafe extern "C" fn() -> *mut c_void;
type Unary = unsafe extern "C" fn(*mut c_void) -> c_int;
type NewSocket = unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void;
type Join = unsafe extern "C" fn(*mut c_void, *const c_char) -> c_int;
type SetOption = unsafe extern "C" fn(*mut c_void, c_int, *const c_void, usize) -> c_int;
type Send = unsafe extern "C" fn(*mut c_void, *const c_void, usize, c_int) -> c_int;
type Receive = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int) -> c_int;
type Errno = unsafe extern "C" fn() -> c_int;

/// Whether the library is installed.
pub(crate) fn is_installed() -> bool {
    library().is_some()
}

fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    LIBRARY.get_or_init(Library::load).as_ref()
}

impl Library {
    fn load() -> Option<Self> {
        // SAFETY: the name ends with zero. The library's own constructors are as safe as linking with it
        // would be.
        let handle = unsafe { libc::dlopen(c"libzmq.so.5".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let handle = NonNull::new(handle)?;
        let find = |name: &CStr| {
            // SAFETY: the handle is open, and never closed; the name ends with zero.
            NonNull::new(unsafe { libc::dlsym(handle.as_ptr(), name.as_ptr()) }).map(NonNull::as_ptr)
        };
        // SAFETY: each symbol is the function of that name in zmq.h, with exactly this signature.
        unsafe {
            Some(Self {
                ctx_new: transmute::<*mut c_void, CtxNew>(find(c"zmq_ctx_new")?),
                ctx_term: transmute::<*mut c_void, Unary>(find(c"zmq_ctx_term")?),
                socket: transmute::<*mut c_void, NewSocket>(find(c"zmq_socket")?),
                close: transmute::<*mut c_void, Unary>(find(c"zmq_close")?),
                bind: transmute::<*mut c_void, Join>(find(c"zmq_bind")?),
                connect: transmute::<*mut c_void, Join>(find(c"zmq_connect")?),
                setsockopt: transmute::<*mut c_void, SetOption>(find(c"zmq_setsockopt")?),
                send: transmute::<*mut c_void, Send>(find(c"zmq_send")?),
                recv: transmute::<*mut c_void, Receive>(find(c"zmq_recv")?),
                errno: transmute::<*mut c_void, Errno>(find(c"zmq_errno")?),
            })
        }
    }

    fn check(&self, result: c_int) -> io::Result<usize> {
        usize::try_from(result).map_err(|_| {
            // SAFETY: no arguments; it reads this thread's own number.
            io::Error::from_raw_os_error(unsafe { (self.errno)() })
        })
    }
}

/// One side of the pair.
pub(crate) struct ZeroMq {
    library: &'static Library,
    context: NonNull<c_void>,
    socket: NonNull<c_void>,
    blocking: bool,
}

impl ZeroMq {
    /// Side A binds, side B connects.
    pub(crate) fn open(setup: &mut Setup<'_>) -> io::Result<Self> {
        let library = library().ok_or_else(|| io::Error::other("libzmq.so.5 is not installed"))?;
        // SAFETY: no arguments.
        let context = NonNull::new(unsafe { (library.ctx_new)() }).ok_or_else(io::Error::last_os_error)?;
        // SAFETY: the context is open.
        let Some(socket) = NonNull::new(unsafe { (library.socket)(context.as_ptr(), PAIR) }) else {
            let error = io::Error::last_os_error();
            // SAFETY: the context is open and has no sockets.
            unsafe { (library.ctx_term)(context.as_ptr()) };
            return Err(error);
        };
        let this = Self { library, context, socket, blocking: setup.blocking };
        let spin_limit = SILENCE.as_millis() as c_int;
        for (option, value) in [(LINGER, LINGER_MS), (RCVTIMEO, spin_limit), (SNDTIMEO, spin_limit)] {
            this.set(option, value)?;
        }
        this.join(setup)?;
        setup.barrier()?;
        Ok(this)
    }

    /// Binds or connects to an abstract name, so that no file is left behind.
    fn join(&self, setup: &mut Setup<'_>) -> io::Result<()> {
        let ours = u64::from(std::process::id()) << 32 | u64::from(next_number());
        let number = match setup.side {
            Side::A => ours,
            Side::B => u64::from_le_bytes(setup.exchange(&[0; 8])?),
        };
        let name = format!("ipc://@tautline-baseline-{number:x}\0");
        let name = name.as_ptr().cast::<c_char>();
        let joined = match setup.side {
            // SAFETY: the socket is open, and the name ends with zero.
            Side::A => unsafe { (self.library.bind)(self.socket.as_ptr(), name) },
            // SAFETY: as above.
            Side::B => unsafe { (self.library.connect)(self.socket.as_ptr(), name) },
        };
        let joined = self.library.check(joined);
        if setup.side == Side::A {
            setup.exchange(&number.to_le_bytes())?;
        }
        joined.map(drop)
    }

    fn set(&self, option: c_int, value: c_int) -> io::Result<()> {
        let bytes = size_of::<c_int>();
        // SAFETY: the socket is open, and the option takes an int.
        let set = unsafe {
            (self.library.setsockopt)(self.socket.as_ptr(), option, (&raw const value).cast(), bytes)
        };
        self.library.check(set).map(drop)
    }

    /// Repeats a call while there is no room, or no message.
    fn again(&self, mut call: impl FnMut(c_int) -> c_int) -> io::Result<usize> {
        let flags = if self.blocking { 0 } else { DONTWAIT };
        let mut spin_limit = SpinLimit::new();
        loop {
            match self.library.check(call(flags)) {
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && self.blocking => return Err(timed_out()),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => spin_limit.spin()?,
                result => return result,
            }
        }
    }
}

fn next_number() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Transport for ZeroMq {
    fn name(&self) -> &'static str {
        Kind::ZeroMq.name()
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (data, len) = (bytes.as_ptr().cast(), bytes.len());
        // SAFETY: the socket is open, and `len` bytes are there.
        self.again(|flags| unsafe { (self.library.send)(self.socket.as_ptr(), data, len, flags) }).map(drop)
    }

    fn recv(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let (data, len) = (buf.as_mut_ptr().cast(), buf.len());
        // SAFETY: the socket is open, and there is room for `len` bytes.
        self.again(|flags| unsafe { (self.library.recv)(self.socket.as_ptr(), data, len, flags) })
    }
}

impl Drop for ZeroMq {
    fn drop(&mut self) {
        // SAFETY: both are open, and nobody uses them any more.
        unsafe {
            (self.library.close)(self.socket.as_ptr());
            (self.library.ctx_term)(self.context.as_ptr());
        }
    }
}
