# SPDX-License-Identifier: Apache-2.0
"""MindSpore's test_cache_nomap.py restated, test by test: caches over streams. Where the original only counts rows,
content and order are looked at too (its caches lost the order and, shuffled, drew rows with replacement). Not here, for
want of the data set: CLUE, CSV, TextFile and the device queue."""
import itertools
import subprocess
import sys
import threading

import numpy as np
import pytest

import libcache
import libcache.dataset as ds
import libcache.dataset.vision as vision
from dataset_files import FIXTURES, IMAGES, TF, TF4, count, needs_fixtures, numbered_records, rows_of, same
from libcache.dataset.vision import c_transforms

pytest.importorskip("PIL", reason="no python3-pil: pictures are not decoded")
pytest.importorskip("google.protobuf", reason="no python3-protobuf: TFRecord files are not read")
pytest.importorskip("crc32c", reason="no python3-crc32c: TFRecord files are not read")

FILE = str(TF / "train-0000-of-0001.data")
FILES4 = [str(TF4 / f"train-0000-of-000{number}.data") for number in range(1, 5)]
SCHEMA = str(TF / "datasetSchema.json")
NUMBERS = [str(FIXTURES / "tf_file_dataset" / f"test{number}.data") for number in (1, 2)]


@pytest.fixture
def cache(session):
    """A DatasetCache in a session of its own."""
    return ds.DatasetCache(session_id=session.id, size=0, spilling=False)


@pytest.fixture
def another(session):
    """Makes further ones in the same session."""
    return lambda **options: ds.DatasetCache(session_id=session.id, **options)


def records(files=FILE, **options):
    return ds.TFRecordDataset(files, SCHEMA, columns_list=["image"], **options)


def decoded(dataset, **options):
    return dataset.map(c_transforms.Decode(), input_columns=["image"], **options)


def random_rows(total_rows, **options):
    schema = ds.Schema()
    schema.add_column("image", de_type="uint8", shape=[640, 480, 3])
    schema.add_column("label", de_type="uint8", shape=[1])
    return ds.RandomDataset(schema=schema, total_rows=total_rows, **options)


def sizes(rows):
    """Encoded pictures are told apart by their length."""
    return [row["image"].size for row in rows]


LENGTHS = [159109, 192607, 179251]  # of the three pictures


def test_basic1(cache):
    data = random_rows(10, num_parallel_workers=4, cache=cache).repeat(4)
    rows = rows_of(data)
    assert len(rows) == 40 and {row["image"].shape for row in rows} == {(640, 480, 3)}
    assert all(same(rows[start:start + 10], rows[:10]) for start in (10, 20, 30))
    assert same(rows[:10], rows_of(random_rows(10)))


def test_basic2(cache):
    assert count(random_rows(20, num_samples=20, num_parallel_workers=4, cache=cache).repeat(2)) == 40


@needs_fixtures
def test_basic3(cache):
    data = decoded(records(shuffle=False, cache=cache)).repeat(4)
    rows = rows_of(data)
    expected = rows_of(decoded(records(shuffle=False)).repeat(4))
    assert len(rows) == 12 and same(rows, expected)  # in the order of the file
    stat = cache.get_stat()
    assert (stat.num_mem_cached, stat.num_disk_cached) == (3, 0) and stat.avg_cache_sz == sum(LENGTHS) // 3


@needs_fixtures
def test_basic4(cache):
    data = decoded(records(shuffle=ds.Shuffle.GLOBAL), cache=cache).repeat(4)
    assert count(data) == 12


@needs_fixtures
@pytest.mark.parametrize("options", [{}, {"shuffle": ds.Shuffle.GLOBAL}, {"shuffle": ds.Shuffle.FILES}])
def test_basic5_and_7(cache, options):
    rows = rows_of(records(cache=cache, **options).repeat(4))
    for epoch in range(4):  # every row once in each
        assert sorted(sizes(rows[3 * epoch:3 * epoch + 3])) == sorted(LENGTHS)


@needs_fixtures
def test_basic6(cache):
    data = decoded(records(num_shards=3, shard_id=1, shuffle=False, cache=cache)).repeat(4)
    rows = rows_of(data)
    assert len(rows) == 4 and same(rows[:1] * 4, rows) and same(rows[:1], rows_of(decoded(records(shuffle=False)))[1:2])
    assert 2 <= cache.get_stat().num_mem_cached <= 3


