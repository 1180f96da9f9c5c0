//! What the host offers to a plugin, made from a safe trait.

use core::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::LogLevel;
use crate::tables::{ABI_MINOR, Bytes, HostTable};

/// Where a plugin's log lines go. One sink for each plugin, so that it knows who speaks.
pub trait LogSink: Send + Sync + 'static {
    /// Takes one line. `target` names the part of the plugin that speaks. Any thread; does not
    /// block.
    fn log(&self, level: LogLevel, target: &str, message: &str);

    /// The loudest lines that are wanted now; `None` for none. Cheap. Any thread.
    fn wanted(&self) -> Option<LogLevel>;
}

/// A host table that hands a plugin's log lines to `sink`. It lives as long as the process, as
/// plugins do.
pub fn host_table<S: LogSink>(sink: S) -> &'static HostTable {
    let sink: &'static S = Box::leak(Box::new(sink));
    Box::leak(Box::new(HostTable {
        struct_size: size_of::<HostTable>() as u32,
        abi_minor: ABI_MINOR,
        context: std::ptr::from_ref(sink).cast_mut().cast(),
        log: Some(log::<S>),
        log_level: Some(log_level::<S>),
    }))
}

unsafe extern "C" fn log<S: LogSink>(
    context: *mut c_void,
    level: u32,
    target: Bytes,
    message: Bytes,
) {
    // SAFETY: `context` is the sink that `host_table` leaked.
    let sink = unsafe { &*context.cast_const().cast::<S>() };
    // SAFETY: the plugin's bytes live during the call.
    let (target, message) = unsafe { (target.as_slice(), message.as_slice()) };
    // A level that this version does not know is quieter than all that it knows.
    let level = LogLevel::from_code(level).unwrap_or(LogLevel::Trace);
    // A panic of the sink must not cross into the plugin; the line is lost then.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        sink.log(level, &String::from_utf8_lossy(target), &String::from_utf8_lossy(message));
    }));
}

unsafe extern "C" fn log_level<S: LogSink>(context: *mut c_void) -> u32 {
    // SAFETY: `context` is the sink that `host_table` leaked.
    let sink = unsafe { &*context.cast_const().cast::<S>() };
    catch_unwind(AssertUnwindSafe(|| sink.wanted().map_or(0, LogLevel::code))).unwrap_or(0)
}
