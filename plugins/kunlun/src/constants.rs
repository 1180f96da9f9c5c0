//! BKCL's numbers, which no public document tells: from the vendor's own header, from the operator, or
//! from a shim that was compiled on the target. Never guessed.

use std::ffi::{c_char, c_int};
use std::path::{Path, PathBuf};

use iccl_vendor_support::{Library, static_text};

use crate::header::Header;
use crate::sys;

/// The header's name.
pub(crate) const HEADER: &str = "bkcl.h";

/// BKCL's types of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Type {
    Float,
    Float16,
    Bfloat16,
    Float64,
    Uint8,
    Int32,
    Int64,
}

/// BKCL's operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub(crate) enum Op {
    Add,
    Product,
    Max,
    Min,
    Avg,
}

/// Their names, in the order above: those that programs use.
const TYPES: [&str; 7] = [
    "BKCL_FLOAT",
    "BKCL_FLOAT16",
    "BKCL_BFLOAT16",
    "BKCL_FLOAT64",
    "BKCL_UINT8",
    "BKCL_INT32",
    "BKCL_INT64",
];
const OPS: [&str; 5] = ["BKCL_ADD", "BKCL_PRODUCT", "BKCL_MAX", "BKCL_MIN", "BKCL_AVG"];
const RESULTS: [&str; 4] =
    ["BKCL_INVALID_ARGUMENT", "BKCL_RUNTIME_ERROR", "BKCL_SYSTEM_ERROR", "BKCL_INTERNAL_ERROR"];
const SUCCESS: &str = "BKCL_SUCCESS";
const UNIQUE_ID_BYTES: &str = "BKCL_UNIQUE_ID_BYTES";
const UNIQUE_ID: &str = "BKCLUniqueId";

/// What the shim exports for its numbers; see `shim/iccl_bkcl_shim.cc`.
const SHIM_CONSTANTS: &str = "iccl_shim_constants";

/// BKCL's numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Constants {
    /// Where they come from.
    pub(crate) source: String,
    pub(crate) unique_id_bytes: usize,
    types: [Option<c_int>; TYPES.len()],
    ops: [Option<c_int>; OPS.len()],
    results: [Option<c_int>; RESULTS.len()],
}

impl Constants {
    /// Out of a header.
    ///
    /// # Errors
    /// Why it is of no use.
    pub(crate) fn from_header(path: &Path) -> Result<Self, String> {
        let source = path.display().to_string();
        let text = std::fs::read(path).map_err(|error| format!("{source}: {error}"))?;
        let header = Header::read(&String::from_utf8_lossy(&text));
        let id = header.bytes_of(UNIQUE_ID).map_err(|why| format!("{source}: {why}"))?;
        let id = i64::try_from(id).map_err(|error| error.to_string())?;
        let value = |name: &str| match name {
            UNIQUE_ID_BYTES => Ok(id),
            _ => header.value(name),
        };
        Self::new(source, value)
    }

    /// Out of `NAME=NUMBER`, parted by commas or blanks.
    ///
    /// # Errors
    /// Why it is of no use.
    pub(crate) fn from_text(source: &str, text: &str) -> Result<Self, String> {
        let known = |name: &str| {
            TYPES.contains(&name)
                || OPS.contains(&name)
                || RESULTS.contains(&name)
                || [SUCCESS, UNIQUE_ID_BYTES].contains(&name)
        };
        let mut pairs: Vec<(&str, i64)> = Vec::new();
        for word in text.split([',', ' ', '\n']).filter(|word| !word.is_empty()) {
            let pair =
                word.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
            let pair = pair.filter(|(name, _)| known(name));
            pairs.push(pair.ok_or_else(|| format!("{source}: `{word}` is no number of BKCL's"))?);
        }
        let missing = |name: &str| format!("it does not say {name}");
        let value = |name: &str| {
            let found = pairs.iter().rev().find(|(known, _)| *known == name);
            found.map(|(_, value)| *value).ok_or_else(|| missing(name))
        };
        Self::new(source.to_owned(), value)
    }

    /// Out of a shim.
    ///
    /// # Errors
    /// Why it is of no use.
    pub(crate) fn from_shim(shim: &Library) -> Result<Self, String> {
        let path = shim.path().display().to_string();
        let symbol = shim.symbol(SHIM_CONSTANTS);
        let symbol = symbol.ok_or_else(|| format!("{path}: it lacks {SHIM_CONSTANTS}"))?;
        // SAFETY: the shim's source declares it so; the operator says that this is the shim.
        let text = unsafe {
            let constants = std::mem::transmute::<
                *const std::ffi::c_void,
                unsafe extern "C" fn() -> *const c_char,
            >(symbol);
            static_text(constants())
        };
        Self::from_text(&path, &text)
    }

