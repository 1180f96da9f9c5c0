//! Memory of a device, owned and shared.

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use iccl_plugin_api::MemoryKind;

use super::device::{Device, End};
use super::element::{Element, bytes_of, bytes_of_mut};
use crate::engine::{Allocation, ForkGuard};
use crate::{Error, ErrorKind, Result};

/// Memory of a device. Cheap to clone: clones are the same memory, which is freed with the last of
/// them, and not before the last operation that uses it is over.
///
/// Reading or writing a buffer while an operation on it is under way gives unspecified *values*; wait
/// for the operation's handle or the stream first.
#[derive(Clone)]
pub struct Buffer {
    pub(super) memory: Arc<Memory>,
    offset: u64,
    bytes: u64,
}

pub(super) struct Memory {
    device: Device,
    pointer: *mut c_void,
    bytes: u64,
    /// A number that no other memory has or had.
    number: u64,
    owner: Owner,
    fork: ForkGuard,
}

/// The number of the next memory.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// Who frees the memory.
enum Owner {
    /// The device, when the last buffer is gone.
    Device,
    /// The application; what it gave along is dropped when the last buffer is gone.
    Application(Box<dyn Any + Send + Sync>),
    /// Nobody any more.
    Nobody,
}

// SAFETY: the memory is only reached through the device's copies and the engine; the pointer itself
// may be used from any thread.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes on {})", self.bytes, self.memory.device)
    }
}

impl Memory {
    fn new(device: &Device, pointer: *mut c_void, bytes: u64, owner: Owner) -> Arc<Self> {
        let number = NEXT_NUMBER.fetch_add(1, Ordering::Relaxed);
        let (device, fork) = (device.clone(), ForkGuard::new());
        Arc::new(Self { device, pointer, bytes, number, owner, fork })
    }

    /// What the engine is told of it.
    pub(super) fn allocation(&self) -> Allocation {
        let begin = self.pointer.expose_provenance();
        Allocation { number: self.number, begin, bytes: self.bytes }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // In a child of a fork the device is left alone.
        if self.fork.check().is_err() {
            return;
        }
        let end = match std::mem::replace(&mut self.owner, Owner::Nobody) {
            Owner::Device => End::Free(self.pointer),
            Owner::Application(keep) => End::LetGo(keep),
            Owner::Nobody => return,
        };
        // SAFETY: what is freed was allocated in `uninitialised`, is freed once, and nothing uses it:
        // operations keep it.
        unsafe { self.device.inner.end_memory(self.number, end) };
    }
}

impl Buffer {
    pub(super) fn uninitialised(device: &Device, bytes: u64) -> Result<Self> {
        let allocated = device.inner.whole_regions(bytes.max(1));
        let pointer = device.inner.allocate(allocated, MemoryKind::Device)?;
        let memory = Memory::new(device, pointer, allocated, Owner::Device);
        Ok(Self { memory, offset: 0, bytes })
    }

    /// See [`Device::register`].
    pub(super) unsafe fn registered(
        device: &Device,
        pointer: *mut c_void,
        bytes: u64,
        keep: Box<dyn Any + Send + Sync>,
    ) -> Self {
        let memory = Memory::new(device, pointer, bytes, Owner::Application(keep));
        Self { memory, offset: 0, bytes }
    }

