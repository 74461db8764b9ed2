//! Calls that wait for tagged messages, multicasts and collectives when the process of a peer is killed and
//! closes nothing. Other calls: blocked.rs.
#![allow(clippy::print_stdout)]

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::launch::{Launcher, Process, again, is_member};
use crate::common::{Limit, config};
use rustix::process::{Pid, Signal, kill_process};
use tautline::group::{Form, Group, Multicast, MulticastConfig, Sum};
use tautline::memory::MulticastMemory;
use tautline::node::link::Death;
use tautline::tags::{ANY, Tags};
use tautline::{Aperture, Builder, DeviceName, Down, Endpoint, Error, Result};

/// The environment variable for the number of the call in [`CALLS`].
const CALL: &str = "TAUTLINE_TEST_CALL";
const PATIENCE: Duration = Duration::from_secs(30);
/// After this much silence a peer counts as dead.
const SILENCE: Duration = Duration::from_millis(500);

/// Killed while the others are blocked.
const VICTIM: u32 = 1;
/// Makes the calls that need every member, and is otherwise only there: the death is not that of the last
/// peer, which ends every wait.
const BYSTANDER: u32 = 2;

/// What a member has before the call.
struct Scene {
    ep: Endpoint,
    tags: Tags,
    world: Group,
    multicast: Multicast,
    repeated: Multicast,
    memory: MulticastMemory,
    _copy: Aperture,
}

/// Who makes a call.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    /// The survivor in the process of the test.
    One,
    /// The bystander, too, at which it fails as well.
    Both,
    /// The bystander, too, which need not wait for anybody.
    Other,
}
use By::{Both, One, Other};

