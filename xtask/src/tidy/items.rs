//! The items of a file: what it defines, implements and imports. Test modules are ignored.

use super::source::{body_open, is_test_module, matching_brace, word_at};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A struct, enum, union, trait or type alias.
    Type,
    Function,
    Macro,
    /// A constant, static or inline module.
    Other,
    /// An impl block without a trait; the item's name is that of the type.
    Inherent,
    /// An impl block of a trait; the item's name is that of the type.
    OfTrait,
    /// A use declaration; the name is the text between `use` and the semicolon.
    Use,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Item<'a> {
    pub kind: Kind,
    pub name: &'a str,
    pub at: usize,
    /// How many inline modules it is in.
    pub depth: usize,
}

/// The items of a file; `code` is without comments and literals.
pub fn items(code: &str) -> Vec<Item<'_>> {
    let mut items = Vec::new();
    collect(code, (0, code.len()), 0, &mut items);
    items
}

fn collect<'a>(code: &'a str, (start, end): (usize, usize), depth: usize, items: &mut Vec<Item<'a>>) {
    let mut at = start;
    while at < end {
        let word = word_at(code, at);
        if word.is_empty() {
            // Brackets at this level belong to attributes, visibilities and macros.
            let first = code[at..].chars().next().map_or(1, char::len_utf8);
            at = match code.as_bytes()[at] {
                b'{' | b'(' | b'[' => matching_bracket(code, at).unwrap_or(end) + 1,
                _ => at + first,
            };
            continue;
        }
        let after = at + word.len();
        let name = word_at(code, next_word(code, after));
        let mut push = |kind, name| items.push(Item { kind, name, at, depth });
        at = match word {
            "struct" | "enum" | "union" | "trait" => {
                push(Kind::Type, name);
                block_end(code, after)
            }
            "type" => {
                push(Kind::Type, name);
                statement_end(code, after)
            }
            "fn" => {
                push(Kind::Function, name);
                block_end(code, after)
            }
            "macro_rules" => {
                push(Kind::Macro, name);
                block_end(code, after)
            }
            "const" | "static" if !matches!(name, "fn" | "unsafe" | "async" | "extern") => {
                push(Kind::Other, name);
                statement_end(code, after)
            }
            "use" => {
                let stop = statement_end(code, after);
                push(Kind::Use, code[after..stop.min(code.len())].trim_end_matches(';').trim());
                stop
            }
            "impl" => {
                let open = body_open(code, after).unwrap_or(end);
                if let Some((kind, name)) = implemented(&code[after..open]) {
                    push(kind, name);
                }
                block_end(code, after)
            }
            "mod" => {
                let open = code[after..].find(['{', ';']).map_or(end, |offset| after + offset);
                let close = matching_brace(code, open).filter(|_| code[open..].starts_with('{'));
                if let Some(close) = close {
                    push(Kind::Other, name);
                    if !is_test_module(name) {
                        collect(code, (open + 1, close), depth + 1, items);
                    }
                }
                close.unwrap_or(open) + 1
            }
            _ => after,
        };
    }
}

fn next_word(code: &str, at: usize) -> usize {
    let skipped = code[at..].find(|c: char| c.is_alphanumeric() || c == '_');
    skipped.map_or(code.len(), |skipped| at + skipped)
}

/// The offset after the body of an item, or after its semicolon if it has no body.
fn block_end(code: &str, at: usize) -> usize {
    match body_open(code, at) {
        Some(open) => matching_brace(code, open).map_or(code.len(), |close| close + 1),
        None => statement_end(code, at),
    }
}

/// The offset after the semicolon that ends a statement.
fn statement_end(code: &str, at: usize) -> usize {
    let mut depth = 0_i32;
    for (offset, byte) in code.bytes().enumerate().skip(at) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            b';' if depth == 0 => return offset + 1,
            _ => {}
        }
    }
    code.len()
}

fn matching_bracket(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0_i32;
    for (offset, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(offset);
        }
    }
    None
}

/// The kind and the type of an impl block; `head` is the text between `impl` and the brace.
fn implemented(head: &str) -> Option<(Kind, &str)> {
    let mut head = head.trim_start();
    if head.starts_with('<') {
        head = &head[angles_end(head)?..];
    }
    let head = top_level(head, "where").map_or(head, |at| &head[..at]);
    let (kind, target) = match top_level(head, "for") {
        Some(at) => (Kind::OfTrait, &head[at + "for".len()..]),
        None => (Kind::Inherent, head),
    };
    let path = target.split('<').next()?.rsplit("::").next()?;
    let name = path.trim().rsplit(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    (!name.is_empty()).then_some((kind, name))
}

/// The offset after the `>` that closes the `<` at the start of `text`.
fn angles_end(text: &str) -> Option<usize> {
    let mut depth = 0_i32;
    let mut before = ' ';
    for (at, character) in text.char_indices() {
        match character {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(at + 1);
        }
        before = character;
    }
    None
}

/// The offset of `word` in `text`, outside of angle brackets.
fn top_level(text: &str, word: &str) -> Option<usize> {
    let (mut depth, mut at, mut before) = (0_i32, 0, ' ');
    while at < text.len() {
        let found = word_at(text, at);
        if depth == 0 && found == word {
            return Some(at);
        }
        let character = text[at..].chars().next()?;
        match character {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            _ => {}
        }
        before = character;
        at += found.len().max(character.len_utf8());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(code: &str) -> Vec<(Kind, &str)> {
        items(code).iter().map(|item| (item.kind, item.name)).collect()
    }

    #[test]
    fn definitions_are_found_and_bodies_are_not_searched() {
        let code = "pub struct A<F: Fn(u8)>(F);\nenum B { C }\npub(crate) trait D { fn e(&self); }\n\
                    type F = fn(u8);\nconst G: fn() = h;\npub const fn h() { struct Inner; }\n\
                    #[derive(Debug)] union I { a: u8 }\nmacro_rules! j { () => { struct K; } }\nstatic L: u8 = 0;";
        let types = [(Kind::Type, "A"), (Kind::Type, "B"), (Kind::Type, "D"), (Kind::Type, "F")];
        let rest = [
            (Kind::Other, "G"),
            (Kind::Function, "h"),
            (Kind::Type, "I"),
            (Kind::Macro, "j"),
            (Kind::Other, "L"),
        ];
        assert_eq!(found(code), [&types[..], &rest[..]].concat());
    }

    #[test]
    fn impl_blocks_name_their_type() {
        assert_eq!(found("impl Link { fn a() {} }"), [(Kind::Inherent, "Link")]);
        assert_eq!(
            found("impl<'a, F: Fn() -> u8> super::Sender<'a, F> where F: X {}"),
            [(Kind::Inherent, "Sender")]
        );
        assert_eq!(found("unsafe impl<T: Send> Sync for crate::Owned<T> {}"), [(Kind::OfTrait, "Owned")]);
        assert_eq!(found("impl From<Vec<u8>> for &'static mut Error {}"), [(Kind::OfTrait, "Error")]);
    }

    #[test]
    fn inline_modules_are_searched_unless_they_are_tests() {
        let code = "mod file;\nmod inner { struct A; use super::*; }\n#[cfg(test)]\nmod tests { struct B; }";
        let expected =
            [(Kind::Other, "inner"), (Kind::Type, "A"), (Kind::Use, "super::*"), (Kind::Other, "tests")];
        assert_eq!(found(code), expected);
        assert_eq!(items(code)[1].depth, 1);
    }
}
