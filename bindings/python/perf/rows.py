#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""P1 and P2: rows as views and as batches, beside NumPy on the same bytes.

    cache_admin --run -- python3 rows.py [--repetitions N] [--json FILE]

The floor of P1 are two numpy.frombuffer calls with reshape on a bytes object that holds the same rows; that of P2
numpy.take of an array that lies in the same shared memory (a single row of another cache). It does not measure misses,
puts, or a reader's first pass over new memory (page faults): everything is read once before.
"""
import argparse

import numpy as np

import libcache
from measure import Report, count, in_turns, need_server, parse_options

BATCH = 64


def fill(session, cache_id, rows, shape):
    """A cache of (image, label) rows, an array of the same images in shared memory, and the rows as bytes."""
    images = np.random.default_rng(0).integers(0, 256, (rows, *shape), np.uint8)
    labels = np.arange(rows, dtype=np.int32)
    cache = session.open(cache_id, expected_rows=rows)
    for i in range(rows):
        cache.put(i, images[i], labels[i])
    whole = session.open(cache_id + 1, expected_rows=1)
    whole.put(0, images)
    packed = b"".join(image.tobytes() + label.tobytes() for image, label in zip(images, labels))
    return cache, whole[0][0], packed


def measure_get(report, cache, packed, rows, repetitions):
    order = np.random.default_rng(1).permutation(rows).tolist()

    def ours(_):
        get = cache.get
        for i in order:
            get(i)

    def floor(_):
        frombuffer, uint8, int32 = np.frombuffer, np.uint8, np.int32
        for i in order:
            frombuffer(packed, uint8, 784, i * 788).reshape(28, 28)
            frombuffer(packed, int32, 1, i * 788 + 784).reshape(())

    ours(0)
    seconds = in_turns(repetitions, ours=ours, floor=floor)
    report.add("P1 get to a tuple of views, M", seconds["ours"], seconds["floor"], rows, "ns", "<= 3")


def measure_gather(report, name, cache, array, repetitions):
    rows = len(array)
    order = np.random.default_rng(2).permutation(rows)
    batches = [order[i:i + BATCH].copy() for i in range(0, rows - BATCH + 1, BATCH)]
    out = np.empty((BATCH, *array.shape[1:]), np.uint8)

    def ours(_):
        gather = cache.gather
        for ids in batches:
            gather(ids, 0, out)

    def floor(_):
        take = np.take
        for ids in batches:
            take(array, ids, axis=0, out=out)

    def unchecked(_):
        take = np.take
        for ids in batches:
            take(array, ids, axis=0, out=out, mode="clip")

    ours(0)
    seconds = in_turns(repetitions, ours=ours, floor=floor, unchecked=unchecked)
    report.add(f"P2 gather of {BATCH}, {name}", seconds["ours"], seconds["floor"], len(batches), "us", "<= 1.1")
    report.add("   the same beside take(mode='clip')", seconds["ours"], seconds["unchecked"], len(batches), "us", "-")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=count, default=11, help="of each; 11, unless given")
    parser.add_argument("--json", help="file for all repetitions")
    options = parse_options(parser)
    need_server()
    report = Report()
    session = libcache.Client().create_session()
    cache, array, packed = fill(session, 1, 60_000, (28, 28))
    measure_get(report, cache, packed, 60_000, options.repetitions)
    measure_gather(report, "M", cache, array, options.repetitions)
    cache, array, _ = fill(session, 3, 50_000, (3, 32, 32))
    measure_gather(report, "C", cache, array, options.repetitions)
    session.destroy()
    report.write(options.json)


if __name__ == "__main__":
    main()
