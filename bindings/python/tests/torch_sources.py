# SPDX-License-Identifier: Apache-2.0
"""Data sets for the tests of libcache.torch, in a module of their own so that spawned workers find them."""
import os
import random
import time

import numpy as np
import torch
import torch.utils.data


class Counted(torch.utils.data.Dataset):
    """(tensor, number) by index; each read adds a byte to a file, which all processes share."""

    def __init__(self, rows, log, salt=0):
        self.rows, self.log, self.salt = rows, log, salt

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        if not 0 <= index < self.rows:
            raise IndexError(index)
        with open(self.log, "ab") as log:
            log.write(b".")
        return torch.full((3, 4), index + self.salt, dtype=torch.float32), index

    def __libcache_fingerprint__(self):  # where the log lies does not change the rows
        return self.rows, self.salt

    @property
    def reads(self):
        return os.path.getsize(self.log) if os.path.exists(self.log) else 0


class Listed(torch.utils.data.Dataset):
    """The samples of a list."""

    def __init__(self, samples):
        self.samples_list = samples

    def __len__(self):
        return len(self.samples_list)

    def __getitem__(self, index):
        return self.samples_list[index]


class Failing(Counted):
    """Raises for some indices."""

    def __getitem__(self, index):
        if index in (0, 3, 7):
            raise OSError(f"row {index} is damaged")
        return super().__getitem__(index)


class Slow(torch.utils.data.Dataset):
    """Takes its time for each row but the first."""

    def __init__(self, rows, seconds):
        self.rows, self.seconds = rows, seconds

    def __len__(self):
        return self.rows

    def __getitem__(self, index):
        if index:
            time.sleep(self.seconds)
        return index


class Streamed(torch.utils.data.IterableDataset):
    """The numbers as tensors, counted like Counted; a worker that iterates over it itself gets its share only."""

    def __init__(self, rows, log):
        self.rows, self.log = rows, log

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        for i in range(0, self.rows) if worker is None else range(worker.id, self.rows, worker.num_workers):
            with open(self.log, "ab") as log:
                log.write(b".")
            yield torch.tensor(i)

    def __libcache_fingerprint__(self):
        return self.rows

    @property
    def reads(self):
        return os.path.getsize(self.log) if os.path.exists(self.log) else 0


class NoisyStream(torch.utils.data.IterableDataset):
    """Shuffled within."""

    def __iter__(self):
        return iter([random.random(), 1])


class Noisy(torch.utils.data.Dataset):
    """A random crop inside the data set."""

    def __len__(self):
        return 10

    def __getitem__(self, index):
        return torch.tensor([index, random.random()])


def fails_at_0(worker):
    return 1 // worker


def doubled(value):
    return value * 2


def row_is(sample, index):
    image, label = sample
    return image.shape == (3, 4) and bool((image == index).all()) and label == index and type(label) is int


def equal(a, b):
    """Whether two samples are the same in type and value."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and a.tolist() == b.tolist()
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[key], b[key]) for key in a)
    return a == b
