//! BKCL, as both simulated libraries have it. They differ in the names of their symbols, and in the
//! numbers, which no public document tells: each has a header with numbers of its own beside it.
//!
//! What is known of it: users' code, and measurements on P800.

mod calls;
mod communicators;
mod group;

use std::ffi::c_void;

use iccl_sim_core::{Fault, Machine, share};
use iccl_sim_kunlun::enter;

pub(crate) use calls::{
    Operator, all_gather, all_reduce, all_to_all, all_to_all_v, broadcast, recv, reduce,
    reduce_scatter, send,
};
pub(crate) use communicators::{
    comm_abort, comm_count, comm_init_all, comm_user_rank, destroy_context, get_unique_id,
    init_rank,
};
pub(crate) use group::{group_end, group_start};

/// `BKCLResult_t`.
pub(crate) type Status = i32;
pub(crate) type Outcome = Result<(), Status>;
pub(crate) const INVALID_ARGUMENT: Status = 1;
pub(crate) const RUNTIME_ERROR: Status = 2;
pub(crate) const SYSTEM_ERROR: Status = 3;
pub(crate) const INTERNAL_ERROR: Status = 4;

/// Says why, as the real library does, and gives the status.
pub(crate) fn fail(code: Status, text: &str) -> Status {
    eprintln!("[BKCL] {text}: error code={code}");
    code
}

