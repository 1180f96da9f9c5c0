//! Copies and fills, and what they mean for the calling thread.

use crate::machine::Machine;
use crate::memory::{Place, Span};
use crate::stream::Stream;
use std::sync::Arc;

/// Which of a vendor's two calls was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// The one that waits for the copy (though not for one between two ranges of device memory).
    Waiting,
    /// The one that puts the copy into a stream. It waits all the same where pageable memory is the
    /// destination; pageable memory that is the source is read before it returns.
    Enqueued,
}

impl Machine {
    /// Copies. Both spans have the same length.
    pub fn copy(&'static self, stream: &Arc<Stream>, to: Span, from: Span, pace: Pace) {
        let between = (to.place(), from.place());
        let waits = match between {
            (Place::Device(_), Place::Device(_)) => false,
            (Place::Pageable, _) | (Place::Pinned, Place::Pinned | Place::Pageable) => true,
            (Place::Pinned, Place::Device(_)) | (Place::Device(_), _) => pace == Pace::Waiting,
        };
        let bytes = to.bytes().min(from.bytes()) as usize;
        let point = if from.place() == Place::Pageable && !waits {
            let mut staged = vec![0_u8; bytes];
            // SAFETY: the caller promises that the source may be read for this length.
            unsafe { std::ptr::copy_nonoverlapping(from.view(), staged.as_mut_ptr(), bytes) };
            self.enqueue(
                stream,
                Box::new(move || {
                    // SAFETY: the span keeps its allocation mapped.
                    unsafe { std::ptr::copy_nonoverlapping(staged.as_ptr(), to.view(), bytes) };
                }),
            )
        } else {
            self.enqueue(
                stream,
                Box::new(move || {
                    // SAFETY: spans of device memory keep their allocation mapped; host memory stays
                    // until the copy is done, by the promise of whoever asked for it.
                    unsafe { std::ptr::copy(from.view(), to.view(), bytes) };
                }),
            )
        };
        if waits {
            point.wait();
        }
    }

    /// Fills with a byte.
    pub fn fill(&'static self, stream: &Arc<Stream>, to: Span, value: u8, pace: Pace) {
        let waits = pace == Pace::Waiting && !matches!(to.place(), Place::Device(_));
        let point = self.enqueue(
            stream,
            Box::new(move || {
                // SAFETY: as for copies.
                unsafe { to.view().write_bytes(value, to.bytes() as usize) };
            }),
        );
        if waits {
            point.wait();
        }
    }
}
