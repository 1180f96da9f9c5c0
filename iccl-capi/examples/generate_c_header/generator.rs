//! Makes the C header of the Rust sources of the library, doc comments included.

use std::fmt::Write as _;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use iccl::config::{ICCL_CONFIG_MAGIC, ICCL_VERSION_CODE};
use iccl_plugin_api::{DataType, RedOp};
use syn::{
    Attribute, Expr, ExprLit, Fields, FnArg, Item, ItemConst, ItemFn, ItemStruct, Lit, Meta, Pat,
    Type,
};

/// The sources of functions, in the order of the header.
const FUNCTIONS: &[&str] = &[
    "communicators.rs",
    "splits.rs",
    "errors.rs",
    "collectives.rs",
    "vectors.rs",
    "point_to_point.rs",
    "groups.rs",
    "reductions.rs",
    "streams.rs",
    "memory.rs",
];

/// Where the structs are that C sees whole.
const STRUCTS: &[(&str, &str)] = &[("types.rs", "icclUniqueId"), ("config.rs", "icclConfig_t")];

/// Other names of the same numbers, as NCCL has them.
const ALIASES: &[(&str, &str)] = &[
    ("icclInt8", "icclChar"),
    ("icclInt32", "icclInt"),
    ("icclFloat16", "icclHalf"),
    ("icclFloat32", "icclFloat"),
    ("icclFloat64", "icclDouble"),
    ("icclUnhandledDeviceError", "icclUnhandledCudaError"),
];

const PROLOGUE: &str = include_str!("prologue.h");
const EPILOGUE: &str = include_str!("epilogue.h");

/// The longest line that is not wrapped.
const LINE_WIDTH: usize = 100;

/// The header's text.
pub(crate) fn generate(package: &Path) -> Result<String> {
    let mut out = String::from(PROLOGUE);
    versions(&mut out);
    handles(&mut out);
    results(&mut out);
    data_types(&mut out);
    operations(&mut out);
    residences(&mut out);
    let source = |name: &str| {
        let text = std::fs::read_to_string(package.join("src").join(name))?;
        syn::parse_file(&text).map_err(other)
    };
    for (name, wanted) in STRUCTS {
        for item in source(name)?.items {
            if let Item::Struct(item) = item
                && item.ident == *wanted
            {
                structure(&mut out, &item)?;
            }
        }
    }
    initializer(&mut out);
    for name in FUNCTIONS {
        let file = source(name)?;
        let title = documentation(&file.attrs).concat();
        let _ = write!(out, "/* ---- {} ---- */\n\n", title.trim_end_matches('.'));
        for item in file.items {
            if let Item::Const(item) = &item {
                constant(&mut out, item);
            }
            if let Item::Fn(item) = item
                && item.sig.abi.is_some()
            {
                function(&mut out, &item)?;
            }
        }
    }
    out.push_str(EPILOGUE);
    Ok(out)
}

/// An error of any kind as one of reading a file.
#[allow(clippy::needless_pass_by_value, reason = "so that it fits into `map_err`")]
fn other(error: impl ToString) -> Error {
    Error::new(ErrorKind::InvalidData, error.to_string())
}

fn versions(out: &mut String) {
    let code = ICCL_VERSION_CODE;
    let (major, minor, patch) = (code / 10000, code / 100 % 100, code % 100);
    let _ = writeln!(out, "/* The version of this interface. */");
    let _ = writeln!(out, "#define ICCL_MAJOR {major}\n#define ICCL_MINOR {minor}");
    let _ = writeln!(out, "#define ICCL_PATCH {patch}\n#define ICCL_VERSION_CODE {code}");
    let _ = writeln!(out, "#define ICCL_VERSION(X, Y, Z) ((X) * 10000 + (Y) * 100 + (Z))\n");
}

fn handles(out: &mut String) {
    out.push_str(
        "/* A communicator, as one of its ranks has it. */\n\
         typedef struct icclComm *icclComm_t;\n\n\
         /* A queue of a device's work. */\n\
         typedef struct icclStream *icclStream_t;\n\n",
    );
}

fn results(out: &mut String) {
    out.push_str("/* What a function answers. Numbers up to 7 are NCCL's. */\ntypedef enum {\n");
    for (name, number, doc, _) in iccl::results() {
        let doc: Vec<String> = doc.lines().map(|line| line.trim().to_owned()).collect();
        comment(out, "    ", &doc);
        member(out, &format!("iccl{name}"), number);
    }
    out.push_str("    /* One more than the largest. */\n");
    let last = iccl::results().last().map_or(0, |(_, number, ..)| *number);
    let _ = write!(out, "    icclNumResults = {}\n}} icclResult_t;\n\n", last + 1);
}

