//! Makes the C header of the Rust sources that define the ABI, doc comments included.
//!
//! Why not cbindgen: it neither sees into our `numbered!` tables, nor keeps the modules of constants
//! apart, nor writes the ELF note and the checks of sizes; what is left is smaller than its
//! configuration would be.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use syn::parse::{Parse, ParseStream};
use syn::{
    Attribute, Expr, Fields, GenericArgument, Item, ItemConst, ItemMod, ItemStruct, Lit, LitInt,
    LitStr, Meta, PathArguments, Token, Type, TypeBareFn, Visibility, braced,
};

/// The sources, in an order in which structs are defined before they are held by value.
const SOURCES: &[&str] = &[
    "src/types.rs",
    "src/tables/mod.rs",
    "src/tables/device.rs",
    "src/tables/collectives.rs",
    "src/tables/transport.rs",
    "src/tables/plugin.rs",
    "src/note.rs",
];

/// What stands before everything that is made of the sources.
const PROLOGUE: &str = include_str!("prologue.h");

/// What stands behind it: what a C plugin needs beyond the definitions.
const EPILOGUE: &str = include_str!("epilogue.h");

/// The header's text.
pub(crate) fn generate(package: &Path) -> Result<String> {
    let sizes = golden_sizes(package)?;
    let mut header = Header::default();
    for source in SOURCES {
        let text = std::fs::read_to_string(package.join(source))?;
        let file = syn::parse_file(&text).map_err(other)?;
        let _ = write!(header.body, "\n/* ---- {} ---- */\n\n", section(source));
        comment(&mut header.body, "", &documentation(&file.attrs));
        header.body.push('\n');
        for item in file.items {
            header.item(item).map_err(other)?;
        }
    }

    let mut text = String::from(PROLOGUE);
    for name in &header.structs {
        let name = c_name(name);
        let _ = writeln!(text, "typedef struct {name} {name};");
    }
    text.push_str(&header.body);
    text.push_str("/* ---- sizes on the machines that iccl runs on ---- */\n\n");
    for name in &header.structs {
        let size = sizes.get(name).ok_or_else(|| other(format!("no golden size of {name}")))?;
        let name = c_name(name);
        let _ = writeln!(text, "ICCL_STATIC_ASSERT(sizeof({name}) == {size}, \"size of {name}\");");
    }
    text.push_str(EPILOGUE);
    Ok(text)
}

/// The sizes that the golden file says.
fn golden_sizes(package: &Path) -> Result<BTreeMap<String, usize>> {
    let text = std::fs::read_to_string(package.join("layout/abi-1.0.txt"))?;
    let mut sizes = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with(' ')) {
        let words: Vec<&str> = line.split(' ').collect();
        sizes.insert(words[0].to_owned(), words[2].parse().map_err(other)?);
    }
    Ok(sizes)
}

/// An error of any kind as one of reading a file.
#[allow(clippy::needless_pass_by_value, reason = "so that it fits into `map_err`")]
fn other(error: impl ToString) -> Error {
    Error::new(ErrorKind::InvalidData, error.to_string())
}

/// The title of a source's part.
fn section(source: &str) -> &str {
    match source.rsplit('/').next() {
        Some("mod.rs") => "rules of the tables",
        Some(file) => file.trim_end_matches(".rs"),
        None => source,
    }
}

/// The part of the header that is made of the sources.
#[derive(Default)]
struct Header {
    body: String,
    structs: Vec<String>,
}

impl Header {
    fn item(&mut self, item: Item) -> syn::Result<()> {
        match item {
            Item::Struct(item) => self.structure(&item)?,
            Item::Const(item) if public(&item.vis) => self.constant(&item),
            Item::Mod(item) if public(&item.vis) && item.content.is_some() => self.bits(item),
            Item::Macro(item) if item.mac.path.is_ident("numbered") => {
                let words: Numbered = syn::parse2(item.mac.tokens)?;
                self.numbered(&words);
            }
            Item::Type(item) if item.ident == "EntryFunction" => {
                let text = documentation(&item.attrs);
                comment(&mut self.body, "", &text);
                let _ = write!(
                    self.body,
                    "typedef const iccl_plugin_table *(*iccl_entry_function)(void);\n\n"
                );
            }
            _ => {}
        }
        Ok(())
    }

