//! The tables in `crates/mpi/table`, parsed.

use anyhow::{Context, Result, bail};

/// How a parameter is passed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Shape {
    Value,
    /// A pointer to one value that the function sets, or reads and sets.
    Pointer,
    /// A pointer to one value that the function only reads.
    ConstPointer,
    /// An array that the function reads.
    Array,
    /// An array that the function sets.
    OutArray,
}

#[derive(Clone, Debug)]
pub struct Parameter {
    pub name: String,
    pub kind: String,
    pub shape: Shape,
}

#[derive(Clone, Debug)]
pub struct Function {
    /// Without `MPI_` and `_c`.
    pub name: String,
    /// Whether there is a twin with the suffix `_c`.
    pub has_wide: bool,
    pub parameters: Vec<Parameter>,
    pub variadic: bool,
    /// The kind of the result; `None` for an error code.
    pub result: Option<String>,
}

pub struct Constant {
    pub kind: String,
    /// Without `MPI_`.
    pub name: String,
    /// The value in the standard ABI, or the name of another constant.
    pub value: String,
    /// The value in the ABI of MPICH, if it has one.
    pub mpich: Option<String>,
}

pub struct Table {
    pub functions: Vec<Function>,
    pub constants: Vec<Constant>,
}

impl Table {
    pub fn parse(functions: &str, constants: &str) -> Result<Table> {
        let functions: Result<_> = lines(functions).map(|(at, line)| function(line).context(at)).collect();
        let constants: Result<_> = lines(constants).map(|(at, line)| constant(line).context(at)).collect();
        Ok(Table { functions: functions?, constants: constants? })
    }

    /// Every exported function: a line of the table, and whether it is the one with the suffix `_c`.
    pub fn exports(&self) -> impl Iterator<Item = (&Function, bool)> {
        self.functions.iter().flat_map(|function| {
            let wide = function.has_wide.then_some((function, true));
            [(function, false)].into_iter().chain(wide)
        })
    }

    pub fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Constant> {
        self.constants.iter().filter(move |constant| constant.kind == kind)
    }
}

impl Function {
    pub fn c_name(&self, wide: bool) -> String {
        format!("MPI_{}{}", self.name, if wide { "_c" } else { "" })
    }

    /// The name of the core's function, which does the work of both twins.
    pub fn core_name(&self) -> String {
        self.name.to_lowercase()
    }
}

fn lines(text: &str) -> impl Iterator<Item = (String, &str)> {
    let numbered = (1..).zip(text.lines());
    let used = numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    used.map(|(number, line)| (format!("line {number}"), line))
}

fn function(line: &str) -> Result<Function> {
    let (line, result) = match line.split_once(" -> ") {
        Some((line, result)) => (line, Some(result.to_owned())),
        None => (line, None),
    };
    let mut words = line.split(' ');
    let name = words.next().context("no name")?;
    let mut function = Function {
        name: name.trim_end_matches("/c").to_owned(),
        has_wide: name.ends_with("/c"),
        parameters: Vec::new(),
        variadic: false,
        result,
    };
    for word in words {
        if word == "..." {
            function.variadic = true;
            continue;
        }
        function.parameters.push(parameter(word)?);
    }
    Ok(function)
}

fn parameter(word: &str) -> Result<Parameter> {
    let (name, kind) = word.split_once(':').unwrap_or((word, word));
    let (kind, shape) = if let Some(kind) = kind.strip_prefix("[*") {
        (kind.strip_suffix(']').context("] is missing")?, Shape::OutArray)
    } else if let Some(kind) = kind.strip_prefix('[') {
        (kind.strip_suffix(']').context("] is missing")?, Shape::Array)
    } else if let Some(kind) = kind.strip_prefix('*') {
        (kind, Shape::Pointer)
    } else if let Some(kind) = kind.strip_prefix('=') {
        (kind, Shape::ConstPointer)
    } else {
        (kind, Shape::Value)
    };
    Ok(Parameter { name: name.to_owned(), kind: kind.to_owned(), shape })
}

fn constant(line: &str) -> Result<Constant> {
    let words: Vec<&str> = line.split(' ').collect();
    let (kind, name, value, mpich) = match words[..] {
        ["alias", name, value] => ("alias", name, value, "-"),
        [kind, name, value, mpich] => (kind, name, value, mpich),
        _ => bail!("a constant is: kind, name, value, value in the ABI of MPICH"),
    };
    let mpich = (mpich != "-").then(|| mpich.to_owned());
    Ok(Constant { kind: kind.to_owned(), name: name.to_owned(), value: value.to_owned(), mpich })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_a_line() {
        let table =
            Table::parse("# head\n\nSend/c buf:in count s:[*status] st:=status r:*request -> int\n", "")
                .unwrap();
        let [send] = &table.functions[..] else { panic!("{:?}", table.functions) };
        assert_eq!((send.name.as_str(), send.has_wide, send.result.as_deref()), ("Send", true, Some("int")));
        let shapes: Vec<_> = send.parameters.iter().map(|p| (p.kind.as_str(), p.shape)).collect();
        let expected = [
            ("in", Shape::Value),
            ("count", Shape::Value),
            ("status", Shape::OutArray),
            ("status", Shape::ConstPointer),
            ("request", Shape::Pointer),
        ];
        assert_eq!(shapes, expected);
        assert_eq!((send.c_name(true).as_str(), send.core_name().as_str()), ("MPI_Send_c", "send"));
    }

    #[test]
    fn a_bad_line_is_named() {
        let error = Table::parse("", "# head\ncode A 1\n").err().unwrap();
        assert!(format!("{error:#}").starts_with("line 2: a constant is"), "{error:#}");
        assert!(Table::parse("A b:[int\n", "").is_err());
    }
}
