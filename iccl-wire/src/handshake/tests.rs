use proptest::prelude::*;

use super::*;

const CONTEXT: Context<'static> = Context { purpose: "test/1", job: b"job 7" };
const CLAIM: Claim = Claim { dialer: 3, acceptor: 1, channel: 2 };

fn key(byte: u8) -> Key {
    Key::from_bytes([byte; 32])
}

fn dial(byte: u8) -> Handshake {
    Handshake::dial(&key(byte), CONTEXT, CLAIM).unwrap()
}

fn accept(byte: u8) -> Handshake {
    Handshake::accept(&key(byte), CONTEXT, 1)
}

/// Moves what `from` has to say into `to`, in pieces of `piece` bytes.
fn pass(from: &mut Handshake, to: &mut Handshake, piece: usize) -> Result<(), HandshakeError> {
    let bytes = from.output().to_vec();
    from.output_sent(bytes.len());
    for part in bytes.chunks(piece) {
        assert_eq!(to.input(part)?, part.len());
    }
    Ok(())
}

fn take(handshake: &mut Handshake) -> Vec<u8> {
    let bytes = handshake.output().to_vec();
    handshake.output_sent(bytes.len());
    bytes
}

#[test]
fn both_sides_complete_whatever_the_pieces() {
    for piece in [1, 2, 7, 11, 12, 13, 83, 84, 1000] {
        let (mut dialer, mut acceptor) = (dial(1), accept(1));
        pass(&mut dialer, &mut acceptor, piece).unwrap();
        assert!(!acceptor.is_complete());
        assert_eq!(acceptor.claim(), None, "a claim is worth nothing before its proof");
        assert_eq!(acceptor.session_key("x"), None);
        pass(&mut acceptor, &mut dialer, piece).unwrap();
        assert!(dialer.is_complete());
        pass(&mut dialer, &mut acceptor, piece).unwrap();
        assert!(acceptor.is_complete());
        assert_eq!(acceptor.claim(), Some(CLAIM));
        assert_eq!(dialer.session_key("x"), acceptor.session_key("x"));
        assert_ne!(dialer.session_key("x"), dialer.session_key("y"));
        assert_eq!((dialer.wanted_bytes(), acceptor.wanted_bytes()), (0, 0));
    }
}

#[test]
fn bytes_after_the_handshake_are_left_alone() {
    let (mut dialer, mut acceptor) = (dial(1), accept(1));
    pass(&mut dialer, &mut acceptor, 1000).unwrap();
    pass(&mut acceptor, &mut dialer, 1000).unwrap();
    let mut bytes = take(&mut dialer);
    bytes.extend_from_slice(b"payload");
    assert_eq!(acceptor.input(&bytes), Ok(PROOF_BYTES));
    assert!(acceptor.is_complete());
}

#[test]
fn b064_wrong_key_is_refused_on_the_side_that_checks_first() {
    let (mut dialer, mut acceptor) = (dial(1), accept(2));
    pass(&mut dialer, &mut acceptor, 1000).unwrap();
    assert_eq!(pass(&mut acceptor, &mut dialer, 1000), Err(HandshakeError::WrongProof));
    assert!(dialer.output().is_empty(), "nothing is proven to a peer that failed");
    // A dialer that goes on with a made-up proof fails on the acceptor.
    assert_eq!(acceptor.input(&[0; PROOF_BYTES]), Err(HandshakeError::WrongProof));
    assert!(!acceptor.is_complete());
}

#[test]
fn b061_version_mismatch_is_told_on_both_sides() {
    let mut dialer = Handshake::dial_with_version(&key(1), CONTEXT, CLAIM, 2).unwrap();
    let mut acceptor = accept(1);
    assert_eq!(
        pass(&mut dialer, &mut acceptor, 5),
        Err(HandshakeError::VersionMismatch { ours: 1, theirs: 2 })
    );
    assert_eq!(acceptor.output().len(), PROLOGUE_BYTES);
    assert_eq!(
        pass(&mut acceptor, &mut dialer, 5),
        Err(HandshakeError::VersionMismatch { ours: 2, theirs: 1 })
    );
}

#[test]
fn the_version_is_checked_before_the_rest_arrives() {
    let mut acceptor = accept(1);
    let mut prologue = MAGIC.to_vec();
    prologue.extend_from_slice(&9_u32.to_le_bytes());
    assert_eq!(
        acceptor.input(&prologue),
        Err(HandshakeError::VersionMismatch { ours: 1, theirs: 9 })
    );
}

#[test]
fn b040_strangers_fail_at_their_first_wrong_byte() {
    let mut acceptor = accept(1);
    let error = acceptor.input(b"GET /metrics HTTP/1.1\r\n").unwrap_err();
    assert_eq!(error.to_string(), "the peer does not speak iccl; its first bytes are \"GET /met\"");
    assert!(acceptor.output().is_empty(), "a stranger is not answered");
    assert!(accept(1).input(b"I").is_ok());
    assert!(accept(1).input(b"J").is_err());
    assert!(accept(1).input(&[0xff; 8]).is_err());
}

