/*
 * The ranks that a launcher started average a vector.
 *
 *     cc -std=c11 all_reduce.c $(pkg-config --cflags --libs iccl) -o all_reduce
 *     iccl run -n 4 -- ./all_reduce
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>

#include <iccl.h>

#define CHECK(call)                                                                   \
    do {                                                                              \
        icclResult_t result = (call);                                                 \
        if (result != icclSuccess) {                                                  \
            fprintf(stderr, "%s: %s\n", icclGetErrorString(result), icclGetLastError(NULL)); \
            exit(1);                                                                  \
        }                                                                             \
    } while (0)

enum { COUNT = 1000 };

int main(void) {
    icclComm_t comm;
    CHECK(icclCommInitWorld(&comm, NULL));
    int rank = 0;
    int ranks = 0;
    CHECK(icclCommUserRank(comm, &rank));
    CHECK(icclCommCount(comm, &ranks));

    float *send = malloc(COUNT * sizeof *send);
    float *receive = malloc(COUNT * sizeof *receive);
    if (send == NULL || receive == NULL) {
        return 1;
    }
    for (int i = 0; i < COUNT; i++) {
        send[i] = (float)(rank + i);
    }

    /* The call returns at once; NULL is the communicator's own stream. */
    CHECK(icclAllReduce(send, receive, COUNT, icclFloat32, icclAvg, comm, NULL));
    CHECK(icclCommSynchronize(comm));

    for (int i = 0; i < COUNT; i++) {
        float expected = (float)(ranks - 1) / 2.0F + (float)i;
        if (receive[i] < expected || receive[i] > expected) {
            fprintf(stderr, "element %d is %g, not %g\n", i, receive[i], expected);
            return 1;
        }
    }
    printf("rank %d of %d: the mean of the ranks is %g\n", rank, ranks, receive[0]);
    free(send);
    free(receive);
    CHECK(icclCommDestroy(comm));
    return 0;
}
