# SPDX-License-Identifier: Apache-2.0
"""exchange.py write|read SESSION CACHE IMAGES LABELS: the Python side of test_exchange.py; see exchange.c."""
import sys

import libcache
import numpy as np

NAMES = ("image", "label", "mean", "word")
WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def make_row(image, label):
    return image, np.int64(label), np.float32(image.sum(dtype=np.uint32)) / np.float32(image.size), WORDS[label]


def same(found, wanted):
    if isinstance(wanted, str):
        return found == wanted
    found, wanted = np.asarray(found), np.asarray(wanted)
    return found.dtype == wanted.dtype and found.shape == wanted.shape and np.array_equal(found, wanted)


def main(what, session, cache_id, images, labels):
    images = np.fromfile(images, np.uint8, offset=16).reshape(-1, 28, 28)
    labels = np.fromfile(labels, np.uint8, offset=8)
    with libcache.Client().session(int(session)).open(int(cache_id)) as cache:
        if what == "write":
            cache.names = NAMES
        assert cache.names == NAMES, cache.names
        for row_id, (image, label) in enumerate(zip(images, labels.tolist())):
            row = make_row(image, label)
            if what == "write":
                assert cache.put(row_id, *row), f"row {row_id} was there"
            else:
                found = cache[row_id]
                assert len(found) == len(row) and all(map(same, found, row)), f"row {row_id}: {found}"
    print(f"{len(labels)} rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
