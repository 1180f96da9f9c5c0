//! Mutual challenge-response with HMAC-SHA256, as a state machine without sockets.
//!
//! ```text
//! dialer                                                        acceptor
//!   hello:  magic version context-tag ids channel nonce_d  ───▶
//!           ◀───  reply: magic version status nonce_a HMAC(key_a, transcript)
//!   proof:  HMAC(key_d, transcript)                        ───▶
//! ```
//!
//! * Every frame has a fixed size; before the proof a side holds less than 1 KiB for its peer.
//! * The first 12 bytes of hello and reply, magic and version, keep their form for ever: a side
//!   with another version is told so on both ends, before anything else is parsed.
//! * The transcript covers every byte of hello and reply, and purpose and job id in full.
//! * The two sides prove themselves with different keys, so a reflected proof is worth nothing;
//!   both bring a nonce, so a recorded one is not either.

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::key::{Key, fill_random};

/// The version of the handshake and the framing, and of the bootstrap's own messages.
pub const WIRE_VERSION: u32 = 1;

/// The first bytes that either side sends.
pub const MAGIC: [u8; 8] = *b"ICCLwire";

/// Magic and version: the part of hello and reply whose form never changes.
pub const PROLOGUE_BYTES: usize = 12;

/// The size of the dialer's first frame.
pub const HELLO_BYTES: usize = PROLOGUE_BYTES + 16 + 3 * 8 + NONCE_BYTES;

/// The size of the acceptor's frame.
pub const REPLY_BYTES: usize = PROLOGUE_BYTES + 4 + NONCE_BYTES + 32;

/// The size of the dialer's second frame.
pub const PROOF_BYTES: usize = 32;

/// An acceptor with this id takes connections whatever acceptor the dialer names.
pub const ANY_ID: u64 = u64::MAX;

const NONCE_BYTES: usize = 32;
const REPLY_STATUS: usize = PROLOGUE_BYTES;

/// What both sides must agree on besides the key.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// What the connection is for, with the version of the protocol that follows: `tcp-data/1`.
    pub purpose: &'a str,
    /// Which job; not a secret.
    pub job: &'a [u8],
}

/// What a dialer says it is and wants. Worth nothing until the handshake is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Claim {
    /// The dialer, usually its rank.
    pub dialer: u64,
    /// The acceptor that the dialer means to reach, usually its rank.
    pub acceptor: u64,
    /// Which of several connections between the two.
    pub channel: u64,
}

/// Why an acceptor refused; told to the dialer without proof, so it is a hint for a message only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Purpose or job id differ.
    OtherContext,
    /// The acceptor is not the one that the dialer named.
    OtherAcceptor,
    /// A reason that this version does not know.
    Unknown(u32),
}

impl Refusal {
    const fn code(self) -> u32 {
        match self {
            Self::OtherContext => 1,
            Self::OtherAcceptor => 2,
            Self::Unknown(code) => code,
        }
    }

    const fn from_code(code: u32) -> Self {
        match code {
            1 => Self::OtherContext,
            2 => Self::OtherAcceptor,
            other => Self::Unknown(other),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OtherContext => {
                f.write_str("it belongs to another job or offers another service")
            }
            Self::OtherAcceptor => f.write_str("it is not the rank that was to be reached"),
            Self::Unknown(code) => write!(f, "reason {code}"),
        }
    }
}

/// Why a handshake failed. Final: close the connection, after sending what
/// [`Handshake::output`] still holds.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The first bytes are not iccl's.
    #[error("the peer does not speak iccl; its first bytes are \"{}\"", first.escape_ascii())]
    NotIccl {
        /// What it sent, at most 8 bytes.
        first: Vec<u8>,
    },
    /// The two sides have different wire versions.
    #[error("wire versions differ: ours is {ours}, the peer's is {theirs}")]
    VersionMismatch {
        /// This side's.
        ours: u32,
        /// The other side's.
        theirs: u32,
    },
    /// The dialer wants another job or purpose than this acceptor offers.
    #[error("the peer belongs to another job or wants another service")]
    OtherContext,
    /// The dialer means another acceptor than this one.
    #[error("the peer wanted to reach {claimed}, this is {ours}")]
    OtherAcceptor {
        /// This acceptor.
        ours: u64,
        /// The one that the dialer meant.
        claimed: u64,
    },
    /// The proof is wrong.
    #[error("the peer did not prove that it knows the job secret")]
    WrongProof,
    /// The acceptor refused; its word is not proven.
    #[error("the peer refused: {0}")]
    Refused(Refusal),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Acceptor: the hello is not complete.
    AwaitHello,
    /// Dialer: the reply is not complete.
    AwaitReply,
    /// Acceptor: the proof is not complete.
    AwaitProof,
    Complete,
    Failed,
}

