"""A short version of the shared-memory ring from which vLLM's workers read their work: chunks, each followed by a flag of the
writer and one of each reader; waits that yield; and an uncontended lock instead of a memory fence.

Usage: vllm_ring.py OUT QUICK(0|1) RANKS SIZES...
Rank 0 writes to all others, rank 1 back to rank 0. Rows have the format of bench/harness/harness.hpp.
"""

import json
import multiprocessing
import os
import pickle
import sys
import threading
import time
from multiprocessing import shared_memory

CHUNKS = 6
OUT_OF_BAND = 1 << 20  # buffers of this size and above follow the pickle
lock = threading.Lock()


def fence():
    with lock:
        pass


class Ring:
    def __init__(self, readers, chunk_bytes):
        self.readers, self.chunk_bytes, self.at = readers, chunk_bytes, 0
        self.memory = shared_memory.SharedMemory(create=True, size=(chunk_bytes + 1 + readers) * CHUNKS)
        self.memory.unlink()  # forked processes inherit the mapping, so the name is no longer needed
        self.flags_at = chunk_bytes * CHUNKS

    def place(self):
        chunk = self.at * self.chunk_bytes
        flags = self.flags_at + self.at * (1 + self.readers)
        buffer = self.memory.buf
        return buffer[chunk : chunk + self.chunk_bytes], buffer[flags : flags + 1 + self.readers]

    def enqueue(self, value):
        large = []
        head = pickle.dumps(value, protocol=5, buffer_callback=lambda b: large.append(b.raw()) or False)
        data, flags = self.place()
        while True:
            fence()
            if flags[0] == 0 or all(flags[1:]):
                break
            os.sched_yield()
        flags[0] = 0
        data[0] = 0
        data[1:3] = (1 + len(large)).to_bytes(2, "big")
        at = 3
        for part in (head, *large):
            end = at + 4 + len(part)
            data[at : at + 4] = len(part).to_bytes(4, "big")
            data[at + 4 : end] = part
            at = end
        for reader in range(self.readers):
            flags[1 + reader] = 0
        fence()
        flags[0] = 1
        fence()
        self.at = (self.at + 1) % CHUNKS

    def dequeue(self, reader, consume):
        data, flags = self.place()
        while True:
            fence()
            if flags[0] == 1 and flags[1 + reader] == 0:
                break
            os.sched_yield()
        parts, at = [], 3
        for _ in range(int.from_bytes(data[1:3], "big")):
            length = int.from_bytes(data[at : at + 4], "big")
            parts.append(data[at + 4 : at + 4 + length])
            at += 4 + length
        consume(pickle.loads(parts[0], buffers=parts[1:]))
        flags[1 + reader] = 1
        fence()
        self.at = (self.at + 1) % CHUNKS


def payload(size, number):
    data = bytearray(size)
    data[:8] = number.to_bytes(8, "little")
    return pickle.PickleBuffer(data) if size >= OUT_OF_BAND else bytes(data)


def percentile(ordered, part):
    return ordered[int(part * (len(ordered) - 1) + 0.5)]


def measure(row, size, quick, factor, call):
    batch = 16 if size <= 65536 else 1
    samples = []
    count = max(8, min(100 if quick else 400, (1 << 28) // max(size, 4096) // batch))
    number = 1
    for index in range(count + 8):
        start = time.perf_counter()
        for _ in range(batch):
            call(number)
            number += 1
        if index >= 8:
            samples.append((time.perf_counter() - start) * 1e6 / batch * factor)
    samples.sort()
    row.update(calls=count * batch, min_us=samples[0], median_us=percentile(samples, 0.5), p99_us=percentile(samples, 0.99))


def run(rank, ranks, out, quick, sizes, rings, barrier):
    there, back = rings
    rows = []
    for size in sizes:
        data = payload(size, 0)

        def send(number):
            nonlocal data
            if size >= OUT_OF_BAND:
                data.raw()[:8] = number.to_bytes(8, "little")
            else:
                data = number.to_bytes(8, "little") + data[8:]
            (there if rank == 0 else back).enqueue(data)

        def receive(number):
            def consume(got):
                if len(got) != size or int.from_bytes(got[:8], "little") != number:
                    sys.exit("received another message")

            back.dequeue(0, consume) if rank == 0 else there.dequeue(rank - 1, consume)

        def ping(number):
            if rank == 0:
                send(number)
            receive(number)
            if rank != 0:
                send(number)

        row = {"path": "queue", "who": "vllm_ring", "rank": rank, "ranks": ranks, "bytes": size, "reads": False}
        if ranks == 2:
            barrier.wait()
            measured = dict(row, variant="latency")
            measure(measured, size, quick, 0.5, ping)
            rows.append(measured)
        barrier.wait()
        measured = dict(row, variant="stream")
        measure(measured, size, quick, 1.0, send if rank == 0 else receive)
        rows.append(measured)
    with open(out, "a", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))


def main():
    out, quick, ranks = sys.argv[1], sys.argv[2] == "1", int(sys.argv[3])
    sizes = [int(size) for size in sys.argv[4:]]
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(ranks)
    rings = [Ring(readers, max(sizes) + 4096) for readers in (ranks - 1, 1)]

    def rest(rank):
        run(rank, ranks, out, quick, sizes, rings, barrier)
        os._exit(0)  # views of the memory still exist, so it cannot be closed

    others = [context.Process(target=rest, args=(rank,)) for rank in range(1, ranks)]
    for other in others:
        other.start()
    run(0, ranks, out, quick, sizes, rings, barrier)
    for other in others:
        other.join()
    os._exit(max(other.exitcode for other in others))


main()