@needs_fixtures
def test_basic8(cache):
    assert sizes(rows_of(records(shuffle=False, cache=cache))) == LENGTHS


def test_basic9(cache):
    with pytest.raises(RuntimeError, match="Unexpected error"):
        cache.get_stat()


@needs_fixtures
def test_allowed_share1(session):
    cache = ds.DatasetCache(session_id=session.id, size=0, prefetch_size=32)
    assert count(records(shuffle=False, cache=cache).repeat(4)) == 12
    shuffled = records(shuffle=False, cache=cache).shuffle(buffer_size=2)
    assert sorted(sizes(rows_of(shuffled))) == sorted(LENGTHS)
    assert cache.get_stat().misses == 3


@needs_fixtures
def test_allowed_share2(cache):
    assert count(decoded(records(shuffle=False), cache=cache).repeat(4)) == 12
    assert count(decoded(records(shuffle=False), cache=cache).shuffle(buffer_size=2)) == 3


@needs_fixtures
def test_allowed_share3(cache):
    expected = [int(row["scalars"][0]) for row in rows_of(ds.TFRecordDataset(NUMBERS, shuffle=False))]
    assert len(expected) == 20
    for shard in range(2):
        data = ds.TFRecordDataset(NUMBERS, num_shards=2, shard_id=shard, num_samples=3, shuffle=False, cache=cache)
        rows = rows_of(data.repeat(4))
        assert [int(row["scalars"][0]) for row in rows] == expected[shard:6:2] * 4
    assert 6 <= cache.get_stat().num_mem_cached <= 20  # the build may have gone on while they were read


@needs_fixtures
def test_allowed_share4(cache):
    for workers in (1, 2):
        assert count(decoded(records(shuffle=False), cache=cache, num_parallel_workers=workers)) == 3


@needs_fixtures
def test_disallowed_share1(cache):
    assert count(decoded(records(shuffle=False), cache=cache)) == 3
    rescaled = records(shuffle=False).map(vision.Rescale(1.0 / 255.0, -1.0), input_columns=["image"], cache=cache)
    with pytest.raises(RuntimeError, match="Cannot re-use a cache for a different tree!"):
        count(rescaled)


@needs_fixtures
def test_running_twice1(cache):
    data = decoded(records(), cache=cache).repeat(4)
    assert [count(data), count(data)] == [12, 12]
    assert cache.get_stat().misses == 3


@needs_fixtures
def test_running_twice2(session, another):
    for _ in range(3):
        assert count(decoded(records(cache=another())).repeat(4)) == 12
    session.destroy()
    fresh = ds.DatasetCache(session_id=libcache.Client().create_session().id)
    assert count(decoded(records(cache=fresh)).repeat(4)) == 12


@pytest.mark.parametrize("size", [10**9, 2**64 - 1])
def test_a_size_beyond_the_machine(another, size):
    with pytest.raises(RuntimeError, match="Out of memory"):
        count(random_rows(3, cache=another(size=size)))


@needs_fixtures
def test_extra_small_size2(another):
    data = decoded(records(shuffle=False), cache=another(size=1)).repeat(4)
    with pytest.raises(RuntimeError, match="Out of memory"):
        count(data)


PARALLEL = """
import sys
import libcache.dataset as ds
import libcache.dataset.vision.c_transforms as c_vision
file, session, shard, above = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "above"
cache = ds.DatasetCache(session_id=session, size=0)
data = ds.TFRecordDataset(file, columns_list=["image"], num_shards=3, shard_id=shard, shuffle=False,
                          cache=None if above else cache)
data = data.map(c_vision.Decode(), input_columns=["image"], cache=cache if above else None).repeat(4)
print(*[row["image"].shape[0] for row in data.create_dict_iterator(num_epochs=1)])
"""


@needs_fixtures
@pytest.mark.parametrize("place", ["below", "above"])
def test_parallel_pipeline(session, place):
    running = [subprocess.Popen([sys.executable, "-c", PARALLEL, FILE, str(session.id), str(shard), place],
                                stdout=subprocess.PIPE, text=True) for shard in range(3)]
    heights = [row["image"].shape[0] for row in rows_of(decoded(records(shuffle=False)))]
    for height, process in zip(heights, running):
        assert process.communicate(timeout=60)[0].split() == [str(height)] * 4
    (stats,) = session.caches()
    assert stats.rows_in_memory == 3


