//! The map of crates as one table: who may use whom, who may hold unsafe code, and which outside crates each may
//! depend on, with the reason. Development dependencies and xtask itself are free.

pub struct Layer {
    /// The folder below `crates/`, which is also the package's name after `tautline-`.
    pub folder: &'static str,
    /// Packages of this workspace that it may depend on.
    pub inside: &'static [&'static str],
    /// Packages from elsewhere that it may depend on, and why.
    pub outside: &'static [(&'static str, &'static str)],
    pub may_be_unsafe: bool,
}

pub const LAYERS: &[Layer] = &[
    Layer {
        folder: "cli",
        inside: &["tautline", "tautline-sim", "tautline-baseline"],
        outside: &[
            ("anyhow", "errors of a program for people: what was wrong, and the chain of causes"),
            ("clap", "one definition per flag: name, help, parser"),
            ("indicatif", "progress bars"),
            ("rustix", "pinning, descriptors, signals and parent-death signals as safe calls"),
            ("serde", "rows and reports as JSON"),
            ("serde_json", "rows and reports as JSON"),
            (
                "signal-hook",
                "ctrl-C and termination as something that can be waited for, without unsafe code",
            ),
            ("tracing-subscriber", "log lines of the libraries, when asked for"),
        ],
        may_be_unsafe: false,
    },
    Layer { folder: "mpi", inside: &["tautline"], outside: &[], may_be_unsafe: true },
    Layer {
        folder: "sim",
        inside: &["tautline", "tautline-node", "tautline-link", "tautline-device", "tautline-wire"],
        outside: &[],
        may_be_unsafe: false,
    },
    Layer {
        folder: "tautline",
        inside: &["tautline-node"],
        outside: &[
            ("zerocopy", "typed reads and writes of plain types without unsafe code"),
            ("serde", "requests and answers of typed calls are any type that derives it"),
            ("postcard", "how they travel: compact, specified, and nothing but serde at run time"),
            ("futures-core", "the trait of event streams, if asked for"),
            ("futures-io", "the traits of byte streams, if asked for"),
        ],
        may_be_unsafe: false,
    },
    Layer {
        folder: "node",
        inside: &["tautline-link", "tautline-device", "tautline-mem", "tautline-wire"],
        outside: &[
            ("rustix", "waiting, clocks, random bits and the job's key, as safe calls"),
            ("tracing", "log lines, which the program's own subscriber takes"),
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
        inside: &["tautline-wire"],
        outside: &[
            ("aegis", "the tag of long frames; docs/decisions/0002"),
            ("aes", "the pad of short frames' tags; docs/decisions/0002"),
            ("blake3", "keys derived from the job's key and the handshake's proof"),
            ("polyval", "the hash of short frames' tags; docs/decisions/0002"),
            ("ring", "AES-128-GCM of sealed mode; docs/decisions/0002"),
        ],
        may_be_unsafe: false,
    },
    Layer { folder: "wire", inside: &[], outside: &[], may_be_unsafe: false },
    Layer {
        folder: "mem",
        inside: &[],
        outside: &[
            ("loom", "the sync façade becomes it under --cfg loom, never in a normal build"),
            ("rustix", "mapped pages"),
        ],
        may_be_unsafe: true,
    },
    Layer {
        folder: "baseline",
        inside: &[],
        outside: &[
            (
                "futures",
                "the calls of tarpc that are under way at once, in no build that does not ask for it",
            ),
            ("iceoryx2", "a rival to measure, in no build that does not ask for it"),
            (
                "libc",
                "packed UDP with sendmmsg, UDP_SEGMENT and UDP_GRO, eBPF and dlopen, which rustix does not have",
            ),
            ("rustix", "pipes, sockets, pinning and clocks as safe calls"),
            ("tarpc", "a rival to measure, in no build that does not ask for it"),
            ("tokio", "what tarpc runs on, in no build that does not ask for it"),
        ],
        may_be_unsafe: true,
    },
];

/// The layer in `crates/<folder>/`.
pub fn of_folder(folder: &str) -> Option<&'static Layer> {
    LAYERS.iter().find(|layer| layer.folder == folder)
}

/// The part of `path` between `crates/` and the next slash.
pub fn folder_of(path: &str) -> Option<&str> {
    path.strip_prefix("crates/")?.split_once('/').map(|(folder, _)| folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_has_no_cycle() {
        // Each round takes away the crates that stand on nothing that is left.
        let mut left: Vec<_> = LAYERS.iter().collect();
        while !left.is_empty() {
            let folders: Vec<_> = left.iter().map(|layer| layer.folder).collect();
            let before = left.len();
            let stands_on_left =
                |name: &&str| folders.contains(&name.strip_prefix("tautline-").unwrap_or(name));
            left.retain(|layer| layer.inside.iter().any(stands_on_left));
            assert!(left.len() < before, "a cycle among {folders:?}");
        }
    }

    #[test]
    fn folders_are_read_from_paths() {
        assert_eq!(folder_of("crates/link/src/lib.rs"), Some("link"));
        assert_eq!(folder_of("xtask/src/main.rs"), None);
        assert!(of_folder("link").is_some() && of_folder("chain").is_none());
    }
}
