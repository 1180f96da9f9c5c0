// A library that tells iccl's Kunlun plugin BKCL's numbers, and calls BKCL under plain C names. Built on the
// machine that has the maker's header, it removes everything that is not public about BKCL:
//
//   g++ -std=c++17 -shared -fPIC -I XCCL/include -o libiccl_bkcl_shim.so iccl_bkcl_shim.cc -L XCCL/so -l:libbkcl.so
//
// with -DICCL_BKCL_WITHOUT_AVG if the header has no BKCL_AVG. Then, in iccl.toml:
//
//   [plugin.kunlun]
//   bkcl_shim = "/path/of/libiccl_bkcl_shim.so"

#include "bkcl.h"

#include <cstddef>
#include <string>

extern "C" {

// NAME=NUMBER, parted by blanks.
const char* iccl_shim_constants() {
  static const std::string text = [] {
    const auto pair = [](const char* name, long long value) {
      return std::string(name) + "=" + std::to_string(value) + " ";
    };
#define ICCL_PAIR(name) pair(#name, static_cast<long long>(name))
    return pair("BKCL_UNIQUE_ID_BYTES", static_cast<long long>(sizeof(BKCLUniqueId))) +
           ICCL_PAIR(BKCL_SUCCESS) + ICCL_PAIR(BKCL_INVALID_ARGUMENT) + ICCL_PAIR(BKCL_RUNTIME_ERROR) +
           ICCL_PAIR(BKCL_SYSTEM_ERROR) + ICCL_PAIR(BKCL_INTERNAL_ERROR) + ICCL_PAIR(BKCL_FLOAT) +
           ICCL_PAIR(BKCL_FLOAT16) + ICCL_PAIR(BKCL_BFLOAT16) + ICCL_PAIR(BKCL_FLOAT64) +
           ICCL_PAIR(BKCL_UINT8) + ICCL_PAIR(BKCL_INT32) + ICCL_PAIR(BKCL_INT64) + ICCL_PAIR(BKCL_ADD) +
#ifndef ICCL_BKCL_WITHOUT_AVG
           ICCL_PAIR(BKCL_AVG) +
#endif
           ICCL_PAIR(BKCL_PRODUCT) + ICCL_PAIR(BKCL_MAX) + ICCL_PAIR(BKCL_MIN);
#undef ICCL_PAIR
  }();
  return text.c_str();
}

int iccl_shim_bkcl_get_unique_id(void* id) {
  return static_cast<int>(bkcl_get_unique_id(static_cast<BKCLUniqueId*>(id)));
}

int iccl_shim_bkcl_init_rank(void** context, int rank, int nranks, void* id) {
  return static_cast<int>(bkcl_init_rank(reinterpret_cast<BKCLContext_t*>(context), rank, nranks,
                                         static_cast<BKCLUniqueId*>(id)));
}

int iccl_shim_bkcl_destroy_context(void* context) {
  return static_cast<int>(bkcl_destroy_context(static_cast<BKCLContext_t>(context)));
}

int iccl_shim_bkcl_comm_abort(void* context) {
  return static_cast<int>(bkcl_comm_abort(static_cast<BKCLContext_t>(context)));
}

int iccl_shim_bkcl_all_reduce(void* context, const void* send, void* receive, size_t count, int dtype,
                              int op, void* stream) {
  return static_cast<int>(bkcl_all_reduce(static_cast<BKCLContext_t>(context), send, receive, count,
                                          static_cast<BKCLDataType>(dtype), static_cast<BKCLOp>(op),
                                          static_cast<XPUStream>(stream)));
}

int iccl_shim_bkcl_reduce(void* context, const void* send, void* receive, size_t count, int dtype, int op,
                          int root, void* stream) {
  return static_cast<int>(bkcl_reduce(static_cast<BKCLContext_t>(context), send, receive, count,
                                      static_cast<BKCLDataType>(dtype), static_cast<BKCLOp>(op), root,
                                      static_cast<XPUStream>(stream)));
}

int iccl_shim_bkcl_broadcast(void* context, const void* send, void* receive, size_t count, int dtype,
                             int root, void* stream) {
  return static_cast<int>(bkcl_broadcast(static_cast<BKCLContext_t>(context), send, receive, count,
                                         static_cast<BKCLDataType>(dtype), root,
                                         static_cast<XPUStream>(stream)));
}

int iccl_shim_bkcl_reduce_scatter(void* context, const void* send, void* receive, size_t count, int dtype,
                                  int op, void* stream) {
  return static_cast<int>(bkcl_reduce_scatter(static_cast<BKCLContext_t>(context), send, receive, count,
                                              static_cast<BKCLDataType>(dtype),
                                              static_cast<BKCLOp>(op), static_cast<XPUStream>(stream)));
}

int iccl_shim_bkcl_all_gather(void* context, const void* send, size_t count, void* receive, int dtype,
                              void* stream) {
  return static_cast<int>(bkcl_all_gather(static_cast<BKCLContext_t>(context), send, count, receive,
                                          static_cast<BKCLDataType>(dtype),
                                          static_cast<XPUStream>(stream)));
}

int iccl_shim_bkcl_all_to_all(void* context, const void* send, size_t count, void* receive, int dtype,
                              void* stream) {
  return static_cast<int>(bkcl_all_to_all(static_cast<BKCLContext_t>(context), send, count, receive,
                                          static_cast<BKCLDataType>(dtype),
                                          static_cast<XPUStream>(stream)));
}

// The arrays lie in the card's memory.
int iccl_shim_bkcl_all_to_all_v(void* context, const void* send, const size_t* send_counts,
                                const size_t* send_displacements, int send_dtype, void* receive,
                                const size_t* receive_counts, const size_t* receive_displacements,
                                int receive_dtype, void* stream) {
  return static_cast<int>(bkcl_all_to_all_v(
      static_cast<BKCLContext_t>(context), send, send_counts, send_displacements,
      static_cast<BKCLDataType>(send_dtype), receive, receive_counts, receive_displacements,
      static_cast<BKCLDataType>(receive_dtype), static_cast<XPUStream>(stream)));
}

int iccl_shim_bkcl_send(void* context, const void* send, size_t count, int peer, int dtype, void* stream) {
  return static_cast<int>(bkcl_send(static_cast<BKCLContext_t>(context), send, count, peer,
                                    static_cast<BKCLDataType>(dtype), static_cast<XPUStream>(stream)));
}

int iccl_shim_bkcl_recv(void* context, void* receive, size_t count, int peer, int dtype, void* stream) {
  return static_cast<int>(bkcl_recv(static_cast<BKCLContext_t>(context), receive, count, peer,
                                    static_cast<BKCLDataType>(dtype), static_cast<XPUStream>(stream)));
}

int iccl_shim_bkcl_group_start() { return static_cast<int>(bkcl_group_start()); }

int iccl_shim_bkcl_group_end() { return static_cast<int>(bkcl_group_end()); }

}  // extern "C"
