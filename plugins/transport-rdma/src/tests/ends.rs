//! How channels end: in order, by a lost peer, by what one side does.

use iccl_plugin_api::tables::{MemoryRegion, completion_kind, region_form};

use super::*;
use crate::verbs::Fabric;

fn failed(ended: &[Completion], expected: Status) {
    let channel = ended.iter().find(|ended| ended.kind == completion_kind::CHANNEL_FAILED);
    let channel = channel.expect("the channel's failure");
    assert_eq!(status(channel), expected);
}

#[test]
fn what_is_not_expected_is_a_mismatch_before_a_byte_is_written() {
    for length in [4, 100_000] {
        let mut pair = Pair::new(&devices());
        let (source, mut target) = (vec![2; length], vec![1; length]);
        pair.a.receive(pair.on_a, 1, 4, &[into(&mut target)]);
        pair.b.send(pair.on_b, 2, 3, &[from(&source)]);
        pair.drive(|a, b| {
            a.ended.len() == 2
                && b.ended.iter().any(|ended| ended.kind == completion_kind::CHANNEL_FAILED)
        });
        assert!(target.iter().all(|&byte| byte == 1));
        let mismatch = pair.a.ended[0];
        assert_eq!((status(&mismatch), mismatch.token), (Status::Mismatch, 1));
        assert_eq!((mismatch.envelope, mismatch.length), ([3; ENVELOPE_BYTES], length as u64));
        failed(&pair.a.ended, Status::Mismatch);
        failed(&pair.b.ended, Status::PeerLost);
    }
}

#[test]
fn a_peer_that_goes_without_a_word_is_lost() {
    let Pair { mut a, mut b, on_a, on_b } = Pair::new(&devices());
    let mut target = vec![0; 10];
    a.receive(on_a, 1, 1, &[into(&mut target)]);
    b.domain.quiesce(on_b, LONG).unwrap();
    drive(&mut [&mut a], |ranks| ranks[0].ended.len() == 2);
    failed(&a.ended, Status::PeerLost);
    assert!(a.ended.iter().any(|ended| ended.token == 1 && status(ended) == Status::PeerLost));
    assert!(a.try_send(on_a, 1, 1, &[]).is_err());
}

#[test]
fn a_channel_closed_in_order_gives_all_that_was_sent_before() {
    let Pair { mut a, mut b, on_a, on_b } = Pair::new(&devices());
    let source = pattern(1, 100);
    for token in 0..5 {
        b.send(on_b, token, 1, &[from(&source)]);
    }
    drive(&mut [&mut b], |ranks| ranks[0].ended.len() == 5);
    b.domain.channel_close(on_b).unwrap();
    assert!(b.domain.channel_state(on_b).is_err());
    // The receives are posted late.
    for _ in 0..200 {
        a.progress();
        b.progress();
    }
    drop(b);
    let mut targets = vec![[0; 100]; 5];
    for (token, target) in (0..).zip(&mut targets) {
        a.receive(on_a, token, 1, &[into(target)]);
    }
    drive(&mut [&mut a], |ranks| ranks[0].ended.len() == 5);
    assert!(a.ended.iter().all(|ended| status(ended) == Status::Ok));
    assert!(targets.iter().all(|target| target[..] == source[..]));
    drive(&mut [&mut a], |ranks| ranks[0].domain.channel_state(on_a).is_err());
    let error = a.domain.channel_state(on_a).unwrap_err();
    assert_eq!(error.message, "rank 1, channel 5: the peer has closed it");
    assert_eq!(a.ended.len(), 5);
}

/// Of two channels one has parted, and the other still waits: the peers say farewell meanwhile, which must not be
/// heard into memory that was given back.
#[test]
fn a_farewell_that_comes_late_is_heard_in_memory_that_is_the_channels() {
    let mock = Mock::new(3);
    let library: Arc<dyn Library> = Arc::new(mock.clone());
    let mut ranks = [0, 1, 2].map(|rank| Rank::open(&library, rank, 9));
    let [a, b, c] = &mut ranks;
    let address = a.domain.address().unwrap();
    let opened = [
        (0, a.channel(1, false, 1, &[])),
        (1, b.channel(0, true, 1, &address)),
        (0, a.channel(2, false, 1, &[])),
        (2, c.channel(0, true, 1, &address)),
    ];
    drive(&mut [a, b, c], |ranks| opened.iter().all(|&(rank, on)| ranks[rank].is_open(on)));
    let [a, b, c] = ranks;
    mock.faults().carries = Some(1);
    let first = std::thread::spawn(|| drop(a));
    // One channel has parted once its last send was carried out; the other one never can.
    let deadline = Instant::now() + LONG;
    while mock.faults().carries != Some(0) {
        assert!(Instant::now() < deadline, "nothing more happens");
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_millis(50));
    let others = [std::thread::spawn(|| drop(b)), std::thread::spawn(|| drop(c))];
    first.join().unwrap();
    others.into_iter().for_each(|other| other.join().unwrap());
    assert_eq!(mock.registered_bytes(), 0);
}

