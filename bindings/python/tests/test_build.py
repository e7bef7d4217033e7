# SPDX-License-Identifier: Apache-2.0
"""Streams: Cache.build, append, done and wait, and libcache._stream on top of them."""
import itertools
import os
import threading

import numpy as np
import pytest

import libcache
from libcache._stream import Stream


def test_rows_are_numbered_in_order_and_readable_at_once(session):
    with session.open(1, build=True) as cache:
        with pytest.raises(libcache.Building):
            cache.wait(0)  # nobody builds
        with pytest.raises(libcache.InvalidArgument):
            cache.put(0, 1)
        with cache.build() as build:
            assert build.resume_at == 0 and not build.complete
            with pytest.raises(libcache.Timeout):
                cache.wait(0.01)
            for i in range(100):
                assert build.append(np.full((2, 3), i), str(i), b"b") == i
                assert cache[i][1] == str(i) and (cache[i][0] == i).all()
        assert build.complete and cache.build().complete and cache.build().resume_at == 100
        cache.wait()
        with pytest.raises(libcache.Building):
            build.append(1)
        with pytest.raises(TypeError):
            build.append()


def test_threads_append_at_once(session):
    with session.open(1, build=True) as cache, cache.build() as build:
        ids = []
        threads = [threading.Thread(target=lambda: ids.extend(build.append(1) for _ in range(200))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(ids) == list(range(800)) and len(cache) == 800


def test_the_next_builder_goes_on_where_the_last_one_stopped(session):
    """An exception leaves the build unfinished; so does the end of a process. A forked child is not the builder."""
    pid = os.fork()
    if pid == 0:
        try:
            mine = session.open(1, build=True)
            with mine.build() as build:
                for i in range(7):
                    build.append(i)
                raise RuntimeError
        except RuntimeError:
            os._exit(5 if not build.complete else 1)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
    with session.open(1, build=True) as cache:
        build = cache.build()
        assert build.resume_at == 7
        pid = os.fork()
        if pid == 0:
            try:
                build.append(8)
            except libcache.Building:
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        with build:
            for i in itertools.islice(range(20), build.resume_at, None):
                assert build.append(i) == i
        assert [int(cache[i][0]) for i in range(20)] == list(range(20))


def in_child(body):
    """Whether body() is true in a process of its own."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if body() else 2
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def builds(session, resume_at):
    """Whether another process can become the builder, after so many rows."""
    def body():
        try:
            return session.open(1, build=True).build().resume_at == resume_at
        except libcache.Building:
            return False
    return in_child(body)


def test_a_builder_that_leaves_lets_others_go_on_and_may_come_back(session):
    cache = session.open(1, build=True)
    build = cache.build()
    for i in range(5):
        build.append(i)
    kept = cache[0]  # keeps the handle open
    assert not builds(session, 5)
    build.leave()
    assert builds(session, 5)
    with pytest.raises(libcache.Building):
        build.append(5)
    with pytest.raises(libcache.Building):
        cache.wait(1)
    build.leave()  # does nothing
    with pytest.raises(ZeroDivisionError), cache.build() as again:
        assert again.resume_at == 5 and again.append(5) == 5
        1 / 0
    assert builds(session, 6)
    with cache.build() as last:
        last.append(6)
    last.leave()
    assert last.complete and cache.build().complete and [int(cache[i][0]) for i in range(7)] == list(range(7))
    assert int(kept[0]) == 0


def test_a_builder_of_a_full_cache_leaves_it_with_its_rows(session):
    row = np.zeros(100_000, np.uint8)
    cache = session.open(1, build=True, limit_bytes=2 << 20)
    build, rows = cache.build(), 0
    with pytest.raises(libcache.Full) as caught:
        while True:
            build.append(row)
            rows += 1
    assert caught.value.cause == "size" and 5 < rows < 30 and not builds(session, rows)
    with pytest.raises(libcache.Full):
        build.append(row)
    build.leave()
    assert builds(session, rows) and len(cache) == rows
    assert cache.build().resume_at == rows


def test_a_stream_that_nobody_reads_any_more_is_not_built_by_this_process(session):
    stream = Stream(session.open(1, build=True), lambda first: ([i] for i in range(first, 10)))
    kept = stream.row(3)
    assert in_child(lambda: stream.leave() or not builds(session, 4)), "a forked child left for its parent"
    assert not builds(session, 4)
    del stream
    assert builds(session, 4) and int(kept[0]) == 3
    again = Stream(session.open(1, build=True), lambda first: ([i] for i in range(first, 10)))
    assert int(again.row(9)[0]) == 9


def test_a_stream_is_built_by_whoever_needs_the_next_row(session, tmp_path):
    log = tmp_path / "reads"

    def source(first):
        for i in range(first, 300):
            with open(log, "ab") as file:
                file.write(b".")
            yield [i]

    def read(count):
        stream = Stream.shared(session.open(1, build=True), source)
        got = [int(row[0]) for row in itertools.takewhile(bool, map(stream.row, range(count)))]
        return got == list(range(min(count, 300)))

    readers = []
    for count in (50, 120, 400, 400):  # the first ones end before the source does
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = 0 if read(count) else 2
            finally:
                os._exit(status)
        readers.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in readers] == [0] * 4
    assert read(400)
    assert 300 <= log.stat().st_size <= 304  # who is handed a row and cannot append it any more has read it


def test_a_builder_that_rests_is_not_waited_for_for_ever(session):
    cache = session.open(1, build=True)
    build = cache.build()
    build.append(0)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            stream = Stream(session.open(1, build=True), lambda first: iter([]))
            assert int(stream.row(0, patience=0)[0]) == 0
            stream.row(1, patience=0.1)
        except libcache.Timeout:
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_builder_appends_ahead_for_the_others(session):
    cache = session.open(1, build=True)
    stream = Stream(cache, lambda first: ([i] for i in range(first, 10)))
    stream.row(0, ahead=3)
    assert len(cache) == 4
    stream.row(8, ahead=3)
    assert len(cache) == 10 and cache.build().complete
