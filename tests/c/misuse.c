/* Everything that a caller can get wrong is an answer, never a crash. */
#include <pthread.h>
#include <stdint.h>
#include <time.h>

#include "check.h"

enum { RANKS = 2, COUNT = 8 };

static icclComm_t comms[RANKS];

static void handles(void) {
    float numbers[COUNT] = {0};
    int number = 0;
    icclResult_t state = icclSuccess;
    icclStream_t stream = NULL;
    OK(icclStreamCreate(&stream));

    icclComm_t bad[] = {NULL, (icclComm_t)(void *)numbers, (icclComm_t)(uintptr_t)0xdeadbeef,
                        (icclComm_t)(void *)stream, (icclComm_t)(uintptr_t)UINTPTR_MAX};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        icclComm_t comm = bad[i];
        ANSWERS(icclInvalidHandle,
                icclAllReduce(numbers, numbers, COUNT, icclFloat32, icclSum, comm, NULL));
        ANSWERS(icclInvalidHandle, icclSend(numbers, COUNT, icclFloat32, 0, comm, NULL));
        ANSWERS(icclInvalidHandle, icclBarrier(comm, NULL));
        ANSWERS(icclInvalidHandle, icclCommCount(comm, &number));
        ANSWERS(icclInvalidHandle, icclCommUserRank(comm, &number));
        ANSWERS(icclInvalidHandle, icclCommDevice(comm, &number));
        ANSWERS(icclInvalidHandle, icclCommGetAsyncError(comm, &state));
        ANSWERS(icclInvalidHandle, icclCommSynchronize(comm));
        ANSWERS(icclInvalidHandle, icclCommFinalize(comm));
        ANSWERS(icclInvalidHandle, icclCommDestroy(comm));
        ANSWERS(icclInvalidHandle, icclCommAbort(comm));
        TRUE_(strstr(icclGetLastError(comm), "icclCommAbort") != NULL);
    }
    FAILS(icclInvalidHandle, "handle of a stream", icclCommDestroy((icclComm_t)(void *)stream));
    FAILS(icclInvalidHandle, "the communicator is NULL", icclCommDestroy(NULL));
    FAILS(icclInvalidHandle, "handle of a communicator",
          icclStreamSynchronize((icclStream_t)(void *)comms[0]));
    FAILS(icclInvalidHandle, "no handle",
          icclBarrier(comms[0], (icclStream_t)(void *)numbers));

    OK(icclStreamDestroy(stream));
    FAILS(icclInvalidHandle, "was destroyed", icclStreamDestroy(stream));
    FAILS(icclInvalidHandle, "was destroyed", icclStreamSynchronize(stream));
    FAILS(icclInvalidHandle, "was destroyed", icclStreamQuery(stream));
    FAILS(icclInvalidHandle, "was destroyed", icclBarrier(comms[0], stream));
    FAILS(icclInvalidHandle, "is NULL", icclStreamSynchronize(NULL));
}