    pub(super) fn zeroed(device: &Device, bytes: u64) -> Result<Self> {
        const PIECE: usize = 1 << 20;
        let buffer = Self::uninitialised(device, bytes)?;
        let zeroes = vec![0_u8; PIECE.min(bytes as usize)];
        let mut at = 0;
        while at < bytes {
            let piece = zeroes.len().min((bytes - at) as usize);
            buffer.write_bytes(at, &zeroes[..piece])?;
            at += piece as u64;
        }
        Ok(buffer)
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The device whose memory it is.
    pub fn device(&self) -> &Device {
        &self.memory.device
    }

    /// The address of the first byte, for libraries that take one. Valid as long as this buffer or a
    /// clone of it lives.
    pub fn address(&self) -> *mut c_void {
        self.memory.pointer.wrapping_byte_add(self.offset as usize)
    }

    /// The same memory from `offset`, `bytes` long (both in bytes).
    ///
    /// # Errors
    /// `InvalidArgument` if that reaches past the end.
    pub fn slice(&self, offset: u64, bytes: u64) -> Result<Self> {
        let end = offset.checked_add(bytes);
        if end.is_none_or(|end| end > self.bytes) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "a slice of {bytes} bytes at {offset} reaches past the end of a buffer of {}",
                    self.bytes
                ),
            ));
        }
        Ok(Self { memory: Arc::clone(&self.memory), offset: self.offset + offset, bytes })
    }

    /// Writes `elements` from element `first` on; done when this returns.
    ///
    /// # Errors
    /// `InvalidArgument` if they reach past the end; what the driver says.
    pub fn write<T: Element>(&self, first: usize, elements: &[T]) -> Result<()> {
        self.write_bytes(bytes_of_count::<T>(first)?, bytes_of(elements))
    }

    fn write_bytes(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let place = self.slice(offset, bytes.len() as u64)?;
        let destination = (place.address(), MemoryKind::Device);
        // SAFETY: the slice was checked, and lies in memory of the device; host memory that is
        // borrowed does not overlap it.
        unsafe {
            self.memory.device.inner.copy_now(
                destination,
                (bytes.as_ptr().cast(), MemoryKind::Host),
                bytes.len() as u64,
            )
        }
    }

    /// All elements.
    ///
    /// # Errors
    /// `InvalidArgument` if the length is no whole number of elements; what the driver says.
    pub fn read<T: Element>(&self) -> Result<Vec<T>> {
        let size = T::DTYPE.size_bytes() as u64;
        if !self.bytes.is_multiple_of(size) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("{} bytes are no whole number of {} elements", self.bytes, T::DTYPE),
            ));
        }
        let mut elements = vec![T::default(); (self.bytes / size) as usize];
        self.read_into(0, &mut elements)?;
        Ok(elements)
    }

    /// Reads elements from element `first` on.
    ///
    /// # Errors
    /// `InvalidArgument` if they reach past the end; what the driver says.
    pub fn read_into<T: Element>(&self, first: usize, elements: &mut [T]) -> Result<()> {
        let offset = bytes_of_count::<T>(first)?;
        let place = self.slice(offset, size_of_val(elements) as u64)?;
        let bytes = bytes_of_mut(elements);
        let source = (place.address().cast_const(), MemoryKind::Device);
        // SAFETY: as in `write_bytes`.
        unsafe {
            self.memory.device.inner.copy_now(
                (bytes.as_mut_ptr().cast(), MemoryKind::Host),
                source,
                bytes.len() as u64,
            )
        }
    }
}

/// How many bytes `count` elements have.
pub(super) fn bytes_of_count<T: Element>(count: usize) -> Result<u64> {
    (count as u64).checked_mul(T::DTYPE.size_bytes() as u64).ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidArgument,
            format!("{count} elements of {} are more bytes than memory can have", T::DTYPE),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use iccl_plugin_host as _;

    use crate::ErrorKind;
    use crate::comm::Runtime;
    use crate::config::{Config, Sources};

    fn runtime() -> Runtime {
        let config = Config::load(&Sources::default()).expect("a configuration");
        Runtime::with_config(config).expect("a runtime")
    }

    #[test]
    fn what_is_written_is_read_and_slices_stay_inside() {
        let runtime = runtime();
        let device = runtime.device().expect("the host");
        let buffer = device.allocate::<u32>(8).expect("32 bytes");
        assert_eq!(buffer.read::<u32>().expect("elements"), [0; 8]);
        buffer.write(2, &[5_u32, 6]).expect("written");
        let slice = buffer.slice(8, 8).expect("inside");
        assert_eq!(slice.read::<u32>().expect("elements"), [5, 6]);
        assert_eq!(
            buffer.slice(28, 8).expect_err("past the end").kind(),
            ErrorKind::InvalidArgument
        );
        let past = slice.write(1, &[7_u32, 8]).expect_err("past the slice");
        assert_eq!(past.kind(), ErrorKind::InvalidArgument);
        // Their bytes are 2^64 and a few more, which is not the beginning.
        let around = usize::MAX / 4 + 2;
        for refused in [
            buffer.write(around, &[9_u32]).map(drop),
            buffer.read_into(around, &mut [0_u32]),
            device.allocate::<u32>(around).map(drop),
        ] {
            assert_eq!(refused.expect_err("too far").kind(), ErrorKind::InvalidArgument);
        }
        assert_eq!(buffer.read::<u32>().expect("elements"), [0, 0, 5, 6, 0, 0, 0, 0]);
        let odd = buffer.slice(0, 6).expect("inside").read::<u32>().expect_err("no whole number");
        assert_eq!(odd.kind(), ErrorKind::InvalidArgument);
    }

    #[test]
    fn registered_memory_is_kept_as_long_as_a_buffer_of_it_lives() {
        let runtime = runtime();
        let device = runtime.device().expect("the host");
        let memory = Arc::new([1.5_f64; 4]);
        let pointer = Arc::as_ptr(&memory).cast_mut().cast();
        // SAFETY: the array lives as long as the handle that is kept, and is only read.
        let buffer = unsafe { device.register(pointer, 32, Arc::clone(&memory)) };
        assert_eq!(buffer.read::<f64>().expect("elements"), *memory);
        let slice = buffer.slice(8, 8).expect("inside");
        drop(buffer);
        assert_eq!(Arc::strong_count(&memory), 2);
        drop(slice);
        assert_eq!(Arc::strong_count(&memory), 1);
    }
}
