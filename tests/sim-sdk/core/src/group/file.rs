//! The file in which a group meets, and its layout.
//!
//! A header, a record for each rank, a channel for each ordered pair of ranks, and the channels' slots.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::FlockOperation;
use rustix::thread::futex;

use crate::peer::{FileAddress, View, anonymous_file};

const MAGIC: u64 = 0x6963_636c_2d73_696d;
const PAGE_BYTES: usize = 4096;
const RECORD_BYTES: usize = 1024;
const CHANNEL_BYTES: usize = 128;
/// What a rank tells all others in one go, without streams.
pub(crate) const NOTE_BYTES: usize = 256;
/// What all slots of a group take together at most, and each at least and at most.
const SLOTS_BYTES: usize = 64 << 20;
const SMALLEST_SLOT_BYTES: usize = 4 << 10;
const LARGEST_SLOT_BYTES: usize = 256 << 10;
/// Each channel has two, so that one is filled while the other is emptied.
pub(crate) const SLOTS: u64 = 2;
pub(crate) const SLOT_HEAD_BYTES: usize = 64;
/// How often whoever waits looks whether it still should.
const LOOK_UP: Duration = Duration::from_millis(20);

/// Where a group meets. Whoever made it keeps the file until all have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invitation(FileAddress);

/// The files that this process made for groups in which not everyone has come.
static OPEN_FILES: Mutex<Vec<(Invitation, OwnedFd)>> = Mutex::new(Vec::new());

impl Invitation {
    /// Its length in bytes.
    pub const BYTES: usize = FileAddress::BYTES;

    /// For a new group.
    pub fn new() -> std::io::Result<Self> {
        let file = anonymous_file("sim-group", PAGE_BYTES as u64)?;
        let invitation = Self(FileAddress::of(&file)?);
        OPEN_FILES.lock().unwrap_or_else(PoisonError::into_inner).push((invitation, file));
        Ok(invitation)
    }

    /// As bytes.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        self.0.to_bytes()
    }

    /// From bytes.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(FileAddress::from_bytes(bytes))
    }

    /// All have come: nobody needs the file by its name any more. Each rank says so, and the descriptor may be
    /// that of another group's file by the time that the second does.
    fn close(self) {
        let mut files = OPEN_FILES.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|(open, _)| *open != self);
    }
}

/// Why a rank can't join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JoinError {
    /// The file is gone, with the process that made it.
    NoFile,
    /// Others say that the group has another size, or the rank is there already.
    Disagreement,
    /// Whoever asked gave up.
    Stopped,
}

/// A rank's view of its group.
pub(crate) struct GroupFile {
    file: OwnedFd,
    view: View,
    pub(crate) ranks: usize,
    pub(crate) rank: usize,
    pub(crate) slot_bytes: usize,
}

impl GroupFile {
    /// Joins, and waits for all others.
    pub(crate) fn join(
        invitation: Invitation,
        ranks: usize,
        rank: usize,
        stop: &dyn Fn() -> bool,
    ) -> Result<Self, JoinError> {
        let file = invitation.0.open().map_err(|_| JoinError::NoFile)?;
        let slot_bytes = (SLOTS_BYTES / (ranks * ranks * SLOTS as usize))
            .clamp(SMALLEST_SLOT_BYTES, LARGEST_SLOT_BYTES)
            .next_multiple_of(64);
        let heads = PAGE_BYTES + ranks * RECORD_BYTES + ranks * ranks * CHANNEL_BYTES;
        let slots = ranks * ranks * SLOTS as usize * (SLOT_HEAD_BYTES + slot_bytes);
        let bytes = (heads + slots).next_multiple_of(PAGE_BYTES);
        let failed = |_| JoinError::NoFile;
        rustix::fs::flock(&file, FlockOperation::LockExclusive).map_err(failed)?;
        let length = rustix::fs::fstat(&file).map_err(failed)?.st_size as usize;
        if length != PAGE_BYTES && length != bytes {
            let _ = rustix::fs::flock(&file, FlockOperation::Unlock);
            return Err(JoinError::Disagreement);
        }
        rustix::fs::ftruncate(&file, bytes as u64).map_err(failed)?;
        let view = View::new(file.as_fd(), bytes).map_err(|_| JoinError::NoFile)?;
        let group = Self { file, view, ranks, rank, slot_bytes };
        group.header(0).store(MAGIC, Ordering::SeqCst);
        let is_new = group.state(rank).swap(PRESENT, Ordering::SeqCst) == 0;
        let _ = rustix::fs::flock(&group.file, FlockOperation::Unlock);
        if !is_new {
            return Err(JoinError::Disagreement);
        }
        group.hold_place();
        group.header(1).fetch_add(1, Ordering::SeqCst);
        for other in 0..ranks {
            group.ring(other);
        }
        group.wait_until(stop, || group.header(1).load(Ordering::SeqCst) >= ranks as u64)?;
        invitation.close();
        Ok(group)
    }

