//! What becomes of memory that NICs know, or do not take.

use std::sync::atomic::Ordering;
use std::time::Duration;

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::comm::{Buffer, Communicator};
use iccl_runtime::plan::{RegionForm, Tier};

use iccl_tests::rail::cards::{Card, job};

use iccl_tests_fabric::{LEFT, MOST_BYTES};

const I32: DataType = DataType::I32;

fn sum_in_place(communicator: &Communicator, buffer: &Buffer) {
    let count = buffer.bytes() / 4;
    communicator
        .all_reduce(buffer, buffer, count, I32, RedOp::Sum, communicator.stream())
        .and_then(|handle| handle.wait())
        .unwrap_or_else(|error| panic!("{error}"));
}

fn direct_and_staged(communicator: &Communicator) -> (u64, u64) {
    let counts = communicator.counters().peer(1 - communicator.rank()).expect("a peer");
    (counts.bytes_sent_direct, counts.bytes_sent_staged)
}

/// A segment counts in a dma-buf from its beginning, wherever in the buffer the bytes are.
#[test]
fn dma_bufs_are_reached_from_any_place_in_them() {
    job(&[Card::DmaBuf, Card::DmaBuf]).run(|communicator| {
        let link = communicator.plan().link(0, 1).expect("a link");
        assert_eq!(link.chosen.tier, Tier::Direct);
        assert_eq!(link.chosen.dst_form, Some(RegionForm::DmaBuf));
        let memory = communicator.device().buffer_from(&vec![7_i32; 100_000]).expect("memory");
        for (at, bytes) in [(0, 4), (4, 4 * 5000), (8_404, 4 * 90_000)] {
            let part = memory.slice(at, bytes).expect("inside");
            part.write(0, &vec![communicator.rank() as i32 + 1; bytes as usize / 4])
                .expect("written");
            sum_in_place(communicator, &part);
            assert!(part.read::<i32>().expect("memory").iter().all(|one| *one == 3));
        }
        let after = memory.slice(8_404 + 4 * 90_000, 4).expect("inside");
        assert_eq!(after.read::<i32>().expect("memory"), [7]);
        let (direct, staged) = direct_and_staged(communicator);
        assert!(direct > 0 && staged == 0, "{direct} {staged}");
    });
    assert_eq!(LEFT.load(Ordering::SeqCst), 0);
}

/// What the NIC does not take goes through pinned memory, on the same link; what it takes does not.
#[test]
fn a_buffer_that_the_nic_does_not_take_is_staged_and_no_other() {
    job(&[Card::Alias, Card::Alias]).run(|communicator| {
        let count = MOST_BYTES as usize / 4 + 1;
        let rank = communicator.rank() as i32;
        let long = communicator.device().buffer_from(&vec![rank + 1; count]).expect("memory");
        sum_in_place(communicator, &long);
        assert!(long.read::<i32>().expect("memory").iter().all(|one| *one == 3));
        let (direct, staged) = direct_and_staged(communicator);
        assert!(direct == 0 && staged > 0, "{direct} {staged}");
        let short = communicator.device().buffer_from(&[rank + 1; 1000]).expect("memory");
        sum_in_place(communicator, &short);
        let after = direct_and_staged(communicator);
        assert!(after.0 > 0 && after.1 == staged, "{after:?}");
    });
    assert_eq!(LEFT.load(Ordering::SeqCst), 0);
}

/// Memory of which only an address is known may be freed without a word: no NIC is given it.
#[test]
fn a_bare_address_is_staged() {
    job(&[Card::Alias, Card::Alias]).run(|communicator| {
        let rank = communicator.rank() as i32;
        let memory = communicator.device().buffer_from(&[rank + 1; 1000]).expect("memory");
        let (address, stream) = (memory.address(), communicator.stream());
        // SAFETY: the buffer lives until the operation is over.
        unsafe { communicator.all_reduce_raw(address, address, 1000, I32, RedOp::Sum, stream) }
            .and_then(|handle| handle.wait())
            .unwrap_or_else(|error| panic!("{error}"));
        assert!(memory.read::<i32>().expect("memory").iter().all(|one| *one == 3));
        let (direct, staged) = direct_and_staged(communicator);
        assert!(direct == 0 && staged > 0, "{direct} {staged}");
    });
}

/// Whoever frees memory does not wait for operations of others, though one of them drives the engine.
#[test]
fn memory_is_freed_while_another_thread_drives_an_operation_that_waits() {
    job(&[Card::DmaBuf, Card::DmaBuf]).run(|communicator| {
        let device = communicator.device();
        let peer = 1 - communicator.rank();
        let owner = std::sync::Arc::new(device.buffer_from(&[5_i32; 1000]).expect("memory"));
        // SAFETY: the owner is kept as long as the buffer is.
        let lent = unsafe { device.register(owner.address(), 4000, owner.clone()) };
        sum_in_place(communicator, &lent);
        let word = device.buffer_from(&[7_i32]).expect("memory");
        let done = |handle: iccl_runtime::Result<iccl_runtime::comm::Handle>| {
            handle.and_then(|handle| handle.wait()).unwrap_or_else(|error| panic!("{error}"));
        };
        if communicator.rank() == 1 {
            // Answers only when the other has freed its memory.
            done(communicator.recv(&word, 1, I32, peer, communicator.stream()));
            return done(communicator.send(&word, 1, I32, peer, communicator.stream()));
        }
        let answer = device.allocate::<i32>(1).expect("memory");
        let waiting = communicator.recv(&answer, 1, I32, peer, communicator.stream());
        std::thread::scope(|scope| {
            scope.spawn(move || done(waiting));
            // Long enough for that thread to drive.
            std::thread::sleep(Duration::from_millis(50));
            drop(lent);
            assert_eq!(std::sync::Arc::strong_count(&owner), 1, "it was let go");
            let other = device.stream().expect("a stream");
            done(communicator.send(&word, 1, I32, peer, &other));
        });
        assert_eq!(answer.read::<i32>().expect("memory"), [7]);
    });
}

/// The memory of the application is held until no NIC knows it any more, and let go then.
#[test]
fn memory_of_the_application_is_let_go_when_no_nic_knows_it() {
    job(&[Card::Alias, Card::Alias]).run(|communicator| {
        let device = communicator.device();
        let owner = std::sync::Arc::new(device.buffer_from(&[5_i32; 1000]).expect("memory"));
        // SAFETY: the owner is kept as long as the buffer is.
        let lent = unsafe { device.register(owner.address(), 4000, owner.clone()) };
        sum_in_place(communicator, &lent);
        drop(lent);
        assert_eq!(std::sync::Arc::strong_count(&owner), 1);
    });
}
