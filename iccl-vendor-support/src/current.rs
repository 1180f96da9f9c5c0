//! The device that a thread has chosen: set for one call, and afterwards as it was.
//!
//! The application has chosen a device for each of its threads, and a plugin runs on them. So every
//! call enters the device that it is about and leaves the thread as it found it, also when it fails
//! or panics.

use iccl_plugin_api::sdk::PluginResult;

/// A maker's way to choose a thread's device.
pub trait ThreadState {
    /// What has to be remembered to restore the thread.
    type Saved;

    /// Remembers what the thread has, and chooses the device.
    ///
    /// # Errors
    /// What the driver says; the thread is as it was.
    fn enter(&self) -> PluginResult<Self::Saved>;

    /// Restores the thread.
    fn leave(&self, saved: Self::Saved);
}

/// The device is chosen as long as this lives, on the thread that made it.
#[must_use = "the device is left at once otherwise"]
pub struct Entered<'a, T: ThreadState> {
    state: &'a T,
    saved: Option<T::Saved>,
    /// Leaving on another thread would restore the wrong one.
    not_send: std::marker::PhantomData<*const ()>,
}

impl<'a, T: ThreadState> Entered<'a, T> {
    /// Enters.
    ///
    /// # Errors
    /// What the driver says.
    pub fn new(state: &'a T) -> PluginResult<Self> {
        let saved = Some(state.enter()?);
        Ok(Self { state, saved, not_send: std::marker::PhantomData })
    }
}

impl<T: ThreadState> Drop for Entered<'_, T> {
    fn drop(&mut self) {
        if let Some(saved) = self.saved.take() {
            self.state.leave(saved);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use iccl_plugin_api::sdk::PluginError;

    use super::*;

    thread_local! {
        static CURRENT: Cell<i32> = const { Cell::new(0) };
    }

    struct Device(i32);

    impl ThreadState for Device {
        type Saved = i32;
        fn enter(&self) -> PluginResult<i32> {
            if self.0 < 0 {
                return Err(PluginError::invalid("no such device"));
            }
            Ok(CURRENT.replace(self.0))
        }
        fn leave(&self, saved: i32) {
            CURRENT.set(saved);
        }
    }

    #[test]
    fn the_thread_is_left_as_it_was() {
        CURRENT.set(7);
        {
            let _outer = Entered::new(&Device(1)).unwrap();
            assert!(Entered::new(&Device(-1)).is_err());
            let inner = std::panic::catch_unwind(|| {
                let _inner = Entered::new(&Device(2)).unwrap();
                assert_eq!(CURRENT.get(), 2);
                std::panic::resume_unwind(Box::new("inside"));
            });
            assert!(inner.is_err());
            assert_eq!(CURRENT.get(), 1);
        }
        assert_eq!(CURRENT.get(), 7);
    }
}
