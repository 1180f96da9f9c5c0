//! What a way costs: T(m) = α + m/β, in integers, so that every rank computes the same.

use serde::{Deserialize, Serialize};

use super::tier::Tier;

/// The sizes, in bytes, at which candidates are compared: one where latency decides, one where
/// bandwidth does. The way with the smallest sum of times wins.
pub const REFERENCE_BYTES: [u64; 2] = [4 << 10, 1 << 20];

/// Where a figure comes from, the most trusted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CostSource {
    /// The user's settings.
    Configuration,
    /// A calibration file.
    Calibration,
    /// A quick probe, exchanged as evidence.
    Probe,
    /// What the plugin says of itself, or iccl's own table.
    Table,
}

impl CostSource {
    /// The name in commands and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Configuration => "configuration",
            Self::Calibration => "calibration",
            Self::Probe => "probe",
            Self::Table => "table",
        }
    }

    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Configuration => 0,
            Self::Calibration => 1,
            Self::Probe => 2,
            Self::Table => 3,
        }
    }
}

/// The cost of a way between two ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cost {
    /// α: what the smallest message takes, in nanoseconds.
    pub alpha_ns: u64,
    /// β: bytes per microsecond; at least 1.
    pub bytes_per_us: u64,
    /// Where α comes from.
    pub alpha_source: CostSource,
    /// Where β comes from.
    pub beta_source: CostSource,
}

impl Cost {
    /// T(m) = α + m/β in nanoseconds, rounded up; the largest number stands for anything longer.
    pub fn time_ns(&self, message_bytes: u64) -> u64 {
        let rate = u128::from(self.bytes_per_us.max(1));
        let transfer = (u128::from(message_bytes) * 1000).div_ceil(rate);
        let total = u128::from(self.alpha_ns) + transfer;
        u64::try_from(total).unwrap_or(u64::MAX)
    }

    /// The sum of T(m) over [`REFERENCE_BYTES`], in nanoseconds: less is better.
    pub fn score_ns(&self) -> u64 {
        REFERENCE_BYTES.iter().fold(0_u64, |sum, bytes| sum.saturating_add(self.time_ns(*bytes)))
    }
}

/// Figures for one tier (over one transport, or all) that a user or a calibration gives.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostEntry {
    /// The tier.
    pub tier: Tier,
    /// The transport; `None` for any. An entry that names the transport wins.
    #[serde(default)]
    pub transport: Option<String>,
    /// α in nanoseconds, if the entry gives it.
    #[serde(default)]
    pub alpha_ns: Option<u64>,
    /// β in bytes per microsecond, if the entry gives it; at least 1.
    #[serde(default)]
    pub bytes_per_us: Option<u64>,
}

/// The entries of a calibration file: a JSON list of objects with `tier` and, each optional,
/// `transport`, `alpha_ns` and `bytes_per_us`.
///
/// # Errors
/// Says at which line and column the text is not such a list.
pub fn read_calibration(text: &str) -> Result<Vec<CostEntry>, String> {
    let entries: Vec<CostEntry> = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match entries.iter().find(|entry| entry.bytes_per_us == Some(0)) {
        Some(entry) => Err(format!("the entry for {} has 0 bytes per microsecond", entry.tier)),
        None => Ok(entries),
    }
}

/// iccl's own figures, for what nobody gave any: of the order that current machines show.
pub(super) const fn table(tier: Tier) -> (u64, u64) {
    match tier {
        Tier::SelfCopy => (200, 20_000),
        Tier::Ipc => (3_000, 20_000),
        Tier::Shm => (3_000, 14_000),
        Tier::Direct => (4_000, 12_000),
        Tier::Staged => (12_000, 8_000),
        Tier::Tcp => (25_000, 2_500),
    }
}

