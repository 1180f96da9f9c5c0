//! The process that initialised a driver: a copy of it that `fork` made may not use the driver.

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};

/// Remembers the process in which it was made.
#[derive(Clone, Copy, Debug)]
pub struct OwnProcess {
    number: u32,
}

impl OwnProcess {
    /// This process.
    pub fn this() -> Self {
        Self { number: std::process::id() }
    }

    /// Whether it is still the same.
    ///
    /// # Errors
    /// `DeviceError` in a process that was forked since, in which `driver` must not be called.
    pub fn check(self, driver: &str) -> PluginResult<()> {
        if std::process::id() == self.number {
            return Ok(());
        }
        let text = format!(
            "this process was forked from {} after {driver} was initialised, and may not use it: \
             fork before, or start a new program",
            self.number
        );
        Err(PluginError::new(Status::DeviceError, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_process_is_refused() {
        let own = OwnProcess::this();
        assert_eq!(own.check("a driver"), Ok(()));
        let parent = OwnProcess { number: own.number + 1 };
        let error = parent.check("a driver").unwrap_err();
        assert!(error.message.contains("after a driver was initialised"), "{error}");
    }
}
