//! Registers handlers and styles, and joins a job.

use std::any::Any;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tautline_node::limits::{MAX_HANDLERS, MAX_NAME};

use crate::collective::{self, Collectives};
use crate::core::{Core, Failures, OnFailure, SharedStyle};
use crate::endpoint::{Endpoint, Lanes};
use crate::error::{Error, HandlerFailure, Result};
use crate::group::Groups;
use crate::messages::handlers::Registered;
use crate::messages::inbox::Inbox;
use crate::messages::{Borrowed, Message, Short};
use crate::spawn::Control;
use crate::{Config, Environment, Job, JoinError, Security, Waiting, members};

/// Registers handlers and joins a job; see [`Endpoint::builder`].
#[derive(Default)]
#[must_use = "a builder does nothing until it joins"]
pub struct Builder {
    config: Config,
    handlers: Vec<(String, Registered)>,
    attachments: Vec<Box<dyn Any>>,
    on_failure: Option<OnFailure>,
    /// Handlers that tell their senders of failures.
    telling: Vec<String>,
    shared: Vec<Arc<dyn SharedStyle>>,
    watches_members: bool,
}

/// Something that registers handlers of its own: a service, a queue, a whole style of communication. See
/// [`Builder::with`].
pub trait Style {
    /// Registers what the style needs.
    fn register(self, builder: Builder) -> Builder;
}

impl<F: FnOnce(Builder) -> Builder> Style for F {
    fn register(self, builder: Builder) -> Builder {
        self(builder)
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.handlers.iter().map(|(name, _)| &**name).collect();
        f.debug_struct("Builder").field("handlers", &names).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Returns a builder: register handlers, then join.
    pub fn builder() -> Builder {
        Builder::default()
    }
}

impl Lanes {
    /// Opens a lane with the handlers of `builder`, to be driven by this thread. Its number is the lowest
    /// that is free. Peers that have been sending to it are connected from now on.
    ///
    /// The lane has the configuration of its node: that of `builder` is not used.
    pub fn open(&self, builder: Builder) -> Result<Endpoint> {
        builder.open(|names| self.0.open(names))
    }

    /// Opens the lane of the protocol among members.
    pub(crate) fn open_for_members(&self, builder: Builder) -> Result<Endpoint> {
        builder.open(|names| self.0.open_for_members(names))
    }

    /// Opens a lane in an environment of the program's own, as simulations do.
    pub fn open_in(&self, builder: Builder, environment: Environment) -> Result<Endpoint> {
        builder.open(|names| self.0.open_over(environment, names))
    }
}

impl Builder {
    /// Registers an `async` handler (M-4). It starts with the first frame of each message. When it reads
    /// bytes that have not arrived, it is suspended, and other handlers continue. If it returns early, the
    /// rest of the message is discarded.
    ///
    /// A handler of any kind may hold an aperture or a clone of the endpoint. A clone keeps the endpoint open
    /// until [`Endpoint::close`]. An aperture keeps its socket until then, or until the last clone is
    /// dropped, when the handlers are dropped, too.
    pub fn on<H, F>(self, name: &str, handler: H) -> Builder
    where
        H: Fn(Message) -> F + 'static,
        F: Future<Output = Result<()>> + 'static,
    {
        self.register(name, Registered::stream(handler))
    }

