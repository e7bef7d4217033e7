# SPDX-License-Identifier: Apache-2.0
"""MindSpore's test_cache_map.py restated, test by test (its name stands behind test_): caches over sources with ids.
Where the original only counts rows, content and order are looked at too. Not here, for want of the data set: CelebA,
Manifest, MindRecord and the device queue."""
import hashlib
import subprocess
import sys

import numpy as np
import pytest

import libcache
import libcache.dataset as ds
import libcache.dataset.vision as vision
from dataset_files import COCO, FIXTURES, IMAGES, VOC, cifar10, cifar10_row, cifar100, count, mnist, mnist_row, \
    needs_fixtures, rows_of, same
from libcache.dataset.vision import c_transforms

pytest.importorskip("PIL", reason="no python3-pil: pictures are not decoded")
GOLDEN = FIXTURES / "golden"


@pytest.fixture
def cache(session):
    """A DatasetCache in a session of its own."""
    return ds.DatasetCache(session_id=session.id, size=0, spilling=False)


@pytest.fixture
def another(session):
    """Makes further ones in the same session."""
    return lambda **options: ds.DatasetCache(session_id=session.id, **options)


def images(**options):
    return ds.ImageFolderDataset(str(IMAGES), **options)


def decoded(dataset, **options):
    return dataset.map(c_transforms.Decode(), input_columns=["image"], **options)


def sums(dataset):
    """MD5 of every value, column by column, as the golden files hold them."""
    found = {}
    for row in dataset.create_dict_iterator(num_epochs=1, output_numpy=True):
        for name, value in row.items():
            found.setdefault(name, []).append(np.frombuffer(hashlib.md5(value.tobytes()).digest(), np.float32))
    return found


def golden(name):
    return {key: values for key, values in np.load(GOLDEN / name, allow_pickle=True)["arr_0"]}


def assert_golden(dataset, name):
    found, expected = sums(dataset), golden(name)
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert np.array_equal(np.array(found[key]).view(np.uint32), np.array(values).view(np.uint32)), key


def assert_error(dataset, text):
    """Both a getter and an iterator say it, and no row is seen."""
    with pytest.raises(RuntimeError) as told:
        dataset.get_batch_size()
    assert text in str(told.value)
    with pytest.raises(RuntimeError) as told:
        count(dataset)
    assert text in str(told.value)


def epochs(dataset, expected, number=4):
    """Every epoch of one iterator has so many rows, and the same ones as a set."""
    iterator = dataset.create_dict_iterator(num_epochs=number, output_numpy=True)
    seen = []
    for _ in range(number):
        rows = [{name: (value.shape, value.tobytes()) for name, value in row.items()} for row in iterator]
        assert len(rows) == expected
        seen.append(sorted(map(repr, rows)))
    assert all(each == seen[0] for each in seen)


@needs_fixtures
@pytest.mark.parametrize("word", ["True", "true"])
def test_disable_cache_in_independent_mode(monkeypatch, word):
    cache = ds.DatasetCache(session_id=1)
    monkeypatch.setenv("MS_INDEPENDENT_DATASET", word)
    with pytest.raises(RuntimeError, match="Dataset Cache is not supported in Dataset Independent mode"):
        images(cache=cache)


@needs_fixtures
def test_basic1(cache):
    assert_golden(decoded(images(cache=cache)).repeat(4), "cache_map_01_result.npz")


@needs_fixtures
def test_basic2(cache):
    assert_golden(decoded(images(), cache=cache).repeat(4), "cache_map_02_result.npz")


@needs_fixtures
def test_basic3(cache):
    data = decoded(images(cache=cache).repeat(4))
    assert data.get_dataset_size() == 8
    assert data.output_shapes() == [[2268, 4032, 3], []]
    assert count(data) == 8


@needs_fixtures
def test_basic4(cache):
    data = decoded(images(cache=cache)).map(vision.RandomCrop([224, 224]), input_columns=["image"]).repeat(4)
    rows = rows_of(data)
    assert len(rows) == 8 and {row["image"].shape for row in rows} == {(224, 224, 3)}
    assert len({row["image"].tobytes() for row in rows}) > 1  # what is random stays so