type Call = (&'static str, By, fn(&Scene) -> Result<()>);

const CALLS: [Call; 43] = [
    ("receive", One, |it| it.tags.receive(VICTIM, 1, &mut vec![0; 8]).map(drop)),
    ("receive of any tag", One, |it| it.tags.receive(VICTIM, ANY, &mut vec![0; 8]).map(drop)),
    ("started receive", One, |it| it.tags.start_receive(VICTIM, 1, vec![0; 8])?.wait().map(drop)),
    ("receive of a long message", One, |it| it.tags.receive(VICTIM, LONG, &mut vec![0; 1 << 20]).map(drop)),
    ("receive of a long message from any", One, |it| {
        it.tags.receive(ANY, LONG, &mut vec![0; 1 << 20]).map(drop)
    }),
    ("claimed long message", One, |it| {
        it.tags.claim(VICTIM, LONG)?.receive(vec![0; 1 << 20])?.wait().map(drop)
    }),
    ("wait_any", One, |it| {
        let receive = it.tags.start_receive(VICTIM, 1, vec![0; 8])?;
        let other = it.tags.start_receive(BYSTANDER, 1, vec![0; 8])?;
        assert_eq!(it.tags.wait_any(&[&other, &receive])?, 1);
        receive.wait().map(drop)
    }),
    ("wait_all", One, |it| {
        let receives = [1, 2].map(|tag| it.tags.start_receive(VICTIM, tag, vec![0; 8]).unwrap());
        it.tags.wait_all(&[&receives[0], &receives[1]])?;
        for receive in receives {
            receive.wait().unwrap_err();
        }
        it.tags.receive(VICTIM, 1, &mut vec![0; 8]).map(drop)
    }),
    ("probe", One, |it| it.tags.probe(VICTIM, 1).map(drop)),
    ("probe with a limit", One, |it| it.tags.probe_within(VICTIM, 1, PATIENCE * 100).map(drop)),
    ("claim", One, |it| it.tags.claim(VICTIM, 1).map(drop)),
    ("synchronous send", One, |it| it.tags.send_synchronous(VICTIM, 3, &[1; 8])),
    ("started synchronous send", One, |it| {
        it.tags.start_send_synchronous(VICTIM, 3, vec![1; 8])?.wait().map(drop)
    }),
    ("long send", One, |it| it.tags.send(VICTIM, 3, &vec![1; 1 << 20])),
    ("started long send", One, |it| it.tags.start_send(VICTIM, 3, vec![1; 1 << 20])?.wait().map(drop)),
    ("sends that wait for room", One, |it| repeat(|| it.tags.send(VICTIM, 3, &[1; 1_000]))),
    ("receive in a handle", One, |it| it.ep.handle().tags(0).receive(VICTIM, 1, &mut vec![0; 8]).map(drop)),
    ("exchange", One, |it| it.ep.exchange(VICTIM, b"one").map(drop)),
    ("barrier of the job", Both, |it| it.ep.barrier()),
    ("receive in a group", One, |it| it.world.tags().receive(VICTIM, 1, &mut vec![0; 8]).map(drop)),
    ("barrier", Both, |it| it.world.barrier()),
    ("broadcast", Both, |it| it.world.broadcast(1, &mut [0; 8])),
    ("long broadcast", Both, |it| it.world.broadcast(1, &mut vec![0; 100_000])),
    ("gather", Other, |it| it.world.gather(0, &[1], &mut [0; 3])),
    ("scatter", Both, |it| it.world.scatter(1, &[0_u8; 3], &mut [0])),
    ("all_gather", Both, |it| it.world.all_gather(&[1], &mut [0; 3])),
    ("all_to_all", Both, |it| it.world.all_to_all(&[1, 2, 3], &mut [0; 3])),
    ("reduce", Other, |it| it.world.reduce(0, &mut [1_u32], Sum)),
    ("all_reduce", Both, |it| it.world.all_reduce(&mut [1_u32], Sum)),
    ("long all_reduce", Both, |it| it.world.all_reduce(&mut vec![1_u32; 50_000], Sum)),
    ("reduce_scatter", Both, |it| it.world.reduce_scatter(&[1; 3], &mut [0], &[1; 3], Sum)),
    ("duplicate", Both, |it| it.world.duplicate().map(drop)),
    ("split", Both, |it| it.world.split(Some(0), 0).map(drop)),
    ("multicast, receive", Both, |it| it.multicast.receive(1, &mut vec![0; 8]).map(drop)),
    ("multicast, receive from any", One, |it| it.multicast.receive(None, &mut vec![0; 8]).map(drop)),
    ("multicast, started receive", Both, |it| it.multicast.start_receive(1, vec![0; 8])?.wait().map(drop)),
    ("multicast, send", One, |it| repeat(|| it.multicast.send(&[1; 1_000]))),
    ("multicast, started send", One, |it| {
        let sends = [(); 4].map(|()| it.multicast.start_send(vec![1; 1_000]).unwrap());
        sends.into_iter().try_for_each(tautline::group::MulticastSend::wait)
    }),
    ("multicast, flush", One, |it| {
        it.multicast.start_send(vec![1; 8])?.wait()?;
        it.multicast.flush()
    }),
    ("repeated multicast, receive", Both, |it| it.repeated.receive(1, &mut vec![0; 8]).map(drop)),
    ("repeated multicast, send", One, |it| it.repeated.send(&vec![1; 1 << 20])),
    ("multicast memory", One, |it| {
        let mut put = it.memory.put(0, vec![1; 8])?;
        assert!(put.wait(2).is_err());
        match put.failed() {
            [(1, Error::PeerGone(rank, why))] => Err(Error::PeerGone(*rank, *why)),
            other => panic!("{other:?}"),
        }
    }),
    ("agreement", Both, |it| {
        assert_eq!(it.world.agree(5)?, (5, vec![1]));
        assert_eq!(it.world.shrink()?.size(), 2);
        match it.world.barrier() {
            // The members have agreed that it is gone; that is the reason if the decision came first.
            Err(Error::PeerGone(VICTIM, Down::Excluded)) => Err(Error::PeerGone(VICTIM, Down::Exited)),
            other => other,
        }
    }),
];

/// The tag of a long message of the victim. It has announced it, and sends it when somebody receives it.
const LONG: u32 = 77;

fn repeat(mut call: impl FnMut() -> Result<()>) -> Result<()> {
    (0..10_000_000).try_for_each(|_| call())
}

fn builder() -> Builder {
    Endpoint::builder().config(config(|c| {
        c.link.silence = SILENCE.as_nanos() as u64;
        // Long messages are sent by their sender, not read in its memory, which it need not be awake for.
        c.single_copy = Some(usize::MAX);
    }))
}

impl Scene {
    /// Makes what needs every member.
    fn new(ep: Endpoint) -> Scene {
        let world = ep.world().unwrap();
        let config = MulticastConfig { window: 2048, ..MulticastConfig::default() };
        let multicast = world.multicast(config).unwrap();
        let repeated = MulticastConfig { form: Form::RepeatedSend, ..MulticastConfig::default() };
        let repeated = world.multicast(repeated).unwrap();
        let copy = ep.aperture(64).unwrap();
        let memory = world.multicast_memory(&copy).unwrap();
        // By now the group would share memory if its members can.
        (0..6).for_each(|_| world.barrier().unwrap());
        ep.barrier().unwrap();
        Scene { tags: ep.tags(0), ep, world, multicast, repeated, memory, _copy: copy }
    }
}

/// Not a test by itself: the victim and the bystander of [`dies`].
#[test]
fn blocked_member() {
    if !is_member("blocked_deaths::blocked_member") {
        return;
    }
    let (what, by, call) = CALLS[std::env::var(CALL).unwrap().parse::<usize>().unwrap()];
    let scene = Scene::new(builder().join().unwrap());
    let announced =
        (scene.ep.rank() == VICTIM).then(|| scene.tags.start_send(0, LONG, vec![1; 1 << 20]).unwrap());
    println!("@ready");
    if scene.ep.rank() == BYSTANDER && by != One {
        let result = call(&scene);
        if by == Both || result.is_err() {
            check(what, &result);
        }
        println!("@ended");
    }
    loop {
        // The survivor may leave meanwhile.
        let _ = scene.ep.extract(usize::MAX);
        let _ = scene.ep.wait(None);
        assert!(announced.is_none() || scene.ep.rank() == VICTIM);
    }
}

/// The call has failed because the victim has died.
#[track_caller]
fn check(what: &str, result: &Result<()>) {
    let Err(Error::PeerGone(VICTIM, Down::Exited | Down::Died(Death::Silence))) = result else {
        panic!("{what}: {result:?}")
    };
}

/// Stops a process, and returns when none of its threads runs any more.
fn stop(process: &Process) {
    process.signal(Signal::STOP);
    let threads = format!("/proc/{}/task", process.id().as_raw_nonzero());
    let is_stopped = |stat: std::io::Result<String>| stat.is_ok_and(|stat| stat.contains(") T "));
    while !std::fs::read_dir(&threads)
        .unwrap()
        .all(|thread| is_stopped(std::fs::read_to_string(thread.unwrap().path().join("stat"))))
    {
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn kill_later(victim: Pid, killed: &AtomicBool) {
    // In most runs the survivor is blocked by then. If it is not, the call fails all the same.
    std::thread::sleep(Duration::from_millis(30));
    killed.store(true, Ordering::SeqCst);
    kill_process(victim, Signal::KILL).unwrap();
}

/// For each call: the victim stops, so that nothing that needs it can end, and is killed while the survivors
/// are in the call.
fn dies(device: DeviceName) {
    for (number, (what, by, call)) in CALLS.into_iter().enumerate() {
        let _limit = Limit::seconds(60);
        println!("{what}, {device:?}");
        let launcher = Launcher::over(device, 3);
        let start = |rank| {
            let mut command = again("blocked_deaths::blocked_member");
            command.env(CALL, number.to_string());
            launcher.start(rank, command)
        };
        let (mut victim, mut bystander) = (start(VICTIM), start(BYSTANDER));
        let scene = Scene::new(builder().join_job(launcher.job(0)).unwrap());
        for member in [&mut victim, &mut bystander] {
            member.expect("@ready", PATIENCE, |line| (line == "@ready").then_some(()));
        }
        // What the victim has sent so far is here.
        scene.tags.probe(VICTIM, LONG).unwrap();
        stop(&victim);
        let (killed, pid) = (AtomicBool::new(false), victim.id());
        std::thread::scope(|scope| {
            scope.spawn(|| kill_later(pid, &killed));
            let result = call(&scene);
            // A stopped peer on this host is not dead. Over datagrams it is, after the bound.
            let too_early = device == DeviceName::Shm && !killed.load(Ordering::SeqCst);
            assert!(!too_early, "{what}: before the peer died: {result:?}");
            check(what, &result);
        });
        if by != One {
            bystander.expect("@ended", PATIENCE, |line| (line == "@ended").then_some(()));
        }
    }
}

/// N-8, S-6, E-10, R-8, R-10, G-6: no call outlasts the process of a peer on this host.
#[test]
fn a_process_dies_through_shared_memory() {
    dies(DeviceName::Shm);
}

/// N-8, L-15, E-10, R-8, R-10, G-6: the same over datagrams.
#[test]
fn a_process_dies_over_udp() {
    dies(DeviceName::Udp);
}
