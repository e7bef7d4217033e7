# SPDX-License-Identifier: Apache-2.0
"""Which pipelines share a cache, and what happens to rows when shards, workers, processes and deaths come together."""
import copy
import os
import pickle
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest

import libcache
import libcache.dataset as ds
import libcache.dataset.vision as vision
from conftest import wait_until
from dataset_files import cifar10, cifar10_row, count, hold, mnist, mnist_row, numbered_records, pictures, rows_of, same

pytest.importorskip("PIL", reason="no python3-pil: pictures are not decoded")


def needs_tfrecord():
    pytest.importorskip("google.protobuf", reason="no python3-protobuf: TFRecord files are not read")
    pytest.importorskip("crc32c", reason="no python3-crc32c: TFRecord files are not read")


@pytest.fixture
def another(session):
    """Makes DatasetCaches of one session."""
    return lambda **options: ds.DatasetCache(session_id=session.id, **options)


@pytest.fixture
def digits(tmp_path):
    return mnist(tmp_path / "mnist", 60)


def ids(dataset):
    return [mnist_row(row["image"]) for row in rows_of(dataset)]


def numbers(dataset):
    return [int(row["id"][0]) for row in rows_of(dataset)]


# ---- sources with ids -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [None, 1, 5])
def test_order_and_content_with_every_sampler(another, digits, workers):
    cache = another()
    samplers = [ds.SequentialSampler(5, 20), ds.RandomSampler(), ds.RandomSampler(True, 100),
                ds.SubsetSampler([7, 3, 7]), ds.SubsetRandomSampler([9, 8, 7]),
                ds.WeightedRandomSampler([1] * 60, 30), ds.PKSampler(2),
                ds.DistributedSampler(4, 1, shuffle=False), ds.DistributedSampler(4, 2)]
    for sampler in samplers:
        data = ds.MnistDataset(digits, sampler=sampler, num_parallel_workers=workers, cache=cache)
        rows = rows_of(data)
        assert len(rows) == data.get_dataset_size()
        assert all(int(row["label"]) == mnist_row(row["image"]) % 10 for row in rows)
        assert all((row["image"].ravel()[2:] == mnist_row(row["image"])).all() for row in rows)
    assert ids(ds.MnistDataset(digits, sampler=ds.SequentialSampler(5, 20), cache=cache)) == list(range(5, 25))


def test_shards_fill_one_cache_together(another, digits):
    for shuffle in (False, True):
        cache, seen = another(), []
        for shard in range(4):
            seen += ids(ds.MnistDataset(digits, num_shards=4, shard_id=shard, shuffle=shuffle, num_parallel_workers=3,
                                        cache=cache))
        assert sorted(seen) == list(range(60)) and (shuffle or seen[:3] == [0, 4, 8])
        assert cache.get_stat().num_mem_cached == 60
    assert cache.get_stat().misses == 0  # the second round found all of them


def test_each_epoch_is_shuffled_anew_and_the_same_with_and_without_a_cache(another, digits):
    ds.config.set_seed(7)
    plain = ds.MnistDataset(digits).create_dict_iterator(num_epochs=3, output_numpy=True)
    orders = [[mnist_row(row["image"]) for row in plain] for _ in range(3)]
    assert len({tuple(order) for order in orders}) == 3 and all(sorted(order) == list(range(60)) for order in orders)
    ds.config.set_seed(7)
    cached = ds.MnistDataset(digits, cache=another()).create_dict_iterator(num_epochs=3, output_numpy=True)
    assert [[mnist_row(row["image"]) for row in cached] for _ in range(3)] == orders


def test_a_shuffle_below_the_cache_shuffles_every_epoch(another, digits):
    cache = another()
    data = ds.MnistDataset(digits, shuffle=False).shuffle(60).map(vision.Rescale(1, 0), "image", cache=cache)
    iterator = data.create_dict_iterator(num_epochs=3, output_numpy=True)
    orders = [[int(row["image"][0, 0, 0]) for row in iterator] for _ in range(3)]
    assert len({tuple(order) for order in orders}) == 3 and all(sorted(order) == list(range(60)) for order in orders)
    assert cache.get_stat().num_mem_cached == 60 and cache.get_stat().misses == 60


