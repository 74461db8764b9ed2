//! The features of the crates, each by itself: the other stages build the default ones of the whole workspace
//! at once, `tarpc` among them.

use std::process::Stdio;

use anyhow::{Context, Result, bail};

use crate::{run, skips};

/// What is run for each feature. A test is named where the other stages do not run it. Clippy also checks the
/// crates of the workspace that the named one depends on: with the command, without its default features, it
/// checks `tautline` without any. Where the whole workspace is named, crates below are taken from what other
/// stages have built.
const FEATURES: &[(&str, &[&str])] = &[
    ("none", &["cargo clippy -p tautline-cli --no-default-features -- -D warnings"]),
    (
        "futures",
        &["cargo clippy -p tautline-cli --no-default-features --features tautline/futures -- -D warnings"],
    ),
    (
        "tokio",
        &["cargo clippy -p tautline-cli --no-default-features --features tautline/tokio -- -D warnings"],
    ),
    (
        "iceoryx2",
        &[
            "cargo clippy --workspace --lib --test pairs --features tautline-baseline/iceoryx2 -- -D warnings",
            "cargo test --workspace --features tautline-baseline/iceoryx2 --test pairs",
        ],
    ),
];

/// What a feature may lack, and what cargo says then.
const LACKING: &[(&str, &str)] = &[
    ("Unable to find libclang", "libclang is not installed"),
    ("failed to download", "its crates cannot be fetched"),
    ("failed to fetch", "its crates cannot be fetched"),
    ("Could not resolve host", "its crates cannot be fetched"),
];

/// Builds and tests every feature. Returns those that could not be, and why.
pub fn check() -> Result<Vec<String>> {
    let mut skipped = Vec::new();
    for (feature, commands) in FEATURES {
        for line in *commands {
            println!("{line}");
            let mut command = run::command(line);
            if line.contains(" test ") {
                skipped.extend(skips::run_tests(&mut command)?);
                continue;
            }
            let output = command.stdout(Stdio::inherit()).output().context("could not start cargo")?;
            let said = String::from_utf8_lossy(&output.stderr);
            eprint!("{said}");
            if output.status.success() {
                continue;
            }
            let Some(why) = lacking(&said) else { bail!("`{line}` failed: {}", output.status) };
            skipped.extend(skips::skipped_part("feature", feature, why)?);
            break;
        }
    }
    Ok(skipped)
}

/// Whether there is a feature of this name.
#[cfg(test)]
pub fn exists(name: &str) -> bool {
    FEATURES.iter().any(|(feature, _)| *feature == name)
}

fn lacking(said: &str) -> Option<&'static str> {
    LACKING.iter().find(|(text, _)| said.contains(text)).map(|(_, why)| *why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_feature_lacks_is_recognised() {
        let bindgen = "thread 'main' panicked: Unable to find libclang: \"couldn't find any valid shared\"";
        assert_eq!(lacking(bindgen), Some("libclang is not installed"));
        assert_eq!(
            lacking("error: failed to download `tarpc v0.38.0`"),
            Some("its crates cannot be fetched")
        );
        assert_eq!(lacking("error[E0308]: mismatched types"), None);
    }

    /// Each feature is listed here, or the command has it by default, so that the other stages test it.
    #[test]
    fn every_feature_is_listed() {
        let features = |crate_name: &str| {
            let path = run::root().join(format!("crates/{crate_name}/Cargo.toml"));
            let manifest: toml::Table = std::fs::read_to_string(path).unwrap().parse().unwrap();
            manifest["features"].as_table().unwrap().clone()
        };
        let by_default = features("cli")["default"].as_array().unwrap().clone();
        for crate_name in ["tautline", "baseline", "cli"] {
            for (feature, _) in features(crate_name).iter().filter(|(feature, _)| *feature != "default") {
                let tested = by_default.iter().any(|default| default.as_str() == Some(feature));
                assert!(tested || FEATURES.iter().any(|(listed, _)| listed == feature), "{feature}");
            }
        }
    }
}
