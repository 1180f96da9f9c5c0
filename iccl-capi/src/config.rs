//! Settings of one communicator.

use std::ffi::{c_char, c_int, c_uint};
use std::mem::offset_of;

use iccl_runtime::comm::Runtime;
use iccl_runtime::config::Sources;

use crate::failure::{Failure, Refused, text_of};
use crate::numbers::Outcome;
use crate::process;

/// What marks an icclConfig_t.
pub const ICCL_CONFIG_MAGIC: c_uint = 0x6963_636C;
/// The value of a number that is not set.
pub const ICCL_CONFIG_UNDEF_INT: c_int = c_int::MIN;
/// Major, minor and patch of the interface as major * 10000 + minor * 100 + patch.
pub const ICCL_VERSION_CODE: c_int = 10000;

/// What messages call the settings that the struct brings.
const SETTINGS_NAME: &str = "icclConfig_t.settings";

/// Settings of one communicator, over those of the process (`iccl.toml`, ICCL_* variables). Begin with
/// ICCL_CONFIG_INITIALIZER, then set what you want; what stays as it was has no effect. Texts are read
/// during the call only.
#[repr(C)]
#[derive(Debug)]
#[allow(non_camel_case_types)] // C's name.
pub struct icclConfig_t {
    /// sizeof(icclConfig_t), by the initializer.
    pub size: usize,
    /// ICCL_CONFIG_MAGIC, by the initializer.
    pub magic: c_uint,
    /// The version of the header, by the initializer.
    pub version: c_uint,
    /// 1: calls that make or end the communicator return when that is done; 0: they return
    /// icclInProgress at once, and icclCommGetAsyncError tells when it is. Default 1.
    pub blocking: c_int,
    /// How long an operation may take, in milliseconds (`engine.op_timeout`).
    pub opTimeoutMilliseconds: c_int,
    /// How long all ranks together may take to come and to agree, in milliseconds
    /// (`bootstrap.init_timeout`).
    pub initTimeoutMilliseconds: c_int,
    /// Which device of its kind this rank uses, counted from 0, modulo their number
    /// (`bootstrap.local_rank`).
    pub deviceIndex: c_int,
    /// The plugin whose device this rank uses, such as "host" (`device.backend`). NULL: as the
    /// process is configured.
    pub device: *const c_char,
    /// A configuration file in place of `iccl.toml`. NULL: as the process is configured.
    pub configFile: *const c_char,
    /// More settings, as TOML text; they come over file and environment. NULL: none.
    pub settings: *const c_char,
    /// What messages call the communicator. NULL: nothing.
    pub commName: *const c_char,
}

/// What a communicator's caller asked for.
pub(crate) struct Settings {
    pub(crate) blocking: bool,
    pub(crate) name: Option<String>,
    pub(crate) runtime: Runtime,
}

impl Settings {
    pub(crate) fn default_of_process() -> Refused<Self> {
        Ok(Self { blocking: true, name: None, runtime: process::runtime()? })
    }

    /// What a struct says; null says nothing.
    ///
    /// # Safety
    /// `config` is null or points to an [`icclConfig_t`] as long as its `size` says; its texts end with
    /// zeros.
    pub(crate) unsafe fn read(config: *const icclConfig_t) -> Refused<Self> {
        if config.is_null() {
            return Self::default_of_process();
        }
        // SAFETY: the caller promises it.
        let given = unsafe { Given::read(config)? };
        let (blocking, name) = (given.blocking.unwrap_or(true), given.name.clone());
        let runtime = match given.sources() {
            None => process::runtime()?,
            Some(sources) => process::runtime_with(&sources)?,
        };
        Ok(Self { blocking, name, runtime })
    }
}

/// What a communicator that is made out of another takes from its caller; all else is its parent's.
#[derive(Default)]
pub(crate) struct Overrides {
    pub(crate) blocking: Option<bool>,
    pub(crate) name: Option<String>,
}

impl Overrides {
    /// What a struct says; null says nothing.
    ///
    /// # Safety
    /// As [`Settings::read`].
    pub(crate) unsafe fn read(config: *const icclConfig_t) -> Refused<Self> {
        if config.is_null() {
            return Ok(Self::default());
        }
        // SAFETY: the caller promises it.
        let given = unsafe { Given::read(config)? };
        let overrides = Self { blocking: given.blocking, name: given.name.clone() };
        if given.sources().is_some() {
            return Err(Failure::argument(
                "config sets more than blocking and commName; all else is that of the communicator \
                 that it is made out of",
            ));
        }
        Ok(overrides)
    }
}

