# SPDX-License-Identifier: Apache-2.0
"""put, get, get_many, gather, contains and reserve, row by row."""
import array
import itertools
import sys
import threading
import time

import numpy as np
import pytest

import libcache


def test_a_row_comes_back_as_read_only_views_of_the_region(cache):
    image = np.arange(784, dtype=np.uint8).reshape(28, 28)
    assert cache.put(7, image, 3) is True
    row = cache.get(7)
    assert type(row) is tuple and len(row) == 2
    np.testing.assert_array_equal(row[0], image)
    assert row[0].dtype == np.uint8 and row[0].shape == (28, 28)
    assert row[1].dtype == np.int64 and row[1].shape == () and row[1] == 3
    for column in row:
        assert not column.flags.writeable and not column.flags.owndata
    again = cache.get(7)
    assert again[0].ctypes.data == row[0].ctypes.data  # the same memory, not a copy of it


def test_views_cannot_be_made_writable(cache):
    cache.put(0, np.zeros(4))
    view = cache.get(0)[0]
    with pytest.raises(ValueError):
        view[0] = 1
    with pytest.raises(ValueError):
        view.flags.writeable = True


def test_the_first_put_of_an_id_wins(cache):
    assert cache.put(1, np.zeros(3)) is True
    assert cache.put(1, np.ones(5)) is False
    np.testing.assert_array_equal(cache.get(1)[0], np.zeros(3))


def test_a_miss_is_none_or_the_default_or_not_found(cache):
    nothing = object()
    assert cache.get(5) is None
    assert cache.get(5, nothing) is nothing
    with pytest.raises(libcache.NotFound, match="5") as caught:
        cache[5]
    assert isinstance(caught.value, KeyError)
    assert 5 not in cache


def test_ids_may_be_of_any_integer_type(cache):
    cache.put(np.int32(4), 1)
    assert cache.get(np.uint8(4)) is not None and np.int64(4) in cache
    with pytest.raises(TypeError):
        cache.get(4.0)
    with pytest.raises(TypeError):
        cache.get("4")
    with pytest.raises(libcache.InvalidArgument, match="-1"):
        cache.put(-1, 1)
    assert cache.put(2**63 - 1, 5) and cache[2**63 - 1][0] == 5


WHERE = "not in 0..9223372036854775807"


def calls_with_an_id(cache):
    return (cache.get, cache.__getitem__, lambda i: cache.put(i, 1), lambda i: cache.reserve(i, ("uint8", 1)),
            lambda i: cache.contains([i]), lambda i: cache.get_many([i]), lambda i: cache.gather([i]),
            lambda i: cache.gather((i,), out=np.zeros(1)), lambda i: cache._gather_rows([i], (np.zeros(1),)))


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 2**64, -2**63 - 1, 10**30, np.uint64(2**63),
                                    np.array(2**64 - 1, np.uint64)])
def test_a_number_that_no_row_can_have_is_an_invalid_argument_everywhere(cache, number):
    for call in calls_with_an_id(cache):
        with pytest.raises(libcache.InvalidArgument, match=f"row id {number} is {WHERE}"):
            call(number)
    assert number not in cache


@pytest.mark.parametrize("value", [4.0, float("nan"), "4", b"4", None, True, np.True_, np.float64(4), np.array(4.0),
                                   1j, object()])
def test_what_is_no_integer_is_a_type_error_everywhere(cache, value):
    cache.put(4, 1)
    cache.put(1, 1)
    for call in calls_with_an_id(cache):
        with pytest.raises(TypeError, match="integer"):
            call(value)
    if type(value) is not np.ndarray:
        assert value not in cache


def test_in_is_false_for_what_no_row_can_have_and_refuses_lists(cache):
    cache.put(7, 1)
    assert np.array(7) in cache and np.uint64(7) in cache
    assert -1 not in cache and (7,) not in cache
    for many in ([7], np.array([7, 8]), np.array(7.5)):
        with pytest.raises(TypeError, match="integer"):
            many in cache  # noqa: B015
    cache.close()
    with pytest.raises(ValueError, match="closed"):
        "a" in cache  # noqa: B015


