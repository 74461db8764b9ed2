//! The traits of futures-io.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_io::{AsyncRead, AsyncWrite};

use super::{AsyncReader, AsyncWriter, Reader, Stream, Writer};
use crate::error::Error;

fn io_error(error: Error) -> io::Error {
    let kind = match &error {
        Error::PeerGone(..) => io::ErrorKind::ConnectionReset,
        Error::Aborted => io::ErrorKind::BrokenPipe,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

impl AsyncRead for Reader {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_read_some(context, out).map_err(io_error)
    }
}

impl AsyncWrite for Writer {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_write_some(context, bytes).map_err(io_error)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Written bytes leave at once.
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.get_mut().close().map_err(io_error))
    }
}

/// Passes on what is asked of a type to the half of a stream that it holds.
macro_rules! delegate {
    (AsyncRead: $($type:ty),*) => {$(
        impl AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                out: &mut [u8],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.get_mut().reader).poll_read(context, out)
            }
        }
    )*};
    (AsyncWrite: $($type:ty),*) => {$(
        impl AsyncWrite for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                context: &mut Context<'_>,
                bytes: &[u8],
            ) -> Poll<io::Result<usize>> {
                Pin::new(&mut self.get_mut().writer).poll_write(context, bytes)
            }

            fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut self.get_mut().writer).poll_flush(context)
            }

            fn poll_close(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
                Pin::new(&mut self.get_mut().writer).poll_close(context)
            }
        }
    )*};
}

delegate!(AsyncRead: Stream, AsyncReader);
delegate!(AsyncWrite: Stream, AsyncWriter);
