//! Splits Rust text as far as the checks need it: code without comments and literals, comments alone, and the
//! extent of functions and modules. This is not a parser, and macros are not expanded.

/// Two views of one text, with the same length and lines. What does not belong to a view is blank in it.
#[derive(Default)]
pub struct Source {
    pub code: String,
    pub comments: String,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

impl Source {
    pub fn split(text: &str) -> Source {
        let mut source = Source::default();
        let mut rest = text;
        let mut after_word = false;
        while let Some(first) = rest.chars().next() {
            let (length, kind) = token(rest, first, after_word);
            let (taken, next) = rest.split_at(length);
            source.push(taken, kind);
            after_word = kind == Kind::Code && (first.is_alphanumeric() || first == '_');
            rest = next;
        }
        source
    }

    fn push(&mut self, taken: &str, kind: Kind) {
        for (view, keeps) in [(&mut self.code, Kind::Code), (&mut self.comments, Kind::Comment)] {
            if kind == keeps {
                view.push_str(taken);
            } else {
                view.extend(taken.bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' }));
            }
        }
    }
}

fn token(rest: &str, first: char, after_word: bool) -> (usize, Kind) {
    let length = match first {
        '/' if rest.starts_with("//") => return (rest.find('\n').unwrap_or(rest.len()), Kind::Comment),
        '/' if rest.starts_with("/*") => return (block_comment_length(rest), Kind::Comment),
        '"' => Some(quoted_length(rest, '"')),
        '\'' => char_length(rest),
        'r' | 'b' | 'c' if !after_word => raw_string_length(rest),
        _ => None,
    };
    length.map_or((first.len_utf8(), Kind::Code), |length| (length, Kind::Literal))
}

fn block_comment_length(rest: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        match rest.as_bytes().get(at..at + 2) {
            Some(b"/*") => (depth, at) = (depth + 1, at + 2),
            Some(b"*/") => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

fn quoted_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, character) in rest.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return at + 1,
            _ => {}
        }
    }
    rest.len()
}

/// `None` for a lifetime.
fn char_length(rest: &str) -> Option<usize> {
    let mut characters = rest.char_indices().skip(1);
    let (_, inside) = characters.next()?;
    if inside == '\\' {
        return Some(quoted_length(rest, '\''));
    }
    let (at, end) = characters.next()?;
    (end == '\'').then_some(at + 1)
}

fn raw_string_length(rest: &str) -> Option<usize> {
    let after_r = ["r", "br", "cr"].iter().find_map(|prefix| rest.strip_prefix(prefix))?;
    let after_hashes = after_r.trim_start_matches('#');
    let hashes = &after_r[..after_r.len() - after_hashes.len()];
    let body = after_hashes.strip_prefix('"')?;
    let end = format!("\"{hashes}");
    let body_at = rest.len() - body.len();
    Some(body.find(&end).map_or(rest.len(), |at| body_at + at + end.len()))
}

/// A named function with a body; lines count from one.
#[derive(Debug, PartialEq)]
pub struct Function<'a> {
    pub name: &'a str,
    pub at: usize,
    pub first_line: usize,
    pub last_line: usize,
}

impl Function<'_> {
    pub fn lines(&self) -> usize {
        self.last_line - self.first_line + 1
    }
}

pub fn functions(code: &str) -> Vec<Function<'_>> {
    let named = names_after(code, "fn");
    let with_body = named.filter_map(|(at, name)| {
        let open = body_open(code, at)?;
        // A body whose end is not found counts as long: a mistake here must not hide a function.
        let close = matching_brace(code, open).unwrap_or(code.len());
        Some(Function { name, at, first_line: line_of(code, at), last_line: line_of(code, close) })
    });
    with_body.collect()
}

/// A `mod` item, with the offsets of its braces if it is inline.
pub struct Module<'a> {
    pub name: &'a str,
    pub at: usize,
    pub body: Option<(usize, usize)>,
}

pub fn modules(code: &str) -> Vec<Module<'_>> {
    let named = names_after(code, "mod");
    let items = named.filter_map(|(at, name)| {
        let after = at + code[at..].find(name)? + name.len();
        let next = after + code[after..].find(|character: char| !character.is_whitespace())?;
        match code.as_bytes()[next] {
            b';' => Some(Module { name, at, body: None }),
            b'{' => Some(Module { name, at, body: Some((next, matching_brace(code, next)?)) }),
            _ => None,
        }
    });
    items.collect()
}