@needs_fixtures
def test_parallel_workers(cache):
    data = decoded(records(num_parallel_workers=4, shuffle=False), num_parallel_workers=4, cache=cache).repeat(4)
    assert same(rows_of(data), rows_of(decoded(records(shuffle=False)).repeat(4)))


@needs_fixtures
@pytest.mark.parametrize("options", [{"num_connections": 1}, {"num_connections": 100}, {"prefetch_size": 1},
                                     {"prefetch_size": 100}])
def test_num_connections_and_prefetch_size(another, options):
    assert count(decoded(records(), cache=another(**options)).repeat(4)) == 12


@needs_fixtures
@pytest.mark.parametrize("workers", [1, 100])
def test_server_workers(no_server, workers):
    no_server.start("--workers", workers)
    cache = ds.DatasetCache(session_id=libcache.Client().create_session().id)
    assert count(decoded(records(), cache=cache).repeat(4)) == 12


def endless(cache):
    """An iterator over a few rows without end."""
    return random_rows(3, cache=cache).repeat().create_dict_iterator(num_epochs=-1)


def interrupted_by(event, iterator):
    """What is raised once `event` has happened beside the iteration."""
    beside = threading.Thread(target=event)
    with pytest.raises(RuntimeError) as told:
        for number, _ in enumerate(iterator):
            if number == 10:
                beside.start()
    beside.join()
    return str(told.value)


def test_session_destroy(server, session, cache):
    text = interrupted_by(lambda: server.admin("-d", session.id, "-p", server.port), endless(cache))
    assert "Unexpected error" in text


def test_server_stop(own_server):
    cache = ds.DatasetCache(session_id=libcache.Client().create_session().id)
    text = interrupted_by(own_server.stop, endless(cache))
    assert (f"Network error. Cache server with port {own_server.port} is unreachable. Make sure the server is running."
            in text)


def test_no_server_and_no_session(no_server):
    with pytest.raises(RuntimeError, match=f"Network error. Cache server with port {no_server.port} is unreachable"):
        count(random_rows(3, cache=ds.DatasetCache(session_id=1)))
    no_server.start()
    with pytest.raises(RuntimeError, match="Unexpected error"):
        count(random_rows(3, cache=ds.DatasetCache(session_id=1)))


def test_interrupt_and_rerun(cache):
    schema = ds.Schema()
    schema.add_column("image", de_type="uint8", shape=[20, 50])
    data = ds.RandomDataset(schema=schema, total_rows=10_000, num_parallel_workers=4, cache=cache)
    iterator = data.create_dict_iterator(num_epochs=-1, output_numpy=True)
    with pytest.raises(AttributeError, match="'DictIterator' object has no attribute '_runtime_context'"):
        for number, _ in enumerate(iterator):
            if number == 10:
                iterator.stop()
    expected = [row["image"].tobytes() for row in rows_of(ds.RandomDataset(schema=schema, total_rows=10_000))]
    iterator = data.create_dict_iterator(num_epochs=2, output_numpy=True)
    for _ in range(2):
        assert [row["image"].tobytes() for row in iterator] == expected
    assert cache.get_stat().num_mem_cached == 10_000


@needs_fixtures
def test_epoch_ctrl1(cache):
    iterator = decoded(records(cache=cache)).create_dict_iterator(num_epochs=5)
    assert [sum(1 for _ in iterator) for _ in range(5)] == [3] * 5


@needs_fixtures
def test_epoch_ctrl2(cache):
    iterator = decoded(records(), cache=cache).create_dict_iterator(num_epochs=-1)
    assert [sum(1 for _ in iterator) for _ in range(5)] == [3] * 5
    iterator.stop()


@needs_fixtures
def test_epoch_ctrl3(cache):
    iterator = decoded(records(), cache=cache).repeat(2).create_dict_iterator(num_epochs=-1)
    assert [sum(1 for _ in iterator) for _ in range(5)] == [6] * 5


