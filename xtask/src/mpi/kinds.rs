//! The kinds of parameters: what each is in C and in Rust.

use anyhow::{Result, bail};

use super::table::{Parameter, Shape};

/// The kinds of handles, with the name of the type in C and Rust.
pub const HANDLES: [(&str, &str); 11] = [
    ("comm", "Comm"),
    ("group", "Group"),
    ("win", "Win"),
    ("file", "File"),
    ("session", "Session"),
    ("message", "Message"),
    ("info", "Info"),
    ("errhandler", "Errhandler"),
    ("request", "Request"),
    ("datatype", "Datatype"),
    ("op", "Op"),
];

/// Kinds that are an `int` in C and whose values differ between the ABIs.
pub const ENUMS: [&str; 19] = [
    "rank",
    "tag",
    "root",
    "keyval",
    "code",
    "order",
    "lock",
    "split",
    "whence",
    "amode",
    "assertion",
    "typeclass",
    "thread",
    "combiner",
    "compare",
    "topo",
    "distrib",
    "darg",
    "int",
];

pub fn handle(kind: &str) -> Option<&'static str> {
    HANDLES.iter().find(|(name, _)| *name == kind).map(|(_, name)| *name)
}

/// The type of one value in C; `wide` for the functions with the suffix `_c`.
fn c_type(kind: &str, wide: bool) -> Result<String> {
    if let Some((_, name)) = HANDLES.iter().find(|(name, _)| *name == kind) {
        return Ok(format!("MPI_{name}"));
    }
    if ENUMS.contains(&kind) {
        return Ok("int".to_owned());
    }
    if let Some(name) = kind.strip_prefix("t=") {
        return Ok(format!("MPI_T_{name}"));
    }
    if let Some(name) = kind.strip_prefix("fn=") {
        return Ok(callback_type(name, wide));
    }
    let text = match (kind, wide) {
        ("count" | "unit" | "displ", false) | ("weights" | "contents" | "range", _) => "int",
        ("count" | "extent", true) | ("big", _) => "MPI_Count",
        ("displ" | "unit", true) | ("extent", false) | ("aint", _) => "MPI_Aint",
        ("offset", _) => "MPI_Offset",
        ("status", _) => "MPI_Status",
        ("in", _) => "const void *",
        ("out" | "ptr", _) => "void *",
        ("str", _) => "const char *",
        ("chars", _) => "char *",
        ("argv", _) => "char **",
        ("argvp", _) => "char ***",
        _ => bail!("unknown kind {kind}"),
    };
    Ok(text.to_owned())
}

fn callback_type(name: &str, wide: bool) -> String {
    if let Some(name) = name.strip_prefix("t_") {
        return format!("MPI_T_{name}_function");
    }
    let mut chars = name.chars();
    let first = chars.next().map(|first| first.to_ascii_uppercase());
    let suffix = if wide && matches!(name, "user" | "datarep_conversion") { "_c" } else { "" };
    format!("MPI_{}{}_function{suffix} *", first.into_iter().collect::<String>(), chars.as_str())
}

/// The declaration of a parameter in C.
pub fn c_declaration(parameter: &Parameter, wide: bool) -> Result<String> {
    let Parameter { name, kind, shape } = parameter;
    let of = c_type(kind, wide)?;
    let gap = if of.ends_with('*') { "" } else { " " };
    Ok(match shape {
        Shape::Value => format!("{of}{gap}{name}"),
        Shape::Pointer => format!("{of}{gap}*{name}"),
        Shape::ConstPointer => format!("const {of}{gap}*{name}"),
        Shape::Array if kind == "range" => format!("int {name}[][3]"),
        Shape::Array if of.ends_with('*') => format!("{of}{name}[]"),
        Shape::Array => format!("const {of}{gap}{name}[]"),
        Shape::OutArray => format!("{of}{gap}{name}[]"),
    })
}

