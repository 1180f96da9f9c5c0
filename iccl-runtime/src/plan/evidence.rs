//! What was tried before planning, and what failed since: facts that ranks exchange like
//! descriptors.

use std::collections::BTreeSet;

use iccl_wire::{Reader, Writer};

use super::cost::quantised;
use super::reason::errno_name;
use super::tier::{RegionForm, Tier};
use crate::topology::codec::{read_text, unknown, write_text};
use crate::topology::{DecodeError, MAX_NAME_BYTES};

/// What was found out about one rank's use of a transport.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RankFact {
    /// Registering device memory with this transport's NIC was tried and failed. Make it with
    /// [`RankFact::register_failed`].
    RegisterFailed {
        /// The transport.
        transport: String,
        /// The name of the system's error number; where there is none, what device or transport said.
        cause: String,
    },
    /// Registering device memory with this transport's NIC was tried and succeeded.
    Registered {
        /// The transport.
        transport: String,
        /// How the memory was given to it.
        form: RegionForm,
    },
    /// The rank's use of this transport has ended for good.
    Quarantined {
        /// The transport.
        transport: String,
    },
    /// The rank could not join the native communicator of its island. Make it with
    /// [`RankFact::native_failed`].
    NativeFailed {
        /// Whether it only waited in vain: then it is rarely the one with the reason.
        is_late: bool,
        /// What happened, in the library's words.
        cause: String,
    },
    /// A probe measured the rank's side of a tier. Make it with [`RankFact::speed`].
    Speed {
        /// The tier.
        tier: Tier,
        /// The transport.
        transport: String,
        /// α in nanoseconds, quantised.
        alpha_ns: u64,
        /// β in bytes per microsecond, quantised, at least 1.
        bytes_per_us: u64,
    },
}

impl RankFact {
    /// Registering device memory failed: with the system's error number, or 0 and the words of who refused.
    pub fn register_failed(transport: &str, errno: i32, words: &str) -> Self {
        Self::RegisterFailed { transport: transport.to_owned(), cause: cause(errno, words) }
    }

    /// Joining the native communicator failed, in the library's words, or (`is_late`) took too long.
    pub fn native_failed(is_late: bool, words: &str) -> Self {
        Self::NativeFailed { is_late, cause: short(words) }
    }

    /// What a probe measured, quantised.
    pub fn speed(tier: Tier, transport: &str, alpha_ns: u64, bytes_per_us: u64) -> Self {
        Self::Speed {
            tier,
            transport: transport.to_owned(),
            alpha_ns: quantised(alpha_ns),
            bytes_per_us: quantised(bytes_per_us).max(1),
        }
    }
}

/// What was found out about the use of a transport between two ranks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkFact {
    /// A connection was tried and failed.
    ConnectFailed {
        /// The transport.
        transport: String,
        /// The system's error number, 0 if it gave none.
        errno: i32,
    },
    /// Attaching the other's memory was tried and failed. Make it with [`LinkFact::attach_failed`].
    AttachFailed {
        /// The transport.
        transport: String,
        /// The name of the system's error number; where there is none, the transport's words.
        cause: String,
    },
}

impl LinkFact {
    /// Attaching failed: with the system's error number, or 0 and the transport's words. At most 96
    /// bytes of them are kept.
    pub fn attach_failed(transport: &str, errno: i32, words: &str) -> Self {
        Self::AttachFailed { transport: transport.to_owned(), cause: cause(errno, words) }
    }
}

/// The name of the system's error number, or short words where there is none.
fn cause(errno: i32, words: &str) -> String {
    if errno == 0 && !words.is_empty() { short(words) } else { errno_name(errno) }
}

/// Words on one line, cut to what may be sent.
fn short(words: &str) -> String {
    let mut words = words.replace(char::is_control, " ");
    let mut end = words.len().min(MAX_CAUSE_BYTES);
    while !words.is_char_boundary(end) {
        end -= 1;
    }
    words.truncate(end);
    words
}

/// All evidence of one epoch. A set: neither order nor repetition counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The epoch of the plan that it leads to; grows by one each time that ranks agree to plan
    /// again.
    pub epoch: u32,
    pub(super) ranks: BTreeSet<(u32, RankFact)>,
    pub(super) links: BTreeSet<(u32, u32, LinkFact)>,
}

const FORMAT: u8 = 3;
const MAX_CAUSE_BYTES: usize = 96;

