# SPDX-License-Identifier: Apache-2.0
"""libcache.torch.CachedIterable: a stream is read from its source once."""
import os
import pickle
import warnings

import pytest

torch = pytest.importorskip("torch", reason="no python3-torch (make deps-torch): CachedIterable is not tested")
from torch.utils.data import DataLoader  # noqa: E402

import libcache  # noqa: E402
from libcache._counts import Stats  # noqa: E402
from libcache.torch import CachedIterable, RandomSampleError  # noqa: E402
from torch_sources import NoisyStream, Streamed, doubled, equal  # noqa: E402

ROWS = 50


@pytest.fixture
def source(tmp_path, server):
    return Streamed(ROWS, str(tmp_path / "reads"))


def numbers(batches):
    return [number for batch in batches for number in batch.tolist()]


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("workers, persistent", [(0, False), (1, False), (2, True), (3, False), (8, False)])
def test_each_sample_comes_once_and_is_read_once(source, session, workers, persistent, method):
    if method == "spawn" and workers != 2:
        pytest.skip("a spawned worker imports torch, which takes seconds: 2 stand for all")
    cached = CachedIterable(source, session)
    options = {"multiprocessing_context": method, "persistent_workers": persistent} if workers else {}
    loader = DataLoader(cached, 4, num_workers=workers, **options)
    for _ in range(3):
        got = numbers(loader)
        assert (got if workers < 2 else sorted(got)) == list(range(ROWS))
    # the first sample is compared with itself by each builder; a builder that takes over reads what it skips
    assert source.reads == ROWS + 1 if workers < 2 else source.reads >= ROWS + 1
    before = source.reads
    assert sorted(numbers(loader)) == list(range(ROWS)) and source.reads == before
    assert len(cached.cache) == ROWS


def test_samples_of_any_form_in_their_order(session):
    samples = [(torch.ones(2), 1), {"a": None}, "text", [1, (b"x", 2.5)], (torch.zeros(3), 2)]
    cached = CachedIterable(Listing(samples), session, key="forms")
    for _ in range(2):
        assert all(equal(a, b) for a, b in zip(cached, samples, strict=True))
    assert list(CachedIterable(Listing([]), session, key="none")) == []
    assert [n for n in CachedIterable(Listing([1, 2]), session, key="two", transform=doubled)] == [2, 4]


class Listing(torch.utils.data.IterableDataset):
    def __init__(self, samples):
        self.samples = samples

    def __iter__(self):
        return iter(self.samples)


def test_ranks_in_lockstep_share_one_build(source, session):
    """Each waits for the other after each sample: neither may need what only the other's next step brings."""
    ranks = [iter(CachedIterable(source, session, share=(rank, 2))) for rank in (0, 1)]
    got = [number.item() for pair in zip(*ranks) for number in pair]
    assert got == list(range(ROWS)) and source.reads == ROWS + 1
    with pytest.raises(ValueError, match="ranks"):
        CachedIterable(source, session, share=(2, 2))


def test_ranks_in_lockstep_of_two_processes(source, session):
    """The same with a builder that is another process: pipes play the barrier."""
    to_parent, to_child = os.pipe(), os.pipe()
    pid = os.fork()
    rank, mine, other = (1, to_child[0], to_parent[1]) if pid == 0 else (0, to_parent[0], to_child[1])
    status = 1
    try:
        got = []
        for number in CachedIterable(source, session, share=(rank, 2)):
            got.append(number.item())
            os.write(other, b".")
            assert os.read(mine, 1)
        status = 0 if got == list(range(rank, ROWS, 2)) else 2
    finally:
        if pid == 0:
            os._exit(status)
    assert status == 0 and os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert source.reads == ROWS + 1  # nobody lost patience
    for end in (*to_parent, *to_child):
        os.close(end)


def test_what_is_random_or_cannot_begin_anew_is_refused(session):
    with pytest.raises(RandomSampleError, match="transform="):
        list(CachedIterable(NoisyStream(), session))
    with pytest.raises(TypeError, match="begins anew"):
        CachedIterable(iter([1]), session)


