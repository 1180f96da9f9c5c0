//! Communicators out of communicators, ranks as threads.

use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use iccl_plugin_api::DataType;
use iccl_runtime::comm::{Communicator, Group};
use iccl_runtime::{Error, ErrorKind, Result};
use iccl_tests::ranks::{Job, SOON, layouts, must_be_right, sum, wait_until};

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

/// What every member gives, in the order of the members' ranks.
fn gather(communicator: &Communicator, value: u32) -> Vec<u32> {
    let device = communicator.device();
    let send = device.buffer_from(&[value]).expect("a buffer");
    let receive = device.allocate::<u32>(communicator.ranks() as usize).expect("a buffer");
    communicator
        .all_gather(&send, &receive, 1, DataType::U32, communicator.stream())
        .and_then(|handle| handle.wait())
        .unwrap_or_else(|error| panic!("rank {}: {error}", communicator.rank()));
    receive.read().expect("numbers")
}

// --- Who is with whom --------------------------------------------------------------------------

#[test]
fn split_follows_color_then_key_then_rank() {
    // Color and key of each rank; the oracle below sorts by itself.
    let cases: [&[(Option<u32>, i32)]; 6] = [
        &[(Some(7), 0), (Some(7), 0), (Some(7), 0), (Some(7), 0)],
        &[(Some(0), 0), (Some(1), 0), (Some(0), 0), (Some(1), 0), (Some(0), 0)],
        &[(Some(0), 3), (Some(0), -1), (Some(0), 3), (Some(0), i32::MIN), (Some(0), i32::MAX)],
        &[(None, 0), (Some(u32::MAX), 5), (None, 9), (Some(u32::MAX), 4)],
        &[(None, 0), (None, 1), (None, 2)],
        &[(Some(3), 0), (Some(2), 0), (Some(1), 0), (None, 0)],
    ];
    for (index, case) in cases.into_iter().enumerate() {
        for (layout, job) in layouts(case.len() as u32) {
            job.run(|world| {
                let own = world.rank();
                let (color, key) = case[own as usize];
                let child = world.split(color, key).unwrap_or_else(|error| panic!("{error}"));
                let Some(color) = color else {
                    assert!(child.is_none(), "{layout}, case {index}: rank {own}");
                    return must_be_right(world);
                };
                let mut expected: Vec<(i32, u32)> = Vec::new();
                for (rank, (theirs, key)) in (0..).zip(case) {
                    if *theirs == Some(color) {
                        let at = expected.iter().take_while(|(k, _)| k <= key).count();
                        expected.insert(at, (*key, rank));
                    }
                }
                expected.sort_by_key(|(key, _)| *key);
                let expected: Vec<u32> = expected.into_iter().map(|(_, rank)| rank).collect();
                let child = child.expect("a communicator");
                assert_eq!(child.parent_ranks(), expected, "{layout}, case {index}: rank {own}");
                assert_eq!(child.ranks() as usize, expected.len());
                assert_eq!(child.parent_ranks()[child.rank() as usize], own);
                assert_eq!(gather(&child, own), expected, "{layout}, case {index}: rank {own}");
                must_be_right(world);
            });
        }
    }
}

#[test]
fn a_duplicate_has_the_same_ranks_and_its_own_numbers() {
    for (layout, job) in layouts(3) {
        job.run(|world| {
            // An uneven past.
            must_be_right(world);
            let copy = world.duplicate().unwrap_or_else(|error| panic!("{layout}: {error}"));
            assert_eq!((copy.rank(), copy.ranks()), (world.rank(), world.ranks()));
            assert_eq!(copy.parent_ranks(), [0, 1, 2]);
            for _ in 0..3 {
                must_be_right(&copy);
                must_be_right(world);
            }
        });
    }
}

#[test]
fn a_job_of_one_can_be_divided_too() {
    Job::new(1).run(|world| {
        let copy = world.duplicate().expect("a copy");
        let part = copy.split(Some(4), 1).expect("a split").expect("a part");
        let rest = part.shrink(&[]).expect("all that is left");
        assert!(rest.split(None, 0).expect("a split").is_none());
        must_be_right(&rest);
        assert!(world.parent_ranks().is_empty());
    });
}