/// The entry for a tier over a transport that gives the figure which `pick` asks for.
pub(super) fn lookup(
    entries: &[CostEntry],
    tier: Tier,
    transport: &str,
    pick: impl Fn(&CostEntry) -> Option<u64>,
) -> Option<u64> {
    let of_tier = || entries.iter().filter(|entry| entry.tier == tier);
    of_tier()
        .filter(|entry| entry.transport.as_deref() == Some(transport))
        .find_map(&pick)
        .or_else(|| of_tier().filter(|entry| entry.transport.is_none()).find_map(&pick))
}

/// A measured figure cut to three significant bits, so that noise between ranks and runs makes
/// neither new classes of links nor new plans.
pub fn quantised(figure: u64) -> u64 {
    let bits = u64::BITS - figure.leading_zeros();
    let cut = bits.saturating_sub(3);
    (figure >> cut) << cut
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(alpha_ns: u64, bytes_per_us: u64) -> Cost {
        let source = CostSource::Table;
        Cost { alpha_ns, bytes_per_us, alpha_source: source, beta_source: source }
    }

    #[test]
    fn time_is_latency_plus_bytes_over_bandwidth_rounded_up() {
        assert_eq!(cost(1_000, 1_000).time_ns(0), 1_000);
        assert_eq!(cost(1_000, 1_000).time_ns(1 << 20), 1_000 + (1 << 20));
        assert_eq!(cost(0, 3).time_ns(1), 334);
        assert_eq!(cost(u64::MAX, 1).time_ns(u64::MAX), u64::MAX);
        assert_eq!(cost(u64::MAX, 1).score_ns(), u64::MAX);
    }

    #[test]
    fn the_table_ranks_the_tiers_as_their_names_promise() {
        let scores: Vec<u64> = Tier::ALL
            .iter()
            .map(|tier| {
                let (alpha_ns, bytes_per_us) = table(*tier);
                cost(alpha_ns, bytes_per_us).score_ns()
            })
            .collect();
        assert!(scores.is_sorted_by(|a, b| a < b), "{scores:?}");
    }

    #[test]
    fn quantising_keeps_three_bits() {
        for (figure, expected) in [(0, 0), (7, 7), (9, 8), (1_023, 896), (14_335, 14_336 - 2_048)] {
            assert_eq!(quantised(figure), expected, "{figure}");
        }
        assert_eq!(quantised(u64::MAX), 7 << 61);
        assert_eq!(quantised(quantised(12_345)), quantised(12_345));
    }

    #[test]
    fn a_calibration_file_is_a_list_of_entries() {
        let text = r#"[{ "tier": "tcp", "transport": "ucx", "alpha_ns": 7 }, { "tier": "self" }]"#;
        let entries = read_calibration(text).unwrap();
        assert_eq!((entries[0].tier, entries[0].alpha_ns), (Tier::Tcp, Some(7)));
        assert_eq!((entries[1].tier, &entries[1].transport), (Tier::SelfCopy, &None));
        let error = read_calibration(r#"[{ "tier": "tpc" }]"#).unwrap_err();
        assert!(error.contains("tpc") && error.contains("line 1"), "{error}");
        assert!(read_calibration(r#"[{ "tier": "tcp", "alpha": 7 }]"#).is_err());
        assert!(read_calibration(r#"[{ "tier": "tcp", "bytes_per_us": 0 }]"#).is_err());
    }

    #[test]
    fn an_entry_for_the_transport_wins_over_one_for_the_tier() {
        let entry = |transport: Option<&str>, alpha_ns| CostEntry {
            tier: Tier::Tcp,
            transport: transport.map(ToOwned::to_owned),
            alpha_ns,
            bytes_per_us: None,
        };
        let entries = [entry(None, Some(1)), entry(Some("tcp"), Some(2))];
        assert_eq!(lookup(&entries, Tier::Tcp, "tcp", |entry| entry.alpha_ns), Some(2));
        assert_eq!(lookup(&entries, Tier::Tcp, "ucx", |entry| entry.alpha_ns), Some(1));
        assert_eq!(lookup(&entries, Tier::Shm, "tcp", |entry| entry.alpha_ns), None);
        assert_eq!(lookup(&entries, Tier::Tcp, "tcp", |entry| entry.bytes_per_us), None);
    }
}
