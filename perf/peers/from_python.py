#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""from_python.py --peer NAME --workload M|C|I [--scale X] [--repetitions N] [--seconds S] FILE: as `peers`, what Python
sees: multiprocessing.shared_memory, which is one block of equal rows without an index, and libcache, each through NumPy.
Run by perf/results/measure against a server of its own (cache_admin --run)."""
import argparse
import itertools
import json
import math
import multiprocessing
import os
import platform
import time
from multiprocessing import shared_memory

import libcache
import numpy as np

WORKLOADS = {"M": (60_000, 788), "C": (50_000, 3_076), "I": (8_000, 150_532)}
PROCESSES = (1, 2, 8)
PROCESSORS = 2  # of the reference machine: more processes than that share the rows of two
BATCH = 32
KINDS = [(what, order) for what in ("look-up", "copy") for order in ("sequential", "shuffled")]
PATIENCE = 60  # seconds until memory must be free
FORK = multiprocessing.get_context("fork")


class SharedMemory:
    """One block for all rows; that a row was written is known by having waited for its writer."""
    how = "from Python: one block, numpy.take of 32 rows"
    version = f"Python {platform.python_version()}, NumPy {np.__version__}"

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
        self.rows = None
        self.block.close()
        self.block.unlink()


class Libcache:
    how = "Cache.put, Cache.get, Cache.gather of 32; expected_rows given"
    version = f"{libcache.__version__}, Python {platform.python_version()}, NumPy {np.__version__}"

    def __init__(self, rows, row_bytes):
        self.client = libcache.Client()
        self.session = self.client.create_session()
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
        info = self.client.server_info()
        own = sum(own_bytes(pid) for pid in (info.keeper_pid, info.broker_pid) if pid > 0)
        return self.cache.stat().charged_bytes + own

    def close(self):
        self.cache.close()
        self.session.destroy()
        deadline = time.monotonic() + PATIENCE  # the next store is measured while nobody frees this one's memory
        while self.client.server_info().memory_used_bytes > 0 and time.monotonic() < deadline:
            time.sleep(0.001)
        self.client.close()


PEERS = {"libcache from Python": Libcache, "shared_memory": SharedMemory}


def own_bytes(pid):
    """Resident memory of a process, without shared memory."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith(("RssAnon", "RssFile"))) * 1024


def member(number, prepare, work, ready, go, times):
    prepare(number)
    for turn, event in enumerate(go):
        ready.release()
        event.wait()
        start = time.perf_counter()
        work(number, turn)
        times.put((turn, start, time.perf_counter()))


def run_crew(members, rounds, prepare, work):
    """Seconds of each round, from the first member's start to the last one's end, as perf::run_crew."""
    ready, go, times = FORK.Semaphore(0), [FORK.Event() for _ in range(rounds)], FORK.SimpleQueue()
    crew = [FORK.Process(target=member, args=(i, prepare, work, ready, go, times), daemon=True) for i in range(members)]
    for process in crew:
        process.start()
    spans = []
    for event in go:
        for _ in crew:
            while not ready.acquire(timeout=1):
                if any(process.exitcode not in (None, 0) for process in crew):
                    raise RuntimeError("a process of the crew failed")
        event.set()
    for process in crew:
        process.join()
        if process.exitcode != 0:
            raise RuntimeError(f"a process of the crew ended with {process.exitcode}")
    spans = [times.get() for _ in range(members * rounds)]
    return [max(end for turn, _, end in spans if turn == wanted) - min(start for turn, start, _ in spans if turn == wanted)
            for wanted in range(rounds)]


def ids_of(rows, shuffled, number):
    return np.random.default_rng(number).permutation(rows) if shuffled else np.arange(rows)


def walk(order, rows):
    """`rows` of the order, from where the last call ended, in pieces that do not wrap around."""
    at = 0
    while True:
        left = rows
        pieces = []
        while left > 0:
            piece = order[at:at + left]
            pieces.append(piece)
            left -= len(piece)
            at = (at + len(piece)) % len(order)
        yield pieces