@needs_fixtures
def test_basic5(cache):
    first = rows_of(images(cache=cache, shuffle=False))
    assert len(first) == 2 and same(first, rows_of(images(shuffle=False)))
    assert cache.get_stat().num_mem_cached == 2


@needs_fixtures
def test_failure1(cache):
    data = ds.CocoDataset(str(COCO / "train"), annotation_file=str(COCO / "annotations" / "train.json"),
                          task="Detection", decode=True, cache=cache)
    assert_error(decoded(data, cache=cache).repeat(4), "Nested cache operations")


@needs_fixtures
def test_failure2(cache):
    zipped = ds.zip((images(), images().rename(["image", "label"], ["image2", "label2"])))
    assert_error(decoded(zipped, cache=cache).repeat(4),
                 "ZipNode is not supported as a descendant operator under a cache")


def test_failure3(cache, tmp_path):
    data = ds.MnistDataset(str(tmp_path), num_samples=10).batch(2)
    assert_error(data.map(c_transforms.Resize((28, 28)), input_columns=["image"], cache=cache),
                 "BatchNode is not supported as a descendant operator under a cache")


@needs_fixtures
def test_failure4_with_another_source(cache):
    data = images().filter(lambda image, label: label < 1)
    assert_error(decoded(data, cache=cache), "FilterNode is not supported as a descendant operator under a cache")


@needs_fixtures
def test_failure5_with_another_source(cache):
    data = decoded(images()).map(vision.RandomCrop(224), input_columns=["image"], cache=cache)
    assert_error(data, "MapNode containing random operation is not supported as a descendant of cache")


def test_failure7(cache):
    data = ds.GeneratorDataset([(np.array([i]),) for i in range(64)], ["data"])
    data = data.map(c_transforms.not_random(lambda x: x), ["data"], cache=cache).repeat(4)
    assert_error(data, "There is currently no support for GeneratorOp under cache")


def test_failure8(cache, tmp_path):
    data = ds.Cifar10Dataset(str(tmp_path), num_samples=10).repeat(4)
    assert_error(decoded(data, cache=cache), "A cache over a RepeatNode of a mappable dataset is not supported")
    data = ds.Cifar10Dataset(str(tmp_path)).repeat(1)
    assert_error(decoded(data, cache=cache), "A cache over a RepeatNode of a mappable dataset is not supported")


def test_failure9(cache, tmp_path):
    data = ds.Cifar100Dataset(str(tmp_path), num_samples=10).take(2)
    assert_error(decoded(data, cache=cache).repeat(4),
                 "TakeNode (possibly from Split) is not supported as a descendant operator under a cache")


@needs_fixtures
def test_failure10(cache):
    data = ds.VOCDataset(str(VOC), task="Detection", usage="train", shuffle=False, decode=True).skip(1)
    assert_error(decoded(data, cache=cache).repeat(4),
                 "SkipNode is not supported as a descendant operator under a cache")


@needs_fixtures
def test_failure11(another):
    data = images(cache=another(size=0, spilling=True))
    with pytest.raises(RuntimeError, match="Server is not set up with spill support"):
        count(decoded(data).repeat(4))


@needs_fixtures
def test_a_concat_is_not_supported(cache):
    assert_error(decoded(images() + images(), cache=cache), "ConcatNode is not supported as a descendant operator")


@needs_fixtures
def test_a_random_map_further_below_is_noticed(cache):
    cropped = decoded(images()).map(vision.RandomCrop(224), input_columns=["image"])
    assert_error(cropped.map(vision.Resize(100), input_columns=["image"], cache=cache),
                 "MapNode containing random operation is not supported as a descendant of cache")


@needs_fixtures
def test_split1(cache, another):
    for part, own in zip(decoded(images(shuffle=False)).split([0.5, 0.5]), (cache, another())):
        data = part.map(c_transforms.Resize((224, 224)), input_columns=["image"], cache=own).repeat(4)
        assert_error(data, "TakeNode (possibly from Split) is not supported as a descendant operator under a cache")


