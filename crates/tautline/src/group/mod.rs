//! Groups of ranks, and calls that all members of a group make together.
//!
//! The first group is that of all ranks, [`crate::Endpoint::world`]. Others are made of it by
//! [`Group::split`] and [`Group::duplicate`], or of a list of ranks by [`Group::create`]. Messages of
//! different groups never meet: each has contexts of its own, also for the tagged messages of the program
//! ([`Group::tags`]).
//!
//! Collectives exist in three forms. Methods such as [`Group::all_reduce`] take slices and block.
//! [`Group::start`] takes a [`Call`] and a buffer and does not block; several collectives of a group may be
//! under way at once. [`Group::prepare`] makes a collective that can be started many times. All members must
//! call the collectives of a group in the same order, whatever the form.
//!
//! If a member is lost during a collective, each other member gets the right result or an error, also members
//! that have no channel to the one that was lost. From then on collectives of the group fail, while tagged
//! messages between the others go on until a member revokes the group ([`Group::revoke`]). Those that are
//! left can agree on what to do ([`Group::agree`]) and make a group of themselves ([`Group::shrink`]); the
//! example `survive` shows how. A call that is refused for its arguments has not been made: the member may
//! call again, and the group is as it was.
//!
//! Members are numbered from 0 in each group ([`Group::member`]), and collectives name roots and neighbours
//! by these numbers. Tagged messages name ranks; [`Group::ranks`] has the rank of each member. An operator
//! that is a closure is taken to be associative, and not to be commutative.
//!
//! ```no_run
//! use tautline::Endpoint;
//! use tautline::group::Sum;
//!
//! fn main() -> tautline::Result<()> {
//!     let ep = Endpoint::builder().join()?;
//!     let world = ep.world()?;
//!     let mut values = [f64::from(ep.rank()), 1.0];
//!     world.all_reduce(&mut values, Sum)?;
//!     println!("{} ranks, whose numbers add up to {}", values[1], values[0]);
//!     ep.close()
//! }
//! ```

mod agreement;
mod algorithms;
mod call;
mod choice;
mod collective;
mod context;
mod execution;
mod failure;
mod hosts_op;
mod multicast;
mod placement;
mod plan;
mod plans;
mod reduction;
mod run;
mod shared_op;
mod sharing;
mod split;
#[cfg(test)]
mod tests;
mod typed;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

pub use call::Call;
pub use choice::{Algorithm, CHOICES, Choice, Choices, DEFAULT_CHOICES, Kind};
pub use collective::{Collective, Persistent};
pub(crate) use context::Groups;
pub use context::{CHOSEN_IDS, FIRST_CONTEXT};
pub use multicast::{Form, Multicast, MulticastConfig, MulticastReceive, MulticastSend};
pub use reduction::Reduction;
pub use split::Splitting;
pub use tautline_node::{MAX_GROUP_BYTES as MAX_SHARED_BYTES, MAX_GROUP_MEMBERS as MAX_SHARED_MEMBERS};
pub use typed::{Item, Max, Min, Operator, Product, Sum};

use crate::Rank;
use crate::error::{Error, Result};
use crate::tags::{RequestId, Tags};
use collective::Ticket;
use context::{Id, Purpose};
use execution::{Bytes, Execution};
use failure::Failures;
use plan::Plan;
use plans::Plans;
use shared_op::SharedOp;
use sharing::{Exchange, Numbers, Sharing};

/// A group of ranks. `Send`, `Sync` and cheap to clone; clones are the same group. It is freed when the last
/// clone is dropped, and all collectives of it have ended.
///
/// Its members are numbered from zero. Several threads may use a group, but must call its collectives in an
/// order that is the same at all members.
#[derive(Clone, Debug)]
pub struct Group(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    tags: Tags,
    collective: Tags,
    notices: Tags,
    /// The number of each member in the job.
    members: Arc<[Rank]>,
    me: usize,
    id: Id,
    /// The id is this rank's, which gives it to another group later.
    own_id: bool,
    /// Collectives that were started.
    next: AtomicU64,
    /// Persistent collectives that were made.
    next_persistent: AtomicU32,
    /// Agreements so far.
    agreements: AtomicU32,
    choices: Choices,
    plans: Plans,
    sharing: Sharing,
    failures: Failures,
    /// Members were excluded by an agreement.
    fenced: AtomicBool,
}

impl Inner {
    fn groups(&self) -> &Groups {
        groups(&self.tags)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let revoked = self.tags.node().tagged().remove_group(self.id.context(Purpose::PointToPoint));
        // After a failure messages of the group may still be on their way, and fences stay.
        let fenced = self.fenced.load(Ordering::Relaxed);
        if self.own_id && !fenced && !revoked && !self.failures.any() {
            self.groups().return_id(self.id);
        }
    }
}

