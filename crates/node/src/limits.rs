//! Every table, queue and loop of a node has its maximum here, with the reason.

/// Bytes of the longest message for a handler of short messages: what fits the largest frame.
pub const MAX_SHORT: usize = 65_507;
/// Ranks of a job. The low 16 bits of a peer's number are its rank.
pub const MAX_PEERS: usize = 1 << 16;
/// Addresses of one member (J-28).
pub const MAX_ADDRESSES: usize = 8;
/// Hellos to one address of a peer without an answer before the next one is tried (J-28).
pub const HELLOS_TO_ADDRESS: u8 = 3;
/// Lanes elsewhere that one lane may have met. Channel numbers keep the peer's place in their low 16 bits.
pub const MAX_LANE_PEERS: usize = (1 << 16) - 1;
/// Addresses that one lane may send to: members may have several, and the peers' lanes may have been closed
/// and opened many times.
pub const MAX_ROUTES: usize = 1 << 16;
/// Addresses of ranks that one lane refuses because it was not told of them (J-23); others get no answer.
pub const MAX_REFUSED: usize = 1 << 8;
/// Lanes of one node. All watch one listener, and the kernel lets 500 sets of descriptors watch another.
pub const MAX_LANES: usize = 1 << 8;
/// The lane of the protocol among members, which programs do not get (N-29).
pub const MEMBERS_LANE: u16 = MAX_LANES as u16 - 1;
/// Names of handlers that one side may announce.
pub const MAX_HANDLERS: usize = 1 << 10;
/// Bytes of a handler's name.
pub const MAX_NAME: usize = 200;
/// Receive buffers of a batch, 64 KiB each. One poll fills them once at most, so that a flood does not starve
/// the program (N-3).
pub const BATCH_BUFFERS: usize = 8;
/// Events that wait for the program; the oldest are dropped and counted (T-10).
pub const MAX_EVENTS: usize = 4096;
/// Slots that may wait unsent for one peer before senders are held back.
pub const TX_QUEUE: usize = 128;
/// Slots of the arena that only acknowledgements and other control frames may use.
pub const TX_RESERVE: usize = 16;
/// Slots being put together from fragments, per peer. One place is for the slot that is due (L-37).
pub const MAX_REASSEMBLIES: usize = 64;
/// Bytes of the longest job description.
pub const MAX_JOB_FILE: usize = 1 << 23;

/// Handlers that may be under way at once; further messages for `async` handlers are dropped, and reported as
/// failures.
pub const MAX_RUNNING: usize = 1 << 16;
/// Messages of a pair, in one direction, that are begun and not ended (M-10).
pub const MAX_BEGUN: u32 = 1 << 16;

/// Bytes of the longest message that is kept whole; [`crate::Config::max_whole`] is another (M-19).
pub const MAX_WHOLE: u64 = 1 << 30;
/// Bytes of unfinished messages that are kept for one peer; [`crate::Config::max_held`] is another (M-19).
pub const MAX_HELD: u64 = 1 << 31;

/// Bytes that [`crate::Config::loan_pool`] may be: peers map that much, and no more than twice that (S-34).
pub const MAX_LOAN_POOL: u64 = 32 << 30;

/// Connections to the listener that have not greeted yet, and those that wait for another lane (S-17).
pub const MAX_INCOMING: usize = 64;
/// Nanoseconds between two polls for processes on this host that died or dial.
pub const LOCAL_POLL_NS: u64 = 2_000_000;
/// Nanoseconds for which a peer on this host is not dialled that could not share memory.
pub const REJECTED: u64 = 1_000_000_000;
/// Nanoseconds after which something is tried again for which descriptors or memory were lacking (S-33).
pub const SHORTAGE_PAUSE: u64 = 100_000_000;

/// Apertures of one node.
pub const MAX_APERTURES: usize = 1 << 16;
/// Cookies of one node that are not revoked.
pub const MAX_COOKIES: usize = 1 << 20;
/// Cookies that one peer may have shown on a channel; the oldest are forgotten.
pub const MAX_HANDLES: usize = 1 << 12;
/// Tripwires of one node.
pub const MAX_WIRES: usize = 1 << 20;
/// Tripsets of one node.
pub const MAX_SETS: usize = 1 << 16;
/// Operations on other nodes' memory whose results nobody has taken.
pub const MAX_OPERATIONS: usize = 1 << 16;
/// Requests that may wait for one peer before the program has to wait.
pub const MAX_QUEUED: usize = 1 << 12;
/// Requests of one channel that the owner has not acknowledged; they bound the answers that it owes.
pub const MAX_UNANSWERED: u32 = 1 << 12;
/// An acknowledgement is requested with every such number of requests at the latest.
pub const ASK_EVERY: u32 = 1 << 9;
/// Notices and refusals that wait for the program; further ones are dropped and counted (T-9).
pub const MAX_NOTICES: usize = 1 << 16;
/// Bytes of messages with tags that one node may send another before they are matched (E-5).
pub const TAG_CREDIT: u64 = 1 << 20;
/// What each of these messages is charged beside its bytes (E-5).
pub const TAG_OVERHEAD: u64 = 64;
/// Envelopes of messages with tags that one node may send another before they are matched (E-8).
pub const MAX_ENVELOPES: u32 = 1 << 20;
/// Bytes of a multicast, which a node stores whole if nobody receives it.
pub const MAX_MULTICAST: u64 = 64 << 20;
/// Sends, and receives, of messages with tags that are under way, or whose results nobody has taken.
pub const MAX_TAG_REQUESTS: usize = 1 << 22;
/// Out-of-band messages that wait for the program.
pub const MAX_OUT_OF_BAND_WAITING: usize = 1 << 12;
/// Bytes of address space that must be left when a process joins; a node of the default configuration takes
/// fewer.
pub const JOIN_SPACE: usize = 20 << 20;

const _: () = assert!(MAX_SHORT as u64 <= MAX_WHOLE && MAX_WHOLE <= MAX_HELD);
const _: () = assert!(2 * ASK_EVERY <= MAX_UNANSWERED);
const _: () =
    assert!(MAX_PEERS <= crate::Address::RANKS as usize && MAX_LANE_PEERS <= crate::PeerTable::<()>::MAX);
const _: () = assert!(MAX_HANDLERS < 1 << 15 && MAX_NAME < 256);
