# SPDX-License-Identifier: Apache-2.0
"""cache_stats(): whether rows came from the cache, counted over all processes of a loader."""
import pickle
import warnings

import libcache
import pytest

torch = pytest.importorskip("torch", reason="no python3-torch (make deps-torch): cache_stats is not tested")
from torch.utils.data import DataLoader  # noqa: E402

from libcache._counts import Counts, Stats  # noqa: E402
from libcache.torch import CachedDataset, CachedLoader, cached_loader, collate  # noqa: E402
from torch_sources import Counted, Listed, doubled  # noqa: E402

ROWS = 200


@pytest.fixture
def source(tmp_path):
    return Counted(ROWS, str(tmp_path / "reads"))


def of_epoch(cached, loader):
    before = cached.cache_stats()
    assert sum(1 for _ in loader) > 0
    return cached.cache_stats() - before


def plain(cached, **options):
    return DataLoader(cached, 16, **options)


def whole(cached, **options):
    return DataLoader(cached.rows, 16, collate_fn=collate, **options)


def gathered(cached, **options):
    return CachedLoader(cached, 16, **options)


# Started anew, each worker imports torch: once is enough to see that the counts are shared.
WAYS = [(loader, workers, "fork" if workers else None, transform) for loader in (plain, whole, gathered)
        for workers in (0, 2) for transform in (None, doubled)] + [(gathered, 2, "spawn", None)]


@pytest.mark.parametrize("loader, workers, context, transform", WAYS)
def test_an_epoch_of_misses_and_one_of_hits(session, source, loader, workers, context, transform):
    cached = CachedDataset(source, session, transform=transform)
    assert cached.cache_stats() == Stats(0, 0, 1, {})  # the first row
    options = {"num_workers": workers, "multiprocessing_context": context}
    assert of_epoch(cached, loader(cached, **options)) == Stats(1, ROWS - 1, ROWS - 1, {})
    assert of_epoch(cached, loader(cached, shuffle=True, **options)) == Stats(ROWS, 0, 0, {})
    assert source.reads == ROWS + 1
    assert str(cached.cache_stats()) == f"{ROWS + 1} of {2 * ROWS} rows from the cache, {ROWS} stored"


@pytest.mark.parametrize("loader", [plain, whole, gathered])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_cache_refuses_by_cause(session, loader, workers):
    source = Listed([torch.full((1 << 16,), i % 128, dtype=torch.uint8) for i in range(64)])  # 4 MiB
    cached = CachedDataset(source, session, limit_bytes=2 << 20, key="large")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of the process that meets the limit, which may be a worker
        counted = of_epoch(cached, loader(cached, num_workers=workers))
    assert counted.hits + counted.misses == 64
    assert 0 < counted.stored < counted.misses == counted.stored + counted.refused["size"]
    assert list(counted.refused) == ["size"] and "refused (size)" in str(counted)
    assert len(cached.cache) == counted.stored + 1


def test_rows_without_a_cache_are_refused_as_lost(own_server, tmp_path):
    session = libcache.Client().create_session()
    own_server.stop()
    with pytest.warns(RuntimeWarning):
        cached = CachedDataset(Counted(ROWS, str(tmp_path / "reads")), session)
    before = cached.cache_stats()
    samples = [cached[i] for i in range(1, 11)]
    counted = cached.cache_stats()
    assert len(samples) == 10 and counted.hits == counted.stored == 0
    assert counted.misses - before.misses == 10 and counted.refused["lost"] - before.refused.get("lost", 0) == 10


def test_copies_count_together_and_late_ones_alone(session, source):
    cached = CachedDataset(source, session)
    copy = pickle.loads(pickle.dumps(cached))
    copy[1], cached[1]
    assert cached.cache_stats() == copy.cache_stats() == Stats(1, 1, 2, {})
    counts = Counts()
    packed = pickle.dumps(counts)
    counts.add(0)
    del counts
    assert pickle.loads(packed).stats() == Stats(0, 0, 0, {})


def test_files_are_counted(session, tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    load = cached_loader(session, decode=lambda file: file.read())
    assert [load(path), load(path)] == [b"abc", b"abc"]
    assert load.cache_stats() == Stats(1, 1, 1, {})