/// One side of one handshake. See the module for the frames.
///
/// The driver's loop: send [`output`](Self::output) and report it with
/// [`output_sent`](Self::output_sent); read at most [`wanted_bytes`](Self::wanted_bytes) and pass
/// them to [`input`](Self::input); until [`is_complete`](Self::is_complete) and the output is
/// empty. A driver that keeps to `wanted_bytes` never takes a byte of what follows.
#[derive(Debug)]
pub struct Handshake {
    state: State,
    version: u32,
    tag: [u8; 16],
    claim: Claim,
    local: u64,
    key: Key,
    transcript: Sha256,
    input: Vec<u8>,
    output: Vec<u8>,
    expected_proof: [u8; 32],
}

impl Handshake {
    /// The side that opened the connection.
    ///
    /// # Errors
    ///
    /// The kernel's random generator cannot be read.
    pub fn dial(key: &Key, context: Context<'_>, claim: Claim) -> std::io::Result<Self> {
        Self::dial_with_version(key, context, claim, WIRE_VERSION)
    }

    /// As [`dial`](Self::dial), with another wire version: for tests of version skew.
    ///
    /// # Errors
    ///
    /// As [`dial`](Self::dial).
    pub fn dial_with_version(
        key: &Key,
        context: Context<'_>,
        claim: Claim,
        version: u32,
    ) -> std::io::Result<Self> {
        let mut handshake = Self::new(State::AwaitReply, key, context, version);
        handshake.claim = claim;
        let mut nonce = [0; NONCE_BYTES];
        fill_random(&mut nonce)?;
        let mut hello = handshake.prologue();
        hello.extend_from_slice(&handshake.tag);
        for id in [claim.dialer, claim.acceptor, claim.channel] {
            hello.extend_from_slice(&id.to_le_bytes());
        }
        hello.extend_from_slice(&nonce);
        handshake.transcript.update(&hello);
        handshake.output = hello;
        Ok(handshake)
    }

    /// The side that accepted the connection, known to its peers as `local` ([`ANY_ID`]: whatever
    /// they call it).
    pub fn accept(key: &Key, context: Context<'_>, local: u64) -> Self {
        Self::accept_with_version(key, context, local, WIRE_VERSION)
    }

    /// As [`accept`](Self::accept), with another wire version: for tests of version skew.
    pub fn accept_with_version(key: &Key, context: Context<'_>, local: u64, version: u32) -> Self {
        let mut handshake = Self::new(State::AwaitHello, key, context, version);
        handshake.local = local;
        handshake
    }

    fn new(state: State, key: &Key, context: Context<'_>, version: u32) -> Self {
        let mut transcript = Sha256::new();
        for part in [b"iccl handshake 1".as_slice(), context.purpose.as_bytes(), context.job] {
            transcript.update((part.len() as u64).to_le_bytes());
            transcript.update(part);
        }
        let mut tag = [0; 16];
        tag.copy_from_slice(&transcript.clone().finalize()[..16]);
        Self {
            state,
            version,
            tag,
            claim: Claim { dialer: 0, acceptor: 0, channel: 0 },
            local: ANY_ID,
            key: key.clone(),
            transcript,
            input: Vec::new(),
            output: Vec::new(),
            expected_proof: [0; 32],
        }
    }

    fn prologue(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HELLO_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes
    }

    /// How many bytes to read next, at most; 0 when no more are wanted.
    pub fn wanted_bytes(&self) -> usize {
        self.frame_bytes().saturating_sub(self.input.len())
    }

    const fn frame_bytes(&self) -> usize {
        match self.state {
            State::AwaitHello => HELLO_BYTES,
            State::AwaitReply => REPLY_BYTES,
            State::AwaitProof => PROOF_BYTES,
            State::Complete | State::Failed => 0,
        }
    }

    /// What is to be sent. After a failure as well: it tells the peer why.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Reports that the first `bytes` of [`output`](Self::output) have been sent.
    pub fn output_sent(&mut self, bytes: usize) {
        self.output.drain(..bytes.min(self.output.len()));
    }

    /// Whether the peer has proved itself. There may still be output to send.
    pub fn is_complete(&self) -> bool {
        self.state == State::Complete
    }

    /// Who the peer is and what it wants, once it has proved itself.
    pub fn claim(&self) -> Option<Claim> {
        self.is_complete().then_some(self.claim)
    }

    /// A key that only these two sides know and only for this connection, once complete.
    pub fn session_key(&self, label: &str) -> Option<Key> {
        let transcript = self.transcript.clone().finalize();
        self.is_complete().then(|| self.key.derive(label, &transcript))
    }

    /// Takes received bytes, at most [`wanted_bytes`](Self::wanted_bytes) of them, and returns how
    /// many were taken.
    ///
    /// # Errors
    ///
    /// The handshake has failed for good; what there is to tell the peer is in
    /// [`output`](Self::output).
    pub fn input(&mut self, bytes: &[u8]) -> Result<usize, HandshakeError> {
        let mut taken = 0;
        while taken < bytes.len() && self.wanted_bytes() > 0 {
            let part = &bytes[taken..];
            let part = &part[..part.len().min(self.wanted_bytes())];
            self.input.extend_from_slice(part);
            taken += part.len();
            if let Err(error) = self.step() {
                self.state = State::Failed;
                self.input.clear();
                return Err(error);
            }
        }
        Ok(taken)
    }

