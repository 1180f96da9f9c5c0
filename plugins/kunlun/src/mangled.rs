//! Functions of a library that has them under C++ names.
//!
//! libbkcl of current releases exports no plain C name. A mangled one tells the types of the arguments,
//! so that their order can be compared with the expected one before anything is called.

use std::ffi::c_void;
use std::path::Path;

use cpp_demangle::Symbol;
use iccl_vendor_support::Library;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSymbol};

use crate::sys;

/// The functions of a library, by their plain name, else by their only mangled one.
pub(crate) struct Functions<'a> {
    library: &'a Library,
    /// The exported names, as far as they are C++'s.
    mangled: Vec<String>,
    /// What was found and not taken.
    pub(crate) refused: Vec<String>,
}

impl<'a> Functions<'a> {
    pub(crate) fn of(library: &'a Library) -> Self {
        let mangled = match exported_names(library.path()) {
            Ok(names) => names.into_iter().filter(|name| name.starts_with("_Z")).collect(),
            Err(error) => {
                let path = library.path().display();
                tracing::debug!(%path, %error, "a library's names cannot be read");
                Vec::new()
            }
        };
        Self { library, mangled, refused: Vec::new() }
    }

    /// The function, if its name is plain, or mangled once with the arguments that it is expected to have.
    pub(crate) fn find(&mut self, name: &str) -> Option<*const c_void> {
        if let Some(symbol) = self.library.symbol(name) {
            return Some(symbol);
        }
        let found = only_match(name, self.mangled.iter().map(String::as_str))?;
        match found {
            Ok(mangled) => self.library.symbol(mangled),
            Err(why) => {
                self.refused.push(why);
                None
            }
        }
    }
}

/// The names that a file exports.
fn exported_names(path: &Path) -> Result<Vec<String>, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    let file: ElfFile64<'_> = ElfFile64::parse(&*bytes).map_err(|error| error.to_string())?;
    let symbols = file.dynamic_symbols().filter(ObjectSymbol::is_definition);
    Ok(symbols.filter_map(|symbol| symbol.name().ok().map(str::to_owned)).collect())
}

/// The one mangled name of a function, or why none is taken; `None` if there is none.
fn only_match<'a>(
    name: &str,
    mangled: impl Iterator<Item = &'a str>,
) -> Option<Result<&'a str, String>> {
    let part = format!("{}{name}", name.len());
    let candidates: Vec<(&str, String)> = mangled
        .filter(|mangled| mangled.contains(&part))
        .filter_map(|mangled| Some((mangled, Symbol::new(mangled).ok()?.demangle().ok()?)))
        .filter(|(_, text)| split(text).is_some_and(|(found, _)| found == name))
        .collect();
    let [(mangled, text)] = &candidates[..] else {
        let all: Vec<&str> = candidates.iter().map(|(_, text)| text.as_str()).collect();
        let all = all.join("; ");
        return (!candidates.is_empty())
            .then(|| Err(format!("{name} is there {} times: {all}", candidates.len())));
    };
    let expected = sys::ARGUMENTS.iter().find(|(known, _)| *known == name);
    let is_expected = expected
        .is_some_and(|(_, shapes)| split(text).is_some_and(|(_, list)| is_list(&list, shapes)));
    Some(if is_expected {
        Ok(mangled)
    } else {
        Err(format!("{name} has other arguments than expected: {text}"))
    })
}

/// The last part of a function's name, and its arguments. `None` for what is no plain function.
fn split(text: &str) -> Option<(&str, Vec<&str>)> {
    let open = text.find('(')?;
    let (name, list) = (&text[..open], text[open + 1..].strip_suffix(')')?);
    if name.contains([' ', '<']) {
        return None;
    }
    let mut arguments = Vec::new();
    let (mut depth, mut begin) = (0, 0);
    for (at, one) in list.char_indices() {
        match one {
            '(' | '<' => depth += 1,
            ')' | '>' => depth -= 1,
            ',' if depth == 0 => {
                arguments.push(list[begin..at].trim());
                begin = at + 1;
            }
            _ => {}
        }
    }
    arguments.push(list[begin..].trim());
    if arguments == ["void"] || arguments == [""] {
        arguments.clear();
    }
    Some((name.rsplit("::").next()?, arguments))
}

