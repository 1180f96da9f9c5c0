//! When a name in the configuration means a plugin.

/// What the names of transports begin with, and configuration leaves out: `transport-tcp` is `tcp`.
const TRANSPORT_PREFIX: &str = "transport-";

/// The names by which configuration may call a plugin: its own, and that of its tier.
pub(super) fn names_of(plugin: &str) -> impl Iterator<Item = &str> {
    std::iter::once(plugin).chain(plugin.strip_prefix(TRANSPORT_PREFIX))
}

/// Whether `written` means `plugin`.
pub(super) fn means(written: &str, plugin: &str) -> bool {
    names_of(plugin).any(|name| name == written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transport_goes_by_its_tier_too() {
        assert!(means("tcp", "transport-tcp") && means("transport-tcp", "transport-tcp"));
        assert!(!means("tcp", "tcp2") && !means("transport-host", "host"));
    }
}