impl Evidence {
    /// No evidence, in this epoch.
    pub fn of_epoch(epoch: u32) -> Self {
        Self { epoch, ..Self::default() }
    }

    /// Adds a fact about a rank.
    pub fn add_rank(&mut self, rank: u32, fact: RankFact) {
        self.ranks.insert((rank, fact));
    }

    /// Adds a fact about the link between two ranks; which of them found it does not matter.
    pub fn add_link(&mut self, a: u32, b: u32, fact: LinkFact) {
        self.links.insert((a.min(b), a.max(b), fact));
    }

    /// Adds all that another rank knows, and takes the later epoch.
    pub fn merge(&mut self, other: &Self) {
        self.epoch = self.epoch.max(other.epoch);
        self.ranks.extend(other.ranks.iter().cloned());
        self.links.extend(other.links.iter().cloned());
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ranks.is_empty() && self.links.is_empty()
    }

    /// The evidence as bytes, the same for equal sets.
    ///
    /// # Errors
    /// A transport's name does not fit.
    pub fn encode(&self) -> Result<Vec<u8>, DecodeError> {
        let mut out = Writer::new();
        out.u8(FORMAT).u32(self.epoch).u32(self.ranks.len() as u32);
        for (rank, fact) in &self.ranks {
            out.u32(*rank);
            fact.encode(&mut out)?;
        }
        out.u32(self.links.len() as u32);
        for (low, high, fact) in &self.links {
            out.u32(*low).u32(*high);
            fact.encode(&mut out)?;
        }
        Ok(out.finish())
    }

    /// Reads evidence.
    ///
    /// # Errors
    /// Names the field that is cut short, too long, or not what it should be.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut input = Reader::new(bytes);
        let format = input.u8("evidence format")?;
        if format != FORMAT {
            return Err(DecodeError::Format { what: "evidence", found: format, expected: FORMAT });
        }
        let mut evidence = Self::of_epoch(input.u32("epoch")?);
        for _ in 0..input.count("facts about ranks", 6)? {
            let rank = input.u32("rank")?;
            evidence.add_rank(rank, RankFact::decode(&mut input)?);
        }
        for _ in 0..input.count("facts about links", 11)? {
            let (a, b) = (input.u32("rank")?, input.u32("rank")?);
            evidence.add_link(a, b, LinkFact::decode(&mut input)?);
        }
        input.finish()?;
        Ok(evidence)
    }
}

fn write_name(out: &mut Writer, transport: &str) -> Result<(), DecodeError> {
    write_text(out, "transport name", MAX_NAME_BYTES, transport)
}

fn read_name(input: &mut Reader<'_>) -> Result<String, DecodeError> {
    read_text(input, "transport name", MAX_NAME_BYTES)
}

fn read_errno(input: &mut Reader<'_>) -> Result<i32, DecodeError> {
    Ok(input.u32("errno")?.cast_signed())
}

impl RankFact {
    pub(super) fn encode(&self, out: &mut Writer) -> Result<(), DecodeError> {
        match self {
            Self::RegisterFailed { transport, cause } => {
                out.u8(0);
                write_name(out, transport)?;
                write_text(out, "cause", MAX_CAUSE_BYTES, cause)?;
            }
            Self::Registered { transport, form } => {
                out.u8(4);
                write_name(out, transport)?;
                out.u8(form.code());
            }
            Self::Quarantined { transport } => {
                out.u8(1);
                write_name(out, transport)?;
            }
            Self::NativeFailed { is_late, cause } => {
                out.u8(3).u8(u8::from(*is_late));
                write_text(out, "cause", MAX_CAUSE_BYTES, cause)?;
            }
            Self::Speed { tier, transport, alpha_ns, bytes_per_us } => {
                out.u8(2).u8(tier.code());
                write_name(out, transport)?;
                out.u64(*alpha_ns).u64(*bytes_per_us);
            }
        }
        Ok(())
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match input.u8("fact about a rank")? {
            0 => Ok(Self::RegisterFailed {
                transport: read_name(input)?,
                cause: read_text(input, "cause", MAX_CAUSE_BYTES)?,
            }),
            1 => Ok(Self::Quarantined { transport: read_name(input)? }),
            2 => {
                let code = input.u8("tier")?;
                let tier = Tier::from_code(code).ok_or_else(|| unknown("tier", code))?;
                let transport = read_name(input)?;
                let (alpha_ns, bytes_per_us) = (input.u64("latency")?, input.u64("bandwidth")?);
                Ok(Self::speed(tier, &transport, alpha_ns, bytes_per_us))
            }
            3 => Ok(Self::NativeFailed {
                is_late: match input.u8("lateness")? {
                    0 => false,
                    1 => true,
                    other => return Err(unknown("lateness", other)),
                },
                cause: read_text(input, "cause", MAX_CAUSE_BYTES)?,
            }),
            4 => {
                let transport = read_name(input)?;
                let code = input.u8("form of a region")?;
                let form = RegionForm::from_code(code);
                form.map(|form| Self::Registered { transport, form })
                    .ok_or_else(|| unknown("form of a region", code))
            }
            other => Err(unknown("fact about a rank", other)),
        }
    }
}