    /// Waits until something holds; whoever changes it rings this rank.
    fn wait_until(
        &self,
        stop: &dyn Fn() -> bool,
        holds: impl Fn() -> bool,
    ) -> Result<(), JoinError> {
        loop {
            let heard = self.listen();
            if holds() {
                return Ok(());
            }
            if stop() {
                return Err(JoinError::Stopped);
            }
            self.sleep(heard);
        }
    }

    /// Gives all members a note and gets theirs. The others are not asked, and may be gone. All members
    /// call this in the same order; no stream is involved.
    pub(crate) fn share(
        &self,
        members: &[usize],
        note: &[u8],
        stop: &dyn Fn() -> bool,
    ) -> Result<Vec<Vec<u8>>, JoinError> {
        assert!(note.len() <= NOTE_BYTES, "a note is short");
        let turn = self.turn(self.rank).load(Ordering::SeqCst) + 1;
        // Whoever writes turn t has read all of turn t - 1, so all have: two places are enough.
        let place = |rank: usize| self.record(rank, 64 + (turn as usize % 2) * NOTE_BYTES);
        // SAFETY: this rank's own note, which no one reads before the counter says so.
        unsafe { place(self.rank).copy_from_nonoverlapping(note.as_ptr(), note.len()) };
        self.turn(self.rank).store(turn, Ordering::SeqCst);
        members.iter().for_each(|&other| self.ring(other));
        self.wait_until(stop, || {
            members.iter().all(|&other| self.turn(other).load(Ordering::SeqCst) >= turn)
        })?;
        let read = members.iter().map(|&other| {
            // SAFETY: that rank has written its note, and writes no other there before this one has
            // gone on to the next turn.
            unsafe { std::slice::from_raw_parts(place(other), note.len()) }.to_vec()
        });
        Ok(read.collect())
    }

    /// This rank uses the group no more.
    pub(crate) fn leave(&self) {
        self.state(self.rank).store(LEFT, Ordering::SeqCst);
        (0..self.ranks).for_each(|other| self.ring(other));
    }

    /// Waits for all others to do so too.
    pub(crate) fn wait_until_all_left(&self) {
        let has_left = |rank| self.state(rank).load(Ordering::SeqCst) == LEFT;
        // Nothing stops it, so there is no other outcome.
        let _ = self.wait_until(&|| false, || (0..self.ranks).all(has_left));
    }