static void arguments(void) {
    float numbers[COUNT * RANKS] = {0};
    icclComm_t comm = comms[0];
    size_t counts[RANKS] = {1, 1};
    FAILS(icclInvalidArgument, "datatype: 99",
          icclAllReduce(numbers, numbers, COUNT, (icclDataType_t)99, icclSum, comm, NULL));
    FAILS(icclInvalidArgument, "op: 77",
          icclAllReduce(numbers, numbers, COUNT, icclFloat32, (icclRedOp_t)77, comm, NULL));
    FAILS(icclInvalidArgument, "root: 2 is no rank; there are 0 to 1",
          icclBroadcast(numbers, numbers, COUNT, icclFloat32, RANKS, comm, NULL));
    FAILS(icclInvalidArgument, "root: -1",
          icclGather(numbers, numbers, COUNT, icclFloat32, -1, comm, NULL));
    FAILS(icclInvalidArgument, "peer: -7", icclRecv(numbers, COUNT, icclFloat32, -7, comm, NULL));
    FAILS(icclInvalidArgument, "send buffer is null",
          icclAllReduce(NULL, numbers, COUNT, icclFloat32, icclSum, comm, NULL));
    FAILS(icclInvalidArgument, "receive buffer is null",
          icclAllReduce(numbers, NULL, COUNT, icclFloat32, icclSum, comm, NULL));
    FAILS(icclInvalidArgument, "overlap",
          icclAllReduce(numbers, numbers + 1, COUNT, icclFloat32, icclSum, comm, NULL));
    FAILS(icclInvalidArgument, "more bytes than memory can have",
          icclAllReduce(numbers, numbers, SIZE_MAX, icclFloat32, icclSum, comm, NULL));
    FAILS(icclInvalidArgument, "recvcounts is NULL",
          icclAllGatherV(numbers, numbers, NULL, NULL, icclFloat32, comm, NULL));
    FAILS(icclInvalidArgument, "sendcounts is NULL",
          icclAlltoAllV(numbers, NULL, NULL, numbers, counts, NULL, icclFloat32, comm, NULL));
    FAILS(icclInvalidArgument, "comm is NULL", icclCommInitAll(NULL, 1, NULL));
    FAILS(icclInvalidArgument, "ndev is 0", icclCommInitAll(&comm, 0, NULL));
    comm = comms[0];
    FAILS(icclInvalidArgument, "count is NULL", icclCommCount(comm, NULL));
    FAILS(icclInvalidArgument, "rank is NULL", icclCommUserRank(comm, NULL));
    FAILS(icclInvalidArgument, "device is NULL", icclCommDevice(comm, NULL));
    FAILS(icclInvalidArgument, "asyncError is NULL", icclCommGetAsyncError(comm, NULL));
    FAILS(icclInvalidArgument, "uniqueId is NULL", icclGetUniqueId(NULL));
    FAILS(icclInvalidArgument, "version is NULL", icclGetVersion(NULL));
    FAILS(icclInvalidArgument, "stream is NULL", icclStreamCreate(NULL));
    FAILS(icclInvalidArgument, "ptr is NULL", icclMemAlloc(NULL, 8));
    FAILS(icclInvalidArgument, "newcomm is NULL", icclCommDup(comm, NULL, NULL));
    icclRedOp_t op = icclSum;
    float scalar = 2.0F;
    FAILS(icclInvalidArgument, "op is NULL",
          icclRedOpCreatePreMulSum(NULL, &scalar, icclFloat32, icclScalarHostImmediate, comm));
    FAILS(icclInvalidArgument, "scalar is NULL",
          icclRedOpCreatePreMulSum(&op, NULL, icclFloat32, icclScalarHostImmediate, comm));
    FAILS(icclInvalidArgument, "residence: 5",
          icclRedOpCreatePreMulSum(&op, &scalar, icclFloat32, (icclScalarResidence_t)5, comm));
    OK(icclRedOpCreatePreMulSum(&op, &scalar, icclFloat32, icclScalarHostImmediate, comms[1]));
    FAILS(icclInvalidArgument, "another's",
          icclAllReduce(numbers, numbers, COUNT, icclFloat32, op, comm, NULL));
    FAILS(icclInvalidArgument, "op: 0 is one that all", icclRedOpDestroy(icclSum, comm));
    /* 8 is the runtime's number of a pre-multiplied sum, which is nothing without a scalar. */
    FAILS(icclInvalidArgument, "op: 8",
          icclAllReduce(numbers, numbers, COUNT, icclFloat32, icclNumOps, comm, NULL));
    icclComm_t other = NULL;
    FAILS(icclInvalidArgument, "color is -2", icclCommSplit(comm, -2, 0, &other, NULL));
    FAILS(icclInvalidArgument, "shrinkFlags is 9", icclCommShrink(comm, NULL, 0, &other, NULL, 9));
    FAILS(icclInvalidArgument, "excludeRanksList is NULL",
          icclCommShrink(comm, NULL, 1, &other, NULL, ICCL_SHRINK_DEFAULT));
    TRUE_(other == NULL);
    /* None of that ended the communicator, nor did it count as a call. */
    icclResult_t state = icclInternalError;
    OK(icclCommGetAsyncError(comm, &state));
    TRUE_(state == icclSuccess);

    void *memory = NULL;
    OK(icclMemAlloc(&memory, 64));
    OK(icclMemFree(memory));
    FAILS(icclInvalidArgument, "freed already", icclMemFree(memory));
    OK(icclMemFree(NULL));
    FAILS(icclInvalidArgument, "not allocated by icclMemAlloc", icclMemFree(numbers));
    TRUE_(strcmp(icclGetErrorString((icclResult_t)12345), "no icclResult_t") == 0);
}