@needs_fixtures
def test_split2(cache):
    source = ds.VOCDataset(str(VOC), task="Detection", usage="train", shuffle=False, decode=True)
    small, large = source.split([0.3, 0.7])
    resize = c_transforms.Resize((224, 224))
    small = small.map(resize, input_columns=["image"], cache=cache).repeat(4)
    large = large.map(resize, input_columns=["image"], cache=cache).repeat(4)
    left, right = rows_of(small), rows_of(large)
    assert (len(left), len(right)) == (12, 24)
    parts = [{row["image"].tobytes() for row in rows} for rows in (left, right)]
    assert [len(part) for part in parts] == [3, 6] and not parts[0] & parts[1]
    assert cache.get_stat().num_mem_cached == 9


@pytest.mark.parametrize("error, options, text", [
    (ValueError, {"session_id": -1}, "Input is not within the required interval"),
    (TypeError, {"session_id": "1"}, "Argument session_id with value 1 is not of type"),
    (TypeError, {"session_id": None}, "Argument session_id with value None is not of type"),
    (TypeError, {"session_id": True}, "Argument session_id with value True is not of type"),
    (ValueError, {"session_id": 2**32}, "Input is not within the required interval"),
    (ValueError, {"size": -1}, "Input size must be greater than 0"),
    (ValueError, {"size": 2**64}, "Input size is not within the required interval"),
    (TypeError, {"size": "1"}, "Argument size with value 1 is not of type"),
    (TypeError, {"size": None}, "Argument size with value None is not of type"),
    (TypeError, {"size": True}, "Argument size with value True is not of type"),
    (TypeError, {"spilling": "illegal"}, "Argument spilling with value illegal is not of type"),
    (TypeError, {"hostname": 50052}, "Argument hostname with value 50052 is not of type"),
    (RuntimeError, {"hostname": "illegal"}, "now cache client has to be on the same host with cache server"),
    (RuntimeError, {"hostname": "127.0.0.2"}, "now cache client has to be on the same host with cache server"),
    (TypeError, {"port": "illegal"}, "Argument port with value illegal is not of type"),
    (TypeError, {"port": "50052"}, "Argument port with value 50052 is not of type"),
    (ValueError, {"port": 0}, r"Input port is not within the required interval of [1025, 65535]"),
    (ValueError, {"port": 65536}, r"Input port is not within the required interval of [1025, 65535]"),
    (ValueError, {"num_connections": 0}, "Input num_connections is not within the required interval"),
    (TypeError, {"num_connections": True}, "Argument num_connections with value True is not of type"),
    (ValueError, {"prefetch_size": 2**31}, "Input prefetch_size is not within the required interval"),
])
def test_parameter_check(error, options, text):
    with pytest.raises(error) as told:
        ds.DatasetCache(**{"session_id": 1, **options})
    assert text in str(told.value)


@needs_fixtures
def test_parameter_check_of_the_data_set(monkeypatch):
    with pytest.raises(TypeError, match="Argument cache with value True is not of type"):
        images(cache=True)
    with pytest.raises(TypeError, match="Argument cache with value True is not of type"):
        decoded(images(), cache=True)
    with pytest.raises(TypeError):
        ds.GeneratorDataset([1], ["a"], cache=ds.DatasetCache(session_id=1))
    monkeypatch.setenv("MS_CACHE_HOST", "example.org")
    with pytest.raises(RuntimeError, match="has to be on the same host"):
        ds.DatasetCache(session_id=1)


@needs_fixtures
def test_running_twice1(cache):
    data = decoded(images(), cache=cache).repeat(4)
    assert [count(data), count(data)] == [8, 8]
    assert (cache.get_stat().misses, cache.get_stat().hits) == (2, 14)


@needs_fixtures
def test_running_twice2(server, session, cache, another):
    for used in (cache, another()):
        assert count(decoded(images(cache=used)).repeat(4)) == 8
    assert used.get_stat().misses == 0  # what the first has stored
    session.destroy()
    fresh = ds.DatasetCache(session_id=libcache.Client().create_session().id)
    assert count(decoded(images(cache=fresh)).repeat(4)) == 8 and fresh.get_stat().misses == 2


@needs_fixtures
def test_extra_small_size2(another):
    used = another(size=1)
    data = decoded(images(shuffle=False), cache=used).repeat(4)  # a row has 27 MB
    with pytest.warns(RuntimeWarning, match="is full"):
        rows = rows_of(data)
    assert len(rows) == 8 and same(rows[:2], rows_of(decoded(images(shuffle=False))))
    assert used.get_stat().num_mem_cached == 0