@needs_fixtures
def test_epoch_ctrl4(cache):
    data = decoded(records(shuffle=False).repeat(2), cache=cache)
    assert data.get_dataset_size() == 6
    iterator = data.create_dict_iterator(num_epochs=5, output_numpy=True)
    heights = [row["image"].shape for row in rows_of(decoded(records(shuffle=False)))]
    assert [[row["image"].shape for row in iterator] for _ in range(5)] == [heights * 2] * 5
    assert cache.get_stat().num_mem_cached == 6  # both copies


@needs_fixtures
def test_multiple_cache1(another):
    train = decoded(ds.TFRecordDataset(FILES4, SCHEMA, columns_list=["image"]), cache=another())
    evaluate = decoded(records(), cache=another())
    trained, evaluated = (data.create_dict_iterator(num_epochs=5) for data in (train, evaluate))
    for _ in range(5):
        assert (sum(1 for _ in trained), sum(1 for _ in evaluated)) == (12, 3)


@needs_fixtures
def test_multiple_cache2(another):
    images = decoded(records(shuffle=False), cache=another())
    text = ds.TFRecordDataset(str(FIXTURES / "testTextTFRecord" / "text.tfrecord"),
                              str(FIXTURES / "testTextTFRecord" / "datasetSchema.json"), shuffle=False, cache=another())
    iterators = images.create_dict_iterator(num_epochs=5), text.create_dict_iterator(num_epochs=5, output_numpy=True)
    for _ in range(5):
        pairs = list(itertools.zip_longest(*iterators))
        assert [str(row["line"]) for _, row in pairs] == ["This is a text file.", "Be happy every day.",
                                                         "Good luck to everyone."]
        assert pairs[0][1]["words"].tolist() == ["This", "text", "file", "a"]


@needs_fixtures
def test_multiple_cache3(another):
    stream = decoded(records(), cache=another())
    images = decoded(ds.ImageFolderDataset(str(IMAGES)), cache=another())
    iterators = stream.create_dict_iterator(num_epochs=5), images.create_dict_iterator(num_epochs=5)
    for _ in range(5):
        assert [sum(1 for _ in iterator) for iterator in iterators] == [3, 2]


TRAIN_AND_EVAL = """
import sys
import libcache.dataset as ds
import libcache.dataset.vision.c_transforms as c_vision
cache = ds.DatasetCache(session_id=int(sys.argv[1]), size=0)
data = ds.TFRecordDataset(sys.argv[2:], columns_list=["image"]).map(c_vision.Decode(), "image", cache=cache)
iterator = data.create_dict_iterator(num_epochs=5)
print(*[sum(1 for _ in iterator) for _ in range(5)])
"""


@needs_fixtures
def test_multiple_cache_train_and_eval(session):
    running = [subprocess.Popen([sys.executable, "-c", TRAIN_AND_EVAL, str(session.id), *files], stdout=subprocess.PIPE,
                                text=True) for files in (FILES4, [FILE])]
    assert [process.communicate(timeout=60)[0].split() for process in running] == [["12"] * 5, ["3"] * 5]
    assert sorted(stats.rows_in_memory for stats in session.caches()) == [3, 12]


@needs_fixtures
def test_nested_repeat(cache):
    assert count(decoded(records().repeat(4), cache=cache).repeat(2)) == 24


@needs_fixtures
def test_get_repeat_count(cache):
    data = decoded(records().repeat(4), cache=cache)
    assert data.get_repeat_count() == 4
    assert count(data) == 12


@needs_fixtures
def test_long_file_list(another):
    data = ds.TFRecordDataset([FILE] * 1000, SCHEMA, columns_list=["image"], cache=another(size=1))
    with pytest.raises(RuntimeError, match="Out of memory"):
        count(data)


@needs_fixtures
def test_failure1(cache):
    data = decoded(records(cache=cache), cache=cache).repeat(4)
    for use in (data.get_batch_size, lambda: count(data)):
        with pytest.raises(RuntimeError, match="Nested cache operations"):
            use()


def test_failure2(cache):
    zipped = ds.zip((random_rows(10), random_rows(10).rename(["image", "label"], ["image1", "label1"])))
    data = zipped.map(vision.Resize((28, 28)), input_columns=["image"], cache=cache)
    for use in (data.get_batch_size, lambda: count(data)):
        with pytest.raises(RuntimeError, match="ZipNode is not supported as a descendant operator under a cache"):
            use()