    /// Registers a handler for messages that fit one frame: a plain function of the whole message, the
    /// cheapest kind. Sending it a longer message is an error at the sender.
    pub fn on_short<H>(self, name: &str, handler: H) -> Builder
    where
        H: FnMut(Short<'_>) + 'static,
    {
        self.register(name, Registered::short(handler))
    }

    /// Registers a handler for whole messages of any size: a plain function. A message that was lent
    /// ([`Endpoint::loan`]) still lies where its sender wrote it; all others are collected first.
    pub fn on_loan<H>(self, name: &str, handler: H) -> Builder
    where
        H: FnMut(Borrowed) + 'static,
    {
        self.register(name, Registered::loan(handler))
    }

    /// Registers an `async` handler that is started by `whole`, in place, if the message arrived in one
    /// frame, and by `handler` otherwise. For styles such as [`crate::rpc`], which answer every message (see
    /// [`Builder::tells_sender`]).
    ///
    /// The flag is true if more than [`crate::node::limits::MAX_RUNNING`] handlers are unfinished: then this
    /// one should refuse the message and return soon. For other handlers such messages are dropped.
    pub fn on_whole<H, W, F>(self, name: &str, handler: H, whole: W) -> Builder
    where
        H: Fn(Message, bool) -> F + 'static,
        W: Fn(Short<'_>, bool) -> F + 'static,
        F: Future<Output = Result<()>> + 'static,
    {
        self.register(name, Registered::whole(handler, whole)).tells_sender(name)
    }

    /// Notes that a handler tells its sender when it fails, as a style that answers every message does. Such
    /// a failure ends no wait of this rank; see [`Endpoint::run_until`].
    pub fn tells_sender(mut self, name: &str) -> Builder {
        self.telling.push(name.to_owned());
        self
    }

    fn register(mut self, name: &str, handler: Registered) -> Builder {
        self.handlers.push((name.to_owned(), handler));
        self
    }

    /// Registers the handlers of a style: a service of [`crate::rpc`], the named end of a [`crate::queue`] or
    /// a [`crate::stream`], or one of your own.
    pub fn with(self, style: impl Style) -> Builder {
        style.register(self)
    }

    /// Attaches a value to the endpoint, one per type, which a style finds there with
    /// [`crate::style::Hooks::attachment`].
    pub fn attach<T: 'static>(mut self, value: T) -> Builder {
        self.attachments.retain(|attached| !attached.is::<T>());
        self.attachments.push(Box::new(value));
        self
    }

    /// Hands every handler that panics or returns an error to `function`, for servers that go on: such
    /// failures are neither logged nor returned by [`Endpoint::run_until`] or [`Endpoint::poll_failure`].
    ///
    /// `function` runs where the handler ran, so it must not extract or wait.
    pub fn on_failure(mut self, function: impl FnMut(HandlerFailure) + 'static) -> Builder {
        self.on_failure = Some(Box::new(function));
        self
    }

    /// Attaches a value that handles on other threads find.
    pub(crate) fn attach_shared(mut self, value: Arc<dyn SharedStyle>) -> Builder {
        self.shared.push(value);
        self
    }

    /// Sets the whole configuration.
    pub fn config(mut self, config: Config) -> Builder {
        self.config = config;
        self
    }

    /// Sets the protection of frames; all members must use the same.
    pub fn security(mut self, security: Security) -> Builder {
        self.config.link.security = security;
        self
    }

    /// Sets how this endpoint waits.
    pub fn waiting(mut self, waiting: Waiting) -> Builder {
        self.config.waiting = waiting;
        self
    }

    /// Sets how many bytes the longest message has that is kept whole: by [`Message::read_to_end`], for
    /// [`Builder::on_loan`], as a request or an answer of [`crate::rpc`], in an exchange. A longer one is
    /// [`Error::TooLong`] where it is read. The default is 1 GiB ([`crate::node::limits::MAX_WHOLE`]).
    pub fn max_whole(mut self, bytes: u64) -> Builder {
        self.config.max_whole = bytes;
        self
    }

    /// Sets how many bytes are kept of one process's messages that are unfinished, or wait for the program: a
    /// message that exceeds it is [`Error::TooMuchHeld`] where it is read. The default is 2 GiB
    /// ([`crate::node::limits::MAX_HELD`]).
    pub fn max_held(mut self, bytes: u64) -> Builder {
        self.config.max_held = bytes;
        self
    }

    /// Sets for how long closing waits for peers to take what was sent; see [`Endpoint::close`]. The default
    /// is 2 s.
    pub fn close_timeout(mut self, time: Duration) -> Builder {
        self.config.close_timeout = time;
        self
    }

    /// Tells of every member of the job that ends, is started again or joins, whether there is a channel to
    /// it or not: as [`crate::Event::PeerDown`], [`crate::Event::MemberStarted`] and
    /// [`crate::Event::MemberJoined`]. `tautline run` sees that itself (N-26). Under other launchers the
    /// members that call this tell each other (N-29): a thread of its own keeps a channel to the next rank,
    /// and a death is noticed within the silence bound of a link.
    pub fn watch_members(mut self) -> Builder {
        self.watches_members = true;
        self
    }

    /// Joins the job that this process was started in: by `tautline run`, with a job file, or by a launcher
    /// with PMI, such as `mpiexec` of MPICH and `srun --mpi=pmi2`. A process that none of them started is a
    /// job of one. [`crate::Event::Launcher`] says which it was.
    pub fn join(self) -> Result<Endpoint> {
        let job = tautline_launch::job_from_environment()?;
        self.join_job(job)
    }

    /// Joins a given job.
    pub fn join_job(self, mut job: Job) -> Result<Endpoint> {
        let config = self.config.clone();
        let watches = self.watches_members;
        // Closed if nobody wants them, so that the launcher sends none.
        let notices = job.notices.take().filter(|_| watches);
        // Processes that exchanged addresses through their launcher have all been started.
        let present = job.launcher.as_ref().is_some_and(|launcher| launcher.name.starts_with("pmi"));
        let bound = config.link.silence;
        let control = Control(job.control.take().filter(|_| notices.is_some()));
        job.may_grow = control.0.is_some();
        let endpoint =
            self.attach(control).open(|names| tautline_node::Endpoint::join(job, config, names))?;
        match notices {
            Some(notices) => members::watch(endpoint.members(), notices).map_err(JoinError::System)?,
            None if watches => members::protocol::take_part(&endpoint, present, bound)?,
            None => {}
        }
        Ok(endpoint)
    }

    /// Joins a given job in an environment of the program's own, as simulations do.
    pub fn join_in(self, job: &Job, environment: Environment) -> Result<Endpoint> {
        let config = self.config.clone();
        self.open(|names| tautline_node::Endpoint::over(job, config, environment, names))
    }

    /// Opens the node below, or a lane of it, with the names of the handlers.
    pub(crate) fn open(
        self,
        open: impl FnOnce(Vec<(String, bool)>) -> Result<tautline_node::Endpoint, JoinError>,
    ) -> Result<Endpoint> {
        let this = self.with_collectives().attach_shared(Arc::<Groups>::default());
        this.check()?;
        let node = open(this.names())?;
        let inbox = Box::new(Inbox::new(this.handlers));
        let failures = Failures::new(this.on_failure, this.telling);
        let core = Core::new(node, inbox, this.attachments, (failures, this.shared));
        Collectives::bind(&core);
        Ok(Endpoint::new(core))
    }

    /// Registers the handlers of barriers and exchanges behind those of the program.
    fn with_collectives(mut self) -> Builder {
        let collectives = Collectives::default();
        self.handlers.extend(collectives.handlers());
        self.attach(collectives)
    }

    /// The handlers' names, and which of them take only messages that fit one frame.
    fn names(&self) -> Vec<(String, bool)> {
        self.handlers.iter().map(|(name, handler)| (name.clone(), handler.is_short())).collect()
    }

    fn check(&self) -> Result<()> {
        let bad = |why: String| Err(Error::Join(JoinError::Handlers(why)));
        if self.handlers.len() > MAX_HANDLERS {
            let (own, most) =
                (self.handlers.len() - collective::HANDLERS, MAX_HANDLERS - collective::HANDLERS);
            return bad(format!("{own} handlers are more than the {most} allowed"));
        }
        for (i, (name, _)) in self.handlers.iter().enumerate() {
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
            if self.handlers[..i].iter().any(|(other, _)| other == name) {
                return bad(format!("the handler \"{name}\" is registered twice"));
            }
        }
        Ok(())
    }
}