/// Of a communicator out of a communicator out of a communicator.
#[test]
fn children_have_children() {
    for (layout, job) in layouts(6) {
        job.run(|world| {
            let own = world.rank();
            // 0 2 4 and 5 3 1.
            let key = if own % 2 == 0 { own as i32 } else { -(own as i32) };
            let half = world.split(Some(own % 2), key).expect("a split").expect("a half");
            let copy = half.duplicate().expect("a copy");
            let pair = copy.split((copy.rank() > 0).then_some(0), 0).expect("a split");
            let half_ranks: &[u32] = if own % 2 == 0 { &[0, 2, 4] } else { &[5, 3, 1] };
            assert_eq!(half.parent_ranks(), half_ranks, "{layout}");
            assert_eq!(gather(&copy, own), half_ranks, "{layout}");
            assert_eq!(pair.is_none(), copy.rank() == 0, "{layout}");
            if let Some(pair) = pair {
                assert_eq!(pair.parent_ranks(), [1, 2], "{layout}");
                assert_eq!(gather(&pair, own), half_ranks[1..], "{layout}");
                let rest = pair.shrink(&[1 - pair.rank()]).expect("one alone");
                assert_eq!((rest.rank(), rest.ranks()), (0, 1));
            }
            must_be_right(&half);
            must_be_right(world);
        });
    }
}

/// A tree that is deeper than one level, and members that are not where they were in it.
#[test]
fn many_ranks_are_divided_and_shrunk() {
    Job::new(19).run(|world| {
        let own = world.rank();
        let third = world.split(Some(own % 3), -(own as i32)).expect("a split").expect("a third");
        let mut expected: Vec<u32> = (0..19).filter(|rank| rank % 3 == own % 3).collect();
        expected.reverse();
        assert_eq!(gather(&third, own), expected);
        let excluded = [18, 1, 2, 0, 6];
        if !excluded.contains(&own) {
            let rest = world.shrink(&excluded).expect("the others");
            let expected: Vec<u32> = (0..19).filter(|rank| !excluded.contains(rank)).collect();
            assert_eq!(gather(&rest, own), expected);
        }
        must_be_right(world);
    });
}

#[test]
fn b028_peers_are_numbered_by_their_communicator() {
    let job = Job::new(4).on_hosts(&["a", "b", "a", "b"]);
    job.run(|world| {
        let own = world.rank();
        let part = world.split(Some(own % 2), 0).expect("a split").expect("a part");
        let device = world.device();
        // In the part and in the whole, from the higher rank to the lower: its rank in the whole.
        for (communicator, from, to) in [(&part, 1, 0), (world, 2 + own % 2, own % 2)] {
            if communicator.rank() == from {
                let mine = device.buffer_from(&[own]).expect("a buffer");
                let sent = communicator.send(&mine, 1, DataType::U32, to, communicator.stream());
                sent.and_then(|handle| handle.wait()).expect("sent");
            } else if communicator.rank() == to {
                let theirs = device.allocate::<u32>(1).expect("a buffer");
                let stream = communicator.stream();
                let received = communicator.recv(&theirs, 1, DataType::U32, from, stream);
                received.and_then(|handle| handle.wait()).expect("received");
                assert_eq!(theirs.read::<u32>().expect("a rank"), [own + 2]);
            }
        }
    });
}

/// Ranks of two hosts in turns, and parts that lie across them.
#[test]
fn b029_b041_the_new_plan_sees_hosts_as_they_are() {
    let hosts = ["a", "b", "a", "b", "b"];
    let job = Job::new(5).on_hosts(&hosts);
    job.run(|world| {
        let part = world.split(Some(world.rank() / 3), 0).expect("a split").expect("a part");
        must_be_right(&part);
        for peer in (0..part.ranks()).filter(|peer| *peer != part.rank()) {
            let host = |rank: u32| hosts[part.parent_ranks()[rank as usize] as usize];
            let tier = part.plan().link(part.rank(), peer).expect("a link").chosen.tier;
            let expected = if host(part.rank()) == host(peer) { "shm" } else { "tcp" };
            assert_eq!(tier.name(), expected, "{} to {peer}", part.rank());
        }
    });
}