    fn step(&mut self) -> Result<(), HandshakeError> {
        if self.state != State::AwaitProof {
            self.check_prologue()?;
        }
        if self.input.len() < self.frame_bytes() {
            return Ok(());
        }
        let frame = std::mem::take(&mut self.input);
        match self.state {
            State::AwaitHello => self.take_hello(&frame),
            State::AwaitReply => self.take_reply(&frame),
            State::AwaitProof => self.take_proof(&frame),
            State::Complete | State::Failed => Ok(()),
        }
    }

    /// Refuses as soon as a byte of the prologue is wrong, so that a stranger costs nothing.
    fn check_prologue(&mut self) -> Result<(), HandshakeError> {
        let magic_bytes = self.input.len().min(MAGIC.len());
        if self.input[..magic_bytes] != MAGIC[..magic_bytes] {
            return Err(HandshakeError::NotIccl { first: self.input[..magic_bytes].to_vec() });
        }
        let Some(version) = self.input.get(MAGIC.len()..PROLOGUE_BYTES) else { return Ok(()) };
        let theirs = u32::from_le_bytes([version[0], version[1], version[2], version[3]]);
        if theirs != self.version {
            if self.state == State::AwaitHello {
                self.output = self.prologue();
            }
            return Err(HandshakeError::VersionMismatch { ours: self.version, theirs });
        }
        // A refusal may be shorter than a full reply: its status is all that matters.
        if self.state == State::AwaitReply
            && let Some(status) = self.input.get(REPLY_STATUS..REPLY_STATUS + 4)
        {
            let status = u32::from_le_bytes([status[0], status[1], status[2], status[3]]);
            if status != 0 {
                return Err(HandshakeError::Refused(Refusal::from_code(status)));
            }
        }
        Ok(())
    }

    fn take_hello(&mut self, hello: &[u8]) -> Result<(), HandshakeError> {
        let body = &hello[PROLOGUE_BYTES..];
        let (tag, body) = body.split_at(16);
        let id = |index: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&body[index * 8..index * 8 + 8]);
            u64::from_le_bytes(bytes)
        };
        let claim = Claim { dialer: id(0), acceptor: id(1), channel: id(2) };
        if tag != self.tag {
            self.refuse(Refusal::OtherContext);
            return Err(HandshakeError::OtherContext);
        }
        if self.local != ANY_ID && claim.acceptor != self.local {
            self.refuse(Refusal::OtherAcceptor);
            return Err(HandshakeError::OtherAcceptor {
                ours: self.local,
                claimed: claim.acceptor,
            });
        }
        let mut nonce = [0; NONCE_BYTES];
        if fill_random(&mut nonce).is_err() {
            // Without a nonce of our own a recorded proof would pass: refuse instead.
            self.refuse(Refusal::Unknown(u32::MAX));
            return Err(HandshakeError::WrongProof);
        }
        self.claim = claim;
        let mut reply = self.prologue();
        reply.extend_from_slice(&0_u32.to_le_bytes());
        reply.extend_from_slice(&nonce);
        self.transcript.update(hello);
        self.transcript.update(&reply);
        reply.extend_from_slice(&self.proof("acceptor"));
        self.expected_proof = self.proof("dialer");
        self.output = reply;
        self.state = State::AwaitProof;
        Ok(())
    }

    fn take_reply(&mut self, reply: &[u8]) -> Result<(), HandshakeError> {
        let (signed, proof) = reply.split_at(REPLY_BYTES - 32);
        self.transcript.update(signed);
        if !bool::from(proof.ct_eq(&self.proof("acceptor"))) {
            return Err(HandshakeError::WrongProof);
        }
        let proof = self.proof("dialer");
        self.output.extend_from_slice(&proof);
        self.state = State::Complete;
        Ok(())
    }

    fn take_proof(&mut self, proof: &[u8]) -> Result<(), HandshakeError> {
        if !bool::from(proof.ct_eq(&self.expected_proof)) {
            return Err(HandshakeError::WrongProof);
        }
        self.state = State::Complete;
        Ok(())
    }

    fn refuse(&mut self, refusal: Refusal) {
        self.output = self.prologue();
        self.output.extend_from_slice(&refusal.code().to_le_bytes());
    }

    /// The proof of one role: the roles have keys of their own, so that one side's proof can never
    /// be sent back as the other's.
    fn proof(&self, role: &str) -> [u8; 32] {
        let transcript = self.transcript.clone().finalize();
        self.key.derive("iccl handshake proof", role.as_bytes()).mac(&[&transcript])
    }
}

#[cfg(test)]
mod tests;
