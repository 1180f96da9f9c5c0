"""Drives the simulated HCCL by pyhccl, the bindings of HCCL's own people, with a process for each rank.

    drive.py FOLDER NUMBERS          starts the ranks; NUMBERS has a name and a number on each line
    drive.py FOLDER rank R N         one of them; rank 0 prints the root info, the others read it

FOLDER has the simulated libraries, and PYHCCL_LIBRARY names its libhccl.so. Memory and streams are
libascendcl's, by ctypes. Ends with an assertion if something is not as it should be.
"""

import ctypes
import os
import struct
import subprocess
import sys

import pyhccl

RANKS = 3
COUNT = 4
ROOM = 8 * COUNT * RANKS
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2


class Card:
    """A card with a stream and two buffers."""

    def __init__(self, folder, index):
        self.acl = ctypes.CDLL(os.path.join(folder, "libascendcl.so"))
        self.check(self.acl.aclInit(None))
        self.check(self.acl.aclrtSetDevice(ctypes.c_int32(index)))
        stream = ctypes.c_void_p()
        self.check(self.acl.aclrtCreateStream(ctypes.byref(stream)))
        self.stream = stream.value
        self.send, self.receive = self.allocate(), self.allocate()

    @staticmethod
    def check(status):
        assert status == 0, f"libascendcl answers {status}"

    def allocate(self):
        pointer = ctypes.c_void_p()
        self.check(self.acl.aclrtMalloc(ctypes.byref(pointer), ctypes.c_size_t(ROOM), 0))
        return pointer.value

    def copy(self, to, source, kind, length):
        length = ctypes.c_size_t(length)
        pointers = ctypes.c_void_p(to), length, ctypes.c_void_p(source), length
        self.check(self.acl.aclrtMemcpy(*pointers, kind))

    def write(self, place, form, numbers):
        data = struct.pack(f"<{len(numbers)}{form}", *numbers)
        buffer = ctypes.create_string_buffer(data, ROOM)
        self.copy(place, ctypes.addressof(buffer), HOST_TO_DEVICE, ROOM)

    def read(self, place, form, count):
        self.check(self.acl.aclrtSynchronizeStream(ctypes.c_void_p(self.stream)))
        buffer = ctypes.create_string_buffer(ROOM)
        self.copy(ctypes.addressof(buffer), place, DEVICE_TO_HOST, ROOM)
        return list(struct.unpack_from(f"<{count}{form}", buffer))


def expect(found, expected, what):
    assert found == expected, f"{what}: {found} instead of {expected}"


