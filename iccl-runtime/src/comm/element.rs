//! Rust types that are elements of a buffer.

use half::{bf16, f16};
use iccl_plugin_api::DataType;

mod sealed {
    pub trait Sealed {}
}

/// A Rust type with the layout of one element of a [`DataType`].
///
/// Sealed: a buffer's bytes may be read as any of these, so every bit pattern must be a value.
pub trait Element: sealed::Sealed + Copy + Default + Send + Sync + 'static {
    /// The element type.
    const DTYPE: DataType;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),+ $(,)?) => {
        $(
            impl sealed::Sealed for $type {}
            impl Element for $type {
                const DTYPE: DataType = DataType::$dtype;
            }
            const _: () = assert!(size_of::<$type>() == DataType::$dtype.size_bytes());
        )+
    };
}

elements! {
    i8 => I8,
    u8 => U8,
    i16 => I16,
    u16 => U16,
    i32 => I32,
    u32 => U32,
    i64 => I64,
    u64 => U64,
    f16 => F16,
    bf16 => Bf16,
    f32 => F32,
    f64 => F64,
}

/// The bytes of a slice of elements.
pub(super) fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    // SAFETY: elements are plain numbers without padding, so all their bytes are initialised.
    unsafe { std::slice::from_raw_parts(elements.as_ptr().cast(), size_of_val(elements)) }
}

/// The bytes of a slice of elements, to be written.
pub(super) fn bytes_of_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    let bytes = size_of_val(elements);
    // SAFETY: as above, and every bit pattern is a value of the element.
    unsafe { std::slice::from_raw_parts_mut(elements.as_mut_ptr().cast(), bytes) }
}