/// The line of an offset, from one.
pub fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1
}

/// The offsets of the word `keyword` before a name, with that name (`$name` in a macro).
fn names_after<'a>(code: &'a str, keyword: &'static str) -> impl Iterator<Item = (usize, &'a str)> {
    code.match_indices(keyword).filter_map(move |(at, _)| {
        let before_is_word = code[..at].chars().next_back().is_some_and(is_word);
        let after = &code[at + keyword.len()..];
        let spaced = after.trim_start();
        if before_is_word || spaced.len() == after.len() {
            return None;
        }
        let end = spaced.find(|c| !is_word(c) && c != '$').unwrap_or(spaced.len());
        (end > 0).then_some((at, &spaced[..end]))
    })
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || character == '_'
}

/// The word that begins at `at`; empty if none does.
pub fn word_at(code: &str, at: usize) -> &str {
    let rest = &code[at..];
    &rest[..rest.find(|character| !is_word(character)).unwrap_or(rest.len())]
}

/// Modules with these names, or names that end in `_tests`, contain tests.
const TEST_MODULES: [&str; 3] = ["tests", "loom", "conformance"];

pub fn is_test_module(name: &str) -> bool {
    TEST_MODULES.contains(&name) || name.ends_with("_tests")
}

/// Whether a file is a test module, or part of one.
pub fn is_test_file(path: &str) -> bool {
    path.trim_end_matches(".rs").split('/').any(is_test_module)
}

/// The brace that opens the body of the function at `at`; `None` for a declaration without one.
pub fn body_open(code: &str, at: usize) -> Option<usize> {
    let mut depth = 0_i32;
    for (offset, byte) in code.bytes().enumerate().skip(at) {
        match byte {
            b'(' | b'[' => depth += 1,
            b')' | b']' => depth -= 1,
            b'{' if depth == 0 => return Some(offset),
            b';' if depth == 0 => return None,
            _ => {}
        }
    }
    None
}

pub fn matching_brace(code: &str, open: usize) -> Option<usize> {
    let mut depth = 0_i32;
    for (offset, byte) in code.bytes().enumerate().skip(open) {
        match byte {
            b'{' => depth += 1,
            b'}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some(offset);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_and_comments_are_blanked_line_for_line() {
        let text = r####"let a = "{ // \" {"; // brace { L-1
let b = r#"raw " { "#; let c = '{'; let d = '\''; /* { /* { */ */ let e: &'static str = br"{";"####;
        let source = Source::split(text);
        assert_eq!(source.code.len(), text.len());
        assert!(!source.code.contains('{'), "{}", source.code);
        assert!(source.code.contains("let e: &'static str"));
        assert!(source.comments.contains("brace { L-1") && !source.comments.contains("raw"));
        assert_eq!(source.code.lines().count(), 2);
    }

    #[test]
    fn names_that_end_like_a_raw_prefix_are_code() {
        let source = Source::split("let number\"x\"; r#type; 'outer: loop {}");
        assert!(source.code.contains("number") && source.code.contains("r#type"));
        assert!(source.code.contains("'outer: loop {}"));
    }

    #[test]
    fn beyond_ascii_keeps_its_length() {
        let text = "let π = \"ß\"; let c = 'é'; // ü";
        let source = Source::split(text);
        assert_eq!((source.code.len(), source.comments.len()), (text.len(), text.len()));
        assert!(source.code.contains('π') && source.comments.contains('ü') && !source.code.contains('é'));
    }

    #[test]
    fn functions_reach_from_fn_to_the_closing_brace() {
        let text = "trait T { fn none(&self, a: [u8; 4]); }\nfn two<F: Fn(fn(u8) -> u8)>(\n  a: [u8; 4],\n) {\n  \
                    if x { \"}\"; }\n}\n";
        let source = Source::split(text);
        let found = functions(&source.code);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].name, found[0].first_line, found[0].lines()), ("two", 2, 5));
    }

    #[test]
    fn a_body_that_never_ends_reaches_to_the_end_of_the_file() {
        assert_eq!(functions("fn a() {\n{\n}\n\n").first().map(Function::lines), Some(5));
    }

    #[test]
    fn modules_are_files_or_bodies() {
        let code = "mod a;\npub mod b { mod c; }\nmodify d;";
        let found: Vec<_> = modules(code).iter().map(|module| (module.name, module.body.is_some())).collect();
        assert_eq!(found, [("a", false), ("b", true), ("c", false)]);
    }
}
