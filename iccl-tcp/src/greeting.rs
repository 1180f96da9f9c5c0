//! How a connection begins, as a state machine without sockets: the proof of the job key, then an
//! exchange of what both sides must agree on about the link, each under a key of this connection.
//!
//! ```text
//! dialer   ── handshake of iccl-wire ──  acceptor
//!          terms + tag               ──▶
//!          ◀──               terms + tag   once the acceptor has opened the channel
//! ```
//!
//! The first payload byte follows the terms. Nothing here is larger than a few hundred bytes.

use iccl_plugin_api::Status;
use iccl_plugin_api::sdk::PluginError;
use iccl_wire::{Claim, Context, Handshake, HandshakeError, Key};

use crate::framing::Layout;

const PURPOSE: &str = "iccl tcp data/1";
const FIELDS_BYTES: usize = 8 + 8 + 4 + 4;
const TAG_BYTES: usize = 32;
const TERMS_BYTES: usize = FIELDS_BYTES + TAG_BYTES;

/// Most sockets of one channel.
pub(crate) const MAXIMUM_LANES: u32 = 16;

/// Smallest stripe in bytes.
pub(crate) const MINIMUM_STRIPE_BYTES: u64 = 4096;

/// What both sides of a connection tell each other about the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The runtime's digest of the link's decision.
    pub(crate) link_digest: u64,
    /// The dialer's choice; the acceptor repeats it.
    pub(crate) layout: Layout,
    /// Which of the channel's sockets this is.
    pub(crate) lane: u32,
}

impl Terms {
    fn fields(self) -> [u8; FIELDS_BYTES] {
        let mut bytes = [0; FIELDS_BYTES];
        bytes[..8].copy_from_slice(&self.link_digest.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.layout.stripe_bytes.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.layout.lanes.to_le_bytes());
        bytes[20..].copy_from_slice(&self.lane.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let wide = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let narrow = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let layout = Layout { stripe_bytes: wide(8)?, lanes: narrow(16)? };
        let terms = Self { link_digest: wide(0)?, layout, lane: narrow(20)? };
        let sensible = (1..=MAXIMUM_LANES).contains(&layout.lanes)
            && layout.stripe_bytes >= MINIMUM_STRIPE_BYTES
            && terms.lane < layout.lanes;
        sensible.then_some(terms)
    }

    fn sealed(self, handshake: &Handshake, label: &str) -> Option<[u8; TERMS_BYTES]> {
        let mut bytes = [0; TERMS_BYTES];
        bytes[..FIELDS_BYTES].copy_from_slice(&self.fields());
        bytes[FIELDS_BYTES..].copy_from_slice(tag(handshake, label, &self.fields())?.expose());
        Some(bytes)
    }
}

/// The tag of one side's terms: both keys and labels are used for nothing else.
fn tag(handshake: &Handshake, label: &str, fields: &[u8]) -> Option<Key> {
    Some(handshake.session_key("iccl tcp terms")?.derive(label, fields))
}

/// Why a connection did not become part of a channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GreetingError {
    Handshake(HandshakeError),
    /// The peer proved the key, but its terms were not sealed with it or make no sense.
    BadTerms,
}

impl std::fmt::Display for GreetingError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Handshake(error) => error.fmt(f),
            Self::BadTerms => f.write_str("the peer's terms are not sealed or make no sense"),
        }
    }
}

impl GreetingError {
    /// What a dialer's channel ends with.
    pub(crate) fn into_plugin_error(self, who: &str) -> PluginError {
        let status = match self {
            Self::Handshake(HandshakeError::VersionMismatch { .. }) => Status::Mismatch,
            Self::Handshake(_) | Self::BadTerms => Status::Unauthenticated,
        };
        PluginError::new(status, format!("{who}: {self}"))
    }
}

/// One side of the beginning of one connection. Driven like a [`Handshake`]: send `output`, read at
/// most `wanted_bytes`, until `peer` is there.
#[derive(Debug)]
pub(crate) struct Greeting {
    handshake: Handshake,
    /// What the dialer says; the acceptor has none until it knows the channel.
    terms: Option<Terms>,
    /// The label under which the peer seals.
    peer_label: &'static str,
    input: Vec<u8>,
    output: Vec<u8>,
    peer: Option<Terms>,
}

const DIALER: &str = "dialer";
const ACCEPTOR: &str = "acceptor";

impl Greeting {
    pub(crate) fn dial(
        key: &Key,
        communicator: u64,
        claim: Claim,
        terms: Terms,
    ) -> std::io::Result<Self> {
        let job = communicator.to_le_bytes();
        let handshake = Handshake::dial(key, Context { purpose: PURPOSE, job: &job }, claim)?;
        Ok(Self::new(handshake, Some(terms), ACCEPTOR))
    }

    pub(crate) fn accept(key: &Key, communicator: u64, rank: u32) -> Self {
        let job = communicator.to_le_bytes();
        let context = Context { purpose: PURPOSE, job: &job };
        Self::new(Handshake::accept(key, context, u64::from(rank)), None, DIALER)
    }

    fn new(handshake: Handshake, terms: Option<Terms>, peer_label: &'static str) -> Self {
        let (input, output) = (Vec::new(), Vec::new());
        Self { handshake, terms, peer_label, input, output, peer: None }
    }

    /// What is to be sent now; after a failure, last words for the peer.
    pub(crate) fn output(&self) -> &[u8] {
        let first = self.handshake.output();
        if first.is_empty() { &self.output } else { first }
    }

