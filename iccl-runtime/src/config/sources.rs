//! What a configuration is made from. The only place of the runtime that reads the environment.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// The environment variables of a process, as they were at one moment. Prints names only, since
/// values may be secret.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The value of a variable; one that is empty counts as not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(variables: I) -> Self {
        Self(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// All that a configuration is made from. Prints no values of environment and API, since they may
/// be secret.
#[derive(Clone, Default)]
pub struct Sources {
    /// The file, where the caller names one; it must be there.
    pub file: Option<PathBuf>,
    /// The environment.
    pub environment: Environment,
    /// Settings that the application gives as TOML text, and what that text is called in messages.
    /// They come over file and environment.
    pub text: Option<(String, String)>,
    /// Key and value, as text, of what the application or the command line sets.
    pub api: Vec<(String, String)>,
    /// Where `iccl.toml` is looked for and relative paths start.
    pub working_directory: PathBuf,
    /// Whether the process has more rights than its caller (setuid): then its environment and
    /// its working directory do not decide which code is loaded.
    pub raised_privileges: bool,
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources")
            .field("file", &self.file)
            .field("text", &self.text.as_ref().map(|(name, _)| name))
            .field("environment", &self.environment)
            .field("api", &self.api.iter().map(|(key, _)| key).collect::<Vec<_>>())
            .field("working_directory", &self.working_directory)
            .field("raised_privileges", &self.raised_privileges)
            .finish()
    }
}

impl Sources {
    /// The sources of this process. The only place of the runtime that reads the environment.
    pub fn of_process() -> Self {
        use rustix::process::{getegid, geteuid, getgid, getuid};
        // What is not UTF-8 gets replacement characters, which loading refuses by name.
        let lossy = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        Self {
            file: None,
            text: None,
            environment: std::env::vars_os()
                .map(|(name, value)| (lossy(name), lossy(value)))
                .collect(),
            api: Vec::new(),
            working_directory: std::env::current_dir().unwrap_or_default(),
            raised_privileges: getuid() != geteuid() || getgid() != getegid(),
        }
    }

    /// Names the file.
    #[must_use]
    pub fn with_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.file = Some(file.into());
        self
    }

    /// Sets what a TOML text says over file and environment; messages say where in `name` it is.
    #[must_use]
    pub fn with_text(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.text = Some((name.into(), text.into()));
        self
    }

    /// Sets a value over file and environment: a key such as `engine.op_timeout`, and the text
    /// that an environment variable would hold.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.api.push((key.into(), value.into()));
        self
    }
}
