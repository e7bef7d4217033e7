# SPDX-License-Identifier: Apache-2.0
"""CachedDataset.__getitems__, by which DataLoader asks for the samples of a batch: the same as one by one."""
import collections
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no python3-torch (make deps-torch): CachedDataset is not tested")
from torch.utils.data import DataLoader  # noqa: E402

import libcache  # noqa: E402
from libcache._counts import Stats  # noqa: E402
from libcache.torch import CachedDataset  # noqa: E402
from libcache.torch._samples import pile_up, take_apart  # noqa: E402
from torch_sources import Counted, Failing, Listed, doubled, equal, row_is  # noqa: E402

Pair = collections.namedtuple("Pair", "x y")

ONE_SHAPE = {
    "tensor and number": lambda i: (torch.full((2, 3), float(i)), i),
    "dict of all numbers": lambda i: {"a": [i, float(i), i % 2 == 0, None], 5: np.arange(3) + i, "it's": np.float32(i)},
    "numbers as tensors and arrays": lambda i: (torch.tensor(i), np.array(i, np.int16), torch.tensor(i > 2)),
    "empty tensors": lambda i: torch.zeros(0, 4),
    "one number": lambda i: i,
}
OTHERS = {
    "text": lambda i: (torch.full((2,), i), str(i)),
    "other byte order": lambda i: np.full(3, i, ">i4"),
    "bfloat16": lambda i: torch.full((3,), i, dtype=torch.bfloat16),
    "named tuples": lambda i: Pair(i, torch.tensor([i])),
    "other shapes": lambda i: torch.full((i % 3 + 1,), float(i)),
    "other forms": lambda i: torch.full((2,), i) if i % 4 else None,
    "nothing": lambda i: None,
}


@pytest.mark.parametrize("name", [*ONE_SHAPE, *OTHERS])
def test_a_batch_has_the_samples_of_its_indices(session, name):
    source = Listed([{**ONE_SHAPE, **OTHERS}[name](i) for i in range(12)])
    cached = CachedDataset(source, session, key=name)
    for _ in range(3):  # misses, hits, and after what hits have taught
        for indices in ([1, 2, 4], [5, 5, 6], [-1, -2], [3, 0, 1, 7, -12], np.array([8, 9]), []):
            got = cached.__getitems__(indices)
            assert type(got) is list and equal(got, [source[i] for i in indices])
    assert np.array_equal(np.sort(cached.cache.ids()), range(12)) or name == "nothing"
    assert (cached._cut is not None) == (name in ONE_SHAPE)
    with pytest.raises(IndexError):
        cached.__getitems__([0, 12])
    with pytest.raises(TypeError):
        cached.__getitems__([0.0])


def test_samples_of_a_batch_are_the_callers_own(tmp_path, session):
    cached = CachedDataset(Counted(1000, str(tmp_path / "reads")), session)
    cached.__getitems__(range(1000))
    first, again = cached.__getitems__([7, 8])[0], cached.__getitems__(range(1000))
    first[0].add_(1)
    again[7][0].add_(2)
    assert row_is(again[8], 8) and row_is(cached[7], 7) and row_is(cached.__getitems__([7])[0], 7)
    assert len(pickle.dumps(again[9])) < 1000  # a sample alone, not its batch


def test_misses_of_a_batch_are_stored_also_when_one_of_them_fails(tmp_path, session):
    source = Failing(20, str(tmp_path / "reads"))
    cached = CachedDataset(source, session)
    assert row_is(cached[1], 1)  # teaches the form
    for reads in (2 + 3, 2 + 3):
        with pytest.raises(OSError, match="row 7 is damaged"):
            cached.__getitems__([4, 5, 6, 7, 8])
        assert sorted(cached.cache) == [1, 4, 5, 6] and source.reads == reads
    assert [label for _, label in cached.__getitems__([8, 8, 9])] == [8, 8, 9]
    assert source.reads == 7


class Reusing(Counted):
    """Gives one and the same memory each time, or a few in turns."""

    def __init__(self, rows, log, buffers):
        super().__init__(rows, log)
        self.buffers = torch.zeros(buffers, 3, 4)

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        buffer = self.buffers[index % len(self.buffers)]
        return buffer.copy_(image), label


@pytest.mark.parametrize("buffers", [1, 3])
def test_a_source_that_uses_its_memory_again_is_cached_as_it_was(tmp_path, session, buffers):
    """In a batch its samples are wrong, as without a cache, but never in the cache."""
    cached = CachedDataset(Reusing(20, str(tmp_path / "reads"), buffers), session)
    for _ in range(2):
        for i in range(0, 20, 5):
            cached.__getitems__(list(range(i, i + 5)))
    assert all(row_is(cached[i], i) for i in range(20)) and len(cached.cache) == 20
    reads = cached.dataset.reads
    assert all(map(row_is, cached.__getitems__(range(20)), range(20))) and cached.dataset.reads == reads


def test_transforms_are_applied_to_each_sample_of_a_batch(tmp_path, session):
    cached = CachedDataset(Counted(9, str(tmp_path / "reads")), session, target_transform=doubled,
                           sample_transform=lambda sample: sample[1])
    for _ in range(2):
        assert [batch.tolist() for batch in DataLoader(cached, 3)] == [[0, 2, 4], [6, 8, 10], [12, 14, 16]]


class Numbered(CachedDataset):
    """What it does for a sample, it does for each of a batch."""

    def __getitem__(self, index):
        return index, super().__getitem__(index)[1]


