//! The ranks' output: whole lines, the rank in front.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A longer line is printed in pieces.
const LONGEST_LINE: usize = 64 * 1024;

/// Of output that is kept back, this much of the end stays.
const KEPT_BYTES: usize = 64 * 1024;

/// Where lines go. Locked for a whole line.
pub(super) type Sink = Arc<Mutex<dyn Write + Send>>;

/// Output that is shown only if it is needed.
#[derive(Clone, Default)]
pub(super) struct Kept(Arc<Mutex<Vec<u8>>>);

impl Kept {
    pub(super) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(bytes);
        if kept.len() > 2 * KEPT_BYTES {
            let cut = kept.len() - KEPT_BYTES;
            // From the start of a line, so that it is not shown in half.
            let line =
                kept[cut..].iter().position(|byte| *byte == b'\n').map_or(cut, |at| cut + at + 1);
            kept.drain(..line);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Reads `source` on a thread of its own and writes its lines to `sink`, `prefix` in front of each.
/// When nobody reads the sink any more, `source` is closed, so that the rank learns of it as the
/// writer of any pipe does.
pub(super) fn forward(
    mut source: impl Read + Send + 'static,
    sink: Sink,
    prefix: String,
) -> std::io::Result<JoinHandle<()>> {
    std::thread::Builder::new().name("iccl-output".into()).spawn(move || {
        let mut lines = Lines { prefix: prefix.into_bytes(), partial: Vec::new() };
        let mut piece = vec![0; 16 * 1024];
        loop {
            match source.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => {
                    if lines.take(&piece[..count], &sink).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        // The rank has ended; that nobody reads its last words is all there is to say.
        let _ = lines.end(&sink);
    })
}

/// Bytes on their way to become lines.
struct Lines {
    prefix: Vec<u8>,
    partial: Vec<u8>,
}

impl Lines {
    fn take(&mut self, bytes: &[u8], sink: &Sink) -> std::io::Result<()> {
        let mut ready = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.partial.extend_from_slice(part);
            if part.ends_with(b"\n") {
                ready.extend_from_slice(&self.prefix);
                ready.append(&mut self.partial);
            } else if self.partial.len() >= LONGEST_LINE {
                ready.extend_from_slice(&self.prefix);
                ready.append(&mut self.partial);
                ready.push(b'\n');
            }
        }
        put(&ready, sink)
    }

    fn end(&mut self, sink: &Sink) -> std::io::Result<()> {
        if self.partial.is_empty() { Ok(()) } else { self.take(b"\n", sink) }
    }
}

fn put(bytes: &[u8], sink: &Sink) -> std::io::Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    let mut sink = sink.lock().unwrap_or_else(PoisonError::into_inner);
    sink.write_all(bytes).and_then(|()| sink.flush())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(pieces: &[&[u8]]) -> String {
        let kept = Kept::default();
        let sink: Sink = Arc::new(Mutex::new(kept.clone()));
        let mut lines = Lines { prefix: b"[3] ".to_vec(), partial: Vec::new() };
        for piece in pieces {
            lines.take(piece, &sink).expect("memory takes everything");
        }
        lines.end(&sink).expect("memory takes everything");
        String::from_utf8_lossy(&kept.take()).into_owned()
    }

    #[test]
    fn lines_are_whole_whatever_the_pieces() {
        assert_eq!(shown(&[b"a", b"b\nc\n", b"", b"d"]), "[3] ab\n[3] c\n[3] d\n");
        assert_eq!(shown(&[b"\n\n"]), "[3] \n[3] \n");
        assert_eq!(shown(&[]), "");
    }

    #[test]
    fn a_line_without_end_is_printed_in_pieces() {
        let text = shown(&[&vec![b'x'; LONGEST_LINE], b"y\n"]);
        assert_eq!(text.lines().count(), 2);
        assert!(text.ends_with("\n[3] y\n"));
    }

    #[test]
    fn what_is_kept_back_is_bounded_and_starts_at_a_line() {
        let mut kept = Kept::default();
        for number in 0..100_000 {
            writeln!(kept, "line {number}").expect("memory takes everything");
        }
        let text = String::from_utf8(kept.take()).expect("text");
        assert!(text.len() <= 2 * KEPT_BYTES + 16, "{}", text.len());
        assert!(text.starts_with("line ") && text.ends_with("line 99999\n"));
    }
}