#[test]
fn other_job_purpose_or_acceptor_is_refused_and_said() {
    for context in [
        Context { purpose: "test/2", job: b"job 7" },
        Context { purpose: "test/1", job: b"job 8" },
        Context { purpose: "test/1job", job: b" 7" },
    ] {
        let mut dialer = dial(1);
        let mut acceptor = Handshake::accept(&key(1), context, 1);
        assert_eq!(pass(&mut dialer, &mut acceptor, 1000), Err(HandshakeError::OtherContext));
        assert_eq!(
            pass(&mut acceptor, &mut dialer, 1000),
            Err(HandshakeError::Refused(Refusal::OtherContext))
        );
    }
    let mut dialer = dial(1);
    let mut acceptor = Handshake::accept(&key(1), CONTEXT, 5);
    assert_eq!(
        pass(&mut dialer, &mut acceptor, 1000),
        Err(HandshakeError::OtherAcceptor { ours: 5, claimed: 1 })
    );
    assert_eq!(
        pass(&mut acceptor, &mut dialer, 1000),
        Err(HandshakeError::Refused(Refusal::OtherAcceptor))
    );
}

#[test]
fn a_recorded_handshake_does_not_pass_again() {
    let (mut dialer, mut acceptor) = (dial(1), accept(1));
    let hello = take(&mut dialer);
    acceptor.input(&hello).unwrap();
    pass(&mut acceptor, &mut dialer, 1000).unwrap();
    let proof = take(&mut dialer);
    acceptor.input(&proof).unwrap();
    assert!(acceptor.is_complete());

    let mut second = accept(1);
    second.input(&hello).unwrap();
    assert_eq!(second.input(&proof), Err(HandshakeError::WrongProof));
}

#[test]
fn reflected_frames_do_not_pass() {
    // The hello sent back as a reply.
    let mut dialer = dial(1);
    let hello = take(&mut dialer);
    let padded = [hello.as_slice(), &[0; 64]].concat();
    assert!(dialer.input(&padded[..REPLY_BYTES]).is_err());
    assert!(!dialer.is_complete());

    // The acceptor's proof sent back as the dialer's.
    let (mut dialer, mut acceptor) = (dial(1), accept(1));
    pass(&mut dialer, &mut acceptor, 1000).unwrap();
    let reply = take(&mut acceptor);
    assert_eq!(
        acceptor.input(&reply[REPLY_BYTES - PROOF_BYTES..]),
        Err(HandshakeError::WrongProof)
    );
}

#[test]
fn every_flipped_bit_is_noticed() {
    for bit in 0..HELLO_BYTES * 8 {
        let (mut dialer, mut acceptor) = (dial(1), Handshake::accept(&key(1), CONTEXT, ANY_ID));
        let mut hello = take(&mut dialer);
        hello[bit / 8] ^= 1 << (bit % 8);
        let noticed = acceptor.input(&hello).is_err()
            || pass(&mut acceptor, &mut dialer, 1000) == Err(HandshakeError::WrongProof);
        assert!(noticed, "bit {bit} of the hello");
    }
    for bit in 0..REPLY_BYTES * 8 {
        let (mut dialer, mut acceptor) = (dial(1), accept(1));
        pass(&mut dialer, &mut acceptor, 1000).unwrap();
        let mut reply = take(&mut acceptor);
        reply[bit / 8] ^= 1 << (bit % 8);
        assert!(dialer.input(&reply).is_err(), "bit {bit} of the reply");
    }
    for bit in 0..PROOF_BYTES * 8 {
        let (mut dialer, mut acceptor) = (dial(1), accept(1));
        pass(&mut dialer, &mut acceptor, 1000).unwrap();
        pass(&mut acceptor, &mut dialer, 1000).unwrap();
        let mut proof = take(&mut dialer);
        proof[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(acceptor.input(&proof), Err(HandshakeError::WrongProof));
    }
}

#[test]
fn debug_shows_no_secret() {
    let text = format!("{:?}", Handshake::accept(&key(0xab), CONTEXT, 1));
    assert!(text.contains("redacted") && !text.contains("171"), "{text}");
}

proptest! {
    #[test]
    fn b065_arbitrary_bytes_never_panic_nor_grow(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
        valid_prefix in 0..=HELLO_BYTES,
        as_dialer: bool,
    ) {
        let mut handshake = if as_dialer { dial(1) } else { accept(1) };
        let mut valid = if as_dialer {
            let mut acceptor = accept(1);
            acceptor.input(handshake.output()).unwrap();
            take(&mut acceptor)
        } else {
            take(&mut dial(1))
        };
        valid.truncate(valid_prefix);
        valid.extend_from_slice(&bytes);
        let _ = handshake.input(&valid);
        prop_assert!(handshake.input.capacity() + handshake.output.capacity() < 1024);
        prop_assert!(as_dialer || !handshake.is_complete());
    }
}
