# SPDX-License-Identifier: Apache-2.0
"""What can be put on a source, iterators and getters, without a cache. Expected numbers are those of MindSpore 2.10."""
import gc
import itertools
import threading

import numpy as np
import pytest

import libcache.dataset as ds
import libcache.dataset.vision as vision
from dataset_files import count, rows_of


def numbers(rows=10, **options):
    return ds.GeneratorDataset([np.array(i) for i in range(rows)], ["a"], **{"shuffle": False, **options})


def stream(rows=10):
    """The same rows without ids."""
    return ds.GeneratorDataset(lambda: ((np.array(i),) for i in range(rows)), ["a"])


def values(dataset, column="a"):
    return [row[column].tolist() for row in rows_of(dataset)]


both = pytest.mark.parametrize("make", [numbers, stream])


@both
def test_take_skip_repeat_batch(make):
    assert values(make().take(3)) == [0, 1, 2] and values(make().skip(8)) == [8, 9]
    assert values(make().skip(2).take(3)) == [2, 3, 4] and values(make().take(-1)) == list(range(10))
    assert values(make(2).repeat(3)) == [0, 1] * 3
    assert values(make().batch(4)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert values(make().batch(4, drop_remainder=True)) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert values(make(3).repeat(2).batch(4)) == [[0, 1, 2, 0], [1, 2]]
    assert values(make(0)) == [] and values(make(0).repeat()) == [] and values(make().skip(20)) == []
    assert list(itertools.islice(values_forever(make(2).repeat()), 5)) == [0, 1, 0, 1, 0]


def values_forever(dataset):
    for row in dataset.create_dict_iterator(num_epochs=1, output_numpy=True):
        yield row["a"].tolist()


@both
def test_shuffle(make):
    ds.config.set_seed(3)
    data = make(50).shuffle(50)
    iterator = data.create_dict_iterator(num_epochs=3, output_numpy=True)
    orders = [[int(row["a"]) for row in iterator] for _ in range(3)]
    assert all(sorted(order) == list(range(50)) for order in orders) and len(set(map(tuple, orders))) == 3
    ds.config.set_seed(3)
    assert values(data) == orders[0]
    near = values(make(50).shuffle(5))
    assert sorted(near) == list(range(50)) and all(value - place < 5 for place, value in enumerate(near))


@both
@pytest.mark.parametrize("workers", [1, 4])
def test_map(make, workers):
    data = make().map(lambda x: x * 2, "a", num_parallel_workers=workers)
    assert values(data) == list(range(0, 20, 2))
    assert values(make(100).map(lambda x: x * 2, "a", num_parallel_workers=workers)) == list(range(0, 200, 2))
    data = make().map([lambda x: (x, x + 100), lambda x, y: (y, x, x - y)], "a", ["b", "a", "c"])
    assert data.get_col_names() == ["b", "a", "c"]
    assert [list(map(int, row.values())) for row in rows_of(data)][1] == [101, 1, -100]
    data = make().map(lambda x: (x, x), "a", ["b", "c"]).map(lambda x: x + 5, "c", "d", column_order=["d", "b"])
    assert {name: int(value) for name, value in rows_of(data)[2].items()} == {"d": 7, "b": 2}
    data = make().map(lambda x: (x, -x), "a", ["x", "y"]).map(lambda x, y: x + y, ["x", "y"], ["z"])
    assert data.get_col_names() == ["z"] and values(data, "z") == [0] * 10


def test_map_takes_the_first_column_unless_told():
    data = numbers().map(lambda x: (x, x + 1), "a", ["p", "q"]).map(lambda x: x * 10)
    assert [list(map(int, row.values())) for row in rows_of(data)][2] == [20, 3]


@both
@pytest.mark.parametrize("workers", [1, 3])
def test_errors_of_functions_name_the_row(make, workers):
    def picky(x):
        if x == 4:
            raise KeyError("four")
        return x

    seen = []
    with pytest.raises(RuntimeError) as told:
        for row in make().map(picky, "a", num_parallel_workers=workers).create_dict_iterator(num_epochs=1):
            seen.append(int(row["a"]))
    assert seen == [0, 1, 2, 3] and isinstance(told.value.__cause__, KeyError)
    assert "picky" in str(told.value) and "row 4" in str(told.value) and "KeyError: 'four'" in str(told.value)


@both
def test_map_with_the_wrong_number_of_columns(make):
    with pytest.raises(RuntimeError, match="gave 2 columns of row 0, and 1 are expected"):
        count(make().map(lambda x: (x, x), "a"))
    with pytest.raises(RuntimeError, match="column name q does not exist"):
        count(make().map(lambda x: x, "q"))
    with pytest.raises(RuntimeError, match="duplicate column a"):
        count(make().map(lambda x: (x, x), "a", ["b", "c"]).rename("b", "a").rename("c", "a"))
    with pytest.raises(TypeError, match="rows are made of numbers"):
        count(make().map(lambda x: {"a": x}, "a"))


@both
def test_project_rename_filter_concat_zip(make):
    wide = make().map(lambda x: (x, x * x), "a", ["a", "b"])
    assert values(wide.project("b").rename("b", "c"), "c")[3] == 9
    assert wide.rename(["a", "b"], ["b", "a"]).get_col_names() == ["b", "a"]
    assert values(make().filter(lambda x: x % 3 == 0)) == [0, 3, 6, 9]
    assert values(wide.filter(lambda b: b > 50, "b")) == [8, 9]
    assert make().filter(lambda x: x % 3 == 0).get_dataset_size() == 4
    assert values(make(2).concat([make(1), make(3)])) == [0, 1, 0, 0, 1, 2] and values(make(1) + make(2)) == [0, 0, 1]
    zipped = ds.zip((make(3), make(5).rename("a", "b")))
    assert values(zipped, "b") == [0, 1, 2] and zipped.get_dataset_size() == 3
    assert values(make(4).zip(make(4).rename("a", "b")), "b") == [0, 1, 2, 3]
    for wrong, text in ((lambda: make().project("q"), "column name q does not exist"),
                        (lambda: make().rename("b", "c"), "column name b does not exist"),
                        (lambda: ds.zip((make(), make())), "duplicate column a"),
                        (lambda: make() + make().rename("a", "b"), "different columns")):
        with pytest.raises(RuntimeError, match=text):
            count(wrong())


def test_a_batch_needs_equal_rows():
    with pytest.raises(RuntimeError, match=r"column a: .* \(0,\) int64 and \(1,\) int64"):
        count(ds.GeneratorDataset([np.zeros(n, np.int64) for n in range(3)], ["a"], shuffle=False).batch(2))
    text = ds.GeneratorDataset([np.array("x" * n) for n in range(3)], ["a"], shuffle=False).batch(3)
    assert values(text) == [["", "x", "xx"]]


@pytest.mark.parametrize("sizes, expected", [([0.3, 0.7], [3, 7]), ([3, 3, 4], [3, 3, 4]), ([0.55, 0.45], [6, 4]),
                                             ([0.33, 0.33, 0.34], [4, 3, 3])])
@pytest.mark.parametrize("randomize", [False, True])
@pytest.mark.parametrize("over", [lambda data: data, lambda data: data.map(lambda x: x, "a")])
def test_split(sizes, expected, randomize, over):
    for shuffle in (False, True):
        parts = over(numbers(shuffle=shuffle)).split(sizes, randomize)
        assert [part.get_dataset_size() for part in parts] == expected
        first = [values(part) for part in parts]
        assert [sorted(part) for part in first] == [sorted(values(part)) for part in parts]  # every epoch the same rows
        assert sorted(value for part in first for value in part) == list(range(10))
        if not randomize and not shuffle:
            assert [value for part in first for value in part] == list(range(10))


def test_split_of_a_stream_and_wrong_splits():
    parts = stream(20).split([0.5, 0.5])
    assert sorted(values(parts[0]) + values(parts[1])) == list(range(20)) and values(parts[0]) == values(parts[0])
    for sizes, error in (([0.5, 0.6], ValueError), ([3, 3], RuntimeError), ([], ValueError), ([0.5, 5], ValueError),
                         ([0.99, 0.01], RuntimeError), ([-1, 11], RuntimeError)):
        with pytest.raises(error):
            numbers(10).split(sizes)
    with pytest.raises(RuntimeError, match="should not be sharded"):
        numbers(10, num_shards=2, shard_id=0).split([0.4, 0.6])
    train, _ = numbers(10).split([6, 4])
    train.use_sampler(ds.SequentialSampler())
    assert train.get_dataset_size() == 10


# ---- samplers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampler, expected", [
    (ds.DistributedSampler(3, 1, shuffle=False), [1, 4, 7, 0]),
    (ds.DistributedSampler(3, 2, shuffle=False, num_samples=4), [2, 5, 8, 1]),
    (ds.DistributedSampler(3, 2, shuffle=False, offset=1), [1, 4, 7]),
    (ds.SequentialSampler(3, 4), [3, 4, 5, 6]), (ds.SubsetSampler([5, 3, 9], num_samples=2), [5, 3]),
    ([4, 2], [4, 2]), (range(8, 10), [8, 9])])
