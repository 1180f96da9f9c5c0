//! The bytes that iccl processes exchange before they trust each other: the handshake, the framing
//! and the fields of descriptors. Used by the bootstrap and by the transports.
//!
//! Everything but [`authenticate`] is sans-IO: bytes go in, bytes come out, nothing here opens a
//! socket or reads a clock, so the whole of it is tested without a network.
//!
//! * [`Key`]: 256 bits that are wiped when dropped and never printed.
//! * [`Handshake`]: mutual proof that both sides know a key, before anything else is parsed.
//! * [`FrameDecoder`] / [`encode_frame`]: length-prefixed frames with a bound.
//! * [`Writer`] / [`Reader`]: fields of a descriptor, every length checked.
//!
//! What it does not do: encrypt. After the handshake the stream is as trustworthy as the network
//! between two processes that have proved themselves to each other.

mod authenticate;
mod fields;
mod frame;
mod handshake;
mod key;

pub use authenticate::{AuthenticateError, authenticate};
pub use fields::{FieldError, Reader, Writer};
pub use frame::{FRAME_HEADER_BYTES, FrameDecoder, FrameTooLong, encode_frame};
pub use handshake::{
    ANY_ID, Claim, Context, HELLO_BYTES, Handshake, HandshakeError, MAGIC, PROLOGUE_BYTES,
    PROOF_BYTES, REPLY_BYTES, Refusal, WIRE_VERSION,
};
pub use key::Key;
