//! The numbers of `bkcl.h` beside the library. They are made up.

use iccl_sim_core::reduce::{Combine, Element};

use crate::bkcl::Operator;

pub(crate) const UNIQUE_ID_BYTES: usize = 192;

/// No broadcast of 64-bit integers, and no reduction of what nobody has confirmed.
pub(crate) const IS_OLD: bool = true;

pub(crate) fn element(number: i32) -> Option<Element> {
    Some(match number {
        10 => Element::U8,
        11 => Element::F32,
        12 => Element::F16,
        13 => Element::I32,
        20 => Element::I64,
        21 => Element::F64,
        22 => Element::Bf16,
        _ => return None,
    })
}

pub(crate) fn operator(number: i32) -> Option<Operator> {
    Some(Operator::Plain(match number {
        3 => Combine::Max,
        4 => Combine::Min,
        5 => Combine::Sum,
        6 => Combine::Product,
        _ => return None,
    }))
}
