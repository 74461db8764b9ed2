//! What the three forms of a collective have in common: a plan is carried out at once, started as a request,
//! or kept for a persistent request.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use tautline::group::Call;

use super::Ptr;
use super::packing::message;
use crate::constants as c;
use crate::datatype::Message;
use crate::error::{Error, Result, ensure};
use crate::foreign::Foreign;
use crate::handle::{Datatype, Request};
use crate::network::failure;
use crate::objects::{self, Communicator, lock};
use crate::operation::{Finish, Operation};
use crate::{request, waiting};

/// A collective of the program.
pub(super) struct Plan {
    comm: Arc<Communicator>,
    call: Call,
    /// What this member gives, packed one after the other.
    input: Vec<Message>,
    output: Output,
}

/// What is done with the bytes that this member gets.
enum Output {
    /// They go to memory of the program, one message after the other.
    Memory(Vec<Message>),
    Function(Finish),
}

impl Output {
    /// Takes the bytes.
    fn take(&self, bytes: &[u8]) -> Result<()> {
        match self {
            Output::Memory(messages) => {
                let mut at = 0;
                for message in messages {
                    let end = bytes.len().min(at + message.size() as usize);
                    // SAFETY: the program leaves the memory alone until the collective is complete.
                    unsafe { message.unpack(0, &bytes[at..end]) };
                    at = end;
                }
                Ok(())
            }
            Output::Function(finish) => finish(bytes),
        }
    }

    fn into_finish(self) -> Finish {
        match self {
            Output::Memory(_) => Arc::new(move |bytes: &[u8]| self.take(bytes)),
            Output::Function(finish) => finish,
        }
    }
}

impl Plan {
    /// A collective whose output goes to memory of the program.
    pub(super) fn new(
        comm: &Arc<Communicator>,
        call: Call,
        input: Vec<Message>,
        output: Vec<Message>,
    ) -> Plan {
        Plan { comm: Arc::clone(comm), call, input, output: Output::Memory(output) }
    }

    /// A collective whose output is given to `finish`.
    pub(super) fn with_finish(
        comm: &Arc<Communicator>,
        call: Call,
        input: Vec<Message>,
        finish: Finish,
    ) -> Plan {
        Plan { comm: Arc::clone(comm), call, input, output: Output::Function(finish) }
    }

    /// Bytes of the output, of collectives that programs use most.
    fn output_len(&self) -> Option<usize> {
        match &self.call {
            Call::Broadcast { len, .. } | Call::Reduce { len, .. } => Some(*len),
            Call::AllReduce { len, .. } | Call::Scan { len, .. } => Some(*len),
            Call::AllGather { len } | Call::AllToAll { len } => len.checked_mul(self.comm.size()),
            _ => None,
        }
    }

    /// Where the output goes if it need not be unpacked there.
    fn direct_output(&self) -> Option<(*mut u8, usize)> {
        let Output::Memory(messages) = &self.output else { return None };
        match &messages[..] {
            // This member has no output, or need not be given any.
            [] => {
                let call = matches!(self.call, Call::Barrier | Call::Broadcast { .. } | Call::Reduce { .. });
                call.then_some((NonNull::dangling().as_ptr(), 0))
            }
            [one] => {
                let (at, len) = (one.contiguous()?, one.size() as usize);
                (len > 0 && self.output_len() == Some(len)).then_some((at, len))
            }
            _ => None,
        }
    }

    /// The packed input.
    fn bytes(input: &[Message]) -> Vec<u8> {
        let mut bytes = vec![0; input.iter().map(|message| message.size() as usize).sum()];
        let mut at = 0;
        for message in input {
            let end = at + message.size() as usize;
            // SAFETY: the program does not change the memory until the collective is complete.
            unsafe { message.pack(0, &mut bytes[at..end]) };
            at = end;
        }
        bytes
    }

    /// Carries it out.
    pub(super) fn run(self) -> Result<()> {
        let group = self.comm.group()?;
        let packed;
        let input = match &self.input[..] {
            [] => &[],
            [one] if one.size() > 0 && one.contiguous().is_some() => {
                let at = one.contiguous().unwrap_or(std::ptr::null_mut());
                // SAFETY: the program does not change the memory until the collective is complete.
                unsafe { std::slice::from_raw_parts(at, one.size() as usize) }
            }
            list => {
                packed = Plan::bytes(list);
                &packed[..]
            }
        };
        if let Some((at, len)) = self.direct_output() {
            let given = input.as_ptr_range();
            if at.addr() >= given.end.addr() || at.addr() + len <= given.start.addr() {
                // SAFETY: the program leaves the memory alone until the collective is complete, and it is not
                // that of the input.
                let output = unsafe { std::slice::from_raw_parts_mut(at, len) };
                return group.run_into(&self.call, input, output).map_err(failure);
            }
            if at.addr() == given.start.addr() && len == input.len() {
                // SAFETY: as above, and `input` is not used any longer.
                let values = unsafe { std::slice::from_raw_parts_mut(at, len) };
                return group.run_in_place(&self.call, values).map_err(failure);
            }
        }
        self.output.take(&group.run(&self.call, input).map_err(failure)?)
    }

    /// Starts it as a request.
    pub(super) unsafe fn start(self, request: Foreign<Request>) -> Result<()> {
        let collective = self.comm.group()?.start(&self.call, Plan::bytes(&self.input)).map_err(failure)?;
        waiting::note_started_collective();
        let operation = Operation::Collective(Some(collective), self.output.into_finish());
        // SAFETY: the arguments are as the standard says.
        unsafe { request.set(0, request::started(self.comm, operation)?) };
        Ok(())
    }