static void configurations(void) {
    icclUniqueId id;
    OK(icclGetUniqueId(&id));
    icclComm_t comm = NULL;
    const icclConfig_t good = ICCL_CONFIG_INITIALIZER;
    icclConfig_t config = good;
    config.magic = 7;
    FAILS(icclInvalidArgument, "config.magic", icclCommInitRankConfig(&comm, 1, id, 0, &config));
    config = good;
    config.size = sizeof config + 8;
    FAILS(icclVersionMismatch, "config.size", icclCommInitRankConfig(&comm, 1, id, 0, &config));
    config.size = 16;
    FAILS(icclInvalidArgument, "config.size", icclCommInitRankConfig(&comm, 1, id, 0, &config));
    config = good;
    config.version = 20000;
    FAILS(icclVersionMismatch, "config.version is 20000",
          icclCommInitRankConfig(&comm, 1, id, 0, &config));
    config = good;
    config.blocking = 3;
    FAILS(icclInvalidArgument, "config.blocking is 3",
          icclCommInitRankConfig(&comm, 1, id, 0, &config));
    config = good;
    config.opTimeoutMilliseconds = 0;
    FAILS(icclInvalidArgument, "config.opTimeoutMilliseconds is 0",
          icclCommInitRankConfig(&comm, 1, id, 0, &config));
    config = good;
    config.settings = "[engine]\nop_timeuot = \"1s\"\n";
    FAILS(icclInvalidConfig, "icclConfig_t.settings:2:1",
          icclCommInitRankConfig(&comm, 1, id, 0, &config));
    TRUE_(strstr(icclGetLastError(NULL), "op_timeout") != NULL);
    config = good;
    config.device = "no-such-card";
    FAILS(icclPluginMissing, "no-such-card", icclCommInitRankConfig(&comm, 1, id, 0, &config));
    config = good;
    config.configFile = "/no/such/file.toml";
    FAILS(icclInvalidConfig, "/no/such/file.toml",
          icclCommInitRankConfig(&comm, 1, id, 0, &config));
    FAILS(icclInvalidArgument, "rank: 1 is no rank", icclCommInitRank(&comm, 1, id, 1));
    FAILS(icclInvalidArgument, "nranks is 0", icclCommInitRank(&comm, 0, id, 0));
    FAILS(icclInvalidArgument, "comm is NULL", icclCommInitRank(NULL, 1, id, 0));
    id.internal[60] ^= 1;
    FAILS(icclInvalidArgument, "unique id", icclCommInitRank(&comm, 1, id, 0));
    memset(&id, 0, sizeof id);
    FAILS(icclInvalidArgument, "unique id", icclCommInitRank(&comm, 1, id, 0));
    TRUE_(comm == NULL);
}

static void groups(void) {
    float numbers[RANKS][COUNT];
    FAILS(icclInvalidUsage, "not started", icclGroupEnd());
    OK(icclGroupStart());
    FAILS(icclInvalidUsage, "group", icclCommInitAll(comms, RANKS, NULL));
    OK(icclGroupEnd());
    /* One call that is refused, and nothing of the group is done. */
    for (int rank = 0; rank < RANKS; rank++) {
        for (int i = 0; i < COUNT; i++) {
            numbers[rank][i] = (float)rank;
        }
    }
    OK(icclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) {
        OK(icclAllReduce(numbers[rank], numbers[rank], COUNT, icclFloat32, icclSum, comms[rank],
                         NULL));
    }
    FAILS(icclInvalidArgument, "datatype",
          icclBcast(numbers[0], COUNT, (icclDataType_t)99, 0, comms[0], NULL));
    FAILS(icclInvalidArgument, "icclBcast was refused", icclGroupEnd());
    for (int rank = 0; rank < RANKS; rank++) {
        OK(icclCommSynchronize(comms[rank]));
        TRUE_(numbers[rank][0] == (float)rank);
    }
    /* A call that makes a communicator is one of the group's. */
    icclComm_t part = NULL;
    OK(icclGroupStart());
    OK(icclCommDup(comms[0], &part, NULL));
    FAILS(icclInvalidArgument, "color is -2", icclCommSplit(comms[0], -2, 0, &part, NULL));
    FAILS(icclInvalidArgument, "icclCommSplit was refused", icclGroupEnd());
    ANSWERS(icclInvalidHandle, icclCommDestroy(part));
    icclUniqueId id;
    OK(icclGetUniqueId(&id));
    time_t started = time(NULL);
    OK(icclGroupStart());
    OK(icclCommInitRank(&part, 2, id, 0));
    FAILS(icclInvalidArgument, "rank", icclCommInitRank(&part, 2, id, 2));
    FAILS(icclInvalidArgument, "icclCommInitRank was refused", icclGroupEnd());
    ANSWERS(icclInvalidHandle, icclCommDestroy(part));
    /* It did not wait for rank 1, for which it had a minute. */
    TRUE_(time(NULL) - started < 30);
    /* A shrink that is refused ends nothing. */
    FAILS(icclInvalidArgument, "newcomm",
          icclCommShrink(comms[0], NULL, 0, NULL, NULL, ICCL_SHRINK_ABORT));
    int self = 0;
    FAILS(icclInvalidArgument, "itself",
          icclCommShrink(comms[0], &self, 1, &part, NULL, ICCL_SHRINK_ABORT));
    /* The communicators are as if it had not been. */
    OK(icclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) {
        OK(icclAllReduce(numbers[rank], numbers[rank], COUNT, icclFloat32, icclSum, comms[rank],
                         NULL));
    }
    OK(icclGroupEnd());
    for (int rank = 0; rank < RANKS; rank++) {
        OK(icclCommSynchronize(comms[rank]));
        TRUE_(numbers[rank][0] == 1.0F);
    }
}