def test_only_visited_rows_are_cached_and_a_part_of_them_is_used(another, digits):
    cache = another()
    assert ids(ds.MnistDataset(digits, num_samples=10, shuffle=False, cache=cache)) == list(range(10))
    assert cache.get_stat().num_mem_cached == 10
    assert ids(ds.MnistDataset(digits, num_samples=20, shuffle=False, cache=cache)) == list(range(20))
    assert (cache.get_stat().misses, cache.get_stat().hits) == (20, 10)


def test_its_id_tells_one_cache_of_a_session_from_another(another, session, server, digits):
    train, test = another(), another()
    rows_of(ds.MnistDataset(digits, num_samples=10, shuffle=False, cache=train))
    rows_of(ds.MnistDataset(digits, num_samples=5, shuffle=False).map(vision.Rescale(1, 0), "image", cache=test))
    assert {cache.get_stat().cache_id: cache.get_stat().num_mem_cached for cache in (train, test)} == {
        stats.cache_id: stats.rows_in_memory for stats in session.caches()}
    dropped = server.admin("--destroy_cache", session.id, train.get_stat().cache_id, "-p", server.port)
    assert dropped.returncode == 0, dropped.stderr
    living = [stats.cache_id for stats in session.caches() if stats.state == 1]  # the other is still mapped here
    assert living == [test.get_stat().cache_id]


def misses(make, *variants):
    """How many rows each variant reads from the source, one after the other in one session."""
    found = []
    for variant in variants:
        cache = ds.DatasetCache(session_id=make.session)
        rows_of(make(variant, cache))
        found.append(cache.get_stat().misses)
    return found


class Pipelines:
    def __init__(self, session, make):
        self.session, self._make = session.id, make

    def __call__(self, variant, cache):
        return self._make(variant, cache)


def test_what_does_not_matter_for_sharing(session, digits):
    resize = Pipelines(session, lambda options, cache: ds.MnistDataset(digits, **options).map(
        [vision.Resize((14, 14))], "image", num_parallel_workers=options.get("num_parallel_workers"), cache=cache))
    variants = [{"shuffle": False}, {"shuffle": True}, {"num_parallel_workers": 3}, {"num_samples": 5},
                {"sampler": ds.SequentialSampler()}, {"num_shards": 2, "shard_id": 1}]
    assert misses(resize, *variants) == [60, 0, 0, 0, 0, 0]
    above = Pipelines(session, lambda apply, cache: apply(ds.MnistDataset(digits, shuffle=False, cache=cache)))
    assert misses(above, lambda data: data, lambda data: data.repeat(2).shuffle(9).batch(4),
                  lambda data: data.map(vision.RandomHorizontalFlip(), "image").take(3)) == [60, 0, 0]


class Shrink:
    def __init__(self, factor):
        self.factor = factor
        self.random = False

    def __call__(self, image):
        return image[::self.factor, ::self.factor]


def scale_of(factor):
    return vision.not_random(lambda image: image * factor)


def test_what_matters_for_sharing(session, digits):
    mapped = Pipelines(session, lambda operations, cache: ds.MnistDataset(digits, num_samples=4, shuffle=False).map(
        operations, "image", cache=cache))
    variants = [vision.Resize((14, 14)), vision.Resize((14, 15)), vision.Resize((14, 14), vision.Inter.NEAREST),
                [vision.Resize((14, 14)), vision.HWC2CHW()], vision.Rescale(1, 0), vision.Rescale(1, 1), Shrink(2),
                Shrink(3), scale_of(2), scale_of(3), vision.not_random(lambda image: image + 2)]
    assert misses(mapped, *variants) == [4] * len(variants)
    assert misses(mapped, vision.Resize((14, 14)), Shrink(2), scale_of(2)) == [0, 0, 0]


def test_decoded_and_encoded_pictures_are_not_mixed(session, tmp_path):
    folder = pictures(tmp_path / "pictures")
    data = Pipelines(session, lambda decode, cache: ds.ImageFolderDataset(folder, decode=decode, cache=cache))
    assert misses(data, False, True, False, True) == [6, 6, 0, 0]


