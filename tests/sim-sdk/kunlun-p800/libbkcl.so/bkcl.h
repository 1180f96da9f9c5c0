/* A header for the simulated libbkcl.so of P800, a C++ header: its names are mangled.
 *
 * The names are BKCL's as its users write them. All numbers and the size of an id are MADE UP: the real
 * ones are not public. They differ from those of the other simulated library, so that nobody can know
 * them by heart. */
#ifndef BKCL_H_
#define BKCL_H_

#include <cstddef>
#include <functional>
#include <tuple>
#include <vector>

typedef void* XPUStream;

#define BKCL_ID_WORDS 30
constexpr int BKCL_UNIQUE_ID_BYTES = 240;

typedef enum {
  BKCL_SUCCESS = 0,
  BKCL_INVALID_ARGUMENT,
  BKCL_RUNTIME_ERROR,
  BKCL_SYSTEM_ERROR,
  BKCL_INTERNAL_ERROR,
} BKCLResult_t;

// clang-format off
enum BKCLDataType : int { BKCL_FLOAT = 0x0, BKCL_FLOAT16 = 0x1, BKCL_BFLOAT16 = 0x7,
  BKCL_FLOAT64 = 0x2,
  BKCL_INT32 = BKCL_FLOAT64 + 3, BKCL_INT64, BKCL_UINT8 = 1 << 3 };
// clang-format on

enum BKCLOp { BKCL_ADD, BKCL_PRODUCT, BKCL_MAX, BKCL_MIN, BKCL_AVG, BKCL_NUM_OPS };

typedef struct BKCLContext* BKCLContext_t;

struct BKCLUniqueId {
  unsigned char internal[BKCL_ID_WORDS * 8];
};

BKCLResult_t bkcl_get_unique_id(BKCLUniqueId* id);
BKCLResult_t bkcl_init_rank(BKCLContext_t* context, int rank, int nranks, BKCLUniqueId* id);
BKCLResult_t bkcl_comm_init_all(BKCLContext_t* contexts, int ndev, const int* devices);
BKCLResult_t bkcl_destroy_context(BKCLContext_t context);
BKCLResult_t bkcl_comm_abort(BKCLContext_t context);
BKCLResult_t bkcl_comm_count(BKCLContext_t context, int* count);
BKCLResult_t bkcl_comm_user_rank(BKCLContext_t context, int* rank);
BKCLResult_t bkcl_all_reduce(BKCLContext_t context, const void* sendbuf, void* recvbuf, size_t count,
                             BKCLDataType datatype, BKCLOp op, XPUStream stream);
BKCLResult_t bkcl_reduce(BKCLContext_t context, const void* sendbuf, void* recvbuf, size_t count,
                         BKCLDataType datatype, BKCLOp op, int root, XPUStream stream);
BKCLResult_t bkcl_broadcast(BKCLContext_t context, const void* sendbuf, void* recvbuf, size_t count,
                            BKCLDataType datatype, int root, XPUStream stream);
BKCLResult_t bkcl_reduce_scatter(BKCLContext_t context, const void* sendbuf, void* recvbuf,
                                 size_t recvcount, BKCLDataType datatype, BKCLOp op, XPUStream stream);
BKCLResult_t bkcl_all_gather(BKCLContext_t context, const void* sendbuf, size_t sendcount, void* recvbuf,
                             BKCLDataType datatype, XPUStream stream);
BKCLResult_t bkcl_all_to_all(BKCLContext_t context, const void* sendbuf, size_t sendcount, void* recvbuf,
                             BKCLDataType datatype, XPUStream stream);
BKCLResult_t bkcl_all_to_all_v(BKCLContext_t context, const void* sendbuf, const size_t* sendcounts,
                               const size_t* senddispls, BKCLDataType sendtype, void* recvbuf,
                               const size_t* recvcounts, const size_t* recvdispls,
                               BKCLDataType recvtype, XPUStream stream);
BKCLResult_t bkcl_send(BKCLContext_t context, const void* sendbuf, size_t count, int peer,
                       BKCLDataType datatype, XPUStream stream);
BKCLResult_t bkcl_recv(BKCLContext_t context, void* recvbuf, size_t count, int peer,
                       BKCLDataType datatype, XPUStream stream);
BKCLResult_t bkcl_group_start();
BKCLResult_t bkcl_group_end();

namespace baidu {
namespace xpu {
namespace bkcl {
int xccl_mmap(void** host, void* device, size_t size);
int xccl_munmap(void* host, size_t size);
}  // namespace bkcl
}  // namespace xpu
}  // namespace baidu

#endif /* BKCL_H_ */