/// A call that uses cards.
pub(crate) fn call(
    symbol: &'static str,
    body: impl FnOnce(&'static Machine, Option<Fault>) -> Outcome,
) -> Status {
    static INSIDE: u8 = 0;
    let Some(machine) = share::find(crate::DRIVER, (&raw const INSIDE).cast::<c_void>()) else {
        return fail(RUNTIME_ERROR, "libxpurt is not there");
    };
    match enter(machine, symbol) {
        Err(code) => code,
        Ok(_) if machine.devices().is_empty() => fail(RUNTIME_ERROR, "no device"),
        Ok(fault) => body(machine, fault).err().unwrap_or(0),
    }
}

/// Writes an output.
pub(crate) fn put<T>(out: *mut T, value: T) -> Outcome {
    iccl_sim_kunlun::put(out, value).map_err(|_| INVALID_ARGUMENT)
}

/// Exports all functions under the names that are given, in this order.
macro_rules! export {
    (
        $get_unique_id:literal, $init_rank:literal, $comm_init_all:literal,
        $destroy_context:literal, $comm_abort:literal, $comm_count:literal,
        $comm_user_rank:literal, $all_reduce:literal, $reduce:literal, $broadcast:literal,
        $reduce_scatter:literal, $all_gather:literal, $all_to_all:literal, $all_to_all_v:literal,
        $send:literal, $recv:literal, $group_start:literal, $group_end:literal $(,)?
    ) => {
        use std::ffi::c_void;

        #[unsafe(export_name = $get_unique_id)]
        extern "C" fn get_unique_id(out: *mut c_void) -> i32 {
            bkcl::get_unique_id(out)
        }

        #[unsafe(export_name = $init_rank)]
        extern "C" fn init_rank(
            out: *mut *mut c_void,
            rank: i32,
            ranks: i32,
            id: *const c_void,
        ) -> i32 {
            bkcl::init_rank(out, rank, ranks, id)
        }

        #[unsafe(export_name = $comm_init_all)]
        extern "C" fn comm_init_all(out: *mut *mut c_void, ranks: i32, devices: *const i32) -> i32 {
            bkcl::comm_init_all(out, ranks, devices)
        }

        #[unsafe(export_name = $destroy_context)]
        extern "C" fn destroy_context(context: *mut c_void) -> i32 {
            bkcl::destroy_context(context)
        }

        #[unsafe(export_name = $comm_abort)]
        extern "C" fn comm_abort(context: *mut c_void) -> i32 {
            bkcl::comm_abort(context)
        }

        #[unsafe(export_name = $comm_count)]
        extern "C" fn comm_count(context: *mut c_void, out: *mut i32) -> i32 {
            bkcl::comm_count(context, out)
        }

        #[unsafe(export_name = $comm_user_rank)]
        extern "C" fn comm_user_rank(context: *mut c_void, out: *mut i32) -> i32 {
            bkcl::comm_user_rank(context, out)
        }

        #[unsafe(export_name = $all_reduce)]
        extern "C" fn all_reduce(
            context: *mut c_void,
            send: *const c_void,
            receive: *mut c_void,
            count: usize,
            element: i32,
            operator: i32,
            stream: *mut c_void,
        ) -> i32 {
            bkcl::all_reduce(context, send, receive, count, element, operator, stream)
        }

        #[unsafe(export_name = $reduce)]
        extern "C" fn reduce(
            context: *mut c_void,
            send: *const c_void,
            receive: *mut c_void,
            count: usize,
            element: i32,
            operator: i32,
            root: i32,
            stream: *mut c_void,
        ) -> i32 {
            bkcl::reduce(context, send, receive, count, element, operator, root, stream)
        }

        #[unsafe(export_name = $broadcast)]
        extern "C" fn broadcast(
            context: *mut c_void,
            send: *const c_void,
            receive: *mut c_void,
            count: usize,
            element: i32,
            root: i32,
            stream: *mut c_void,
        ) -> i32 {
            bkcl::broadcast(context, send, receive, count, element, root, stream)
        }

        #[unsafe(export_name = $reduce_scatter)]
        extern "C" fn reduce_scatter(
            context: *mut c_void,
            send: *const c_void,
            receive: *mut c_void,
            count: usize,
            element: i32,
            operator: i32,
            stream: *mut c_void,
        ) -> i32 {
            bkcl::reduce_scatter(context, send, receive, count, element, operator, stream)
        }

        #[unsafe(export_name = $all_gather)]
        extern "C" fn all_gather(
            context: *mut c_void,
            send: *const c_void,
            count: usize,
            receive: *mut c_void,
            element: i32,
            stream: *mut c_void,
        ) -> i32 {
            bkcl::all_gather(context, send, count, receive, element, stream)
        }

        #[unsafe(export_name = $all_to_all)]
        extern "C" fn all_to_all(
            context: *mut c_void,
            send: *const c_void,
            count: usize,
            receive: *mut c_void,
            element: i32,
            stream: *mut c_void,
        ) -> i32 {
            bkcl::all_to_all(context, send, count, receive, element, stream)
        }

        #[unsafe(export_name = $all_to_all_v)]
        extern "C" fn all_to_all_v(
            context: *mut c_void,
            send: *const c_void,
            send_counts: *const usize,
            send_displacements: *const usize,
            send_element: i32,
            receive: *mut c_void,
            receive_counts: *const usize,
            receive_displacements: *const usize,
            receive_element: i32,
            stream: *mut c_void,
        ) -> i32 {
            let sent = (send, send_counts, send_displacements, send_element);
            let received = (receive, receive_counts, receive_displacements, receive_element);
            bkcl::all_to_all_v(context, sent, received, stream)
        }

        #[unsafe(export_name = $send)]
        extern "C" fn send(
            context: *mut c_void,
            send: *const c_void,
            count: usize,
            peer: i32,
            element: i32,
            stream: *mut c_void,
        ) -> i32 {
            bkcl::send(context, send, count, peer, element, stream)
        }

        #[unsafe(export_name = $recv)]
        extern "C" fn recv(
            context: *mut c_void,
            receive: *mut c_void,
            count: usize,
            peer: i32,
            element: i32,
            stream: *mut c_void,
        ) -> i32 {
            bkcl::recv(context, receive, count, peer, element, stream)
        }

        #[unsafe(export_name = $group_start)]
        extern "C" fn group_start() -> i32 {
            bkcl::group_start()
        }

        #[unsafe(export_name = $group_end)]
        extern "C" fn group_end() -> i32 {
            bkcl::group_end()
        }
    };
}
