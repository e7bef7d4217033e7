# SPDX-License-Identifier: Apache-2.0
"""Handover: batches that a worker has made, given to the trainer in memory that both have mapped.

DataLoader's workers put each tensor into a file in /dev/shm, which containers keep small. Here the trainer owns a few
memfds, the slots, that belong to no mounted file system; a worker writes a batch's numbers into one, and says the rest
through a pipe. A slot is free again when no tensor or array shows its memory any more.
"""
from __future__ import annotations

import collections
import ctypes
import io
import itertools
import mmap
import os
import pickle
import weakref
from typing import Any, NamedTuple, Optional

import torch

_ALIGN = 64  # of each tensor, a cache line


class Place(NamedTuple):
    """Of a slot, as a worker finds it."""

    path: str
    inode: int  # tells slots apart that had the same path
    bytes: int


class Handed(NamedTuple):
    """A batch."""

    packed: bytes
    spans: Optional[list[tuple[int, int]]]  # (offset, bytes) in the slot of each buffer; None: they are in `packed`
    bytes: int                              # that a slot needs to have for such a batch


# ---- in the trainer --------------------------------------------------------------------------------------------------


class Slot:
    """Memory of the trainer, for one batch at a time."""

    def __init__(self, size: int) -> None:
        fd = os.memfd_create("libcache-batch", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, fd)
        os.ftruncate(fd, size)
        self.memory = mmap.mmap(fd, size)
        self.place = Place(f"/proc/{os.getpid()}/fd/{fd}", os.fstat(fd).st_ino, size)


class Slots:
    """Those of one epoch, at most `limit`. size: of a slot, as far as it is known."""

    def __init__(self, limit: int, size: int) -> None:
        self.size = size
        self._left = limit
        self._free: collections.deque[Slot] = collections.deque()

    def take(self) -> Optional[Slot]:
        """A slot that nobody uses. None: batches are sent through the pipe whole, since it is not known yet how large
        they are, because so many of them are kept, or because there is no memory or descriptor for one more."""
        while self._free:
            slot = self._free.popleft()
            if slot.place.bytes >= self.size:
                return slot
            self._left += 1  # too small by now
        if self._left == 0 or self.size == 0:
            return None
        try:
            slot = Slot(self.size)
        except OSError:
            return None
        self._left -= 1
        return slot

    def unpack(self, slot: Optional[Slot], handed: Handed) -> Any:
        """The batch. Its arrays and tensors are in the slot, which is in use for as long as they live."""
        if slot is None or handed.spans is None:
            if handed.bytes > self.size:
                self.size = -(-handed.bytes * 5 // 4 // mmap.PAGESIZE) * mmap.PAGESIZE  # the next ones may be larger
            self.give_back(slot)
            return pickle.loads(handed.packed)
        lease = (ctypes.c_ubyte * slot.place.bytes).from_buffer(slot.memory)
        weakref.finalize(lease, self._free.append, slot).atexit = False
        memory = memoryview(lease).cast("B")
        return pickle.loads(handed.packed, buffers=[memory[at:at + n] for at, n in handed.spans])

    def give_back(self, slot: Optional[Slot]) -> None:
        """One in which nothing was handed over."""
        if slot is not None:
            self._free.append(slot)


# ---- in a worker -----------------------------------------------------------------------------------------------------

_mapped: dict[str, tuple[int, mmap.mmap]] = {}  # by path, with the inode


def hand_over(batch: Any, place: Optional[Place]) -> Handed:
    """Writes the numbers of a batch to the place, if they fit."""
    buffers: list[pickle.PickleBuffer] = []
    packed = _pack(batch, buffers.append)
    parts = [buffer.raw() for buffer in buffers]
    ends = list(itertools.accumulate(-(-len(part) // _ALIGN) * _ALIGN for part in parts))
    needed = ends[-1] if ends else 0
    memory = _memory(place) if place is not None and needed <= place.bytes else None
    if memory is None:
        return Handed(_pack(batch, None), None, needed)
    spans = [(at, len(part)) for at, part in zip([0, *ends], parts)]
    for (at, size), part in zip(spans, parts):
        memory[at:at + size] = part
    return Handed(packed, spans, needed)


def _memory(place: Place) -> Optional[mmap.mmap]:
    inode, memory = _mapped.get(place.path, (-1, None))
    if inode != place.inode:
        try:
            fd = os.open(place.path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:  # a trainer that forbids to look at it, or an epoch that was left
            return None
        try:
            # The slots of an epoch that was left are gone while a worker may still be at its batches, and a slot of
            # the next epoch may have the path: it must not get their rows.
            if os.fstat(fd).st_ino != place.inode:
                return None
            memory = mmap.mmap(fd, place.bytes)
        finally:
            os.close(fd)
        _mapped[place.path] = place.inode, memory
    return memory


class _Pickler(pickle.Pickler):
    """Plain tensors as the arrays that they are: those can be pickled without their numbers."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not torch.Tensor:
            return NotImplemented
        try:
            return torch.from_numpy, (value.numpy(),)
        except (TypeError, RuntimeError):  # what NumPy cannot show: of a device, sparse, with a gradient, bfloat16
            return NotImplemented


def _pack(batch: Any, buffer_callback: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL, buffer_callback=buffer_callback).dump(batch)
    return file.getvalue()
