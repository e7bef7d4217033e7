#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""from_python.py [--scale X] FILE: adds to the figures of `peers` in FILE what Python sees: multiprocessing.shared_memory,
which is one block of equal rows without an index, and libcache, each through NumPy. Run by `make bench-peers` against a
server of its own (cache_admin --run)."""
import argparse
import json
import multiprocessing
import os
import time
from multiprocessing import shared_memory

import libcache
import numpy as np

WORKLOADS = {"M": (60_000, 788), "C": (50_000, 3_076), "I": (8_000, 150_532)}
PROCESSES = (1, 2, 8)
BATCH = 32
SECONDS = 0.3  # that a measurement of reads takes at least
MOST_PASSES = 50
FORK = multiprocessing.get_context("fork")


class SharedMemory:
    """One block for all rows; that a row was written is known by having waited for its writer."""
    name = "shared_memory"
    how = "from Python: one block, numpy.take of 32 rows"

    def __init__(self, rows, row_bytes):
        self.block = shared_memory.SharedMemory(create=True, size=rows * row_bytes)
        self.rows = np.ndarray((rows, row_bytes), np.uint8, self.block.buf)

    def put(self, ids, row):
        for i in ids:
            self.rows[i] = row

    def look_up(self, ids):
        rows = self.rows
        return sum(int(rows[i][0]) for i in ids)

    def copy(self, ids, to):
        for start in range(0, len(ids), BATCH):
            part = ids[start:start + BATCH]
            np.take(self.rows, part, axis=0, out=to[:len(part)], mode="clip")  # clip: without a second buffer

    def memory_bytes(self):
        return os.stat(f"/dev/shm/{self.block.name}").st_blocks * 512

    def close(self):
        del self.rows
        self.block.close()
        self.block.unlink()


class Libcache:
    name = "libcache from Python"
    how = "Cache.put, Cache.get, Cache.gather of 32"

    def __init__(self, rows, row_bytes):
        self.session = libcache.Client().create_session()
        self.cache = self.session.open(1, expected_rows=rows)

    def put(self, ids, row):
        put = self.cache.put
        for i in ids.tolist():
            put(i, row)

    def look_up(self, ids):
        get = self.cache.get
        return sum(int(get(i)[0][0]) for i in ids.tolist())

    def copy(self, ids, to):
        for start in range(0, len(ids), BATCH):
            part = ids[start:start + BATCH]
            self.cache.gather(part, 0, out=to[:len(part)])

    def memory_bytes(self):
        return self.cache.stat().charged_bytes

    def close(self):
        self.cache.close()
        self.session.destroy()


def member(number, prepare, work, ready, go, times):
    prepare(number)
    ready.release()
    go.wait()
    start = time.perf_counter()
    work(number)
    times.put((start, time.perf_counter()))


def run_crew(members, prepare, work):
    """Seconds from the first member's start to the last one's end, as perf::run_crew."""
    ready, go, times = FORK.Semaphore(0), FORK.Event(), FORK.SimpleQueue()
    crew = [FORK.Process(target=member, args=(i, prepare, work, ready, go, times), daemon=True) for i in range(members)]
    for process in crew:
        process.start()
    for _ in crew:
        while not ready.acquire(timeout=1):
            if any(process.exitcode not in (None, 0) for process in crew):
                raise RuntimeError("a process of the crew failed")
    go.set()
    for process in crew:
        process.join()
        if process.exitcode != 0:
            raise RuntimeError(f"a process of the crew ended with {process.exitcode}")
    spans = [times.get() for _ in crew]
    return max(end for _, end in spans) - min(start for start, _ in spans)


def ids_of(rows, shuffled, number):
    return np.random.default_rng(number).permutation(rows) if shuffled else np.arange(rows)


def write_rows(store, rows, row_bytes, members):
    row = np.arange(row_bytes, dtype=np.uint64).astype(np.uint8)
    shares = [ids_of(rows, True, 0)[i::members] for i in range(members)]
    return run_crew(members, lambda _: None, lambda number: store.put(shares[number], row)) / rows


def read_rows(store, rows, row_bytes, members, copy, shuffled, passes):
    to = np.zeros((BATCH, row_bytes), np.uint8)
    orders = [ids_of(rows, shuffled, i) for i in range(members)]

    def one_pass(number):
        store.copy(orders[number], to) if copy else store.look_up(orders[number])

    def work(number):
        for _ in range(passes):
            one_pass(number)

    return run_crew(members, one_pass, work) / passes / members / rows


def read_long_enough(store, rows, row_bytes, members, copy, shuffled):
    once = read_rows(store, rows, row_bytes, members, copy, shuffled, 1)
    passes = SECONDS / (once * rows * members)
    if passes <= 1:
        return once
    return read_rows(store, rows, row_bytes, members, copy, shuffled, min(int(passes) + 1, MOST_PASSES))


def measure(kind, workload, rows, row_bytes, results):
    def add(what, order, processes, seconds):
        results.append({"peer": kind.name, "workload": workload, "what": what, "order": order, "processes": processes,
                        "ns": seconds * 1e9})

    store = None
    try:
        for processes in PROCESSES:
            if store is not None:
                store.close()
            store = kind(rows, row_bytes)
            add("write", "shuffled", processes, write_rows(store, rows, row_bytes, processes))
        results.append({"peer": kind.name, "workload": workload, "what": "memory", "bytes": store.memory_bytes(),
                        "row_bytes": rows * row_bytes})
        for copy, what in ((False, "look-up"), (True, "copy")):
            for shuffled, order in ((False, "sequential"), (True, "shuffled")):
                for processes in PROCESSES:
                    add(what, order, processes, read_long_enough(store, rows, row_bytes, processes, copy, shuffled))
    finally:
        if store is not None:
            store.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("file")
    options = parser.parse_args()
    with open(options.file, encoding="utf-8") as file:
        figures = json.load(file)
    for kind in (Libcache, SharedMemory):
        figures["machine"]["peers"][kind.name] = kind.how
        for workload, (rows, row_bytes) in WORKLOADS.items():
            measure(kind, workload, max(int(rows * options.scale), 2 * BATCH), row_bytes, figures["results"])
    with open(options.file, "w", encoding="utf-8") as file:
        json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
