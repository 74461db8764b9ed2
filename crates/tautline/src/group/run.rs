//! Carries out a plan: the memory of a collective, its sends and receives, and the step it has come to.

use std::ops::Range;
use std::sync::Arc;

use tautline_node::TagRequest;
use tautline_node::tags::{Buffer, Mode};

use super::plan::{Block, Into, Plan, Step};
use super::reduction::Reduction;
use crate::error::{Error, Result};
use crate::tags::{Receive, Request, Send, Tags};

/// The tag of receives that end when their source is lost: nobody sends it.
pub(super) const WATCH: u32 = 3 << 30 | 3;
/// Messages of several blocks up to this length are copied together, to be sent at once.
const JOIN: usize = 2048;

/// The bytes of a block.
#[derive(Debug)]
enum Data {
    /// They are received, or were never written.
    Absent,
    Own(Vec<u8>),
    /// They are being sent, or were.
    Shared(Arc<Vec<u8>>),
}

impl Data {
    fn bytes(&self) -> &[u8] {
        match self {
            Data::Own(bytes) => bytes,
            Data::Shared(bytes) => bytes,
            Data::Absent => &[],
        }
    }

    /// The bytes, to be changed. They are copied if a send has not let go of them.
    fn into_vec(self) -> Vec<u8> {
        match self {
            Data::Own(bytes) => bytes,
            Data::Shared(bytes) => Arc::try_unwrap(bytes).unwrap_or_else(|shared| shared.to_vec()),
            Data::Absent => Vec::new(),
        }
    }
}

/// A plan, and the reduction that it uses.
pub(super) type Planned = (Arc<Plan>, Option<Reduction>);

/// A collective under way at one member.
#[derive(Debug)]
pub(super) struct Run {
    plan: Arc<Plan>,
    reduction: Option<Reduction>,
    /// The input as it was given, until the first step; or the output of shared memory.
    whole: Option<Vec<u8>>,
    blocks: Vec<Data>,
    /// The next step.
    at: usize,
    receives: Vec<(Receive, Range<Block>)>,
    sends: Vec<Send>,
    /// Members from which later steps receive, each with a receive that ends when the member is lost.
    watched: Vec<(usize, Receive)>,
    is_watching: bool,
}

/// What a run needs of its group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wires<'a> {
    pub(super) tags: &'a Tags,
    pub(super) tag: u32,
    /// The number of each member in the job.
    pub(super) members: &'a [crate::Rank],
    pub(super) me: usize,
}

impl Run {
    /// Begins with the member's input.
    pub(super) fn new(plan: Planned, input: Vec<u8>) -> Result<Run> {
        check_input(&plan.0, input.len())?;
        let mut run = Run::empty(plan);
        run.whole = Some(input);
        Ok(run)
    }

    /// As [`Run::new`], with a copy of the input.
    pub(super) fn copied(plan: Planned, input: &[u8]) -> Result<Run> {
        if plan.0.shared.is_some() || plan.0.hosts.is_some() {
            return Run::new(plan, input.to_vec());
        }
        check_input(&plan.0, input.len())?;
        let mut run = Run::empty(plan);
        run.cut(input);
        Ok(run)
    }

    fn empty((plan, reduction): Planned) -> Run {
        let (whole, blocks) = (None, Vec::new());
        let (receives, sends, watched) = (Vec::new(), Vec::new(), Vec::new());
        Run { plan, reduction, whole, blocks, at: 0, receives, sends, watched, is_watching: false }
    }

    /// Copies the input to its blocks.
    fn cut(&mut self, input: &[u8]) {
        let plan = &*self.plan;
        self.blocks = absent(plan);
        let mut rest = input;
        for block in &plan.input {
            let (bytes, after) = rest.split_at(plan.sizes[*block as usize]);
            self.blocks[*block as usize] = Data::Own(bytes.to_vec());
            rest = after;
        }
    }

    /// Does all that can be done now. True if that was all.
    pub(super) fn advance(&mut self, wires: Wires<'_>) -> Result<bool> {
        let plan = self.plan.clone();
        if let Some(input) = self.whole.take() {
            match plan.input[..] {
                [only] => {
                    self.blocks = absent(&plan);
                    self.blocks[only as usize] = Data::Own(input);
                }
                _ => self.cut(&input),
            }
        }
        loop {
            match plan.steps.get(self.at) {
                Some(Step::Send { to, blocks }) => self.send(wires, *to, blocks)?,
                Some(Step::Receive { from, blocks }) => self.receive(wires, *from, blocks)?,
                Some(Step::Wait) | None => {
                    if !self.collect(wires)? {
                        return Ok(false);
                    }
                    if self.at == plan.steps.len() {
                        return Ok(true);
                    }
                }
                Some(Step::Fold { lower, upper, count, into }) => {
                    for block in 0..*count {
                        self.fold(&plan, lower + block, upper + block, *into);
                    }
                }
                Some(Step::Copy { from, to }) => {
                    self.blocks[*to as usize] = Data::Own(self.blocks[*from as usize].bytes().to_vec());
                }
            }
            self.at += 1;
        }
    }