fn groups(tags: &Tags) -> &Groups {
    tags.shared().style().expect("every endpoint has groups")
}

fn new(tags: &Tags, members: Vec<Rank>, id: Id, choices: Choices) -> Result<Inner> {
    let own = tags.node().number();
    let me = members.iter().position(|rank| *rank == own);
    let me = me.ok_or(Error::Violation("a group without this rank"))?;
    let of = |purpose| tags.with_context(id.context(purpose));
    let inner = Inner {
        tags: of(Purpose::PointToPoint),
        collective: of(Purpose::Collective),
        notices: of(Purpose::Notices),
        members: members.into(),
        me,
        id,
        own_id: false,
        next: AtomicU64::new(0),
        next_persistent: AtomicU32::new(0),
        agreements: AtomicU32::new(0),
        choices: choices.clone(),
        plans: Plans::default(),
        sharing: Sharing::new(choices),
        failures: Failures::new(),
        fenced: AtomicBool::new(false),
    };
    if inner.members.len() > 1 {
        inner.listen()?;
    }
    Ok(inner)
}

/// An error unless the ranks are of the job, and different.
fn check_members(tags: &Tags, members: &[Rank]) -> Result<()> {
    let (lane, size) = (tags.node().lane(), tags.node().size());
    if !members.contains(&tags.node().number()) {
        return Err(Error::other("this rank is not a member of the group that it creates"));
    }
    let mut sorted = members.to_vec();
    sorted.sort_unstable();
    for (at, rank) in sorted.iter().enumerate() {
        let address = crate::Address::from(*rank);
        if address.rank >= size {
            let last = size - 1;
            return Err(Error::other(format!(
                "a group here cannot have {address} as a member: the job had ranks 0 to {last} when this process \
                 joined"
            )));
        }
        if address.lane != lane {
            return Err(Error::other(format!("a group of lane {lane} cannot have {address} as a member")));
        }
        if at > 0 && sorted[at - 1] == *rank {
            return Err(Error::other(format!("{address} is in the list of members twice")));
        }
    }
    Ok(())
}

impl Group {
    /// The group of all ranks of the job, in order. All calls return the same group.
    pub fn world(tags: &Tags) -> Result<Group> {
        let inner = groups(tags).world(|| {
            let lane = tags.node().lane();
            let members = (0..tags.node().size()).map(|rank| crate::Address::new(rank, lane).into());
            new(tags, members.collect(), Id::WORLD, Choices::from_environment()?)
        })?;
        Ok(Group(inner))
    }

    /// Creates a group of some ranks, in the order of the list, which is the same at all members. Only they
    /// call this. `tag` tells creations apart that happen at the same time, between the same ranks.
    ///
    /// The first member sends the others the group's id, and they wait for it.
    pub fn create(tags: &Tags, members: &[Rank], tag: u32) -> Result<Group> {
        Group::create_with(tags, Id::WORLD, members, tag)
    }

    /// As [`Group::create`], for members of this group: creations through different groups never meet,
    /// whatever their tags.
    pub fn create_within(&self, members: &[Rank], tag: u32) -> Result<Group> {
        Group::create_with(&self.0.tags, self.0.id, members, tag)
    }

    fn create_with(tags: &Tags, through: Id, members: &[Rank], tag: u32) -> Result<Group> {
        check_members(tags, members)?;
        let first = *members.first().ok_or_else(|| Error::other("a group has at least one member"))?;
        let (own, size) = (tags.node().number(), tags.node().size());
        let creation = tags.with_context(through.context(Purpose::Creation));
        let id = if own == first {
            let id = groups(tags).give_id(own, size)?;
            for member in &members[1..] {
                creation.send_buffered(*member, tag, &id.to_bytes())?;
            }
            id
        } else {
            let receive = creation.start_receive(first, tag, vec![0; 4])?;
            groups(tags).wait_for(tags, &receive)?;
            Id::from_bytes(&receive.wait()?.1, first, size)?
        };
        Group::agreed(tags, members.to_vec(), id, Choices::from_environment()?)
    }

    /// A group of some ranks with an id that the program has chosen, below [`CHOSEN_IDS`]. Nothing is sent:
    /// all members call this with the same list and id, and with no other group of that id at the same time.
    pub fn with_id(tags: &Tags, members: &[Rank], id: u32) -> Result<Group> {
        check_members(tags, members)?;
        let choices = Choices::from_environment()?;
        Ok(Group(Arc::new(new(tags, members.to_vec(), Id::chosen(id)?, choices)?)))
    }