fn data_types(out: &mut String) {
    out.push_str("/* The type of one element. Numbers up to 11 are NCCL's. */\ntypedef enum {\n");
    for dtype in DataType::ALL {
        let (kind, rest) = dtype.name().split_at(1);
        let name = match (kind, rest) {
            ("i", bits) => format!("icclInt{bits}"),
            ("u", bits) => format!("icclUint{bits}"),
            ("b", rest) => format!("icclB{}", rest.replace('f', "float")),
            (_, rest) => format!("icclFloat{rest}"),
        };
        member(out, &name, dtype.code().cast_signed());
    }
    let _ = write!(out, "    icclNumTypes = {}\n}} icclDataType_t;\n\n", DataType::ALL.len());
}

fn operations(out: &mut String) {
    out.push_str(
        "/* How contributions are combined. Numbers are NCCL's where NCCL has the operation. Beyond \
         them are\n * those that icclRedOpCreatePreMulSum makes. */\ntypedef enum {\n",
    );
    // A number alone is no pre-multiplied sum.
    let built_in: Vec<_> = RedOp::ALL.iter().filter(|op| **op != RedOp::PreMulSum).collect();
    for op in &built_in {
        let name: String = op.name().split(['_', '-']).map(capitalized).collect();
        member(out, &format!("iccl{name}"), op.code().cast_signed());
    }
    let _ = writeln!(out, "    icclNumOps = {},", built_in.len());
    let _ = write!(out, "    icclMaxRedOp = 0x7fffffff\n}} icclRedOp_t;\n\n");
}

fn residences(out: &mut String) {
    out.push_str(
        "/* Where the scalar of a pre-multiplied sum is. Numbers are NCCL's. */\ntypedef enum {\n",
    );
    let members =
        iccl::reductions::residences().map(|(name, number)| format!("    {name} = {number}"));
    let _ = write!(out, "{}\n}} icclScalarResidence_t;\n\n", members.join(",\n"));
}

/// A member of an enumeration, and its other names.
fn member(out: &mut String, name: &str, number: i32) {
    let _ = writeln!(out, "    {name} = {number},");
    for (_, alias) in ALIASES.iter().filter(|(known, _)| *known == name) {
        let _ = writeln!(out, "    {alias} = {number},");
    }
}

fn capitalized(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map(|first| first.to_ascii_uppercase()).into_iter().chain(letters).collect()
}

fn initializer(out: &mut String) {
    let _ = write!(
        out,
        "#define ICCL_CONFIG_MAGIC {ICCL_CONFIG_MAGIC:#x}u\n\
         #define ICCL_CONFIG_UNDEF_INT INT_MIN\n\
         #define ICCL_CONFIG_UNDEF_PTR NULL\n\
         #define ICCL_CONFIG_INITIALIZER \\\n    {{ \\\n        \
             sizeof(icclConfig_t), ICCL_CONFIG_MAGIC, ICCL_VERSION_CODE, ICCL_CONFIG_UNDEF_INT, \\\n        \
             ICCL_CONFIG_UNDEF_INT, ICCL_CONFIG_UNDEF_INT, ICCL_CONFIG_UNDEF_INT, \\\n        \
             ICCL_CONFIG_UNDEF_PTR, ICCL_CONFIG_UNDEF_PTR, ICCL_CONFIG_UNDEF_PTR, \\\n        \
             ICCL_CONFIG_UNDEF_PTR \\\n    }}\n\n"
    );
}

/// A number with a name that C sees.
fn constant(out: &mut String, item: &ItemConst) {
    let number = |value: &Expr| match value {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => Some(number.to_string()),
        _ => None,
    };
    let value = match &*item.expr {
        Expr::Unary(negative) => number(&negative.expr).map(|number| format!("(-{number})")),
        value => number(value),
    };
    let name = item.ident.to_string();
    if let Some(value) = value.filter(|_| name.starts_with("ICCL_")) {
        comment(out, "", &documentation(&item.attrs));
        let _ = write!(out, "#define {name} {value}\n\n");
    }
}

