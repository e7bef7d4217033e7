# SPDX-License-Identifier: Apache-2.0
"""Arrays outlive everything that made them; what is closed or destroyed says so."""
import gc
import os
import subprocess
import sys

import numpy as np
import pytest

import libcache


def filled(session, cache_id=1, rows=20):
    cache = session.open(cache_id)
    for i in range(rows):
        cache.put(i, np.full(1000, i))
    return cache


def assert_readable(views):
    gc.collect()
    for i, view in enumerate(views):
        assert (view == i).all()
        assert (view[::3] + 0 == i).all()


def views_of(cache):
    return [row[0] for row in cache.get_many(range(20))]


def test_views_outlive_close_and_the_handle(session):
    cache = filled(session)
    views = views_of(cache)
    slices = [view[10:20] for view in views]
    cache.close()
    del cache
    assert_readable(views)
    del views
    assert_readable(slices)


def test_views_outlive_destroy(session):
    cache = filled(session)
    views = views_of(cache)
    session.destroy_cache(1)
    with pytest.raises(libcache.Gone):
        cache.get(0)
    with pytest.raises(libcache.Gone):
        cache.put(50, 1)
    with pytest.raises(libcache.Gone):
        cache.gather([0])
    assert_readable(views)
    cache.close()
    assert_readable(views)


def test_views_outlive_the_session_and_the_server(own_server):
    client = libcache.Client()
    session = client.create_session()
    first, second = filled(session, 1), filled(session, 2)
    views = views_of(first)
    client.stop_server()
    assert_readable(views)
    assert_readable(views_of(second))  # reads need no server
    first.close()
    second.close()
    assert_readable(views)
    with pytest.raises(libcache.ServerGone):
        client.create_session()


def test_the_memory_is_unmapped_with_the_last_view(session):
    def mapped():
        with open("/proc/self/smaps") as maps:
            return sum(int(line.split()[1]) for line in maps if line.startswith("Size:"))
    cache = session.open(limit_bytes=1 << 30)
    cache.put(0, np.zeros(10))
    view = cache.get(0)[0]
    open_size = mapped()
    cache.close()
    assert mapped() >= open_size - (1 << 20) * 1024 * 1.5  # the writing side may go
    before = mapped()
    assert view[0] == 0
    del view
    gc.collect()
    assert mapped() < before - (1 << 20)  # a GiB of address space, counted in KiB


def test_many_views_cost_no_descriptors(session):
    script = """
import resource, libcache, numpy as np
session = libcache.Client().session({})
with session.open(1) as cache:
    cache.put(0, np.arange(10))
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    rows = [cache.get(0) for _ in range(100_000)]
print(sum(int(row[0][9]) for row in rows))
""".format(session.id)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.stdout == "900000\n", done.stderr


def test_a_closed_cache_says_so(session):
    cache = filled(session)
    assert not cache.closed
    cache.close()
    cache.close()
    assert cache.closed and "closed" in repr(cache)
    for call in (lambda: cache.get(0), lambda: cache.put(0, 1), lambda: cache.gather([0]), lambda: cache.contains([0]),
                 lambda: cache.stat(), lambda: 0 in cache, lambda: cache.reserve(1, ("uint8", 1)), lambda: len(cache)):
        with pytest.raises(ValueError, match="closed"):
            call()
    with session.open(1) as again:
        assert again.get(3)[0][0] == 3


def test_reserved_arrays_outlive_the_handle(session):
    cache = session.open(1)
    row = cache.reserve(0, ("int64", (5,)))
    columns = row.columns
    cache.close()
    columns[0][:] = 7
    assert row.commit()
    with session.open(1) as again:
        assert again[0][0].tolist() == [7] * 5


def test_a_closed_client_leaves_its_caches_usable(server):
    client = libcache.Client()
    session = client.create_session()
    cache = session.open(1)
    client.close()
    cache.put(0, 1)
    assert cache[0][0] == 1
    with pytest.raises(ValueError, match="closed"):
        client.create_session()
    libcache.Client().session(session.id).destroy()


def test_a_thousand_handles_leave_nothing_behind(session):
    filled(session).close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(1000):
        with session.open(1) as cache:
            assert cache.get(0) is not None
    assert len(os.listdir("/proc/self/fd")) <= before + 1