def test_vectors_of_ids_name_the_one_that_is_wrong(cache):
    for ids in (np.array([1, 2**63 + 5], np.uint64), [1, 2**63 + 5], [-1, 2**63 + 5], [1, 2**63 + 5, 2**70]):
        with pytest.raises(libcache.InvalidArgument, match=f"9223372036854775813 is {WHERE}"):
            cache.contains(ids)
    with pytest.raises(TypeError, match="float64.*astype"):
        cache.contains(np.zeros(3))
    with pytest.raises(TypeError, match="not set"):
        cache.contains({1, 2})
    assert cache.contains(np.array([1, 2], object)).tolist() == [False, False]


@pytest.mark.parametrize("buffer, dtype, shape", [
    (bytearray(b"abc"), np.uint8, (3,)),
    (memoryview(b"abcd"), np.uint8, (4,)),
    (array.array("d", [1.0, 2.0]), np.float64, (2,)),
    (memoryview(np.arange(6, dtype=np.int16).reshape(2, 3)), np.int16, (2, 3)),
    ([[1, 2], [3, 4]], np.int64, (2, 2)),
    (True, np.bool_, ()),
    (2.5, np.float64, ()),
    (np.float32(2.5), np.float32, ()),
    (2**63, np.uint64, ()),
])
def test_any_buffer_may_be_put(cache, buffer, dtype, shape):
    cache.put(0, buffer)
    column = cache.get(0)[0]
    assert column.dtype == dtype and column.shape == shape
    np.testing.assert_array_equal(column, np.asarray(buffer))


def test_bytes_and_text(cache):
    cache.put(0, b"\0\xff", "Grüße \0 🎲", b"", "")
    raw, text, no_bytes, no_text = cache.get(0)
    assert raw.dtype == np.uint8 and bytes(raw) == b"\0\xff"
    assert text == "Grüße \0 🎲"
    assert bytes(no_bytes) == b"" and no_text == ""


@pytest.mark.parametrize("value, advice", [
    (np.array([object()]), "object"),
    (np.array([1 + 2j]), "complex128"),
    (np.array(["a"]), "<U1"),
    (np.array([b"a"]), "|S1"),
    (np.zeros(2, "datetime64[s]"), "datetime64"),
    (np.zeros(2, [("a", int)]), "'a'"),
    (np.zeros(2, np.longdouble), "float128"),
    (np.ma.masked_array([1, 2], [True, False]), "mask"),
    ([[1], [2, 3]], ""),
    (None, "object"),
    (2**64, "object"),
])
def test_what_cannot_be_stored_is_refused_by_column_and_name(cache, value, advice):
    with pytest.raises(TypeError, match="column 1") as caught:
        cache.put(0, 1, value)
    assert advice in str(caught.value)
    assert 0 not in cache


def test_a_row_may_have_many_columns_but_not_too_many(cache):
    columns = [np.full(i % 5, i) for i in range(300)]
    cache.put(0, *columns)
    for got, put in zip(cache[0], columns):
        np.testing.assert_array_equal(got, put)
    with pytest.raises(ValueError, match="4096"):
        cache.put(1, *[0] * 4097)
    with pytest.raises(TypeError):
        cache.put(1)


def test_columns_are_aligned_for_their_type(cache):
    for i, size in enumerate([1, 3, 17, 255, 256, 257, 4095]):
        cache.put(i, np.zeros(size, np.uint8), np.zeros(size), 1.0)
        for column in cache[i]:
            assert column.flags.aligned
            assert column.nbytes < 256 or column.ctypes.data % 64 == 0


