# SPDX-License-Identifier: Apache-2.0
"""MindSpore's C++ tests of its cache (class MindDataTestCacheOp), those that these data sets can restate."""
import numpy as np
import pytest

import libcache.dataset as ds
import libcache.dataset.vision as vision
from dataset_files import COCO, IMAGES, PK, TF4, VOC, cifar10, cifar100, count, mnist, needs_fixtures, rows_of, same

pytest.importorskip("PIL", reason="no python3-pil: pictures are not decoded")


@pytest.fixture
def cache(session):
    """A DatasetCache in a session of its own."""
    return ds.DatasetCache(session_id=session.id)


def images(**options):
    return ds.ImageFolderDataset(str(IMAGES), **options)


@needs_fixtures
def test_nested_cache(cache):
    data = images(cache=cache).map(vision.Decode(), "image", cache=cache)
    with pytest.raises(RuntimeError, match="Nested cache operations"):
        data.create_dict_iterator()


@needs_fixtures
def test_image_folder(cache):
    assert count(images(sampler=ds.RandomSampler(), cache=cache).repeat(2)) == 4


@needs_fixtures
def test_coco_and_voc(cache, session):
    data = ds.CocoDataset(str(COCO / "train"), str(COCO / "annotations" / "train.json"), cache=cache).repeat(2)
    assert count(data) == 12
    another = ds.DatasetCache(session_id=session.id)
    assert count(ds.VOCDataset(str(VOC), task="Detection", usage="train", cache=another).repeat(2)) == 18


@pytest.mark.parametrize("make", [
    lambda folder, **options: ds.MnistDataset(mnist(folder), **options),
    lambda folder, **options: ds.Cifar10Dataset(cifar10(folder, 50), **options),
    lambda folder, **options: ds.Cifar100Dataset(cifar100(folder), **options)])
def test_mnist_and_cifar(cache, tmp_path, make):
    data = make(tmp_path / "data", sampler=ds.RandomSampler(num_samples=10), cache=cache).repeat(2)
    rows = rows_of(data)
    assert len(rows) == 20 and all(row["image"].any() or int(list(row.values())[1]) == 0 for row in rows)


def test_random_data(cache):
    data = ds.RandomDataset(8, cache=cache)
    rows = rows_of(data.repeat(2))
    assert len(rows) == 16 and same(rows[:8], rows[8:])


@needs_fixtures
def test_tfrecord(cache, session):
    pytest.importorskip("google.protobuf")
    pytest.importorskip("crc32c")
    file = str(TF4 / "train-0000-of-0001.data")
    assert count(ds.TFRecordDataset(file, shuffle=False, cache=cache).repeat(2)) == 6
    another = ds.DatasetCache(session_id=session.id)
    files = [str(TF4 / f"train-0000-of-000{number}.data") for number in (1, 2)]
    assert count(ds.TFRecordDataset(files, num_shards=3, shard_id=0, shuffle=False, cache=another)) == 2
    another = ds.DatasetCache(session_id=session.id)
    assert count(ds.TFRecordDataset(files, num_samples=2, shuffle=False, cache=another).repeat(2)) == 4


@needs_fixtures
def test_share1_and_2(cache):
    for sampler in (ds.RandomSampler(), ds.RandomSampler(), ds.SequentialSampler()):
        assert count(images(sampler=sampler, cache=cache)) == 2
    assert cache.get_stat().misses == 2


@needs_fixtures
def test_share_failure1(cache):
    assert count(images(decode=True, cache=cache)) == 2
    with pytest.raises(RuntimeError, match="Cannot re-use a cache for a different tree!"):
        count(images(decode=False, cache=cache))


@needs_fixtures
def test_merge(cache):
    data = ds.ImageFolderDataset(str(PK), cache=cache).repeat(4)
    assert count(data) == 176
    assert cache.get_stat().num_mem_cached == 44


def test_rows_of_a_build(session):
    """CacheServer, at the level of the client: schema, one row of 2 x 3 uint64, the end of the build, the row again."""
    row = np.arange(1, 7, dtype=np.uint64).reshape(2, 3)
    with session.open(5, build=True) as cache:
        with cache.build() as build:
            cache.names = ["column1", "column2"]
            assert build.append(row, "text") == 0
            assert np.array_equal(cache.get(0)[0], row)
        assert cache.names == ("column1", "column2") and len(cache) == 1
        assert cache.get(0)[1] == "text" and cache.get(1) is None
        assert cache.build().complete
    session.destroy_cache(5)
