//! How the shared objects of one vendor come by the same machine.
//!
//! The lowest object (the driver) exports [`SYMBOL`], made by [`own_machine!`](crate::own_machine).
//! The others open the driver from the folder that they lie in themselves, never by the loader's
//! search: a real driver may be installed.

use std::ffi::{CStr, CString, c_void};
use std::sync::OnceLock;

use crate::Machine;

/// What the owner exports: a function without arguments that gives a pointer to [`Shared`].
pub const SYMBOL: &CStr = c"iccl_sim_machine";

/// What the owner hands out.
#[repr(C)]
pub struct Shared {
    /// Objects of different builds must not look into each other's machine.
    machine_bytes: usize,
    machine: *const Machine,
}

impl Shared {
    /// Of the owner's machine.
    pub fn new(machine: &'static Machine) -> Self {
        Self { machine_bytes: size_of::<Machine>(), machine }
    }
}

/// The machine of the object `file` in the folder of the object in which `inside` lies; none if there
/// is no such object. Looked for once.
pub fn find(file: &str, inside: *const c_void) -> Option<&'static Machine> {
    static FOUND: OnceLock<Option<usize>> = OnceLock::new();
    let address = (*FOUND.get_or_init(|| look(file, inside).map(|found| found as usize)))?;
    // SAFETY: `look` gave it; the owner never drops it and is never unloaded.
    Some(unsafe { &*(address as *const Machine) })
}

fn look(file: &str, inside: *const c_void) -> Option<*const Machine> {
    let path = folder_of(inside)?.join(file);
    let path = CString::new(path.into_os_string().into_encoded_bytes()).ok()?;
    // SAFETY: a path that ends with a zero byte. The object's initialisers are Rust's.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if library.is_null() {
        return None;
    }
    // SAFETY: a library that was just opened.
    let function = unsafe { libc::dlsym(library, SYMBOL.as_ptr()) };
    if function.is_null() {
        return None;
    }
    // SAFETY: only `own_machine!` exports this name.
    let function: extern "C" fn() -> *const Shared = unsafe { std::mem::transmute(function) };
    // SAFETY: the owner's `Shared` is never dropped.
    let shared = unsafe { function().as_ref() }?;
    assert_eq!(shared.machine_bytes, size_of::<Machine>(), "{file} is of another build");
    Some(shared.machine)
}

fn folder_of(inside: *const c_void) -> Option<std::path::PathBuf> {
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: the structure is four plain words.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: looks the address up, whatever it is.
    if unsafe { libc::dladdr(inside, &raw mut found) } == 0 || found.dli_fname.is_null() {
        return None;
    }
    // SAFETY: a name that the loader keeps as long as the object is loaded.
    let name = unsafe { CStr::from_ptr(found.dli_fname) };
    let path = std::path::Path::new(std::ffi::OsStr::from_bytes(name.to_bytes()));
    path.parent()?.canonicalize().ok()
}

/// In the object that owns the machine: `fn machine()`, the symbol by which others get it, and
/// `iccl_sim_set(key, value)`, by which a test changes a setting or the faults in this process.
#[macro_export]
macro_rules! own_machine {
    ($vendor:expr) => {
        thread_local! {
            static THREAD: $crate::ThreadState = $crate::ThreadState::default();
        }

        fn machine() -> &'static $crate::Machine {
            static MACHINE: std::sync::OnceLock<$crate::Machine> = std::sync::OnceLock::new();
            MACHINE
                .get_or_init(|| $crate::Machine::new($vendor, |look| THREAD.with(|one| look(one))))
        }

        #[unsafe(no_mangle)]
        extern "C" fn iccl_sim_machine() -> *const $crate::share::Shared {
            static SHARED: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
            let made = || Box::into_raw(Box::new($crate::share::Shared::new(machine()))) as usize;
            *SHARED.get_or_init(made) as *const $crate::share::Shared
        }

        /// Not part of the maker's interface. 0 if it is understood.
        ///
        /// # Safety
        /// Both texts end with a zero byte.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn iccl_sim_set(
            key: *const std::ffi::c_char,
            value: *const std::ffi::c_char,
        ) -> i32 {
            // SAFETY: by this function's contract.
            i32::from(!unsafe { $crate::entry::set(machine(), key, value) })
        }
    };
}
