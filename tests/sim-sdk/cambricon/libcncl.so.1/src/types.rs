//! Data types and operations.

use iccl_sim_core::Machine;
use iccl_sim_core::reduce::{Combine, Element, Reduction};

use crate::{ARGUMENTS, Status, UNSUPPORTED};

/// Number, name in settings, type.
const ELEMENTS: &[(i32, &str, Element)] = &[
    (0x10, "float16", Element::F16),
    (0x11, "bfloat16", Element::Bf16),
    (0x12, "float", Element::F32),
    (0x20, "int8", Element::I8),
    (0x21, "int16", Element::I16),
    (0x22, "int32", Element::I32),
    (0x23, "int64", Element::I64),
    (0x30, "uint8", Element::U8),
    (0x31, "uint16", Element::U16),
    (0x32, "uint32", Element::U32),
    (0x33, "uint64", Element::U64),
];

/// Number, name in settings, operation.
const OPERATIONS: &[(i32, &str, Combine)] = &[
    (0, "sum", Combine::Sum),
    (1, "prod", Combine::Product),
    (2, "max", Combine::Max),
    (3, "min", Combine::Min),
];

pub(crate) fn element(number: i32) -> Result<Element, Status> {
    let found = ELEMENTS.iter().find(|(known, ..)| *known == number);
    found.map(|(.., element)| *element).ok_or(ARGUMENTS)
}

/// The reduction for an operation on a type. Which pairs there are, the header does not say: the setting
/// `unsupported` names types (`bfloat16`) and pairs (`int16:prod`) that are refused.
pub(crate) fn reduction(machine: &Machine, number: i32, dtype: i32) -> Result<Reduction, Status> {
    let operation = OPERATIONS.iter().find(|(known, ..)| *known == number);
    let element = ELEMENTS.iter().find(|(known, ..)| *known == dtype);
    let ((_, name, combine), (_, type_name, _)) = operation.zip(element).ok_or(ARGUMENTS)?;
    let refused = machine.settings().text("unsupported").unwrap_or_default();
    let pair = format!("{type_name}:{name}");
    let mut words = refused.split([',', ' ']);
    if words.any(|word| word == *type_name || word == pair) {
        return Err(UNSUPPORTED);
    }
    Ok(Reduction::plain(*combine))
}
