/* Every operation, with numbers that tell who sent what. Run by `iccl run -n N`, N at least 3. */
#include <stdint.h>

#include "check.h"

enum { BLOCK = 5, MOST = 16 };

static icclComm_t comm;
static int rank;
static int ranks;

/* What `from` sends as element `at` of the block for `to`. */
static int32_t number(int from, int to, int at) {
    return from * 10000 + to * 100 + at;
}

static void reductions(void) {
    int32_t send[MOST * BLOCK];
    int32_t receive[MOST * BLOCK];
    int32_t sum_of_ranks = (int32_t)(ranks * (ranks - 1) / 2);
    for (int i = 0; i < ranks * BLOCK; i++) {
        send[i] = rank + i;
    }
    memset(receive, 0xff, sizeof receive);
    OK(icclAllReduce(send, receive, BLOCK, icclInt, icclSum, comm, NULL));
    OK(icclCommSynchronize(comm));
    for (int i = 0; i < BLOCK; i++) {
        TRUE_(receive[i] == sum_of_ranks + ranks * i);
    }
    TRUE_(receive[BLOCK] == -1);

    memset(receive, 0xff, sizeof receive);
    OK(icclReduce(send, rank == 1 ? receive : NULL, BLOCK, icclInt32, icclMax, 1, comm, NULL));
    OK(icclCommSynchronize(comm));
    for (int i = 0; i < BLOCK; i++) {
        TRUE_(receive[i] == (rank == 1 ? ranks - 1 + i : -1));
    }

    /* In place: each rank's block of its own send buffer. */
    OK(icclReduceScatter(send, send + rank * BLOCK, BLOCK, icclInt32, icclSum, comm, NULL));
    OK(icclCommSynchronize(comm));
    for (int i = 0; i < BLOCK; i++) {
        TRUE_(send[rank * BLOCK + i] == sum_of_ranks + ranks * (rank * BLOCK + i));
    }
}

static void scaled(void) {
    /* Each rank has a scalar of its own: 1, 2, 3, ... */
    int32_t numbers[BLOCK] = {1, 2, 3, 4, 5};
    int32_t sums[BLOCK];
    int32_t scalar = rank + 1;
    int32_t sum_of_scalars = (int32_t)(ranks * (ranks + 1) / 2);
    icclRedOp_t now;
    icclRedOp_t later;
    OK(icclRedOpCreatePreMulSum(&now, &scalar, icclInt32, icclScalarHostImmediate, comm));
    OK(icclRedOpCreatePreMulSum(&later, &scalar, icclInt32, icclScalarDevice, comm));
    TRUE_(now != later && now >= icclNumOps && later >= icclNumOps);
    scalar *= 10;
    OK(icclAllReduce(numbers, sums, BLOCK, icclInt32, now, comm, NULL));
    OK(icclCommSynchronize(comm));
    TRUE_(sums[4] == 5 * sum_of_scalars);
    OK(icclAllReduce(numbers, sums, BLOCK, icclInt32, later, comm, NULL));
    OK(icclCommSynchronize(comm));
    TRUE_(sums[4] == 50 * sum_of_scalars);
    FAILS(icclInvalidArgument, "was made for i32, the elements are f32",
          icclAllReduce(numbers, sums, BLOCK, icclFloat32, now, comm, NULL));
    OK(icclRedOpDestroy(now, comm));
    FAILS(icclInvalidArgument, "was destroyed", icclRedOpDestroy(now, comm));
    FAILS(icclInvalidArgument, "was destroyed",
          icclAllReduce(numbers, sums, BLOCK, icclInt32, now, comm, NULL));
    OK(icclRedOpDestroy(later, comm));
    OK(icclAllReduce(&scalar, sums, 1, icclInt32, icclBor, comm, NULL));
    OK(icclCommSynchronize(comm));
    int32_t bits = 0;
    for (int r = 1; r <= ranks; r++) {
        bits |= r * 10;
    }
    TRUE_(sums[0] == bits);
}

