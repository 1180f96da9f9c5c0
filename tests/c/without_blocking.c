/* Communicators that one thread makes and ends: in groups, and without blocking, with an abort meanwhile. */
#include <pthread.h>
#include <time.h>

#include "check.h"

static double seconds(void) {
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static icclConfig_t without_blocking(void) {
    icclConfig_t config = ICCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = "quiet";
    return config;
}

/* Polls until something else than icclInProgress. */
static icclResult_t state_of(icclComm_t comm) {
    icclResult_t state = icclInProgress;
    while (state == icclInProgress) {
        OK(icclCommGetAsyncError(comm, &state));
    }
    return state;
}

static void must_be_well(icclComm_t comm) {
    if (state_of(comm) != icclSuccess) {
        fprintf(stderr, "not well: %s\n", icclGetLastError(comm));
        exit(1);
    }
}

static void *abort_it(void *comm) {
    OK(icclCommAbort((icclComm_t)comm));
    return NULL;
}

/* The other rank never comes. */
static void abandoned(void) {
    icclUniqueId id;
    OK(icclGetUniqueId(&id));
    icclConfig_t config = without_blocking();
    icclComm_t comm = NULL;
    double before = seconds();
    ANSWERS(icclInProgress, icclCommInitRankConfig(&comm, 2, id, 0, &config));
    icclResult_t state = icclSuccess;
    OK(icclCommGetAsyncError(comm, &state));
    TRUE_(state == icclInProgress);
    int number = 0;
    FAILS(icclInvalidUsage, "still being made", icclCommCount(comm, &number));
    FAILS(icclInvalidUsage, "\"quiet\"", icclBarrier(comm, NULL));
    pthread_t thread;
    TRUE_(pthread_create(&thread, NULL, abort_it, comm) == 0);
    TRUE_(pthread_join(thread, NULL) == 0);
    ANSWERS(icclInvalidHandle, icclCommGetAsyncError(comm, &state));
    /* Far less than the init timeout of a minute. */
    TRUE_(seconds() - before < 20);
}

/* One thread makes both ranks, one after the other. */
static void together(void) {
    enum { RANKS = 2 };
    icclUniqueId id;
    OK(icclGetUniqueId(&id));
    icclConfig_t config = without_blocking();
    icclComm_t comms[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        ANSWERS(icclInProgress, icclCommInitRankConfig(&comms[rank], RANKS, id, rank, &config));
    }
    for (int rank = 0; rank < RANKS; rank++) {
        must_be_well(comms[rank]);
    }
    int numbers[RANKS] = {1, 2};
    for (int rank = 0; rank < RANKS; rank++) {
        OK(icclAllReduce(&numbers[rank], &numbers[rank], 1, icclInt32, icclProd, comms[rank],
                         NULL));
    }
    /* Parts of communicators inherit that they do not block. */
    icclComm_t parts[RANKS];
    for (int rank = 0; rank < RANKS; rank++) {
        ANSWERS(icclInProgress, icclCommDup(comms[rank], &parts[rank], NULL));
    }
    for (int rank = 0; rank < RANKS; rank++) {
        must_be_well(parts[rank]);
        OK(icclCommSynchronize(comms[rank]));
        TRUE_(numbers[rank] == 2);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        ANSWERS(icclInProgress, icclCommFinalize(parts[rank]));
        ANSWERS(icclInProgress, icclCommFinalize(comms[rank]));
    }
    for (int rank = 0; rank < RANKS; rank++) {
        must_be_well(parts[rank]);
        must_be_well(comms[rank]);
        OK(icclCommDestroy(parts[rank]));
        OK(icclCommDestroy(comms[rank]));
    }
}

/* Calls that block do so at the end of the group. */
static void in_groups(void) {
    enum { RANKS = 3 };
    icclUniqueId id;
    OK(icclGetUniqueId(&id));
    icclComm_t comms[RANKS];
    icclComm_t parts[RANKS];
    OK(icclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) {
        OK(icclCommInitRank(&comms[rank], RANKS, id, rank));
    }
    OK(icclGroupEnd());
    /* Ranks 2 and 0, in this order; rank 1 gets none. */
    OK(icclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) {
        int color = rank == 1 ? ICCL_SPLIT_NOCOLOR : 0;
        OK(icclCommSplit(comms[rank], color, -rank, &parts[rank], NULL));
    }
    OK(icclGroupEnd());
    TRUE_(parts[1] == NULL);
    int number = -1;
    OK(icclCommUserRank(parts[0], &number));
    TRUE_(number == 1);
    OK(icclCommUserRank(parts[2], &number));
    TRUE_(number == 0);

    int sums[RANKS] = {1, 1, 1};
    OK(icclGroupStart());
    for (int rank = 0; rank < RANKS; rank++) {
        OK(icclAllReduce(&sums[rank], &sums[rank], 1, icclInt32, icclSum,
                         rank == 1 ? comms[1] : parts[rank], NULL));
    }
    /* Rank 1's all-reduce is of all three. */
    int more[RANKS] = {1, 0, 1};
    for (int rank = 0; rank < RANKS; rank += 2) {
        OK(icclAllReduce(&more[rank], &more[rank], 1, icclInt32, icclSum, comms[rank], NULL));
    }
    OK(icclGroupEnd());
    for (int rank = 0; rank < RANKS; rank++) {
        OK(icclCommSynchronize(comms[rank]));
        if (parts[rank] != NULL) {
            OK(icclCommSynchronize(parts[rank]));
        }
        TRUE_(sums[rank] == (rank == 1 ? 3 : 2));
    }
    TRUE_(more[0] == 3 && more[2] == 3);
    OK(icclCommDestroy(parts[0]));
    OK(icclCommDestroy(parts[2]));
    for (int rank = 0; rank < RANKS; rank++) {
        OK(icclCommDestroy(comms[rank]));
    }

    /* One of two cannot come to be: the end says why, and its handle is gone. */
    OK(icclGetUniqueId(&id));
    icclConfig_t config = ICCL_CONFIG_INITIALIZER;
    config.initTimeoutMilliseconds = 6000;
    OK(icclGroupStart());
    OK(icclCommInitRankConfig(&comms[0], 2, id, 0, &config));
    TRUE_(icclGroupEnd() != icclSuccess);
    TRUE_(strstr(icclGetLastError(NULL), "missing ranks [1]") != NULL);
    ANSWERS(icclInvalidHandle, icclCommDestroy(comms[0]));
}

/* A communicator that cannot be made says why. */
static void refused(void) {
    icclUniqueId id;
    OK(icclGetUniqueId(&id));
    icclConfig_t config = without_blocking();
    config.initTimeoutMilliseconds = 300;
    icclComm_t comm = NULL;
    ANSWERS(icclInProgress, icclCommInitRankConfig(&comm, 3, id, 1, &config));
    icclResult_t state = state_of(comm);
    TRUE_(state != icclSuccess);
    TRUE_(strlen(icclGetLastError(comm)) > 0);
    ANSWERS(state, icclBarrier(comm, NULL));
    OK(icclCommDestroy(comm));
}

int main(void) {
    abandoned();
    together();
    in_groups();
    refused();
    puts("nothing blocked");
    return 0;
}
