//! Settings of a simulated vendor: environment variables, read when they are asked for, unless a test
//! set another value in this process.

use std::collections::BTreeMap;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where the settings of one vendor come from: `ICCL_SIM_<VENDOR>_<KEY>`, else `ICCL_SIM_<KEY>`.
#[derive(Debug)]
pub struct Settings {
    vendor: &'static str,
    set_here: Mutex<BTreeMap<String, String>>,
}

impl Settings {
    /// Of the vendor with this name, in lower case.
    pub fn new(vendor: &'static str) -> Self {
        Self { vendor, set_here: Mutex::new(BTreeMap::new()) }
    }

    /// What is set for a key (lower case), if anything.
    pub fn text(&self, key: &str) -> Option<String> {
        if let Some(value) = self.here().get(key) {
            return Some(value.clone());
        }
        let key = key.to_uppercase();
        let own = format!("ICCL_SIM_{}_{key}", self.vendor.to_uppercase());
        std::env::var(own).or_else(|_| std::env::var(format!("ICCL_SIM_{key}"))).ok()
    }

    /// A number, or the default.
    ///
    /// # Panics
    /// If what is set is no such number: a test that believes it set something must not go on.
    pub fn number<T: FromStr>(&self, key: &str, default: T) -> T {
        self.text(key).map_or(default, |text| {
            text.trim()
                .parse()
                .unwrap_or_else(|_| panic!("ICCL_SIM_{key}: \"{text}\" is no number"))
        })
    }

    /// Whether a switch is on. Off unless it is set to something other than 0.
    pub fn is_on(&self, key: &str) -> bool {
        self.text(key).is_some_and(|text| !text.is_empty() && text != "0")
    }

    /// Sets a value in this process; it counts before the environment.
    pub fn set(&self, key: &str, value: &str) {
        self.here().insert(key.to_owned(), value.to_owned());
    }

    fn here(&self) -> MutexGuard<'_, BTreeMap<String, String>> {
        self.set_here.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_here_counts_and_the_rest_is_the_default() {
        let settings = Settings::new("nobody");
        assert_eq!(settings.number("a_key_of_this_test", 7), 7);
        assert!(!settings.is_on("a_key_of_this_test"));
        settings.set("a_key_of_this_test", "9");
        assert_eq!(settings.number("a_key_of_this_test", 7), 9);
        assert!(settings.is_on("a_key_of_this_test"));
        settings.set("a_key_of_this_test", "0");
        assert!(!settings.is_on("a_key_of_this_test"));
    }
}
