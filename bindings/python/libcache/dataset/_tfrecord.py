# SPDX-License-Identifier: Apache-2.0
"""TFRecordDataset: records of tf.train.Example."""
from __future__ import annotations

import glob
import gzip
import itertools
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, Optional, Union

import numpy as np

from . import _check, config
from ._example import example_class
from ._run import Row, Run, in_order, shuffled
from ._schema import Column, Schema, load
from ._sources import GLOBAL_BUFFER, StreamSource, damaged, file_stamp, scanned
from ._shuffle import Shuffle

_LENGTH_BYTES, _CRC_BYTES = 8, 4


class TFRecordDataset(StreamSource):
    """The records of TFRecord files, files in the order of their names. Every record is checked against its CRC-32C.

    dataset_files     paths or glob patterns
    schema            path of a JSON file, or a Schema: which columns, with their types and shapes; its numRows is the
                      default of num_samples. None: every feature of the first record; bytes become uint8, the values of
                      a list one after the other, filled up with blanks to the length of the longest
    columns_list      these columns, in this order
    shuffle           True or Shuffle.GLOBAL: files and rows, Shuffle.FILES: files only, False. Under a cache: rows
    num_shards, shard_id    without a cache shards are shares of the files unless shard_equal_rows
    compression_type  "", "GZIP" or "ZLIB"

    Columns: (n,) int64, float32 or uint8 arrays, or as the schema says. Further arguments: see StreamSource.
    """

    def __init__(self, dataset_files: Union[str, Sequence[str]], schema: Union[None, str, Schema] = None,
                 columns_list: Optional[Sequence[str]] = None, num_samples: Optional[int] = None,
                 num_parallel_workers: Optional[int] = None, shuffle: Any = Shuffle.GLOBAL,
                 num_shards: Optional[int] = None, shard_id: Optional[int] = None, shard_equal_rows: bool = False,
                 cache: Any = None, compression_type: Optional[str] = None) -> None:
        self._files = _matching(dataset_files)
        self._schema = load(schema)
        if self._schema is not None and not num_samples:
            num_samples = self._schema.num_rows
        if shuffle is not None and not isinstance(shuffle, (bool, Shuffle)):
            raise TypeError("shuffle must be of boolean or enum of 'Shuffle' values like 'Shuffle.GLOBAL' or "
                            "'Shuffle.FILES'.")
        self._shuffle_all = shuffle in (None, True, Shuffle.GLOBAL)
        self._shuffle_files = self._shuffle_all or shuffle is Shuffle.FILES
        super().__init__(num_samples, num_parallel_workers, self._shuffle_files, num_shards, shard_id, cache)
        _check.of_type("shard_equal_rows", shard_equal_rows, bool)
        self._equal_rows = shard_equal_rows
        self._given = None if not columns_list else _check.names("columns_list", columns_list)
        self._compression = compression_type or ""
        _check.one_of("compression_type", self._compression, ["", "GZIP", "ZLIB"])

    def label(self) -> str:
        return self._files[0] + (f" and {len(self._files) - 1} more" if len(self._files) > 1 else "")

    # ---- columns ----------------------------------------------------------------------------------------------------

    @scanned
    def _columns(self) -> list[Column]:
        if self._schema is not None:
            known = {column.name: column for column in self._schema.columns}
        else:
            known = self._first_record()
        missing = [name for name in self._given or () if name not in known]
        if missing:
            raise RuntimeError(f"{self._files[0]}: the columns {missing} of columns_list do not exist; there are "
                               f"{sorted(known)}.")
        return [known[name] for name in self._given or sorted(known)]

    def _first_record(self) -> dict[str, Column]:
        for path in self._files:
            for data, where in self._records(path):
                features = _parsed(data, path, where)
                return {name: Column(name, _natural(feature, name, path, where), None, 1)
                        for name, feature in features.items()}
        raise RuntimeError(f"{self._files[0]}: there is no record in {len(self._files)} files.")

    def _names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self._columns())

    # ---- rows -------------------------------------------------------------------------------------------------------

    def _records(self, path: str) -> Iterator[tuple[bytes, str]]:
        """(data, where it stands) of each record of a file."""
        with _opened(path, self._compression) as file:
            yield from records(file, path)

    @scanned
    def _counts(self) -> list[int]:
        """Records of each file. Only their lengths are read."""
        counts = []
        for path in self._files:
            with _opened(path, self._compression) as file:
                counts.append(_count(file, path))
        return counts

    def total(self) -> int:
        return sum(self._counts())

    def _own_size(self, stripped: bool) -> int:
        if stripped:
            return self.total()
        if self.num_shards is None or self._equal_rows:
            rows = -(-self.total() // (self.num_shards or 1))
        else:
            rows = sum(self._counts()[place] for place in self._shard_of_files())
        return rows if self.num_samples is None else min(rows, self.num_samples)

    def _shard_of_files(self) -> list[int]:
        if len(self._files) < self.num_shards:
            raise RuntimeError(f"Invalid file, numbers of tfrecord files {len(self._files)} is less than num_shards "
                               f"{self.num_shards}. Say shard_equal_rows=True, use a cache, or fewer shards.")
        return list(range(self.shard_id, len(self._files), self.num_shards))

    def _rows(self, run: Run) -> Iterator[Row]:
        if run.building:
            return self._parsed_rows(itertools.islice(self._all_records(range(len(self._files))), run.skip, None))
        key = run.next_pass(self)
        by_files = self.num_shards is not None and not self._equal_rows
        order = self._shard_of_files() if by_files else range(len(self._files))
        if self._shuffle_files:
            # Shards of rows are cut from one order of files
            rng = np.random.default_rng((config.get_seed(), key[-1]) if self._equal_rows else key)
            order = rng.permutation(np.array(order)).tolist()
        found = self._all_records(order)
        if self._equal_rows and self.num_shards is not None:
            found = self._equal_share(found)
        if self._shuffle_all:
            found = shuffled(found, GLOBAL_BUFFER, key)
        return self._parsed_rows(itertools.islice(found, self.num_samples))

    def _all_records(self, order: Sequence[int]) -> Iterator[tuple[bytes, str, str]]:
        for place in order:
            path = self._files[place]
            for data, where in self._records(path):
                yield data, path, where

    def _equal_share(self, found: Iterator[tuple[bytes, str, str]]) -> Iterator[tuple[bytes, str, str]]:
        """Every num_shards-th record; where shards would differ by one, the first records come once more."""
        missing = -(-self.total() // self.num_shards)
        for record in itertools.islice(found, self.shard_id, None, self.num_shards):
            missing -= 1
            yield record
        if missing:
            yield from itertools.islice(self._all_records(range(len(self._files))), missing)

    def _parsed_rows(self, found: Iterator[tuple[bytes, str, str]]) -> Iterator[Row]:
        columns = self._columns()

        def make(data: bytes, path: str, where: str) -> Row:
            features = _parsed(data, path, where)
            return tuple(_value(column, features, path, where) for column in columns)

        return in_order(make, found, self.num_parallel_workers or config.get_num_parallel_workers())

    def _identity(self) -> Any:
        columns = [(column.name, column.dtype.str, column.shape, column.rank) for column in self._columns()]
        return "TFRecordDataset", [file_stamp(path) for path in self._files], columns, self._compression


def _matching(patterns: Union[str, Sequence[str]]) -> list[str]:
    """The files of paths and patterns, in the order of their names."""
    listed = [patterns] if isinstance(patterns, (str, os.PathLike)) else list(patterns)
    if not listed:
        raise ValueError("dataset_files: the list is empty.")
    found, missing = [], []
    for pattern in map(os.fspath, listed):
        matches = [path for path in ([pattern] if os.path.exists(pattern) else glob.glob(pattern))
                   if os.path.isfile(path)]
        found += matches
        missing += [] if matches else [pattern]
    if missing:
        raise ValueError(f"The following patterns did not match any files: {missing}.")
    return sorted(found)


# ---- the file format ------------------------------------------------------------------------------------------------


def _opened(path: str, compression: str) -> BinaryIO:
    if compression == "GZIP":
        return gzip.open(path)  # type: ignore[return-value]
    file = open(path, "rb")
    return file if not compression else _Inflated(file)  # type: ignore[return-value]


class _Inflated:
    """A file that zlib has compressed, to be read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._inflate, self._left = file, zlib.decompressobj(), b""

    def read(self, size: int) -> bytes:
        while len(self._left) < size and (packed := self._file.read(1 << 16)):
            self._left += self._inflate.decompress(packed)
        data, self._left = self._left[:size], self._left[size:]
        return data

    def __enter__(self) -> "_Inflated":
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()


def _read(file: BinaryIO, size: int, path: str, where: str) -> bytes:
    try:
        return file.read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, where, f"the file cannot be decompressed: {error}") from error


def records(file: BinaryIO, path: str) -> Iterator[tuple[bytes, str]]:
    """(data, "record <number>, byte <offset>") of each record of a TFRecord file. RuntimeError where a CRC-32C, or the
    length of the file, does not fit."""
    crc = _masked_crc()
    offset = 0
    for number in itertools.count():
        where = f"record {number}, byte {offset}"
        header = _read(file, _LENGTH_BYTES + _CRC_BYTES, path, where)
        if not header:
            return
        if len(header) < _LENGTH_BYTES + _CRC_BYTES:
            raise damaged(path, where, "the file ends within the record's header")
        length, expected = struct.unpack("<QI", header)
        if crc(header[:_LENGTH_BYTES]) != expected:
            raise damaged(path, where, f"the CRC-32C of the record's length ({length}) is wrong: the file is damaged, "
                                       f"or no TFRecord")
        body = _read(file, length + _CRC_BYTES, path, where)
        if len(body) < length + _CRC_BYTES:
            raise damaged(path, where, f"the file ends within the record: {len(body)} of {length + _CRC_BYTES} bytes "
                                       f"are there")
        data = body[:length]
        if crc(data) != struct.unpack_from("<I", body, length)[0]:
            raise damaged(path, where, f"the CRC-32C of the record's {length} bytes is wrong: the file is damaged")
        yield data, where
        offset += _LENGTH_BYTES + _CRC_BYTES + length + _CRC_BYTES


def _count(file: BinaryIO, path: str) -> int:
    """Records of a file. One that is cut off counts: it is an error when it is read."""
    number = 0
    while header := _read(file, _LENGTH_BYTES + _CRC_BYTES, path, f"record {number}"):
        number += 1
        if len(header) < _LENGTH_BYTES:
            break
        length = struct.unpack_from("<Q", header)[0] + _CRC_BYTES
        try:
            file.seek(length, os.SEEK_CUR)
        except AttributeError:  # _Inflated
            _read(file, length, path, f"record {number}")
        except (OSError, OverflowError, EOFError):  # a length that is damaged
            break
    return number


def _masked_crc() -> Any:
    """CRC-32C as TFRecord stores it: turned, with a constant added."""
    try:
        from crc32c import crc32c
    except ImportError as error:
        raise ImportError("TFRecordDataset needs crc32c: apt-get install python3-crc32c, or pip install "
                          "'libcache-shm[dataset]'") from error

    def masked(data: bytes) -> int:
        crc = crc32c(data)
        return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF

    return masked


# ---- features -------------------------------------------------------------------------------------------------------


def _parsed(data: bytes, path: str, where: str) -> Any:
    example = example_class()()
    try:
        example.ParseFromString(data)
    except Exception as error:  # DecodeError, whose place differs between versions of protobuf
        raise damaged(path, where, f"the record is no tf.train.Example: {error}") from error
    return example.features.feature


_NATURAL = {"bytes_list": np.dtype(np.uint8), "float_list": np.dtype(np.float32), "int64_list": np.dtype(np.int64)}


def _natural(feature: Any, name: str, path: str, where: str) -> np.dtype:
    kind = feature.WhichOneof("kind")
    if kind is None:
        raise damaged(path, where, f"the feature {name!r} is empty, and so has no type: give a schema")
    return _NATURAL[kind]


def _value(column: Column, features: Any, path: str, where: str) -> np.ndarray:
    """A feature as the array that the column asks for."""
    if column.name not in features:
        raise damaged(path, where, f"there is no feature {column.name!r}, only {sorted(features)}")
    feature = features[column.name]
    kind = feature.WhichOneof("kind")
    if kind is None:
        values = np.empty(0, column.dtype)
    elif kind == "bytes_list":
        values = _from_bytes(column, feature.bytes_list.value, path, where)
    else:
        values = np.array(getattr(feature, kind).value, _NATURAL[kind]).astype(column.dtype)
    return _shaped(column, values, path, where)


def _from_bytes(column: Column, values: Sequence[bytes], path: str, where: str) -> np.ndarray:
    if column.dtype.kind == "U":
        try:
            return np.array([value.decode() for value in values], np.str_)
        except UnicodeDecodeError as error:
            raise damaged(path, where, f"the feature {column.name!r} is no UTF-8: {error}") from error
    width = -(-max(map(len, values), default=0) // column.dtype.itemsize) * column.dtype.itemsize
    return np.frombuffer(b"".join(value.ljust(width) for value in values), column.dtype)


def _shaped(column: Column, values: np.ndarray, path: str, where: str) -> np.ndarray:
    shape: Any = column.shape
    if shape is None:
        shape = () if column.rank == 0 else (-1,)
    try:
        return values.reshape(shape)
    except ValueError as error:
        raise damaged(path, where, f"the feature {column.name!r} has {values.size} values, and the schema's shape is "
                                   f"{list(shape)}") from error
