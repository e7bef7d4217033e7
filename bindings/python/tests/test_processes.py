# SPDX-License-Identifier: Apache-2.0
"""fork, spawn, forkserver and pickling: the same rows in every process."""
import multiprocessing
import os
import pickle
import signal
import threading

import numpy as np
import pytest

import libcache

ROWS, WORKERS = 400, 8


def row_of(i):
    return np.random.default_rng(i).integers(0, 256, (i % 50 + 1, 20), np.uint8)


def work(cache, worker):
    """Reads what is there and stores what is not; returns how many rows this worker stored."""
    stored = 0
    for i in np.random.default_rng(worker).permutation(ROWS).tolist():
        row = cache.get(i)
        if row is None:
            stored += cache.put(i, row_of(i), i)
            row = cache[i]
        assert row[1] == i
        np.testing.assert_array_equal(row[0], row_of(i))
    return stored


def run(cache, worker, results):
    results.put(work(cache, worker))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_eight_workers_fill_one_cache(cache, method):
    """The handle was used before: the parent reads, writes and is mapped when the workers begin."""
    for i in range(0, ROWS, 10):
        cache.put(i, row_of(i), i)
    context = multiprocessing.get_context(method)
    results = context.SimpleQueue()
    workers = [context.Process(target=run, args=(cache, worker, results)) for worker in range(WORKERS)]
    for worker in workers:
        worker.start()
    stored = sum(results.get() for _ in workers)
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert stored == ROWS - ROWS // 10 and len(cache) == ROWS
    assert work(cache, 99) == 0


def test_a_forked_child_of_a_child_writes_too(cache):
    cache.put(0, 0)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            cache.put(1, 1)
            grandchild = os.fork()
            if grandchild == 0:
                os._exit(0 if cache.put(2, 2) and cache[1][0] == 1 and cache[0][0] == 0 else 1)
            status = os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1])
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert cache[1][0] == 1 and cache[2][0] == 2


def test_a_fork_while_threads_write_does_not_hang(cache):
    stop = threading.Event()

    def write(first):
        i = first
        while not stop.is_set():
            cache.put(i, np.zeros(100))
            i += 4

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    try:
        for n in range(20):
            child = os.fork()
            if child == 0:
                signal.alarm(30)
                os._exit(0 if cache.put(10**9 + n, n) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert all(cache[10**9 + n][0] == n for n in range(20))


def test_a_reservation_belongs_to_the_process_that_made_it(cache):
    row = cache.reserve(0, ("uint8", 4))
    child = os.fork()
    if child == 0:
        try:
            row.commit()
        except libcache.InvalidArgument:
            os._exit(0)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    row.columns[0][:] = 5
    assert row.commit() and cache[0][0].tolist() == [5] * 4


def test_handles_pickle_to_a_few_hundred_bytes_and_reattach(session):
    with session.open(1, tag="what makes the rows", read_only=False) as cache:
        cache.put(0, np.arange(5))
        packed = pickle.dumps(cache)
        assert len(packed) < 500
        copy = pickle.loads(packed)
        assert copy[0][0].tolist() == list(range(5))
        assert copy.put(1, 1) and 1 in cache
        assert copy.session == session and copy.tag == cache.tag
        for handle in (session, session.client):
            packed = pickle.dumps(handle)
            assert len(packed) < 500 and type(pickle.loads(packed)) is type(handle)
        assert pickle.loads(pickle.dumps(session.client)).server_info().port
        copy.close()
    with pytest.raises(ValueError, match="closed"):
        pickle.dumps(cache)


def test_a_copy_of_a_cache_that_is_no_more_says_so(session):
    with session.open(1) as cache:
        copies = [pickle.loads(pickle.dumps(cache)) for _ in range(2)]
        session.destroy_cache(1)
        with pytest.raises(libcache.Gone):
            copies[0].get(0)
    with session.open(1):
        assert copies[1].get(0) is None  # made anew: the same name, an empty cache


def test_rows_of_an_ended_process_stay(session):
    def child():
        with session.open(1) as mine:
            for i in range(100):
                mine.put(i, row_of(i))
        os._exit(0)

    pid = os.fork()
    if pid == 0:
        child()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    with session.open(1, create=False) as cache:
        assert len(cache) == 100
        np.testing.assert_array_equal(cache[57][0], row_of(57))
