# SPDX-License-Identifier: Apache-2.0
"""libcache.mindspore.cached with MindSpore itself: make test-mindspore."""
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ms = pytest.importorskip("mindspore.dataset", reason="no mindspore here: make test-mindspore has one of its own")
import mindspore  # noqa: E402
import mindspore.dataset.transforms as transforms  # noqa: E402
import mindspore.dataset.vision as vision  # noqa: E402

import libcache  # noqa: E402
import libcache.dataset as ds  # noqa: E402
from dataset_files import cifar10, cifar10_row, mnist, mnist_row, numbered_records, pictures  # noqa: E402
from libcache.mindspore import cached  # noqa: E402
from readme import block, run_python  # noqa: E402

EXAMPLE = Path(__file__).parent.parent / "examples" / "mindspore_lenet.py"


@pytest.fixture
def another(session):
    """Makes DatasetCaches of one session."""
    return lambda **options: ds.DatasetCache(session_id=session.id, **options)


@pytest.fixture
def digits(tmp_path):
    return mnist(tmp_path / "mnist", 40)


def rows(dataset):
    return list(dataset.create_dict_iterator(num_epochs=1, output_numpy=True))


def ids(dataset):
    return [mnist_row(row["image"]) for row in rows(dataset)]


def test_a_source(another, digits):
    cache = another()
    data = cached(ms.MnistDataset(digits, shuffle=False), cache)
    assert isinstance(data, ms.GeneratorDataset) and data.get_dataset_size() == 40
    for _ in range(2):
        found = rows(data)
        assert [mnist_row(row["image"]) for row in found] == list(range(40))
        assert [int(row["label"]) for row in found] == [i % 10 for i in range(40)]
        assert found[0]["image"].shape == (28, 28, 1) and found[0]["label"].dtype == np.uint32
    assert (cache.get_stat().num_mem_cached, cache.get_stat().misses) == (40, 40)


def test_the_line_of_the_readme(another, digits, monkeypatch):
    monkeypatch.chdir(Path(digits).parent)
    monkeypatch.setattr(ms.GeneratorDataset, "map", lambda self, dots: self)  # which are not MindSpore's
    data = run_python(block("data = libcache.mindspore.cached"), libcache=libcache, mindspore=mindspore,
                      cache=another())["data"]
    assert [len(row["label"]) for row in rows(data)] == [32, 8]


def test_sampler_shards_and_shuffle_come_after_the_cache(another, digits):
    caches, seen = [], []
    for shard in range(4):
        caches.append(another())
        seen += ids(cached(ms.MnistDataset(digits, num_shards=4, shard_id=shard, shuffle=False), caches[-1]))
    assert seen[:10] == list(range(0, 40, 4)) and sorted(seen) == list(range(40))
    assert sum(cache.get_stat().misses for cache in caches) == 40  # one cache for all
    shuffled = cached(ms.MnistDataset(digits), another())
    orders = [ids(shuffled) for _ in range(3)]
    assert all(sorted(order) == list(range(40)) for order in orders) and len(set(map(tuple, orders))) > 1
    assert ids(cached(ms.MnistDataset(digits, sampler=ms.SubsetSampler([7, 3])), another())) == [7, 3]
    assert len(ids(cached(ms.MnistDataset(digits, num_samples=5), another()))) == 5
    shards = [ids(cached(ms.MnistDataset(digits, num_shards=2, shard_id=shard), another())) for shard in range(2)]
    assert sorted(shards[0] + shards[1]) == list(range(40))


def test_a_map_over_pictures(another, tmp_path):
    folder = pictures(tmp_path / "p", 2, 4)

    def make(size=(8, 8)):
        data = ms.ImageFolderDataset(folder, shuffle=False, decode=True)
        return data.map([vision.Resize(size), vision.Rescale(1 / 255., 0.), vision.HWC2CHW()],
                        "image").map(transforms.TypeCast(mindspore.int64), "label")

    expected = rows(make())
    first = another()
    for cache in (first, another()):
        found = rows(cached(make(), cache))
        assert all(np.array_equal(one["image"], two["image"]) and one["label"] == two["label"]
                   for one, two in zip(found, expected)) and len(found) == 8
    assert first.get_stat().misses == 8 and cache.get_stat().misses == 0
    other = another()
    rows(cached(make((8, 9)), other))
    assert other.get_stat().misses == 8
    with pytest.raises(RuntimeError, match="Cannot re-use a cache for a different tree!"):
        rows(cached(make(), other))


