//! The crates of this workspace: which crates each may depend on, of ours and external ones, and whether it
//! may contain unsafe code. Development dependencies, and those of xtask, are not restricted.

pub struct Layer {
    /// The folder below `crates/`, which is also the package's name after `tautline-`, with `-` for `/`.
    pub folder: &'static str,
    /// Packages of this workspace that it may depend on.
    pub inside: &'static [&'static str],
    /// External packages that it may depend on, and why.
    pub outside: &'static [(&'static str, &'static str)],
    pub may_be_unsafe: bool,
}

pub const LAYERS: &[Layer] = &[
    Layer {
        folder: "cli",
        inside: &["tautline", "tautline-launch", "tautline-mpi", "tautline-sim", "tautline-baseline"],
        outside: &[
            ("anyhow", "error messages for users, with the chain of causes"),
            ("clap", "one definition per flag: name, help, parser"),
            ("indicatif", "progress bars"),
            ("rustix", "pinning, descriptors, signals and parent-death signals as safe calls"),
            ("serde", "rows and reports as JSON"),
            ("serde_json", "rows and reports as JSON"),
            ("signal-hook", "waiting for SIGINT and SIGTERM without unsafe code"),
            ("tracing-subscriber", "log output of the libraries, if requested"),
        ],
        may_be_unsafe: false,
    },
    Layer {
        folder: "attack",
        inside: &["tautline", "tautline-baseline"],
        outside: &[
            ("anyhow", "error messages for users, with the chain of causes"),
            ("clap", "one definition per flag: name, help, parser"),
            ("command-fds", "descriptors for children, by number"),
            ("rustix", "signals and parent-death signals as safe calls"),
            ("serde", "records as JSON"),
            ("serde_json", "records as JSON"),
        ],
        may_be_unsafe: false,
    },
    Layer {
        folder: "mpi",
        inside: &["tautline"],
        outside: &[("rustix", "the monotonic clock, which the standard library compares only with itself")],
        may_be_unsafe: true,
    },
    Layer { folder: "mpi/abi", inside: &["tautline-mpi"], outside: &[], may_be_unsafe: true },
    Layer { folder: "mpi/mpich", inside: &["tautline-mpi"], outside: &[], may_be_unsafe: true },
    Layer {
        folder: "sim",
        inside: &["tautline", "tautline-node", "tautline-link", "tautline-device", "tautline-wire"],
        outside: &[],
        may_be_unsafe: false,
    },
    Layer {
        folder: "tautline",
        inside: &["tautline-launch", "tautline-members", "tautline-node"],
        outside: &[
            ("zerocopy", "typed reads and writes of plain types without unsafe code"),
            ("serde", "requests and replies of typed calls"),
            ("postcard", "the encoding of typed calls: compact and specified, without a runtime of its own"),
            ("futures-core", "the `Stream` trait for events, as an optional feature"),
            ("futures-io", "the `AsyncRead` and `AsyncWrite` traits, as an optional feature"),
            ("tokio", "the driver that waits for a node's descriptor in a runtime, as an optional feature"),
            ("tracing", "log output for the subscriber of the program"),
        ],
        may_be_unsafe: false,
    },
    Layer {
        folder: "launch",
        inside: &["tautline-node"],
        outside: &[
            ("ring", "the job key, sealed to each process with X25519 and AES-GCM"),
            ("libc", "dlopen, for the library of PMIx"),
            ("rustix", "the owner and the mode of files as safe calls"),
        ],
        may_be_unsafe: false,
    },
    Layer {
        folder: "node",
        inside: &["tautline-link", "tautline-device", "tautline-mem", "tautline-wire"],
        outside: &[
            ("rustix", "waiting, clocks, random bits and the job's key, as safe calls"),
            ("tracing", "log output for the subscriber of the program"),
        ],
        may_be_unsafe: false,
    },
    Layer {
        folder: "device",
        inside: &["tautline-mem", "tautline-wire"],
        outside: &[
            ("libc", "sendmmsg and recvmmsg with GSO and GRO control messages, which rustix does not have"),
            ("rustix", "sockets and polling as safe calls"),
        ],
        may_be_unsafe: true,
    },
    Layer {
        folder: "link",
        inside: &["tautline-aegis", "tautline-wire"],
        outside: &[
            ("aegis", "the tag of long frames; docs/decisions/0002"),
            ("aes", "the pad of short frames' tags; docs/decisions/0002"),
            ("blake3", "keys derived from the job's key and the handshake's proof"),
            ("polyval", "the hash of short frames' tags; docs/decisions/0002"),
            ("ring", "AES-128-GCM of sealed mode; docs/decisions/0002"),
        ],
        may_be_unsafe: false,
    },
    Layer { folder: "aegis", inside: &[], outside: &[], may_be_unsafe: true },
    Layer { folder: "wire", inside: &[], outside: &[], may_be_unsafe: false },
    Layer { folder: "members", inside: &[], outside: &[], may_be_unsafe: false },
    Layer { folder: "skips", inside: &[], outside: &[], may_be_unsafe: false },
    Layer {
        folder: "mem",
        inside: &[],
        outside: &[
            ("loom", "model checking of the lock-free structures, only with --cfg loom"),
            ("rustix", "mapped pages"),
        ],
        may_be_unsafe: true,
    },
    Layer {
        folder: "baseline",
        inside: &[],
        outside: &[
            ("futures", "concurrent calls of tarpc; optional"),
            ("iceoryx2", "a library to compare with; optional"),
            (
                "libc",
                "packed UDP with sendmmsg, UDP_SEGMENT and UDP_GRO, eBPF and dlopen, which rustix does not have",
            ),
            ("rustix", "pipes, sockets, pinning and clocks as safe calls"),
            ("tarpc", "a library to compare with; optional"),
            ("tokio", "the runtime of tarpc; optional"),
        ],
        may_be_unsafe: true,
    },
];

