//! Length-prefixed frames with a bound.

/// The size of a frame's header: the payload's length, little-endian.
pub const FRAME_HEADER_BYTES: usize = 4;

/// A frame is longer than the receiver or the sender allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a frame of {bytes} bytes exceeds the limit of {limit_bytes}")]
pub struct FrameTooLong {
    /// What the header says, or what was to be sent.
    pub bytes: usize,
    /// What is allowed.
    pub limit_bytes: usize,
}

/// Appends a frame with `payload` to `output`.
///
/// # Errors
///
/// The payload is longer than `limit_bytes` or than a header can say.
pub fn encode_frame(
    payload: &[u8],
    limit_bytes: usize,
    output: &mut Vec<u8>,
) -> Result<(), FrameTooLong> {
    let limit_bytes = limit_bytes.min(u32::MAX as usize);
    if payload.len() > limit_bytes {
        return Err(FrameTooLong { bytes: payload.len(), limit_bytes });
    }
    output.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    output.extend_from_slice(payload);
    Ok(())
}

/// Cuts a stream into frames. Memory grows with bytes that have arrived, never with what a header
/// promises.
#[derive(Debug)]
pub struct FrameDecoder {
    limit_bytes: usize,
    header: [u8; FRAME_HEADER_BYTES],
    header_bytes: usize,
    payload: Vec<u8>,
}

impl FrameDecoder {
    /// A decoder that refuses payloads longer than `limit_bytes`.
    pub const fn new(limit_bytes: usize) -> Self {
        Self { limit_bytes, header: [0; FRAME_HEADER_BYTES], header_bytes: 0, payload: Vec::new() }
    }

    /// Changes the bound; holds from the next header on.
    pub fn set_limit(&mut self, limit_bytes: usize) {
        self.limit_bytes = limit_bytes;
    }

    /// Whether a frame has begun and is not complete: end-of-file here cuts it.
    pub const fn is_inside_frame(&self) -> bool {
        self.header_bytes > 0
    }

    /// Takes bytes from the front of `bytes` until a frame is complete, and returns its payload;
    /// `None` when all bytes were taken and more are needed. Call it until it answers `None`.
    ///
    /// # Errors
    ///
    /// The header promises more than the limit. Final: the stream cannot be understood any more.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, FrameTooLong> {
        while self.header_bytes < FRAME_HEADER_BYTES {
            let Some((first, rest)) = bytes.split_first() else { return Ok(None) };
            self.header[self.header_bytes] = *first;
            self.header_bytes += 1;
            *bytes = rest;
        }
        let frame_bytes = u32::from_le_bytes(self.header) as usize;
        if frame_bytes > self.limit_bytes {
            return Err(FrameTooLong { bytes: frame_bytes, limit_bytes: self.limit_bytes });
        }
        let missing = frame_bytes - self.payload.len();
        let (part, rest) = bytes.split_at(missing.min(bytes.len()));
        self.payload.extend_from_slice(part);
        *bytes = rest;
        if self.payload.len() < frame_bytes {
            return Ok(None);
        }
        self.header_bytes = 0;
        Ok(Some(std::mem::take(&mut self.payload)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode_all(decoder: &mut FrameDecoder, stream: &[u8], piece: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        for mut part in stream.chunks(piece) {
            while let Some(frame) = decoder.next(&mut part).unwrap() {
                frames.push(frame);
            }
        }
        frames
    }

    #[test]
    fn frames_come_out_whatever_the_pieces() {
        let payloads: [&[u8]; 4] = [b"", b"a", b"hello", b""];
        let mut stream = Vec::new();
        for payload in payloads {
            encode_frame(payload, 5, &mut stream).unwrap();
        }
        for piece in 1..=stream.len() {
            let mut decoder = FrameDecoder::new(5);
            assert_eq!(decode_all(&mut decoder, &stream, piece), payloads, "pieces of {piece}");
            assert!(!decoder.is_inside_frame());
        }
    }

    #[test]
    fn b065_a_promise_of_four_gigabytes_is_refused_before_anything_is_reserved() {
        let mut decoder = FrameDecoder::new(64 * 1024);
        let error = decoder.next(&mut [0xff; 8].as_slice()).unwrap_err();
        assert_eq!(error, FrameTooLong { bytes: 0xffff_ffff, limit_bytes: 64 * 1024 });
        assert_eq!(decoder.payload.capacity(), 0);
    }

    #[test]
    fn too_long_to_send_is_refused() {
        let mut output = Vec::new();
        assert!(encode_frame(&[0; 6], 5, &mut output).is_err());
        assert!(output.is_empty());
    }

    #[test]
    fn a_cut_frame_is_told_from_a_clean_end() {
        let mut decoder = FrameDecoder::new(10);
        assert!(!decoder.is_inside_frame());
        assert_eq!(decoder.next(&mut [3, 0, 0, 0, 1].as_slice()), Ok(None));
        assert!(decoder.is_inside_frame());
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic_nor_grow(
            bytes in proptest::collection::vec(any::<u8>(), 0..600),
            limit in 0_usize..300,
        ) {
            let mut decoder = FrameDecoder::new(limit);
            let mut rest = bytes.as_slice();
            loop {
                match decoder.next(&mut rest) {
                    Ok(Some(frame)) => prop_assert!(frame.len() <= limit),
                    Ok(None) => { prop_assert!(rest.is_empty()); break }
                    Err(error) => { prop_assert!(error.bytes > limit); break }
                }
                prop_assert!(decoder.payload.capacity() <= 2 * limit.max(8));
            }
        }

        #[test]
        fn what_was_sent_arrives(
            payloads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 0..8),
            piece in 1_usize..60,
        ) {
            let mut stream = Vec::new();
            for payload in &payloads {
                encode_frame(payload, 50, &mut stream).unwrap();
            }
            prop_assert_eq!(decode_all(&mut FrameDecoder::new(50), &stream, piece), payloads);
        }
    }
}