    /// A struct, or the function pointer that a transparent one wraps.
    fn structure(&mut self, item: &ItemStruct) -> syn::Result<()> {
        let name = item.ident.to_string();
        match &item.fields {
            Fields::Named(fields) if has_repr(&item.attrs, "C") => {
                comment(&mut self.body, "", &documentation(&item.attrs));
                let _ = writeln!(self.body, "struct {} {{", c_name(&name));
                for field in &fields.named {
                    let field_name = field.ident.as_ref().map(ToString::to_string);
                    let field_name = field_name.unwrap_or_default();
                    comment(&mut self.body, "    ", &documentation(&field.attrs));
                    let declaration = declare(&field.ty, &field_name)?;
                    self.body.push_str(&wrapped(&format!("    {declaration};")));
                }
                self.body.push_str("};\n\n");
                self.structs.push(name);
            }
            Fields::Unnamed(fields) if has_repr(&item.attrs, "transparent") => {
                comment(&mut self.body, "", &documentation(&item.attrs));
                let declaration = declare(&fields.unnamed[0].ty, &c_name(&name))?;
                let _ = write!(self.body, "typedef {declaration};\n\n");
            }
            _ => {}
        }
        Ok(())
    }

    /// A constant: a number or a text.
    fn constant(&mut self, item: &ItemConst) {
        let Expr::Lit(value) = &*item.expr else { return };
        let value = match &value.lit {
            Lit::Int(value) => integer(value),
            Lit::Str(value) => format!("{:?}", value.value()),
            _ => return,
        };
        comment(&mut self.body, "", &documentation(&item.attrs));
        let _ = write!(self.body, "#define ICCL_{} {value}\n\n", item.ident);
    }

    /// A module of constants: an enumeration whose members carry the module's name.
    fn bits(&mut self, item: ItemMod) {
        let prefix = item.ident.to_string().to_ascii_uppercase();
        let mut members = String::new();
        for inner in item.content.map(|(_, items)| items).unwrap_or_default() {
            if let Item::Const(inner) = inner
                && let Expr::Lit(value) = &*inner.expr
                && let Lit::Int(value) = &value.lit
            {
                comment(&mut members, "    ", &documentation(&inner.attrs));
                let _ =
                    writeln!(members, "    ICCL_{prefix}_{} = {},", inner.ident, integer(value));
            }
        }
        comment(&mut self.body, "", &documentation(&item.attrs));
        let _ = write!(self.body, "enum {{\n{}\n}};\n\n", members.trim_end().trim_end_matches(','));
    }

    /// A closed set of words: an enumeration.
    fn numbered(&mut self, words: &Numbered) {
        let prefix = screaming(&words.name);
        let mut members = String::new();
        for (attributes, name, value) in &words.members {
            comment(&mut members, "    ", &documentation(attributes));
            let _ = writeln!(members, "    ICCL_{prefix}_{} = {value},", screaming(name));
        }
        comment(&mut self.body, "", &documentation(&words.attributes));
        let _ = write!(self.body, "enum {{\n{}\n}};\n\n", members.trim_end().trim_end_matches(','));
    }
}

/// The tokens of a `numbered!` table.
struct Numbered {
    attributes: Vec<Attribute>,
    name: String,
    members: Vec<(Vec<Attribute>, String, i64)>,
}

impl Parse for Numbered {
    fn parse(input: ParseStream<'_>) -> syn::Result<Self> {
        let attributes = input.call(Attribute::parse_outer)?;
        let name = input.parse::<syn::Ident>()?.to_string();
        input.parse::<Token![:]>()?;
        input.parse::<syn::Ident>()?;
        let content;
        braced!(content in input);
        let mut members = Vec::new();
        while !content.is_empty() {
            let attributes = content.call(Attribute::parse_outer)?;
            let name = content.parse::<syn::Ident>()?.to_string();
            content.parse::<Token![=]>()?;
            let value = content.parse::<LitInt>()?.base10_parse()?;
            content.parse::<Token![,]>()?;
            content.parse::<LitStr>()?;
            content.parse::<Token![;]>()?;
            members.push((attributes, name, value));
        }
        Ok(Self { attributes, name, members })
    }
}