fn structure(out: &mut String, item: &ItemStruct) -> Result<()> {
    let Fields::Named(fields) = &item.fields else { return Err(other("a struct of fields")) };
    let name = &item.ident;
    comment(out, "", &documentation(&item.attrs));
    if name == "icclUniqueId" {
        out.push_str("#define ICCL_UNIQUE_ID_BYTES 128\n");
    }
    out.push_str("typedef struct {\n");
    for field in &fields.named {
        let field_name = field.ident.as_ref().map(ToString::to_string).unwrap_or_default();
        comment(out, "    ", &documentation(&field.attrs));
        let _ = writeln!(out, "    {};", declare(&field.ty, &field_name)?);
    }
    let _ = write!(out, "}} {name};\n\n");
    Ok(())
}

fn function(out: &mut String, item: &ItemFn) -> Result<()> {
    comment(out, "", &documentation(&item.attrs));
    let mut parameters = Vec::new();
    for input in &item.sig.inputs {
        let FnArg::Typed(input) = input else { return Err(other("no methods")) };
        let Pat::Ident(name) = &*input.pat else { return Err(other("a parameter's name")) };
        parameters.push(declare(&input.ty, &name.ident.to_string())?);
    }
    let parameters = if parameters.is_empty() { "void".into() } else { parameters.join(", ") };
    let syn::ReturnType::Type(_, output) = &item.sig.output else {
        return Err(other("every function answers something"));
    };
    let name = item.sig.ident.to_string();
    let prototype = format!("{}({parameters});", declare(output, &name)?);
    let indent = " ".repeat(prototype.find('(').unwrap_or(0) + 1);
    let mut line = String::new();
    for word in prototype.split_inclusive(", ") {
        if line.len() + word.trim_end().len() > LINE_WIDTH {
            let _ = writeln!(out, "{}", line.trim_end());
            line.clone_from(&indent);
        }
        line.push_str(word);
    }
    let _ = write!(out, "{line}\n\n");
    Ok(())
}

/// A declaration of `name` with a Rust type.
fn declare(ty: &Type, name: &str) -> Result<String> {
    match ty {
        Type::Path(path) => {
            let last = path.path.segments.last().map(|segment| segment.ident.to_string());
            Ok(format!("{} {name}", base_type(&last.unwrap_or_default())?))
        }
        Type::Ptr(pointer) => {
            let constant = if pointer.mutability.is_none() { "const " } else { "" };
            Ok(format!("{constant}{}", declare(&pointer.elem, &format!("*{name}"))?))
        }
        Type::Array(array) => {
            let Expr::Lit(length) = &array.len else { return Err(other("a number as length")) };
            let Lit::Int(length) = &length.lit else { return Err(other("a number as length")) };
            let length = if length.base10_digits() == "128" {
                "ICCL_UNIQUE_ID_BYTES"
            } else {
                length.base10_digits()
            };
            declare(&array.elem, &format!("{name}[{length}]"))
        }
        _ => Err(other("the header has no form for this type")),
    }
}

/// The C type of a Rust type.
fn base_type(name: &str) -> Result<&'static str> {
    Ok(match name {
        "c_char" => "char",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "c_void" => "void",
        "usize" => "size_t",
        "ResultNumber" => "icclResult_t",
        "DataTypeNumber" => "icclDataType_t",
        "RedOpNumber" => "icclRedOp_t",
        "ResidenceNumber" => "icclScalarResidence_t",
        "CommHandle" => "icclComm_t",
        "StreamHandle" => "icclStream_t",
        "icclUniqueId" => "icclUniqueId",
        "icclConfig_t" => "icclConfig_t",
        _ => return Err(other(format!("no C type for {name}"))),
    })
}

/// The lines of a doc comment.
fn documentation(attributes: &[Attribute]) -> Vec<String> {
    let mut lines = Vec::new();
    for attribute in attributes {
        if let Meta::NameValue(meta) = &attribute.meta
            && meta.path.is_ident("doc")
            && let Expr::Lit(value) = &meta.value
            && let Lit::Str(text) = &value.lit
        {
            let text = text.value();
            lines.push(text.strip_prefix(' ').unwrap_or(&text).to_owned());
        }
    }
    lines
}

/// Writes a comment.
fn comment(out: &mut String, indent: &str, lines: &[String]) {
    for (index, line) in lines.iter().enumerate() {
        let opening = if index == 0 { "/*" } else { " *" };
        let closing = if index + 1 == lines.len() { " */" } else { "" };
        let _ = writeln!(out, "{indent}{}{closing}", format!("{opening} {line}").trim_end());
    }
}
