//! Every system call of this crate. Unsafe code is here and nowhere else; the interface of this module is
//! safe.

pub(crate) mod bpf;
pub(crate) mod caps;
mod clock;
mod iface;
pub(crate) mod local;
pub(crate) mod netlink;
mod queues;
mod recv;
pub(crate) mod request;
mod send;
mod socket;
mod umem;
mod xsk;
mod xsk_ring;

pub(crate) use clock::{coarse_now, now};
pub(crate) use iface::interface_mtu;
pub(crate) use queues::Queues;
pub(crate) use recv::{Received, RxVectors, receive_from};
pub(crate) use rustix::io::Errno;
pub(crate) use send::{Train, TxVectors, send_connected, send_to};
pub(crate) use socket::{
    adopt_socket, drops, has_gso, open_connected, open_socket, path_mtu, receive_buffer, set_buffers,
    set_busy_poll, set_gro, widen_receive_buffer,
};
pub(crate) use umem::{Chunk, Layout, LentChunks, ReceivedChunk, Umem};
pub(crate) use xsk::{TX_METADATA_LEN, XskOptions, checksum_request};

#[cfg(test)]
pub(crate) use socket::refuse_gso;

/// Returns the error of the last failed `libc` call.
fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
