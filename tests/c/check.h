/* What the test programs share. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <iccl.h>

/* The call must answer `wanted`. */
#define ANSWERS(wanted, call)                                                            \
    do {                                                                                 \
        icclResult_t got_ = (call);                                                      \
        if (got_ != (wanted)) {                                                          \
            fprintf(stderr, "%s:%d: %s: %s (%d), wanted %s: %s\n", __FILE__, __LINE__,   \
                    #call, icclGetErrorString(got_), (int)got_,                          \
                    icclGetErrorString(wanted), icclGetLastError(NULL));                 \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

#define OK(call) ANSWERS(icclSuccess, call)

/* The call must answer `wanted`, and the error must say `text`. */
#define FAILS(wanted, text, call)                                                        \
    do {                                                                                 \
        ANSWERS(wanted, call);                                                           \
        if (strstr(icclGetLastError(NULL), text) == NULL) {                              \
            fprintf(stderr, "%s:%d: %s: the error does not say \"%s\": %s\n", __FILE__,  \
                    __LINE__, #call, text, icclGetLastError(NULL));                      \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

#define TRUE_(condition)                                                                 \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);      \
            exit(1);                                                                     \
        }                                                                                \
    } while (0)

#endif
