//! Crates without unsafe code forbid it to the compiler, in every crate root. A crate with one unsafe module
//! denies it, and allows it for that module only.

use super::{Report, layers, tree::Tree};

const FORBID: &str = "#![forbid(unsafe_code)]";
const DENY: &str = "#![deny(unsafe_code)]";
/// Crates with one unsafe module, and the line that allows it.
const ONE_MODULE: &[(&str, &str)] = &[("launch", "#[allow(unsafe_code)]\nmod pmix;")];

pub fn check(tree: &Tree, report: &mut Report) {
    for file in tree.rust() {
        let Some(layer) = layers::folder_of(&file.path).and_then(layers::of_folder) else { continue };
        let inside = file.path.strip_prefix("crates/").and_then(|path| path.strip_prefix(layer.folder));
        if let Some((_, allowed)) = ONE_MODULE.iter().find(|(folder, _)| *folder == layer.folder) {
            let is_root = inside.is_some_and(is_root);
            let others = file.source.code.matches("allow(unsafe_code)").count();
            let expected = usize::from(is_root && file.source.code.contains(allowed));
            if is_root && !file.source.code.contains(DENY) || others != expected {
                report.error(
                    &file.path,
                    0,
                    format!("lacks {DENY}, or allows unsafe code elsewhere than in {allowed:?}"),
                );
            }
            continue;
        }
        if !layer.may_be_unsafe && inside.is_some_and(is_root) && !file.source.code.contains(FORBID) {
            report.error(&file.path, 0, format!("lacks {FORBID}"));
        }
    }
}

fn is_root(inside: &str) -> bool {
    matches!(inside, "/src/lib.rs" | "/src/main.rs") || inside.starts_with("/src/bin/")
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_one, errors_of};
    use super::*;

    #[test]
    fn a_root_that_forbids_unsafe_passes_and_so_does_a_crate_that_may_use_it() {
        let files = [
            ("crates/link/src/lib.rs", FORBID),
            ("crates/link/src/send.rs", ""),
            ("crates/mem/src/lib.rs", ""),
        ];
        assert_eq!(errors_of(check, &files), [] as [&str; 0]);
    }

    #[test]
    fn a_root_without_it_is_an_error() {
        assert_one(&errors_of(check, &[("crates/wire/src/lib.rs", "")]), "crates/wire/src/lib.rs: lacks");
        assert_one(&errors_of(check, &[("crates/cli/src/main.rs", "")]), "crates/cli/src/main.rs: lacks");
    }

    #[test]
    fn one_module_may_be_unsafe_where_that_is_said() {
        let root = format!("{DENY}\nmod a;\n{}\n", ONE_MODULE[0].1);
        let of = |root: &str, other: &str| {
            errors_of(check, &[("crates/launch/src/lib.rs", root), ("crates/launch/src/a.rs", other)])
        };
        assert_eq!(of(&root, ""), [] as [&str; 0]);
        assert_one(&of(&root, "#![allow(unsafe_code)]"), "crates/launch/src/a.rs: lacks");
        assert_one(&of(&root.replace("mod pmix", "mod b"), ""), "crates/launch/src/lib.rs: lacks");
        assert_one(&of(&root.replace(DENY, ""), ""), "crates/launch/src/lib.rs: lacks");
    }

    #[test]
    fn the_attribute_in_a_comment_does_not_count() {
        let text = format!("// {FORBID}\n");
        assert_one(&errors_of(check, &[("crates/node/src/lib.rs", text.as_str())]), "lacks");
    }
}