#[test]
fn settings_are_inherited() {
    let job = Job::new(3)
        .with("engine.op_timeout", "1500ms")
        .with("plan.rule", r#"[{ forbid = "shm", between = ["*", "*"] }]"#)
        .with("algorithm.all_reduce", "ring");
    job.run(|world| {
        let copy = world.duplicate().expect("a copy");
        assert_ne!(format!("{copy:?}"), format!("{world:?}"), "it has an id of its own");
        let tier = copy.plan().link(0, 1).expect("a link").chosen.tier;
        assert_eq!(tier.name(), "tcp");
        let choice = copy.explain(
            iccl_plugin_api::Collective::AllReduce,
            DataType::F32,
            iccl_plugin_api::RedOp::Sum,
            5,
        );
        assert_eq!(choice.expect("an algorithm").algorithm.name(), "ring");
        if copy.rank() != 1 {
            let error = sum(&copy, 1, 1).expect_err("rank 1 does not come");
            assert_eq!((error.kind(), error.rank()), (ErrorKind::Timeout, Some(1)), "{error}");
        }
    });
}

#[test]
fn inside_a_group_nothing_is_made() {
    Job::new(2).run(|world| {
        let group = Group::start();
        let refused = [
            world.split(Some(0), 0).map(drop),
            world.duplicate().map(drop),
            world.shrink(&[]).map(drop),
        ];
        for error in refused.map(|outcome| outcome.expect_err("no communicator")) {
            assert_eq!(error.kind(), ErrorKind::InvalidUsage, "{error}");
        }
        group.end().expect("nothing was asked for");
        must_be_right(&world.duplicate().expect("a copy"));
    });
}

// --- Independence ------------------------------------------------------------------------------

#[test]
fn b048_parent_and_children_progress_in_any_order() {
    let rounds = if cfg!(debug_assertions) { 100 } else { 500 };
    Job::new(2).run(|world| {
        let (a, b) = (world.duplicate().expect("a"), world.duplicate().expect("b"));
        let many = |communicator: &Communicator| {
            for _ in 0..rounds {
                must_be_right(communicator);
            }
        };
        if world.rank() == 0 {
            std::thread::scope(|scope| {
                scope.spawn(|| many(&a));
                scope.spawn(|| many(&b));
                many(world);
            });
        } else {
            many(&b);
            many(world);
            many(&a);
        }
    });
}

#[test]
fn b049_two_threads_may_duplicate_at_once() {
    Job::new(2).run(|world| {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..10 {
                        must_be_right(&world.duplicate().unwrap_or_else(|error| panic!("{error}")));
                    }
                });
            }
        });
    });
}

#[test]
fn b052_parent_and_children_are_destroyed_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let job = Job::new(3);
        let id = job.unique_id();
        job.each(|rank| {
            let world = job.runtime(rank)?.communicator(&id, rank, 3)?;
            let copy = world.duplicate()?;
            let part = world.split(Some(0), -(rank as i32))?;
            let mut all = [Some(world), Some(copy), part];
            // Each rank in an order of its own.
            for step in 0..3 {
                let which = order[(step + rank as usize) % 3];
                let started = Instant::now();
                drop(all[which].take());
                assert!(started.elapsed() < SOON, "{order:?}: rank {rank}, {which}");
            }
            Ok::<_, Error>(())
        })
        .into_iter()
        .for_each(|outcome| outcome.unwrap_or_else(|error| panic!("{order:?}: {error}")));
    }
}