@needs_fixtures
def test_no_image(cache):
    data = ds.ImageFolderDataset(str(FIXTURES / "testRandomData"), cache=cache)
    with pytest.raises(RuntimeError, match="has no pictures"):
        count(decoded(data))


PARALLEL = """
import sys
import libcache
import libcache.dataset as ds
import libcache.dataset.vision.c_transforms as c_vision
folder, session, shard, above = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "above"
cache = ds.DatasetCache(session_id=session, size=0)
data = ds.ImageFolderDataset(folder, num_shards=2, shard_id=shard, cache=None if above else cache)
data = data.map(c_vision.Decode(), input_columns=["image"], cache=cache if above else None).repeat(4)
print(sum(1 for _ in data.create_dict_iterator(num_epochs=1)))
"""


@needs_fixtures
@pytest.mark.parametrize("place", ["below", "above"])
def test_parallel_pipeline(session, place):
    running = [subprocess.Popen([sys.executable, "-c", PARALLEL, str(IMAGES), str(session.id), str(shard), place],
                                stdout=subprocess.PIPE, text=True) for shard in range(2)]
    assert [process.communicate(timeout=60)[0].strip() for process in running] == ["4", "4"]
    (stats,) = session.caches()
    assert stats.rows_in_memory == 2


@needs_fixtures
def test_parallel_workers(cache):
    data = images(num_parallel_workers=4, shuffle=False)
    data = decoded(data, num_parallel_workers=4, cache=cache).repeat(4)
    assert_golden(data, "cache_map_02_result.npz")


@needs_fixtures
@pytest.mark.parametrize("options", [{"num_connections": 1}, {"num_connections": 100}, {"prefetch_size": 1},
                                     {"prefetch_size": 100}])
def test_num_connections_and_prefetch_size(another, options):
    assert count(decoded(images(), cache=another(size=0, **options)).repeat(4)) == 8


@needs_fixtures
@pytest.mark.parametrize("workers", [1, 100])
def test_server_workers(no_server, workers):
    no_server.start("--workers", workers)
    cache = ds.DatasetCache(session_id=libcache.Client().create_session().id)
    assert count(decoded(images(cache=cache)).repeat(4)) == 8


@needs_fixtures
def test_epoch_ctrl1(cache):
    epochs(decoded(images(cache=cache)), 2, number=5)


@needs_fixtures
def test_epoch_ctrl2(cache):
    data = decoded(images(), cache=cache)
    iterator = data.create_dict_iterator(num_epochs=-1)
    assert [sum(1 for _ in iterator) for _ in range(5)] == [2] * 5
    iterator.stop()


@needs_fixtures
def test_epoch_ctrl3(cache):
    data = decoded(images(), cache=cache).repeat(2)
    iterator = data.create_dict_iterator(num_epochs=-1)
    assert [sum(1 for _ in iterator) for _ in range(5)] == [4] * 5  # the garbage collector ends it


def coco(**options):
    return ds.CocoDataset(str(COCO / "train"), annotation_file=str(COCO / "annotations" / "train.json"),
                          task="Detection", decode=True, **options)


def voc(**options):
    return ds.VOCDataset(str(VOC), task="Detection", usage="train", decode=True, **options)


@needs_fixtures
@pytest.mark.parametrize("make, rows", [(coco, 6), (voc, 9)])
def test_coco_and_voc_1(cache, make, rows):
    epochs(make(shuffle=False, cache=cache), rows)
    assert cache.get_stat().num_mem_cached == rows
    assert same(rows_of(make(shuffle=False, cache=cache)), rows_of(make(shuffle=False)))


@needs_fixtures
@pytest.mark.parametrize("make, rows", [(coco, 6), (voc, 9)])
def test_coco_and_voc_2(cache, make, rows):
    resize = c_transforms.Resize((224, 224))
    epochs(make().map(resize, input_columns=["image"], cache=cache), rows)
    assert cache.get_stat().num_mem_cached == rows