def test_changed_files_are_another_cache(session, tmp_path):
    data = Pipelines(session, lambda folder, cache: ds.MnistDataset(folder, cache=cache))
    folder = mnist(tmp_path / "mnist", 10)
    assert misses(data, folder, folder) == [10, 0]
    mnist(tmp_path / "mnist", 12)
    assert misses(data, folder) == [12]
    folder = pictures(tmp_path / "pictures")
    data = Pipelines(session, lambda folder, cache: ds.ImageFolderDataset(folder, cache=cache))
    assert misses(data, folder) == [6]
    os.rename(tmp_path / "pictures" / "class0" / "0.png", tmp_path / "pictures" / "class0" / "9.png")
    assert misses(data, folder) == [6]


def test_a_long_path_in_any_letters(another, tmp_path):
    folder = tmp_path / ("ö" * 100) / ("漢" * 80)
    folder.mkdir(parents=True)
    assert ids(ds.MnistDataset(mnist(folder / "m", 5), shuffle=False, cache=another())) == list(range(5))


def test_one_object_serves_one_pipeline(another, digits):
    cache = another()
    count(ds.MnistDataset(digits, cache=cache))
    with pytest.raises(RuntimeError, match="Cannot re-use a cache for a different tree!"):
        count(ds.MnistDataset(digits).map(vision.Rescale(1, 0), "image", cache=cache))
    count(ds.MnistDataset(digits).map(vision.Rescale(1, 0), "image", cache=another()))


def test_caches_in_branches_do_not_disturb_each_other(another, tmp_path):
    needs_tfrecord()
    left = ds.TFRecordDataset(numbered_records(tmp_path / "left.data", 6), shuffle=False, columns_list=["id"],
                              cache=another())
    right = ds.TFRecordDataset(numbered_records(tmp_path / "right.data", 9, 100), num_samples=6, shuffle=True,
                               columns_list=["id"], cache=another()).rename("id", "other")
    for _ in range(2):
        rows = rows_of(ds.zip((left, right)))
        assert [int(row["id"][0]) for row in rows] == list(range(6))
        assert len({int(row["other"][0]) for row in rows}) == 6 and all(row["other"][0] >= 100 for row in rows)


def test_copies_share_the_cache(another, digits):
    cache = another()
    memo = {}
    copied = copy.deepcopy(cache, memo)
    assert copied is not cache and copy.deepcopy(cache, memo) is copied
    assert (copied.session_id, copied.size, copied.port) == (cache.session_id, cache.size, cache.port)
    count(ds.MnistDataset(digits, cache=copied))
    assert cache.get_stat().num_mem_cached == 60
    elsewhere = pickle.loads(pickle.dumps(cache))
    count(ds.MnistDataset(digits, cache=elsewhere))
    assert elsewhere.get_stat().misses == 0


def test_rows_of_a_cache_are_the_callers_own(another, digits):
    cache = another()
    for _ in range(2):
        for row in rows_of(ds.MnistDataset(digits, shuffle=False, cache=cache)):
            row["image"] += 1
    clear = vision.not_random(lambda image: image.fill(0) or image)
    assert not any(row["image"].any() for row in rows_of(ds.MnistDataset(digits, cache=cache).map(clear, "image")))
    assert ids(ds.MnistDataset(digits, shuffle=False, cache=cache)) == list(range(60))


def test_training_goes_on_from_the_source_without_the_server(own_server, tmp_path):
    data = ds.Cifar10Dataset(cifar10(tmp_path / "cifar"), shuffle=False,
                             cache=ds.DatasetCache(session_id=libcache.Client().create_session().id))
    iterator = data.create_dict_iterator(num_epochs=2, output_numpy=True)
    seen = [cifar10_row(next(iterator)["image"]) for _ in range(20)]
    own_server.stop()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        seen += [cifar10_row(row["image"]) for row in iterator]
        assert seen == list(range(10_000))
        assert [cifar10_row(row["image"]) for row in iterator] == list(range(10_000))
    assert len(told) == 1 and "rows come from the source until it is back" in str(told[0].message)


