//! Mutants: known faults, put into a copy of the code one at a time. A test suite that does not turn
//! red has a hole.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::run::{Failure, workspace};

/// One fault: `find` becomes `replace` in `file`, and `tests` must turn red.
struct Mutant {
    name: &'static str,
    file: &'static str,
    find: &'static str,
    replace: &'static str,
    /// Arguments of `cargo test`.
    tests: &'static [&'static str],
}

const ENGINE: &[&str] = &["-p", "iccl-runtime", "--lib", "engine::"];
const GROUPS: &[&str] = &["-p", "iccl-tests", "--test", "comm_groups"];
const BOOTSTRAP: &[&str] = &["-p", "iccl-runtime", "--lib", "bootstrap::"];
const INTERLEAVINGS: &[&str] = &["-p", "iccl-runtime", "--test", "interleavings"];
const SCHEDULE: &[&str] = &["-p", "iccl-runtime", "--test", "schedule_matrix"];
const VENDOR_SUPPORT: &[&str] = &["-p", "iccl-vendor-support", "--lib", "plan::"];
const ASCEND: &[&str] = &["-p", "iccl-tests", "--test", "plugin_ascend"];
const KUNLUN: &[&str] = &["-p", "iccl-tests", "--test", "plugin_kunlun"];

const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "avg-is-sum-in-the-engine",
        file: "iccl-runtime/src/engine/arithmetic.rs",
        find: "Finish::DivideByRanks(ranks) => KernelFinish::DivideByRanks(ranks),",
        replace: "Finish::DivideByRanks(_) => KernelFinish::None,",
        tests: ENGINE,
    },
    Mutant {
        name: "avg-is-sum-in-the-kernels",
        file: "iccl-kernels/src/lib.rs",
        find: "(RedOp::Sum, Finish::DivideByRanks(ranks)) => Ok((RedOp::Avg, ranks)),",
        replace: "(RedOp::Sum, Finish::DivideByRanks(ranks)) => Ok((RedOp::Sum, ranks)),",
        tests: &["-p", "iccl-kernels"],
    },
    Mutant {
        name: "avg-is-sum-in-the-schedule",
        file: "iccl-runtime/src/schedule/builder.rs",
        find: "RedOp::Avg if all => Finish::DivideByRanks(self.request.ranks),",
        replace: "RedOp::Avg if all => Finish::None,",
        tests: SCHEDULE,
    },
    Mutant {
        name: "sent-without-its-scalar",
        file: "iccl-runtime/src/schedule/premultiply.rs",
        find: "if let StepKind::Send { source, .. } | StepKind::Copy { source, .. }",
        replace: "if let StepKind::Copy { source, .. }",
        tests: SCHEDULE,
    },
    Mutant {
        name: "overwritten-before-multiplied",
        file: "iccl-runtime/src/schedule/premultiply.rs",
        find: "(offset + origins.recv).saturating_sub",
        replace: "(offset + origins.recv + (1 << 40)).saturating_sub",
        tests: SCHEDULE,
    },
    Mutant {
        name: "overflow-of-8-bits-hidden",
        file: "iccl-kernels/src/convert.rs",
        find: "magnitude > 464.0_f32.to_bits() {
        u32::from(E4M3_NAN)",
        replace: "magnitude > F32_INFINITY {
        u32::from(E4M3_NAN)
    } else if magnitude > 464.0_f32.to_bits() {
        0x7E | sign",
        tests: &["-p", "iccl-kernels"],
    },
    Mutant {
        name: "last-chunk-dropped",
        file: "iccl-runtime/src/schedule/all_reduce/owner.rs",
        find: "for stage in 0..stages {",
        replace: "for stage in 0..stages.saturating_sub(1) {",
        tests: SCHEDULE,
    },
    Mutant {
        name: "slices-swapped",
        file: "iccl-runtime/src/schedule/all_reduce/owner.rs",
        find: "builder.send(peer, builder.slice(Buffer::Send, cut), cut);",
        replace: "let cut = chunk_of(rank, stage).unwrap_or(cut);
                builder.send(peer, builder.slice(Buffer::Send, cut), cut);",
        tests: SCHEDULE,
    },
    Mutant {
        name: "contributions-out-of-rank-order",
        file: "iccl-runtime/src/schedule/all_reduce/owner.rs",
        find: "builder.reduce((0..ranks).map(",
        replace: "builder.reduce((0..ranks).rev().map(",
        tests: SCHEDULE,
    },
    Mutant {
        name: "gate-skipped",
        file: "iccl-runtime/src/schedule/builder.rs",
        find: "        while distance < ranks {",
        replace: "        while distance < ranks.min(2) {",
        tests: SCHEDULE,
    },
    Mutant {
        name: "wait-skipped-by-the-engine",
        file: "iccl-runtime/src/engine/state.rs",
        find: "if *waiting_for == 0 {",
        replace: "if *waiting_for == 1 || program.dependency_counts[*successor as usize] == 1 {",
        tests: ENGINE,
    },
    Mutant {
        name: "native-calls-out-of-turn",
        file: "iccl-runtime/src/engine/turn.rs",
        find: "has_come: schedule.turn_round.is_none(),",
        replace: "has_come: true,",
        tests: &["-p", "iccl-tests", "--test", "native_order"],
    },
    Mutant {
        name: "turn-taken-before-it-is-agreed",
        file: "iccl-runtime/src/engine/turns.rs",
        find: "one.communicator == self.communicator && one.is_agreed",
        replace: "one.communicator == self.communicator || one.is_agreed",
        tests: ENGINE,
    },
    Mutant {
        name: "staged-copy-not-awaited",
        file: "iccl-runtime/src/engine/device.rs",
        find: "Ok(progress == Progress::Done)",
        replace: "Ok(progress == Progress::Done || true)",
        tests: ENGINE,
    },
    Mutant {
        name: "staged-block-back-too-early",
        file: "iccl-runtime/src/engine/staging/messages.rs",
        find: "staging.to_card.then(After::Received { serial: run.serial, step })?;",
        replace: "staging.to_card.then(After::Received { serial: run.serial, step })?;
            drop(run.end_message(step));",
        tests: ENGINE,
    },
    Mutant {
        name: "staged-message-before-its-turn",
        file: "iccl-runtime/src/engine/staging/messages.rs",
        find: "if let Some(message) = run.staged.messages.get_mut(&step) {",
        replace: "for message in run.staged.messages.values_mut() {",
        tests: ENGINE,
    },
    Mutant {
        name: "staged-kept-though-not-all-of-it",
        file: "iccl-runtime/src/engine/staging/forwards.rs",
        find: "(writers.next().is_none() && written == sent && in_host_memory)",
        replace: "in_host_memory",
        tests: ENGINE,
    },
    Mutant {
        name: "staged-without-a-right",
        file: "iccl-runtime/src/engine/staging/messages.rs",
        find: "let by_right = !stage.right_is_used;",
        replace: "let by_right = false;",
        tests: ENGINE,
    },
    Mutant {
        name: "staged-memory-freed-under-a-card",
        file: "iccl-runtime/src/engine/staging/mod.rs",
        find: "let at_rest = self.staging.as_mut().is_none_or(|staging| staging.rest(timeout));",
        replace: "let at_rest = timeout > Duration::ZERO;",
        tests: ENGINE,
    },
    Mutant {
        name: "nic-writes-that-are-not-flushed",
        file: "iccl-runtime/src/engine/staging/messages.rs",
        find: "return staging.card().flush(address, destination.bytes).map(|()| true);",
        replace: "return Ok(true);",
        tests: ENGINE,
    },
    Mutant {
        name: "nic-without-the-key-of-pinned-memory",
        file: "iccl-runtime/src/engine/regions.rs",
        find: "known.as_ref().map_or(0, |pinned| pinned.key)",
        replace: "known.as_ref().map_or(0, |_| 0)",
        tests: ENGINE,
    },
    Mutant {
        name: "nic-knows-memory-that-is-freed",
        file: "iccl-runtime/src/engine/regions.rs",
        find: "extract_if(|(_, origin), _| is_of(origin))",
        replace: "extract_if(|(_, origin), _| !is_of(origin) && is_of(origin))",
        tests: ENGINE,
    },
    Mutant {
        name: "nic-segment-by-the-address-on-the-card",
        file: "iccl-runtime/src/engine/regions.rs",
        find: "address: self.exported.address as usize + offset",
        replace: "address: self.begin + offset",
        tests: ENGINE,
    },
    Mutant {
        name: "staged-piece-stored-elsewhere",
        file: "iccl-runtime/src/engine/staging/work.rs",
        find: "let address = run.address(computation.destination).wrapping_add(piece.range.start as usize);",
        replace: "let address = run.address(computation.destination);",
        tests: ENGINE,
    },
    Mutant {
        name: "driver-sleeps-over-news",
        file: "iccl-runtime/src/engine/seat.rs",
        find: "(self.news() == seen && !stop()).then(sleep)",
        replace: "(!stop()).then(sleep)",
        tests: INTERLEAVINGS,
    },
    Mutant {
        name: "no-fence-as-the-seat-is-left",
        file: "iccl-runtime/src/engine/seat.rs",
        find: "        drop(state);
        fence(Ordering::SeqCst);",
        replace: "        drop(state);",
        tests: INTERLEAVINGS,
    },
    Mutant {
        name: "thread-not-woken-by-who-leaves",
        file: "iccl-runtime/src/engine/seat.rs",
        find: "        self.free(state);
        self.wake_thread();",
        replace: "        self.free(state);",
        tests: INTERLEAVINGS,
    },
    Mutant {
        name: "news-told-before-it-counts",
        file: "iccl-runtime/src/engine/seat.rs",
        find: "        self.news.fetch_add(1, Ordering::Release);
        self.wake_driver();
        self.wake_thread();",
        replace: "        self.wake_driver();
        self.wake_thread();
        self.news.fetch_add(1, Ordering::Release);",
        tests: INTERLEAVINGS,
    },
    Mutant {
        name: "bystander-looks-once",
        file: "iccl-runtime/src/engine/seat.rs",
        find: "if stops { None } else { self.try_take() };",
        replace: "None;",
        tests: INTERLEAVINGS,
    },
    Mutant {
        name: "bystander-told-while-it-looks",
        file: "iccl-runtime/src/engine/seat.rs",
        find: "            drop(lock(&self.bystanders));\n",
        replace: "",
        tests: INTERLEAVINGS,
    },
    Mutant {
        name: "failed-submission-is-everyones",
        file: "iccl-runtime/src/engine/inbox.rs",
        find: "Some(error) if self.take_back(number) => Err(error),",
        replace: "Some(error) if self.take_back(number) || true => Err(error),",
        tests: INTERLEAVINGS,
    },
    Mutant {
        name: "over-before-the-stream-goes-on",
        file: "iccl-runtime/src/engine/outcome.rs",
        find: "        last();
        self.state.store(state, Ordering::Release);",
        replace: "        self.state.store(state, Ordering::Release);
        last();",
        tests: INTERLEAVINGS,
    },
    Mutant {
        name: "ready-without-what-was-before",
        file: "iccl-runtime/src/engine/outcome.rs",
        find: "self.ready.store(true, Ordering::Release);",
        replace: "self.ready.store(true, Ordering::Relaxed);",
        tests: INTERLEAVINGS,
    },
    Mutant {
        name: "last-one-does-not-see-the-others",
        file: "iccl-runtime/src/comm/countdown.rs",
        find: "self.left.fetch_sub(1, Ordering::AcqRel)",
        replace: "self.left.fetch_sub(1, Ordering::Relaxed)",
        tests: INTERLEAVINGS,
    },
    Mutant {
        name: "two-come-at-once",
        file: "iccl-runtime/src/comm/countdown.rs",
        find: "self.left.fetch_sub(1, Ordering::AcqRel) == 1",
        replace: "{
            let left = self.left.load(Ordering::Acquire);
            self.left.store(left - 1, Ordering::Release);
            left == 1
        }",
        tests: INTERLEAVINGS,
    },
    Mutant {
        name: "split-passes-for-a-call",
        file: "iccl-runtime/src/engine/envelope.rs",
        find: "bytes[52] = fingerprint.purpose.code();",
        replace: "bytes[52] = 0;",
        tests: ENGINE,
    },
    Mutant {
        name: "silent-behind-a-silent-one",
        file: "iccl-runtime/src/engine/inquiry.rs",
        find: "self.blame(self.first_silent(at), ",
        replace: "self.blame(at, ",
        tests: ENGINE,
    },
    Mutant {
        name: "lists-not-compared",
        file: "iccl-runtime/src/bootstrap/roster.rs",
        find: "&& *call != new.call",
        replace: "&& call.is_empty()",
        tests: BOOTSTRAP,
    },
    Mutant {
        name: "told-twice",
        file: "iccl-runtime/src/bootstrap/roster.rs",
        find: "return if instance == check_in.instance || self.members.is_none() {",
        replace: "return if self.members.is_some() || self.members.is_none() {",
        tests: BOOTSTRAP,
    },
    Mutant {
        name: "stream-does-not-wait",
        file: "iccl-runtime/src/comm/enqueue.rs",
        find: "inner.word.pointer, self.end.number)",
        replace: "inner.word.pointer, 0)",
        tests: &["-p", "iccl-tests", "--test", "comm_calls"],
    },
    Mutant {
        name: "stream-goes-on-before-its-group",
        file: "iccl-runtime/src/comm/enqueue.rs",
        find: "if self.left.one_has_come() {",
        replace: "if self.left.one_has_come() || true {",
        tests: GROUPS,
    },
    Mutant {
        name: "one-of-two-streams-is-enough",
        file: "iccl-runtime/src/comm/enqueue.rs",
        find: "is_none_or(|to_come| to_come.one_has_come())",
        replace: "is_none_or(|to_come| to_come.one_has_come() || true)",
        tests: GROUPS,
    },
    Mutant {
        name: "refused-call-forgotten",
        file: "iccl-runtime/src/comm/group.rs",
        find: "open.refused.get_or_insert_with(|| error.clone().within(&which));",
        replace: "drop(which);",
        tests: GROUPS,
    },
    Mutant {
        name: "refused-group-takes-numbers",
        file: "iccl-runtime/src/comm/group.rs",
        find: "numbers[*whose].give_back(*collective, *root);",
        replace: "let _ = (whose, collective, root);",
        tests: &["-p", "iccl-tests", "--test", "comm_devices"],
    },
    Mutant {
        name: "envelope-not-compared-by-shm",
        file: "plugins/transport-shm/src/link.rs",
        find: "if envelope != front.envelope || length != front.length {",
        replace: "if length != front.length {",
        tests: &["-p", "iccl-plugin-transport-shm"],
    },
    Mutant {
        name: "dialer-not-authenticated",
        file: "iccl-wire/src/handshake.rs",
        find: "if !bool::from(proof.ct_eq(&self.expected_proof)) {",
        replace: "if !bool::from(proof.ct_eq(&self.expected_proof)) && proof.is_empty() {",
        tests: &["-p", "iccl-wire"],
    },
    Mutant {
        name: "handle-generation-not-compared",
        file: "iccl-capi/src/handles.rs",
        find: "let place = places.all.get(at).filter(|place| place.generation == generation);",
        replace: "let _ = generation;
        let place = places.all.get(at);",
        tests: &["-p", "iccl-capi"],
    },
    Mutant {
        name: "refusal-in-a-c-group-forgotten",
        file: "iccl-capi/src/groups.rs",
        find: "                refuse(function, failure);",
        replace: "let _ = (function, failure);",
        tests: &["-p", "iccl-tests", "--test", "c_library"],
    },
    Mutant {
        name: "plan-differs-on-one-rank",
        file: "iccl-runtime/src/comm/initialise.rs",
        find: "digest: plan.link_digest(rank, peer.rank)?,",
        replace: "digest: plan.link_digest(rank, peer.rank)? ^ u64::from(rank == 1),",
        tests: &["-p", "iccl-tests", "--test", "comm_collectives"],
    },
    Mutant {
        name: "broadcast-copies-half",
        file: "iccl-vendor-support/src/plan/planner.rs",
        find: "list.push(Primitive::Copy { from: send, to: receive, bytes });",
        replace: "list.push(Primitive::Copy { from: send, to: receive, bytes: bytes / 2 });",
        tests: VENDOR_SUPPORT,
    },
    Mutant {
        name: "reduced-into-anybodys-memory",
        file: "iccl-vendor-support/src/plan/planner.rs",
        find: "let receive = if is_root { self.call.receive } else { std::ptr::null_mut() };",
        replace: "let receive = if is_root { self.call.receive } else { self.call.receive };",
        tests: VENDOR_SUPPORT,
    },
    Mutant {
        name: "ascend-event-inverted",
        file: "plugins/ascend/src/device.rs",
        find: "let is_over = status == sys::EVENT_RECORDED_STATUS_COMPLETE;",
        replace: "let is_over = status != sys::EVENT_RECORDED_STATUS_COMPLETE;",
        tests: ASCEND,
    },
    Mutant {
        name: "ascend-root-and-count-swapped",
        file: "plugins/ascend/src/calls.rs",
        find: "(table.HcclBroadcast)(receive, count, dtype, root, handle, stream),",
        replace: "(table.HcclBroadcast)(receive, u64::from(root), dtype, count as u32, handle, stream),",
        tests: ASCEND,
    },
    Mutant {
        name: "kunlun-copies-as-cuda-does",
        file: "plugins/kunlun/src/native.rs",
        find: "Direction::HostToDevice => Some(sys::XPU_HOST_TO_DEVICE),",
        replace: "Direction::HostToDevice => Some(sys::XPU_DEVICE_TO_HOST),",
        tests: KUNLUN,
    },
    Mutant {
        name: "kunlun-copies-before-its-stream",
        file: "plugins/kunlun/src/native.rs",
        find: "(self.xpu.xpu_wait)(stream) })?;",
        replace: "(self.xpu.xpu_current_device)(&mut 0) })?;",
        tests: KUNLUN,
    },
    Mutant {
        name: "kunlun-ranks-before-rank",
        file: "plugins/kunlun/src/communicator.rs",
        find: "(&raw mut context, own_rank, number_of_ranks, id)",
        replace: "(&raw mut context, number_of_ranks, own_rank, id)",
        tests: KUNLUN,
    },
    Mutant {
        name: "kunlun-counts-used-again",
        file: "plugins/kunlun/src/scratch.rs",
        find: "if chip.face.event_query(chip.ordinal, event)? == Progress::Done {",
        replace: "if chip.face.event_query(chip.ordinal, event).is_ok() {",
        tests: KUNLUN,
    },
];