#[test]
fn a_failure_ends_the_communicators_that_the_rank_is_in_and_no_others() {
    let together = Barrier::new(4);
    Job::new(4).run(|world| {
        let own = world.rank();
        let pair = world.split(Some(own / 2), 0).expect("a split").expect("a pair");
        let copy = world.duplicate().expect("a copy");
        if own == 3 {
            pair.abort();
        }
        if own / 2 == 1 {
            let error = sum(&pair, 1, 1).expect_err("the pair has ended");
            assert_eq!(
                (error.kind(), error.rank().map(|r| pair.parent_ranks()[r as usize])),
                (ErrorKind::Aborted, Some(3)),
                "{error}"
            );
        } else {
            must_be_right(&pair);
        }
        must_be_right(&copy);
        must_be_right(world);
        together.wait();
        // And the other way round: the children outlive their parent.
        if own == 0 {
            world.abort();
        }
        let error = sum(world, 1, 1).expect_err("it has ended");
        assert_eq!((error.kind(), error.rank()), (ErrorKind::Aborted, Some(0)));
        must_be_right(&copy);
        if own / 2 == 0 {
            must_be_right(&pair);
        }
        let error = world.duplicate().expect_err("it has ended");
        assert_eq!(error.kind(), ErrorKind::Aborted);
        assert!(error.to_string().contains("shrink the communicator"), "{error}");
    });
}

// --- Disagreement ------------------------------------------------------------------------------

#[test]
fn b016_split_and_something_else_are_a_mismatch_that_names_both() {
    type Action = fn(&Communicator) -> Result<()>;
    let split: Action = |world| world.split(Some(0), 0).map(drop);
    let duplicate: Action = |world| world.duplicate().map(drop);
    let all_reduce: Action = |world| sum(world, 1, 4).map(drop);
    // As many bytes as the exchange of a split.
    let all_gather: Action = |world| {
        let device = world.device();
        let (send, receive) = (device.allocate::<i64>(2)?, device.allocate::<i64>(6)?);
        world.all_gather(&send, &receive, 2, DataType::I64, world.stream())?.wait()
    };
    for (others, odd, words) in [
        (split, all_reduce, ["split seq 1", "all_reduce seq 1"]),
        (split, duplicate, ["split seq 1", "duplicate seq 1"]),
        (duplicate, all_gather, ["duplicate seq 1", "all_gather seq 1"]),
        (all_gather, split, ["split seq 1", "all_gather seq 1"]),
    ] {
        for (layout, job) in layouts(3) {
            let together = Barrier::new(3);
            job.run(|world| {
                must_be_right(world);
                together.wait();
                let action = if world.rank() == 1 { odd } else { others };
                let error = action(world).expect_err("ranks disagree");
                assert_eq!(error.kind(), ErrorKind::Mismatch, "{layout}: {error}");
                let text = error.to_string();
                assert!(words.iter().all(|word| text.contains(word)), "{layout}: {text}");
            });
        }
    }
}

#[test]
fn b099_a_rank_that_does_not_split_is_named_in_time() {
    // Operations may take long, making a communicator may not.
    let job =
        Job::new(3).with("engine.op_timeout", "10min").with("bootstrap.init_timeout", "1500ms");
    job.run(|world| {
        if world.rank() == 1 {
            wait_until("the others give up", || world.async_error().is_some());
        } else {
            let error = world.split(Some(0), 0).expect_err("rank 1 does not come");
            assert_eq!((error.kind(), error.rank()), (ErrorKind::Timeout, Some(1)), "{error}");
            assert!(error.to_string().contains("split seq 0"), "{error}");
        }
    });
}

// --- Shrink ------------------------------------------------------------------------------------

/// Ends a communicator on all ranks.
fn end(world: &Communicator) {
    if world.rank() == 0 {
        world.abort();
    }
    wait_until("it has ended", || world.async_error().is_some());
}

#[test]
fn shrink_takes_ranks_out_of_a_communicator_that_works() {
    for (layout, job) in layouts(4) {
        for excluded in [&[1_u32][..], &[3, 0], &[0, 1, 2], &[]] {
            job.run(|world| {
                let own = world.rank();
                if !excluded.contains(&own) {
                    let rest = world.shrink(excluded).unwrap_or_else(|error| panic!("{error}"));
                    let expected: Vec<u32> =
                        (0..4).filter(|rank| !excluded.contains(rank)).collect();
                    assert_eq!(rest.parent_ranks(), expected, "{layout}");
                    assert_eq!(gather(&rest, own), expected, "{layout}");
                    must_be_right(&rest);
                }
                must_be_right(world);
            });
        }
    }
}