    fn new(source: String, value: impl Fn(&str) -> Result<i64, String>) -> Result<Self, String> {
        let refused = |why: String| format!("{source}: {why}");
        let number = |name: &&str| value(name).ok().and_then(|value| c_int::try_from(value).ok());
        if number(&SUCCESS).is_some_and(|success| success != sys::BKCL_SUCCESS) {
            return Err(refused(format!("{SUCCESS} is not 0, as it was measured to be")));
        }
        let id = value(UNIQUE_ID_BYTES).map_err(refused)?;
        let unique_id_bytes = usize::try_from(id).unwrap_or(0);
        if !(1..=sys::MOST_UNIQUE_ID_BYTES).contains(&unique_id_bytes) {
            return Err(refused(format!("an id of {id} bytes is none of BKCL's")));
        }
        let (types, ops) = (TYPES.each_ref().map(number), OPS.each_ref().map(number));
        let results = RESULTS.each_ref().map(number);
        for (names, numbers) in [(&TYPES[..], &types[..]), (&OPS, &ops), (&RESULTS, &results)] {
            if let Some((one, other)) = same_number(names, numbers) {
                return Err(refused(format!("{one} and {other} have the same number")));
            }
        }
        // The first of each kind says why, if not one of them is known.
        if types.iter().all(Option::is_none) {
            return Err(refused(value(TYPES[0]).err().unwrap_or_default()));
        }
        if ops.iter().all(Option::is_none) {
            return Err(refused(value(OPS[0]).err().unwrap_or_default()));
        }
        Ok(Self { source, unique_id_bytes, types, ops, results })
    }

    /// The number of a type.
    pub(crate) fn dtype(&self, dtype: Type) -> Option<c_int> {
        self.types[dtype as usize]
    }

    /// The number of an operation.
    pub(crate) fn op(&self, op: Op) -> Option<c_int> {
        self.ops[op as usize]
    }

    /// The name of a result, and its place in the order: invalid argument, runtime, system, internal.
    pub(crate) fn result(&self, number: c_int) -> Option<(usize, &'static str)> {
        let place = self.results.iter().position(|known| *known == Some(number))?;
        Some((place, RESULTS[place]))
    }
}

/// Two names of which the numbers are the same.
fn same_number<'a>(names: &[&'a str], numbers: &[Option<c_int>]) -> Option<(&'a str, &'a str)> {
    let known: Vec<(usize, c_int)> =
        numbers.iter().enumerate().filter_map(|(at, number)| Some((at, (*number)?))).collect();
    for (index, (at, number)) in known.iter().enumerate() {
        if let Some((other, _)) = known[..index].iter().find(|(_, other)| other == number) {
            return Some((names[*other], names[*at]));
        }
    }
    None
}

/// Where the header of a library lies if it came with it.
pub(crate) fn headers_beside(library: &Path) -> Vec<PathBuf> {
    let folder = library.parent().unwrap_or(Path::new("/"));
    ["", "include", "../include", "xccl/include"]
        .map(|below| folder.join(below).join(HEADER))
        .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn simulated(sdk: &str) -> Constants {
        let sdks = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/sim-sdk");
        Constants::from_header(&sdks.join(sdk).join("libbkcl.so").join(HEADER)).unwrap()
    }

    #[test]
    fn two_headers_with_different_numbers_are_read_as_they_are() {
        let (old, new) = (simulated("kunlun"), simulated("kunlun-p800"));
        assert_eq!((old.unique_id_bytes, new.unique_id_bytes), (192, 240));
        assert_eq!(old.types.map(Option::unwrap), [11, 12, 22, 21, 10, 13, 20]);
        assert_eq!(new.types.map(Option::unwrap), [0, 1, 7, 2, 8, 5, 6]);
        assert_eq!(old.ops, [Some(5), Some(6), Some(3), Some(4), None]);
        assert_eq!(new.ops.map(Option::unwrap), [0, 1, 2, 3, 4]);
        for header in [&old, &new] {
            assert_eq!(header.results.map(Option::unwrap), [1, 2, 3, 4]);
        }
        assert_eq!(new.result(2), Some((1, "BKCL_RUNTIME_ERROR")));
    }

    #[test]
    fn numbers_of_the_operator_are_whole_and_right_or_refused() {
        let read = |text: &str| Constants::from_text("bkcl_constants", text);
        let constants = read("BKCL_FLOAT=4 BKCL_ADD=9,BKCL_UNIQUE_ID_BYTES=128").unwrap();
        assert_eq!(constants.dtype(Type::Float), Some(4));
        assert_eq!(constants.dtype(Type::Int32), None);
        assert_eq!((constants.op(Op::Add), constants.op(Op::Avg)), (Some(9), None));
        for (text, why) in [
            ("BKCL_FLOAT=0 BKCL_ADD=0", "it does not say BKCL_UNIQUE_ID_BYTES"),
            ("BKCL_ADD=0 BKCL_UNIQUE_ID_BYTES=128", "it does not say BKCL_FLOAT"),
            ("BKCL_FLOAT=0 BKCL_UNIQUE_ID_BYTES=128", "it does not say BKCL_ADD"),
            ("BKCL_FLOAT=0 BKCL_UNIQUE_ID_BYTES=5000", "an id of 5000 bytes is none of BKCL's"),
            ("BKCL_FLOAT=1 BKCL_INT32=1 BKCL_UNIQUE_ID_BYTES=9", "have the same number"),
            ("BKCL_SUCCESS=1 BKCL_UNIQUE_ID_BYTES=9", "BKCL_SUCCESS is not 0"),
            ("BKCL_FLOATS=1", "`BKCL_FLOATS=1` is no number of BKCL's"),
            ("BKCL_FLOAT", "`BKCL_FLOAT` is no number of BKCL's"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.starts_with("bkcl_constants: ") && error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_header_that_does_not_say_enough_is_refused_with_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(HEADER);
        assert!(Constants::from_header(&path).unwrap_err().contains("No such file"));
        std::fs::write(&path, "enum { BKCL_FLOAT };").unwrap();
        let why = Constants::from_header(&path).unwrap_err();
        assert!(why.ends_with("it does not say what BKCLUniqueId is"), "{why}");
    }
}
