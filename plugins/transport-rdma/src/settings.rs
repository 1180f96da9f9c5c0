//! What an operator may set in `[plugin.rdma]`.

use std::time::Duration;

use iccl_plugin_api::sdk::{PluginError, PluginResult, Settings};
use iccl_plugin_api::tables::SettingSpec;

pub(crate) const SPECS: &[SettingSpec] = &[
    SettingSpec::new(
        "devices",
        "string",
        "",
        "Devices that may be used, parted by commas: `mlx5_0,mlx5_1:2` (with a port). Empty for all. \
         The first of which a port is active is used.",
    ),
    SettingSpec::new(
        "gid_index",
        "integer",
        "-1",
        "Entry of the port's address table; -1 chooses: RoCE v2 with an IPv4 address, then routable \
         IPv6, then link-local.",
    ),
    SettingSpec::new("traffic_class", "integer", "0", "Traffic class of packets, up to 255."),
    SettingSpec::new("service_level", "integer", "0", "Service level of connections, up to 15."),
    SettingSpec::new("pkey_index", "integer", "0", "Entry of the port's table of partition keys."),
    SettingSpec::new(
        "mtu",
        "bytes",
        "4096",
        "Largest MTU: 256, 512, 1024, 2048 or 4096. The smallest of this and both ports' is used.",
    ),
    SettingSpec::new(
        "timeout",
        "duration",
        "500ms",
        "How long a packet may stay unanswered before it is repeated; rounded up to 4.096 us times a \
         power of two.",
    ),
    SettingSpec::new(
        "retry",
        "integer",
        "6",
        "How often an unanswered packet is repeated before the peer counts as lost, up to 6: 7 never \
         ends on some devices.",
    ),
];

/// Which ports of a device may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ports {
    All,
    One(u8),
}

/// The settings with their values.
#[derive(Debug, Clone)]
pub(crate) struct RdmaSettings {
    /// Names and ports; empty for all.
    devices: Vec<(String, Ports)>,
    pub(crate) gid_index: Option<u32>,
    pub(crate) traffic_class: u8,
    pub(crate) service_level: u8,
    pub(crate) pkey_index: u16,
    /// Number of the MTU: 1 to 5.
    pub(crate) mtu: u8,
    /// Exponent: 4.096 µs × 2^this.
    pub(crate) timeout: u8,
    pub(crate) retries: u8,
}

/// The exponent of the shortest time that a device knows and that is not shorter.
fn exponent(time: Duration) -> u8 {
    let is_enough = |exponent: &u8| 4096_u128 << *exponent >= time.as_nanos();
    (1..31).find(is_enough).unwrap_or(31)
}

impl RdmaSettings {
    /// # Errors
    /// `InvalidArgument` naming the setting, its value and what is accepted.
    pub(crate) fn from(settings: &Settings<'_>) -> PluginResult<Self> {
        let number = |key: &str, default: u64, least: u64, most: u64| {
            let value = settings.number(key)?.unwrap_or(default);
            if (least..=most).contains(&value) {
                return Ok(value);
            }
            Err(PluginError::invalid(format!("setting {key}: {value} is not in {least} to {most}")))
        };
        let mut devices = Vec::new();
        let listed = settings.text("devices").unwrap_or("");
        for one in listed.split(',').map(str::trim).filter(|one| !one.is_empty()) {
            let (name, port) = match one.split_once(':') {
                None => (one, Ports::All),
                Some((name, port)) => {
                    let port = port.parse().ok().filter(|port| *port > 0);
                    let port = port.ok_or_else(|| {
                        PluginError::invalid(format!("setting devices: `{one}` has no port number"))
                    })?;
                    (name, Ports::One(port))
                }
            };
            devices.push((name.to_owned(), port));
        }
        let mtu = number("mtu", 4096, 256, 4096)?;
        if !mtu.is_power_of_two() {
            let text = format!("setting mtu: {mtu} is not 256, 512, 1024, 2048 or 4096");
            return Err(PluginError::invalid(text));
        }
        let gid_index = match settings.text("gid_index") {
            None | Some("-1") => None,
            Some(_) => Some(number("gid_index", 0, 0, 255)? as u32),
        };
        let most_time = 4_096_u64 << 21;
        let timeout = Duration::from_micros(number("timeout", 500_000, 1, most_time)?);
        Ok(Self {
            devices,
            gid_index,
            traffic_class: number("traffic_class", 0, 0, 255)? as u8,
            service_level: number("service_level", 0, 0, 15)? as u8,
            pkey_index: number("pkey_index", 0, 0, u64::from(u16::MAX))? as u16,
            mtu: (mtu.ilog2() - 7) as u8,
            timeout: exponent(timeout),
            retries: number("retry", 6, 0, 6)? as u8,
        })
    }

    /// Which ports of a device may be used; `None` if it may not.
    pub(crate) fn allows(&self, name: &str) -> Option<Ports> {
        if self.devices.is_empty() {
            return Some(Ports::All);
        }
        self.devices.iter().find(|(device, _)| device == name).map(|(_, port)| *port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: &[(&'static str, &'static str)]) -> PluginResult<RdmaSettings> {
        RdmaSettings::from(&Settings::new(values.to_vec()))
    }

    #[test]
    fn values_become_what_devices_know() {
        let default = of(&[]).unwrap();
        assert_eq!((default.mtu, default.timeout, default.retries), (5, 17, 6));
        assert_eq!(default.gid_index, None);
        let other = of(&[("mtu", "1024"), ("timeout", "67000"), ("gid_index", "3")]).unwrap();
        assert_eq!((other.mtu, other.timeout, other.gid_index), (3, 14, Some(3)));
        assert_eq!(exponent(Duration::from_secs(1 << 20)), 31);
    }

    #[test]
    fn devices_are_named_with_or_without_a_port() {
        assert_eq!(of(&[]).unwrap().allows("mlx5_3"), Some(Ports::All));
        let some = of(&[("devices", "mlx5_0, mlx5_1:2")]).unwrap();
        assert_eq!(some.allows("mlx5_0"), Some(Ports::All));
        assert_eq!(some.allows("mlx5_1"), Some(Ports::One(2)));
        assert_eq!(some.allows("mlx5_2"), None);
    }

    #[test]
    fn a_bad_value_names_setting_and_value() {
        for (key, value, words) in [
            ("retry", "7", "setting retry: 7 is not in 0 to 6"),
            ("mtu", "1500", "setting mtu: 1500 is not 256"),
            ("devices", "a:x", "setting devices: `a:x`"),
        ] {
            let error = of(&[(key, value)]).unwrap_err();
            assert!(error.message.starts_with(words), "{error}");
        }
    }
}
