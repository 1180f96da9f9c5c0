/* A child of fork, while communicators, streams and threads of its parent are busy: it is refused, can end what
 * it has a copy of, and may use the library for itself. */
#define _DEFAULT_SOURCE
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

enum { RANKS = 2, CHILDREN = 8 };

static icclComm_t comms[RANKS];
static icclComm_t pending;
static icclStream_t stream;

static void of_its_own(icclResult_t with_that_stream) {
    icclComm_t own[RANKS];
    OK(icclCommInitAll(own, RANKS, NULL));
    int numbers[RANKS] = {1, 2};
    for (int rank = 0; rank < RANKS; rank++) {
        OK(icclAllReduce(&numbers[rank], &numbers[rank], 1, icclInt32, icclSum, own[rank], NULL));
    }
    ANSWERS(with_that_stream, icclBarrier(own[0], stream));
    for (int rank = 0; rank < RANKS; rank++) {
        OK(icclCommSynchronize(own[rank]));
        TRUE_(numbers[rank] == 3);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        OK(icclCommDestroy(own[rank]));
    }
}

static void child(int which) {
    /* Whatever waits for ever is a failure. */
    alarm(120);
    int number = 0;
    icclResult_t state = icclSuccess;
    ANSWERS(icclForked, icclAllReduce(&number, &number, 1, icclInt32, icclSum, comms[0], stream));
    ANSWERS(icclForked, icclStreamQuery(stream));
    ANSWERS(icclForked, icclStreamSynchronize(stream));
    ANSWERS(icclForked, icclCommSynchronize(comms[1]));
    OK(icclCommGetAsyncError(pending, &state));
    TRUE_(state == icclForked);
    if (which % 2 == 0) {
        of_its_own(icclForked);
    }
    ANSWERS(icclForked, icclStreamDestroy(stream));
    OK(icclCommDestroy(pending));
    for (int rank = 0; rank < RANKS; rank++) {
        ANSWERS(icclForked, icclCommDestroy(comms[rank]));
    }
    of_its_own(icclInvalidHandle);
    exit(0);
}

int main(void) {
    OK(icclCommInitAll(comms, RANKS, NULL));
    OK(icclStreamCreate(&stream));
    icclConfig_t config = ICCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    icclUniqueId id;
    OK(icclGetUniqueId(&id));
    ANSWERS(icclInProgress, icclCommInitRankConfig(&pending, 2, id, 0, &config));
    /* It waits for the other rank, as does what comes after it. */
    int numbers[RANKS] = {1, 2};
    OK(icclAllReduce(&numbers[0], &numbers[0], 1, icclInt32, icclSum, comms[0], stream));
    for (int which = 0; which < CHILDREN; which++) {
        pid_t pid = fork();
        TRUE_(pid >= 0);
        if (pid == 0) {
            child(which);
        }
        int status = 0;
        TRUE_(waitpid(pid, &status, 0) == pid);
        TRUE_(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    /* The parent is as it was. */
    OK(icclAllReduce(&numbers[1], &numbers[1], 1, icclInt32, icclSum, comms[1], NULL));
    OK(icclCommSynchronize(comms[1]));
    OK(icclStreamSynchronize(stream));
    TRUE_(numbers[0] == 3 && numbers[1] == 3);
    OK(icclCommAbort(pending));
    for (int rank = 0; rank < RANKS; rank++) {
        OK(icclCommDestroy(comms[rank]));
    }
    OK(icclStreamDestroy(stream));
    puts("children did no harm");
    return 0;
}
