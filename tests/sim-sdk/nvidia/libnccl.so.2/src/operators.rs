//! Data types and operators.

use std::ffi::c_void;

use iccl_sim_core::reduce::{Combine, Element, Factor, Reduction};
use iccl_sim_core::{Fault, Machine, Span};

use crate::communicators::{Comm, find, lock};
use crate::{INVALID_ARGUMENT, Outcome, Status, call, fail, put, version};

/// A sum of multiples.
#[derive(Clone)]
pub(crate) struct Operator {
    element: Element,
    factor: Factor,
    /// Where the factor lies, if it is read when the collective runs.
    at: Option<Span>,
}

/// The first version whose header has 8-bit floats.
const WITH_8_BIT_FLOATS: i32 = 22400;
const AVERAGE: i32 = 4;
const FIRST_DYNAMIC: i32 = 5;

pub(crate) fn element(number: i32) -> Result<Element, Status> {
    Ok(match number {
        0 => Element::I8,
        1 => Element::U8,
        2 => Element::I32,
        3 => Element::U32,
        4 => Element::I64,
        5 => Element::U64,
        6 => Element::F16,
        7 => Element::F32,
        8 => Element::F64,
        9 => Element::Bf16,
        10 if version() >= WITH_8_BIT_FLOATS => Element::F8E4m3,
        11 if version() >= WITH_8_BIT_FLOATS => Element::F8E5m2,
        _ => return Err(fail(INVALID_ARGUMENT, "invalid type")),
    })
}

/// The reduction for an operator, and where its factor is read if it is not known yet.
pub(crate) fn reduction(
    comm: &Comm,
    number: i32,
    element: Element,
    fault: Option<Fault>,
) -> Result<(Reduction, Option<Span>), Status> {
    let sum = Reduction::plain(Combine::Sum);
    let plain = match number {
        0 => sum,
        1 => Reduction::plain(Combine::Product),
        2 => Reduction::plain(Combine::Max),
        3 => Reduction::plain(Combine::Min),
        AVERAGE if fault == Some(Fault::SumForAvg) => sum,
        // Floats are multiplied by 1/n before they are added; sums of integers are divided.
        AVERAGE if element.is_float() => {
            Reduction { factor: Factor::Number(1.0 / f64::from(comm.ranks)), ..sum }
        }
        AVERAGE => Reduction { divisor: comm.ranks, ..sum },
        _ => {
            let operators = lock(&comm.operators);
            let operator = operators.get(&number);
            let operator = operator.filter(|operator| operator.element == element);
            let invalid = || fail(INVALID_ARGUMENT, "invalid reduction operation");
            let Operator { factor, at, .. } = operator.ok_or_else(invalid)?.clone();
            return Ok((Reduction { factor, ..sum }, at));
        }
    };
    Ok((plain, None))
}

const IN_DEVICE: i32 = 0;
const AT_ONCE: i32 = 1;

fn operator(
    machine: &Machine,
    scalar: *const c_void,
    element: Element,
    residence: i32,
) -> Result<Operator, Status> {
    let length = element.bytes();
    match residence {
        AT_ONCE if !scalar.is_null() => {
            let mut bytes = [0; 8];
            // SAFETY: C passes the address of one element.
            unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(scalar.cast(), length) };
            Ok(Operator { element, factor: Factor::Bits(u64::from_le_bytes(bytes)), at: None })
        }
        IN_DEVICE => {
            let at = machine.span(scalar as u64, length as u64).map_err(|_| INVALID_ARGUMENT)?;
            Ok(Operator { element, factor: Factor::One, at: Some(at) })
        }
        _ => Err(INVALID_ARGUMENT),
    }
}

#[unsafe(no_mangle)]
extern "C" fn ncclRedOpCreatePreMulSum(
    out: *mut i32,
    scalar: *mut c_void,
    element_number: i32,
    residence: i32,
    handle: *mut c_void,
) -> Status {
    call("ncclRedOpCreatePreMulSum", |machine, _| -> Outcome {
        let comm = find(handle)?;
        let made = operator(machine, scalar, element(element_number)?, residence)?;
        let mut operators = lock(&comm.operators);
        let number = operators.last_key_value().map_or(FIRST_DYNAMIC, |(last, _)| last + 1);
        operators.insert(number, made);
        put(out, number)
    })
}

#[unsafe(no_mangle)]
extern "C" fn ncclRedOpDestroy(number: i32, handle: *mut c_void) -> Status {
    call("ncclRedOpDestroy", |_, _| {
        let removed = lock(&find(handle)?.operators).remove(&number);
        removed.map(|_| ()).ok_or_else(|| fail(INVALID_ARGUMENT, "no such operator"))
    })
}