def test_training_goes_on_when_its_session_is_destroyed(server, session, digits):
    data = ds.MnistDataset(digits, shuffle=False, cache=ds.DatasetCache(session_id=session.id))
    iterator = data.create_dict_iterator(num_epochs=3, output_numpy=True)
    assert [mnist_row(row["image"]) for row in iterator] == list(range(60))
    session.destroy()
    with pytest.warns(RuntimeWarning):
        assert [mnist_row(row["image"]) for row in iterator] == list(range(60))


def test_a_smaller_wish_than_the_cache_has_is_told(another, digits):
    first, second = another(size=8), another(size=2)
    count(ds.MnistDataset(digits, cache=first))
    with pytest.warns(RuntimeWarning, match="limit"):
        count(ds.MnistDataset(digits, cache=second))
    assert second.get_stat().num_mem_cached == 60


# ---- streams --------------------------------------------------------------------------------------------------------


def test_a_stream_keeps_its_order(another, tmp_path):
    needs_tfrecord()
    files = [numbered_records(tmp_path / f"{letter}.data", 50, first) for letter, first in (("b", 50), ("a", 0))]
    data = ds.TFRecordDataset(files, shuffle=False, num_parallel_workers=4, cache=another())
    assert numbers(data) == list(range(100)) == numbers(data)


@pytest.mark.parametrize("done", [False, True])
def test_a_shuffled_stream_gives_every_row_once(another, tmp_path, done):
    needs_tfrecord()
    file = numbered_records(tmp_path / "n.data", 100)
    cache = another()
    if done:
        numbers(ds.TFRecordDataset(file, shuffle=False, cache=cache))
    iterator = ds.TFRecordDataset(file, cache=cache).create_dict_iterator(num_epochs=3, output_numpy=True)
    orders = [[int(row["id"][0]) for row in iterator] for _ in range(3)]
    assert all(sorted(order) == list(range(100)) for order in orders) and len({tuple(order) for order in orders}) == 3


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("rows, shards", [(10, 3), (9, 3), (2, 4)])
def test_shards_of_a_stream_are_shares_of_its_rows(another, tmp_path, rows, shards, shuffle):
    needs_tfrecord()
    file, seen = numbered_records(tmp_path / "n.data", rows), []
    for shard in range(shards):
        data = ds.TFRecordDataset(file, num_shards=shards, shard_id=shard, shuffle=shuffle, cache=another())
        share = numbers(data)
        assert len(share) == -(-rows // shards) == data.get_dataset_size()
        seen += share
    assert set(seen) == set(range(rows))
    assert shuffle or seen[:len(share)] == [(shards * i) % rows for i in range(len(share))]


def test_rows_come_while_the_build_goes_on(another, tmp_path):
    needs_tfrecord()
    file = numbered_records(tmp_path / "n.data", 100)
    data = ds.TFRecordDataset(file, shuffle=False, cache=another())
    reader = another()
    builder = data.create_dict_iterator(num_epochs=1, output_numpy=True)
    for number in range(5):
        assert int(next(builder)["id"][0]) == number
    joined = ds.TFRecordDataset(file, num_samples=5, shuffle=False, cache=reader)
    assert numbers(joined) == list(range(5)) and reader.get_stat().misses == 0
    joined = ds.TFRecordDataset(file, shuffle=False, cache=reader)  # a second iterator of the process builds on
    assert numbers(joined) == list(range(100))
    assert [int(row["id"][0]) for row in builder] == list(range(5, 100))
    assert reader.get_stat().num_mem_cached == 100


BUILDER = """
import sys
import libcache.dataset as ds
from dataset_files import hold
data = ds.TFRecordDataset(sys.argv[1], columns_list=["id"], shuffle=False, **eval(sys.argv[3]))
data = data.map(hold, "id", cache=ds.DatasetCache(session_id=int(sys.argv[2])))
rows = data.create_dict_iterator(num_epochs=1)
for number in range(int(sys.argv[4])):
    next(rows)
print("read", flush=True)
sys.stdin.readline()
"""


def start_builder(file, session, rows, options="{}", hold_at=""):
    """A process that begins to build, reads so many rows, and then keeps its iterator without using it."""
    builder = subprocess.Popen([sys.executable, "-c", BUILDER, file, str(session.id), options, str(rows)], text=True,
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "HOLD_AT": hold_at})
    assert builder.stdout.readline() == "read\n"
    return builder