    fn send(&mut self, wires: Wires<'_>, to: usize, range: &Range<Block>) -> Result<()> {
        let blocks = &mut self.blocks[range.start as usize..range.end as usize];
        let to = (wires.members[to], wires.tag);
        let key = (to.0, wires.tags.context(), to.1);
        let node = wires.tags.node();
        let at_once = match blocks {
            [] => node.tagged().try_send_tagged(key, &[])?,
            [block] => node.tagged().try_send_tagged(key, block.bytes())?,
            _ if self.plan.bytes(range) <= JOIN => {
                let mut joined = [0; JOIN];
                let mut len = 0;
                for block in &*blocks {
                    let bytes = block.bytes();
                    joined[len..len + bytes.len()].copy_from_slice(bytes);
                    len += bytes.len();
                }
                node.tagged().try_send_tagged(key, &joined[..len])?
            }
            _ => false,
        };
        if at_once {
            return Ok(());
        }
        let pieces = blocks.iter_mut().map(|block| {
            let bytes = match std::mem::replace(block, Data::Absent) {
                Data::Shared(bytes) => bytes,
                other => Arc::new(other.into_vec()),
            };
            *block = Data::Shared(bytes.clone());
            bytes
        });
        let pieces = Buffer::Shared(pieces.collect());
        self.sends.push(wires.tags.start(to, Mode::Standard, pieces)?);
        Ok(())
    }

    fn receive(&mut self, wires: Wires<'_>, from: usize, range: &Range<Block>) -> Result<()> {
        let mut room = range.clone().map(|block| {
            let bytes = std::mem::replace(&mut self.blocks[block as usize], Data::Absent).into_vec();
            let size = self.plan.sizes[block as usize];
            if bytes.len() == size { bytes } else { vec![0; size] }
        });
        let buffer = match range.len() {
            0 | 1 => Buffer::Whole(room.next().unwrap_or_default()),
            _ => Buffer::Pieces(room.collect()),
        };
        let receive = wires.tags.start_receive_into(wires.members[from], wires.tag, buffer)?;
        self.receives.push((receive, range.clone()));
        Ok(())
    }

    /// Takes what has ended. True if nothing is under way any longer.
    fn collect(&mut self, wires: Wires<'_>) -> Result<bool> {
        if self.receives.is_empty() && self.sends.is_empty() {
            return Ok(true);
        }
        let tagged = wires.tags.node().tagged();
        tagged.poll()?;
        let mut at = self.receives.len();
        while at > 0 {
            at -= 1;
            if tagged.has_ended(self.receives[at].0.id())? {
                let (receive, blocks) = self.receives.swap_remove(at);
                self.received(receive, &blocks)?;
            }
        }
        let mut at = self.sends.len();
        while at > 0 {
            at -= 1;
            if tagged.has_ended(self.sends[at].id())? {
                drop(self.sends.swap_remove(at).finish()?);
            }
        }
        Ok(self.receives.is_empty() && self.sends.is_empty())
    }

    /// Watches the members from which later steps receive: this one may wait for another one for long (G-22).
    pub(super) fn watch(&mut self, wires: Wires<'_>) -> Result<()> {
        self.is_watching = true;
        let plan = self.plan.clone();
        for step in plan.steps.iter().skip(self.at) {
            if let Step::Receive { from, .. } = step
                && self.watched.iter().all(|(member, _)| member != from)
            {
                let receive = wires.tags.start_receive(wires.members[*from], WATCH, Vec::new())?;
                self.watched.push((*from, receive));
            }
        }
        Ok(())
    }

    /// Whether [`Run::watch`] was called.
    pub(super) fn is_watching(&self) -> bool {
        self.is_watching
    }

    /// Appends the requests that end when a watched member is lost.
    pub(super) fn interruptions(&self, ids: &mut Vec<TagRequest>) {
        ids.extend(self.watched.iter().map(|(_, receive)| receive.id()));
    }