def test_samplers_as_in_the_original(sampler, expected):
    data = numbers(10, shuffle=None, sampler=sampler)
    assert values(data) == expected and data.get_dataset_size() == len(expected)


def test_samplers_with_children():
    sampler = ds.RandomSampler(num_samples=4)
    sampler.add_child(ds.SequentialSampler(2, 5))
    data = numbers(10, shuffle=None, sampler=sampler)
    assert data.get_dataset_size() == 4 and set(values(data)) <= {2, 3, 4, 5, 6} and len(set(values(data))) == 4
    data = numbers(10)
    data.add_sampler(ds.DistributedSampler(2, 1, shuffle=False))
    assert values(data) == [1, 3, 5, 7, 9]
    with pytest.raises(RuntimeError, match="has one already"):
        sampler.add_child(ds.SequentialSampler())
    assert len(values(numbers(10, shuffle=None, sampler=ds.RandomSampler(), num_samples=3))) == 3


def test_samplers_that_choose_wrongly():
    with pytest.raises(RuntimeError, match="SubsetSampler gave row 10, and there are the rows 0 to 9"):
        count(numbers(10, shuffle=None, sampler=ds.SubsetSampler([1, 10])))
    with pytest.raises(RuntimeError, match="start_index 11 is beyond the 10 rows"):
        count(numbers(10, shuffle=None, sampler=ds.SequentialSampler(11)))
    with pytest.raises(RuntimeError, match="PKSampler needs a source with one class per row"):
        count(numbers(10, shuffle=None, sampler=ds.PKSampler(1)))
    for make, error in ((lambda: ds.WeightedRandomSampler([-1, 2]), ValueError), (lambda: ds.PKSampler(0), ValueError),
                        (lambda: ds.DistributedSampler(2, 2), ValueError), (lambda: ds.RandomSampler(num_samples=-1),
                                                                            ValueError)):
        with pytest.raises(error):
            make()