/// A declaration of `name` with a Rust type.
fn declare(ty: &Type, name: &str) -> syn::Result<String> {
    if let Some(inner) = option_of(ty) {
        return declare(inner, name);
    }
    match ty {
        Type::Path(path) => {
            let last = path.path.segments.last().map(|segment| segment.ident.to_string());
            Ok(format!("{} {name}", base_type(&last.unwrap_or_default())))
        }
        Type::Ptr(pointer) => {
            // `const` belongs to what is pointed to: before a plain type, behind a pointer.
            let target = &*pointer.elem;
            let constant = pointer.mutability.is_none();
            if let Type::Ptr(_) = target {
                let inner = declare(target, "")?;
                let constant = if constant { "const " } else { "" };
                Ok(format!("{}{constant}*{name}", inner.trim_end()))
            } else {
                let constant = if constant { "const " } else { "" };
                Ok(format!("{constant}{}", declare(target, &format!("*{name}"))?))
            }
        }
        Type::Array(array) => {
            let length = match &array.len {
                Expr::Lit(literal) => match &literal.lit {
                    Lit::Int(value) => integer(value),
                    _ => return Err(unknown(ty)),
                },
                Expr::Path(path) => match path.path.segments.last() {
                    Some(segment) => format!("ICCL_{}", segment.ident),
                    None => return Err(unknown(ty)),
                },
                _ => return Err(unknown(ty)),
            };
            declare(&array.elem, &format!("{name}[{length}]"))
        }
        Type::BareFn(function) => function_pointer(function, name),
        _ => Err(unknown(ty)),
    }
}

fn unknown(ty: &Type) -> syn::Error {
    syn::Error::new_spanned(ty, "the header has no form for this type")
}

/// A pointer to a function.
fn function_pointer(function: &TypeBareFn, name: &str) -> syn::Result<String> {
    let mut parameters = Vec::new();
    for input in &function.inputs {
        let name = input.name.as_ref().map(|(name, _)| name.to_string()).unwrap_or_default();
        parameters.push(declare(&input.ty, &name)?);
    }
    let parameters = if parameters.is_empty() { "void".to_owned() } else { parameters.join(", ") };
    match &function.output {
        syn::ReturnType::Default => Ok(format!("void (*{name})({parameters})")),
        syn::ReturnType::Type(_, output) => declare(output, &format!("(*{name})({parameters})")),
    }
}

/// What an `Option` holds.
fn option_of(ty: &Type) -> Option<&Type> {
    let Type::Path(path) = ty else { return None };
    let last = path.path.segments.last()?;
    match &last.arguments {
        PathArguments::AngleBracketed(arguments) if last.ident == "Option" => {
            match arguments.args.first()? {
                GenericArgument::Type(inner) => Some(inner),
                _ => None,
            }
        }
        _ => None,
    }
}

/// The C type of a plain Rust type.
fn base_type(name: &str) -> String {
    match name {
        "u8" | "u16" | "u32" | "u64" | "i8" | "i16" | "i32" | "i64" => {
            let (sign, bits) = name.split_at(1);
            format!("{}int{bits}_t", if sign == "u" { "u" } else { "" })
        }
        "c_void" => "void".to_owned(),
        _ => c_name(name),
    }
}

/// The longest line that is not wrapped.
const LINE_WIDTH: usize = 100;

/// A declaration in lines that are not too long.
fn wrapped(declaration: &str) -> String {
    let mut text = String::new();
    let mut line = String::new();
    for word in declaration.split_inclusive(", ") {
        if line.len() + word.trim_end().len() > LINE_WIDTH {
            let _ = writeln!(text, "{}", line.trim_end());
            line.clear();
            line.push_str("        ");
        }
        line.push_str(word);
    }
    let _ = writeln!(text, "{line}");
    text
}

/// A number without Rust's underscores.
fn integer(value: &LitInt) -> String {
    value.to_string().replace('_', "")
}

/// `DeviceTable` as `iccl_device_table`.
fn c_name(name: &str) -> String {
    format!("iccl_{}", screaming(name).to_ascii_lowercase())
}

/// `DeviceTable` as `DEVICE_TABLE`. A digit stays with the letters before it.
fn screaming(name: &str) -> String {
    let mut text = String::new();
    for (index, character) in name.chars().enumerate() {
        if character.is_ascii_uppercase()
            && index > 0
            && !text.ends_with(|last: char| last.is_ascii_digit())
        {
            text.push('_');
        }
        text.push(character.to_ascii_uppercase());
    }
    text
}

