/* Communicators that are made and ended without blocking, and an abort meanwhile. */
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
    refused();
    puts("nothing blocked");
    return 0;
}