#[test]
fn shrink_works_when_the_communicator_has_ended() {
    for (layout, job) in layouts(4) {
        let together = Barrier::new(3);
        job.run(|world| {
            end(world);
            if world.rank() == 2 {
                return;
            }
            let rest = world.shrink(&[2, 2]).unwrap_or_else(|error| panic!("{layout}: {error}"));
            must_be_right(&rest);
            together.wait();
            end(&rest);
            if rest.rank() == 0 {
                return;
            }
            let rest = rest.shrink(&[0]).unwrap_or_else(|error| panic!("{layout}: {error}"));
            assert_eq!(rest.parent_ranks(), [1, 2]);
            must_be_right(&rest);
        });
    }
}

#[test]
fn lists_that_differ_are_told_and_can_be_mended() {
    // Rank 0 is where the others meet, and is not in every list.
    for (lists, kind) in [
        ([&[3_u32][..], &[3, 2], &[3]], ErrorKind::Mismatch),
        ([&[3], &[3], &[]], ErrorKind::Mismatch),
    ] {
        let together = Barrier::new(3);
        Job::new(4).run(|world| {
            end(world);
            let own = world.rank() as usize;
            if own == 3 {
                return;
            }
            let error = world.shrink(lists[own]).expect_err("lists differ");
            assert_eq!(error.kind(), kind, "{error}");
            let named = |list: &[u32]| {
                let mut list = list.to_vec();
                list.sort_unstable();
                error.to_string().contains(&format!("shrink without {list:?}"))
            };
            assert!(named(lists[0]) && (named(lists[1]) || named(lists[2])), "{error}");
            assert!(error.hint().is_some_and(|hint| hint.contains("lost_ranks")), "{error}");
            // What any of them has left out, all know.
            let expected: Vec<u32> = (2..4).filter(|rank| lists[1].contains(rank)).collect();
            let expected: Vec<u32> =
                expected.into_iter().filter(|rank| *rank as usize != own).collect();
            assert_eq!(world.lost_ranks(), expected, "rank {own}");
            // Whoever is late for an attempt would join the next.
            together.wait();
            let rest = world.shrink(&[3]).unwrap_or_else(|error| panic!("rank {own}: {error}"));
            must_be_right(&rest);
        });
    }
}

/// Again and again, so that whoever is first meets what is left of the last attempt.
#[test]
fn attempts_that_fail_leave_nothing_that_disturbs_the_next() {
    let together = Barrier::new(3);
    Job::new(3).run(|world| {
        end(world);
        for round in 0..10_u32 {
            let odd = 1 + round % 2;
            let other = 3 - odd;
            let list = if world.rank() == odd { vec![other] } else { vec![] };
            let error = world.shrink(&list).expect_err("lists differ");
            assert_eq!(error.kind(), ErrorKind::Mismatch, "round {round}: {error}");
            // Whoever is late for an attempt would join the next.
            together.wait();
        }
        must_be_right(&world.shrink(&[]).expect("all of them"));
    });
}

#[test]
fn a_rank_that_others_leave_out_hears_so_and_disturbs_nobody() {
    let has_heard = Barrier::new(2);
    Job::new(3).run(|world| {
        end(world);
        if world.rank() == 2 {
            let error = world.shrink(&[1]).expect_err("it has no part in it");
            assert_eq!((error.kind(), error.rank()), (ErrorKind::Mismatch, Some(2)), "{error}");
            let text = error.to_string();
            assert!(text.contains("rank 0 calls shrink without [2]"), "{text}");
        }
        if world.rank() != 0 {
            has_heard.wait();
        }
        if world.rank() != 2 {
            must_be_right(&world.shrink(&[2]).unwrap_or_else(|error| panic!("{error}")));
        }
    });
}

