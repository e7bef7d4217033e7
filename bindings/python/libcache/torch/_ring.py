# SPDX-License-Identifier: Apache-2.0
"""Ring: the memory of batches, used again once nobody holds a tensor of theirs."""
from __future__ import annotations

import sys
import warnings
from typing import NamedTuple

import numpy as np
import torch

Spec = tuple[np.dtype, tuple[int, ...]]  # dtype and shape of a column of a whole batch

# References to an array of the ring while nobody uses it: the ring's tuple, the loop's variable, getrefcount's argument
_IDLE = 3


class Slot(NamedTuple):
    """Room for one batch, an array and a tensor of the same memory per column."""

    arrays: tuple[np.ndarray, ...]
    tensors: tuple[torch.Tensor, ...]


class Ring:
    """Memory that was written before costs no page faults. A tensor made of an array holds a reference to it for as
    long as anything shows its memory (the tensor, a view of it, what autograd saved): that count tells when a batch is
    free. So a batch that is kept is never overwritten; the ring makes more memory then.

    Pinned batches are not kept here: a copy to the device may still read one that nobody holds. PyTorch's own
    allocator of pinned memory, which knows of such copies, is their ring.
    """

    def __init__(self, slots: int, pinned: bool) -> None:
        self._limit, self._pinned = slots, pinned
        self._slots: list[tuple[tuple[Spec, ...], tuple[np.ndarray, ...]]] = []

    def take(self, specs: tuple[Spec, ...]) -> Slot:
        """A free slot. TypeError for a dtype that PyTorch has not."""
        if self._pinned:
            tensors = tuple(torch.empty(shape, dtype=torch.from_numpy(np.empty(0, dtype)).dtype, pin_memory=True)
                            for dtype, shape in specs)
            return Slot(tuple(tensor.numpy() for tensor in tensors), tensors)
        arrays = self._idle(specs)
        if arrays is None:
            arrays = tuple(np.empty(shape, dtype) for dtype, shape in specs)
            self._slots.append((specs, arrays))
            del self._slots[:-self._limit]
        return Slot(arrays, tuple(torch.from_numpy(array) for array in arrays))

    def _idle(self, specs: tuple[Spec, ...]) -> "tuple[np.ndarray, ...] | None":
        for made_for, arrays in self._slots:
            if made_for == specs and all(sys.getrefcount(array) == _IDLE for array in arrays):
                return arrays
        return None


def pinning(asked: bool) -> bool:
    """Whether batches can be pinned, if that is asked for."""
    if asked and not torch.cuda.is_available():
        warnings.warn("pin_memory=True, but there is no CUDA device: batches lie in ordinary memory", RuntimeWarning,
                      stacklevel=3)
        return False
    return asked
