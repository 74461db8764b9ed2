//! Every crate depends only on what `layers.rs` allows it.

use toml::{Table, Value};

use super::layers::{self, Layer};
use super::{Report, tree::Tree};

pub fn check(tree: &Tree, report: &mut Report) {
    check_against(layers::LAYERS, tree, report);
}

fn check_against(map: &[Layer], tree: &Tree, report: &mut Report) {
    let workspace =
        tree.get("Cargo.toml").and_then(|file| file.text.parse::<Table>().ok()).unwrap_or_default();
    for file in tree.files() {
        let Some(folder) = layers::folder_of(&file.path) else { continue };
        if file.path != format!("crates/{folder}/Cargo.toml") {
            continue;
        }
        let Some(layer) = map.iter().find(|layer| layer.folder == folder) else {
            report.error(&file.path, 0, "this crate is not in xtask/src/tidy/layers.rs: add it");
            continue;
        };
        match file.text.parse::<Table>() {
            Ok(manifest) => check_manifest(&file.path, &manifest, &workspace, layer, report),
            Err(error) => report.error(&file.path, 0, format!("not a manifest: {error}")),
        }
    }
}

fn check_manifest(path: &str, manifest: &Table, workspace: &Table, layer: &Layer, report: &mut Report) {
    let used = dependencies(manifest, workspace);
    for name in &used {
        let ours = name == "tautline" || name.starts_with("tautline-");
        if ours && !layer.inside.contains(&name.as_str()) {
            let allowed =
                if layer.inside.is_empty() { "nothing".to_owned() } else { layer.inside.join(", ") };
            report.error(path, 0, format!("may not depend on {name}; allowed: {allowed}"));
        }
        if !ours && !layer.outside.iter().any(|(allowed, _)| allowed == name) {
            let hint = "add it to xtask/src/tidy/layers.rs with a reason, or do not use it";
            report.error(path, 0, format!("{name} is not among the external crates allowed here: {hint}"));
        }
    }
    for (name, _) in layer.outside {
        if !used.iter().any(|used| used == name) {
            report.error(
                path,
                0,
                format!("xtask/src/tidy/layers.rs allows {name}, which is not used: remove it"),
            );
        }
    }
}

/// The packages of the normal and build dependencies, including those of single targets.
fn dependencies(manifest: &Table, workspace: &Table) -> Vec<String> {
    let inherited = workspace.get("workspace").and_then(|table| table.get("dependencies"));
    let targets = manifest.get("target").and_then(Value::as_table);
    let targets = targets.into_iter().flat_map(Table::values).filter_map(Value::as_table);
    let mut names = Vec::new();
    for table in std::iter::once(manifest).chain(targets) {
        for section in ["dependencies", "build-dependencies"] {
            let entries = table.get(section).and_then(Value::as_table);
            for (key, entry) in entries.into_iter().flatten() {
                let from_workspace = entry.get("workspace").and_then(|_| inherited?.get(key));
                let renamed = from_workspace.unwrap_or(entry).get("package").and_then(Value::as_str);
                names.push(renamed.unwrap_or(key).to_owned());
            }
        }
    }
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_one, errors_of};
    use super::*;

    const MAP: &[Layer] = &[Layer {
        folder: "top",
        inside: &["tautline"],
        outside: &[("rustix", "system calls")],
        may_be_unsafe: false,
    }];

    fn errors_with(dependencies: &str) -> Vec<String> {
        let root = "[workspace.dependencies]\nhidden = { package = \"tautline-mem\", version = \"0.1\" }\n";
        let manifest = format!("[dependencies]\nrustix = \"1\"\n{dependencies}");
        let files = [("Cargo.toml", root), ("crates/top/Cargo.toml", manifest.as_str())];
        errors_of(|tree, report| check_against(MAP, tree, report), &files)
    }

    #[test]
    fn what_the_map_allows_passes() {
        let manifest =
            "tautline.workspace = true\n[dev-dependencies]\nproptest = \"1\"\ntautline-sim = \"1\"\n";
        assert_eq!(errors_with(manifest), [] as [&str; 0]);
    }

    #[test]
    fn a_dependency_that_is_not_allowed_is_caught() {
        let errors = errors_with("tautline-node.workspace = true\n");
        assert_one(&errors, "may not depend on tautline-node; allowed: tautline");
    }

    #[test]
    fn renamed_and_target_specific_dependencies_are_seen() {
        assert_one(&errors_with("hidden.workspace = true\n"), "tautline-mem");
        let renamed = "w = { package = \"tautline-wire\", version = \"1\" }\n";
        assert_one(&errors_with(renamed), "tautline-wire");
        let target = "[target.'cfg(unix)'.dependencies]\ntautline-link = \"1\"\n";
        assert_one(&errors_with(target), "tautline-link");
        assert_one(&errors_with("[build-dependencies]\ntautline-link = \"1\"\n"), "tautline-link");
    }

    #[test]
    fn an_external_crate_needs_a_reason() {
        assert_one(&errors_with("left-pad = \"1\"\n"), "left-pad is not among the external crates");
    }

    #[test]
    fn an_external_crate_that_is_not_used_is_caught() {
        let files = [("crates/top/Cargo.toml", "[dependencies]\ntautline = \"1\"\n")];
        let errors = errors_of(|tree, report| check_against(MAP, tree, report), &files);
        assert_one(&errors, "allows rustix, which is not used");
    }

    #[test]
    fn an_unknown_crate_is_caught() {
        let errors = errors_of(check, &[("crates/chain/Cargo.toml", "[package]\nname = \"chain\"\n")]);
        assert_one(&errors, "this crate is not in");
    }
}