/// The layer in `crates/<folder>/`.
pub fn of_folder(folder: &str) -> Option<&'static Layer> {
    LAYERS.iter().find(|layer| layer.folder == folder)
}

/// The folder of the package that `path` belongs to: the part between `crates/` and the next slash, or one
/// more part for a package inside the folder of another one.
pub fn folder_of(path: &str) -> Option<&str> {
    let path = path.strip_prefix("crates/")?;
    let nested = LAYERS.iter().map(|layer| layer.folder).filter(|folder| folder.contains('/'));
    let inside = |folder: &&str| path.strip_prefix(*folder).is_some_and(|rest| rest.starts_with('/'));
    nested.into_iter().find(inside).or_else(|| path.split_once('/').map(|(folder, _)| folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_allowed_dependencies_have_no_cycle() {
        // Each round removes the crates that depend on none of those that are left.
        let mut left: Vec<_> = LAYERS.iter().collect();
        while !left.is_empty() {
            let folders: Vec<_> = left.iter().map(|layer| layer.folder).collect();
            let before = left.len();
            let depends_on_left =
                |name: &&str| folders.contains(&name.strip_prefix("tautline-").unwrap_or(name));
            left.retain(|layer| layer.inside.iter().any(depends_on_left));
            assert!(left.len() < before, "a cycle among {folders:?}");
        }
    }

    #[test]
    fn folders_are_read_from_paths() {
        assert_eq!(folder_of("crates/link/src/lib.rs"), Some("link"));
        assert_eq!(folder_of("xtask/src/main.rs"), None);
        assert_eq!(folder_of("crates/mpi/abi/src/lib.rs"), Some("mpi/abi"));
        assert_eq!(folder_of("crates/mpi/src/lib.rs"), Some("mpi"));
        assert!(of_folder("link").is_some() && of_folder("chain").is_none());
    }
}
