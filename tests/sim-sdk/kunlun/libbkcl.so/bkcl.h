/* A header for the simulated libbkcl.so with plain C names.
 *
 * The names are BKCL's as its users write them. All numbers and the size of an id are MADE UP: the real
 * ones are not public. They differ from those of the other simulated library, so that nobody can know
 * them by heart. */
#ifndef BKCL_H_
#define BKCL_H_

#include <stddef.h>

typedef void* XPUStream;

#ifdef __cplusplus
extern "C" {
#endif

#define BKCL_UNIQUE_ID_BYTES (64 * 3)

typedef enum {
  BKCL_SUCCESS = 0,
  BKCL_INVALID_ARGUMENT,
  BKCL_RUNTIME_ERROR,
  BKCL_SYSTEM_ERROR,
  BKCL_INTERNAL_ERROR,
} BKCLResult_t;

typedef enum {
  BKCL_UINT8 = 10, /* the first */
  BKCL_FLOAT,
  BKCL_FLOAT16,
  BKCL_INT32,
  BKCL_INT64 = 20,
  BKCL_FLOAT64,
  BKCL_BFLOAT16,   // the last
} BKCLDataType;

typedef enum {
  BKCL_MAX = 3,
  BKCL_MIN,
  BKCL_ADD,
  BKCL_PRODUCT,
  BKCL_NUM_OPS,
} BKCLOp;

typedef struct BKCLContext* BKCLContext_t;

typedef struct BKCLUniqueId {
  char internal[BKCL_UNIQUE_ID_BYTES];
} BKCLUniqueId;

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

#ifdef __cplusplus
}
#endif

#endif /* BKCL_H_ */
