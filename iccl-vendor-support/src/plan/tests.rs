//! Plans for two invented libraries: one that has little but does not mind anything, one with functions
//! and wishes of its own.

use iccl_plugin_api::Status;

use super::*;

const SEND: usize = 0x1_0000;
const RECEIVE: usize = 0x2_0000;

const BYTE: c_int = 7;

const SUPPORT: &[CollectiveSupport] = &{
    let mut all = [CollectiveSupport::new(Collective::Send, &[], &[]); Collective::ALL.len()];
    let mut index = 0;
    while index < all.len() {
        let types = &[DataType::F32, DataType::F64, DataType::I16, DataType::F8E4M3, DataType::U8];
        all[index] = CollectiveSupport::new(Collective::ALL[index], types, &[RedOp::Sum]);
        index += 1;
    }
    all
};

fn reduced(dtype: DataType) -> Option<c_int> {
    (dtype == DataType::F32).then_some(1)
}

fn moved(dtype: DataType) -> (c_int, usize) {
    match dtype {
        DataType::F32 => (1, 1),
        _ => (BYTE, dtype.size_bytes()),
    }
}

fn sum(_: DataType, op: RedOp) -> Option<c_int> {
    (op == RedOp::Sum).then_some(3)
}

const PLAIN: Repertoire = Repertoire {
    library: "PLAIN",
    support: SUPPORT,
    reduced_type: reduced,
    moved_type: moved,
    reduction: sum,
    functions: Functions {
        gather: false,
        scatter: false,
        roots_in_place: false,
        all_to_all: false,
        all_to_all_v: false,
        barrier: false,
    },
    broadcasts_in_one_buffer: false,
    sends_to_itself: true,
    all_gather_v: AllGatherV::Broadcasts,
};

const CHOOSY: Repertoire = Repertoire {
    library: "CHOOSY",
    functions: Functions {
        gather: true,
        scatter: true,
        roots_in_place: false,
        all_to_all: true,
        all_to_all_v: true,
        barrier: true,
    },
    broadcasts_in_one_buffer: true,
    sends_to_itself: false,
    all_gather_v: AllGatherV::Messages,
    ..PLAIN
};

fn at(address: usize) -> (Source, Destination) {
    let pointer = std::ptr::without_provenance_mut::<c_void>(address);
    (pointer.cast_const(), pointer)
}

fn call(collective: Collective, dtype: DataType, op: Option<RedOp>) -> NativeCall<'static> {
    NativeCall {
        collective,
        dtype,
        op,
        root: 1,
        count: 4,
        send: at(SEND).0,
        receive: at(RECEIVE).1,
        send_counts: &[],
        send_displacements: &[],
        receive_counts: &[],
        receive_displacements: &[],
    }
}

fn send(address: usize, count: usize, peer: u32) -> Primitive {
    Primitive::Send { send: at(address).0, count, peer }
}

fn recv(address: usize, count: usize, peer: u32) -> Primitive {
    Primitive::Recv { receive: at(address).1, count, peer }
}

fn copy(from: usize, to: usize, bytes: usize) -> Primitive {
    Primitive::Copy { from: at(from).0, to: at(to).1, bytes }
}

fn primitives(library: &Repertoire, call: &NativeCall<'_>, rank: u32) -> Vec<Primitive> {
    plan(library, call, 3, rank).unwrap().primitives
}

#[test]
fn what_is_not_offered_is_refused_in_words() {
    let refused = [
        call(Collective::Barrier, DataType::U8, None),
        call(Collective::AllReduce, DataType::F32, Some(RedOp::Max)),
        call(Collective::ReduceScatter, DataType::I16, Some(RedOp::Sum)),
        call(Collective::AllGather, DataType::I64, None),
        call(Collective::AllReduce, DataType::F32, None),
        NativeCall { receive: at(SEND).1, ..call(Collective::AllToAll, DataType::F32, None) },
    ];
    for call in refused {
        let error = plan(&PLAIN, &call, 3, 0).unwrap_err();
        assert_eq!(error.status, Status::NotSupported, "{call:?}");
    }
    let error = plan(&PLAIN, &call(Collective::AllReduce, DataType::F32, Some(RedOp::Max)), 3, 0);
    assert_eq!(error.unwrap_err().message, "PLAIN is not used for all_reduce f32 max");
}

