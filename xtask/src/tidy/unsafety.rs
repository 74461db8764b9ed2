//! Crates without unsafe code forbid it to the compiler, in every crate root.

use super::{Report, layers, tree::Tree};

const FORBID: &str = "#![forbid(unsafe_code)]";

pub fn check(tree: &Tree, report: &mut Report) {
    for file in tree.rust() {
        let Some(layer) = layers::folder_of(&file.path).and_then(layers::of_folder) else { continue };
        let inside = file.path.strip_prefix("crates/").and_then(|path| path.strip_prefix(layer.folder));
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
    fn the_attribute_in_a_comment_does_not_count() {
        let text = format!("// {FORBID}\n");
        assert_one(&errors_of(check, &[("crates/node/src/lib.rs", text.as_str())]), "lacks");
    }
}