fn public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Whether a struct has this representation.
fn has_repr(attributes: &[Attribute], representation: &str) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("repr")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident(representation))
    })
}

/// The lines of a doc comment, with Rust's links turned into plain names.
fn documentation(attributes: &[Attribute]) -> Vec<String> {
    let mut lines = Vec::new();
    for attribute in attributes {
        if let Meta::NameValue(meta) = &attribute.meta
            && meta.path.is_ident("doc")
            && let Expr::Lit(value) = &meta.value
            && let Lit::Str(text) = &value.lit
        {
            let text = text.value();
            lines.push(c_names(&without_links(text.strip_prefix(' ').unwrap_or(&text))));
        }
    }
    lines
}

/// Names of Rust items between backticks as C has them: `Status::Ok` is `ICCL_STATUS_OK`, `Message`
/// is `iccl_message`, `reach::SAME_HOST` is `ICCL_REACH_SAME_HOST`.
fn c_names(text: &str) -> String {
    let rename = |name: &str| {
        let word = |part: &str| part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let camel = |part: &str| {
            word(part)
                && part.starts_with(|c: char| c.is_ascii_uppercase())
                && part.contains(|c: char| c.is_ascii_lowercase())
        };
        let snake = |part: &str| word(part) && !part.contains(|c: char| c.is_ascii_uppercase());
        match name.split_once("::") {
            Some((set, member)) if camel(set) && camel(member) => {
                format!("ICCL_{}_{}", screaming(set), screaming(member))
            }
            Some((structure, field)) if camel(structure) && snake(field) => {
                format!("{}.{field}", c_name(structure))
            }
            Some((module, constant)) if snake(module) && word(constant) => {
                format!("ICCL_{}_{constant}", module.to_ascii_uppercase())
            }
            None if RUST_STRUCTS.contains(&name) => c_name(name),
            None if WORDS.contains(&name) => format!("ICCL_{}_*", screaming(name)),
            None if word(name)
                && name.contains('_')
                && !name.starts_with("ICCL_")
                && !name.contains(|c: char| c.is_ascii_lowercase()) =>
            {
                format!("ICCL_{name}")
            }
            None if STATUSES.contains(&name) => format!("ICCL_STATUS_{}", screaming(name)),
            _ => name.to_owned(),
        }
    };
    let parts: Vec<String> = text
        .split('`')
        .enumerate()
        .map(|(index, part)| if index % 2 == 1 { rename(part) } else { part.to_owned() })
        .collect();
    parts.join("`")
}

/// Structs that doc comments name.
const RUST_STRUCTS: &[&str] = &[
    "Completion",
    "Segment",
    "Message",
    "DeviceInfo",
    "ErrorInfo",
    "PluginNote",
    "DeviceTable",
    "CollectivesTable",
    "TransportTable",
];

/// Sets of words that doc comments name.
const WORDS: &[&str] = &["Collective", "DataType", "LogLevel", "MemoryKind", "RedOp", "Status"];

/// Statuses that doc comments name.
const STATUSES: &[&str] = &["Ok", "Pending", "Mismatch", "Timeout", "Aborted", "LibraryMissing"];

/// Turns ``[`Name`](path)`` and ``[`Name`]`` into `` `Name` ``.
fn without_links(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("[`") {
        plain.push_str(&rest[..start]);
        let Some(end) = rest[start..].find("`]") else { break };
        plain.push_str(&rest[start + 1..=start + end]);
        rest = &rest[start + end + 2..];
        if rest.starts_with('(')
            && let Some(close) = rest.find(')')
        {
            rest = &rest[close + 1..];
        }
    }
    plain.push_str(rest);
    plain
}

/// Writes a comment.
fn comment(out: &mut String, indent: &str, lines: &[String]) {
    match lines {
        [] => {}
        [line] => {
            let _ = writeln!(out, "{indent}/* {line} */");
        }
        lines => {
            for (index, line) in lines.iter().enumerate() {
                let opening = if index == 0 { "/*" } else { " *" };
                let _ = writeln!(out, "{indent}{}", format!("{opening} {line}").trim_end());
            }
            let _ = writeln!(out, "{indent} */");
        }
    }
}