    /// Makes a persistent request of it.
    pub(super) unsafe fn prepare(self, request: Foreign<Request>) -> Result<()> {
        let prepared = self.comm.group()?.prepare(&self.call).map_err(failure)?;
        let Plan { comm, input, output, .. } = self;
        let (prepared, finish) = (Arc::new(Mutex::new(prepared)), output.into_finish());
        let start = move || {
            waiting::note_started_collective();
            lock(&prepared).start(Plan::bytes(&input)).map_err(failure)?;
            Ok(Operation::Persistent(Arc::clone(&prepared), Arc::clone(&finish)))
        };
        // SAFETY: the arguments are as the standard says.
        unsafe { request.set(0, request::persistent(comm, Box::new(start))?) };
        Ok(())
    }
}

/// Defines the three forms of collectives, each by the function that makes its plan.
macro_rules! collectives {
    ($($(#[$doc:meta])* pub unsafe fn $run:ident, $start:ident, $prepare:ident: $plan:ident(
        $($arg:ident: $type:ty),*
    );)*) => {$(
        $(#[$doc])*
        pub unsafe fn $run($($arg: $type,)* comm: Comm) -> Result<()> {
            // SAFETY: the arguments are as the standard says.
            unsafe { $plan($($arg,)* comm)? }.run()
        }

        /// The non-blocking form.
        pub unsafe fn $start($($arg: $type,)* comm: Comm, request: Foreign<Request>) -> Result<()> {
            // SAFETY: the arguments are as the standard says.
            unsafe { $plan($($arg,)* comm)?.start(request) }
        }

        /// The persistent form.
        pub unsafe fn $prepare(
            $($arg: $type,)*
            comm: Comm,
            _info: Info,
            request: Foreign<Request>,
        ) -> Result<()> {
            // SAFETY: the arguments are as the standard says.
            unsafe { $plan($($arg,)* comm)?.prepare(request) }
        }
    )*};
}

/// Data of a collective: memory, count and datatype.
pub(super) type Data = (Ptr, i64, Datatype);

pub(super) fn in_place(at: Ptr) -> bool {
    at.addr() == c::IN_PLACE
}

/// A root in a communicator.
pub(super) fn rooted(comm: &Communicator, root: c_int) -> Result<usize> {
    let size = comm.size();
    let found = usize::try_from(root).ok().filter(|root| *root < size);
    found.ok_or_else(|| Error::new(c::ERR_ROOT, format!("root {root} is not in a communicator of {size}")))
}

/// The memory of one message of a collective.
pub(super) fn data((at, count, of): Data) -> Result<Message> {
    ensure(!in_place(at), c::ERR_BUFFER, || "MPI_IN_PLACE is not allowed here".to_owned())?;
    message(at, count, of)
}

/// Messages of `count` elements each, one after the other, one for each of `size` members.
pub(super) fn blocks((at, count, of): Data, size: usize) -> Result<Vec<Message>> {
    let extent = objects::datatype(of)?.of.extent();
    let step = extent.checked_mul(count).ok_or_else(|| Error::new(c::ERR_COUNT, "the count is too large"))?;
    ensure(count >= 0, c::ERR_COUNT, || format!("the count is {count}"))?;
    (0..size as i64).map(|index| data((shifted(at, step.wrapping_mul(index)), count, of))).collect()
}

/// The messages of [`blocks`] as one.
pub(super) fn joined((at, count, of): Data, size: usize) -> Result<Message> {
    ensure(count >= 0, c::ERR_COUNT, || format!("the count is {count}"))?;
    let all = count.checked_mul(size as i64);
    data((at, all.ok_or_else(|| Error::new(c::ERR_COUNT, "the count is too large"))?, of))
}

/// The message at a place of [`blocks`].
pub(super) fn block((at, count, of): Data, index: usize) -> Result<Message> {
    let step = objects::datatype(of)?.of.extent().wrapping_mul(count);
    data((shifted(at, step.wrapping_mul(index as i64)), count, of))
}

/// An address in the memory of the program.
pub(super) fn shifted(at: Ptr, bytes: i64) -> Ptr {
    at.wrapping_byte_offset(bytes as isize)
}

/// Messages with a count and a displacement each, in elements.
pub(super) unsafe fn varied(
    at: Ptr,
    counts: Foreign<i64>,
    displs: Foreign<i64>,
    of: Datatype,
    size: usize,
) -> Result<Vec<Message>> {
    let extent = objects::datatype(of)?.of.extent();
    // SAFETY: the arguments are as the standard says.
    let (counts, displs) = unsafe { (counts.to_vec(size), displs.to_vec(size)) };
    let places = displs.iter().map(|displ| shifted(at, displ.wrapping_mul(extent)));
    places.zip(&counts).map(|(at, count)| data((at, *count, of))).collect()
}

/// Messages with a count, a displacement in bytes and a datatype each.
pub(super) unsafe fn mixed(
    at: Ptr,
    counts: Foreign<i64>,
    displs: Foreign<i64>,
    types: Foreign<Datatype>,
    size: usize,
) -> Result<Vec<Message>> {
    // SAFETY: the arguments are as the standard says.
    let (counts, displs, types) = unsafe { (counts.to_vec(size), displs.to_vec(size), types.to_vec(size)) };
    (0..size).map(|index| data((shifted(at, displs[index]), counts[index], types[index]))).collect()
}

/// The sizes of messages in bytes.
pub(super) fn lens(messages: &[Message]) -> Vec<usize> {
    messages.iter().map(|message| message.size() as usize).collect()
}
