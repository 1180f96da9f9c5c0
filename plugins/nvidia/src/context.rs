//! A card's context: current on a thread for the time of a call, and then as it was.

use std::sync::Arc;

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::{PluginError, PluginResult};
use iccl_vendor_support::{Entered, ThreadState};

use crate::cuda::Cuda;
use crate::sys;

/// The primary context of a card, which libcudart and NCCL use too. Kept as long as this lives.
///
/// A thread enters it by `cuCtxSetCurrent`, not by `cudaSetDevice`: a thread that had no context gets
/// none back, while setting the device that it had before would make a context on the first card
/// for every thread that never chose one.
#[derive(Debug)]
pub(crate) struct PrimaryContext {
    pub(crate) cuda: Arc<Cuda>,
    pub(crate) ordinal: i32,
    device: sys::DriverDevice,
    context: sys::Context,
}

// SAFETY: a context may be entered by any thread, by several at a time.
unsafe impl Send for PrimaryContext {}
// SAFETY: as above.
unsafe impl Sync for PrimaryContext {}

impl PrimaryContext {
    /// Makes the context, or takes part in the one that is there.
    pub(crate) fn retain(cuda: &Arc<Cuda>, ordinal: i32) -> PluginResult<Self> {
        let driver = &cuda.driver;
        let mut device = 0;
        let mut context = std::ptr::null_mut();
        // SAFETY: there is room for both answers.
        unsafe {
            let answer = (driver.cuDeviceGet)(&raw mut device, ordinal);
            driver.check(format_args!("cuDeviceGet({ordinal})"), answer)?;
            let answer = (driver.cuDevicePrimaryCtxRetain)(&raw mut context, device);
            driver.check(format_args!("cuDevicePrimaryCtxRetain({ordinal})"), answer)?;
        }
        let retained = Self { cuda: Arc::clone(cuda), ordinal, device, context };
        retained.is_the_runtimes()?;
        Ok(retained)
    }

    /// Enters the context on this thread until the answer is dropped.
    pub(crate) fn enter(&self) -> PluginResult<Entered<'_, Self>> {
        Entered::new(self)
    }

    /// The runtime must take the context for that of the same card, or memory would come from
    /// another one.
    fn is_the_runtimes(&self) -> PluginResult<()> {
        let _current = self.enter()?;
        let mut current = -1;
        // SAFETY: there is room for the number.
        let answer = unsafe { (self.cuda.runtime.cudaGetDevice)(&raw mut current) };
        self.cuda.runtime.check("cudaGetDevice", answer)?;
        if current == self.ordinal {
            return Ok(());
        }
        let text = format!("libcudart takes the context of card {} for {current}'s", self.ordinal);
        Err(PluginError::new(Status::DeviceError, text))
    }
}

/// What a thread had.
pub(crate) struct Saved {
    context: sys::Context,
    capture_mode: i32,
}

impl ThreadState for PrimaryContext {
    type Saved = Saved;

    fn enter(&self) -> PluginResult<Saved> {
        let mut before = std::ptr::null_mut();
        // SAFETY: there is room for the context; ours is retained.
        unsafe {
            let answer = (self.cuda.driver.cuCtxGetCurrent)(&raw mut before);
            self.cuda.driver.check("cuCtxGetCurrent", answer)?;
            let answer = (self.cuda.driver.cuCtxSetCurrent)(self.context);
            self.cuda.driver.check("cuCtxSetCurrent", answer)?;
        }
        // Somebody may be recording a graph on another thread, which calls like ours would spoil in
        // the default mode. We touch no stream that is being recorded.
        let mut mode = sys::CAPTURE_MODE_RELAXED;
        let answer =
            // SAFETY: there is room for the number.
            unsafe { (self.cuda.runtime.cudaThreadExchangeStreamCaptureMode)(&raw mut mode) };
        let exchanged = self.cuda.runtime.check("cudaThreadExchangeStreamCaptureMode", answer);
        if let Err(error) = exchanged {
            self.restore(before);
            return Err(error);
        }
        Ok(Saved { context: before, capture_mode: mode })
    }

    fn leave(&self, saved: Saved) {
        let mut mode = saved.capture_mode;
        let answer =
            // SAFETY: there is room for the number.
            unsafe { (self.cuda.runtime.cudaThreadExchangeStreamCaptureMode)(&raw mut mode) };
        if let Err(error) = self.cuda.runtime.check("cudaThreadExchangeStreamCaptureMode", answer) {
            tracing::error!(%error, "a thread's capture mode could not be restored");
        }
        self.restore(saved.context);
    }
}

impl PrimaryContext {
    fn restore(&self, before: sys::Context) {
        // SAFETY: the thread had it, and may have had none.
        let answer = unsafe { (self.cuda.driver.cuCtxSetCurrent)(before) };
        if let Err(error) = self.cuda.driver.check("cuCtxSetCurrent", answer) {
            tracing::error!(%error, "a thread's context could not be restored");
        }
    }
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        // SAFETY: it was retained once by `retain`.
        let answer = unsafe { (self.cuda.driver.cuDevicePrimaryCtxRelease_v2)(self.device) };
        if let Err(error) = self.cuda.driver.check("cuDevicePrimaryCtxRelease", answer) {
            tracing::warn!(%error, "a context could not be given back");
        }
    }
}