def test_get_many_gives_a_row_or_none_for_each_id(cache):
    for i in range(0, 100, 2):
        cache.put(i, i)
    rows = cache.get_many(range(100))
    assert [row if row is None else int(row[0]) for row in rows] == [None if i % 2 else i for i in range(100)]
    assert cache.get_many([]) == []
    assert cache.get_many(np.array([2, 2], np.uint16))[1][0] == 2


def test_contains(cache):
    cache.put(3, 1)
    found = cache.contains([2, 3])
    assert found.dtype == np.bool_ and found.tolist() == [False, True]
    with pytest.raises(libcache.InvalidArgument):
        cache.contains([3, -5])
    for wrong in ([1.5], [[1]], ["a"], [True]):
        with pytest.raises(TypeError):
            cache.contains(wrong)


def test_gather_makes_a_batch(cache):
    images = np.random.default_rng(0).integers(0, 256, (50, 28, 28), np.uint8)
    for i, image in enumerate(images):
        cache.put(i, image, i)
    ids = np.random.default_rng(1).integers(0, 50, 333)
    batch = cache.gather(ids)
    assert batch.flags.writeable and batch.flags.owndata
    np.testing.assert_array_equal(batch, images[ids])
    np.testing.assert_array_equal(cache.gather(ids, column=1), ids)
    out = np.zeros((333, 28, 28), np.uint8)
    assert cache.gather(ids, out=out) is out
    np.testing.assert_array_equal(out, images[ids])


def test_gather_fills_rows_that_lie_apart(cache):
    for i in range(5):
        cache.put(i, np.full((2, 3), i, np.float32))
    wide = np.full((5, 4, 3), -1, np.float32)
    cache.gather([4, 3, 2, 1, 0], out=wide[:, 1:3])
    np.testing.assert_array_equal(wide[:, 1:3, 0], np.repeat([[4], [3], [2], [1], [0]], 2, 1))
    assert (wide[:, 0] == -1).all() and (wide[:, 3] == -1).all()
    cache.gather(range(5), out=wide[::-1, :2])
    assert wide[:, 0, 0].tolist() == [4, 3, 2, 1, 0]


def test_gather_tells_which_rows_were_there(cache):
    cache.put(1, np.ones(2))
    found = np.zeros(3, bool)
    out = np.full((3, 2), 7.0)
    cache.gather([0, 1, 2], out=out, found=found)
    assert found.tolist() == [False, True, False]
    assert out.tolist() == [[7, 7], [1, 1], [7, 7]]
    assert cache.gather([0, 1], found=found[:2]).tolist() == [[0, 0], [1, 1]]
    with pytest.raises(libcache.NotFound, match="row 2"):
        cache.gather([1, 2])
    with pytest.raises(libcache.NotFound):
        cache.gather([8, 9])


def test_gather_never_mixes_rows_of_another_shape_or_dtype(cache):
    cache.put(0, np.zeros((28, 28), np.uint8))
    cache.put(1, np.zeros(784, np.uint8))
    cache.put(2, np.zeros((28, 28), np.int8))
    cache.put(3, np.zeros((28, 27), np.uint8))
    for other, kind in ((1, r"\(784,\) uint8"), (2, r"\(28, 28\) int8"), (3, r"\(28, 27\) uint8")):
        with pytest.raises(ValueError, match=rf"column 0 of row {other} is {kind}, but that of row 0 is \(28, 28\) uint8"
                                             ".*get_many"):
            cache.gather([0, other, 1, 2, 3])
    with pytest.raises(ValueError, match=r"row 0 is \(28, 28\) uint8, but rows of out= are \(2,\) float64"):
        cache.gather([0], out=np.zeros((1, 2)))
    with pytest.raises(ValueError, match="row 0 has 1 columns, there is no column 1"):
        cache.gather([0], column=1, out=np.zeros((1, 2)))


