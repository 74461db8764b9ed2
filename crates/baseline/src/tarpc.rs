//! Calls by tarpc, over TCP or a Unix socket, each side with a runtime of one thread. Only with the feature
//! `tarpc`.
//!
//! As its documentation recommends, the server gives each request a task of its own. Requests are vectors of
//! words, which are cheaper to encode than bytes; both sides make and read all of them.

use std::io;

use futures::future::ready;
use futures::stream::{self, StreamExt as _, TryStreamExt as _};
use tarpc::client::Config;
use tarpc::server::{BaseChannel, Channel as _};
use tarpc::tokio_serde::formats::Bincode;
use tarpc::tokio_util::codec::{Framed, LengthDelimitedCodec};
use tarpc::{context, serde_transport};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::bytes::{tcp_stream, unix_end};
use crate::content::{is_sabotaged, make_words, read_words};
use crate::cpu::{Measured, Stopwatch};
use crate::transport::{Setup, Side};

#[tarpc::service]
trait Echo {
    async fn echo(words: Vec<u64>) -> Vec<u64>;
}

#[derive(Clone, Copy)]
struct Echoing;

impl Echo for Echoing {
    async fn echo(self, _: context::Context, words: Vec<u64>) -> Vec<u64> {
        // An answer to what was not read right is of another length, which the client detects.
        read_words(&words).map_or(Vec::new(), |number| make_words(number, words.len()))
    }
}

/// Side A calls `[warm_up, count]` times, with up to `window` calls in progress; side B answers each with its
/// request.
///
/// # Errors
/// Whatever tarpc reports, and [`io::ErrorKind::InvalidData`] if an answer is not that of its request.
pub fn calls(
    setup: &mut Setup<'_>,
    tcp: bool,
    bytes: usize,
    counts: [u64; 2],
    window: u64,
) -> io::Result<Measured> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let work = Work { words: bytes.div_ceil(8), counts, window };
    if tcp {
        let stream = tcp_stream(setup)?;
        stream.set_nonblocking(true)?;
        runtime.block_on(async { work.run(setup.side, TcpStream::from_std(stream)?).await })
    } else {
        let stream = std::os::unix::net::UnixStream::from(unix_end(setup)?);
        stream.set_nonblocking(true)?;
        runtime.block_on(async { work.run(setup.side, UnixStream::from_std(stream)?).await })
    }
}

#[derive(Clone, Copy)]
struct Work {
    words: usize,
    counts: [u64; 2],
    window: u64,
}

impl Work {
    async fn run<S>(self, side: Side, stream: S) -> io::Result<Measured>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let framed = Framed::new(stream, LengthDelimitedCodec::new());
        let [warm_up, count] = self.counts;
        let watch = match side {
            Side::A => {
                let transport = serde_transport::new(framed, Bincode::default());
                let client = EchoClient::new(Config::default(), transport).spawn();
                self.ask(&client, 0, warm_up).await?;
                let watch = Stopwatch::start();
                self.ask(&client, warm_up, count).await?;
                watch
            }
            Side::B => {
                let transport = serde_transport::new(framed, Bincode::default());
                let watch = Stopwatch::start();
                // Until the other side closes the connection.
                BaseChannel::with_defaults(transport)
                    .execute(Echoing.serve())
                    .for_each(|answer| {
                        tokio::spawn(answer);
                        ready(())
                    })
                    .await;
                watch
            }
        };
        Ok(watch.stop(count, count * self.words as u64 * 8, 0))
    }

    async fn ask(self, client: &EchoClient, from: u64, count: u64) -> io::Result<()> {
        if self.window <= 1 {
            for number in from..from + count {
                self.call(client, number).await?;
            }
            return Ok(());
        }
        stream::iter(from..from + count)
            .map(|number| self.call(client, number))
            .buffer_unordered(self.window as usize)
            .try_for_each(|()| ready(Ok(())))
            .await
    }

    async fn call(self, client: &EchoClient, number: u64) -> io::Result<()> {
        let answer = client
            .echo(context::current(), make_words(number, self.words))
            .await
            .map_err(io::Error::other)?;
        let right = read_words(&answer) == Some(number) && answer.len() == self.words;
        if right || is_sabotaged() {
            return Ok(());
        }
        Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("the answer to call {number} is not that of the request"),
        ))
    }
}
