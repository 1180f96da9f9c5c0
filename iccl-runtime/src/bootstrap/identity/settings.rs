//! What iccl's own configuration says about a rank.

use std::path::PathBuf;

use iccl_wire::Key;

use super::super::interface::HostPort;
use super::super::secret::read_secret;
use super::super::unique_id::UniqueId;
use crate::config::Config;
use crate::{Error, ErrorKind, Result};

/// What iccl's own configuration says about this rank; each wins over any launcher.
#[derive(Clone, Debug, Default)]
pub struct IdentitySettings {
    /// `bootstrap.rank`.
    pub rank: Option<u32>,
    /// `bootstrap.world_size`.
    pub world_size: Option<u32>,
    /// `bootstrap.local_rank`.
    pub local_rank: Option<u32>,
    /// `bootstrap.local_world_size`.
    pub local_world_size: Option<u32>,
    /// `bootstrap.root` or `bootstrap.master_addr`: where rank 0 is met.
    pub root: Option<RootSetting>,
    /// `bootstrap.unique_id`, as `iccl run` sets it.
    pub unique_id: Option<UniqueId>,
    /// The content of `bootstrap.job_secret_file`.
    pub secret: Option<Key>,
}

/// Where rank 0 is met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RootSetting {
    /// At an address.
    Address(HostPort),
    /// On a host, at a port that every rank derives.
    Host(String),
    /// Wherever the file says, which rank 0 writes and the others can read.
    File(PathBuf),
}

impl RootSetting {
    /// Reads `host:port`, `tcp://host:port` or `file:///path`.
    ///
    /// # Errors
    ///
    /// `InvalidConfig`: none of them.
    pub fn parse(text: &str) -> Result<Self> {
        let text = text.trim();
        if let Some(path) = text.strip_prefix("file://") {
            if path.starts_with('/') {
                return Ok(Self::File(path.into()));
            }
            let message = format!("root \"{text}\": the path must be absolute");
            return Err(Error::new(ErrorKind::InvalidConfig, message)
                .with_hint("write file:///path/to/file"));
        }
        HostPort::parse(text.strip_prefix("tcp://").unwrap_or(text)).map(Self::Address)
    }

    /// Reads `host` or `host:port`.
    ///
    /// # Errors
    ///
    /// `InvalidConfig`: an address that cannot be reached as it stands.
    pub fn parse_host(text: &str) -> Result<Self> {
        let text = text.trim();
        let is_bare = !text.contains(':')
            || text.ends_with(']')
            || text.parse::<std::net::Ipv6Addr>().is_ok();
        if is_bare {
            return Ok(Self::Host(HostPort::new(text, super::DEFAULT_PORT)?.host));
        }
        HostPort::parse(text).map(Self::Address)
    }
}

impl IdentitySettings {
    /// Takes them from the configuration; reads the file with the job secret.
    ///
    /// # Errors
    ///
    /// `InvalidConfig`: an address or a unique id that is none; a secret file that is missing,
    /// empty or open to others.
    pub fn from_config(config: &Config) -> Result<Self> {
        let bootstrap = &config.bootstrap;
        let root = match (&bootstrap.root, &bootstrap.master_addr) {
            (Some(root), _) => Some(RootSetting::parse(root)?),
            (None, Some(host)) => Some(RootSetting::parse_host(host)?),
            (None, None) => None,
        };
        let unique_id = bootstrap.unique_id.as_ref().map(|id| UniqueId::from_text(id.expose()));
        let secret = bootstrap.job_secret_file.as_deref().map(read_secret);
        Ok(Self {
            rank: bootstrap.rank,
            world_size: bootstrap.world_size,
            local_rank: bootstrap.local_rank,
            local_world_size: bootstrap.local_world_size,
            root,
            unique_id: unique_id.transpose()?,
            secret: secret.transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::config::Sources;

    #[test]
    fn roots_are_read_as_people_write_them() {
        let address = |text: &str| Some(RootSetting::Address(HostPort::parse(text).unwrap()));
        assert_eq!(RootSetting::parse("10.0.0.1:5").ok(), address("10.0.0.1:5"));
        assert_eq!(RootSetting::parse("tcp://[::1]:5").ok(), address("[::1]:5"));
        assert_eq!(RootSetting::parse("file:///a/b").ok(), Some(RootSetting::File("/a/b".into())));
        for wrong in ["10.0.0.1", "file://a", "http://a:5", ""] {
            assert_eq!(RootSetting::parse(wrong).unwrap_err().kind(), ErrorKind::InvalidConfig);
        }
        let host = |text: &str| RootSetting::parse_host(text).ok();
        assert_eq!(host("node-0"), Some(RootSetting::Host("node-0".into())));
        assert_eq!(host("[::1]"), Some(RootSetting::Host("::1".into())));
        assert_eq!(host("::1"), Some(RootSetting::Host("::1".into())));
        assert_eq!(host("node-0:7"), address("node-0:7"));
        assert_eq!(host("fe80::1"), None);
    }

    #[test]
    fn settings_come_from_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        std::fs::write(&secret, "0123456789abcdef\n").unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let load = |changes: &[(&str, &str)]| {
            let mut sources =
                Sources { working_directory: folder.path().into(), ..Sources::default() };
            for (key, value) in changes {
                sources = sources.with(*key, *value);
            }
            IdentitySettings::from_config(&Config::load(&sources).unwrap())
        };
        let path = secret.to_str().unwrap();
        let settings = load(&[
            ("bootstrap.rank", "1"),
            ("bootstrap.world_size", "2"),
            ("bootstrap.root", "10.0.0.1:5"),
            ("bootstrap.master_addr", "ignored"),
            ("bootstrap.job_secret_file", path),
        ])
        .unwrap();
        assert_eq!((settings.rank, settings.world_size), (Some(1), Some(2)));
        assert!(matches!(&settings.root, Some(RootSetting::Address(a)) if a.host == "10.0.0.1"));
        assert_eq!(
            settings.secret,
            Some(Key::from_material("iccl job secret", b"0123456789abcdef"))
        );
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = load(&[("bootstrap.job_secret_file", path)]).unwrap_err();
        assert!(error.to_string().contains("others than its owner"), "{error}");
        assert!(load(&[("bootstrap.unique_id", "iccl1:00")]).is_err());
        assert!(load(&[("bootstrap.job_secret_file", "/nonexistent/secret")]).is_err());
    }
}