def test_gather_refuses_an_out_that_does_not_fit(cache):
    cache.put(0, np.zeros((4, 4), np.float32))
    read_only = np.zeros((1, 4, 4), np.float32)
    read_only.flags.writeable = False
    for out in (np.zeros((2, 4, 4), np.float32), np.zeros((1, 4, 4), np.float64), np.zeros((1, 4, 3), np.float32),
                np.zeros((1, 4, 4), ">f4"), read_only, np.zeros((1, 4, 8), np.float32)[..., ::2], np.float32(1)):
        with pytest.raises((ValueError, TypeError)):
            cache.gather([0], out=out)
    for found in (np.zeros(2, bool), np.zeros(1, int), [True]):
        with pytest.raises(ValueError):
            cache.gather([0], found=found)
    with pytest.raises(ValueError):
        cache.gather([])
    assert cache.gather([], out=np.zeros((0, 4))).shape == (0, 4)


def test_gather_of_empty_and_scalar_rows(cache):
    cache.put(0, np.zeros((0, 3)), 5)
    found = np.zeros(2, bool)
    assert cache.gather([0, 1], found=found).shape == (2, 0, 3)
    assert found.tolist() == [True, False]
    assert cache.gather([0, 0], column=1).tolist() == [5, 5]


def test_a_reserved_row_is_written_in_place(cache):
    row = cache.reserve(4, ("float32", (2, 3)), (np.int64, ()), np.zeros(2, np.uint8))
    assert [(column.dtype.name, column.shape) for column in row.columns] == [
        ("float32", (2, 3)), ("int64", ()), ("uint8", (2,))]
    row.columns[0][...] = 1.5
    row.columns[1][()] = 9
    row.columns[2][:] = [1, 2]
    assert 4 not in cache
    assert row.commit() is True
    image, label, raw = cache[4]
    assert (image == 1.5).all() and label == 9 and raw.tolist() == [1, 2]
    with pytest.raises(ValueError):
        row.columns[0][...] = 2
    with pytest.raises(ValueError, match="ended"):
        row.commit()
    assert cache.reserve(4, ("uint8", 1)) is None


def test_a_reservation_ends_with_its_block(cache):
    with cache.reserve(0, ("uint8", (3,))) as row:
        row.columns[0][:] = 1
    assert cache[0][0].tolist() == [1, 1, 1]
    with pytest.raises(ZeroDivisionError):
        with cache.reserve(1, ("uint8", (3,))) as row:
            1 / 0
    assert 1 not in cache
    dropped = cache.reserve(2, ("uint8", (3,)))
    del dropped
    assert 2 not in cache and cache.put(2, 1)
    with cache.reserve(3, ("uint8", 3)) as row:
        row.abort()
    assert 3 not in cache
    for wrong in ((), (("complex64", ()),), (np.array(["a"]),)):
        with pytest.raises(TypeError):
            cache.reserve(4, *wrong)


def test_the_slower_of_two_reservations_of_one_id_loses(cache):
    first, second = cache.reserve(0, ("uint8", 1)), cache.reserve(0, ("uint8", 1))
    first.columns[0][:], second.columns[0][:] = 1, 2
    assert second.commit() is True and first.commit() is False
    assert cache[0][0] == 2


def test_ids_and_length(cache):
    assert len(cache) == 0 and cache and cache.ids().tolist() == []
    wanted = list(range(0, 30_000, 3)) + [10**12]
    for i in wanted:
        cache.put(i, 0)
    assert len(cache) == len(wanted)
    assert sorted(cache) == wanted == sorted(cache.ids().tolist())


def test_names_are_kept_once(cache):
    assert cache.names is None
    cache.names = ["image", "Größe"]
    cache.names = ["image", "Größe"]
    assert cache.names == ("image", "Größe")
    with pytest.raises(libcache.Conflict):
        cache.names = ["other"]


def test_stat_counts_what_was_put(cache):
    cache.put(0, np.zeros(1000, np.uint8))
    stats = cache.stat()
    assert stats.rows_in_memory == 1 and stats.row_bytes == 1000 and stats.cache_id == cache.cache_id
    assert stats.charged_bytes <= stats.limit_bytes
    cache.flush()


