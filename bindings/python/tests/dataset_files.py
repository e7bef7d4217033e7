# SPDX-License-Identifier: Apache-2.0
"""Inputs of the tests of libcache.dataset: the fixtures, where they are, and files made in the formats of the
others."""
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from conftest import ADMIN, DATA, WATCHDOG

EXAMPLES = Path(__file__).parent.parent / "examples"
FIXTURES = DATA / "fixtures"
IMAGES = FIXTURES / "testImageNetData" / "train"        # IF: 2 large pictures of one class
COCO = FIXTURES / "testCOCO"                            # 6 pictures
VOC = FIXTURES / "testVOC2012"                          # 9 ids
TF = FIXTURES / "test_tf_file_3_images"                 # 1 file, 3 records
TF4 = FIXTURES / "test_tf_file_3_images2"               # 4 files, 12 records
PK = FIXTURES / "testPK" / "data"                       # 44 pictures in 4 classes

needs_fixtures = pytest.mark.skipif(not FIXTURES.is_dir(), reason=f"no fixtures in {FIXTURES} (LIBCACHE_TEST_DATA)")


def cifar10(folder, rows=10_000, name="data_batch_1.bin"):
    """Rows whose label is row % 10 and whose pixels tell the row."""
    folder.mkdir(exist_ok=True)
    data = np.zeros((rows, 3073), np.uint8)
    data[:, 0] = np.arange(rows) % 10
    data[:, 1:] = pixels_of(np.arange(rows))[:, None]
    data[:, 1], data[:, 2] = np.arange(rows) % 256, np.arange(rows) // 256
    data.tofile(folder / name)
    return str(folder)


def cifar100(folder, rows=100):
    folder.mkdir(exist_ok=True)
    data = np.zeros((rows, 3074), np.uint8)
    data[:, 0], data[:, 1] = np.arange(rows) % 20, np.arange(rows) % 100
    data[:, 2:] = pixels_of(np.arange(rows))[:, None]
    data.tofile(folder / "train.bin")
    return str(folder)


def pixels_of(rows):
    return (rows * 7 + 3) % 251


def cifar10_row(image):
    """The row that a picture of cifar10() belongs to."""
    return int(image[0, 0, 0]) + 256 * int(image[0, 1, 0])


def mnist(folder, rows=100, part="train"):
    """Row i: label i % 10, and its first two pixels tell i."""
    folder.mkdir(exist_ok=True)
    images = np.zeros((rows, 28, 28), np.uint8)
    images[:] = (np.arange(rows) % 256)[:, None, None]
    images[:, 0, 1] = np.arange(rows) // 256
    (folder / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4I", 2051, rows, 28, 28) + images.tobytes())
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">2I", 2049, rows)
                                                       + (np.arange(rows) % 10).astype(np.uint8).tobytes())
    return str(folder)


def mnist_row(image):
    return int(image[0, 0, 0]) + 256 * int(image[0, 1, 0])


def masked_crc(data):
    from crc32c import crc32c
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def write_records(path, payloads):
    """A TFRecord file."""
    with open(path, "wb") as file:
        for data in payloads:
            length = struct.pack("<Q", len(data))
            file.write(length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data)))
    return str(path)


def example(**features):
    """A serialized tf.train.Example: lists of int, float or bytes."""
    from libcache.dataset._example import example_class
    made = example_class()()
    for name, values in features.items():
        kind = {int: "int64_list", float: "float_list", bytes: "bytes_list"}[type(values[0])]
        getattr(made.features.feature[name], kind).value.extend(values)
    return made.SerializeToString(deterministic=True)


def numbered_records(path, rows, first=0):
    """A TFRecord file whose records are {"id": [number], "text": [b"row <number>"]}."""
    numbers = range(first, first + rows)
    return write_records(path, [example(id=[number], text=[b"row %d" % number]) for number in numbers])


def hold(number):
    """A map's function that stands still at the row that $HOLD_AT names, until its process ends."""
    if os.environ.get("HOLD_AT") == str(number[0]):
        sys.stdin.read()
    return number


hold.random = False


def pictures(folder, classes=2, each=3, size=(24, 20)):
    """An ImageFolder of PNG files; the first pixel of each tells its row."""
    from PIL import Image
    row = 0
    for label in range(classes):
        os.makedirs(folder / f"class{label}", exist_ok=True)
        for number in range(each):
            array = np.full((*size, 3), 40 + label, np.uint8)
            array[0, 0] = row
            Image.fromarray(array).save(folder / f"class{label}" / f"{number}.png")
            row += 1
    return str(folder)


def rows_of(dataset, **options):
    """The rows of an epoch, as dicts of plain arrays."""
    return list(dataset.create_dict_iterator(num_epochs=1, output_numpy=True, **options))


def count(dataset):
    return sum(1 for _ in dataset.create_dict_iterator(num_epochs=1, output_numpy=True))


def same(left, right):
    """Whether two lists of rows hold the same, in the same order."""
    return len(left) == len(right) and all(
        one.keys() == two.keys() and all(one[name].dtype == two[name].dtype and np.array_equal(one[name], two[name])
                                         for name in one) for one, two in zip(left, right))


def run_example(place, script, *words):
    """What a script of examples/ says with the programs under test, on a port of its own."""
    environment = {**os.environ, "CACHE_ADMIN": str(ADMIN), "PYTHON": sys.executable, "PORT": str(place.port)}
    result = subprocess.run([str(EXAMPLES / script), *words], capture_output=True, text=True, timeout=2 * WATCHDOG,
                            env=environment, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def tables(text):
    """The rows of each --list_sessions in a text, as lists of words."""
    return [[line.split() for line in part.splitlines()[2:] if re.fullmatch(r"(\s+(\d+|n/a)){6}", line)]
            for part in text.split("Listing sessions for server on port")[1:]]