static void blocks(void) {
    int32_t mine[MOST * BLOCK];
    int32_t all[MOST * BLOCK];
    for (int to = 0; to < ranks; to++) {
        for (int i = 0; i < BLOCK; i++) {
            mine[to * BLOCK + i] = number(rank, to, i);
        }
    }
    int32_t word = rank == 2 ? 4711 : 0;
    int32_t heard = 0;
    OK(icclBcast(&word, 1, icclInt32, 2, comm, NULL));
    OK(icclBroadcast(rank == 0 ? &word : NULL, &heard, 1, icclInt32, 0, comm, NULL));
    OK(icclCommSynchronize(comm));
    TRUE_(word == 4711 && heard == 4711);

    OK(icclAllGather(mine, all, BLOCK, icclInt32, comm, NULL));
    OK(icclCommSynchronize(comm));
    for (int from = 0; from < ranks; from++) {
        TRUE_(all[from * BLOCK + 3] == number(from, 0, 3));
    }

    memset(all, 0xff, sizeof all);
    OK(icclGather(mine, rank == 0 ? all : NULL, BLOCK, icclInt32, 0, comm, NULL));
    OK(icclCommSynchronize(comm));
    for (int from = 0; from < ranks; from++) {
        TRUE_(all[from * BLOCK + 4] == (rank == 0 ? number(from, 0, 4) : -1));
    }

    OK(icclScatter(rank == 1 ? mine : NULL, all, BLOCK, icclInt32, 1, comm, NULL));
    OK(icclCommSynchronize(comm));
    TRUE_(all[2] == number(1, rank, 2));

    OK(icclAlltoAll(mine, all, BLOCK, icclInt32, comm, NULL));
    OK(icclCommSynchronize(comm));
    for (int from = 0; from < ranks; from++) {
        TRUE_(all[from * BLOCK + 1] == number(from, rank, 1));
    }
}

static void vectors(void) {
    /* Rank r's block has r elements; they lie one behind the other, or two apart. */
    size_t counts[MOST];
    size_t apart[MOST];
    size_t next = 0;
    for (int r = 0; r < ranks; r++) {
        counts[r] = (size_t)r;
        apart[r] = next + 2 * (size_t)r;
        next += (size_t)r;
    }
    int32_t mine[MOST * MOST];
    int32_t all[MOST * MOST];
    for (int i = 0; i < MOST * MOST; i++) {
        mine[i] = number(rank, 0, i % 100);
    }
    memset(all, 0xff, sizeof all);
    OK(icclAllGatherV(mine, all, counts, NULL, icclInt32, comm, NULL));
    OK(icclCommSynchronize(comm));
    TRUE_(all[0] == number(1, 0, 0) && all[1] == number(2, 0, 0) && all[2] == number(2, 0, 1));
    TRUE_(all[next] == -1);

    memset(all, 0xff, sizeof all);
    OK(icclGatherV(mine, (size_t)rank, all, counts, apart, icclInt32, 0, comm, NULL));
    OK(icclCommSynchronize(comm));
    TRUE_(all[apart[2] + 1] == (rank == 0 ? number(2, 0, 1) : -1));
    TRUE_(all[apart[2] - 1] == -1);

    memset(all, 0xff, sizeof all);
    OK(icclScatterV(mine, counts, apart, all, (size_t)rank, icclInt32, 0, comm, NULL));
    OK(icclCommSynchronize(comm));
    for (int i = 0; i < rank; i++) {
        TRUE_(all[i] == number(0, 0, (int)apart[rank] + i));
    }
    TRUE_(all[rank] == -1);

    memset(all, 0xff, sizeof all);
    OK(icclReduceScatterV(mine, all, counts, NULL, icclInt32, icclSum, comm, NULL));
    OK(icclCommSynchronize(comm));
    for (int i = 0; i < rank; i++) {
        int at = rank * (rank - 1) / 2 + i;
        TRUE_(all[i] == ranks * (ranks - 1) / 2 * 10000 + ranks * at);
    }
    TRUE_(all[rank] == -1);

    /* Rank a sends rank b a + b elements. */
    size_t to[MOST];
    for (int r = 0; r < ranks; r++) {
        to[r] = (size_t)(rank + r);
    }
    memset(all, 0xff, sizeof all);
    OK(icclAlltoAllV(mine, to, NULL, all, to, NULL, icclInt32, comm, NULL));
    OK(icclCommSynchronize(comm));
    size_t at = 0;
    for (int from = 0; from < ranks; from++) {
        size_t first = 0;
        for (int r = 0; r < rank; r++) {
            first += (size_t)(from + r);
        }
        for (size_t i = 0; i < to[from]; i++) {
            TRUE_(all[at + i] == number(from, 0, (int)((first + i) % 100)));
        }
        at += to[from];
    }
    TRUE_(all[at] == -1);
}

