//! Inter-communicators: making them, and making others of them. Both sides are in one group, whose first
//! members are those of the side with the lowest first rank, so that all agree on the order.

use std::ffi::c_int;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use tautline::group::{Call, Group};

use super::point_to_point::{check_tag, rank_in};
use super::{Ptr, communicators, groups, string};
use crate::attribute::Attributes;
use crate::constants as c;
use crate::error::{Error, Result, ensure};
use crate::foreign::Foreign;
use crate::group::Members;
use crate::handle::{self, Comm, Errhandler, Info};
use crate::network::{failure, network};
use crate::objects::{self, Communicator, lock};
use crate::waiting;

/// The other side of an inter-communicator.
fn remote(comm: &Communicator) -> Result<&Arc<Members>> {
    comm.remote.as_ref().ok_or_else(|| Error::new(c::ERR_COMM, "this is not an inter-communicator"))
}

/// Fails for an inter-communicator.
pub(super) fn ensure_intra(comm: &Communicator) -> Result<()> {
    ensure(comm.remote.is_none(), c::ERR_COMM, || "an inter-communicator is not allowed here".to_owned())
}

/// `MPI_Comm_test_inter`.
pub unsafe fn comm_test_inter(comm: Comm, flag: Foreign<c_int>) -> Result<()> {
    let inter = objects::comm(comm)?.remote.is_some();
    // SAFETY: the arguments are as the standard says.
    unsafe { flag.set(0, c_int::from(inter)) };
    Ok(())
}

/// `MPI_Comm_remote_size`.
pub unsafe fn comm_remote_size(comm: Comm, size: Foreign<c_int>) -> Result<()> {
    let object = objects::comm(comm)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { size.set(0, remote(&object)?.0.len() as c_int) };
    Ok(())
}

/// `MPI_Comm_remote_group`.
pub unsafe fn comm_remote_group(comm: Comm, group: Foreign<handle::Group>) -> Result<()> {
    let object = objects::comm(comm)?;
    let members = Members::clone(remote(&object)?);
    // SAFETY: the arguments are as the standard says.
    unsafe { groups::give(members, group) }
}

fn to_bytes(ranks: &[u32]) -> Vec<u8> {
    ranks.iter().flat_map(|rank| rank.to_le_bytes()).collect()
}

fn from_bytes(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks().0.iter().map(|rank| u32::from_le_bytes(*rank)).collect()
}

/// The leader's part: gives the members of its side to the leader of the other one, and gets those there.
fn exchange(own: &[u32], peer: Comm, leader: c_int, tag: u32) -> Result<Vec<u32>> {
    let to = rank_in(&*objects::comm(peer)?, leader)?;
    // The tag is the program's, the context is that of no communicator: nothing else is taken for this.
    let tags = network().tags();
    tags.send_buffered(to, tag, &to_bytes(own)).map_err(failure)?;
    let found = waiting::wait_until(|_| tags.try_claim(to, tag).map_err(failure))?;
    let room = vec![0; found.status().len as usize];
    let (_, bytes) = found.receive(room).and_then(tautline::tags::Receive::wait).map_err(failure)?;
    Ok(from_bytes(&bytes))
}

/// Broadcasts a list of ranks whose length only the root knows. An empty list tells of a failure there.
fn share(group: &Group, root: usize, list: &[u32]) -> Result<Vec<u32>> {
    let is_root = group.member() == root;
    let own = |bytes: Vec<u8>| if is_root { bytes } else { Vec::new() };
    let len = (list.len() as u32).to_le_bytes().to_vec();
    let len = group.run(&Call::Broadcast { root, len: 4 }, &own(len)).map_err(failure)?;
    let len = from_bytes(&len)[0] as usize * 4;
    if len == 0 {
        return Ok(Vec::new());
    }
    let bytes = group.run(&Call::Broadcast { root, len }, &own(to_bytes(list))).map_err(failure)?;
    Ok(from_bytes(&bytes))
}

/// Both sides in the order that all members agree on.
fn both_sides(local: &[u32], remote: &[u32]) -> Vec<u32> {
    let (first, second) = if local[0] < remote[0] { (local, remote) } else { (remote, local) };
    [first, second].concat()
}