#[test]
fn a_root_that_is_no_rank_and_counts_beyond_memory_are_refused() {
    for collective in [Collective::Broadcast, Collective::Reduce, Collective::Send] {
        let op = collective.reduces().then_some(RedOp::Sum);
        let call = NativeCall { root: 3, ..call(collective, DataType::F32, op) };
        assert_eq!(plan(&PLAIN, &call, 3, 0).unwrap_err().status, Status::InvalidArgument);
    }
    for (collective, count) in [
        (Collective::AllReduce, u64::MAX / 2),
        (Collective::Gather, u64::MAX / 8),
        (Collective::Broadcast, u64::MAX),
    ] {
        let op = collective.reduces().then_some(RedOp::Sum);
        let call = NativeCall { count, ..call(collective, DataType::F32, op) };
        assert!(plan(&PLAIN, &call, 3, 1).is_err(), "{collective}");
    }
    for (send_counts, receive_counts) in [(&[1, 2][..], &[1, 2, 3][..]), (&[1, 2, 3], &[9, 2, 3])] {
        let counts = NativeCall {
            send_counts,
            receive_counts,
            ..call(Collective::AllToAllV, DataType::F32, None)
        };
        assert_eq!(plan(&PLAIN, &counts, 3, 0).unwrap_err().status, Status::InvalidArgument);
    }
}

#[test]
fn nothing_is_nothing_to_do_for_all_ranks() {
    for &collective in Collective::ALL {
        let op = collective.reduces().then_some(RedOp::Sum);
        let none = &[0_u64; 3][..];
        let nothing = NativeCall {
            count: 0,
            send_counts: none,
            receive_counts: none,
            ..call(collective, DataType::F32, op)
        };
        if collective != Collective::Barrier {
            assert_eq!(primitives(&PLAIN, &nothing, 1), [], "{collective}");
        }
        // Others may have something for each other.
        let is_for_all = matches!(collective, Collective::Barrier | Collective::AllToAllV);
        assert_eq!(primitives(&CHOOSY, &nothing, 1).len(), usize::from(is_for_all), "{collective}");
    }
}

#[test]
fn types_that_the_library_lacks_are_moved_as_bytes_of_the_same_length() {
    let (send, receive) = (at(SEND).0, at(RECEIVE).1);
    for (dtype, count) in [(DataType::I16, 8), (DataType::F8E4M3, 4), (DataType::F64, 32)] {
        let planned = plan(&PLAIN, &call(Collective::AllGather, dtype, None), 3, 0).unwrap();
        assert_eq!(planned.dtype, BYTE);
        assert_eq!(planned.primitives, [Primitive::AllGather { send, receive, count }]);
    }
    let choosy = call(Collective::AllGather, DataType::F32, None);
    assert_eq!(plan(&CHOOSY, &choosy, 3, 0).unwrap().dtype, 1);
}

#[test]
fn the_result_of_a_reduction_is_wanted_on_its_root_only() {
    let reduce = call(Collective::Reduce, DataType::F32, Some(RedOp::Sum));
    let expected =
        |receive| Primitive::Reduce { send: at(SEND).0, receive, count: 4, op: 3, root: 1 };
    assert_eq!(primitives(&PLAIN, &reduce, 1), [expected(at(RECEIVE).1)]);
    assert_eq!(primitives(&PLAIN, &reduce, 2), [expected(std::ptr::null_mut())]);
}

#[test]
fn one_buffer_is_filled_before_it_is_broadcast() {
    let broadcast =
        |count| Primitive::Broadcast { send: at(SEND).0, receive: at(RECEIVE).1, count, root: 1 };
    let wide = call(Collective::Broadcast, DataType::F64, None);
    assert_eq!(primitives(&PLAIN, &wide, 1), [broadcast(32)]);
    // The copy is as long as the elements, not as many bytes as there are elements.
    assert_eq!(primitives(&CHOOSY, &wide, 1), [copy(SEND, RECEIVE, 32), broadcast(32)]);
    let floats = call(Collective::Broadcast, DataType::F32, None);
    assert_eq!(primitives(&CHOOSY, &floats, 1), [copy(SEND, RECEIVE, 16), broadcast(4)]);
    assert_eq!(primitives(&CHOOSY, &floats, 0), [broadcast(4)]);
    let in_place = NativeCall { send: at(RECEIVE).0, ..floats };
    assert_eq!(primitives(&CHOOSY, &in_place, 1).len(), 1);
}

#[test]
fn gather_and_scatter_are_blocks_to_and_from_the_root() {
    let gather = call(Collective::Gather, DataType::F32, None);
    assert_eq!(primitives(&PLAIN, &gather, 0), [send(SEND, 4, 1)]);
    let from_others = [recv(RECEIVE, 4, 0), recv(RECEIVE + 32, 4, 2)];
    let own = [send(SEND, 4, 1), recv(RECEIVE + 16, 4, 1)];
    assert_eq!(primitives(&PLAIN, &gather, 1), [&own[..], &from_others[..]].concat());
    let alone = Repertoire { functions: Functions::default(), ..CHOOSY };
    let own = [copy(SEND, RECEIVE + 16, 16)];
    assert_eq!(primitives(&alone, &gather, 1), [&own[..], &from_others[..]].concat());
    // In place at the root, its own block stays where it is.
    let in_place = NativeCall { send: at(RECEIVE + 16).0, ..gather };
    for library in [PLAIN, alone] {
        assert_eq!(primitives(&library, &in_place, 1), from_others);
    }
    let scatter = NativeCall {
        send_counts: &[1, 0, 2],
        count: 2,
        ..call(Collective::ScatterV, DataType::I16, None)
    };
    assert_eq!(primitives(&PLAIN, &scatter, 2), [recv(RECEIVE, 4, 1)]);
    assert_eq!(
        primitives(&CHOOSY, &NativeCall { count: 0, ..scatter }, 1),
        [send(SEND, 2, 0), send(SEND + 2, 4, 2)]
    );
}