static void messages(void) {
    icclStream_t stream = NULL;
    icclStream_t other = NULL;
    OK(icclStreamCreate(&stream));
    OK(icclCommStreamCreate(comm, &other));
    void *memory = NULL;
    OK(icclMemAlloc(&memory, 2 * BLOCK * sizeof(int32_t)));
    int32_t *mine = memory;
    int32_t *theirs = mine + BLOCK;
    TRUE_(theirs[BLOCK - 1] == 0);
    for (int i = 0; i < BLOCK; i++) {
        mine[i] = number(rank, 0, i);
    }
    int right = (rank + 1) % ranks;
    int left = (rank + ranks - 1) % ranks;
    OK(icclGroupStart());
    OK(icclSend(mine, BLOCK, icclInt32, right, comm, stream));
    OK(icclRecv(theirs, BLOCK, icclInt32, left, comm, stream));
    OK(icclGroupEnd());
    OK(icclStreamWaitStream(other, stream));
    /* What came is passed on, in the order of the streams. */
    OK(icclAllReduce(theirs, theirs, BLOCK, icclInt32, icclMin, comm, other));
    OK(icclStreamSynchronize(other));
    TRUE_(theirs[3] == number(0, 0, 3));
    OK(icclStreamSynchronize(stream));
    ANSWERS(icclSuccess, icclStreamQuery(stream));
    OK(icclBarrier(comm, other));
    OK(icclStreamDestroy(other));
    OK(icclStreamDestroy(stream));
    OK(icclMemFree(memory));
}

static void parts(void) {
    icclConfig_t config = ICCL_CONFIG_INITIALIZER;
    config.commName = "part";
    icclComm_t part = NULL;
    /* Even and odd ranks, the other way round. */
    OK(icclCommSplit(comm, rank % 2, -rank, &part, &config));
    int part_ranks = 0;
    int part_rank = -1;
    OK(icclCommCount(part, &part_ranks));
    OK(icclCommUserRank(part, &part_rank));
    TRUE_(part_ranks == (ranks + 1 - rank % 2) / 2);
    TRUE_(part_rank == part_ranks - 1 - rank / 2);
    int32_t sum = 1;
    OK(icclAllReduce(&sum, &sum, 1, icclInt32, icclSum, part, NULL));
    OK(icclCommSynchronize(part));
    TRUE_(sum == part_ranks);
    FAILS(icclInvalidArgument, "on \"part\"",
          icclAllReduce(&sum, &sum, 1, (icclDataType_t)50, icclSum, part, NULL));
    TRUE_(strstr(icclGetLastError(part), "datatype: 50") != NULL);
    TRUE_(strstr(icclGetLastError(comm), "datatype: 50") == NULL);
    OK(icclCommDestroy(part));

    OK(icclCommSplit(comm, rank == 0 ? ICCL_SPLIT_NOCOLOR : 7, rank, &part, NULL));
    TRUE_((part == NULL) == (rank == 0));
    if (part != NULL) {
        OK(icclCommDestroy(part));
    }
    config.settings = "[engine]\nop_timeout = \"1s\"\n";
    FAILS(icclInvalidArgument, "blocking and commName", icclCommDup(comm, &part, &config));

    OK(icclCommDup(comm, &part, NULL));
    icclComm_t smaller = NULL;
    int last = ranks - 1;
    if (rank != last) {
        OK(icclCommShrink(part, &last, 1, &smaller, NULL, ICCL_SHRINK_DEFAULT));
        OK(icclCommCount(smaller, &part_ranks));
        TRUE_(part_ranks == ranks - 1);
        OK(icclBarrier(smaller, NULL));
        OK(icclCommDestroy(smaller));
    }
    int lost[MOST];
    int lost_count = -1;
    OK(icclCommGetLostRanks(comm, lost, &lost_count));
    TRUE_(lost_count == 0);
    OK(icclCommDestroy(part));
}

int main(void) {
    int version = 0;
    OK(icclGetVersion(&version));
    TRUE_(version == ICCL_VERSION_CODE && version == ICCL_VERSION(ICCL_MAJOR, ICCL_MINOR, ICCL_PATCH));
    icclConfig_t config = ICCL_CONFIG_INITIALIZER;
    config.opTimeoutMilliseconds = 120000;
    config.settings = "[engine]\nchunk_bytes = \"64KiB\"\n";
    OK(icclCommInitWorld(&comm, &config));
    OK(icclCommUserRank(comm, &rank));
    OK(icclCommCount(comm, &ranks));
    TRUE_(ranks >= 3 && ranks <= MOST);
    int device = -1;
    OK(icclCommDevice(comm, &device));
    TRUE_(device == 0);
    reductions();
    scaled();
    blocks();
    vectors();
    messages();
    parts();
    OK(icclCommFinalize(comm));
    OK(icclCommDestroy(comm));
    printf("rank %d: every call was right\n", rank);
    return 0;
}