fn is_list(arguments: &[&str], shapes: &str) -> bool {
    arguments.len() == shapes.len()
        && arguments.iter().zip(shapes.chars()).all(|(argument, shape)| is_shape(argument, shape))
}

fn is_shape(argument: &str, shape: char) -> bool {
    let is_name = argument.chars().all(|one| one.is_alphanumeric() || one == '_' || one == ':');
    let name = argument.rsplit("::").next().unwrap_or_default();
    match shape {
        'P' => argument.ends_with('*'),
        'i' => argument == "int",
        'm' => argument == "unsigned long",
        'D' => is_name && name.contains("Type"),
        'O' => is_name && name.contains("Op") && !name.contains("Type"),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matched<'a>(name: &str, mangled: &[&'a str]) -> Option<Result<&'a str, String>> {
        only_match(name, mangled.iter().copied())
    }

    #[test]
    fn a_function_is_known_by_its_last_name_and_its_arguments() {
        // As g++ mangles them: global, in a namespace, with types said again.
        for (name, mangled) in [
            ("bkcl_init_rank", "_Z14bkcl_init_rankPP11BKCLContextiiP12BKCLUniqueId"),
            ("bkcl_send", "_ZN5baidu3xpu4bkcl9bkcl_sendEPNS1_3CtxEPKvmiNS1_10BKCLDtTypeEPv"),
            (
                "bkcl_all_to_all_v",
                "_Z17bkcl_all_to_all_vP11BKCLContextPKvPKmS4_12BKCLDataTypePvS4_S4_S5_S6_",
            ),
            ("bkcl_all_reduce", "_Z15bkcl_all_reduceP11BKCLContextPKvPvm12BKCLDataType6BKCLOpS3_"),
            ("bkcl_group_end", "_Z14bkcl_group_endv"),
            ("xccl_mmap", "_ZN5baidu3xpu4bkcl9xccl_mmapEPPvS2_m"),
            ("xccl_munmap", "_ZN5baidu3xpu4bkcl11xccl_munmapEPvm"),
        ] {
            let others = ["_Z15bkcl_init_ranksv", "_ZN9bkcl_send4moreEv", "_Z3foov", mangled];
            assert_eq!(matched(name, &others), Some(Ok(mangled)), "{name}");
            assert_eq!(matched(name, &others[..3]), None, "{name}");
        }
    }

    #[test]
    fn two_of_a_name_are_told_and_neither_is_taken() {
        let both = ["_Z15bkcl_comm_abortPv", "_ZN1a15bkcl_comm_abortEPv"];
        let why = matched("bkcl_comm_abort", &both).unwrap().unwrap_err();
        assert_eq!(
            why,
            "bkcl_comm_abort is there 2 times: bkcl_comm_abort(void*); a::bkcl_comm_abort(void*)"
        );
    }

    #[test]
    fn another_order_of_arguments_is_told_and_not_taken() {
        for (name, mangled) in [
            // The id by value; the type before the peer; the operation before the type; a count of int.
            ("bkcl_init_rank", "_Z14bkcl_init_rankPP11BKCLContextii12BKCLUniqueId"),
            ("bkcl_send", "_Z9bkcl_sendP11BKCLContextPKvm12BKCLDataTypeiPv"),
            ("bkcl_all_reduce", "_Z15bkcl_all_reduceP11BKCLContextPKvPvm6BKCLOp12BKCLDataTypeS3_"),
            ("bkcl_all_gather", "_Z15bkcl_all_gatherP11BKCLContextPKviPv12BKCLDataTypeS3_"),
            ("bkcl_group_end", "_Z14bkcl_group_endi"),
        ] {
            let why = matched(name, &[mangled]).unwrap().unwrap_err();
            assert!(
                why.starts_with(&format!("{name} has other arguments than expected: ")),
                "{why}"
            );
        }
    }

    #[test]
    fn every_function_of_the_tables_has_its_arguments_said() {
        let mut asked = Vec::new();
        let mut ask = |name| {
            asked.push(name);
            None
        };
        // SAFETY: nothing is found, so nothing is called.
        let missing = unsafe {
            [sys::Bkcl::resolve_by(&mut ask).is_err(), sys::Mapping::resolve_by(&mut ask).is_err()]
        };
        assert_eq!(missing, [true; 2]);
        for name in asked {
            assert!(sys::ARGUMENTS.iter().any(|(known, _)| *known == name), "{name}");
        }
    }
}
