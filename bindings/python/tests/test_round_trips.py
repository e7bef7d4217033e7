# SPDX-License-Identifier: Apache-2.0
"""Whatever is put comes back: properties checked with arrays that hypothesis makes up."""
import itertools

import numpy as np
import pytest

hypothesis = pytest.importorskip("hypothesis", reason="python3-hypothesis is not installed: make deps-python")
from hypothesis import HealthCheck, given, settings, strategies as st  # noqa: E402
from hypothesis.extra import numpy as hnp  # noqa: E402

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32",
          "float64", ">i2", ">i4", ">i8", ">u2", ">u4", ">u8", ">f2", ">f4", ">f8"]
FAST = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])

SHAPES = hnp.array_shapes(min_dims=0, max_dims=6, min_side=0, max_side=5)


@st.composite
def layouts(draw):
    """An array of any dtype and shape: in C order, in Fortran order, a view with steps, transposed or broadcast."""
    array = draw(hnp.arrays(draw(st.sampled_from(DTYPES)), draw(SHAPES)))
    kind = draw(st.sampled_from(["C", "F", "steps", "transposed", "broadcast"]))
    if kind == "F":
        return np.asfortranarray(array)
    if kind == "transposed":
        return array.T
    if kind == "broadcast":
        return np.broadcast_to(array, (2, *array.shape))
    if kind == "steps" and array.ndim:
        return array[tuple(slice(None, None, draw(st.sampled_from([1, 2, -1, -2]))) for _ in array.shape)]
    return array


@pytest.fixture(scope="module")
def numbers():
    return itertools.count()


def bits(array):
    """The bytes in C order and native byte order: NaN equals itself here."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).tobytes()


@FAST
@given(columns=st.lists(st.one_of(layouts(), st.binary(max_size=300), st.text(max_size=100)), min_size=1, max_size=12))
def test_a_row_comes_back_as_it_was_put(cache, numbers, columns):
    row_id = next(numbers)
    assert cache.put(row_id, *columns)
    row = cache[row_id]
    assert len(row) == len(columns)
    for got, put in zip(row, columns):
        if isinstance(put, str):
            assert got == put
        elif isinstance(put, bytes):
            assert got.tobytes() == put and got.dtype == np.uint8
        else:
            assert got.shape == put.shape and got.dtype == put.dtype.newbyteorder("=")
            assert got.tobytes() == bits(put)


@FAST
@given(array=layouts())
def test_a_reserved_row_comes_back_as_it_was_written(cache, numbers, array):
    row_id = next(numbers)
    with cache.reserve(row_id, array) as row:
        row.columns[0][...] = array
    assert cache[row_id][0].tobytes() == bits(array) and cache[row_id][0].shape == array.shape


@FAST
@given(data=st.data(), array=hnp.arrays(st.sampled_from(DTYPES[:12]),
                                        hnp.array_shapes(min_dims=1, max_dims=4, min_side=1, max_side=6)))
def test_gather_is_take(cache, numbers, data, array):
    first = next(numbers)
    for i, row in enumerate(array):
        cache.put(first + i if i == 0 else next(numbers), row)
    picks = data.draw(st.lists(st.integers(0, len(array) - 1), min_size=1, max_size=100))
    batch = cache.gather(first + np.array(picks))
    assert batch.shape == (len(picks), *array.shape[1:])
    assert batch.tobytes() == bits(array[picks])


@FAST
@given(values=hnp.arrays(np.object_, SHAPES, elements=st.integers()))
def test_objects_are_refused_by_name(cache, values):
    with pytest.raises(TypeError, match="column 0: dtype object"):
        cache.put(0, values)


@FAST
@given(ids=st.lists(st.integers(0, 2**63 - 1), unique=True, max_size=50))
def test_any_set_of_ids_is_kept(session, numbers, ids):
    with session.open(next(numbers) + 1000, limit_bytes=4 << 20) as cache:
        for i in ids:
            assert cache.put(i, i)
        assert sorted(cache) == sorted(ids)
        assert [int(row[0]) for row in cache.get_many(np.array(ids, np.int64))] == ids
    session.destroy_cache(cache.cache_id)
