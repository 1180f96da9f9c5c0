//! Faults by setting: which call of which symbol goes wrong, and how.
//!
//! `ICCL_SIM_FAULTS` is a list, separated by commas or white space, of `SYMBOL@WHEN=HOW`.
//! WHEN is `3` (the third call in this process), `3+` (the third and all after it) or `*` (all). HOW is
//!
//! | text | what the call does |
//! |---|---|
//! | a number | returns it and does nothing |
//! | `hang` | never returns |
//! | `nothing` | returns success and does nothing |
//! | `sticky:N` | puts the card into error N, which every later call on it returns |
//! | `sum-for-avg` | a collective sums where it was asked for the mean, and reports success |
//! | `drop-slice` | a collective leaves the last bytes of its result as they were, and reports success |

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::Settings;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call returns this status of the vendor.
    Fail(i32),
    /// The call never returns.
    Hang,
    /// The call returns success and does nothing.
    Nothing,
    /// The card is in this error from now on.
    Sticky(i32),
    /// The collective sums where it was asked for the mean.
    SumForAvg,
    /// The collective does not write the end of its result.
    DropSlice,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    Call(u64),
    From(u64),
}

/// The faults of a process, and how often each symbol was called.
#[derive(Debug, Default)]
pub struct Faults {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<(String, When, Fault)>,
    calls: BTreeMap<&'static str, u64>,
}

impl Faults {
    /// What the setting `faults` says.
    ///
    /// # Panics
    /// If it can't be understood: a test that believes it set a fault must not go on.
    pub fn new(settings: &Settings) -> Self {
        let faults = Self::default();
        faults.replace(&settings.text("faults").unwrap_or_default());
        faults
    }

    /// Replaces all faults, and counts calls from the start again.
    ///
    /// # Panics
    /// As for [`Faults::new`].
    pub fn replace(&self, text: &str) {
        let words = text.split(|one: char| one == ',' || one.is_whitespace());
        let rules = words
            .filter(|word| !word.is_empty())
            .map(|word| rule(word).unwrap_or_else(|| panic!("no fault: \"{word}\"")))
            .collect();
        *self.lock() = State { rules, calls: BTreeMap::new() };
    }

    /// Counts a call of a symbol; says what goes wrong with it.
    pub fn at(&self, symbol: &'static str) -> Option<Fault> {
        let mut state = self.lock();
        if state.rules.is_empty() {
            return None;
        }
        let calls = state.calls.entry(symbol).or_default();
        *calls += 1;
        let call = *calls;
        let rule = state.rules.iter().find(|(name, when, _)| {
            name == symbol
                && match when {
                    When::Call(number) => call == *number,
                    When::From(number) => call >= *number,
                }
        });
        rule.map(|(_, _, fault)| *fault)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn rule(word: &str) -> Option<(String, When, Fault)> {
    let (symbol, rest) = word.split_once('@')?;
    let (when, how) = rest.split_once('=')?;
    let when = match (when, when.strip_suffix('+')) {
        ("*", _) => When::From(1),
        (_, Some(number)) => When::From(number.parse().ok()?),
        (number, None) => When::Call(number.parse().ok()?),
    };
    let fault = match how {
        "hang" => Fault::Hang,
        "nothing" => Fault::Nothing,
        "sum-for-avg" => Fault::SumForAvg,
        "drop-slice" => Fault::DropSlice,
        _ => match how.strip_prefix("sticky:") {
            Some(number) => Fault::Sticky(number.parse().ok()?),
            None => Fault::Fail(how.parse().ok()?),
        },
    };
    Some((symbol.to_owned(), when, fault))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_named_call_goes_wrong_and_no_other() {
        let faults = Faults::default();
        faults.replace("a@2=46, b@2+=hang\nc@*=sticky:700 d@1=sum-for-avg");
        assert_eq!(
            [faults.at("a"), faults.at("a"), faults.at("a")],
            [None, Some(Fault::Fail(46)), None]
        );
        assert_eq!(
            [faults.at("b"), faults.at("b"), faults.at("b")],
            [None, Some(Fault::Hang), Some(Fault::Hang)]
        );
        assert_eq!(faults.at("c"), Some(Fault::Sticky(700)));
        assert_eq!(faults.at("d"), Some(Fault::SumForAvg));
        assert_eq!(faults.at("e"), None);
    }

    #[test]
    #[should_panic(expected = "no fault: \"a@1=hagn\"")]
    fn a_fault_that_is_not_understood_is_no_silence() {
        Faults::default().replace("a@1=hagn");
    }
}