@pytest.mark.parametrize("what", ["session", "server"])
def test_losing_the_cache_in_the_middle(own_server, tmp_path, what):
    source = Streamed(ROWS, str(tmp_path / "reads"))
    cached = CachedIterable(source)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        got = []
        for number in cached:
            got.append(number.item())
            if number == 9:
                if what == "session":
                    cached.cache.session.destroy()
                else:
                    libcache.Client().stop_server()
        assert got == list(range(ROWS))
        assert [number.item() for number in cached] == got
    assert len([warning for warning in caught if warning.category is RuntimeWarning]) <= 1


def test_a_full_cache_gives_all_samples_to_everybody(session):
    samples = [torch.full((10_000,), i, dtype=torch.int64) for i in range(50)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for workers in (0, 2):
            cached = CachedIterable(Listing(samples), session, key=f"full {workers}", limit_bytes=2 << 20, patience=5)
            got = [int(sample[0, 0]) for sample in DataLoader(cached, 1, num_workers=workers)]
            assert sorted(got) == list(range(50))


def of_epoch(cached, samples):
    before = cached.cache_stats()
    given = sum(1 for _ in samples)
    return given, cached.cache_stats() - before


def test_an_epoch_of_misses_and_one_of_hits_are_counted(source, session):
    cached = CachedIterable(source, session)
    assert of_epoch(cached, cached) == (ROWS, Stats(0, ROWS, ROWS, {}))
    assert of_epoch(cached, cached) == (ROWS, Stats(ROWS, 0, 0, {}))
    copy = pickle.loads(pickle.dumps(cached))
    assert of_epoch(cached, copy) == (ROWS, Stats(ROWS, 0, 0, {}))  # counts along
    assert str(cached.cache_stats()) == f"{2 * ROWS} of {3 * ROWS} rows from the cache, {ROWS} stored"


def test_workers_and_ranks_are_counted(source, session):
    cached = CachedIterable(source, session, key="workers")
    loader = DataLoader(cached, None, num_workers=2)
    given, counted = of_epoch(cached, loader)
    assert given == ROWS and counted.misses == counted.stored == ROWS and not counted.refused
    assert 0 <= counted.hits <= ROWS  # what one has appended and the other one given
    assert of_epoch(cached, loader) == (ROWS, Stats(ROWS, 0, 0, {}))
    ranks = [CachedIterable(source, session, share=(rank, 2)) for rank in (0, 1)]
    assert sum(1 for _ in zip(*ranks)) == ROWS // 2
    assert [rank.cache_stats() for rank in ranks] == [Stats(0, ROWS, ROWS, {}), Stats(ROWS // 2, 0, 0, {})]


def test_an_epoch_that_goes_on_where_the_last_one_was_left_is_counted(source, session):
    cached = CachedIterable(source, session)
    assert len(list(zip(range(10), cached))) == 10
    read = cached.cache_stats()
    assert read.hits == 0 and 10 <= read.misses == read.stored < ROWS
    assert of_epoch(cached, cached) == (ROWS, Stats(read.stored, ROWS - read.stored, ROWS - read.stored, {}))


@pytest.mark.parametrize("cause", ["size", "lost"])
def test_samples_that_are_not_stored_are_counted_by_cause(session, cause):
    samples = [torch.full((10_000,), i, dtype=torch.int64) for i in range(50)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cached = CachedIterable(Listing(samples), session, key=cause, limit_bytes=2 << 20 if cause == "size" else 0)
        epoch = iter(cached)
        first = next(epoch)
        if cause == "lost":
            session.destroy()
        assert [int(sample[0]) for sample in (first, *epoch)] == list(range(50))
    counted = cached.cache_stats()
    refused = counted.refused[cause]
    assert counted.hits == 0 and 0 < counted.stored < 50 and list(counted.refused) == [cause]
    # what was appended ahead of the last sample given from the cache is read again
    assert counted.misses == counted.stored + refused and 50 <= counted.misses <= 52


def test_it_pickles_small(source, session):
    cached = CachedIterable(source, session)
    list(cached)
    packed = pickle.dumps(cached)
    assert len(packed) < 2048 and numbers(DataLoader(pickle.loads(packed), 5)) == list(range(ROWS))
