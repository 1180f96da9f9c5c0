//! The instruction sets that the kernels are compiled for, and the table of kernels of each.

use std::sync::OnceLock;

use iccl_plugin_api::{DataType, RedOp};

use crate::blocks::{Job, Reduction, run};
use crate::floats::{
    Bf16, F8E4M3, F8E5M2, F16, F32, F64, FloatMaximum, FloatMean, FloatMinimum, FloatProduct,
    FloatSum, Format,
};
use crate::integers::{
    Integer, IntegerAnd, IntegerMaximum, IntegerMean, IntegerMinimum, IntegerOr, IntegerProduct,
    IntegerSum, IntegerXor,
};

/// A set of instructions that there are kernels for. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Level {
    /// What every processor of the architecture has (SSE2 on x86-64, NEON on aarch64).
    Portable,
    /// x86-64 with AVX2 and F16C.
    Avx2,
    /// x86-64 with the F, BW, DQ and VL parts of AVX-512.
    Avx512,
}

impl Level {
    /// The levels that this processor has, slowest first.
    pub fn available() -> &'static [Self] {
        static AVAILABLE: OnceLock<Vec<Level>> = OnceLock::new();
        AVAILABLE.get_or_init(detect)
    }

    /// The fastest level that this processor has.
    pub fn best() -> Self {
        Self::available().last().copied().unwrap_or(Self::Portable)
    }

    /// The name, as reports print it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Vec<Level> {
    let mut levels = vec![Level::Portable];
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
        levels.push(Level::Avx2);
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
        {
            levels.push(Level::Avx512);
        }
    }
    levels
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Vec<Level> {
    vec![Level::Portable]
}

/// A reduction compiled for a level.
///
/// # Safety
///
/// The processor must have the level, and the job must keep the contract of [`Job`].
pub(crate) type Kernel = unsafe fn(&Job<'_>);

/// The kernels of one level, by element type and operation; AVG has its own column.
pub(crate) struct Table([[Option<Kernel>; RedOp::ALL.len()]; DataType::ALL.len()]);

impl Table {
    /// `None` where elements of the type are not combined like that.
    pub(crate) fn kernel(&self, dtype: DataType, op: RedOp) -> Option<Kernel> {
        self.0[dtype.code() as usize][op.code() as usize]
    }

    fn of<I: InstructionSet>() -> Self {
        let mut table = Self([[None; RedOp::ALL.len()]; DataType::ALL.len()]);
        for &dtype in DataType::ALL {
            for &op in RedOp::ALL {
                table.0[dtype.code() as usize][op.code() as usize] = match dtype {
                    DataType::I8 => integer::<I, i8>(op),
                    DataType::U8 => integer::<I, u8>(op),
                    DataType::I16 => integer::<I, i16>(op),
                    DataType::U16 => integer::<I, u16>(op),
                    DataType::I32 => integer::<I, i32>(op),
                    DataType::U32 => integer::<I, u32>(op),
                    DataType::I64 => integer::<I, i64>(op),
                    DataType::U64 => integer::<I, u64>(op),
                    DataType::F16 => I::f16(op),
                    DataType::Bf16 => float::<I, Bf16>(op),
                    DataType::F32 => float::<I, F32>(op),
                    DataType::F64 => float::<I, F64>(op),
                    DataType::F8E4M3 => float::<I, F8E4M3>(op),
                    DataType::F8E5M2 => float::<I, F8E5M2>(op),
                };
            }
        }
        table
    }
}

/// The kernels of a level.
///
/// # Panics
///
/// If this processor does not have the level.
pub(crate) fn table(level: Level) -> &'static Table {
    static PORTABLE: OnceLock<Table> = OnceLock::new();
    assert!(Level::available().contains(&level), "this processor does not have {}", level.name());
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => {
            static AVX2: OnceLock<Table> = OnceLock::new();
            AVX2.get_or_init(Table::of::<x86::Avx2>)
        }
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => {
            static AVX512: OnceLock<Table> = OnceLock::new();
            AVX512.get_or_init(Table::of::<x86::Avx512>)
        }
        _ => PORTABLE.get_or_init(Table::of::<Portable>),
    }
}