    pub(crate) fn output_sent(&mut self, bytes: usize) {
        if self.handshake.output().is_empty() {
            self.output.drain(..bytes);
        } else {
            self.handshake.output_sent(bytes);
        }
    }

    /// How many bytes to read next at most; 0 when no more are wanted.
    pub(crate) fn wanted_bytes(&self) -> usize {
        match (self.handshake.is_complete(), self.peer) {
            (false, _) => self.handshake.wanted_bytes(),
            (true, None) => TERMS_BYTES - self.input.len(),
            (true, Some(_)) => 0,
        }
    }

    /// Takes at most `wanted_bytes` received bytes.
    pub(crate) fn input(&mut self, bytes: &[u8]) -> Result<(), GreetingError> {
        if !self.handshake.is_complete() {
            self.handshake.input(bytes).map_err(GreetingError::Handshake)?;
            if let (true, Some(terms)) = (self.handshake.is_complete(), self.terms) {
                self.seal(terms);
            }
            return Ok(());
        }
        self.input.extend_from_slice(bytes);
        if self.input.len() == TERMS_BYTES {
            let (fields, seal) = self.input.split_at(FIELDS_BYTES);
            let expected = tag(&self.handshake, self.peer_label, fields);
            let seal: Option<[u8; TAG_BYTES]> = seal.try_into().ok();
            // `Key` compares in constant time.
            if expected.is_none() || expected != seal.map(Key::from_bytes) {
                return Err(GreetingError::BadTerms);
            }
            self.peer = Some(Terms::parse(fields).ok_or(GreetingError::BadTerms)?);
        }
        Ok(())
    }

    /// Who the dialer is and which channel it wants, and its terms: proven.
    pub(crate) fn peer(&self) -> Option<(Claim, Terms)> {
        Some((self.handshake.claim()?, self.peer?))
    }

    /// The acceptor's terms, to be sent when the channel is open here.
    pub(crate) fn answer(&mut self, terms: Terms) {
        self.seal(terms);
    }

    fn seal(&mut self, terms: Terms) {
        let label = if self.peer_label == DIALER { ACCEPTOR } else { DIALER };
        if let Some(bytes) = terms.sealed(&self.handshake, label) {
            self.output.extend_from_slice(&bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(link_digest: u64) -> Terms {
        Terms { link_digest, layout: Layout { lanes: 2, stripe_bytes: 4096 }, lane: 1 }
    }

    const CLAIM: Claim = Claim { dialer: 1, acceptor: 0, channel: 9 };

    fn pair(dialer_key: u8, acceptor_key: u8) -> (Greeting, Greeting) {
        let key = |byte| Key::from_bytes([byte; 32]);
        (
            Greeting::dial(&key(dialer_key), 5, CLAIM, terms(77)).unwrap(),
            Greeting::accept(&key(acceptor_key), 5, 0),
        )
    }

    /// Moves everything that one side has to say to the other, one byte at a time.
    fn carry(from: &mut Greeting, to: &mut Greeting) -> Result<(), GreetingError> {
        while let Some(&byte) = from.output().first() {
            from.output_sent(1);
            assert!(to.wanted_bytes() > 0);
            to.input(&[byte])?;
        }
        Ok(())
    }

    #[test]
    fn both_sides_learn_the_others_terms() {
        let (mut dialer, mut acceptor) = pair(1, 1);
        for _ in 0..2 {
            carry(&mut dialer, &mut acceptor).unwrap();
            carry(&mut acceptor, &mut dialer).unwrap();
        }
        assert_eq!(acceptor.peer(), Some((CLAIM, terms(77))));
        assert_eq!(dialer.peer(), None);
        acceptor.answer(terms(78));
        carry(&mut acceptor, &mut dialer).unwrap();
        assert_eq!(dialer.peer(), Some((CLAIM, terms(78))));
        assert_eq!(dialer.wanted_bytes(), 0);
    }

    #[test]
    fn another_key_is_noticed_by_the_dialer() {
        let (mut dialer, mut acceptor) = pair(1, 2);
        carry(&mut dialer, &mut acceptor).unwrap();
        let error = carry(&mut acceptor, &mut dialer).unwrap_err();
        assert_eq!(error, GreetingError::Handshake(HandshakeError::WrongProof));
        assert_eq!(error.into_plugin_error("rank 0").status, Status::Unauthenticated);
    }

    #[test]
    fn changed_terms_are_refused() {
        for byte in [0, 20, FIELDS_BYTES, TERMS_BYTES - 1] {
            let (mut dialer, mut acceptor) = pair(1, 1);
            carry(&mut dialer, &mut acceptor).unwrap();
            carry(&mut acceptor, &mut dialer).unwrap();
            let proof = dialer.handshake.output().to_vec();
            dialer.output_sent(proof.len());
            acceptor.input(&proof).unwrap();
            let mut bytes = dialer.output().to_vec();
            bytes[byte] ^= 1;
            assert_eq!(acceptor.input(&bytes), Err(GreetingError::BadTerms));
            assert_eq!(acceptor.peer(), None);
        }
    }

    #[test]
    fn a_recorded_beginning_is_worth_nothing() {
        let (mut dialer, mut acceptor) = pair(1, 1);
        let hello = dialer.output().to_vec();
        carry(&mut dialer, &mut acceptor).unwrap();
        carry(&mut acceptor, &mut dialer).unwrap();
        let proof = dialer.handshake.output().to_vec();

        let (_, mut other) = pair(1, 1);
        other.input(&hello).unwrap();
        let error = other.input(&proof).unwrap_err();
        assert_eq!(error, GreetingError::Handshake(HandshakeError::WrongProof));
    }
}
