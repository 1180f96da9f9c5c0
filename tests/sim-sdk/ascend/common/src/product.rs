//! Kinds of cards, by the chip's name, and what HCCL does on each, by CANN 9's documents.

use iccl_sim_core::Machine;
use iccl_sim_core::reduce::Element;

/// A kind of card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Product {
    A2,
    A3,
    First910,
    P310,
    A950,
}

/// The chip of all cards, by the setting `chip`.
pub fn chip(machine: &Machine) -> String {
    machine.settings().text("chip").unwrap_or_else(|| "Ascend910B3".to_owned())
}

impl Product {
    /// The kind of the machine's cards. A chip that is not known behaves as the newest.
    pub fn of(machine: &Machine) -> Self {
        let chip = chip(machine);
        let chip = chip.trim_start_matches("Ascend");
        let has_digit = chip.len() > 4 && chip.as_bytes()[4].is_ascii_digit();
        match chip {
            _ if chip.starts_with("310P") => Self::P310,
            _ if chip.starts_with("910_93") => Self::A3,
            _ if chip.starts_with("910B") && has_digit => Self::A2,
            _ if chip.starts_with("910") => Self::First910,
            _ => Self::A950,
        }
    }

    /// Whether a function of HCCL is there for it.
    pub fn has(self, symbol: &str) -> bool {
        match self {
            Self::A2 | Self::A3 | Self::A950 => true,
            Self::First910 => {
                !matches!(symbol, "HcclAllGatherV" | "HcclReduceScatterV" | "HcclAlltoAllVC")
            }
            Self::P310 => matches!(
                symbol,
                "HcclAllReduce"
                    | "HcclAllGather"
                    | "HcclAllGatherV"
                    | "HcclReduceScatter"
                    | "HcclReduceScatterV"
                    | "HcclAlltoAll"
                    | "HcclAlltoAllV"
            ),
        }
    }

    /// Whether elements are moved as such.
    pub fn moves(self, element: Element) -> bool {
        match element {
            Element::Bf16 => matches!(self, Self::A2 | Self::A3 | Self::A950),
            Element::F8E4m3 | Element::F8E5m2 => self == Self::A950,
            _ => true,
        }
    }

    /// Whether elements are reduced by one of SUM 0, PROD 1, MAX 2, MIN 3.
    pub fn reduces(self, element: Element, op: i32) -> bool {
        use Element::{Bf16, F16, F32, F64, I8, I16, I32, I64, U64};
        let is_listed = match self {
            Self::A2 | Self::A3 => matches!(element, I8 | I16 | I32 | I64 | F16 | F32 | Bf16),
            Self::First910 => matches!(element, I8 | I32 | I64 | F16 | F32),
            Self::P310 => matches!(element, I8 | I16 | I32 | F16 | F32),
            Self::A950 => {
                matches!(element, I8 | I16 | I32 | I64 | U64 | F16 | F32 | F64 | Bf16)
            }
        };
        let is_odd = match self {
            Self::P310 => element == I16 && op != 0,
            _ => matches!(element, I16 | Bf16) && op == 1,
        };
        is_listed && !is_odd
    }
}
