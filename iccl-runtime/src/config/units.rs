//! Quantities with units, read and written exactly: `500ms`, `256KiB`, `25Gbit/s`.

use std::time::Duration;

/// From largest to smallest, as they are tried when written.
const DURATION_UNITS: [(&str, u128); 7] = [
    ("h", 3_600_000_000_000),
    ("min", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("ns", 1),
];

/// `K`, `M`, `G` count in powers of 1024, as in nccl-tests; `KB`, `MB`, `GB` in powers of 1000.
const BYTE_UNITS: [(&str, u128); 14] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("T", 1 << 40),
    ("G", 1 << 30),
    ("M", 1 << 20),
    ("K", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
    ("", 1),
];

/// In bytes per second.
const BANDWIDTH_UNITS: [(&str, u128); 6] = [
    ("GB/s", 1_000_000_000),
    ("MB/s", 1_000_000),
    ("KB/s", 1_000),
    ("B/s", 1),
    ("Gbit/s", 125_000_000),
    ("Mbit/s", 125_000),
];

/// Reads a number and its unit.
pub(super) fn parse_duration(text: &str) -> Option<Duration> {
    let nanoseconds = parse_quantity(text, &DURATION_UNITS)?;
    Some(Duration::from_nanos(u64::try_from(nanoseconds).ok()?))
}

/// The shortest exact form.
pub(super) fn show_duration(duration: Duration) -> String {
    if duration.is_zero() {
        return "0s".to_owned();
    }
    show_quantity(duration.as_nanos(), &DURATION_UNITS)
}

/// Reads a number of bytes, with or without a unit.
pub(super) fn parse_bytes(text: &str) -> Option<u64> {
    u64::try_from(parse_quantity(text, &BYTE_UNITS)?).ok()
}

/// The shortest exact form.
pub(super) fn show_bytes(bytes: u64) -> String {
    if bytes == 0 {
        return "0B".to_owned();
    }
    show_quantity(u128::from(bytes), &BYTE_UNITS)
}

/// Reads a bandwidth, such as `25Gbit/s` or `3GB/s`; the result is in bytes per second.
pub fn parse_bandwidth(text: &str) -> Option<u64> {
    u64::try_from(parse_quantity(text, &BANDWIDTH_UNITS)?).ok()
}

/// The shortest exact form.
pub(super) fn show_bandwidth(bytes_per_second: u64) -> String {
    if bytes_per_second == 0 {
        return "0B/s".to_owned();
    }
    show_quantity(u128::from(bytes_per_second), &BANDWIDTH_UNITS)
}

/// A decimal number, optional blanks, a unit; refused if it is not a whole number of the
/// smallest unit.
fn parse_quantity(text: &str, units: &[(&str, u128)]) -> Option<u128> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start();
    let (_, scale) = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || (number.contains('.') && fraction.is_empty()) {
        return None;
    }
    let mut total = whole.parse::<u128>().ok()?.checked_mul(*scale)?;
    if !fraction.is_empty() {
        let denominator = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        let numerator = fraction.parse::<u128>().ok()?.checked_mul(*scale)?;
        if !numerator.is_multiple_of(denominator) {
            return None;
        }
        total = total.checked_add(numerator / denominator)?;
    }
    Some(total)
}

fn show_quantity(quantity: u128, units: &[(&str, u128)]) -> String {
    units
        .iter()
        .find(|(_, scale)| quantity.is_multiple_of(*scale))
        .map_or_else(|| quantity.to_string(), |(name, scale)| format!("{}{name}", quantity / scale))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("30s"), Some(Duration::from_secs(30)));
        assert_eq!(parse_duration("1.5 s"), Some(Duration::from_millis(1500)));
        assert_eq!(parse_duration("10min"), Some(Duration::from_secs(600)));
        assert_eq!(parse_duration("20us"), Some(Duration::from_micros(20)));
        for wrong in ["30", "s", "", "-1s", "1.s", ".5s", "1.5ns", "1e3s", "10 parsecs", "1.2.3s"] {
            assert_eq!(parse_duration(wrong), None, "{wrong}");
        }
        assert_eq!(show_duration(Duration::from_secs(600)), "10min");
        assert_eq!(show_duration(Duration::from_millis(1500)), "1500ms");
    }

    #[test]
    fn bytes_count_as_nccl_tests_do() {
        assert_eq!(parse_bytes("64M"), Some(64 << 20));
        assert_eq!(parse_bytes("256KiB"), Some(256 << 10));
        assert_eq!(parse_bytes("1kb"), Some(1000));
        assert_eq!(parse_bytes("17"), Some(17));
        assert_eq!(parse_bytes("1.5G"), Some(3 << 29));
        for wrong in ["", "M", "-1", "64X", "0.3", "99999999999999999999T"] {
            assert_eq!(parse_bytes(wrong), None, "{wrong}");
        }
        assert_eq!(show_bytes(64 << 20), "64MiB");
        assert_eq!(show_bytes(1001), "1001B");
    }

    #[test]
    fn bandwidth_in_bits_or_bytes() {
        assert_eq!(parse_bandwidth("25Gbit/s"), Some(3_125_000_000));
        assert_eq!(parse_bandwidth("12.5GB/s"), Some(12_500_000_000));
        assert_eq!(parse_bandwidth("12"), None);
        assert_eq!(show_bandwidth(3_125_000_000), "3125MB/s");
    }

    proptest::proptest! {
        #[test]
        fn written_forms_read_back(value: u64) {
            proptest::prop_assert_eq!(parse_bytes(&show_bytes(value)), Some(value));
            proptest::prop_assert_eq!(parse_bandwidth(&show_bandwidth(value)), Some(value));
            let duration = Duration::from_nanos(value);
            proptest::prop_assert_eq!(parse_duration(&show_duration(duration)), Some(duration));
        }
    }
}
