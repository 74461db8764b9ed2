//! Nodes that sleep whenever they wait: whatever they wait for wakes them, also if it comes from themselves.

use std::cell::RefCell;
use std::rc::Rc;

use crate::common::{config, join, pattern, run_over};
use tautline::group::{Form, MulticastConfig, Sum};
use tautline::memory::{Cookie, Rights};
use tautline::rpc::Rpc;
use tautline::{DeviceName, Endpoint, Job, Message, Waiting, queue, stream};

/// Longer than a frame, a window of messages, and the eager limit of tags.
const LONG: usize = 300_000;

/// N-6: a wait of any kind, for each rank of the job and for oneself, in which nobody polls.
fn every_kind_of_wait(job: Job) {
    let (rpc, mail) = (Rpc::new(), Rc::new(RefCell::new(Vec::new())));
    let inbox = mail.clone();
    let builder = Endpoint::builder().config(config(|config| config.waiting = Waiting::Park)).with(&rpc);
    let builder = builder.with(rpc.serve_bytes("echo", |_, bytes| async { Ok::<Vec<u8>, Vec<u8>>(bytes) }));
    let builder = builder.on("data", move |mut msg: Message| {
        let inbox = inbox.clone();
        async move {
            let bytes = msg.read_to_end().await?;
            inbox.borrow_mut().push(bytes);
            Ok(())
        }
    });
    let ep = join(builder, job);
    let (world, tags) = (ep.world().unwrap(), ep.tags(0));
    let (me, n) = (world.member(), world.size());
    let aperture = ep.aperture(LONG).unwrap();
    let exchange = |cookie: &Cookie| -> Vec<Cookie> {
        let mut all = vec![0; n * Cookie::LEN];
        world.all_gather(&cookie.to_bytes(), &mut all).unwrap();
        all.as_chunks().0.iter().map(Cookie::from_bytes).collect()
    };
    let cookies = exchange(&aperture.cookie(.., Rights::ALL).unwrap());
    for shift in 0..n {
        let (to, from) = ((me + shift) % n, (me + n - shift) % n);
        let what = format!("{me} of {n}, to {to}");
        // A message.
        let mut sending = ep.start_send(to as u32, "data", pattern(LONG, me)).unwrap();
        ep.run_until(|| !mail.borrow().is_empty()).unwrap();
        assert!(mail.borrow_mut().remove(0) == pattern(LONG, from), "{what}");
        sending.wait().unwrap();
        // A call.
        let request = pattern(LONG, 10 + me);
        assert!(rpc.call_raw(&ep, to as u32, "echo", &request).unwrap().wait().unwrap() == request, "{what}");
        // Waits for tags, memory and groups run no services: the caller's must be over.
        ep.send(to as u32, "data", b"served").unwrap();
        ep.run_until(|| !mail.borrow().is_empty()).unwrap();
        assert_eq!(mail.borrow_mut().remove(0), b"served", "{what}");
        // Messages with tags.
        let receive = tags.start_receive(from as u32, 1, vec![0; LONG]).unwrap();
        tags.start_send(to as u32, 1, pattern(LONG, 20 + me)).unwrap().wait().unwrap();
        assert!(receive.wait().unwrap().1 == pattern(LONG, 20 + from), "{what}");
        // Memory, and a tripwire.
        let mut wire = aperture.tripwire(LONG as u64 - 8..).arm().unwrap();
        world.barrier().unwrap();
        let remote = ep.remote(&cookies[to]);
        remote.put_with_completion(0, &pattern(LONG, 30 + me)).unwrap().wait().unwrap();
        wire.wait().unwrap();
        world.barrier().unwrap();
        assert!(remote.get(0, LONG).unwrap().wait().unwrap() == pattern(LONG, 30 + me), "{what}");
        // Whoever puts to one's own words comes before the next round.
        world.barrier().unwrap();
        assert_eq!(remote.fetch_add(0, 1).unwrap().wait().unwrap().to_le_bytes()[..], pattern(8, 30 + me));
        world.barrier().unwrap();
        // A queue and a stream.
        let (mut popped, cookie) = queue::pair(&ep, 4_000).unwrap();
        let mut pushed = queue::Sender::new(&ep, &exchange(&cookie)[to]).unwrap();
        pushed.push(&pattern(3_000, 40 + me)).unwrap();
        assert_eq!(popped.pop().unwrap(), Some(pattern(3_000, 40 + from)), "{what}");
        let (mut reader, cookie) = stream::pair(&ep, 10_000).unwrap();
        let mut writer = stream::Writer::new(&ep, &exchange(&cookie)[to]).unwrap();
        writer.write_all(&pattern(9_000, 50 + me)).unwrap();
        let mut read = vec![0; 9_000];
        let mut got = 0;
        while got < read.len() {
            got += reader.read(&mut read[got..]).unwrap();
        }
        assert!(read == pattern(9_000, 50 + from), "{what}");
    }
    // Collectives and multicasts.
    for root in 0..n {
        let mut bytes = if me == root { pattern(LONG, root) } else { vec![0; LONG] };
        world.broadcast(root, &mut bytes).unwrap();
        assert!(bytes == pattern(LONG, root), "{me} of {n}, from {root}");
        let mut sums = [me as u64, 1];
        world.all_reduce(&mut sums, Sum).unwrap();
        assert_eq!(sums, [(n * (n - 1) / 2) as u64, n as u64]);
    }
    let multicast = world.multicast(MulticastConfig { form: Form::Tree, window: 2_048, roots: 2 }).unwrap();
    let sending = multicast.start_send(pattern(20_000, me)).unwrap();
    for _ in 1..n {
        let mut buffer = vec![0; 20_000];
        let (root, len) = multicast.receive(None, &mut buffer).unwrap();
        assert!(len == 20_000 && buffer == pattern(20_000, root), "{me} of {n}, from {root}");
    }
    sending.wait().unwrap();
    world.barrier().unwrap();
    drop((multicast, world));
    ep.close().unwrap();
}

/// N-6: one rank, and several through shared memory and over datagrams.
#[test]
fn every_kind_of_wait_is_woken() {
    for (device, ranks) in [(DeviceName::Shm, 1), (DeviceName::Shm, 3), (DeviceName::Udp, 3)] {
        run_over(device, ranks, every_kind_of_wait);
    }
}
