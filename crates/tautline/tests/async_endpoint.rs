//! What tasks do with an [`AsyncEndpoint`]: messages, loans, queues and streams, without a call that blocks.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::cell::Cell;

use crate::common::{config, join, pattern, run};
use tautline::queue::{AsyncReceiver, AsyncSender};
use tautline::stream::{AsyncReader, AsyncWriter};
use tautline::{AsyncEndpoint, Endpoint, Error, Message, queue, stream};
use tokio::sync::mpsc;

/// Longer than a window.
const LONG: usize = 3 << 20;

/// What the handlers of a rank pass to its task.
struct Inbox {
    messages: mpsc::UnboundedReceiver<Vec<u8>>,
    senders: mpsc::UnboundedReceiver<queue::Sender>,
    writers: mpsc::UnboundedReceiver<stream::Writer>,
}

/// Runs a task on every rank of two.
fn on_both(work: impl AsyncFn(AsyncEndpoint, Inbox) + Send + Sync) {
    run(2, |job| {
        let (message, messages) = mpsc::unbounded_channel();
        let (sender, senders) = mpsc::unbounded_channel();
        let (writer, writers) = mpsc::unbounded_channel();
        let builder = Endpoint::builder()
            .config(config(|c| c.watchdog = None))
            .on("data", move |mut m: Message| {
                let message = message.clone();
                async move {
                    let _ = message.send(m.read_to_end().await?);
                    Ok(())
                }
            })
            .with(queue::on_offer("jobs", move |_, it| drop(sender.send(it))))
            .with(stream::on_offer("log", move |_, it| drop(writer.send(it))));
        let ep = join(builder, job);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let inbox = Inbox { messages, senders, writers };
        runtime.block_on(tautline::tokio::run(ep, async |ep| work(ep, inbox).await)).unwrap();
    });
}

/// Messages of every form: whole, begun, filled, lent. Dropped before its end, one is aborted.
#[test]
fn messages_and_loans() {
    on_both(async |ep, mut inbox| {
        let other = 1 - ep.rank();
        let data = ep.handler("data").unwrap();
        let long = pattern(LONG, 0);
        ep.send(other, data, b"short").await.unwrap();
        ep.send(other, "data", &long).await.unwrap();
        let mut out = ep.begin(other, data, (LONG + 8) as u64).await.unwrap();
        out.value(&7u64).await.unwrap();
        assert!(matches!(out.piece(&pattern(LONG + 1, 0)).await, Err(Error::PieceTooLong { .. })));
        out.fill(1000, |at, room| room.copy_from_slice(&long[at..at + room.len()])).await.unwrap();
        out.piece(&long[1000..]).await.unwrap();
        assert_eq!(out.remaining(), 0);
        out.end().unwrap();
        let mut loan = ep.loan(other, 100_000).await.unwrap();
        loan.copy_from_slice(&long[..100_000]);
        assert_eq!(loan.peer(), other);
        loan.send(data).await.unwrap();
        drop(ep.begin(other, data, 5).await.unwrap());
        ep.send(other, data, b"last").await.unwrap();
        let mut next = async || inbox.messages.recv().await.unwrap();
        assert_eq!(next().await, b"short");
        assert!(next().await == long);
        assert!(next().await == [&7u64.to_le_bytes()[..], &long].concat());
        assert!(next().await == long[..100_000]);
        assert_eq!(next().await, b"last");
        while ep.poll_failure().is_none() {
            tokio::task::yield_now().await;
        }
        ep.send(other, data, b"over").await.unwrap();
        assert_eq!(next().await, b"over");
    });
}

/// Queues and streams that are offered to tasks, and held back by them.
#[test]
fn queues_and_streams() {
    on_both(async |ep, mut inbox| {
        let other = 1 - ep.rank();
        let long = pattern(LONG, 0);
        if ep.rank() == 0 {
            let mut jobs = AsyncReceiver::offer(&ep, other, "jobs", 1024).await.unwrap();
            let count = Cell::new(0u64);
            while let Some(job) = jobs.pop().await.unwrap() {
                assert_eq!(job, [&count.get().to_le_bytes()[..], b"body"].concat());
                count.set(count.get() + 1);
            }
            assert_eq!(count.get(), 1000);
            assert!(jobs.is_over().unwrap());
            let mut log = AsyncReader::offer(&ep, other, "log", 10_000).await.unwrap();
            let mut all = vec![0; LONG];
            log.read_exact(&mut all).await.unwrap();
            assert!(all == long);
            assert_eq!(log.read(&mut all).await.unwrap(), 0, "it was closed");
            // A ring whose cookie is sent in a message.
            let (mut reader, cookie) = AsyncReader::pair(&ep, 64).unwrap();
            ep.send(other, "data", &cookie.to_bytes()).await.unwrap();
            let (mut receiver, cookie) = AsyncReceiver::pair(&ep, 64).unwrap();
            ep.send(other, "data", &cookie.to_bytes()).await.unwrap();
            let mut word = [0; 4];
            reader.read_exact(&mut word).await.unwrap();
            assert_eq!(&word, b"word");
            assert_eq!(receiver.pop().await.unwrap().as_deref(), Some(&b"entry"[..]));
            ep.send(other, "data", b"over").await.unwrap();
        } else {
            let mut jobs = inbox.senders.recv().await.unwrap().into_async();
            for number in 0..1000u64 {
                jobs.push_pieces(&[&number.to_le_bytes(), b"body"]).await.unwrap();
            }
            jobs.end().unwrap();
            let mut log = inbox.writers.recv().await.unwrap().into_async();
            log.write_all(&long).await.unwrap();
            log.close().unwrap();
            let mut cookie = async || {
                let bytes = inbox.messages.recv().await.unwrap();
                tautline::Cookie::from_bytes(bytes.as_slice().try_into().unwrap())
            };
            let mut writer = AsyncWriter::new(&ep, &cookie().await).await.unwrap();
            assert_eq!(writer.try_write(b"word").unwrap(), 4);
            let mut sender = AsyncSender::new(&ep, &cookie().await).await.unwrap();
            assert!(sender.try_push(b"entry").unwrap());
            assert_eq!(inbox.messages.recv().await.unwrap(), b"over");
        }
    });
}