    /// A group whose members have agreed on its id, which is one of its first member's.
    fn agreed(tags: &Tags, members: Vec<Rank>, id: Id, choices: Choices) -> Result<Group> {
        let mut inner = new(tags, members, id, choices)?;
        inner.own_id = inner.me == 0;
        Ok(Group(Arc::new(inner)))
    }

    /// The number of members.
    pub fn size(&self) -> usize {
        self.0.members.len()
    }

    /// This rank's number in the group.
    pub fn member(&self) -> usize {
        self.0.me
    }

    /// The members' ranks, in order.
    pub fn ranks(&self) -> &[Rank] {
        &self.0.members
    }

    /// Tagged messages of a context of this group's own. Sources and destinations are ranks of the job.
    pub fn tags(&self) -> &Tags {
        &self.0.tags
    }

    /// The table that chooses algorithms.
    pub fn choices(&self) -> &Choices {
        &self.0.choices
    }

    /// Splits the group. Members with the same colour make a new group, in the order of their keys and, for
    /// equal keys, of their numbers here. Members without a colour are in none. A collective.
    pub fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Group>> {
        self.start_split(colour, key)?.wait()
    }

    /// As [`Group::split`], and does not block.
    pub fn start_split(&self, colour: Option<u32>, key: i64) -> Result<Splitting> {
        Splitting::start(self, colour, key, self.0.choices.clone())
    }

    /// A group of some members, given by their numbers here, in the order of the list. All members of this
    /// group call it, those of the new group with the same list; others get none. A collective.
    pub fn subset(&self, members: &[usize]) -> Result<Option<Group>> {
        let position = members.iter().position(|member| *member == self.0.me);
        let colour = position.and(members.first()).map(|first| *first as u32);
        self.split(colour, position.unwrap_or_default() as i64)
    }

    /// A group of the same members with contexts of its own. A collective. [`Group::start_split`] with the
    /// same colour everywhere, and this member's number as the key, does the same without blocking.
    pub fn duplicate(&self) -> Result<Group> {
        self.with_choices(self.0.choices.clone())
    }

    /// As [`Group::duplicate`], with another table of algorithms, the same at all members.
    pub fn with_choices(&self, choices: Choices) -> Result<Group> {
        let group = Splitting::start(self, Some(0), self.0.me as i64, choices)?.wait()?;
        group.ok_or(Error::Violation("a member that is not in its group's duplicate"))
    }

    /// Numbers a collective among those that go through shared memory, if it may.
    #[inline]
    fn numbers(&self, plan: &Plan) -> Numbers {
        let could_share = plan.shared.is_some() || plan.hosts.is_some();
        let may_share = could_share && !self.0.tags.node().is_virtual();
        if may_share { self.0.sharing.numbers(plan) } else { Numbers::default() }
    }

