//! Collectives of inter-communicators. Every one of them is one exchange between the members of both sides,
//! in which each member sends to ranks of the other side and receives from them; reductions combine what has
//! arrived. That takes as many messages as there are pairs, and no agreement within a side.

use std::ffi::c_int;
use std::sync::Arc;

use tautline::group::Call;

use super::Ptr;
use super::plans::{Data, Plan, blocks, data, mixed, varied};
use super::reductions::reducer;
use crate::constants as c;
use crate::datatype::Message;
use crate::error::{Error, Result, ensure};
use crate::foreign::Foreign;
use crate::handle::{Datatype, Op};
use crate::objects::Communicator;

/// A rank of the other side, and what is sent to it or received from it.
type Parts = Vec<(usize, Message)>;

/// What a member does in a collective with a root.
enum Role {
    /// It is the root.
    Root,
    /// It is on the root's side, and does nothing.
    Idle,
    /// The root has this rank on the other side.
    Leaf(usize),
}

/// The collectives of one inter-communicator.
pub(super) struct Inter<'a> {
    comm: &'a Arc<Communicator>,
    /// The number of ranks of the other side.
    size: usize,
}

/// The collectives of an inter-communicator; `None` for other communicators.
pub(super) fn of(comm: &Arc<Communicator>) -> Option<Inter<'_>> {
    comm.remote.as_ref().map(|remote| Inter { comm, size: remote.0.len() })
}

fn all(messages: Vec<Message>) -> Parts {
    messages.into_iter().enumerate().collect()
}