def test_a_subclass_is_asked_for_each_sample(tmp_path, session):
    cached = Numbered(Counted(6, str(tmp_path / "reads")), session)
    for _ in range(2):
        assert cached.__getitems__([4, -1]) == [(4, 4), (-1, 5)]


def test_a_batch_from_a_cache_that_is_full_or_gone(tmp_path, session):
    samples = [torch.full((10_000,), i) for i in range(50)]
    cached = CachedDataset(Listed(samples), session, key="full", limit_bytes=2 << 20)
    with pytest.warns(RuntimeWarning, match="is full"):
        assert equal(cached.__getitems__(range(50)), samples)
    kept = len(cached.cache)
    assert 5 < kept < 50 and equal(cached.__getitems__(range(50)), samples) and len(cached.cache) == kept
    small = CachedDataset(Counted(6, str(tmp_path / "reads")), libcache.Client().create_session())
    small.__getitems__(range(6))
    small.cache.session.destroy()
    with pytest.warns(RuntimeWarning, match="not there"):
        assert all(map(row_is, small.__getitems__(range(6)), range(6)))


PILED = {
    "tensor and number": lambda i: (torch.full((2, 3), float(i)), i),
    "all numbers": lambda i: [i, float(i) / 3, i % 2 == 0, (torch.tensor(i), torch.tensor(i > 2))],
    "pixels in another order": lambda i: (torch.arange(24).reshape(2, 4, 3).permute(2, 0, 1) + i, -i),
    "every other number": lambda i: (torch.arange(20, dtype=torch.int16)[::2] * i,),
    "empty": lambda i: (torch.zeros(0, 4), i),
}


@pytest.mark.parametrize("name", PILED)
def test_misses_of_a_batch_are_stored_by_one_call(session, name, monkeypatch):
    source = Listed([PILED[name](i) for i in range(12)])
    cached = CachedDataset(source, session, key="piled " + name)
    monkeypatch.setattr(cached._link, "put", lambda *row: pytest.fail(f"row {row} was stored alone"))
    monkeypatch.setattr(cached._link, "put_all", lambda *rows: pytest.fail("rows were stored one by one"))
    assert equal(cached.__getitems__(range(1, 12)), source.samples_list[1:])
    for i, row in enumerate(cached.cache.get_many(range(12))):
        _, columns = take_apart(source[i])
        assert len(row) == len(columns)
        for stored, column in zip(row, map(np.asarray, columns)):
            assert (stored.dtype, stored.shape) == (column.dtype, column.shape) and np.array_equal(stored, column)
    assert cached.cache_stats() == Stats(0, 11, 12, {})  # the first row is stored when the data set is made


@pytest.mark.parametrize("sample", [
    (torch.zeros(2, 3), True), (torch.zeros(2, 3), 1.0), (torch.zeros(2, 3), "1"), (torch.zeros(2, 3), np.int64(1)),
    (torch.zeros(2, 3), 2**63), (torch.zeros(2, 3), None), (torch.zeros(2, 3),), [torch.zeros(2, 3), 1], None,
    (torch.zeros(2, 3, dtype=torch.float64), 1), (torch.zeros(2, 3, requires_grad=True), 1), (torch.zeros(2, 2), 1),
    (torch.zeros(2, 3).to_sparse(), 1), (np.zeros((2, 3), np.float32), 1), (torch.nn.Parameter(torch.zeros(2, 3)), 1)])
def test_a_sample_of_another_kind_is_not_piled_up_with_the_others(sample):
    usual = (torch.ones(2, 3), 7)
    form, _ = take_apart(usual)
    with torch.no_grad():  # in which a tensor's gradient is no hindrance to torch.stack
        assert pile_up(form, [usual, usual, sample]) is None
        assert pile_up(form, [sample, sample]) is None or sample[0].shape == (2, 2)
        assert pile_up(form, [usual, usual]) is not None


def test_small_rows_that_fill_a_cache_are_counted(session):
    samples = [(torch.full((500,), float(i)), i) for i in range(2000)]
    cached = CachedDataset(Listed(samples), session, key="small rows", limit_bytes=2 << 20)
    with pytest.warns(RuntimeWarning, match="is full"):
        assert equal(cached.__getitems__(range(1, 2000)), samples[1:])
    kept, stats = len(cached.cache), cached.cache_stats()
    assert 500 < kept < 1500 and stats.stored == kept and sum(stats.refused.values()) == 2000 - kept
    assert equal([cached[i] for i in range(2000)], samples)


class Ending(Counted):
    """Its session is destroyed while it reads row 5 for the first time."""

    session = None

    def __getitem__(self, index):
        if index == 5 and self.session is not None:
            self.session, session = None, self.session
            session.destroy()
        return super().__getitem__(index)


def test_a_session_that_ends_between_reading_a_batch_and_storing_it(server, tmp_path, monkeypatch):
    monkeypatch.setenv("LIBCACHE_SESSION", "ends in a batch")
    source = Ending(20, str(tmp_path / "reads"))
    cached = CachedDataset(source)
    source.session = cached.cache.session
    with pytest.warns(RuntimeWarning, match="was destroyed: rows are read again"):
        assert all(map(row_is, cached.__getitems__(range(1, 20)), range(1, 20)))
    assert cached.cache_stats().refused == {"lost": 19}  # the new cache does not know yet what its rows are made of
    assert all(row_is(cached[i], i) for i in (7, *range(20)))
    assert sorted(cached.cache) == list(range(20)) and source.reads == 2 + 19 + 21
    cached.cache.session.destroy()