#[test]
fn functions_that_are_there_are_used() {
    let (send, receive) = (at(SEND).0, at(RECEIVE).1);
    let made = |collective| primitives(&CHOOSY, &call(collective, DataType::F32, None), 0);
    let (count, root) = (4, 1);
    let expected = [Primitive::Gather { send, receive, count, root }];
    assert_eq!(made(Collective::Gather), expected);
    let expected = [Primitive::Scatter { send, receive, count, root }];
    assert_eq!(made(Collective::Scatter), expected);
    assert_eq!(made(Collective::AllToAll), [Primitive::AllToAll { send, receive, count }]);
    assert_eq!(made(Collective::Barrier), [Primitive::Barrier]);
    let blocks = NativeCall {
        send_counts: &[1, 2, 0],
        send_displacements: &[9, 0, 0],
        receive_counts: &[1, 3, 1],
        ..call(Collective::AllToAllV, DataType::I16, None)
    };
    let block = |offset, count| Block { offset, count };
    assert_eq!(
        primitives(&CHOOSY, &blocks, 0),
        [Primitive::AllToAllV {
            send,
            receive,
            sent: vec![block(18, 2), block(0, 4), block(0, 0)],
            received: vec![block(0, 2), block(2, 6), block(8, 2)],
        }]
    );
}

#[test]
fn a_roots_own_block_of_a_scatter_may_stay_where_it_is() {
    let in_place =
        NativeCall { receive: at(SEND + 16).1, ..call(Collective::Scatter, DataType::F32, None) };
    let scatter = |receive| Primitive::Scatter { send: at(SEND).0, receive, count: 4, root: 1 };
    assert_eq!(primitives(&CHOOSY, &in_place, 1), [scatter(std::ptr::null_mut())]);
    assert_eq!(primitives(&CHOOSY, &in_place, 0), [scatter(at(SEND + 16).1)]);
    let functions = Functions { roots_in_place: true, ..CHOOSY.functions };
    let patient = Repertoire { functions, ..CHOOSY };
    assert_eq!(primitives(&patient, &in_place, 1), [scatter(at(SEND + 16).1)]);
}

#[test]
fn blocks_of_any_length_lie_where_the_displacements_say() {
    let all_to_all = NativeCall {
        send_counts: &[0, 2, 0],
        send_displacements: &[9, 3, 0],
        receive_counts: &[0, 3, 1],
        ..call(Collective::AllToAllV, DataType::F32, None)
    };
    assert_eq!(
        primitives(&PLAIN, &all_to_all, 0),
        [send(SEND + 12, 2, 1), recv(RECEIVE, 3, 1), recv(RECEIVE + 12, 1, 2)]
    );
    let gather = NativeCall {
        receive_counts: &[1, 0, 3],
        count: 3,
        ..call(Collective::AllGatherV, DataType::F64, None)
    };
    let broadcast = |from, to, count, root| Primitive::Broadcast {
        send: at(from).0,
        receive: at(to).1,
        count,
        root,
    };
    assert_eq!(
        primitives(&PLAIN, &gather, 2),
        [broadcast(RECEIVE, RECEIVE, 8, 0), broadcast(SEND, RECEIVE + 8, 24, 2)]
    );
    assert_eq!(
        primitives(&CHOOSY, &gather, 2),
        [send(SEND, 24, 0), recv(RECEIVE, 8, 0), send(SEND, 24, 1), copy(SEND, RECEIVE + 8, 24)]
    );
    assert_eq!(primitives(&CHOOSY, &gather, 1), [recv(RECEIVE, 8, 0), recv(RECEIVE + 8, 24, 2)]);
    let reduce = NativeCall {
        send_counts: &[2, 1, 0],
        ..call(Collective::ReduceScatterV, DataType::F32, Some(RedOp::Sum))
    };
    let part = |from: usize, receive, count, root| Primitive::Reduce {
        send: at(from).0,
        receive,
        count,
        op: 3,
        root,
    };
    assert_eq!(
        primitives(&PLAIN, &reduce, 0),
        [part(SEND, at(RECEIVE).1, 2, 0), part(SEND + 8, std::ptr::null_mut(), 1, 1)]
    );
}
