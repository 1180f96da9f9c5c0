//! Answers on standard output.

use std::io::{self, ErrorKind, Write};

use serde::Serialize;

use crate::failure::{Failure, Result};

/// Writes text as it is. A reader that went away (`iccl plan | head`) is no error.
pub(crate) fn text(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::new(format!("standard output cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes indented JSON.
pub(crate) fn json(answer: &impl Serialize) -> Result<()> {
    let json = serde_json::to_string_pretty(answer)
        .map_err(|error| Failure::new(format!("the answer is no JSON: {error}")))?;
    text(&(json + "\n"))
}

/// Rows with heads as an aligned table.
pub(crate) fn table(heads: &[&str], rows: Vec<Vec<String>>) -> String {
    let heads = heads.iter().map(|head| (*head).to_owned()).collect();
    let all: Vec<Vec<String>> = std::iter::once(heads).chain(rows).collect();
    iccl_runtime::plan::text_table(&all)
}

/// A size as people say it: `16 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if value.fract() == 0.0 || value >= 100.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes_are_rounded_for_people() {
        assert_eq!(super::bytes(0), "0 B");
        assert_eq!(super::bytes(1536), "1.5 KiB");
        assert_eq!(super::bytes(64 << 20), "64 MiB");
        assert_eq!(super::bytes(1 << 60), "1048576 TiB");
    }
}
