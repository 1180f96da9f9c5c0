//! The words that both sides of the ABI share: element types, reduction operations, collectives,
//! status codes. Each set is written once, in one macro call, from which the Rust enum, the
//! conversion from the wire number, the name and the C header are made.
//!
//! On the ABI these travel as plain `u32` (or `i32` for [`Status`]), never as Rust enums: a number
//! that this version does not know must be refused, and holding it in a Rust enum would already be
//! undefined behaviour.

/// Defines a closed set of numbered words with names.
macro_rules! numbered {
    (
        $(#[$meta:meta])*
        $name:ident : $repr:ty {
            $( $(#[$variant_meta:meta])* $variant:ident = $value:literal, $text:literal; )+
        }
    ) => {
        $(#[$meta])*
        #[repr($repr)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $( $(#[$variant_meta])* $variant = $value, )+
        }

        impl $name {
            /// Every member, in the order of its numbers.
            pub const ALL: &'static [Self] = &[ $( Self::$variant, )+ ];

            /// The number that stands for this member on the ABI and on the wire.
            pub const fn code(self) -> $repr {
                self as $repr
            }

            /// The member with this number, or `None`: an unknown number is refused, never mapped.
            pub const fn from_code(code: $repr) -> Option<Self> {
                match code {
                    $( $value => Some(Self::$variant), )+
                    _ => None,
                }
            }

            /// The name used in configuration, commands and messages.
            pub const fn name(self) -> &'static str {
                match self {
                    $( Self::$variant => $text, )+
                }
            }

            /// The member with this name (as [`Self::name`] gives it), or `None`.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $( $text => Some(Self::$variant), )+
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}

numbered! {
    /// The type of one element. Numbers 0 to 11 are NCCL's (`ncclDataType_t`).
    DataType: u32 {
        /// Signed 8-bit integer.
        I8 = 0, "i8";
        /// Unsigned 8-bit integer.
        U8 = 1, "u8";
        /// Signed 32-bit integer.
        I32 = 2, "i32";
        /// Unsigned 32-bit integer.
        U32 = 3, "u32";
        /// Signed 64-bit integer.
        I64 = 4, "i64";
        /// Unsigned 64-bit integer.
        U64 = 5, "u64";
        /// IEEE 754 binary16.
        F16 = 6, "f16";
        /// IEEE 754 binary32.
        F32 = 7, "f32";
        /// IEEE 754 binary64.
        F64 = 8, "f64";
        /// bfloat16: the upper half of a binary32.
        Bf16 = 9, "bf16";
        /// OCP 8-bit float, 4 exponent and 3 mantissa bits, finite only ("E4M3").
        F8E4M3 = 10, "f8e4m3";
        /// OCP 8-bit float, 5 exponent and 2 mantissa bits ("E5M2").
        F8E5M2 = 11, "f8e5m2";
        /// Signed 16-bit integer (no NCCL number).
        I16 = 12, "i16";
        /// Unsigned 16-bit integer (no NCCL number).
        U16 = 13, "u16";
    }
}

impl DataType {
    /// Size of one element in bytes.
    pub const fn size_bytes(self) -> usize {
        match self {
            Self::I8 | Self::U8 | Self::F8E4M3 | Self::F8E5M2 => 1,
            Self::I16 | Self::U16 | Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::U32 | Self::F32 => 4,
            Self::I64 | Self::U64 | Self::F64 => 8,
        }
    }

    /// Whether the type is an integer, signed or not.
    pub const fn is_integer(self) -> bool {
        matches!(
            self,
            Self::I8
                | Self::U8
                | Self::I16
                | Self::U16
                | Self::I32
                | Self::U32
                | Self::I64
                | Self::U64
        )
    }

    /// Whether the type is an 8- or 16-bit float, whose sums iccl accumulates in f32 and rounds
    /// once.
    pub const fn is_narrow_float(self) -> bool {
        matches!(self, Self::F16 | Self::Bf16 | Self::F8E4M3 | Self::F8E5M2)
    }

    /// The bit that stands for this type in a capability mask.
    pub const fn mask(self) -> u32 {
        1 << self.code()
    }
}

numbered! {
    /// What a reduction does with the contributions of the ranks. Numbers 0 to 4 are NCCL's
    /// (`ncclRedOp_t`); NCCL has no bitwise operations, and makes a number for each scalar of a
    /// pre-multiplied sum.
    RedOp: u32 {
        /// Sum. Integers wrap.
        Sum = 0, "sum";
        /// Product. Integers wrap.
        Prod = 1, "prod";
        /// Largest value; a NaN on any rank gives NaN; +0 is larger than -0.
        Max = 2, "max";
        /// Smallest value; a NaN on any rank gives NaN; -0 is smaller than +0.
        Min = 3, "min";
        /// Arithmetic mean over ranks: the sum in a wider form, divided once by the number of
        /// ranks. Integers truncate towards zero.
        Avg = 4, "avg";
        /// Bitwise and, of integers.
        BitAnd = 5, "band";
        /// Bitwise or, of integers.
        BitOr = 6, "bor";
        /// Bitwise exclusive or, of integers.
        BitXor = 7, "bxor";
        /// Sum of contributions that each rank multiplies by a scalar of its own first; the product
        /// is rounded to the element type.
        PreMulSum = 8, "premulsum";
    }
}

impl RedOp {
    /// Whether the operation works on bits, and so on integers only.
    pub const fn is_bitwise(self) -> bool {
        matches!(self, Self::BitAnd | Self::BitOr | Self::BitXor)
    }

    /// The bit that stands for this operation in a capability mask.
    pub const fn mask(self) -> u32 {
        1 << self.code()
    }
}

numbered! {
    /// A collective or point-to-point operation.
    Collective: u32 {
        /// Every rank gets the reduction of all ranks' buffers.
        AllReduce = 0, "all_reduce";
        /// The root gets the reduction of all ranks' buffers.
        Reduce = 1, "reduce";
        /// Every rank gets the root's buffer.
        Broadcast = 2, "broadcast";
        /// Every rank gets all ranks' buffers, one after the other.
        AllGather = 3, "all_gather";
        /// Every rank gets its slice of the reduction.
        ReduceScatter = 4, "reduce_scatter";
        /// The root gets all ranks' buffers, one after the other.
        Gather = 5, "gather";
        /// Every rank gets its slice of the root's buffer.
        Scatter = 6, "scatter";
        /// Every rank sends one slice to each rank.
        AllToAll = 7, "all_to_all";
        /// All-gather with a count per rank.
        AllGatherV = 8, "all_gather_v";
        /// Reduce-scatter with a count per rank.
        ReduceScatterV = 9, "reduce_scatter_v";
        /// Gather with a count per rank.
        GatherV = 10, "gather_v";
        /// Scatter with a count per rank.
        ScatterV = 11, "scatter_v";
        /// All-to-all with a count per pair of ranks.
        AllToAllV = 12, "all_to_all_v";
        /// No rank leaves before every rank has come.
        Barrier = 13, "barrier";
        /// Sends to one rank.
        Send = 14, "send";
        /// Receives from one rank.
        Recv = 15, "recv";
    }
}

impl Collective {
    /// The bit that stands for this operation in a capability mask.
    pub const fn mask(self) -> u32 {
        1 << self.code()
    }

    /// Whether the operation combines elements (and so takes a [`RedOp`]).
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::Reduce | Self::ReduceScatter | Self::ReduceScatterV)
    }

    /// Whether the operation has a root rank.
    pub const fn has_root(self) -> bool {
        matches!(
            self,
            Self::Reduce
                | Self::Broadcast
                | Self::Gather
                | Self::Scatter
                | Self::GatherV
                | Self::ScatterV
        )
    }
}

numbered! {
    /// What a call across the ABI answers. `Ok` and `Pending` are not errors.
    Status: i32 {
        /// Done.
        Ok = 0, "ok";
        /// Not finished yet; ask again.
        Pending = 1, "pending";
        /// This plugin does not offer what was asked.
        NotSupported = 2, "not-supported";
        /// The caller broke the contract of the call.
        InvalidArgument = 3, "invalid-argument";
        /// No device of this plugin's kind is on this machine. A normal answer of `probe`.
        NoDevice = 4, "no-device";
        /// A library that the plugin needs was not found or lacks a symbol.
        LibraryMissing = 5, "library-missing";
        /// The device or its driver failed.
        DeviceError = 6, "device-error";
        /// The network or the operating system failed.
        TransportError = 7, "transport-error";
        /// A deadline passed.
        Timeout = 8, "timeout";
        /// The other process is gone.
        PeerLost = 9, "peer-lost";
        /// The operation was aborted on this side.
        Aborted = 10, "aborted";
        /// Memory, descriptors or another resource ran out.
        OutOfResources = 11, "out-of-resources";
        /// The message that arrived is not the one that the receiver expected.
        Mismatch = 12, "mismatch";
        /// The other side did not prove that it belongs to this job.
        Unauthenticated = 13, "unauthenticated";
        /// The plugin panicked or threw; the SDK caught it.
        Panic = 14, "panic";
        /// A fault inside the plugin itself.
        Internal = 15, "internal";
        /// A permission is missing.
        PermissionDenied = 16, "permission-denied";
    }
}

impl Status {
    /// Whether this is [`Status::Ok`] or [`Status::Pending`].
    pub const fn is_success(self) -> bool {
        matches!(self, Self::Ok | Self::Pending)
    }
}

numbered! {
    /// How loud a log line of a plugin is. Numbers as in syslog's order: smaller is louder.
    LogLevel: u32 {
        /// Something failed.
        Error = 1, "error";
        /// Something is not as it ought to be, and work goes on.
        Warn = 2, "warn";
        /// What an operator wants to know once.
        Info = 3, "info";
        /// What a developer wants to know.
        Debug = 4, "debug";
        /// Everything.
        Trace = 5, "trace";
    }
}

numbered! {
    /// A kind of memory.
    MemoryKind: u32 {
        /// Ordinary host memory.
        Host = 0, "host";
        /// Host memory that the device can copy from and to asynchronously.
        PinnedHost = 1, "pinned-host";
        /// Memory of a device.
        Device = 2, "device";
    }
}

impl MemoryKind {
    /// The bit that stands for this kind in a capability mask.
    pub const fn mask(self) -> u32 {
        1 << self.code()
    }
}

/// What a native library declares of itself, bits of
/// [`collectives_flag`](crate::tables::collectives_flag), in words: as tables for people have them.
pub const NATIVE_HABITS: [(u64, &str); 5] = {
    use crate::tables::collectives_flag as flag;
    [
        (flag::ACCUMULATES_IN_F32, "accumulates in f32"),
        (flag::DETERMINISTIC, "deterministic"),
        (flag::GROUPS, "groups"),
        (flag::ONE_SEND_PER_PEER_AND_GROUP, "one send per peer and group"),
        (flag::IN_PLACE, "in place"),
    ]
};
