//! How contributions are combined.

use std::ffi::c_void;

use iccl_plugin_api::{Collective, DataType, RedOp};

use super::buffer::Buffer;
use super::call::Operand;
use super::device::Device;
use super::element::{Element, bytes_of};
use crate::{Error, ErrorKind, Result};

/// How a collective that reduces combines the contributions of the ranks. Made from a [`RedOp`], so that
/// one can be given wherever this is asked for; and from a scalar, for a pre-multiplied sum.
#[derive(Clone, Debug)]
pub struct Reduction {
    op: RedOp,
    scalar: Option<Scalar>,
}

impl Reduction {
    /// The sum of contributions that each rank multiplies by a scalar of its own first
    /// ([`RedOp::PreMulSum`]). All ranks must ask for it; their scalars may differ.
    ///
    /// The product is rounded to the element's type (integers wrap), and the products are summed by the
    /// rules of a sum. The send buffer is not written.
    pub fn pre_mul_sum(scalar: impl Into<Scalar>) -> Self {
        Self { op: RedOp::PreMulSum, scalar: Some(scalar.into()) }
    }

    /// What is done with the contributions.
    pub const fn op(&self) -> RedOp {
        self.op
    }

    /// Where the scalar is, if there is one.
    pub(super) fn scalar(
        &self,
        collective: Collective,
        dtype: DataType,
        device: &Device,
    ) -> Result<Operand> {
        let refuse = |text: String| {
            let op = self.op;
            Err(Error::new(ErrorKind::InvalidArgument, format!("{collective} {op}: {text}")))
        };
        match self.scalar.as_ref().map(|scalar| &scalar.0) {
            None if self.op == RedOp::PreMulSum => {
                refuse("it needs a scalar, see Reduction::pre_mul_sum".to_owned())
            }
            None => Ok(Operand::NONE),
            Some(Place::Value { dtype: of_scalar, .. }) if *of_scalar != dtype => {
                refuse(format!("the scalar is {of_scalar}, the elements are {dtype}"))
            }
            Some(Place::Value { bytes, .. }) => Ok(Operand::value(*bytes)),
            Some(Place::Buffer(buffer)) if buffer.bytes() < dtype.size_bytes() as u64 => {
                refuse(format!("the scalar's buffer has {} bytes", buffer.bytes()))
            }
            Some(Place::Buffer(buffer)) => Operand::buffer(buffer, device),
            Some(Place::Memory(pointer)) if pointer.is_null() => {
                refuse("the scalar is null".to_owned())
            }
            Some(Place::Memory(pointer)) => Ok(Operand::raw(pointer.cast_mut())),
        }
    }
}

impl From<RedOp> for Reduction {
    fn from(op: RedOp) -> Self {
        Self { op, scalar: None }
    }
}

/// What a rank multiplies its contribution by: a number of the same type as the elements, given now, or
/// lying in memory of the device, which is read when the operation starts in the order of its stream.
#[derive(Clone, Debug)]
pub struct Scalar(Place);

#[derive(Clone, Debug)]
enum Place {
    Value { dtype: DataType, bytes: [u8; 8] },
    Buffer(Buffer),
    Memory(*const c_void),
}

// SAFETY: the pointer is only an address here; who made the scalar promised that it may be read.
unsafe impl Send for Scalar {}
// SAFETY: as above.
unsafe impl Sync for Scalar {}

impl Scalar {
    /// A number of any element type by its bits, which are the low ones of `bits`: for types that Rust
    /// has no name for.
    pub const fn from_bits(dtype: DataType, bits: u64) -> Self {
        Self(Place::Value { dtype, bytes: bits.to_le_bytes() })
    }

    /// The first element of a buffer of the communicator's device, as it is when the operation starts.
    /// It must not lie in the receive buffer.
    pub fn in_buffer(buffer: &Buffer) -> Self {
        Self(Place::Buffer(buffer.clone()))
    }

    /// An element in memory that iccl does not own, as it is when the operation starts.
    ///
    /// # Safety
    /// For each operation that is called with it, `pointer` is memory of the communicator's device for
    /// one element of the operation's type, which stays valid until the operation is over and is
    /// written by nobody from when the stream has reached the operation until then.
    pub const unsafe fn in_memory(pointer: *const c_void) -> Self {
        Self(Place::Memory(pointer))
    }
}

impl<T: Element> From<T> for Scalar {
    fn from(value: T) -> Self {
        let mut bytes = [0; 8];
        let value = [value];
        let of_value = bytes_of(&value);
        bytes[..of_value.len()].copy_from_slice(of_value);
        Self(Place::Value { dtype: T::DTYPE, bytes })
    }
}

impl From<&Buffer> for Scalar {
    fn from(buffer: &Buffer) -> Self {
        Self::in_buffer(buffer)
    }
}