def held(file, cache, **options):
    return ds.TFRecordDataset(file, columns_list=["id"], shuffle=False, **options).map(hold, "id", cache=cache)


def test_another_takes_over_from_a_builder_that_is_killed(session, another, tmp_path):
    needs_tfrecord()
    file = numbered_records(tmp_path / "n.data", 100)
    builder = start_builder(file, session, 31, hold_at="31")
    cache = another()
    iterator = held(file, cache).create_dict_iterator(num_epochs=1, output_numpy=True)
    seen = [int(next(iterator)["id"][0]) for _ in range(31)]  # read along
    assert cache.get_stat().misses == 0
    builder.send_signal(signal.SIGKILL)
    builder.communicate(timeout=60)
    seen += [int(row["id"][0]) for row in iterator]
    assert seen == list(range(100)) and cache.get_stat().num_mem_cached == 100
    assert cache.get_stat().misses == 69  # what the other had not appended


def test_a_builder_that_waits_for_others_builds_on(session, another, tmp_path):
    """As a rank does that has its batch and waits in a barrier for one that needs the next row."""
    needs_tfrecord()
    file = numbered_records(tmp_path / "n.data", 100)
    builder = start_builder(file, session, 1, options="dict(num_shards=2, shard_id=0)")
    cache = another()
    assert numbers(held(file, cache, num_shards=2, shard_id=1)) == list(range(1, 100, 2))
    assert cache.get_stat().misses == 0
    builder.communicate("\n", timeout=60)


def test_a_builder_that_reads_no_more_gives_the_build_up(session, another, tmp_path):
    needs_tfrecord()
    file = numbered_records(tmp_path / "n.data", 5_000)
    code = BUILDER.replace("for number in range(int(sys.argv[4])):\n    next(rows)", "list(rows)")
    words = [sys.executable, "-c", code, file, str(session.id), "dict(num_samples=3)", "0"]
    builder = subprocess.Popen(words, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert builder.stdout.readline() == "read\n"
    cache = another()
    assert numbers(held(file, cache)) == list(range(5_000)) and cache.get_stat().misses > 0
    builder.communicate("\n", timeout=60)


def test_a_forked_child_reads_and_does_not_build_twice(another, tmp_path):
    needs_tfrecord()
    file = numbered_records(tmp_path / "n.data", 40)
    cache = another()
    data = ds.TFRecordDataset(file, shuffle=False, cache=cache)
    iterator = data.create_dict_iterator(num_epochs=1, output_numpy=True)
    seen = [int(next(iterator)["id"][0]) for _ in range(10)]
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if numbers(data) == list(range(40)) else 1)
        except BaseException:
            os._exit(2)
    seen += [int(row["id"][0]) for row in iterator]
    wait_until(lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT), "the child's end")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert seen == list(range(40)) and cache.get_stat().num_mem_cached == 40


def test_text_columns_go_through_a_cache(another, tmp_path):
    needs_tfrecord()
    file = numbered_records(tmp_path / "n.data", 5)
    schema = ds.Schema()
    schema.add_column("text", de_type="string")
    data = ds.TFRecordDataset(file, schema, shuffle=False, cache=another())
    first, second = rows_of(data), rows_of(data)
    assert [row["text"].tolist() for row in second] == [[f"row {number}"] for number in range(5)]
    assert same(first, second)
    words = vision.not_random(lambda text: np.array([["ä", ""], [str(text[0]), "\0x"]]))
    data = ds.TFRecordDataset(file, schema, shuffle=False).map(words, "text", cache=another())
    first, second = rows_of(data), rows_of(data)
    assert same(first, second) and second[3]["text"].tolist() == [["ä", ""], ["row 3", "\0x"]]
    raw = vision.not_random(lambda text: np.array(b"\xff\x00\x01"))
    data = ds.TFRecordDataset(file, schema, shuffle=False).map(raw, "text", cache=another())
    assert same(rows_of(data), rows_of(data)) and rows_of(data)[0]["text"].item() == b"\xff\x00\x01"
