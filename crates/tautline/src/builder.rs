//! Registers handlers and styles, and joins a job.

use std::any::Any;
use std::future::Future;

use tautline_node::limits::{MAX_HANDLERS, MAX_NAME};

use crate::core::Core;
use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::messages::handlers::Registered;
use crate::messages::inbox::Inbox;
use crate::messages::{Borrowed, Message, Short};
use crate::{Config, Environment, Job, JoinError, Security, Waiting};

/// Registers handlers and joins a job; see [`Endpoint::builder`].
#[derive(Default)]
#[must_use = "a builder does nothing until it joins"]
pub struct Builder {
    config: Config,
    handlers: Vec<(String, Registered)>,
    attachments: Vec<Box<dyn Any>>,
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
    /// frame, and by `handler` otherwise. For styles such as [`crate::rpc`], which answer every message.
    ///
    /// The flag is true if more than [`crate::node::limits::MAX_RUNNING`] handlers are unfinished: then this
    /// one should refuse the message and return soon. For other handlers such messages are dropped.
    pub fn on_whole<H, W, F>(self, name: &str, handler: H, whole: W) -> Builder
    where
        H: Fn(Message, bool) -> F + 'static,
        W: Fn(Short<'_>, bool) -> F + 'static,
        F: Future<Output = Result<()>> + 'static,
    {
        self.register(name, Registered::whole(handler, whole))
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

    /// Joins the job that this process was started in, by `tautline run` or with a job file.
    pub fn join(self) -> Result<Endpoint> {
        let job = Job::from_environment()?;
        self.join_job(job)
    }

    /// Joins a given job.
    pub fn join_job(self, job: Job) -> Result<Endpoint> {
        self.check()?;
        let node = tautline_node::Endpoint::join(job, self.config.clone(), self.names())?;
        Ok(self.endpoint(node))
    }

    /// Joins a given job in an environment of the program's own, as simulations do.
    pub fn join_in(self, job: &Job, environment: Environment) -> Result<Endpoint> {
        self.check()?;
        let (config, names) = (self.config.clone(), self.names());
        let node = tautline_node::Endpoint::over(job, config, environment, names)?;
        Ok(self.endpoint(node))
    }

    /// The handlers' names, and which of them take only messages that fit one frame.
    fn names(&self) -> Vec<(String, bool)> {
        self.handlers.iter().map(|(name, handler)| (name.clone(), handler.is_short())).collect()
    }

    fn endpoint(self, node: tautline_node::Endpoint) -> Endpoint {
        Endpoint::new(Core::new(node, Box::new(Inbox::new(self.handlers)), self.attachments))
    }

    fn check(&self) -> Result<()> {
        let bad = |why: String| Err(Error::Join(JoinError::Handlers(why)));
        if self.handlers.len() > MAX_HANDLERS {
            return bad(format!("{} handlers are more than the {MAX_HANDLERS} allowed", self.handlers.len()));
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