def squares():
    for i in range(12):
        yield np.array(i), np.array([i * i], np.float32)


def test_what_the_original_cannot_cache(another, digits):
    generated = another()
    data = cached(ms.GeneratorDataset(squares, ["a", "b"], shuffle=False), generated)
    assert [int(row["a"]) for row in rows(data)] == list(range(12)) == [int(row["a"]) for row in rows(data)]
    assert generated.get_stat().misses == 12
    batches = another()
    data = cached(ms.MnistDataset(digits).batch(16), batches)
    assert data.get_dataset_size() == 3
    for _ in range(2):  # the same batches, in any order
        found = [sorted(image[0, 0, 0] for image in row["image"]) for row in rows(data)]
        assert sorted(found) == [list(range(16)), list(range(16, 32)), list(range(32, 40))]
    assert batches.get_stat().misses == 3
    filtered = another()
    data = cached(ms.MnistDataset(digits, shuffle=False).filter(lambda image, label: label < 3), filtered)
    assert data.get_dataset_size() == 12 and [int(row["label"]) for row in rows(data)] == [0, 1, 2] * 4
    zipped = ms.zip((ms.MnistDataset(digits, shuffle=False), ms.GeneratorDataset(squares, ["a", "b"], shuffle=False)))
    data = cached(zipped, another())
    assert [(mnist_row(row["image"]), int(row["a"])) for row in rows(data)] == [(i, i) for i in range(12)]
    shuffled = cached(ms.MnistDataset(digits, shuffle=False).shuffle(40).take(40), another())
    orders = [tuple(ids(shuffled)) for _ in range(3)]
    assert len(set(orders)) > 1 and all(sorted(order) == list(range(40)) for order in orders)


def test_a_stream_and_text(another, tmp_path):
    file = numbered_records(tmp_path / "n.data", 9)
    schema = ms.Schema()
    schema.add_column("id", "int64", [1])
    schema.add_column("text", "string", [1])
    for shuffle in (False, True):
        data = cached(ms.TFRecordDataset(file, schema, shuffle=shuffle), another())
        found = rows(data)
        assert sorted(int(row["id"][0]) for row in found) == list(range(9))
        assert all(row["text"].tolist() == [f"row {int(row['id'][0])}"] for row in found)
    shares = [rows(cached(ms.TFRecordDataset(file, schema, shuffle=False, num_shards=3, shard_id=shard,
                                             shard_equal_rows=True), another())) for shard in range(3)]
    assert [int(row["id"][0]) for row in shares[1]] == [1, 4, 7]


def test_random_operations_are_refused(another, digits):
    for operations in ([vision.RandomCrop(20)], [transforms.Compose([vision.RandomHorizontalFlip()])]):
        with pytest.raises(RuntimeError, match="MapNode containing random operation is not supported as a descendant"):
            cached(ms.MnistDataset(digits).map(operations, "image"), another())
    above = cached(ms.MnistDataset(digits), another()).map(vision.RandomCrop(20), "image").batch(8)
    assert rows(above)[0]["image"].shape == (8, 20, 20, 1)


def test_functions_of_ones_own_count(another, digits):
    caches = [another() for _ in range(3)]
    for factor, cache in zip((2, 3, 2), caches):
        data = cached(ms.MnistDataset(digits, shuffle=False).map(lambda image: image * factor, "image"), cache)
        assert rows(data)[5]["image"].max() == 5 * factor
    assert [cache.get_stat().misses for cache in caches] == [40, 40, 0]
    keyed = another()
    rows(cached(ms.MnistDataset(digits), keyed, key="mine"))
    assert keyed.get_stat().misses == 40


def test_no_server(no_server, tmp_path):
    with pytest.raises(RuntimeError, match="Network error. Cache server with port"):
        cached(ms.Cifar10Dataset(cifar10(tmp_path / "c", 10)), ds.DatasetCache(session_id=1))
    assert cifar10_row(np.zeros((32, 32, 3))) == 0


def test_lenet_trains(server, session, tmp_path):
    folder = mnist(tmp_path / "mnist", 256)
    words = [sys.executable, str(EXAMPLE), folder, "--session", str(session.id), "--epochs", "2"]
    result = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert "256 rows from the source" in result.stdout and "512 from the cache" in result.stdout
    result = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert "0 rows from the source" in result.stdout