    /// Numbers a collective.
    fn ticket(&self) -> Ticket {
        Ticket::once(self.0.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Numbers a collective that has its own memory.
    fn number(&self, run: &mut Execution) -> Ticket {
        run.share(self.numbers(run.plan()));
        self.ticket()
    }

    /// Whether the members share memory for short collectives: all of them, if they are on one host, or those
    /// of each host. None if that has not been decided; they agree on it when the group has been used for a
    /// few collectives.
    pub fn shares_memory(&self) -> Option<bool> {
        self.0.sharing.decision().map(|_| self.0.sharing.any_board().is_some())
    }

    /// How many hosts the members are on, by what they have told each other; none if that has not been
    /// decided, or they do not share memory.
    pub fn hosts(&self) -> Option<usize> {
        self.0.sharing.any_board().map(|board| board.placement.hosts())
    }

    /// The algorithm that carries out a call, as far as the members know by now where they run: until then
    /// they exchange messages. None if the collective has only one. Prepared collectives always use messages.
    ///
    /// [`crate::Event::Algorithm`] tells the same when an algorithm is first used.
    pub fn algorithm(&self, call: &Call) -> Option<Algorithm> {
        let (members, choices) = (self.size(), &self.0.choices);
        if call.check(self.0.me, members).is_err() {
            return None;
        }
        let plan = call.plan(self.0.me, members, choices);
        self.chosen(call, &plan, self.0.sharing.exchange())
    }

    fn chosen(&self, call: &Call, plan: &Plan, exchange: Exchange) -> Option<Algorithm> {
        match exchange {
            Exchange::Memory if plan.shared.is_some() => Some(Algorithm::Shared),
            Exchange::Hosts if plan.hosts.is_some() => Some(Algorithm::Hosts),
            _ => call.by_messages(self.size(), &self.0.choices),
        }
    }

    /// The plan of a call, whose algorithm the program is told (G-24).
    #[inline]
    fn plan_of(&self, call: &Call) -> Result<Arc<Plan>> {
        self.plan_by(call, self.0.sharing.exchange())
    }

    #[inline]
    fn plan_by(&self, call: &Call, exchange: Exchange) -> Result<Arc<Plan>> {
        let Inner { plans, me, choices, .. } = &*self.0;
        let (plan, is_news) = plans.get(call, (*me, self.size()), (choices, exchange))?;
        if is_news {
            self.report(call, &plan, exchange);
        }
        Ok(plan)
    }

    #[cold]
    fn report(&self, call: &Call, plan: &Plan, exchange: Exchange) {
        let members = self.size();
        if let (Some((kind, bytes)), Some(chosen)) = (call.choice(members), self.chosen(call, plan, exchange))
            && members > 1
            && self.0.groups().is_news(kind, chosen, members)
        {
            let (collective, algorithm) = (kind.name(), chosen.name());
            let event = crate::Event::Algorithm { collective, algorithm, members, bytes };
            // A closed endpoint fails the call by itself.
            let _ = self.0.tags.node().tagged().report(event);
        }
    }

    /// The plan of a call, and the reduction that it uses.
    fn plan(&self, call: &Call) -> Result<(Arc<Plan>, Option<Reduction>)> {
        Ok((self.plan_of(call)?, call.reduction().cloned()))
    }

    /// Carries out a collective with this member's input, and returns its output.
    pub fn run(&self, call: &Call, input: &[u8]) -> Result<Vec<u8>> {
        let (plan, reduction) = self.plan(call)?;
        if plan.shared.is_some() || plan.hosts.is_some() {
            let mut output = vec![0; plan.output_len()];
            self.carry_out(call, plan, Bytes::Apart(input, &mut output))?;
            return Ok(output);
        }
        let mut run = Execution::begun((plan, reduction), input, (None, None))?;
        self.0.drive(self.ticket(), &mut run)?;
        Ok(run.take_result())
    }

    /// As [`Group::run`], with an output of the right length. That of the root of a broadcast may be empty:
    /// it would be the input.
    pub fn run_into(&self, call: &Call, input: &[u8], output: &mut [u8]) -> Result<()> {
        self.carry_out(call, self.plan_of(call)?, Bytes::Apart(input, output))
    }

    /// As [`Group::run`], for a collective whose output is as long as its input, and takes its place.
    pub fn run_in_place(&self, call: &Call, values: &mut [u8]) -> Result<()> {
        self.carry_out(call, self.plan_of(call)?, Bytes::InPlace(values))
    }

    /// Carries out a collective in the memory of the program. What goes through shared memory without a long
    /// wait needs no memory of its own.
    fn carry_out(&self, call: &Call, plan: Arc<Plan>, mut bytes: Bytes<'_>) -> Result<()> {
        let is_root = matches!(call, Call::Broadcast { root, .. } if *root == self.0.me);
        bytes.check(&plan, is_root)?;
        let Numbers { memory, hosts } = self.numbers(&plan);
        let mut op = memory.map(SharedOp::new);
        let ticket = self.ticket();
        if let Some(op) = &mut op
            && self.0.drive_in_place(ticket, op, (&plan, call.reduction()), &mut bytes)?
        {
            return Ok(());
        }
        let mut run = Execution::begun((plan, call.reduction().cloned()), bytes.input(), (op, hosts))?;
        self.0.drive(ticket, &mut run)?;
        if !is_root || !bytes.output().is_empty() {
            run.copy_output(bytes.output());
        }
        Ok(())
    }

    /// Starts a collective with this member's input.
    pub fn start(&self, call: &Call, input: Vec<u8>) -> Result<Collective> {
        let mut run = Execution::new(self.plan(call)?, input)?;
        Ok(Collective::start(self, self.number(&mut run), run))
    }

    /// Prepares a collective that can be started many times. All members prepare their collectives in the
    /// same order, and may start them in any order.
    pub fn prepare(&self, call: &Call) -> Result<Persistent> {
        let plan = (self.plan_by(call, Exchange::Messages)?, call.reduction().cloned());
        let number = self.0.next_persistent.fetch_add(1, Ordering::Relaxed);
        Ok(Persistent::new(self, plan, Ticket::persistent(number)))
    }

    /// Makes progress with all collectives that this rank has started, of all groups. Never blocks.
    pub fn progress(&self) {
        self.0.groups().advance_all(None, &mut Vec::new());
    }

    /// As [`Group::progress`], and appends what those collectives wait for, for [`Tags::wait_ids`].
    pub fn progress_and_waits(&self, waits: &mut Vec<RequestId>) {
        self.0.groups().advance_all(None, waits);
    }
}