#[test]
fn a_stopped_channel_gives_its_messages_back() {
    let mut pair = Pair::new(&devices());
    let (source, mut target) = (vec![7; 1 << 20], vec![0; 10]);
    pair.a.send(pair.on_a, 1, 1, &[from(&source)]);
    pair.a.receive(pair.on_a, 2, 2, &[into(&mut target)]);
    for _ in 0..20 {
        pair.a.progress();
    }
    pair.a.domain.quiesce(pair.on_a, LONG).unwrap();
    pair.drive(|a, b| a.ended.len() == 2 && !b.ended.is_empty());
    assert!(pair.a.ended.iter().all(|ended| status(ended) == Status::Aborted));
    failed(&pair.b.ended, Status::PeerLost);
    pair.a.domain.channel_close(pair.on_a).unwrap();
    // The place is used again, the handle is not.
    let again = pair.a.channel(2, false, 1, &[]);
    assert_ne!(again, pair.on_a);
}

/// Memory is given back only once no queue pair knows it, whether or not that could be stopped first.
#[test]
fn a_queue_pair_that_does_not_stop_is_destroyed_before_its_messages_come_back() {
    let mock = Mock::new(2);
    let library: Arc<dyn Library> = Arc::new(mock.clone());
    let mut pair = Pair::new(&library);
    let mut target = vec![0; 10];
    pair.a.receive(pair.on_a, 1, 1, &[into(&mut target)]);
    pair.a.progress();
    mock.faults().stop_errno = Some(libc::EIO);
    pair.a.domain.quiesce(pair.on_a, LONG).unwrap();
    pair.a.progress();
    assert_eq!((pair.a.ended.len(), status(&pair.a.ended[0])), (1, Status::Aborted));
    // The other one is the peer's.
    assert_eq!(mock.queue_pairs(), 1);
    assert_eq!(mock.registered_bytes(), u64::try_from(crate::flow::BLOCK_TOTAL).unwrap());
}

/// What a device may still write to is not given back, whatever ended its channel, until the queue pair has gone.
#[test]
fn a_queue_pair_that_does_not_go_keeps_its_messages() {
    for is_failure in [false, true] {
        let mock = Mock::new(2);
        let library: Arc<dyn Library> = Arc::new(mock.clone());
        let mut pair = Pair::new(&library);
        let mut target = vec![0; 10];
        pair.a.receive(pair.on_a, 1, 1, &[into(&mut target)]);
        pair.a.progress();
        if is_failure {
            pair.b.domain.quiesce(pair.on_b, LONG).unwrap();
            mock.faults().destroy_errno = Some(libc::EBUSY);
            drive(&mut [&mut pair.a], |ranks| ranks[0].domain.channel_state(pair.on_a).is_err());
        }
        mock.faults().destroy_errno = Some(libc::EBUSY);
        for _ in 0..2 {
            let error = pair.a.domain.quiesce(pair.on_a, LONG).unwrap_err();
            assert!(error.message.contains("ibv_destroy_qp"), "{error}");
            assert_eq!(error.vendor_code, i64::from(libc::EBUSY));
            (0..100).for_each(|_| pair.a.progress());
        }
        let kinds = |rank: &Rank| rank.ended.iter().map(|one| one.kind).collect::<Vec<_>>();
        let told = if is_failure { vec![completion_kind::CHANNEL_FAILED] } else { vec![] };
        assert_eq!(kinds(&pair.a), told);
        mock.faults().destroy_errno = None;
        pair.a.domain.quiesce(pair.on_a, LONG).unwrap();
        pair.a.progress();
        assert_eq!(kinds(&pair.a), [told, vec![completion_kind::RECEIVE]].concat());
    }
}