/// Compiles reductions with the instructions of a level.
trait InstructionSet {
    fn kernel<R: Reduction>() -> Kernel;

    /// The kernels of f16, which has conversion instructions on some levels.
    fn f16(op: RedOp) -> Option<Kernel>
    where
        Self: Sized,
    {
        float::<Self, F16>(op)
    }
}

fn integer<I: InstructionSet, T: Integer>(op: RedOp) -> Option<Kernel> {
    match op {
        RedOp::Sum => Some(I::kernel::<IntegerSum<T>>()),
        RedOp::Prod => Some(I::kernel::<IntegerProduct<T>>()),
        RedOp::Max => Some(I::kernel::<IntegerMaximum<T>>()),
        RedOp::Min => Some(I::kernel::<IntegerMinimum<T>>()),
        RedOp::Avg => Some(I::kernel::<IntegerMean<T>>()),
        RedOp::BitAnd => Some(I::kernel::<IntegerAnd<T>>()),
        RedOp::BitOr => Some(I::kernel::<IntegerOr<T>>()),
        RedOp::BitXor => Some(I::kernel::<IntegerXor<T>>()),
        RedOp::PreMulSum => None,
    }
}

fn float<I: InstructionSet, F: Format>(op: RedOp) -> Option<Kernel> {
    match op {
        RedOp::Sum => Some(I::kernel::<FloatSum<F>>()),
        RedOp::Prod => Some(I::kernel::<FloatProduct<F>>()),
        RedOp::Max => Some(I::kernel::<FloatMaximum<F>>()),
        RedOp::Min => Some(I::kernel::<FloatMinimum<F>>()),
        RedOp::Avg => Some(I::kernel::<FloatMean<F>>()),
        RedOp::BitAnd | RedOp::BitOr | RedOp::BitXor | RedOp::PreMulSum => None,
    }
}

struct Portable;

impl InstructionSet for Portable {
    fn kernel<R: Reduction>() -> Kernel {
        /// # Safety
        ///
        /// See [`Job`].
        unsafe fn kernel<R: Reduction>(job: &Job<'_>) {
            // SAFETY: The contract is the same.
            unsafe { run::<R>(job) }
        }
        kernel::<R>
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use core::arch::x86_64::{__m256, __m512};

    use iccl_plugin_api::RedOp;

    use super::{
        F16, FloatMean, FloatProduct, FloatSum, InstructionSet, Job, Kernel, Reduction, float, run,
    };
    use crate::f16c::{Converted, Lanes};

    /// The kernels of f16 that convert on registers `L`. Minimum and maximum convert nothing.
    fn f16<I: InstructionSet, L: Lanes>(op: RedOp) -> Option<Kernel> {
        match op {
            RedOp::Sum => Some(I::kernel::<Converted<L, FloatSum<F16>>>()),
            RedOp::Prod => Some(I::kernel::<Converted<L, FloatProduct<F16>>>()),
            RedOp::Avg => Some(I::kernel::<Converted<L, FloatMean<F16>>>()),
            _ => float::<I, F16>(op),
        }
    }

    pub(super) struct Avx2;

    impl InstructionSet for Avx2 {
        fn kernel<R: Reduction>() -> Kernel {
            /// # Safety
            ///
            /// See [`Job`]; the processor must have these features.
            #[target_feature(enable = "avx2,f16c")]
            unsafe fn kernel<R: Reduction>(job: &Job<'_>) {
                // SAFETY: The contract is the same.
                unsafe { run::<R>(job) }
            }
            kernel::<R>
        }

        fn f16(op: RedOp) -> Option<Kernel> {
            f16::<Self, __m256>(op)
        }
    }

    pub(super) struct Avx512;

    impl InstructionSet for Avx512 {
        fn kernel<R: Reduction>() -> Kernel {
            /// # Safety
            ///
            /// See [`Job`]; the processor must have these features.
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")]
            unsafe fn kernel<R: Reduction>(job: &Job<'_>) {
                // SAFETY: The contract is the same.
                unsafe { run::<R>(job) }
            }
            kernel::<R>
        }

        fn f16(op: RedOp) -> Option<Kernel> {
            f16::<Self, __m512>(op)
        }
    }
}