impl Inter<'_> {
    fn role(&self, root: c_int) -> Result<Role> {
        match root {
            c::ROOT => Ok(Role::Root),
            c::PROC_NULL => Ok(Role::Idle),
            rank => {
                let found = usize::try_from(rank).ok().filter(|rank| *rank < self.size);
                let size = self.size;
                found.map(Role::Leaf).ok_or_else(|| {
                    Error::new(c::ERR_ROOT, format!("root {rank} is not on the other side, which has {size}"))
                })
            }
        }
    }

    /// The lengths of parts for each member of both sides.
    fn lens(&self, parts: &[(usize, u64)]) -> Result<Vec<usize>> {
        let group = self.comm.group()?;
        let mut lens = vec![0; group.size()];
        // The members of a side are neighbours in the group.
        let local_first = group.ranks()[0] == self.comm.members.0[0];
        let first = if local_first { self.comm.size() } else { 0 };
        for (rank, len) in parts {
            lens[first + rank] = *len as usize;
        }
        Ok(lens)
    }

    fn call(&self, sent: &[(usize, Message)], received: &[(usize, u64)]) -> Result<Call> {
        let sent: Vec<_> = sent.iter().map(|(rank, message)| (*rank, message.size())).collect();
        Ok(Call::AllToAllVaried { send: self.lens(&sent)?, receive: self.lens(received)? })
    }

    /// A collective that moves data.
    fn exchange(&self, sent: Parts, received: Parts) -> Result<Plan> {
        let lens: Vec<_> = received.iter().map(|(rank, message)| (*rank, message.size())).collect();
        let call = self.call(&sent, &lens)?;
        let messages = |parts: Parts| parts.into_iter().map(|(_, message)| message).collect();
        Ok(Plan::new(self.comm, call, messages(sent), messages(received)))
    }

    /// A collective in which values from some ranks of the other side are combined. Of the result, the bytes
    /// from `skip` on go into `result`.
    fn combine(
        &self,
        sent: Parts,
        (from, len): (usize, u64),
        (op, of): (Op, Datatype),
        (skip, result): (usize, Option<Message>),
    ) -> Result<Plan> {
        let reducer = reducer(op, of)?;
        let received: Vec<_> = (0..from).map(|rank| (rank, len)).collect();
        let call = self.call(&sent, &received)?;
        let finish = move |bytes: &[u8]| {
            let Some(result) = result.as_ref().filter(|result| result.size() > 0) else { return Ok(()) };
            let mut values = bytes.chunks_exact(len as usize).rev();
            let mut last = values.next().unwrap_or_default().to_vec();
            // From the highest rank down: each value is combined with those of higher ranks.
            values.for_each(|value| reducer.combine(value, &mut last));
            let part = last.get(skip..).unwrap_or_default();
            // SAFETY: the program leaves the memory alone until the collective is complete.
            unsafe { result.unpack(0, &part[..part.len().min(result.size() as usize)]) };
            Ok(())
        };
        let messages = sent.into_iter().map(|(_, message)| message).collect();
        Ok(Plan::with_finish(self.comm, call, messages, Arc::new(finish)))
    }

    pub(super) fn barrier(&self) -> Plan {
        Plan::new(self.comm, Call::Barrier, Vec::new(), Vec::new())
    }

    pub(super) fn bcast(&self, own: Data, root: c_int) -> Result<Plan> {
        match self.role(root)? {
            Role::Root => self.exchange(all(vec![data(own)?; self.size]), Vec::new()),
            Role::Idle => self.exchange(Vec::new(), Vec::new()),
            Role::Leaf(root) => self.exchange(Vec::new(), vec![(root, data(own)?)]),
        }
    }

    /// `MPI_Gather` and `MPI_Gatherv`.
    pub(super) fn gather(
        &self,
        own: Data,
        received: impl FnOnce(usize) -> Result<Vec<Message>>,
        root: c_int,
    ) -> Result<Plan> {
        match self.role(root)? {
            Role::Root => self.exchange(Vec::new(), all(received(self.size)?)),
            Role::Idle => self.exchange(Vec::new(), Vec::new()),
            Role::Leaf(root) => self.exchange(vec![(root, data(own)?)], Vec::new()),
        }
    }

    /// `MPI_Scatter` and `MPI_Scatterv`.
    pub(super) fn scatter(
        &self,
        sent: impl FnOnce(usize) -> Result<Vec<Message>>,
        own: Data,
        root: c_int,
    ) -> Result<Plan> {
        match self.role(root)? {
            Role::Root => self.exchange(all(sent(self.size)?), Vec::new()),
            Role::Idle => self.exchange(Vec::new(), Vec::new()),
            Role::Leaf(root) => self.exchange(Vec::new(), vec![(root, data(own)?)]),
        }
    }

    pub(super) fn allgather(&self, own: Data, received: Data) -> Result<Plan> {
        self.exchange(all(vec![data(own)?; self.size]), all(blocks(received, self.size)?))
    }

    pub(super) unsafe fn allgatherv(
        &self,
        own: Data,
        at: Ptr,
        (counts, displs): (Foreign<i64>, Foreign<i64>),
        of: Datatype,
    ) -> Result<Plan> {
        // SAFETY: the arguments are as the standard says.
        let received = unsafe { varied(at, counts, displs, of, self.size)? };
        self.exchange(all(vec![data(own)?; self.size]), all(received))
    }

    pub(super) fn alltoall(&self, sent: Data, received: Data) -> Result<Plan> {
        self.exchange(all(blocks(sent, self.size)?), all(blocks(received, self.size)?))
    }

    pub(super) unsafe fn alltoallv(
        &self,
        sent: (Ptr, Foreign<i64>, Foreign<i64>, Datatype),
        received: (Ptr, Foreign<i64>, Foreign<i64>, Datatype),
    ) -> Result<Plan> {
        // SAFETY: the arguments are as the standard says.
        let (sent, received) = unsafe {
            let side = |(at, counts, displs, of)| varied(at, counts, displs, of, self.size);
            (side(sent)?, side(received)?)
        };
        self.exchange(all(sent), all(received))
    }

    pub(super) unsafe fn alltoallw(
        &self,
        sent: (Ptr, Foreign<i64>, Foreign<i64>, Foreign<Datatype>),
        received: (Ptr, Foreign<i64>, Foreign<i64>, Foreign<Datatype>),
    ) -> Result<Plan> {
        // SAFETY: the arguments are as the standard says.
        let (sent, received) = unsafe {
            let side = |(at, counts, displs, types)| mixed(at, counts, displs, types, self.size);
            (side(sent)?, side(received)?)
        };
        self.exchange(all(sent), all(received))
    }

    pub(super) fn reduce(
        &self,
        (sendbuf, recvbuf): (Ptr, Ptr),
        (count, of): (i64, Datatype),
        op: Op,
        root: c_int,
    ) -> Result<Plan> {
        match self.role(root)? {
            Role::Root => {
                let result = data((recvbuf, count, of))?;
                self.combine(Vec::new(), (self.size, result.size()), (op, of), (0, Some(result)))
            }
            Role::Idle => self.exchange(Vec::new(), Vec::new()),
            Role::Leaf(root) => self.exchange(vec![(root, data((sendbuf, count, of))?)], Vec::new()),
        }
    }

    pub(super) fn allreduce(
        &self,
        (sendbuf, recvbuf): (Ptr, Ptr),
        (count, of): (i64, Datatype),
        op: Op,
    ) -> Result<Plan> {
        let (value, result) = (data((sendbuf, count, of))?, data((recvbuf, count, of))?);
        let from = (self.size, value.size());
        self.combine(all(vec![value; self.size]), from, (op, of), (0, Some(result)))
    }

    /// `MPI_Reduce_scatter` and `MPI_Reduce_scatter_block`: every rank of the other side gets all values,
    /// since how that side divides its result is not known here.
    pub(super) fn reduce_scatter(
        &self,
        (sendbuf, recvbuf): (Ptr, Ptr),
        counts: &[i64],
        (op, of): (Op, Datatype),
    ) -> Result<Plan> {
        ensure(counts.iter().all(|count| *count >= 0), c::ERR_COUNT, || "a count is negative".to_owned())?;
        let rank = self.comm.rank as usize;
        let value = data((sendbuf, counts.iter().sum(), of))?;
        let result = data((recvbuf, counts[rank], of))?;
        let before: i64 = counts[..rank].iter().sum();
        let skip = before as usize * value.datatype().size() as usize;
        let from = (self.size, value.size());
        self.combine(all(vec![value; self.size]), from, (op, of), (skip, Some(result)))
    }
}