pub(crate) fn all(only: Option<&str>) -> Result<(), Failure> {
    let chosen: Vec<&Mutant> =
        MUTANTS.iter().filter(|one| only.is_none_or(|only| one.name.contains(only))).collect();
    let copy = copy_of_workspace()?;
    let mut survivors = Vec::new();
    for mutant in &chosen {
        let path = copy.join(mutant.file);
        let read = fs::read_to_string(&path);
        let original = read.map_err(|error| Failure(format!("{}: {error}", path.display())))?;
        if original.matches(mutant.find).count() != 1 {
            return Err(Failure(format!(
                "mutant {}: its text is not found exactly once in {}; the code has moved on, so \
                 must the mutant",
                mutant.name, mutant.file
            )));
        }
        let write = |text: &str| {
            fs::write(&path, text).map_err(|error| Failure(format!("{}: {error}", path.display())))
        };
        write(&original.replace(mutant.find, mutant.replace))?;
        let outcome = judge(&copy, mutant);
        write(&original)?;
        let told = match &outcome {
            Ok(text) => text,
            Err(Failure(text)) => text.as_str(),
        };
        println!("{:<28} {told}", mutant.name);
        if outcome.is_err() {
            survivors.push(mutant.name);
        }
    }
    if survivors.is_empty() {
        println!("{} mutants, all caught", chosen.len());
        return Ok(());
    }
    Err(Failure(format!("no test noticed: {}", survivors.join(", "))))
}

