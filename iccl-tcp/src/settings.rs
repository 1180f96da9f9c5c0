//! What an operator may set in `[plugin.transport-tcp]`.

use std::time::Duration;

use iccl_plugin_api::sdk::{PluginError, PluginResult, Settings};
use iccl_plugin_api::tables::SettingSpec;

use crate::framing::Layout;
use crate::greeting::{MAXIMUM_LANES, MINIMUM_STRIPE_BYTES};

/// What an operator may set.
pub const SPECS: &[SettingSpec] = &[
    SettingSpec::new(
        "sockets_per_peer",
        "integer",
        "0",
        "Sockets of one channel, up to 16; long messages are striped over them. 0 chooses: 1 to a \
         peer on this host, where more gain nothing, else 4, since networks often limit what one \
         flow gets. The dialer's setting rules.",
    ),
    SettingSpec::new(
        "stripe_bytes",
        "bytes",
        "256KiB",
        "Bytes sent on one socket before the next socket's turn; shorter messages use one socket.",
    ),
    SettingSpec::new(
        "congestion",
        "string",
        "auto",
        "Congestion control by its kernel name; `system` leaves the system's; `auto` is `cubic` to \
         peers on this host, where pacing only costs, and `system` elsewhere.",
    ),
    SettingSpec::new(
        "send_buffer",
        "bytes",
        "0",
        "Bytes of a socket's send buffer; 0 lets the kernel tune it, which is best nearly always.",
    ),
    SettingSpec::new(
        "receive_buffer",
        "bytes",
        "0",
        "Bytes of a socket's receive buffer; 0 lets the kernel tune it.",
    ),
    SettingSpec::new(
        "user_timeout",
        "duration",
        "30s",
        "How long sent bytes may stay unacknowledged before the peer counts as lost; 0 for the \
         system's default.",
    ),
    SettingSpec::new(
        "keepalive",
        "duration",
        "10s",
        "How long a connection may be silent before it is probed; 0 never probes.",
    ),
];

/// The settings with their values.
#[derive(Debug, Clone)]
pub struct TcpSettings {
    /// 0 to choose.
    lanes: u32,
    stripe_bytes: u64,
    pub(crate) congestion: Congestion,
    /// Bytes, 0 for the kernel's choice.
    pub(crate) send_buffer: usize,
    /// Bytes, 0 for the kernel's choice.
    pub(crate) receive_buffer: usize,
    pub(crate) user_timeout: Duration,
    pub(crate) keepalive: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Congestion {
    Auto,
    System,
    Named(String),
}

const DAY_MICROSECONDS: u64 = 24 * 3600 * 1_000_000;

impl TcpSettings {
    /// The settings that were given, and defaults for the others.
    ///
    /// # Errors
    /// `InvalidArgument` naming the setting, its value and what is accepted.
    pub fn from(settings: &Settings<'_>) -> PluginResult<Self> {
        let number = |key: &str, default: u64, least: u64, most: u64| {
            let value = settings.number(key)?.unwrap_or(default);
            if (least..=most).contains(&value) {
                return Ok(value);
            }
            Err(PluginError::invalid(format!("setting {key}: {value} is not in {least} to {most}")))
        };
        let duration = |key: &str, default: Duration| {
            number(key, default.as_micros() as u64, 0, DAY_MICROSECONDS).map(Duration::from_micros)
        };
        let buffer = |key: &str| number(key, 0, 0, 1 << 30).map(|bytes| bytes as usize);
        Ok(Self {
            lanes: number("sockets_per_peer", 0, 0, u64::from(MAXIMUM_LANES))? as u32,
            stripe_bytes: number("stripe_bytes", 256 << 10, MINIMUM_STRIPE_BYTES, 1 << 40)?,
            congestion: match settings.text("congestion").unwrap_or("auto") {
                "auto" => Congestion::Auto,
                "system" => Congestion::System,
                name => Congestion::Named(name.to_owned()),
            },
            send_buffer: buffer("send_buffer")?,
            receive_buffer: buffer("receive_buffer")?,
            user_timeout: duration("user_timeout", Duration::from_secs(30))?,
            keepalive: duration("keepalive", Duration::from_secs(10))?,
        })
    }
}

impl TcpSettings {
    /// How payloads are cut on a channel to a peer on this host, or elsewhere.
    pub(crate) fn layout(&self, is_same_host: bool) -> Layout {
        let lanes = match self.lanes {
            0 if is_same_host => 1,
            0 => 4,
            lanes => lanes,
        };
        Layout { lanes, stripe_bytes: self.stripe_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_sockets_is_chosen_or_obeyed() {
        let of = |values| TcpSettings::from(&Settings::new(values)).unwrap();
        let chosen = of(vec![]);
        assert_eq!((chosen.layout(true).lanes, chosen.layout(false).lanes), (1, 4));
        let two = of(vec![("sockets_per_peer", "2")]);
        assert_eq!((two.layout(true).lanes, two.layout(false).lanes), (2, 2));
    }

    #[test]
    fn a_bad_value_names_setting_value_and_range() {
        let settings = Settings::new(vec![("sockets_per_peer", "17")]);
        let error = TcpSettings::from(&settings).unwrap_err();
        assert_eq!(error.message, "setting sockets_per_peer: 17 is not in 0 to 16");
        let settings = Settings::new(vec![("stripe_bytes", "1")]);
        assert!(TcpSettings::from(&settings).is_err());
    }

    #[test]
    fn every_setting_has_an_effect_on_the_values() {
        let default = format!("{:?}", TcpSettings::from(&Settings::default()).unwrap());
        for spec in SPECS {
            let key =
                // SAFETY: the bytes are those of a `&'static str`.
                unsafe { std::slice::from_raw_parts(spec.key.data, spec.key.length as usize) };
            let key = std::str::from_utf8(key).unwrap();
            let value = if key == "congestion" { "reno" } else { "8192" };
            let value = if key == "sockets_per_peer" { "3" } else { value };
            let changed = TcpSettings::from(&Settings::new(vec![(key, value)])).unwrap();
            assert_ne!(format!("{changed:?}"), default, "{key}");
        }
    }
}
