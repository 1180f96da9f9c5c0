//! The numbers of `bkcl.h` beside the library. They are made up.

use iccl_sim_core::reduce::{Combine, Element};

use crate::bkcl::Operator;

pub(crate) const UNIQUE_ID_BYTES: usize = 240;

pub(crate) const IS_OLD: bool = false;

pub(crate) fn element(number: i32) -> Option<Element> {
    Some(match number {
        0 => Element::F32,
        1 => Element::F16,
        2 => Element::F64,
        5 => Element::I32,
        6 => Element::I64,
        7 => Element::Bf16,
        8 => Element::U8,
        _ => return None,
    })
}

pub(crate) fn operator(number: i32) -> Option<Operator> {
    Some(match number {
        0 => Operator::Plain(Combine::Sum),
        1 => Operator::Plain(Combine::Product),
        2 => Operator::Plain(Combine::Max),
        3 => Operator::Plain(Combine::Min),
        4 => Operator::Average,
        _ => return None,
    })
}
