//! A simulated `libbkcl.so` of P800: no plain C name, only those that C++ makes of `bkcl.h`.

#[macro_use]
#[path = "../../../kunlun/bkcl/mod.rs"]
mod bkcl;
mod mapping;
mod numbers;

/// The object that owns the machine.
pub(crate) const DRIVER: &str = "libxpurt.so.2";

export! {
    "_Z18bkcl_get_unique_idP12BKCLUniqueId",
    "_Z14bkcl_init_rankPP11BKCLContextiiP12BKCLUniqueId",
    "_Z18bkcl_comm_init_allPP11BKCLContextiPKi",
    "_Z20bkcl_destroy_contextP11BKCLContext",
    "_Z15bkcl_comm_abortP11BKCLContext",
    "_Z15bkcl_comm_countP11BKCLContextPi",
    "_Z19bkcl_comm_user_rankP11BKCLContextPi",
    "_Z15bkcl_all_reduceP11BKCLContextPKvPvm12BKCLDataType6BKCLOpS3_",
    "_Z11bkcl_reduceP11BKCLContextPKvPvm12BKCLDataType6BKCLOpiS3_",
    "_Z14bkcl_broadcastP11BKCLContextPKvPvm12BKCLDataTypeiS3_",
    "_Z19bkcl_reduce_scatterP11BKCLContextPKvPvm12BKCLDataType6BKCLOpS3_",
    "_Z15bkcl_all_gatherP11BKCLContextPKvmPv12BKCLDataTypeS3_",
    "_Z15bkcl_all_to_allP11BKCLContextPKvmPv12BKCLDataTypeS3_",
    "_Z17bkcl_all_to_all_vP11BKCLContextPKvPKmS4_12BKCLDataTypePvS4_S4_S5_S6_",
    "_Z9bkcl_sendP11BKCLContextPKvmi12BKCLDataTypePv",
    "_Z9bkcl_recvP11BKCLContextPvmi12BKCLDataTypeS1_",
    "_Z16bkcl_group_startv",
    "_Z14bkcl_group_endv",
}

#[unsafe(export_name = "_ZN5baidu3xpu4bkcl9xccl_mmapEPPvS2_m")]
extern "C" fn xccl_mmap(out: *mut *mut c_void, pointer: *mut c_void, bytes: usize) -> i32 {
    mapping::mmap(out, pointer, bytes)
}

#[unsafe(export_name = "_ZN5baidu3xpu4bkcl11xccl_munmapEPvm")]
extern "C" fn xccl_munmap(alias: *mut c_void, bytes: usize) -> i32 {
    mapping::munmap(alias, bytes)
}
