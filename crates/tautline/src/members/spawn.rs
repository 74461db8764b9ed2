//! Adding ranks to the running job, through its launcher (J-22).

use std::ffi::OsStr;
use std::ops::Range;
use std::path::PathBuf;

use tautline_launch::control::{ControlError, Request, ask};

use crate::endpoint::Endpoint;
use crate::error::{Error, Result};
use crate::{JoinError, Rank};

/// Where the launcher is asked, if it can be asked, and if its notices are read.
pub(crate) struct Control(pub(crate) Option<PathBuf>);

impl Endpoint {
    /// Has `tautline run` start `count` more processes in this job, and returns their ranks, which follow the
    /// existing ones. Members that watch ([`crate::Builder::watch_members`]) are told by
    /// [`crate::Event::MemberJoined`] and can then exchange messages with them; this process must be one.
    /// [`Endpoint::size`], and what is made of it, [`Endpoint::world`] and [`Endpoint::barrier`], stay as
    /// they were here; for the new processes it is the number of all ranks at their start.
    ///
    /// They get the directory and the environment of this process, and their output goes where the job's
    /// goes. When one fails, the job is ended, as for every rank.
    pub fn spawn(
        &self,
        count: u32,
        program: impl AsRef<OsStr>,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<Range<Rank>> {
        self.core.check_open()?;
        let refused = |why: &str| Error::Join(JoinError::Launcher(why.to_owned()));
        let Some(Control(Some(path))) = self.core.attachment::<Control>() else {
            return Err(refused(
                "ranks are added to jobs that `tautline run` started on one host, by processes that watch \
                 members: call Builder::watch_members before joining",
            ));
        };
        let arguments = arguments.into_iter().map(|argument| argument.as_ref().to_owned()).collect();
        let request = Request::from_here(count, program.as_ref().to_owned(), arguments);
        let request = request.map_err(JoinError::System)?;
        match ask(path, &request, None) {
            Ok(started) => Ok(started.ranks),
            Err(ControlError::Gone(error)) => Err(Error::Join(JoinError::System(error))),
            Err(ControlError::Refused(why)) => Err(refused(&why)),
        }
    }
}
