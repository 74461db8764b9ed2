//! Registers handlers and joins.

use std::future::Future;

use tautline_node::device::Datagram;
use tautline_node::limits::{MAX_HANDLERS, MAX_NAME};

use crate::core::Core;
use crate::messages::handlers::{Registered, streamed};
use crate::rpc::Rpc;
use crate::{
    Clock, Config, Endpoint, Error, Job, JoinError, Lent, Message, Result, Security, Short, Waiting,
};

/// Registers handlers and joins a job; see [`Endpoint::builder`].
#[derive(Default)]
#[must_use = "a builder does nothing until it joins"]
pub struct Builder {
    config: Config,
    names: Vec<(String, bool)>,
    handlers: Vec<Registered>,
    /// Whose calls are answered here.
    pub(crate) rpc: Option<Rpc>,
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("handlers", &self.names).finish_non_exhaustive()
    }
}

impl Builder {
    /// Registers an `async` handler (M-4). It starts with the first frame of each message and is suspended, while others
    /// go on, when it wants bytes that have not arrived. Returning early skips the rest of the message.
    ///
    /// A handler, of whatever kind, may hold an aperture or a clone of the endpoint. Such a clone keeps the endpoint open until [`Endpoint::close`], and
    /// an aperture keeps its socket until then, or until the last clone is dropped: then the handlers are dropped, too.
    pub fn on<H, F>(mut self, name: &str, handler: H) -> Builder
    where
        H: Fn(Message) -> F + 'static,
        F: Future<Output = Result<()>> + 'static,
    {
        self.names.push((name.to_owned(), false));
        self.handlers.push(Registered::Stream(streamed(handler)));
        self
    }

    /// Registers a handler for messages that fit one frame: a plain function of the whole message, the cheapest there is.
    /// Senders of longer messages get an error.
    pub fn on_short<H>(mut self, name: &str, handler: H) -> Builder
    where
        H: FnMut(Short<'_>) + 'static,
    {
        self.names.push((name.to_owned(), true));
        self.handlers.push(Registered::Short(std::cell::RefCell::new(Box::new(handler))));
        self
    }

    /// Registers a handler for whole messages of any size: a plain function of a message that, if it was lent ([`Endpoint::loan`]), still lies where its sender
    /// wrote it. Messages that were not lent are collected first.
    pub fn on_loan<H>(mut self, name: &str, handler: H) -> Builder
    where
        H: FnMut(Lent) + 'static,
    {
        self.names.push((name.to_owned(), false));
        self.handlers.push(Registered::lent(handler));
        self
    }

    /// Registers an `async` handler that is begun by `whole` if the message came in one frame, and otherwise by `handler`; see [`Registered::whole`].
    pub(crate) fn on_whole<H, W, F>(mut self, name: &str, handler: H, whole: W) -> Builder
    where
        H: Fn(Message, bool) -> F + 'static,
        W: Fn(Short<'_>, bool) -> F + 'static,
        F: Future<Output = Result<()>> + 'static,
    {
        self.names.push((name.to_owned(), false));
        self.handlers.push(Registered::whole(handler, whole));
        self
    }

    /// Replaces all knobs.
    pub fn config(mut self, config: Config) -> Builder {
        self.config = config;
        self
    }

    /// Sets the protection of frames; all members must agree.
    pub fn security(mut self, security: Security) -> Builder {
        self.config.link.security = security;
        self
    }

    /// Sets how this endpoint waits.
    pub fn waiting(mut self, waiting: Waiting) -> Builder {
        self.config.waiting = waiting;
        self
    }

    /// Joins the job that this process was started in, by `tautline run` or with a job file.
    pub fn join(self) -> Result<Endpoint> {
        let job = Job::from_environment()?;
        self.join_job(job)
    }

    /// Joins a given job.
    pub fn join_job(self, job: Job) -> Result<Endpoint> {
        self.check()?;
        let node = tautline_node::Endpoint::join(job, self.config, self.names.clone())?;
        Ok(Endpoint::new(Core::new(node, self.names, self.handlers, self.rpc)))
    }

    /// Joins a given job over a given device and clock: simulations do. `entropy` must never repeat.
    pub fn join_over(
        self,
        job: &Job,
        device: Box<dyn Datagram>,
        clock: Clock,
        entropy: [u8; 32],
    ) -> Result<Endpoint> {
        self.check()?;
        let node = tautline_node::Endpoint::over(
            job,
            self.config,
            device,
            clock,
            entropy,
            self.names.clone(),
            None,
        )?;
        Ok(Endpoint::new(Core::new(node, self.names, self.handlers, self.rpc)))
    }

    fn check(&self) -> Result<()> {
        let bad = |why: String| Err(Error::Join(JoinError::Handlers(why)));
        if self.names.len() > MAX_HANDLERS {
            return bad(format!("{} handlers are more than the {MAX_HANDLERS} allowed", self.names.len()));
        }
        for (i, (name, _)) in self.names.iter().enumerate() {
            if name.len() > MAX_NAME {
                let start: String = name.chars().take(40).collect();
                return bad(format!(
                    "the name \"{start}…\" has {} bytes, at most {MAX_NAME} are allowed",
                    name.len()
                ));
            }
            if name.is_empty() {
                return bad("a name is empty".into());
            }
            if self.names[..i].iter().any(|(other, _)| other == name) {
                return bad(format!("the handler \"{name}\" is registered twice"));
            }
        }
        Ok(())
    }
}