#[test]
fn other_keys_and_other_digests_are_refused() {
    let library = devices();
    let (mut a, mut b) = (Rank::open(&library, 0, 9), Rank::open(&library, 1, 8));
    let (_, on_b) = join(&mut a, &mut b);
    drive(&mut [&mut a, &mut b], |ranks| !ranks[1].ended.is_empty());
    failed(&b.ended, Status::Unauthenticated);
    assert!(b.domain.channel_state(on_b).is_err());

    let (mut a, mut b) = (Rank::open(&library, 0, 9), Rank::open(&library, 1, 9));
    let address = a.domain.address().unwrap();
    a.channel(1, false, 1, &[]);
    b.channel(0, true, 2, &address);
    drive(&mut [&mut a, &mut b], |ranks| ranks.iter().all(|rank| !rank.ended.is_empty()));
    failed(&a.ended, Status::Mismatch);
    failed(&b.ended, Status::Mismatch);
}

#[test]
fn a_network_that_carries_nothing_is_named_with_the_device() {
    let mock = Mock::new(2);
    let library: Arc<dyn Library> = Arc::new(mock.clone());
    let mut pair = Pair::new(&library);
    mock.faults().is_dark = true;
    let source = vec![7; 1 << 20];
    pair.b.send(pair.on_b, 2, 3, &[from(&source)]);
    // The announcement has no completion of its own; its failure has.
    pair.drive(|a, b| a.ended.len() == 1 && b.ended.len() == 2);
    let error = pair.b.domain.channel_state(pair.on_b).unwrap_err();
    assert!(error.message.starts_with("rank 0, channel 5, mock1: "), "{error}");
    assert!(error.message.contains("does not answer"), "{error}");
    assert_eq!(error.vendor_code, 12);
    failed(&pair.a.ended, Status::PeerLost);
}

#[test]
fn b083_a_device_that_cannot_be_used_is_left_out_and_named() {
    let mock = Mock::new(2);
    let library: Arc<dyn Library> = Arc::new(mock.clone());
    mock.faults().broken.push("mock0".to_owned());
    let rail = crate::device::open(&library, &RdmaSettings::from(&Settings::default()).unwrap());
    assert_eq!(rail.unwrap().device.name(), "mock1");
    mock.faults().broken.push("mock1".to_owned());
    let error = transport(&library, "").unwrap_err();
    assert_eq!(error.status, Status::NoDevice);
    for words in ["mock0: ibv_open_device", "mock1: ibv_open_device"] {
        assert!(error.message.contains(words), "{error}");
    }
    let error = transport(&library, "mock7").unwrap_err();
    assert!(error.message.contains("mock0: not in the setting devices"), "{error}");
    mock.faults().broken.clear();
    for (fabric, words) in [(Fabric::Iwarp, "they need rdma_cm"), (Fabric::Other, "neither")] {
        mock.faults().fabric = fabric;
        let error = transport(&library, "mock0").unwrap_err();
        assert!(error.message.contains(words), "{error}");
    }
}

#[test]
fn b087_a_device_on_which_nothing_can_be_registered_says_what_to_raise() {
    let mock = Mock::new(1);
    mock.faults().register_errno = Some(libc::ENOMEM);
    let library: Arc<dyn Library> = Arc::new(mock);
    let error = transport(&library, "").unwrap_err();
    assert_eq!(error.status, Status::NoDevice);
    assert!(error.message.contains("`ulimit -l`"), "{error}");
    let error = transport(&(Arc::new(Mock::new(0)) as Arc<dyn Library>), "").unwrap_err();
    assert!(error.message.starts_with("no RDMA device: none is there"), "{error}");
}

/// Memory by an address that only the NIC's driver may know is refused, by the kernel's own error if it has one.
#[test]
fn b082_device_memory_by_its_address_is_refused_for_the_kernels_reason() {
    let mock = Mock::new(1);
    let library: Arc<dyn Library> = Arc::new(mock.clone());
    let mut rank = Rank::open(&library, 0, 1);
    let before = mock.registered_bytes();
    let memory = vec![0_u8; 4096];
    let region = MemoryRegion {
        form: region_form::ADDRESS,
        descriptor: -1,
        address: memory.as_ptr() as u64,
        offset: 0,
        length: 4096,
        cookie: 0,
    };
    assert_eq!(rank.domain.register(&region).unwrap_err().status, Status::NotSupported);
    mock.faults().register_errno = Some(libc::EFAULT);
    let error = rank.domain.register(&region).unwrap_err();
    assert_eq!(error.vendor_code, i64::from(libc::EFAULT));
    assert_eq!(mock.registered_bytes(), before);
}
