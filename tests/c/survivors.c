/* One rank dies; the others make a communicator without it, and go on. Started with ICCL_* variables. */
#include <signal.h>

#include "check.h"

enum { MOST = 16 };

int main(void) {
    icclComm_t comm = NULL;
    OK(icclCommInitWorld(&comm, NULL));
    int rank = 0;
    int ranks = 0;
    OK(icclCommUserRank(comm, &rank));
    OK(icclCommCount(comm, &ranks));
    TRUE_(ranks <= MOST);
    int sum = 1;
    OK(icclAllReduce(&sum, &sum, 1, icclInt32, icclSum, comm, NULL));
    OK(icclCommSynchronize(comm));
    TRUE_(sum == ranks);
    /* It dies when the others have got their sum. */
    if (rank == 1) {
        int from[MOST];
        for (int other = 0; other < ranks; other++) {
            if (other != rank) {
                OK(icclRecv(&from[other], 1, icclInt32, other, comm, NULL));
            }
        }
        OK(icclCommSynchronize(comm));
        raise(SIGKILL);
    }
    OK(icclSend(&sum, 1, icclInt32, 1, comm, NULL));

    /* It is told who is gone, as the result of the operation and by the communicator. */
    icclResult_t told = icclBarrier(comm, NULL);
    if (told == icclSuccess) {
        told = icclCommSynchronize(comm);
    }
    TRUE_(told == icclRemoteError && strstr(icclGetLastError(NULL), "rank 1") != NULL);
    icclResult_t state = icclSuccess;
    OK(icclCommGetAsyncError(comm, &state));
    TRUE_(state == icclRemoteError);
    FAILS(icclRemoteError, "rank 1", icclBarrier(comm, NULL));

    icclComm_t smaller = NULL;
    icclResult_t result;
    do {
        int lost[MOST];
        int count = 0;
        OK(icclCommGetLostRanks(comm, lost, &count));
        TRUE_(count <= 1 && (count == 0 || lost[0] == 1));
        result = icclCommShrink(comm, lost, count, &smaller, NULL, ICCL_SHRINK_ABORT);
    } while (result == icclRemoteError || result == icclMismatch);
    OK(result);
    (void)icclCommDestroy(comm);

    int left = 0;
    OK(icclCommCount(smaller, &left));
    TRUE_(left == ranks - 1);
    sum = 1;
    OK(icclAllReduce(&sum, &sum, 1, icclInt32, icclSum, smaller, NULL));
    OK(icclCommSynchronize(smaller));
    TRUE_(sum == left);
    OK(icclCommDestroy(smaller));
    printf("%d went on\n", left);
    return 0;
}