    /// An error if a watched member is lost, a later step receives from it, and nothing of it has arrived.
    pub(super) fn check_watched(&mut self, wires: Wires<'_>) -> Result<()> {
        let tagged = wires.tags.node().tagged();
        let mut at = self.watched.len();
        while at > 0 {
            at -= 1;
            if !tagged.has_ended(self.watched[at].1.id())? {
                continue;
            }
            let (member, receive) = self.watched.swap_remove(at);
            let lost = receive.wait().map(drop);
            let mut rest = self.plan.steps.iter().skip(self.at);
            let needed = rest.any(|step| matches!(step, Step::Receive { from, .. } if *from == member));
            if needed && wires.tags.try_probe(wires.members[member], wires.tag)?.is_none() {
                lost?;
            }
        }
        Ok(())
    }

    fn received(&mut self, receive: Receive, range: &Range<Block>) -> Result<()> {
        let (status, buffer) = receive.finish()?;
        match status {
            Ok(status) if status.len == self.plan.bytes(range) as u64 => {}
            Ok(_) | Err(Error::Truncated(_)) => return Err(mismatch()),
            Err(error) => return Err(error),
        }
        match buffer {
            Buffer::Whole(bytes) if range.len() == 1 => self.blocks[range.start as usize] = Data::Own(bytes),
            Buffer::Pieces(pieces) => {
                for (block, bytes) in range.clone().zip(pieces) {
                    self.blocks[block as usize] = Data::Own(bytes);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn fold(&mut self, plan: &Plan, lower: Block, upper: Block, into: Into) {
        let Some(reduction) = self.reduction.as_ref().filter(|_| plan.sizes[lower as usize] > 0) else {
            return;
        };
        let (lower, upper) = (lower as usize, upper as usize);
        let mut result = std::mem::replace(&mut self.blocks[upper], Data::Absent).into_vec();
        reduction.apply(self.blocks[lower].bytes(), &mut result);
        self.blocks[upper] = Data::Own(result);
        if into == Into::Lower {
            self.blocks.swap(lower, upper);
        }
    }

    /// Appends all sends and receives that are under way, receives first.
    pub(super) fn requests(&self, ids: &mut Vec<TagRequest>) {
        ids.extend(self.receives.iter().map(|(receive, _)| receive.id()));
        ids.extend(self.sends.iter().map(Request::id));
    }

    /// Takes the output, once all steps are done.
    #[inline]
    pub(super) fn take_result(&mut self) -> Vec<u8> {
        match self.whole.take() {
            Some(output) => output,
            None => self.take_blocks(),
        }
    }

    fn take_blocks(&mut self) -> Vec<u8> {
        if let [only] = self.plan.output[..] {
            return std::mem::replace(&mut self.blocks[only as usize], Data::Absent).into_vec();
        }
        let mut output = Vec::with_capacity(self.plan.output_len());
        for block in &self.plan.output {
            output.extend_from_slice(self.blocks[*block as usize].bytes());
        }
        output
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.plan
    }

    pub(super) fn reduction(&self) -> Option<&Reduction> {
        self.reduction.as_ref()
    }

    /// The input, before the first step.
    pub(super) fn input(&self) -> &[u8] {
        self.whole.as_deref().unwrap_or_default()
    }

    /// Takes room for the output out, instead of steps: the input, which is not needed any longer, with the
    /// length of the output. [`Run::put_output`] puts it back.
    pub(super) fn take_output(&mut self) -> Vec<u8> {
        let mut output = self.whole.take().unwrap_or_default();
        output.resize(self.plan.output_len(), 0);
        output
    }

    pub(super) fn put_output(&mut self, output: Vec<u8>) {
        self.whole = Some(output);
    }

    /// Bytes of the output.
    pub(super) fn output_len(&self) -> usize {
        self.plan.output_len()
    }

    /// Copies the output, once all steps are done.
    pub(super) fn copy_output(&self, output: &mut [u8]) {
        if let Some(whole) = &self.whole {
            return output.copy_from_slice(whole);
        }
        let mut at = 0;
        for block in &self.plan.output {
            let bytes = self.blocks[*block as usize].bytes();
            output[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        }
    }
}

fn absent(plan: &Plan) -> Vec<Data> {
    plan.sizes.iter().map(|_| Data::Absent).collect()
}

#[inline]
pub(super) fn check_input(plan: &Plan, len: usize) -> Result<()> {
    let wanted = plan.input_len();
    if len == wanted {
        return Ok(());
    }
    Err(Error::other(format!("the input of a collective has {len} bytes, and its call says {wanted}")))
}

/// A message has another length than this member's call says (G-4).
pub(super) fn mismatch() -> Error {
    Error::other("members called a collective with different lengths: make the calls agree")
}
