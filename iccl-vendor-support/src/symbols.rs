//! A table of a library's functions, written once as signatures.

use std::fmt;

/// The functions that a library lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingSymbols(pub Vec<&'static str>);

/// As many are named in a message, which has room for one line.
const NAMED: usize = 8;

impl fmt::Display for MissingSymbols {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = &self.0[..self.0.len().min(NAMED)];
        write!(f, "it lacks {}", named.join(", "))?;
        match self.0.len() - named.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// Defines a struct of function pointers that is filled from a [`Library`](crate::Library) by
/// `resolve`, all at once: the required ones, or the names of all that are missing; those behind
/// `optional` are `Option`s.
///
/// ```
/// iccl_vendor_support::symbols! {
///     /// Of the C library.
///     pub struct Text {
///         fn strlen(text: *const std::ffi::c_char) -> usize;
///         fn puts(text: *const std::ffi::c_char) -> i32;
///         optional fn strlcpy(to: *mut u8, from: *const u8, size: usize) -> usize;
///     }
/// }
/// # fn main() {
/// # let path = std::path::Path::new("libc.so.6");
/// // SAFETY: the C library is loaded already; its constructors have run.
/// let library = unsafe { iccl_vendor_support::Library::open(path) }.unwrap();
/// // SAFETY: these are its signatures.
/// let text = unsafe { Text::resolve(&library) }.unwrap();
/// // SAFETY: the text ends with a zero.
/// assert_eq!(unsafe { (text.strlen)(c"four".as_ptr()) }, 4);
/// # }
/// ```
#[macro_export]
macro_rules! symbols {
    (
        $(#[$meta:meta])*
        $visibility:vis struct $name:ident {
            $( fn $required:ident( $($argument:ident: $type:ty),* $(,)? ) $(-> $answer:ty)?; )*
            $( optional fn $optional:ident( $($optional_argument:ident: $optional_type:ty),* $(,)? )
                $(-> $optional_answer:ty)?; )*
        }
    ) => {
        $(#[$meta])*
        #[allow(
            non_snake_case,
            missing_docs,
            clippy::struct_field_names,
            reason = "the library's own names"
        )]
        #[derive(Clone, Copy, Debug)]
        $visibility struct $name {
            $( $visibility $required:
                unsafe extern "C" fn($($argument: $type),*) $(-> $answer)?, )*
            $( $visibility $optional:
                Option<unsafe extern "C" fn($($optional_argument: $optional_type),*)
                    $(-> $optional_answer)?>, )*
        }

        impl $name {
            /// Takes the functions from a library.
            ///
            /// # Safety
            /// The library's functions of these names have these signatures.
            ///
            /// # Errors
            /// The names of all functions that are missing and not optional.
            #[allow(dead_code, reason = "a library may need another way to its functions")]
            $visibility unsafe fn resolve(
                library: &$crate::Library,
            ) -> ::std::result::Result<Self, $crate::MissingSymbols> {
                // SAFETY: the caller promises it.
                unsafe { Self::resolve_by(|name| library.symbol(name)) }
            }

            /// Takes the functions where `find` says that they are.
            ///
            /// # Safety
            /// What is found under these names has these signatures.
            ///
            /// # Errors
            /// The names of all functions that are missing and not optional.
            $visibility unsafe fn resolve_by(
                mut find: impl FnMut(&'static str) -> Option<*const ::std::ffi::c_void>,
            ) -> ::std::result::Result<Self, $crate::MissingSymbols> {
                #[allow(unused_mut, reason = "a table may have nothing that is required")]
                let mut missing = ::std::vec::Vec::new();
                #[allow(non_snake_case, reason = "the library's own names")]
                let table = {
                    $(
                        let $required = find(stringify!($required));
                        if $required.is_none() {
                            missing.push(stringify!($required));
                        }
                    )*
                    if missing.is_empty() {
                        Some(Self {
                            $(
                                // SAFETY: it is not null, and the caller answers for the signature.
                                $required: unsafe {
                                    ::std::mem::transmute::<
                                        *const ::std::ffi::c_void,
                                        unsafe extern "C" fn($($type),*) $(-> $answer)?,
                                    >($required.unwrap_or_else(|| unreachable!("none is missing")))
                                },
                            )*
                            $(
                                // SAFETY: as above.
                                $optional: find(stringify!($optional)).map(|symbol| unsafe {
                                    ::std::mem::transmute::<
                                        *const ::std::ffi::c_void,
                                        unsafe extern "C" fn($($optional_type),*)
                                            $(-> $optional_answer)?,
                                    >(symbol)
                                }),
                            )*
                        })
                    } else {
                        None
                    }
                };
                table.ok_or($crate::MissingSymbols(missing))
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{MissingSymbols, NAMED};
    use crate::Library;

    symbols! {
        #[allow(dead_code, reason = "it is never filled")]
        struct Incomplete {
            fn strlen(text: *const std::ffi::c_char) -> usize;
            fn no_such_function();
            fn nor_this_one(number: i32) -> i32;
            optional fn not_even_this();
        }
    }

    symbols! {
        struct Right {
            fn abs(number: i32) -> i32;
            optional fn labs(number: i64) -> i64;
            optional fn not_even_this();
        }
    }

    symbols! {
        struct Renamed {
            fn their_abs(number: i32) -> i32;
            optional fn abs(number: i32) -> i32;
        }
    }

    fn c_library() -> Library {
        // SAFETY: the C library is loaded already.
        unsafe { Library::open(Path::new("libc.so.6")) }.unwrap()
    }

    #[test]
    fn all_that_is_missing_is_named_at_once() {
        // SAFETY: nothing is called.
        let missing = unsafe { Incomplete::resolve(&c_library()) }.unwrap_err();
        assert_eq!(missing.0, ["no_such_function", "nor_this_one"]);
        assert_eq!(missing.to_string(), "it lacks no_such_function, nor_this_one");
        let many = MissingSymbols(vec!["a"; NAMED + 3]);
        assert_eq!(many.to_string(), "it lacks a, a, a, a, a, a, a, a and 3 more");
    }

    #[test]
    fn functions_may_have_other_names_in_the_library() {
        let library = c_library();
        let find = |name: &str| library.symbol(name.strip_prefix("their_")?);
        // SAFETY: these are the functions' signatures.
        unsafe {
            let table = Renamed::resolve_by(find).unwrap();
            assert_eq!((table.their_abs)(-3), 3);
            assert!(table.abs.is_none());
        }
    }

    #[test]
    fn what_is_there_can_be_called() {
        // SAFETY: these are the functions' signatures.
        unsafe {
            let table = Right::resolve(&c_library()).unwrap();
            assert_eq!((table.abs)(-3), 3);
            assert_eq!((table.labs.unwrap())(-4), 4);
            assert!(table.not_even_this.is_none());
        }
    }
}
