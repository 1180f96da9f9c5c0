//! Which byte of a payload travels on which socket.

/// How payloads are cut. The dialer's settings rule; both sides of a channel have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) lanes: u32,
    pub(crate) stripe_bytes: u64,
}

/// A run of a payload's bytes that is contiguous on one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

impl Layout {
    /// How many bytes of a payload of `length` bytes travel on `lane`.
    pub(crate) fn share(self, length: u64, lane: usize) -> u64 {
        let (lanes, lane) = (u64::from(self.lanes), lane as u64);
        if lanes == 1 {
            return length;
        }
        let whole = length / self.stripe_bytes;
        let rest = length % self.stripe_bytes;
        // Stripe number `whole`, the incomplete one, comes after the whole ones.
        let mine = whole / lanes + u64::from(lane < whole % lanes);
        mine * self.stripe_bytes + if whole % lanes == lane { rest } else { 0 }
    }

    /// The run that begins at byte `position` of the lane's share; `position` is less than the
    /// share.
    pub(crate) fn run(self, length: u64, lane: usize, position: u64) -> Run {
        let lanes = u64::from(self.lanes);
        if lanes == 1 {
            return Run { offset: position, length: length - position };
        }
        let stripe = position / self.stripe_bytes * lanes + lane as u64;
        let inside = position % self.stripe_bytes;
        let offset = stripe * self.stripe_bytes + inside;
        Run { offset, length: (self.stripe_bytes - inside).min(length - offset) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_lanes_cover_every_byte_once(
            length in 0_u64..5000, lanes in 1_u32..6, stripe_bytes in 1_u64..700,
        ) {
            let layout = Layout { lanes, stripe_bytes };
            let mut seen = vec![0_u8; length as usize];
            for lane in 0..lanes as usize {
                let share = layout.share(length, lane);
                let mut position = 0;
                let mut before = None;
                while position < share {
                    let run = layout.run(length, lane, position);
                    prop_assert!(run.length > 0);
                    prop_assert!(before < Some(run.offset));
                    before = Some(run.offset);
                    for byte in run.offset..run.offset + run.length {
                        seen[byte as usize] += 1;
                    }
                    position += run.length;
                }
                prop_assert_eq!(position, share);
            }
            prop_assert!(seen.iter().all(|&count| count == 1));
        }
    }

    #[test]
    fn a_payload_of_one_stripe_stays_on_the_first_lane() {
        let layout = Layout { lanes: 4, stripe_bytes: 100 };
        assert_eq!(layout.share(100, 0), 100);
        assert_eq!(layout.share(100, 1), 0);
        assert_eq!(layout.share(101, 1), 1);
        assert_eq!(layout.share(0, 0), 0);
    }
}