def test_threads_share_a_handle(cache):
    count, threads = 500, 8
    wins, wrong = [0] * threads, []

    def work(thread):
        for i in range(count):
            wins[thread] += cache.put(i, np.full(100, i))
            if not (cache[i][0] == i).all():
                wrong.append(i)

    workers = [threading.Thread(target=work, args=(thread,)) for thread in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sum(wins) == count and not wrong


def long_gather(session):
    cache = session.open(2)
    cache.put(0, np.zeros(1 << 20, np.uint8))
    return lambda: cache.gather(np.zeros(20, np.int64), out=np.empty((20, 1 << 20), np.uint8))


def any_put(session):
    cache, ids = session.open(2), itertools.count()
    return lambda: cache.put(next(ids), b"")


def a_wait_for_the_build(session):
    cache = session.open(2, build=True)
    cache.build()

    def wait():
        with pytest.raises(libcache.Timeout):
            cache.wait(0.01)
    return wait


def a_question_to_the_server(session):
    return session.client.sessions


@pytest.mark.parametrize("prepare", [long_gather, any_put, a_wait_for_the_build, a_question_to_the_server])
def test_what_can_block_releases_the_gil(session, prepare):
    assert another_thread_gets_on(prepare(session))


@pytest.mark.parametrize("read", ["get", "[]", "get_many", "gather"])
def test_rows_are_read_from_disk_without_the_gil_and_from_memory_with_it(no_server, tmp_path, read):
    no_server.start("-s", tmp_path)
    session = libcache.Client().create_session()
    with session.open(1, limit_bytes=2 << 20, spill=True) as cache:
        for i in range(400):
            cache.put(i, np.full(2_000, i))
        cache.flush()
        assert 20 < cache.stat().rows_in_memory < 380  # what comes last is on disk
        ids = itertools.count()
        calls = {"get": lambda i: cache.get(i)[0], "[]": lambda i: cache[i][0],
                 "get_many": lambda i: cache.get_many([i])[0][0], "gather": lambda i: cache.gather([i])}
        for first, on_disk in ((0, False), (380, True)):
            for _ in range(100):
                cache.get(0)  # after so many nothing is expected to come from disk

            def call():
                assert calls[read](row := first + next(ids) % 20).flat[-1] == row  # comparing them all has no GIL
            assert another_thread_gets_on(call, 100_000 if on_disk else 1000) == on_disk


def another_thread_gets_on(call, times=100_000):
    """Whether a call gives the GIL up: this thread never does by itself. Where it does, the other one may be too late
    for it, again and again on a busy machine."""
    ticks, ended = [0], threading.Event()

    def tick():
        while not ended.is_set():
            ticks[0] += 1
            time.sleep(0)  # gives the GIL back, since this thread is not made to either

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=tick)
    sys.setswitchinterval(1000)  # before it waits for the GIL for the first time
    thread.start()
    try:
        before = ticks[0]
        for _ in range(times):
            call()
            if ticks[0] > before:
                break
        return ticks[0] > before
    finally:
        sys.setswitchinterval(interval)
        ended.set()
        thread.join()


@pytest.mark.parametrize("value, dtype", [
    (0, "int64"), (-2**63, "int64"), (2**63 - 1, "int64"), (2**63, "uint64"), (2**64 - 1, "uint64"), (2.5, "float64"),
    (float("-inf"), "float64"), (True, "bool"), (False, "bool")])
def test_plain_numbers_are_stored_as_numpy_makes_them(cache, value, dtype):
    cache.put(1, value, b"between", value)
    first, _, last = cache[1]
    for column in (first, last):
        assert column.dtype == dtype and column.shape == () and column[()] == value


def test_numbers_that_do_not_fit_are_refused(cache):
    for value in (2**64, -2**63 - 1):
        with pytest.raises(TypeError, match="column 0"):
            cache.put(1, value)