/// `MPI_Intercomm_create`.
pub unsafe fn intercomm_create(
    local: Comm,
    local_leader: c_int,
    peer: Comm,
    remote_leader: c_int,
    tag: c_int,
    new: Foreign<Comm>,
) -> Result<()> {
    let object = objects::comm(local)?;
    ensure_intra(&object)?;
    let tag = check_tag(tag)?;
    rank_in(&object, local_leader)?;
    let group = object.group()?;
    let root = local_leader as usize;
    let members = &object.members.0;
    let remote = if object.rank as usize == root {
        let remote = exchange(members, peer, remote_leader, tag);
        let shared = share(group, root, remote.as_deref().unwrap_or_default());
        remote.and(shared)?
    } else {
        share(group, root, &[])?
    };
    let made = make_inter(&object, &object.members, object.rank, remote, tag)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { new.set(0, objects::add_comm(made)?) };
    Ok(())
}

/// An inter-communicator between two sides whose members all call this.
fn make_inter(
    like: &Communicator,
    members: &Arc<Members>,
    rank: u32,
    remote: Vec<u32>,
    tag: u32,
) -> Result<Communicator> {
    ensure(!remote.is_empty(), c::ERR_OTHER, || "the local leader has not reached the other one".to_owned())?;
    ensure(!remote.iter().any(|rank| members.0.contains(rank)), c::ERR_COMM, || {
        "a rank is on both sides".to_owned()
    })?;
    let both = Group::create(network().tags(), &both_sides(&members.0, &remote), tag).map_err(failure)?;
    let mut made = Communicator::like(like, Arc::clone(members), rank, Attributes::default(), None);
    made.remote = Some(Arc::new(Members(remote)));
    made.set_group(both);
    Ok(made)
}

/// A tag for groups that the program tells apart by a string.
unsafe fn tag_of(text: Ptr) -> Result<u32> {
    // SAFETY: the arguments are as the standard says.
    let text = unsafe { string(text, "stringtag")? };
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    Ok(hasher.finish() as u32 & 0x7fff_ffff)
}

/// `MPI_Comm_create_from_group`: only the members of the group call it.
pub unsafe fn comm_create_from_group(
    group: handle::Group,
    stringtag: Ptr,
    _info: Info,
    errhandler: Errhandler,
    new: Foreign<Comm>,
) -> Result<()> {
    let (members, handler) = (objects::group(group)?, objects::errhandler(errhandler)?);
    // SAFETY: the arguments are as the standard says.
    unsafe {
        let made = if members.0.is_empty() {
            None
        } else {
            Some(Group::create(network().tags(), &members.0, tag_of(stringtag)?).map_err(failure)?)
        };
        let handle = communicators::make(&objects::SELF, made, None)?;
        objects::comm(handle).iter().for_each(|comm| *lock(&comm.errhandler) = Arc::clone(&handler));
        new.set(0, handle);
    }
    Ok(())
}

/// `MPI_Intercomm_create_from_groups`: the remote group is that of the local leader.
pub unsafe fn intercomm_create_from_groups(
    local: handle::Group,
    local_leader: c_int,
    remote: handle::Group,
    _remote_leader: c_int,
    stringtag: Ptr,
    _info: Info,
    errhandler: Errhandler,
    new: Foreign<Comm>,
) -> Result<()> {
    let (members, handler) = (objects::group(local)?, objects::errhandler(errhandler)?);
    let root = usize::try_from(local_leader).ok().filter(|root| *root < members.0.len());
    let root =
        root.ok_or_else(|| Error::new(c::ERR_RANK, format!("{local_leader} is no rank of the group")))?;
    // SAFETY: the arguments are as the standard says.
    let tag = unsafe { tag_of(stringtag)? };
    let side = Group::create(network().tags(), &members.0, tag).map_err(failure)?;
    let theirs = if side.member() == root {
        let theirs = objects::group(remote);
        let list = theirs.as_ref().map_or(&[][..], |members| &members.0);
        let shared = share(&side, root, list);
        theirs.and(shared)?
    } else {
        share(&side, root, &[])?
    };
    let made = make_inter(&objects::SELF, &members, side.member() as u32, theirs, tag)?;
    *lock(&made.errhandler) = handler;
    // SAFETY: the arguments are as the standard says.
    unsafe { new.set(0, objects::add_comm(made)?) };
    Ok(())
}

