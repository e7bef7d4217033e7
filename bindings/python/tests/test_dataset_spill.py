# SPDX-License-Identifier: Apache-2.0
"""Caches that spill: the original's tests with size=1 and spilling=True, and the article, which spills."""
import re
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import libcache
import libcache.dataset as ds
import libcache.dataset.vision as vision
from conftest import DATA
from dataset_files import IMAGES, TF, cifar10, cifar10_row, count, mnist, needs_fixtures, rows_of, run_example, same, \
    tables

pytest.importorskip("PIL", reason="no python3-pil: pictures are not decoded")


def start_spilling(place, folder):
    """Starts the server with a spill folder; skips where it cannot spill."""
    folder.mkdir()
    place.start("-s", folder)
    session = libcache.Client().create_session()
    try:
        session.open(spill=True).close()
    except libcache.NotSupported as error:
        pytest.skip(f"no spilling here: {error}")
    session.destroy()
    return libcache.Client().create_session()


@pytest.fixture
def another(no_server, tmp_path):
    """Makes DatasetCaches that spill."""
    session = start_spilling(no_server, tmp_path / "spill")
    return lambda **options: ds.DatasetCache(session_id=session.id, spilling=True, **options)


@needs_fixtures
def test_map_extra_small_size1(another):
    for place in ("source", "map"):
        cache = another(size=1)
        data = ds.ImageFolderDataset(str(IMAGES), shuffle=False, cache=cache if place == "source" else None)
        data = data.map(vision.Decode(), "image", cache=cache if place == "map" else None).repeat(4)
        rows = rows_of(data)
        assert len(rows) == 8 and all(same(rows[2 * i:2 * i + 2], rows[:2]) for i in range(4))
        stat = cache.get_stat()
        assert stat.num_mem_cached + stat.num_disk_cached == 2 and stat.misses == 2
        assert (stat.num_disk_cached > 0) == (place == "map")  # encoded they fit


@needs_fixtures
def test_nomap_extra_small_size1(another):
    pytest.importorskip("google.protobuf")
    pytest.importorskip("crc32c")
    cache = another(size=1)
    data = ds.TFRecordDataset(str(TF / "train-0000-of-0001.data"), shuffle=False, columns_list=["image"])
    rows = rows_of(data.map(vision.Decode(), "image", cache=cache).repeat(4))
    assert len(rows) == 12 and all(same(rows[3 * i:3 * i + 3], rows[:3]) for i in range(4))
    assert cache.get_stat().num_disk_cached > 0


@pytest.mark.parametrize("total, size", [(50, 0), (10, 4)])
def test_random_data_spill(another, total, size):
    """C++: CacheRandomDataCApi1 and CacheRandomDataSpillCApi"""
    schema = ds.Schema()
    schema.add_column("image", "uint8", [640, 480, 3])
    schema.add_column("label", "uint8", [1])
    cache = another(size=size)
    data = ds.RandomDataset(total, schema, cache=cache).repeat(4)
    rows = rows_of(data.project("label"))
    assert len(rows) == 4 * total and same(rows[:total], rows[total:2 * total])
    stat = cache.get_stat()
    assert stat.num_mem_cached + stat.num_disk_cached == total and (stat.num_disk_cached > 0) == (size > 0)


def test_small_rows_in_memory_and_on_disk(another, tmp_path):
    cache = another(size=2)
    data = ds.Cifar10Dataset(cifar10(tmp_path / "cifar", 2_000), shuffle=False, cache=cache)
    for _ in range(2):
        assert [cifar10_row(row["image"]) for row in rows_of(data)] == list(range(2_000))
    stat = cache.get_stat()
    assert stat.num_mem_cached > 0 and stat.num_disk_cached > 0 and stat.misses == 2_000
    assert stat.num_mem_cached + stat.num_disk_cached == 2_000 and stat.avg_cache_sz == 3076
    assert count(ds.Cifar10Dataset(str(tmp_path / "cifar"), num_shards=2, shard_id=1, cache=cache)) == 1_000


def test_the_article_line_by_line(no_server, tmp_path):
    start_spilling(no_server, tmp_path / "spill")
    no_server.stop()
    folder = str(DATA / "mnist") if (DATA / "mnist").is_dir() else mnist(tmp_path / "mnist", 60_000)
    said = run_example(no_server, "article.sh", folder, cifar10(tmp_path / "cifar", 2_000))
    session = re.search(rf"Session created for server on port {no_server.port}: (\d+)", said)[1]
    assert "port bound" in said and "4 rows read" in said and "60000 rows read" in said and "2000 rows read" in said
    counts = [int(word) for word in re.findall(r"^cached: (\d+)$", said, re.M)]
    assert counts == sorted(counts) and counts[0] >= 4  # it rises
    assert re.search(r"^cached: 60000, after \d+ different counts$", said, re.M)
    empty, four, both, destroyed = tables(said)
    assert empty == [[session, "n/a", "n/a", "n/a", "n/a", "n/a"]] and destroyed == []
    assert [row[0] for row in four] == [session] and four[0][2:5] == ["4", "n/a", "788"]
    assert sorted(row[2:5] for row in both) == [["2000", "n/a", "3076"], ["60000", "n/a", "788"]]
    assert f"Drop session {session} successfully" in said and "No active sessions." in said
    assert f"Cache server on port {no_server.port} has been stopped successfully." in said


def test_ten_threads_against_a_client_that_spills(another):
    """5,000 rows of 10 threads into a cache of 1 MB: each comes back as it was, and destroying it leaves no session."""
    session = libcache.Client().create_session()
    rows = session.open(1, limit_bytes=1 << 20, expected_rows=5000, spill=True)
    row = lambda row_id: np.arange(row_id, row_id + 256, dtype=np.int64)  # noqa: E731

    def write(first):
        for row_id in range(first, first + 500):
            rows.put(row_id, row(row_id))

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(write, range(0, 5000, 500)))
    rows.flush()
    stats = rows.stat()
    assert stats.rows_in_memory + stats.rows_spilled == 5000 and stats.rows_spilled > 2500
    for row_id in range(5000):
        assert np.array_equal(rows.get(row_id)[0], row(row_id))
    rows.close()
    session.destroy()
    assert all(other.id != session.id for other in libcache.Client().sessions())
