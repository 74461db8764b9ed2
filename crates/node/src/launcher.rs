//! Which launcher started the process, and why it was not joined through another (J-8).

/// How this process found its job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Launcher {
    /// The launcher's name: `tautline run`, `job file`, `pmi1`, `pmi2`, `pmix` or `alone`.
    pub name: &'static str,
    /// How it was recognized.
    pub reason: String,
    /// The other launchers, each with the reason why it was not taken.
    pub passed_over: Vec<(&'static str, String)>,
}

impl Launcher {
    /// A launcher, and how it was recognized.
    pub fn new(name: &'static str, reason: impl Into<String>) -> Launcher {
        Launcher { name, reason: reason.into(), passed_over: Vec::new() }
    }
}

impl std::fmt::Display for Launcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.name, self.reason)?;
        self.passed_over.iter().try_for_each(|(name, reason)| write!(f, "; not {name}: {reason}"))
    }
}