/// Gives a number of each member to all members of both sides, in the order of the group.
fn tell_all(comm: &Communicator, numbers: [i32; 2]) -> Result<Vec<[i32; 2]>> {
    let own = [numbers[0].to_le_bytes(), numbers[1].to_le_bytes()].concat();
    let all = comm.group()?.run(&Call::AllGather { len: 8 }, &own).map_err(failure)?;
    let number = |bytes: &[u8]| i32::from_le_bytes(bytes.try_into().unwrap_or_default());
    Ok(all.chunks_exact(8).map(|pair| [number(&pair[..4]), number(&pair[4..])]).collect())
}

/// `MPI_Intercomm_merge`: the side that says `high` comes last; if both say the same, the order is that of
/// the group.
pub unsafe fn intercomm_merge(inter: Comm, high: c_int, new: Foreign<Comm>) -> Result<()> {
    let object = objects::comm(inter)?;
    let theirs = remote(&object)?;
    let group = object.group()?;
    let all = tell_all(&object, [c_int::from(high != 0), 0])?;
    let their_high = group.ranks().iter().position(|rank| *rank == theirs.0[0]).map(|at| all[at][0] != 0);
    let lower_first = group.ranks()[0] == object.members.0[0];
    let first = match (high != 0, their_high == Some(true)) {
        (false, true) => true,
        (true, false) => false,
        _ => lower_first,
    };
    let before = if first { 0 } else { theirs.0.len() };
    let key = before + object.rank as usize;
    let merged = group.split(Some(0), key as i64).map_err(failure)?;
    // SAFETY: the arguments are as the standard says.
    unsafe { new.set(0, communicators::make(&object, merged, None)?) };
    Ok(())
}

/// Makes an inter-communicator of some members of both sides, by the order in which they come on their side.
/// All members of `comm` call it; `chosen` says which ranks are with this one, if this one is in one at all.
fn make_part(comm: &Communicator, color: Option<u32>, chosen: impl Fn(u32) -> Option<i64>) -> Result<Comm> {
    let side = |members: &Members| {
        let mut list: Vec<(i64, usize)> = (members.0.iter().enumerate())
            .filter_map(|(rank, member)| Some((chosen(*member)?, rank)))
            .collect();
        list.sort_unstable();
        list.into_iter().map(|(_, rank)| members.0[rank]).collect::<Vec<u32>>()
    };
    let (local, remote) = match color {
        Some(_) => (side(&comm.members), side(remote(comm)?)),
        None => (Vec::new(), Vec::new()),
    };
    let color = color.filter(|_| !local.is_empty() && !remote.is_empty());
    let own = network().rank;
    let order = if color.is_some() { both_sides(&local, &remote) } else { Vec::new() };
    let key = order.iter().position(|rank| *rank == own).unwrap_or_default();
    let Some(both) = comm.group()?.split(color, key as i64).map_err(failure)? else {
        return Ok(c::COMM_NULL);
    };
    let rank = local.iter().position(|rank| *rank == own).unwrap_or_default() as u32;
    let mut made = Communicator::like(comm, Arc::new(Members(local)), rank, Attributes::default(), None);
    made.remote = Some(Arc::new(Members(remote)));
    made.set_group(both);
    objects::add_comm(made)
}

/// `MPI_Comm_split` of an inter-communicator.
pub(super) fn split(comm: &Communicator, color: Option<u32>, key: c_int) -> Result<Comm> {
    let all = tell_all(comm, [color.map_or(-1, u32::cast_signed), key])?;
    let ranks = comm.group()?.ranks();
    make_part(comm, color, |member| {
        let at = ranks.iter().position(|rank| *rank == member)?;
        (color.is_some_and(|color| all[at][0] == color.cast_signed())).then(|| i64::from(all[at][1]))
    })
}

/// `MPI_Comm_create` of an inter-communicator: each side names members of its own.
pub(super) fn create(comm: &Communicator, group: handle::Group) -> Result<Comm> {
    let members = objects::group(group)?;
    let own = members.rank_of(network().rank);
    let all = tell_all(comm, [own.map_or(-1, |at| at as i32), 0])?;
    let ranks = comm.group()?.ranks();
    make_part(comm, own.map(|_| 0), |member| {
        let at = ranks.iter().position(|rank| *rank == member)?;
        (all[at][0] >= 0).then(|| i64::from(all[at][0]))
    })
}
