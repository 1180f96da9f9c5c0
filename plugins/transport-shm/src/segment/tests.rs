use std::os::fd::AsFd;

use super::*;

#[test]
fn b093_too_little_memory_is_an_error_that_says_how_much_is_missing() {
    let ring_bytes = 1 << 46;
    let error = Segment::create(ring_bytes).unwrap_err();
    assert_eq!(error.status, Status::OutOfResources);
    let needed = Segment::total_bytes(ring_bytes).to_string();
    assert!(error.message.contains(&needed), "{error}");
    assert!(error.message.contains("available"), "{error}");
}

#[test]
fn all_memory_is_claimed_before_it_is_used_and_its_size_is_fixed() {
    let (_segment, file) = Segment::create(4096).unwrap();
    let stat = rustix::fs::fstat(&file).unwrap();
    assert_eq!(stat.st_size as u64, Segment::total_bytes(4096));
    assert!(stat.st_blocks as u64 * 512 >= Segment::total_bytes(4096));
    for bytes in [0, Segment::total_bytes(4096) + 1] {
        assert_eq!(rustix::fs::ftruncate(&file, bytes), Err(Errno::PERM));
    }
    assert_eq!(
        rustix::fs::fcntl_add_seals(&file, SealFlags::WRITE),
        Err(Errno::PERM),
        "a peer must not be able to take writing away"
    );
}

#[test]
fn a_file_that_could_kill_its_user_is_refused() {
    let total = Segment::total_bytes(4096);
    let file = |bytes: u64, claim: bool, seals: SealFlags| {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("iccl-test", flags).unwrap();
        rustix::fs::ftruncate(&file, bytes).unwrap();
        if claim {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes).unwrap();
        }
        rustix::fs::fcntl_add_seals(&file, seals).unwrap();
        file
    };
    assert!(Segment::attach(file(total, true, SEALS).as_fd(), 4096).is_ok());
    let refused = |file: OwnedFd, ring_bytes: u64, why: &str| {
        let error = Segment::attach(file.as_fd(), ring_bytes).unwrap_err();
        assert_eq!(error.status, Status::TransportError);
        assert!(error.message.contains(why), "{error}");
    };
    refused(file(total, true, SealFlags::SEAL), 4096, "not sealed");
    refused(file(total, true, SealFlags::GROW | SealFlags::SEAL), 4096, "not sealed");
    refused(file(total - 4096, true, SEALS), 4096, "instead of");
    refused(file(total, false, SEALS), 4096, "not all of it");
    refused(file(total, true, SEALS), 5000, "rings of 5000");
    refused(file(total, true, SEALS), 1 << 40, "rings of");
    refused(file(total, true, SEALS), 0, "rings of 0");
    let pipe = rustix::pipe::pipe().unwrap().0;
    refused(pipe, 4096, "not an anonymous file");
}

#[test]
fn the_two_sides_see_each_others_ring() {
    let (created, file) = Segment::create(4096).unwrap();
    let attached = Segment::attach(file.as_fd(), 4096).unwrap();
    let (mut to_acceptor, mut from_acceptor) = attached.split(true);
    let (mut to_dialer, mut from_dialer) = created.split(false);
    to_acceptor.push(b"there").unwrap();
    to_acceptor.publish();
    to_dialer.push(b"back!").unwrap();
    to_dialer.publish();
    let mut bytes = [0; 5];
    assert!(from_dialer.peek(&mut bytes).unwrap());
    assert_eq!(&bytes, b"there");
    assert!(from_acceptor.peek(&mut bytes).unwrap());
    assert_eq!(&bytes, b"back!");
    to_acceptor.close(3);
    assert_eq!((from_dialer.closed(), from_acceptor.closed()), (3, 0));
}