class Rank:
    """One rank, and what it tries."""

    def __init__(self, folder, rank, ranks):
        self.rank, self.ranks = rank, ranks
        self.card = Card(folder, rank)
        if rank == 0:
            status, root = pyhccl.HcclGetRootInfo()
            expect(status, 0, "HcclGetRootInfo")
            expect(len(root.internal), 4108, "the length of a root info")
            print(root.internal.hex(), flush=True)
        else:
            root = pyhccl.HcclRootInfo()
            root.internal = bytes.fromhex(sys.stdin.readline())
        status, self.comm = pyhccl.HcclCommInitRootInfo(ranks, root, rank)
        expect(status, 0, "HcclCommInitRootInfo")

    def run(self, name, *arguments, status=0):
        """Calls with what all calls end with."""
        answer = getattr(pyhccl, name)(*arguments, self.comm, self.card.stream)
        expect(answer, status, name)

    def fill(self, form, block):
        """Numbers that differ from rank to rank, so many for each rank."""
        numbers = [10 * self.rank + index for index in range(block * self.ranks)]
        self.card.write(self.card.send, form, numbers)
        self.card.write(self.card.receive, form, [99] * (ROOM // struct.calcsize(form)))

    def of(self, rank, index):
        return 10 * rank + index

    def everything(self):
        card, rank, ranks = self.card, self.rank, self.ranks
        send, receive = card.send, card.receive
        float32, int32, int64 = (
            pyhccl.HcclDataType.HCCL_DATA_TYPE_FP32,
            pyhccl.HcclDataType.HCCL_DATA_TYPE_INT32,
            pyhccl.HcclDataType.HCCL_DATA_TYPE_INT64,
        )
        add, most = pyhccl.HcclReduceOp.HCCL_REDUCE_SUM, pyhccl.HcclReduceOp.HCCL_REDUCE_MAX
        multiply = pyhccl.HcclReduceOp.HCCL_REDUCE_PROD
        everyone = range(ranks)

        expect(pyhccl.HcclGetRankSize(self.comm), (0, ranks), "HcclGetRankSize")
        expect(pyhccl.HcclGetRankId(self.comm), (0, rank), "HcclGetRankId")
        expect(pyhccl.HcclGetCommName(self.comm)[0], 0, "HcclGetCommName")
        expect(pyhccl.HcclGetCommAsyncError(self.comm), (0, 0), "HcclGetCommAsyncError")

        self.fill("f", COUNT)
        self.run("HcclAllReduce", send, receive, COUNT, float32, add)
        total = [float(sum(self.of(one, index) for one in everyone)) for index in range(COUNT)]
        expect(card.read(receive, "f", COUNT + 1), total + [99.0], "a sum")
        self.run("HcclAllReduce", send, receive, COUNT, float32, most)
        largest = [float(self.of(ranks - 1, index)) for index in range(COUNT)]
        expect(card.read(receive, "f", COUNT), largest, "a maximum")

        self.fill("q", COUNT)
        self.run("HcclReduce", send, receive, COUNT, int64, add, 1)
        total = [sum(self.of(one, index) for one in everyone) for index in range(COUNT)]
        expect(card.read(receive, "q", COUNT), total if rank == 1 else [99] * COUNT, "a reduce")

        self.fill("i", COUNT)
        self.run("HcclReduceScatter", send, receive, COUNT, int32, add)
        mine = range(rank * COUNT, rank * COUNT + COUNT)
        total = [sum(self.of(one, index) for one in everyone) for index in mine]
        expect(card.read(receive, "i", COUNT + 1), total + [99], "a reduce-scatter")

        self.fill("i", COUNT)
        self.run("HcclBroadcast", send, COUNT, int32, 2)
        received = [self.of(2, index) for index in range(COUNT)]
        expect(card.read(send, "i", COUNT), received, "a broadcast")

        self.fill("i", COUNT)
        self.run("HcclAllGather", send, receive, COUNT, int32)
        all_of_them = [self.of(one, index) for one in everyone for index in range(COUNT)]
        expect(card.read(receive, "i", COUNT * ranks), all_of_them, "an all-gather")

        self.fill("i", COUNT)
        # Only the root's buffer counts.
        self.run("HcclScatter", send if rank == 1 else 0, receive, COUNT, int32, 1)
        expect(card.read(receive, "i", COUNT), [self.of(1, index) for index in mine], "a scatter")

        self.fill("i", COUNT)
        self.run("HcclAlltoAll", send, COUNT, int32, receive, COUNT, int32)
        crossed = [self.of(one, index) for one in everyone for index in mine]
        expect(card.read(receive, "i", COUNT * ranks), crossed, "an all-to-all")

        # Rank r gets r + 1 elements of each, from a place of its own.
        self.fill("i", COUNT)
        sent = [one + 1 for one in everyone]
        places = [one * COUNT for one in everyone]
        received = [rank + 1] * ranks
        behind = [one * (rank + 1) for one in everyone]
        self.run("HcclAlltoAllV", send, sent, places, int32, receive, received, behind, int32)
        moved = [self.of(one, rank * COUNT + index) for one in everyone for index in range(rank + 1)]
        expect(card.read(receive, "i", len(moved) + 1), moved + [99], "an all-to-all-v")

        self.fill("i", COUNT)
        at = [sum(sent[:one]) for one in everyone]
        self.run("HcclAllGatherV", send, rank + 1, receive, sent, at, int32)
        moved = [self.of(one, index) for one in everyone for index in range(one + 1)]
        expect(card.read(receive, "i", len(moved) + 1), moved + [99], "an all-gather-v")

        self.messages(int32)
        self.run("HcclBarrier")
        card.read(receive, "i", 1)

        # What HCCL has not, by its own numbers: 5, not supported.
        refused = pyhccl.HCCL_E_NOT_SUPPORT
        for kind in ("UINT8", "UINT32", "FP64", "FP8E4M3"):
            dtype = getattr(pyhccl.HcclDataType, f"HCCL_DATA_TYPE_{kind}")
            self.run("HcclAllReduce", send, receive, COUNT, dtype, add, status=refused)
        narrow = pyhccl.HcclDataType.HCCL_DATA_TYPE_BFP16
        self.run("HcclAllReduce", send, receive, COUNT, narrow, multiply, status=refused)
        none = pyhccl.HcclReduceOp.HCCL_REDUCE_RESERVED
        self.run("HcclAllReduce", send, receive, COUNT, int32, none, status=pyhccl.HCCL_E_PARA)
        self.run("HcclBroadcast", send, COUNT, int32, ranks, status=pyhccl.HCCL_E_PARA)
        expect(pyhccl.get_error_string(refused), "not support feature", "a text")

        # Also for those who are late: only what is over is destroyed.
        expect(pyhccl.HcclCommDestroy(self.comm), 0, "HcclCommDestroy")

    def messages(self, dtype):
        card, rank, ranks = self.card, self.rank, self.ranks
        following, before = (rank + 1) % ranks, (rank + ranks - 1) % ranks

        def item(kind, buffer, peer):
            message = pyhccl.HcclSendRecvItem()
            message.sendRecvType, message.buf, message.count = kind, buffer, COUNT
            message.dataType, message.remoteRank = dtype, peer
            return message

        send, receive = pyhccl.HcclSendRecvType.HCCL_SEND, pyhccl.HcclSendRecvType.HCCL_RECV
        self.fill("i", COUNT)
        ring = [item(send, card.send, following), item(receive, card.receive, before)]
        self.run("HcclBatchSendRecv", ring)
        expected = [self.of(before, index) for index in range(COUNT)]
        expect(card.read(card.receive, "i", COUNT), expected, "a ring")
        twice = [item(send, card.send, following), item(send, card.send, following)]
        self.run("HcclBatchSendRecv", twice, status=pyhccl.HCCL_E_PARA)

        self.fill("i", COUNT)
        if rank == 0:
            self.run("HcclSend", card.send, COUNT, dtype, 1)
        elif rank == 1:
            self.run("HcclRecv", card.receive, COUNT, dtype, 0)
        expected = [self.of(0, index) for index in range(COUNT)] if rank == 1 else [99] * COUNT
        expect(card.read(card.receive, "i", COUNT), expected, "a message")


def compare(numbers):
    """The plugin's numbers are HCCL's."""
    with open(numbers, encoding="utf-8") as lines:
        pairs = [line.split() for line in lines]
    assert len(pairs) > 30, "there are numbers"
    for name, number in pairs:
        expect(int(getattr(pyhccl, name)), int(number), name)


def start(folder):
    def rank(number):
        words = [sys.executable, __file__, folder, "rank", str(number), str(RANKS)]
        pipe = subprocess.PIPE
        return subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True)

    processes = [rank(number) for number in range(RANKS)]
    root = processes[0].stdout.readline()
    for process in processes[1:]:
        process.stdin.write(root)
        process.stdin.flush()
    statuses = [process.wait(timeout=300) for process in processes]
    expect(statuses, [0] * RANKS, "the ranks' end")


def main():
    folder, what, *rest = sys.argv[1:]
    if what == "rank":
        Rank(folder, int(rest[0]), int(rest[1])).everything()
    else:
        compare(what)
        start(folder)


main()