/* Uses a communicator until its handle is gone. */
static void *use(void *argument) {
    icclComm_t comm = *(icclComm_t *)argument;
    for (;;) {
        int ranks = 0;
        icclResult_t result = icclCommCount(comm, &ranks);
        if (result == icclSuccess) {
            result = icclBarrier(comm, NULL);
        }
        if (result == icclSuccess) {
            (void)icclCommSynchronize(comm);
        }
        if (result == icclInvalidHandle) {
            return NULL;
        }
    }
}

static void two_threads(void) {
    for (int round = 0; round < 10; round++) {
        icclComm_t comm = NULL;
        OK(icclCommInitAll(&comm, 1, NULL));
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) {
            TRUE_(pthread_create(&threads[i], NULL, use, &comm) == 0);
        }
        if (round % 2 == 0) {
            OK(icclCommAbort(comm));
        } else {
            (void)icclCommDestroy(comm);
        }
        FAILS(icclInvalidHandle, "was destroyed", icclCommDestroy(comm));
        for (int i = 0; i < 2; i++) {
            TRUE_(pthread_join(threads[i], NULL) == 0);
        }
    }
}

static void destroyed(void) {
    float numbers[COUNT] = {0};
    for (int rank = 0; rank < RANKS; rank++) {
        OK(icclCommFinalize(comms[rank]));
    }
    FAILS(icclInvalidUsage, "was finalized", icclBarrier(comms[0], NULL));
    FAILS(icclInvalidUsage, "was finalized", icclCommFinalize(comms[0]));
    int ranks = 0;
    OK(icclCommCount(comms[0], &ranks));
    TRUE_(ranks == RANKS);
    for (int rank = 0; rank < RANKS; rank++) {
        OK(icclCommDestroy(comms[rank]));
    }
    for (int rank = 0; rank < RANKS; rank++) {
        FAILS(icclInvalidHandle, "was destroyed", icclCommDestroy(comms[rank]));
        FAILS(icclInvalidHandle, "was destroyed", icclCommAbort(comms[rank]));
        FAILS(icclInvalidHandle, "was destroyed",
              icclAllReduce(numbers, numbers, COUNT, icclFloat32, icclSum, comms[rank], NULL));
        TRUE_(strstr(icclGetLastError(comms[rank]), "icclAllReduce") != NULL);
    }
    /* A new communicator has the place, and another handle. */
    icclComm_t again[RANKS];
    OK(icclCommInitAll(again, RANKS, NULL));
    for (int rank = 0; rank < RANKS; rank++) {
        int number = 0;
        ANSWERS(icclInvalidHandle, icclCommCount(comms[rank], &number));
        OK(icclCommUserRank(again[rank], &number));
        TRUE_(number == rank);
        OK(icclCommAbort(again[rank]));
        ANSWERS(icclInvalidHandle, icclCommDestroy(again[rank]));
    }
}

int main(void) {
    TRUE_(strcmp(icclGetLastError(NULL), "") == 0);
    OK(icclCommInitAll(comms, RANKS, NULL));
    handles();
    arguments();
    configurations();
    groups();
    two_threads();
    destroyed();
    puts("all refused");
    return 0;
}
