//! One extraction, from start to end.

use std::rc::Rc;

use super::dispatch::Dispatcher;
use super::inbox::Inbox;
use super::incoming_bytes::End;
use super::open_messages::TaskId;
use super::runner::Runner;
use crate::core::{Core, Extract};
use crate::error::{HandlerFailure, Result};

impl Extract for Inbox {
    fn extract(&self, core: &Rc<Core>, bytes: usize) -> Result<usize> {
        let _running = core.begin_extraction()?;
        let runner = Runner { core, inbox: self };
        runner.run_woken();
        let taken = match runner.run_frames(bytes)? {
            Some(taken) => taken,
            None => runner.run_delivery(bytes)?,
        };
        if taken > 0 {
            core.extraction.note_progress();
        }
        // Without taking anything it is unknown whether there is more.
        if core.peer_loss.has_unfinished() && bytes > 0 {
            runner.end_lost_peers();
        }
        Ok(taken)
    }

    fn drop_handlers(&self, core: &Core) {
        for (name, handler) in self.names.iter().zip(&self.handlers) {
            handler.clear(|panic| {
                let (handler, from, reason) = (name.clone(), panic.from, panic.text);
                core.failures.push(HandlerFailure { handler, from, reason, panicked: true });
            });
        }
    }
}

impl Runner<'_> {
    /// Polls handlers that were woken, those that wait for room to send, and the outbox.
    fn run_woken(self) {
        let core = self.core;
        core.waits.forget_attempts();
        core.wakes.take_program_woken();
        if !core.waits.room.is_empty() {
            core.waits.room.wake();
        }
        if !core.outbox.has_no_jobs() {
            core.outbox.run(core);
        }
        if core.wakes.any() {
            self.poll_woken();
        }
    }

    #[inline(never)]
    fn poll_woken(self) {
        self.core.extraction.note_progress();
        for woken in self.core.wakes.take() {
            woken.polled();
            self.poll(TaskId { handler: woken.handler, slot: woken.slot });
        }
    }

    /// The slow path: polls every device, takes what has arrived, and runs its handlers.
    #[inline(never)]
    fn run_delivery(self, bytes: usize) -> Result<usize> {
        let delivery = self.inbox.delivery.borrow_mut().take();
        let mut delivery = delivery.expect("one delivery per endpoint, and no extraction inside another");
        let mut taken = Ok(0);
        let events = self.core.node.take(bytes, &mut delivery);
        if !delivery.items().is_empty() {
            let mut dispatcher = Dispatcher::new(self, delivery);
            let (slots, bytes) = dispatcher.run();
            delivery = dispatcher.into_delivery();
            taken = self.core.node.give_back(&mut delivery, slots).map(|()| bytes);
        }
        *self.inbox.delivery.borrow_mut() = Some(delivery);
        self.after_delivery(events?);
        Ok(taken?)
    }

    /// `events`: the node has some.
    #[inline]
    fn after_delivery(self, events: bool) {
        for grant in self.core.outbox.take_grants() {
            self.grant(grant);
        }
        if events {
            self.core.absorb_events();
        }
    }

    /// Ends every unfinished message of peers that went down, unless slots are left: what a peer sent before
    /// it went down may complete a message, and only then is it unfinished. The watchdog may have taken slots
    /// from the device, and noticed the loss, since this extraction began.
    #[cold]
    fn end_lost_peers(self) {
        if self.core.node.has_slots().unwrap_or(false) {
            return;
        }
        for lost in self.core.peer_loss.take_unfinished() {
            let unfinished = self.inbox.open.borrow().of(lost.peer);
            for id in unfinished {
                self.end_message(id, End::PeerGone(lost.why));
            }
        }
    }
}