/// The struct's fields, checked.
struct Given {
    blocking: Option<bool>,
    name: Option<String>,
    file: Option<String>,
    text: Option<String>,
    values: Vec<(&'static str, String)>,
}

impl Given {
    /// # Safety
    /// As [`Settings::read`].
    unsafe fn read(config: *const icclConfig_t) -> Refused<Self> {
        // SAFETY: what comes before `blocking` is there in every version.
        let (size, magic, version) = unsafe {
            (
                (&raw const (*config).size).read_unaligned(),
                (&raw const (*config).magic).read_unaligned(),
                (&raw const (*config).version).read_unaligned(),
            )
        };
        check_version(size, magic, version)?;
        // SAFETY: it is as long as this library's, which was checked.
        let config = unsafe { config.read_unaligned() };
        let blocking = match set(config.blocking) {
            None => None,
            Some(1) => Some(true),
            Some(0) => Some(false),
            Some(other) => {
                return Err(Failure::argument(format!("config.blocking is {other}, not 0 or 1")));
            }
        };
        let mut values = Vec::new();
        let times = [
            ("opTimeoutMilliseconds", "engine.op_timeout", config.opTimeoutMilliseconds),
            ("initTimeoutMilliseconds", "bootstrap.init_timeout", config.initTimeoutMilliseconds),
        ];
        for (name, key, milliseconds) in times {
            if let Some(milliseconds) = set(milliseconds) {
                if milliseconds < 1 {
                    let text = format!("config.{name} is {milliseconds}, and must be at least 1");
                    return Err(Failure::argument(text));
                }
                values.push((key, format!("{milliseconds}ms")));
            }
        }
        if let Some(index) = set(config.deviceIndex) {
            if index < 0 {
                let text = format!("config.deviceIndex is {index}, and counts from 0");
                return Err(Failure::argument(text));
            }
            values.push(("bootstrap.local_rank", index.to_string()));
        }
        // SAFETY: the caller promises it of each.
        let text = |name, text| unsafe { text_of(name, text) };
        if let Some(device) = text("config.device", config.device)? {
            values.push(("device.backend", device));
        }
        Ok(Self {
            blocking,
            name: text("config.commName", config.commName)?,
            file: text("config.configFile", config.configFile)?,
            text: text("config.settings", config.settings)?,
            values,
        })
    }

    /// What the configuration is made from, if it is another than the process's.
    fn sources(self) -> Option<Sources> {
        if self.file.is_none() && self.text.is_none() && self.values.is_empty() {
            return None;
        }
        let mut sources = Sources::of_process();
        if let Some(file) = self.file {
            sources = sources.with_file(file);
        }
        if let Some(text) = self.text {
            sources = sources.with_text(SETTINGS_NAME, text);
        }
        Some(
            self.values.into_iter().fold(sources, |sources, (key, value)| sources.with(key, value)),
        )
    }
}

/// A number that was set.
fn set(number: c_int) -> Option<c_int> {
    (number != ICCL_CONFIG_UNDEF_INT).then_some(number)
}

fn check_version(size: usize, magic: c_uint, version: c_uint) -> Refused<()> {
    if magic != ICCL_CONFIG_MAGIC {
        return Err(Failure::argument(
            "config.magic is wrong: begin with icclConfig_t config = ICCL_CONFIG_INITIALIZER",
        ));
    }
    let major = |code: c_uint| code / 10000;
    if major(version) != major(ICCL_VERSION_CODE as c_uint) {
        return Err(Failure::new(
            Outcome::VersionMismatch,
            format!(
                "config.version is {version}, this libiccl's is {ICCL_VERSION_CODE}: the program was \
                 built for another"
            ),
        ));
    }
    let known = size_of::<icclConfig_t>();
    if size > known {
        return Err(Failure::new(
            Outcome::VersionMismatch,
            format!(
                "config.size is {size}, this libiccl knows {known} bytes: the program was built for a \
                 later one, whose settings this one would pass over"
            ),
        ));
    }
    // Fields are only appended; the first version's are all there are.
    if size < known {
        return Err(Failure::argument(format!("config.size is {size}, and must be {known}")));
    }
    Ok(())
}

const _: () =
    assert!(offset_of!(icclConfig_t, magic) == 8 && offset_of!(icclConfig_t, version) == 12);
