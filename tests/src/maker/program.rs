//! What programs have in common that use simulated libraries as they would the real ones: functions by
//! `dlopen` and `dlsym`, with prototypes written in the program, and words to the test that started it.

use std::ffi::{CString, c_void};
use std::io::{BufRead as _, Write as _};
use std::path::Path;

/// A struct of C functions of a library, by their prototypes. `open(path)` fills it, and panics if one is
/// missing.
#[macro_export]
macro_rules! c_library {
    ($(#[$note:meta])* $name:ident { $($symbol:ident($($argument:ty),*) -> $result:ty;)* }) => {
        $(#[$note])*
        #[allow(non_snake_case, reason = "the names are C's")]
        #[derive(Clone, Copy)]
        pub(crate) struct $name {
            $(pub(crate) $symbol: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        #[allow(non_snake_case, reason = "the names are C's")]
        impl $name {
            /// # Panics
            /// If the library or one of its symbols isn't there.
            pub(crate) fn open(path: &std::path::Path) -> Self {
                let library = $crate::maker::program::open(path);
                $(let $symbol = {
                    let found = $crate::maker::program::symbol(library, stringify!($symbol));
                    assert!(!found.is_null(), "{}: no {}", path.display(), stringify!($symbol));
                    // SAFETY: the prototype is the one of the header.
                    unsafe {
                        std::mem::transmute::<
                            *mut std::ffi::c_void,
                            unsafe extern "C" fn($($argument),*) -> $result,
                        >(found)
                    }
                };)*
                Self { $($symbol),* }
            }
        }
    };
}

/// A call of C: all of them take what they are given and return a status.
#[macro_export]
macro_rules! c_call {
    ($library:expr, $symbol:ident($($argument:expr),*)) => {
        // SAFETY: arguments as the header asks for them.
        unsafe { ($library.$symbol)($($argument),*) }
    };
}

/// A call that must succeed.
#[macro_export]
macro_rules! c_succeeds {
    ($library:expr, $symbol:ident($($argument:expr),*)) => {
        assert_eq!($crate::c_call!($library, $symbol($($argument),*)), 0, stringify!($symbol))
    };
}

/// Loads a library.
///
/// # Panics
/// If it can't be loaded.
pub fn open(path: &Path) -> *mut c_void {
    let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: a simulated library, whose initialisers do nothing but Rust's.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    assert!(!library.is_null(), "{} cannot be loaded", path.display());
    library
}

/// A symbol of a library that [`open`] gave; null if there is none.
#[allow(clippy::not_unsafe_ptr_arg_deref, reason = "the loader knows its libraries")]
pub fn symbol(library: *mut c_void, name: &str) -> *mut c_void {
    let name = CString::new(name).expect("a name");
    // SAFETY: an open library.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

/// Prints a line at once.
pub fn say(line: &str) {
    let mut output = std::io::stdout().lock();
    let _ = writeln!(output, "{line}");
    let _ = output.flush();
}

/// The next line that the test sends.
pub fn hear() -> String {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).expect("a line");
    line.trim().to_owned()
}

/// As two digits for each byte.
pub fn to_hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// From what [`to_hex`] gave.
pub fn from_hex<const N: usize>(text: &str) -> [u8; N] {
    let mut bytes = [0; N];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).expect("two digits");
    }
    bytes
}
