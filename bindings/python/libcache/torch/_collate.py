# SPDX-License-Identifier: Apache-2.0
"""collate: batches that are gathered from shared memory at once, and the tickets that stand for their samples."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.utils.data

from ._ring import pinning

default_collate = torch.utils.data.default_collate


class Rows(torch.utils.data.Dataset):
    """The rows of a CachedDataset for `collate`: items are tickets, which collate turns into a batch at once."""

    def __init__(self, dataset: Any) -> None:  # by CachedDataset.rows
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> "Row":
        return Row((self.dataset, index))


class Row(tuple):
    """(CachedDataset, index): a sample that was not read yet."""

    __slots__ = ()


def collate(samples: Sequence[Any], pin_memory: bool = False) -> Any:
    """Makes a batch. Tickets of CachedDataset.rows are gathered from shared memory straight into the batch's tensors;
    other samples go through PyTorch's default_collate.

        DataLoader(train.rows, batch_size=64, shuffle=True, num_workers=2, collate_fn=libcache.torch.collate)
    """
    if samples and all(type(sample) is Row for sample in samples):
        dataset = samples[0][0]
        if all(sample[0] is dataset for sample in samples):
            return dataset.batch([sample[1] for sample in samples], pin_memory and pinning(pin_memory))
        samples = [dataset[index] for dataset, index in samples]
    return default_collate(samples)


def empty_column(like: np.ndarray, rows: int, pin_memory: bool) -> torch.Tensor:
    """Room for a column of a batch; in a loader's worker it lies in the memory that the worker shares with the
    trainer."""
    shape = (rows, *like.shape)
    if torch.utils.data.get_worker_info() is None:
        if not pin_memory:
            return torch.from_numpy(np.empty(shape, like.dtype))
        return torch.empty(shape, dtype=torch.from_numpy(np.empty(0, like.dtype)).dtype, pin_memory=True)
    empty = torch.from_numpy(np.empty(0, like.dtype))
    return empty.new(empty.storage()._new_shared(int(np.prod(shape)), device=empty.device)).resize_(*shape)
