/*
 * A program for NCCL as its users write them: one process, one thread, a rank for every card. The test
 * turns it into one for iccl by renaming, and runs it.
 */
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime.h>
#include <nccl.h>

#define CUDACHECK(cmd)                                                                    \
    do {                                                                                  \
        cudaError_t err = cmd;                                                            \
        if (err != cudaSuccess) {                                                         \
            printf("CUDA error %s:%d '%s'\n", __FILE__, __LINE__, cudaGetErrorString(err)); \
            exit(EXIT_FAILURE);                                                           \
        }                                                                                 \
    } while (0)

#define NCCLCHECK(cmd)                                                                    \
    do {                                                                                  \
        ncclResult_t res = cmd;                                                           \
        if (res != ncclSuccess) {                                                         \
            printf("NCCL error %s:%d '%s'\n", __FILE__, __LINE__, ncclGetErrorString(res)); \
            exit(EXIT_FAILURE);                                                           \
        }                                                                                 \
    } while (0)

int main(void) {
    ncclComm_t comms[4];
    const int nDev = 4;
    const size_t size = 32 * 1024;
    int devs[4] = {0, 1, 2, 3};

    float **sendbuff = malloc((size_t)nDev * sizeof(float *));
    float **recvbuff = malloc((size_t)nDev * sizeof(float *));
    float *host = malloc(size * sizeof(float));
    cudaStream_t *streams = malloc(sizeof(cudaStream_t) * (size_t)nDev);

    for (int i = 0; i < nDev; ++i) {
        CUDACHECK(cudaSetDevice(i));
        CUDACHECK(cudaMalloc((void **)(sendbuff + i), size * sizeof(float)));
        CUDACHECK(cudaMalloc((void **)(recvbuff + i), size * sizeof(float)));
        for (size_t j = 0; j < size; j++) {
            host[j] = (float)(i + 1);
        }
        CUDACHECK(cudaMemcpy(sendbuff[i], host, size * sizeof(float), cudaMemcpyHostToDevice));
        CUDACHECK(cudaStreamCreate(streams + i));
    }

    NCCLCHECK(ncclCommInitAll(comms, nDev, devs));

    NCCLCHECK(ncclGroupStart());
    for (int i = 0; i < nDev; ++i) {
        NCCLCHECK(ncclAllReduce((const void *)sendbuff[i], (void *)recvbuff[i], size, ncclFloat,
                                ncclSum, comms[i], streams[i]));
    }
    NCCLCHECK(ncclGroupEnd());

    NCCLCHECK(ncclGroupStart());
    for (int i = 0; i < nDev; ++i) {
        NCCLCHECK(ncclSend(recvbuff[i], size, ncclFloat, (i + 1) % nDev, comms[i], streams[i]));
        NCCLCHECK(ncclRecv(sendbuff[i], size, ncclFloat, (i + 3) % nDev, comms[i], streams[i]));
    }
    NCCLCHECK(ncclGroupEnd());

    for (int i = 0; i < nDev; ++i) {
        CUDACHECK(cudaSetDevice(i));
        CUDACHECK(cudaStreamSynchronize(streams[i]));
    }
    for (int i = 0; i < nDev; ++i) {
        CUDACHECK(cudaMemcpy(host, sendbuff[i], size * sizeof(float), cudaMemcpyDeviceToHost));
        for (size_t j = 0; j < size; j++) {
            if (host[j] < 10.0F || host[j] > 10.0F) {
                printf("device %d: element %zu is %g\n", i, j, host[j]);
                return EXIT_FAILURE;
            }
        }
        CUDACHECK(cudaFree(sendbuff[i]));
        CUDACHECK(cudaFree(recvbuff[i]));
        CUDACHECK(cudaStreamDestroy(streams[i]));
    }
    for (int i = 0; i < nDev; ++i) {
        NCCLCHECK(ncclCommDestroy(comms[i]));
    }
    free(sendbuff);
    free(recvbuff);
    free(host);
    free(streams);
    printf("Success\n");
    return 0;
}