@needs_fixtures
def test_failure3_to_5_with_another_source(cache):
    for data, text in ((records().batch(2), "BatchNode"), (records().filter(lambda image: True), "FilterNode")):
        with pytest.raises(RuntimeError, match=f"{text} is not supported as a descendant operator under a cache"):
            count(decoded(data, cache=cache))
    data = decoded(records()).map(vision.RandomCrop(10), input_columns=["image"], cache=cache)
    with pytest.raises(RuntimeError, match="MapNode containing random operation is not supported as a descendant"):
        count(data)


def functions(first, second, cache):
    data = ds.TFRecordDataset(str(FIXTURES / "testPyfuncMap" / "data.data"),
                              str(FIXTURES / "testPyfuncMap" / "schema.json"), shuffle=False)
    return data.map([first, second], "col0", cache=cache)


@needs_fixtures
def test_pyfunc_lambda(cache, another):
    data = functions(vision.not_random(lambda x: x + x), vision.not_random(lambda x: x + 1), cache)
    rows = rows_of(data)
    assert len(rows) == 12 and rows[1]["col0"].tolist() == [[9, 11], [13, 15]]
    assert same(rows, rows_of(data)) and cache.get_stat().misses == 12
    with pytest.raises(RuntimeError, match="MapNode containing random operation"):
        count(functions(lambda x: x + x, vision.not_random(lambda x: x + 1), another()))


@needs_fixtures
def test_pyfunc_builtin(cache, another):
    operations = [vision.Decode(to_pil=True), vision.ToTensor()]
    rows = rows_of(records(shuffle=False).map(operations, "image", cache=cache))
    assert len(rows) == 3 and rows[0]["image"].dtype == np.float32 and rows[0]["image"].shape[0] == 3
    assert 0 <= rows[0]["image"].min() and rows[0]["image"].max() <= 1
    operations = [vision.Decode(to_pil=True), vision.RandomCrop(224), vision.ToTensor()]
    with pytest.raises(RuntimeError, match="MapNode containing random operation"):
        count(records().map(operations, "image", cache=another()))


@vision.not_random
def not_random_decode(image):
    return vision.Decode()(image)


@vision.not_random
def not_random_shrink(image):
    return image[::8, ::8]


def undecorated_shrink(image):
    return image[::8, ::8]


@needs_fixtures
def test_pyfunc_function(cache, another):
    assert count(records().map([not_random_decode, not_random_shrink], "image", cache=cache)) == 3
    with pytest.raises(RuntimeError, match="MapNode containing random operation"):
        count(records().map([not_random_decode, undecorated_shrink], "image", cache=another()))


def test_all_rows_cached(cache):
    schema = ds.Schema()
    schema.add_column("image", de_type="uint8", shape=[450, 450, 3])
    schema.add_column("label", de_type="uint8", shape=[1])
    data = ds.RandomDataset(schema=schema, total_rows=271, num_samples=271, num_parallel_workers=4, cache=cache)
    assert count(data) == 271
    assert cache.get_stat().num_mem_cached == 271


@needs_fixtures
@pytest.mark.parametrize("place", ["source", "map"])
def test_dataset_size(cache, place):
    data = records(num_shards=2, shard_id=0, cache=cache if place == "source" else None)
    if place == "map":
        data = decoded(data, cache=cache)
    assert data.get_dataset_size() == 2 == count(data)


def test_num_rows_of_the_schema_is_the_default_of_num_samples(cache, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"numRows": 4, "columns": {"id": {"type": "int32", "rank": 1}}}')
    data = ds.TFRecordDataset(numbered_records(tmp_path / "n.data", 10), str(schema), shuffle=False, cache=cache)
    assert [int(row["id"][0]) for row in rows_of(data)] == [0, 1, 2, 3]
    assert 4 <= cache.get_stat().num_mem_cached <= 10
    everything = ds.TFRecordDataset(str(tmp_path / "n.data"), str(schema), num_samples=10, shuffle=False, cache=cache)
    assert [int(row["id"][0]) for row in rows_of(everything)] == list(range(10)) and cache.get_stat().misses == 10