def test_shuffled_shards_agree_on_one_order_and_change_it():
    shards = [numbers(12, shuffle=True, num_shards=3, shard_id=shard) for shard in range(3)]
    shards = [shard.create_dict_iterator(num_epochs=4, output_numpy=True) for shard in shards]
    epochs = [[[int(row["a"]) for row in shard] for shard in shards] for _ in range(4)]
    for epoch in epochs:
        assert sorted(value for share in epoch for value in share) == list(range(12))
    assert len({tuple(epoch[0]) for epoch in epochs}) > 1
    data = numbers(12, shuffle=True, num_shards=3, shard_id=0)
    assert len({tuple(values(data)) for _ in range(6)}) > 1  # a new iterator goes on


# ---- iterators and getters ------------------------------------------------------------------------------------------


def test_epochs_end():
    iterator = numbers(3).create_dict_iterator(num_epochs=2)
    assert [len(list(iterator)), len(list(iterator))] == [3, 3]
    with pytest.raises(RuntimeError, match="EOF buffer encountered"):
        next(iterator)
    endless = numbers(3).create_dict_iterator()
    assert [len(list(endless)) for _ in range(5)] == [3] * 5
    assert [[int(x) for (x,) in numbers(3)], [int(x) for (x,) in numbers(3)]] == [[0, 1, 2]] * 2


def test_kinds_of_items():
    row = next(iter(numbers(3).create_dict_iterator()))
    assert isinstance(row["a"], ds.Tensor) and type(row["a"].asnumpy()) is np.ndarray
    assert type(next(iter(numbers(3).create_dict_iterator(output_numpy=True)))["a"]) is np.ndarray
    wide = numbers(3).map(lambda x: (x, x + 1), "a", ["a", "b"])
    assert [int(value) for value in next(wide.create_tuple_iterator(["b", "a"], output_numpy=True))] == [1, 0]
    with pytest.raises(ValueError):
        numbers().create_dict_iterator(num_epochs=0)
    with pytest.raises(TypeError):
        numbers().create_dict_iterator(num_epochs="1")