class Bench:
    def __init__(self, options):
        self.options = options
        rows, self.row_bytes = WORKLOADS[options.workload]
        self.rows = max(int(rows * options.scale), 2 * BATCH)
        self.row = (np.arange(self.row_bytes) % 251).astype(np.uint8)
        self.results = []

    def add(self, what, order, processes, seconds):
        self.results.append({"peer": self.options.peer, "workload": self.options.workload, "what": what, "order": order,
                             "processes": processes, "ns": [each * 1e9 for each in seconds]})

    def add_memory(self, what, processes, store):
        self.results.append({"peer": self.options.peer, "workload": self.options.workload, "what": what,
                             "processes": processes, "bytes": store.memory_bytes(), "row_bytes": self.rows * self.row_bytes})

    def write(self, store, shuffled, members):
        shares = [ids_of(self.rows, shuffled, 0)[i::members] for i in range(members)]
        return run_crew(members, 1, lambda _: None, lambda number, _: store.put(shares[number], self.row))[0] / self.rows

    def verify(self, store):
        """Every row is there and right."""
        to = np.zeros((BATCH, self.row_bytes), np.uint8)
        for start in range(0, self.rows, BATCH):
            ids = np.arange(start, min(start + BATCH, self.rows))
            to[:] = 0
            store.copy(ids, to)
            if not (to[:len(ids)] == self.row).all():
                raise RuntimeError(f"{self.options.peer}: rows {ids[0]}..{ids[-1]} are not what was written")

    def write_all(self):
        """The figures, and the last store."""
        store = None
        try:
            for order, processes in itertools.product(("sequential", "shuffled"), PROCESSES):
                seconds = []
                for _ in range(self.options.repetitions):
                    if store is not None:
                        store.close()
                    store = PEERS[self.options.peer](self.rows, self.row_bytes)
                    seconds.append(self.write(store, order == "shuffled", processes))
                self.add("write", order, processes, seconds)
                if order == "shuffled":
                    self.add_memory("memory", processes, store)
                self.verify(store)
            return store
        except BaseException:
            if store is not None:
                store.close()
            raise

    def read(self, store, members, rows, repetitions):
        """Seconds a row of each kind, the kinds taking turns; each member has read all rows before."""
        to = np.zeros((BATCH, self.row_bytes), np.uint8)
        orders = {order: [ids_of(self.rows, order == "shuffled", i) for i in range(members)]
                  for order in ("sequential", "shuffled")}
        walks = {}

        def prepare(number):
            for kind in KINDS:
                walks[kind] = walk(orders[kind[1]][number], rows[kind])
            store.copy(orders["shuffled"][number], to)

        def work(_, turn):
            kind = KINDS[turn % len(KINDS)]
            for ids in next(walks[kind]):
                store.copy(ids, to) if kind[0] == "copy" else store.look_up(ids)

        seconds = run_crew(members, repetitions * len(KINDS), prepare, work)
        return {kind: [each / members / rows[kind] for each in seconds[i::len(KINDS)]] for i, kind in enumerate(KINDS)}

    def read_all(self, store):
        one_pass = self.read(store, 1, {kind: self.rows for kind in KINDS}, 1)
        for processes in PROCESSES:
            share = self.options.seconds * min(1, PROCESSORS / processes)
            rows = {kind: math.ceil(share / one_pass[kind][0] / BATCH) * BATCH for kind in KINDS}
            for (what, order), seconds in self.read(store, processes, rows, self.options.repetitions).items():
                self.add(what, order, processes, seconds)
        self.add_memory("memory later", PROCESSES[-1], store)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split(":", 1)[0])
    parser.add_argument("--peer", required=True, choices=PEERS)
    parser.add_argument("--workload", required=True, choices=WORKLOADS)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.1)
    parser.add_argument("file")
    options = parser.parse_args()
    bench = Bench(options)
    store = bench.write_all()
    try:
        bench.read_all(store)
    finally:
        store.close()
    peer = PEERS[options.peer]
    with open(options.file, "w", encoding="utf-8") as file:
        json.dump({"peer": {"name": options.peer, "version": peer.version, "how": peer.how}, "results": bench.results},
                  file, indent=1)


if __name__ == "__main__":
    main()
