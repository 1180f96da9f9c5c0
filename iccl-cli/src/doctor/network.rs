//! Interfaces and RDMA devices.

use std::path::Path;

use iccl_runtime::bootstrap::{Interface, InterfaceChoice, choose, interfaces};
use iccl_runtime::config::Config;

use super::Check;

pub(super) fn checks(config: &Config) -> Vec<Check> {
    let mut checks = match interfaces() {
        Ok(all) => vec![loopback(&all), outside(&all)],
        Err(error) => vec![Check::fail("interfaces", error.to_string(), "look at `ip address`")],
    };
    let settings = [
        ("bootstrap.interface", &config.bootstrap.interface),
        ("transport.interface", &config.transport.interface),
    ];
    for (key, setting) in settings {
        if let Some(text) = setting {
            checks.push(named(key, text));
        }
    }
    checks.push(rdma(&rdma_devices()));
    checks
}

fn loopback(all: &[Interface]) -> Check {
    match all.iter().find(|one| one.ip.is_loopback() && one.is_up) {
        Some(one) => Check::ok("loopback", format!("{} {}", one.name, one.ip)),
        None => Check::fail(
            "loopback",
            "no interface with a loopback address",
            "ip link set lo up; ranks of one host meet there",
        ),
    }
}

fn outside(all: &[Interface]) -> Check {
    let names: Vec<String> = all
        .iter()
        .filter(|one| one.is_up && !one.ip.is_loopback())
        .map(|one| format!("{} {}", one.name, one.ip))
        .collect();
    if names.is_empty() {
        return Check::warn(
            "interfaces",
            "none but loopback",
            "this machine can run jobs of its own only; for several hosts give it a network",
        );
    }
    Check::ok("interfaces", names.join(", "))
}

/// Whether the interface that a setting names is there.
fn named(key: &str, text: &str) -> Check {
    let found = InterfaceChoice::parse(text).and_then(|choice| {
        let all = interfaces()?;
        choose(&all, &choice, false)
    });
    match found {
        Ok(address) => Check::ok(key, format!("{text}: {}", address.ip())),
        Err(error) => {
            let hint = error.hint().unwrap_or("`ip address` shows what there is").to_owned();
            Check::fail(key, error.message(), hint)
        }
    }
}

/// The kernel's RDMA devices.
pub(super) fn rdma_devices() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(Path::new("/sys/class/infiniband")) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

fn rdma(devices: &[String]) -> Check {
    if devices.is_empty() {
        return Check::ok("rdma devices", "none; links between hosts take tcp");
    }
    Check::ok("rdma devices", devices.join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;

    fn interface(name: &str, ip: &str, is_up: bool) -> Interface {
        Interface { name: name.to_owned(), ip: ip.parse().expect("an address"), index: 1, is_up }
    }

    #[test]
    fn no_loopback_fails_and_loopback_alone_is_worth_a_word() {
        let lo = interface("lo", "127.0.0.1", true);
        let eth = interface("eth0", "10.0.0.1", true);
        let down = interface("eth1", "10.0.0.2", false);
        assert_eq!(loopback(std::slice::from_ref(&eth)).result, Verdict::Fail);
        assert_eq!(loopback(&[lo.clone(), eth.clone()]).result, Verdict::Ok);
        assert_eq!(outside(&[lo.clone(), down]).result, Verdict::Warn);
        assert_eq!(outside(&[lo, eth]).found, "eth0 10.0.0.1");
    }

    #[test]
    fn a_setting_that_names_no_interface_fails() {
        assert_eq!(named("transport.interface", "no-such-interface0").result, Verdict::Fail);
        assert_eq!(named("transport.interface", "lo").result, Verdict::Ok);
    }
}
