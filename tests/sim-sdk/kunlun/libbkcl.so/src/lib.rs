//! A simulated `libbkcl.so` of an older release: plain C names, no mean, nothing for NICs.

#[macro_use]
#[path = "../../bkcl/mod.rs"]
mod bkcl;
mod numbers;

/// The object that owns the machine.
pub(crate) const DRIVER: &str = "libxpurt.so.1";

export! {
    "bkcl_get_unique_id",
    "bkcl_init_rank",
    "bkcl_comm_init_all",
    "bkcl_destroy_context",
    "bkcl_comm_abort",
    "bkcl_comm_count",
    "bkcl_comm_user_rank",
    "bkcl_all_reduce",
    "bkcl_reduce",
    "bkcl_broadcast",
    "bkcl_reduce_scatter",
    "bkcl_all_gather",
    "bkcl_all_to_all",
    "bkcl_all_to_all_v",
    "bkcl_send",
    "bkcl_recv",
    "bkcl_group_start",
    "bkcl_group_end",
}
