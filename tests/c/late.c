/* Calls at the very end: by what destroys a thread's values, and by what runs at the end of the program, as
 * destructors of C++ do. */
#include <pthread.h>

#include "check.h"

static icclComm_t comm;
static pthread_key_t key;
static int threads_ended;

static void compute(void) {
    float one = 1;
    float other = 0;
    OK(icclAllReduce(&one, &one, 1, icclFloat32, icclSum, comm, NULL));
    OK(icclGroupStart());
    OK(icclSend(&one, 1, icclFloat32, 0, comm, NULL));
    OK(icclRecv(&other, 1, icclFloat32, 0, comm, NULL));
    OK(icclGroupEnd());
    OK(icclCommSynchronize(comm));
    TRUE_(one == 1 && other == 1);
    icclComm_t copy = NULL;
    OK(icclGroupStart());
    OK(icclCommDup(comm, &copy, NULL));
    OK(icclGroupEnd());
    OK(icclCommDestroy(copy));
}

static void at_end_of_thread(void *value) {
    (void)value;
    compute();
    threads_ended++;
}

static void *thread(void *unused) {
    TRUE_(pthread_setspecific(key, &key) == 0);
    compute();
    return unused;
}

static void at_end(void) {
    compute();
    OK(icclCommDestroy(comm));
    puts("right to the end");
    fflush(stdout);
}

int main(void) {
    TRUE_(atexit(at_end) == 0);
    TRUE_(pthread_key_create(&key, at_end_of_thread) == 0);
    OK(icclCommInitWorld(&comm, NULL));
    pthread_t other;
    TRUE_(pthread_create(&other, NULL, thread, NULL) == 0);
    TRUE_(pthread_join(other, NULL) == 0);
    TRUE_(threads_ended == 1);
    compute();
    return 0;
}