    /// Whether a rank's process ended without leaving.
    pub(crate) fn is_dead(&self, rank: usize) -> bool {
        if rank == self.rank || self.state(rank).load(Ordering::SeqCst) != PRESENT {
            return false;
        }
        let mut lock = place_of(rank);
        // SAFETY: asks for the state of a lock in an open file.
        let asked = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) };
        asked == 0 && i32::from(lock.l_type) == libc::F_UNLCK
    }

    /// A lock that ends with the process, however it ends.
    fn hold_place(&self) {
        let lock = place_of(self.rank);
        // SAFETY: sets a lock in an open file; no other rank wants it.
        let set = unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) };
        assert_eq!(set, 0, "the lock of rank {} is held by another", self.rank);
    }

    // Bells.

    /// What this rank has heard so far; to be asked before it looks for news.
    pub(crate) fn listen(&self) -> u32 {
        self.bell(self.rank).load(Ordering::SeqCst)
    }

    /// Sleeps until something was rung since.
    pub(crate) fn sleep(&self, heard: u32) {
        let timeout = futex::Timespec { tv_sec: 0, tv_nsec: LOOK_UP.as_nanos() as i64 };
        let bell = self.bell(self.rank);
        let _ = futex::wait(bell, futex::Flags::empty(), heard, Some(&timeout));
    }

    /// Tells a rank that there is news.
    pub(crate) fn ring(&self, rank: usize) {
        let bell = self.bell(rank);
        bell.fetch_add(1, Ordering::SeqCst);
        let _ = futex::wake(bell, futex::Flags::empty(), u32::MAX >> 1);
    }

    // Layout.

    fn at(&self, offset: usize) -> *mut u8 {
        // SAFETY: all offsets below lie in the file, by how its length was computed.
        unsafe { self.view.address().add(offset) }
    }

    fn record(&self, rank: usize, offset: usize) -> *mut u8 {
        self.at(PAGE_BYTES + rank * RECORD_BYTES + offset)
    }

    fn header(&self, index: usize) -> &AtomicU64 {
        // SAFETY: an aligned word of the header, used as nothing else.
        unsafe { AtomicU64::from_ptr(self.at(index * 8).cast()) }
    }

    fn state(&self, rank: usize) -> &AtomicU32 {
        // SAFETY: an aligned word of the record, used as nothing else.
        unsafe { AtomicU32::from_ptr(self.record(rank, 0).cast()) }
    }

    fn bell(&self, rank: usize) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.record(rank, 4).cast()) }
    }

    fn turn(&self, rank: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.record(rank, 8).cast()) }
    }

    fn channel(&self, from: usize, to: usize, offset: usize) -> *mut u8 {
        let heads = PAGE_BYTES + self.ranks * RECORD_BYTES;
        self.at(heads + (from * self.ranks + to) * CHANNEL_BYTES + offset)
    }

    /// How many slots of a channel were ever filled.
    pub(crate) fn filled(&self, from: usize, to: usize) -> &AtomicU64 {
        // SAFETY: an aligned word of the channel, used as nothing else.
        unsafe { AtomicU64::from_ptr(self.channel(from, to, 0).cast()) }
    }

    /// How many were ever emptied.
    pub(crate) fn emptied(&self, from: usize, to: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.channel(from, to, 64).cast()) }
    }

    /// The slot that is the `number`th to be filled; its head, then its bytes.
    pub(crate) fn slot(&self, from: usize, to: usize, number: u64) -> *mut u8 {
        let heads =
            PAGE_BYTES + self.ranks * RECORD_BYTES + self.ranks * self.ranks * CHANNEL_BYTES;
        let index = (from * self.ranks + to) * SLOTS as usize + (number % SLOTS) as usize;
        self.at(heads + index * (SLOT_HEAD_BYTES + self.slot_bytes))
    }
}

const PRESENT: u32 = 1;
const LEFT: u32 = 2;

/// One byte of the file for each rank.
fn place_of(rank: usize) -> libc::flock {
    // SAFETY: the structure is plain numbers.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = rank as i64;
    lock.l_len = 1;
    lock
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The second rank of a group says so when the file's descriptor is already another group's.
    #[test]
    fn a_group_that_has_met_does_not_close_the_file_of_the_next() {
        let next = Invitation::new().expect("a file");
        let before = Invitation(FileAddress { inode: next.0.inode + 1, ..next.0 });
        before.close();
        next.0.open().expect("it is still there");
        next.close();
        assert!(next.0.open().is_err(), "nobody needs it any more");
    }
}