/// Runs the tests on the broken code.
fn judge(copy: &Path, mutant: &Mutant) -> Result<&'static str, Failure> {
    let cargo = |arguments: &[&str]| {
        Command::new("cargo")
            .args(arguments)
            .current_dir(copy)
            .env("CARGO_TARGET_DIR", workspace().join("target/mutants"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .map_err(|error| Failure(format!("cargo cannot be started: {error}")))
    };
    let built = [&["test", "--no-run"], mutant.tests].concat();
    if !cargo(&built)?.success() {
        return Err(Failure("does not compile, so it shows nothing".into()));
    }
    let tested = [&["test"], mutant.tests].concat();
    if cargo(&tested)?.success() { Err(Failure("SURVIVED".into())) } else { Ok("caught") }
}

/// The tracked files of the workspace in a folder of their own.
fn copy_of_workspace() -> Result<PathBuf, Failure> {
    let copy = workspace().join("target/mutants/source");
    let failed = |error: std::io::Error| Failure(format!("{}: {error}", copy.display()));
    if copy.exists() {
        fs::remove_dir_all(&copy).map_err(failed)?;
    }
    let listed = Command::new("git").args(["ls-files", "-z"]).current_dir(workspace()).output();
    let listed = listed.map_err(|error| Failure(format!("git cannot be started: {error}")))?;
    for name in String::from_utf8_lossy(&listed.stdout).split_terminator('\0') {
        let place = copy.join(name);
        if let Some(folder) = place.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let source = workspace().join(name);
        if source.is_file() {
            fs::copy(source, place).map_err(failed)?;
        }
    }
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code moves on; a mutant whose text is gone would show nothing.
    #[test]
    fn the_text_of_every_mutant_is_there_once() {
        for mutant in MUTANTS {
            let text = fs::read_to_string(workspace().join(mutant.file)).expect(mutant.file);
            assert_eq!(text.matches(mutant.find).count(), 1, "{}", mutant.name);
        }
    }
}