/// The type of a parameter in the façades. All pointers are the same there.
pub fn rust_type(parameter: &Parameter, wide: bool) -> &'static str {
    if parameter.shape != Shape::Value {
        return "Ptr";
    }
    let kind = parameter.kind.as_str();
    if let Some((_, name)) = HANDLES.iter().find(|(name, _)| *name == kind) {
        return name;
    }
    match (kind, wide) {
        (kind, _) if ENUMS.contains(&kind) => "c_int",
        ("t=cb_safety", _) | ("count" | "unit", false) => "c_int",
        ("count" | "unit", true) | ("extent" | "big" | "aint" | "offset", _) => "i64",
        _ => "Ptr",
    }
}

/// The expression that makes the core's argument of a façade's parameter.
pub fn argument(parameter: &Parameter, wide: bool) -> String {
    let Parameter { name, kind, shape } = parameter;
    let kind = kind.as_str();
    if kind.starts_with("fn=") {
        return format!("from::callback({name}, {wide})");
    }
    if *shape != Shape::Value {
        return match kind {
            "chars" | "argv" => name.clone(),
            "status" => format!("from::status({name})"),
            "weights" => format!("Foreign::new(from::weights({name}), &codec::INT)"),
            // `MPI_Init` takes a null pointer instead of the number of arguments. Arrays may be empty.
            kind if *shape == Shape::Pointer && name != "argc" => {
                format!("Foreign::given({name}, &codec::{}, \"{name}\")", codec(kind, wide))
            }
            _ => format!("Foreign::new({name}, &codec::{})", codec(kind, wide)),
        };
    }
    match kind {
        "count" | "unit" if !wide => format!("i64::from({name})"),
        "count" | "unit" | "extent" | "big" | "aint" | "ptr" | "str" | "chars" | "argvp" | "int" => {
            name.clone()
        }
        "in" | "out" => format!("from::buffer({name})"),
        kind if kind.starts_with("t=") => name.clone(),
        kind => format!("from::{kind}({name})"),
    }
}

/// The name of the constant that reads and writes values of a kind in the program's memory.
pub fn codec(kind: &str, wide: bool) -> String {
    match (kind, wide) {
        ("count" | "displ" | "unit", false) => "NARROW".to_owned(),
        ("count" | "displ" | "unit", true) | ("extent" | "big" | "aint" | "offset", _) => "WIDE".to_owned(),
        ("range" | "weights", _) => "INT".to_owned(),
        (kind, _) if kind.starts_with("t=") => "POINTER".to_owned(),
        _ => kind.to_uppercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(kind: &str, shape: Shape, wide: bool) -> String {
        c_declaration(&Parameter { name: "a".into(), kind: kind.into(), shape }, wide).unwrap()
    }

    #[test]
    fn declarations_follow_kind_shape_and_width() {
        assert_eq!(declared("count", Shape::Value, false), "int a");
        assert_eq!(declared("count", Shape::Array, true), "const MPI_Count a[]");
        assert_eq!(declared("displ", Shape::Array, true), "const MPI_Aint a[]");
        assert_eq!(declared("in", Shape::Value, false), "const void *a");
        assert_eq!(declared("comm", Shape::Pointer, false), "MPI_Comm *a");
        assert_eq!(declared("chars", Shape::Array, false), "char *a[]");
        assert_eq!(declared("fn=user", Shape::Value, true), "MPI_User_function_c *a");
        assert_eq!(declared("fn=comm_copy_attr", Shape::Value, false), "MPI_Comm_copy_attr_function *a");
        assert_eq!(declared("fn=t_event_cb", Shape::Value, false), "MPI_T_event_cb_function a");
    }

    #[test]
    fn an_unknown_kind_is_an_error() {
        let parameter = Parameter { name: "a".into(), kind: "cont".into(), shape: Shape::Value };
        assert!(c_declaration(&parameter, false).is_err());
    }
}
