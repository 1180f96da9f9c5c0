//! Communicators out of communicators, ranks as threads.

use iccl_plugin_api::DataType;
use iccl_runtime::ErrorKind;
use iccl_runtime::comm::{Communicator, Group};
use iccl_tests::ranks::{Job, layouts, must_be_right};

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