impl LinkFact {
    pub(super) fn encode(&self, out: &mut Writer) -> Result<(), DecodeError> {
        match self {
            Self::ConnectFailed { transport, errno } => {
                out.u8(0);
                write_name(out, transport)?;
                out.u32(errno.cast_unsigned());
            }
            Self::AttachFailed { transport, cause } => {
                out.u8(1);
                write_name(out, transport)?;
                write_text(out, "cause", MAX_CAUSE_BYTES, cause)?;
            }
        }
        Ok(())
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, DecodeError> {
        match input.u8("fact about a link")? {
            0 => {
                Ok(Self::ConnectFailed { transport: read_name(input)?, errno: read_errno(input)? })
            }
            1 => Ok(Self::AttachFailed {
                transport: read_name(input)?,
                cause: read_text(input, "cause", MAX_CAUSE_BYTES)?,
            }),
            other => Err(unknown("fact about a link", other)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_a_name_or_short_words() {
        let cause = |errno, words: &str| match LinkFact::attach_failed("shm", errno, words) {
            LinkFact::AttachFailed { cause, .. } => cause,
            other @ LinkFact::ConnectFailed { .. } => panic!("{other:?}"),
        };
        assert_eq!(cause(libc::EMFILE, "too many"), "EMFILE");
        assert_eq!(cause(0, "the peer runs as\nuser 7"), "the peer runs as user 7");
        assert_eq!(cause(0, ""), "unknown");
        assert_eq!(cause(0, &"é".repeat(60)), "é".repeat(48));
    }

    fn some() -> Evidence {
        let tcp = || "tcp".to_owned();
        let mut evidence = Evidence::of_epoch(2);
        evidence.add_link(2, 0, LinkFact::attach_failed("shm", 13, "unused"));
        evidence.add_link(0, 1, LinkFact::ConnectFailed { transport: tcp(), errno: -1 });
        evidence.add_rank(3, RankFact::register_failed("rdma", 14, ""));
        evidence.add_rank(4, RankFact::register_failed("rdma", 0, "the driver says\nno"));
        let form = RegionForm::DmaBuf;
        evidence.add_rank(5, RankFact::Registered { transport: "rdma".to_owned(), form });
        evidence.add_rank(3, RankFact::Quarantined { transport: tcp() });
        evidence.add_rank(2, RankFact::native_failed(false, "ncclCommInitRank\nfailed"));
        evidence.add_rank(1, RankFact::speed(Tier::Tcp, "tcp", 25_500, 3_001));
        evidence
    }

    #[test]
    fn evidence_is_a_set_that_survives_the_passage() {
        let evidence = some();
        assert_eq!(Evidence::decode(&evidence.encode().unwrap()).unwrap(), evidence);
        let mut again = Evidence::default();
        again.merge(&some());
        again.merge(&some());
        assert_eq!(again.encode().unwrap(), evidence.encode().unwrap());
    }

    #[test]
    fn evidence_cut_or_lengthened_is_refused() {
        let bytes = some().encode().unwrap();
        for length in 0..bytes.len() {
            assert!(Evidence::decode(&bytes[..length]).is_err(), "cut at {length}");
        }
        assert!(Evidence::decode(&[bytes.as_slice(), &[0]].concat()).is_err());
    }

    #[test]
    fn nothing_is_reserved_for_a_count_that_the_bytes_do_not_hold() {
        let mut out = Writer::new();
        out.u8(FORMAT).u32(0).u32(u32::MAX);
        assert!(Evidence::decode(&out.finish()).is_err());
    }
}
