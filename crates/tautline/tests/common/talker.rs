//! A member that talks with everyone all the time, checks what it hears, and reports on its standard output. Its messages
//! carry the generation of the process and the incarnation they are meant for, and are numbered from the channel's start.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tautline::{Config, Endpoint, Event, Message, Outgoing, Rank};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::launch::now;
use super::pattern;

/// Which process of this rank it is, counted by the launcher.
pub const GENERATION: &str = "TAUTLINE_TEST_GENERATION";

#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Header {
    generation: u64,
    incarnation: u64,
    number: u64,
}

const HEADER: usize = size_of::<Header>();

/// What has been heard of one peer.
#[derive(Default)]
struct Heard {
    last: Option<Header>,
    whole: u64,
}

type Ears = Rc<RefCell<HashMap<Rank, Heard>>>;

/// A message to one peer, as far as it has gone.
struct Going {
    out: Outgoing,
    bytes: Vec<u8>,
    at: usize,
}

/// What is said to one peer.
#[derive(Default)]
struct Mouth {
    incarnation: u32,
    up: bool,
    number: u64,
    going: Option<Going>,
}

/// Talks until it is killed.
pub fn talk(config: Config) {
    let generation = std::env::var(GENERATION).unwrap().parse().unwrap();
    let ears = Ears::default();
    let hear = ears.clone();
    let builder =
        Endpoint::builder().config(config).on("data", move |msg: Message| listen(msg, hear.clone()));
    let ep = builder.join().unwrap();
    let peers: Vec<Rank> = (0..ep.size()).filter(|r| *r != ep.rank()).collect();
    let mut mouths: HashMap<Rank, Mouth> = peers.iter().map(|p| (*p, Mouth::default())).collect();
    peers.iter().for_each(|p| ep.connect(*p).unwrap());
    let (mut reported, said) = (Instant::now(), Cell::new(0u64));
    loop {
        let took = ep.extract(usize::MAX).unwrap();
        while let Some(event) = ep.poll_event() {
            note(&ep, &event, &mut mouths, &ears);
        }
        check_failures(&ep);
        let before = said.get();
        for (peer, mouth) in &mut mouths {
            say(&ep, *peer, generation, mouth, &said);
        }
        if reported.elapsed() > Duration::from_millis(20) {
            reported = Instant::now();
            let heard = ears.borrow();
            let counts: Vec<_> =
                (0..ep.size()).map(|r| heard.get(&r).map_or(0, |h| h.whole).to_string()).collect();
            println!("@heard {}", counts.join(" "));
        }
        if took == 0 && said.get() == before {
            ep.wait(Some(Duration::from_millis(2))).unwrap();
        }
    }
}

async fn listen(mut msg: Message, ears: Ears) -> tautline::Result<()> {
    let header: Header = msg.read().await?;
    let from = msg.from();
    {
        let mut ears = ears.borrow_mut();
        let heard = ears.entry(from).or_default();
        let expected = match heard.last {
            Some(last) if (last.generation, last.incarnation) == (header.generation, header.incarnation) => {
                last.number + 1
            }
            Some(last) => {
                let grown = (header.generation, header.incarnation) > (last.generation, last.incarnation);
                assert!(grown, "from {from}: {header:?} after {last:?}");
                0
            }
            None => 0,
        };
        assert_eq!(header.number, expected, "from {from}: {header:?} after {:?}", heard.last);
        heard.last = Some(header);
    }
    let bytes = msg.read_to_end().await?;
    assert!(bytes == pattern(bytes.len(), header.number as usize), "from {from}: {header:?} is altered");
    ears.borrow_mut().entry(from).or_default().whole += 1;
    Ok(())
}

fn note(ep: &Endpoint, event: &Event, mouths: &mut HashMap<Rank, Mouth>, ears: &Ears) {
    match event {
        Event::PeerUp { peer, incarnation } => {
            let mouth = mouths.get_mut(peer).unwrap();
            *mouth = Mouth { incarnation: *incarnation, up: true, ..Mouth::default() };
            println!("@up {peer} {incarnation} {}", now());
        }
        Event::PeerDown { peer, incarnation, why } => {
            println!("@down {peer} {incarnation} {} {why}", now());
            let mouth = mouths.get_mut(peer).unwrap();
            mouth.up = false;
            mouth.going = None;
            ears.borrow_mut().entry(*peer).or_default().whole = 0;
            ep.connect(*peer).unwrap();
        }
        _ => {}
    }
}

/// Only a message that its sender could not finish may fail.
fn check_failures(ep: &Endpoint) {
    while let Some(failure) = ep.poll_failure() {
        assert!(!failure.panicked && failure.reason.contains("is gone"), "{failure:?}");
    }
}

/// Adds to the message under way, and begins the next; never waits.
fn say(ep: &Endpoint, peer: Rank, generation: u64, mouth: &mut Mouth, said: &Cell<u64>) {
    for _ in 0..8 {
        if !mouth.up {
            return;
        }
        if mouth.going.is_none() {
            let header = Header { generation, incarnation: mouth.incarnation.into(), number: mouth.number };
            let size = [0, 40, 1000, 5000, 300, 60_000, 10][mouth.number as usize % 7];
            let bytes = [header.as_bytes(), &pattern(size, header.number as usize)].concat();
            match ep.try_begin(peer, "data", (HEADER + size) as u64) {
                Ok(out) => mouth.going = Some(Going { out, bytes, at: 0 }),
                Err(_) => return,
            }
            mouth.number += 1;
        }
        let going = mouth.going.as_mut().expect("there is one now");
        match going.out.try_piece(&going.bytes[going.at..]) {
            Ok(added) => going.at += added,
            Err(_) => return,
        }
        if going.at == going.bytes.len() {
            let _ = mouth.going.take().expect("there is one").out.end();
            said.set(said.get() + 1);
        }
    }
}
