//! Adding ranks to the running job, through its launcher (J-22).

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::path::PathBuf;

use tautline_launch::control::{ControlError, Request, ask};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::{JoinError, Rank};

/// Where the launcher is asked, if it can be asked, and if its notices are read.
pub(crate) struct Control(pub(crate) Option<PathBuf>);

/// As [`crate::Endpoint::spawn`].
pub(crate) fn spawn(
    core: &Core,
    count: u32,
    program: &OsStr,
    arguments: Vec<OsString>,
) -> Result<Range<Rank>> {
    core.check_open()?;
    let refused = |why: &str| Error::Join(JoinError::Launcher(why.to_owned()));
    let Some(Control(Some(path))) = core.attachment::<Control>() else {
        return Err(refused(
            "it adds no ranks for this process: only `tautline run` can, for programs that call \
             Builder::watch_members before they join",
        ));
    };
    let request = Request::from_here(count, program.to_owned(), arguments).map_err(JoinError::System)?;
    match ask(path, &request, None) {
        Ok(started) => Ok(started.ranks),
        Err(ControlError::Gone(error)) => Err(Error::Join(JoinError::System(error))),
        Err(ControlError::Refused(why)) => Err(refused(&why)),
    }
}
