/*
 * Four ranks are threads of one process; each sends its block around a ring while it sums its vector.
 *
 *     c++ -std=c++17 threads.cpp $(pkg-config --cflags --libs iccl) -pthread -o threads
 *     ./threads
 *
 * SPDX-License-Identifier: MIT OR Apache-2.0
 */
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include <iccl.h>

namespace {

void check(icclResult_t result, icclComm_t comm = nullptr) {
    if (result != icclSuccess) {
        throw std::runtime_error(std::string(icclGetErrorString(result)) + ": " +
                                 icclGetLastError(comm));
    }
}

struct CommEnd {
    void operator()(icclComm_t comm) const { icclCommDestroy(comm); }
};
using Comm = std::unique_ptr<std::remove_pointer_t<icclComm_t>, CommEnd>;

struct StreamEnd {
    void operator()(icclStream_t stream) const { icclStreamDestroy(stream); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<icclStream_t>, StreamEnd>;

Comm join(const icclUniqueId &id, int rank, int ranks) {
    icclConfig_t config = ICCL_CONFIG_INITIALIZER;
    config.opTimeoutMilliseconds = 60000;
    config.commName = "example";
    icclComm_t comm = nullptr;
    check(icclCommInitRankConfig(&comm, ranks, id, rank, &config));
    return Comm(comm);
}

Stream stream_of(const Comm &comm) {
    icclStream_t stream = nullptr;
    check(icclCommStreamCreate(comm.get(), &stream), comm.get());
    return Stream(stream);
}

void run(const icclUniqueId &id, int rank, int ranks) {
    const Comm comm = join(id, rank, ranks);
    const Stream reduce = stream_of(comm);
    const Stream ring = stream_of(comm);
    std::vector<std::int64_t> numbers(4096, rank + 1);
    std::vector<std::int32_t> mine(100, rank);
    std::vector<std::int32_t> left(100, -1);

    // In place; and meanwhile, on another stream, a block to the right and one from the left.
    check(icclAllReduce(numbers.data(), numbers.data(), numbers.size(), icclInt64, icclSum,
                        comm.get(), reduce.get()),
          comm.get());
    check(icclGroupStart());
    check(icclSend(mine.data(), mine.size(), icclInt32, (rank + 1) % ranks, comm.get(), ring.get()),
          comm.get());
    check(icclRecv(left.data(), left.size(), icclInt32, (rank + ranks - 1) % ranks, comm.get(),
                   ring.get()),
          comm.get());
    check(icclGroupEnd());
    check(icclStreamSynchronize(reduce.get()));
    check(icclStreamSynchronize(ring.get()));

    const std::int64_t sum = static_cast<std::int64_t>(ranks) * (ranks + 1) / 2;
    for (const std::int64_t number : numbers) {
        if (number != sum) {
            throw std::runtime_error("a wrong sum");
        }
    }
    for (const std::int32_t number : left) {
        if (number != (rank + ranks - 1) % ranks) {
            throw std::runtime_error("a wrong block");
        }
    }
    std::printf("rank %d: the sum is %lld, the left neighbour is %d\n", rank,
                static_cast<long long>(numbers[0]), static_cast<int>(left[0]));
}

} // namespace

int main() {
    constexpr int ranks = 4;
    bool failed = false;
    try {
        icclUniqueId id;
        check(icclGetUniqueId(&id));
        std::vector<std::exception_ptr> errors(ranks);
        std::vector<std::thread> threads;
        for (int rank = 0; rank < ranks; rank++) {
            threads.emplace_back([&id, &errors, rank] {
                try {
                    run(id, rank, ranks);
                } catch (...) {
                    errors[static_cast<std::size_t>(rank)] = std::current_exception();
                }
            });
        }
        for (std::thread &thread : threads) {
            thread.join();
        }
        for (const std::exception_ptr &error : errors) {
            if (error) {
                std::rethrow_exception(error);
            }
        }
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        failed = true;
    }
    return failed ? 1 : 0;
}