def test_stop_ends_threads():
    before = threading.active_count()
    iterator = numbers(1000).map(lambda x: x, "a", num_parallel_workers=4).create_tuple_iterator()
    next(iterator)
    assert threading.active_count() > before
    iterator.stop()
    assert threading.active_count() == before
    with pytest.raises(AttributeError, match="'TupleIterator' object has no attribute '_runtime_context'"):
        next(iterator)
    iterator.stop()
    iterator = numbers(1000).map(lambda x: x, "a", num_parallel_workers=4).create_tuple_iterator()
    next(iterator)
    del iterator
    gc.collect()
    assert threading.active_count() == before


def test_getters():
    data = numbers(10)
    assert (data.batch(4).get_dataset_size(), data.batch(4, True).get_dataset_size()) == (3, 2)
    assert data.repeat(3).batch(4).get_repeat_count() == 3 and data.repeat(2).repeat(3).get_repeat_count() == 3
    assert data.repeat(3).batch(4).get_dataset_size() == 8 and data.repeat(3).batch(4).get_batch_size() == 4
    assert data.get_batch_size() == 1 == data.get_repeat_count() and data.repeat().get_dataset_size() == -1
    assert data.batch(4).output_shapes() == [[4]] and data.batch(4).output_types() == [np.dtype(np.int64)]
    assert data.num_classes() is None and data.get_class_indexing() == {}
    assert (data.take(3).get_dataset_size(), data.skip(3).get_dataset_size()) == (3, 7)
    assert data.repeat().take(25).get_dataset_size() == 25 == len(values(data.repeat().take(25)))
    with pytest.raises(RuntimeError, match="has no rows"):
        numbers(0).output_shapes()


def test_config():
    ds.config.set_num_parallel_workers(3)
    try:
        assert ds.config.get_num_parallel_workers() == 3 and values(numbers().map(lambda x: x, "a")) == list(range(10))
    finally:
        ds.config.set_num_parallel_workers(1)
    for wrong in (-1, 2**32):
        with pytest.raises(ValueError):
            ds.config.set_seed(wrong)
    with pytest.raises(ValueError):
        ds.config.set_prefetch_size(0)


@pytest.mark.parametrize("workers", [1, 4])
def test_random_operations_do_not_depend_on_threads(workers):
    ds.config.set_seed(11)
    pictures = ds.GeneratorDataset([np.arange(300, dtype=np.uint8).reshape(10, 10, 3) for _ in range(30)], ["image"],
                                   shuffle=False)
    operations = [vision.RandomCrop(4), vision.RandomHorizontalFlip()]
    data = pictures.map(operations, "image", num_parallel_workers=workers).repeat(2)
    found = [row["image"].tobytes() for row in rows_of(data)]
    ds.config.set_seed(11)
    alone = [row["image"].tobytes() for row in rows_of(pictures.map(operations, "image").repeat(2))]
    assert found == alone and found[:30] != found[30:] and len(set(found[:30])) > 5


@pytest.mark.parametrize("error, make", [
    (ValueError, lambda data: data.batch(0)), (TypeError, lambda data: data.batch(True)),
    (ValueError, lambda data: data.shuffle(1)), (ValueError, lambda data: data.repeat(0)),
    (TypeError, lambda data: data.repeat("2")), (ValueError, lambda data: data.skip(-1)),
    (ValueError, lambda data: data.take(0)), (TypeError, lambda data: data.map(5)),
    (ValueError, lambda data: data.map([])), (TypeError, lambda data: data.filter(5)),
    (TypeError, lambda data: ds.zip(data)), (ValueError, lambda data: ds.zip([data])),
    (TypeError, lambda data: data + 5), (ValueError, lambda data: data.rename(["a"], ["b", "c"])),
    (ValueError, lambda data: data.project(["a", "a"])), (TypeError, lambda data: data.apply(lambda x: 5)),
    (ValueError, lambda data: data.map(lambda x: x, num_parallel_workers=0))])
def test_wrong_arguments(error, make):
    with pytest.raises(error):
        make(numbers())
