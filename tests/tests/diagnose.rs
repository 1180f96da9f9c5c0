//! The flight recorder and `iccl diagnose`: a rank that does not come is found in what all ranks wrote.

use iccl_plugin_api::{DataType, RedOp};
use iccl_runtime::ErrorKind;
use iccl_runtime::observe::{FlightRecord, FlightState};
use iccl_tests::cluster::iccl;
use iccl_tests::command::run_to_end;
use iccl_tests::ranks::{Job, must_be_right};

// Linked in, so that no folder is needed.
use iccl_plugin_host as _;
use iccl_plugin_transport_shm as _;
use iccl_plugin_transport_tcp as _;

const RANKS: u32 = 3;
const ABSENT: u32 = 1;

/// What a rank wrote.
fn record(folder: &std::path::Path, rank: u32) -> FlightRecord {
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .expect("a folder")
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.to_string_lossy().ends_with(&format!("-rank-{rank}.json")))
        .collect();
    assert_eq!(found.len(), 1, "rank {rank}: {found:?}");
    let text = std::fs::read(found.remove(0)).expect("a file");
    serde_json::from_slice(&text).expect("JSON")
}

#[test]
fn a_rank_that_does_not_come_is_named_by_what_all_ranks_wrote() {
    let scratch = tempfile::tempdir().expect("a folder");
    let folder = scratch.path().join("flights");
    let text = folder.to_str().expect("text");
    let job =
        Job::new(RANKS).with("observe.flight_recorder", text).with("engine.op_timeout", "1500ms");
    job.run(|communicator| {
        // More than are remembered.
        (0..300).for_each(|_| must_be_right(communicator));
        if communicator.rank() == ABSENT {
            // Until the others have told.
            iccl_tests::ranks::wait_until("the end of the communicator", || {
                communicator.async_error().is_some()
            });
            return;
        }
        let device = communicator.device();
        let send = device.buffer_from(&[1.0_f32; 24]).expect("a buffer");
        let receive = device.allocate::<f32>(24).expect("a buffer");
        let stream = communicator.stream();
        let late = communicator
            .all_reduce(&send, &receive, 24, DataType::F32, RedOp::Max, stream)
            .and_then(|handle| handle.wait())
            .expect_err("one has not come");
        assert_eq!(late.kind(), ErrorKind::Timeout, "{late}");
    });
    let came = record(&folder, 0);
    assert_eq!((came.rank, came.ranks, came.operations.len()), (0, RANKS, 256));
    let last = came.operations.last().expect("an operation");
    assert_eq!((last.sequence, last.state, last.count), (300, FlightState::Running, 24));
    assert_eq!((last.collective.as_str(), last.op.as_str()), ("all_reduce", "max"));
    assert_eq!((last.send_bytes, last.recv_bytes), (96, 96));
    assert!(last.started_us >= Some(last.called_us) && last.ended_us.is_none(), "{last:?}");
    assert_eq!(last.links.iter().map(|link| link.peer).collect::<Vec<_>>(), [1, 2], "{last:?}");
    assert!(last.waits_for.as_ref().is_some_and(|text| text.contains("rank 1")), "{last:?}");
    let before = &came.operations[254];
    assert_eq!((before.sequence, before.state), (299, FlightState::Done));
    assert!(before.ended_us >= before.started_us, "{before:?}");
    assert_eq!(record(&folder, ABSENT).operations.last().map(|one| one.sequence), Some(299));

    let ran = run_to_end(&mut iccl(&["diagnose", text]));
    assert_eq!(ran.code(), Some(1), "{}", ran.all());
    let told = "first difference: all_reduce seq 300 (f32 × 24, max), by rank 1";
    assert!(ran.out.contains(told), "{}", ran.out);
    assert!(ran.out.contains("rank 1 has not called it; its last is"), "{}", ran.out);
    let answer = run_to_end(&mut iccl(&["diagnose", text, "--json"])).json();
    let first = &answer["communicators"][0]["first_difference"];
    assert_eq!((&first["sequence"], &first["culprits"]), (&300.into(), &serde_json::json!([1])));

    // The file of a rank that was killed is not there; what is broken is told.
    let (mut lost, mut broken) = (None, None);
    for entry in std::fs::read_dir(&folder).expect("a folder").filter_map(Result::ok) {
        let path = entry.path();
        let name = path.to_string_lossy().into_owned();
        if name.ends_with("-rank-1.json") {
            lost = Some(path);
        } else if name.ends_with("-rank-2.json") {
            broken = Some(path);
        }
    }
    std::fs::remove_file(lost.expect("a file")).expect("removed");
    std::fs::write(broken.expect("a file"), "{").expect("written");
    let ran = run_to_end(&mut iccl(&["diagnose", text]));
    assert!(ran.out.contains("no file of ranks 1-2"), "{}", ran.out);
    assert!(ran.out.contains("not read: ") && ran.out.contains("waits for"), "{}", ran.out);
    let ran = run_to_end(&mut iccl(&["diagnose", scratch.path().to_str().expect("text")]));
    assert_eq!(ran.code(), Some(1), "{}", ran.all());
    assert!(ran.err.contains("no file of a flight recorder"), "{}", ran.err);
}

/// What is enqueued far ahead does not push out what it waits for.
#[test]
fn what_many_calls_wait_for_is_named() {
    const AHEAD: usize = 600;
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().to_str().expect("text");
    let job = Job::new(2).with("observe.flight_recorder", text).with("engine.op_timeout", "1s");
    job.run(|communicator| {
        must_be_right(communicator);
        if communicator.rank() == ABSENT {
            iccl_tests::ranks::wait_until("the end of the communicator", || {
                communicator.async_error().is_some()
            });
            return;
        }
        let (device, stream) = (communicator.device(), communicator.stream());
        let send = device.buffer_from(&[1_i32; 2]).expect("a buffer");
        let receive = device.allocate::<i32>(2).expect("a buffer");
        let call = |_| {
            communicator
                .all_reduce(&send, &receive, 2, DataType::I32, RedOp::Sum, stream)
                .expect("one")
        };
        let handles: Vec<_> = (0..AHEAD).map(call).collect();
        handles[0].wait().expect_err("one has not come");
    });
    let came = record(folder.path(), 0);
    assert_eq!((came.operations.len(), came.later), (256, 1 + AHEAD as u64 - 256));
    let ran = run_to_end(&mut iccl(&["diagnose", text]));
    assert!(
        ran.out.contains("first difference: all_reduce seq 1 (i32 × 2, sum), by rank 1"),
        "{}",
        ran.out
    );
}

#[test]
fn nothing_is_written_where_the_application_ends_the_communicator() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().to_str().expect("text");
    // None ends it while the other still waits for a result.
    let done = std::sync::Barrier::new(2);
    Job::new(2).with("observe.flight_recorder", text).run(|communicator| {
        must_be_right(communicator);
        done.wait();
        communicator.abort();
    });
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
}
