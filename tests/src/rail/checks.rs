//! What holds over any transport with NICs. Tests run these over one that has a NIC in name only; the
//! program `iccl-test-rail`, in a virtual machine, over the real one.

use super::cards::{Card, job};
use crate::ranks::must_be_right;
use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::comm::{Buffer, Communicator, Group};
use iccl_runtime::plan::{Access, LinkDecision, RegionForm, Tier};

/// A check, by its name.
pub type Check = (&'static str, fn());

/// Every check.
pub const ALL: &[Check] = &[
    ("every_collective_over_staged", every_collective_over_staged),
    (
        "every_collective_over_direct_with_no_staged_byte",
        every_collective_over_direct_with_no_staged_byte,
    ),
    ("tiers_side_by_side_in_one_communicator", tiers_side_by_side_in_one_communicator),
    (
        "one_card_that_cannot_be_registered_degrades_its_own_links",
        one_card_that_cannot_be_registered_degrades_its_own_links,
    ),
    (
        "memory_that_comes_again_at_its_address_is_registered_anew",
        memory_that_comes_again_at_its_address_is_registered_anew,
    ),
];

const I32: DataType = DataType::I32;
/// Some chunks, and no whole number of anything.
const COUNT: usize = 50_001;

fn link(communicator: &Communicator, peer: u32) -> LinkDecision {
    communicator.plan().link(communicator.rank(), peer).expect("a link")
}

fn better(link: &LinkDecision) -> Vec<String> {
    link.refused_better().iter().map(ToString::to_string).collect()
}

/// Every collective, each checked on every element.
fn every_collective(communicator: &Communicator) {
    let device = communicator.device();
    let (rank, ranks) = (communicator.rank() as i32, communicator.ranks() as i32);
    let stream = communicator.stream();
    let value = |rank: i32, at: usize| rank * 1_000_003 + at as i32 % 1009;
    let own = |count: usize| -> Vec<i32> { (0..count).map(|at| value(rank, at)).collect() };
    let memory = |elements: &[i32]| device.buffer_from(elements).expect("memory");
    let all = ranks as usize;
    let count = COUNT as u64;
    let sum = |at: usize| (0..ranks).map(|rank| value(rank, at)).sum::<i32>();
    let done = |handle: iccl_runtime::Result<iccl_runtime::comm::Handle>| {
        handle.and_then(|handle| handle.wait()).unwrap_or_else(|error| panic!("{error}"));
    };
    let read = |buffer: &Buffer| buffer.read::<i32>().expect("memory");

    let (send, receive) = (memory(&own(COUNT)), memory(&vec![-1; COUNT]));
    done(communicator.all_reduce(&send, &receive, count, I32, RedOp::Sum, stream));
    assert!(read(&receive).iter().enumerate().all(|(at, found)| *found == sum(at)), "all-reduce");

    done(communicator.all_reduce(&send, &send, count, I32, RedOp::Sum, stream));
    assert!(read(&send).iter().enumerate().all(|(at, found)| *found == sum(at)), "in place");

    for root in [0, ranks - 1] {
        let buffer = memory(&own(COUNT));
        let given = (rank == root).then_some(&buffer);
        done(communicator.broadcast(given, &buffer, count, I32, root as u32, stream));
        let right = |(at, found): (usize, &i32)| *found == value(root, at);
        assert!(read(&buffer).iter().enumerate().all(right), "broadcast");

        let (send, receive) = (memory(&own(COUNT)), memory(&vec![-1; COUNT]));
        done(communicator.reduce(
            &send,
            Some(&receive),
            count,
            I32,
            RedOp::Sum,
            root as u32,
            stream,
        ));
        let expected = |at| if rank == root { sum(at) } else { -1 };
        assert!(read(&receive).iter().enumerate().all(|(at, found)| *found == expected(at)));

        let gathered = memory(&vec![-1; COUNT * all]);
        done(communicator.gather(&send, Some(&gathered), count, I32, root as u32, stream));
        let expected = |at: usize| {
            if rank == root { value((at / COUNT) as i32, at % COUNT) } else { -1 }
        };
        assert!(read(&gathered).iter().enumerate().all(|(at, found)| *found == expected(at)));

        let scattered = memory(&vec![-1; COUNT]);
        let whole = memory(&own(COUNT * all));
        done(communicator.scatter(Some(&whole), &scattered, count, I32, root as u32, stream));
        let expected = |at: usize| value(root, at + COUNT * rank as usize);
        assert!(read(&scattered).iter().enumerate().all(|(at, found)| *found == expected(at)));
    }

    let (send, gathered) = (memory(&own(COUNT)), memory(&vec![-1; COUNT * all]));
    done(communicator.all_gather(&send, &gathered, count, I32, stream));
    let expected = |at: usize| value((at / COUNT) as i32, at % COUNT);
    assert!(read(&gathered).iter().enumerate().all(|(at, found)| *found == expected(at)));

    let (whole, part) = (memory(&own(COUNT * all)), memory(&vec![-1; COUNT]));
    done(communicator.reduce_scatter(&whole, &part, count, I32, RedOp::Sum, stream));
    let expected = |at: usize| sum(at + COUNT * rank as usize);
    assert!(read(&part).iter().enumerate().all(|(at, found)| *found == expected(at)));

    let received = memory(&vec![-1; COUNT * all]);
    done(communicator.all_to_all(&whole, &received, count, I32, stream));
    let expected = |at: usize| value((at / COUNT) as i32, at % COUNT + COUNT * rank as usize);
    assert!(read(&received).iter().enumerate().all(|(at, found)| *found == expected(at)));

    let (next, last) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let (send, receive) = (memory(&own(COUNT)), memory(&vec![-1; COUNT]));
    let group = Group::start();
    let sent = communicator.send(&send, count, I32, next as u32, stream);
    let received = communicator.recv(&receive, count, I32, last as u32, stream);
    group.end().unwrap_or_else(|error| panic!("{error}"));
    done(sent);
    done(received);
    let right = |(at, found): (usize, &i32)| *found == value(last, at);
    assert!(read(&receive).iter().enumerate().all(right), "send and receive");
}

/// What went to and from a peer by the NIC alone, and through pinned memory.
fn direct_and_staged(communicator: &Communicator, peer: u32) -> (u64, u64) {
    let counts = communicator.counters().peer(peer).expect("a peer");
    (
        counts.bytes_sent_direct + counts.bytes_received_direct,
        counts.bytes_sent_staged + counts.bytes_received_staged,
    )
}

/// Cards whose memory no NIC takes: everything goes through pinned memory, and over RDMA.
pub fn every_collective_over_staged() {
    job(&[Card::None, Card::None, Card::Address]).run(|communicator| {
        for peer in (0..3).filter(|peer| *peer != communicator.rank()) {
            let link = link(communicator, peer);
            assert_eq!(link.chosen.tier, Tier::Staged, "{:?}", better(&link));
            assert_eq!((link.chosen.src, link.chosen.dst), (Access::Staged, Access::Staged));
        }
        every_collective(communicator);
        for peer in (0..3).filter(|peer| *peer != communicator.rank()) {
            let (direct, staged) = direct_and_staged(communicator, peer);
            assert!(direct == 0 && staged > 0, "{direct} {staged}");
        }
    });
}

/// Cards whose memory every NIC takes: nothing of a message goes through pinned memory.
pub fn every_collective_over_direct_with_no_staged_byte() {
    job(&[Card::Alias, Card::Alias, Card::Alias]).run(|communicator| {
        for peer in (0..3).filter(|peer| *peer != communicator.rank()) {
            let link = link(communicator, peer);
            assert_eq!(link.chosen.tier, Tier::Direct, "{:?}", better(&link));
            assert_eq!(link.chosen.src_form, Some(RegionForm::HostAlias));
        }
        every_collective(communicator);
        for peer in (0..3).filter(|peer| *peer != communicator.rank()) {
            let (direct, staged) = direct_and_staged(communicator, peer);
            assert!(direct > 0 && staged == 0, "{direct} {staged}");
        }
    });
}

/// Direct, staged, mixed and TCP links at once, each with its own bytes.
pub fn tiers_side_by_side_in_one_communicator() {
    use Card::{Address, Alias, Host};
    let job = job(&[Alias, Alias, Address, Host, Alias]).with_on(4, "transport.enabled", "shm,tcp");
    job.run(|communicator| {
        let rank = communicator.rank();
        every_collective(communicator);
        for peer in (0..5).filter(|peer| *peer != rank) {
            let link = link(communicator, peer);
            let tier = link.chosen.tier;
            let (direct, staged) = direct_and_staged(communicator, peer);
            let lacks_nic = rank == 4 || peer == 4;
            let is_lame = rank == 2 || peer == 2;
            let expected = match (lacks_nic, is_lame) {
                (true, _) => Tier::Tcp,
                (false, true) => Tier::Staged,
                (false, false) => Tier::Direct,
            };
            assert_eq!(tier, expected, "{rank}-{peer}: {:?}", better(&link));
            // This rank's side decides which way its own bytes go.
            match link.chosen.src {
                _ if rank == 3 => assert_eq!((direct, staged), (0, 0)),
                Access::Direct => assert!(direct > 0 && staged == 0, "{rank}-{peer}: {staged}"),
                Access::Staged => assert!(direct == 0 && staged > 0, "{rank}-{peer}: {direct}"),
            }
        }
    });
}

/// One card of three cannot be registered: its two links are staged on its side, the third stays direct.
pub fn one_card_that_cannot_be_registered_degrades_its_own_links() {
    job(&[Card::Alias, Card::Address, Card::Alias]).run(|communicator| {
        must_be_right(communicator);
        let plan = communicator.plan();
        let way = |src, dst| plan.link(src, dst).expect("a link");
        for (src, dst, side) in [(0, 1, "dst"), (1, 2, "src")] {
            let link = way(src, dst);
            assert_eq!(link.chosen.tier, Tier::Staged);
            let reason = format!("direct over rdma: register-failed({side}, EFAULT)");
            assert!(better(&link).contains(&reason), "{:?}", better(&link));
        }
        assert_eq!(way(0, 2).chosen.tier, Tier::Direct);
        let text = plan.warnings().join("\n");
        assert_eq!(text, "rdma: registering device memory failed (EFAULT) on rank 1");
    });
}

/// Memory that is freed and given again is registered anew, not found under its old address.
pub fn memory_that_comes_again_at_its_address_is_registered_anew() {
    job(&[Card::Alias, Card::Alias]).run(|communicator| {
        let device = communicator.device();
        let stream = communicator.stream();
        for round in 0..4 {
            let mine = vec![communicator.rank() as i32 + 10 * round; COUNT];
            let buffer = device.buffer_from(&mine).expect("memory");
            communicator
                .all_reduce(&buffer, &buffer, COUNT as u64, I32, RedOp::Sum, stream)
                .and_then(|handle| handle.wait())
                .unwrap_or_else(|error| panic!("{error}"));
            let found = buffer.read::<i32>().expect("memory");
            assert!(found.iter().all(|one| *one == 1 + 20 * round), "round {round}");
        }
        let (direct, staged) = direct_and_staged(communicator, 1 - communicator.rank());
        assert!(direct > 0 && staged == 0, "{direct} {staged}");
    });
}