def test_mnist1(cache, tmp_path):
    folder = mnist(tmp_path / "mnist")
    epochs(ds.MnistDataset(folder, num_samples=10, shuffle=False, cache=cache), 10)
    rows = rows_of(ds.MnistDataset(folder, shuffle=False, cache=cache))
    assert [mnist_row(row["image"]) for row in rows] == list(range(100))
    assert [int(row["label"]) for row in rows] == [i % 10 for i in range(100)]


def test_mnist2(cache, tmp_path):
    data = ds.MnistDataset(mnist(tmp_path / "mnist"), num_samples=10, shuffle=False)
    epochs(data.map(c_transforms.Resize((224, 224)), input_columns=["image"], cache=cache), 10)


def test_cifar1(cache, tmp_path):
    folder = cifar10(tmp_path / "cifar", 200)
    epochs(ds.Cifar10Dataset(folder, num_samples=10, shuffle=False, cache=cache), 10)
    assert cache.get_stat().num_mem_cached == 10


def test_cifar2(cache, tmp_path):
    data = ds.Cifar100Dataset(cifar100(tmp_path / "cifar"), num_samples=10, shuffle=False)
    epochs(data.map(c_transforms.Resize((224, 224)), input_columns=["image"], cache=cache), 10)


def test_cifar3(another, tmp_path):
    used = another(size=1)
    data = ds.Cifar10Dataset(cifar10(tmp_path / "cifar"), shuffle=False, cache=used)
    iterator = data.create_dict_iterator(num_epochs=2, output_numpy=True)
    with pytest.warns(RuntimeWarning, match="is full"):
        assert [cifar10_row(row["image"]) for row in iterator] == list(range(10_000))
    assert [cifar10_row(row["image"]) for row in iterator] == list(range(10_000))
    assert 0 < used.get_stat().num_mem_cached < 10_000  # a part is cached, and used
    assert used.get_stat().hits >= used.get_stat().num_mem_cached


def test_cifar4(cache, tmp_path):
    data = ds.Cifar10Dataset(cifar10(tmp_path / "cifar", 100), num_samples=10, cache=cache).shuffle(buffer_size=10)
    assert count(data) == 10


class ReverseSampler(ds.Sampler):
    def __iter__(self):
        yield from range(self.dataset_size - 1, -1, -1)


@needs_fixtures
@pytest.mark.parametrize("place", ["below", "above"])
def test_python_sampler(cache, place):
    data = images(sampler=ReverseSampler(), cache=cache if place == "below" else None)
    assert count(decoded(data, cache=cache if place == "above" else None).repeat(4)) == 8


def test_python_sampler_gives_the_order(cache, tmp_path):
    data = ds.MnistDataset(mnist(tmp_path / "mnist", 20), sampler=ReverseSampler(), cache=cache)
    for _ in range(2):
        assert [mnist_row(row["image"]) for row in rows_of(data)] == list(range(19, -1, -1))


@needs_fixtures
def test_nested_repeat(cache):
    assert count(decoded(images(cache=cache).repeat(4)).repeat(2)) == 16


def test_interrupt_and_rerun(cache, tmp_path):
    data = ds.Cifar10Dataset(cifar10(tmp_path / "cifar"), cache=cache)
    iterator = data.create_dict_iterator(num_epochs=-1, output_numpy=True)
    with pytest.raises(AttributeError, match="'DictIterator' object has no attribute '_runtime_context'"):
        for number, _ in enumerate(iterator):
            if number == 10:
                iterator.stop()
    assert cache.get_stat().num_mem_cached == 11
    iterator = data.create_dict_iterator(num_epochs=2, output_numpy=True)
    for _ in range(2):
        assert sorted(cifar10_row(row["image"]) for row in iterator) == list(range(10_000))
    assert cache.get_stat().num_mem_cached == 10_000


def test_dataset_size_with_another_source(cache, another, tmp_path):
    folder = mnist(tmp_path / "mnist", 4)
    data = ds.MnistDataset(folder, num_shards=3, shard_id=0, cache=cache)
    assert data.get_dataset_size() == 2 == count(data)
    data = ds.MnistDataset(folder, num_shards=3, shard_id=0)
    data = data.map(vision.Resize(10), input_columns=["image"], cache=another())
    assert data.get_dataset_size() == 2 == count(data)