#[test]
fn a_rank_that_does_not_come_to_shrink_is_named_in_time() {
    // The one where the others meet, and another.
    for absent in [0_u32, 2] {
        let job = Job::new(4).with("bootstrap.init_timeout", "2s");
        let done = Barrier::new(4);
        job.run(|world| {
            end(world);
            let own = world.rank();
            if own != absent && own != 3 {
                let started = Instant::now();
                let error = world.shrink(&[3]).expect_err("one does not come");
                let kinds = [ErrorKind::Rendezvous, ErrorKind::Timeout];
                assert!(kinds.contains(&error.kind()), "{error}");
                assert_eq!(error.rank(), Some(absent), "{error}");
                assert!(error.to_string().contains("shrink without [3]"), "{error}");
                assert!(error.hint().is_some_and(|hint| hint.contains("same call")), "{error}");
                let named = [format!("rank {absent} "), format!("ranks [{absent}]")];
                assert!(named.iter().any(|name| error.message().contains(name)), "{error}");
                assert!(started.elapsed() < SOON);
                assert!(world.lost_ranks().is_empty(), "it may come yet");
            }
            done.wait();
        });
    }
}

#[test]
fn a_rank_that_has_left_is_named_at_once() {
    for absent in [0_u32, 2] {
        let job = Job::new(3).with("bootstrap.init_timeout", "10min");
        let id = job.unique_id();
        let left = Barrier::new(3);
        job.each(|rank| {
            let world = job.runtime(rank)?.communicator(&id, rank, 3)?;
            end(&world);
            if rank == absent {
                drop(world);
                left.wait();
                return Ok(());
            }
            left.wait();
            let error = world.shrink(&[]).expect_err("one has left");
            assert_eq!(
                (error.kind(), error.rank()),
                (ErrorKind::PeerLost, Some(absent)),
                "{error}"
            );
            assert_eq!(world.lost_ranks(), [absent]);
            let rest = world.shrink(&world.lost_ranks())?;
            must_be_right(&rest);
            Ok::<_, Error>(())
        })
        .into_iter()
        .for_each(|outcome| outcome.unwrap_or_else(|error| panic!("{absent}: {error}")));
    }
}

#[test]
fn impossible_lists_are_refused() {
    Job::new(2).run(|world| {
        let invalid = |list: &[u32]| {
            let error = world.shrink(list).expect_err("an impossible list");
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
            error.to_string()
        };
        assert!(invalid(&[2]).contains("no rank 2 among 2"));
        assert!(invalid(&[world.rank()]).contains("itself"));
        must_be_right(world);
        world.finalize().expect("a good end");
        assert!(invalid(&[1 - world.rank()]).contains("finalized"));
    });
}

#[test]
fn b051_an_attempt_can_be_aborted() {
    let job = Job::new(3).with("bootstrap.init_timeout", "10min");
    let rest = Mutex::new(Vec::new());
    let done = Barrier::new(3);
    job.run(|world| {
        end(world);
        match world.rank() {
            // The others wait for it.
            2 => {}
            own => {
                let error = std::thread::scope(|scope| {
                    let attempt = scope.spawn(|| world.shrink(&[]));
                    if own == 1 {
                        std::thread::sleep(Duration::from_millis(200));
                        world.abort();
                    }
                    attempt.join().expect("no panic").expect_err("it was given up")
                });
                assert_eq!(
                    (error.kind(), own, error.rank().unwrap_or(1)),
                    (ErrorKind::Aborted, own, 1),
                    "{error}"
                );
                rest.lock().expect("a list").push(own);
            }
        }
        done.wait();
        if world.rank() == 2 {
            // It is late for that attempt, and hears how it ended.
            let error = world.shrink(&[]).expect_err("it was given up");
            assert_eq!((error.kind(), error.rank()), (ErrorKind::Aborted, Some(1)), "{error}");
        }
        done.wait();
        // Nothing is broken by it.
        must_be_right(&world.shrink(&[]).unwrap_or_else(|error| panic!("{error}")));
    });
    assert_eq!(rest.lock().expect("a list").len(), 2);
}
