# SPDX-License-Identifier: Apache-2.0
"""Batches that workers of CachedLoader make whole: transforms, collate_fn, text; handed over outside /dev/shm."""
import collections
import gc
import os
import random
import signal
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no python3-torch (make deps-torch): CachedLoader is not tested")
from torch.utils.data import DataLoader, Subset, default_collate  # noqa: E402

import libcache  # noqa: E402
from conftest import wait_until  # noqa: E402
from libcache.torch import CachedDataset, CachedLoader  # noqa: E402
from libcache.torch._handover import Handed, Slots, hand_over  # noqa: E402
from test_torch_loader import assert_same, children, wait_for_end_of_workers  # noqa: E402
from torch_sources import Counted, Failing, Listed, Slow, doubled, equal, fails_at_0  # noqa: E402

ROWS = 60


@pytest.fixture
def source(tmp_path, server):
    return Counted(ROWS, str(tmp_path / "reads"))


def plus_one(image):
    return image + 1


def jittered(image):
    return image + torch.rand(1) + random.random() + np.random.rand()


def with_names(samples):
    """A batch that is not only tensors."""
    images, labels = default_collate(samples)
    return {"images": images, "labels": labels, "names": [f"row {label}" for _, label in samples],
            "array": np.arange(3), "nothing": None, "empty": torch.zeros(0, 2), "half": images.to(torch.bfloat16)}


def files_of_dev_shm():
    """But those of multiprocessing itself: semaphores, and the number that tells workers apart."""
    with open("/proc/self/maps") as maps:
        return [line for line in maps if "/dev/shm" in line and "/sem." not in line and "/pym-" not in line]


def collate_that_looks(samples):
    """In a worker."""
    batch = default_collate(samples)
    assert files_of_dev_shm() == []
    return batch


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_batches_of_a_dataloader(source, session, workers, persistent, method):
    if method == "spawn" and (workers != 2 or persistent):
        pytest.skip("a spawned worker imports torch, which takes seconds: 2 stand for all")
    cached = CachedDataset(source, session, transform=plus_one, target_transform=doubled)
    options = {"batch_size": 7, "shuffle": True}
    ours = CachedLoader(cached, num_workers=workers, persistent_workers=persistent, multiprocessing_context=method,
                        collate_fn=with_names, generator=torch.Generator().manual_seed(5), **options)
    floor = DataLoader(Listed([(image + 1, 2 * label) for image, label in source]), collate_fn=with_names,
                       generator=torch.Generator().manual_seed(5), **options)
    before = source.reads
    for _ in range(3):
        assert_same(ours, floor)
    assert source.reads - before == ROWS - 1 and len(cached.cache) == ROWS
    del ours
    gc.collect()
    wait_for_end_of_workers()


def test_nothing_passes_through_dev_shm(source, session):
    gathered = CachedLoader(CachedDataset(source, session), 4, shuffle=True, num_workers=2)
    for _ in ("misses, which workers read", "hits"):
        kept = list(gathered)
        assert files_of_dev_shm() == [] and len(kept) == 15
    cached = CachedDataset(source, session, transform=plus_one)
    for options in ({"shuffle": True}, {"collate_fn": with_names}, {"collate_fn": collate_that_looks}):
        kept = list(CachedLoader(cached, 4, num_workers=2, **options))
        assert files_of_dev_shm() == [] and len(kept) == 15
    kept = list(DataLoader(cached, 4, num_workers=2))
    assert len(files_of_dev_shm()) > 0, "this test would not see it"
    del kept


def test_text_parts_of_samples_and_subclasses(source, session):
    text = CachedDataset(Listed(["a", "b", "c"]), session, key="text")
    assert list(CachedLoader(text, 2, num_workers=1)) == [["a", "b"], ["c"]]
    careful = CachedDataset(source, session, verify="stat", files=lambda index: "/dev/null")
    part = range(9, 40)
    assert_same(CachedLoader(Subset(careful, part), 4, num_workers=2), DataLoader(Subset(source, part), 4))
    tripled = Tripled(source, session)
    for workers in (0, 2):
        got = [n for _, labels in CachedLoader(tripled, 4, num_workers=workers) for n in labels.tolist()]
        assert got == [3 * i for i in range(ROWS)]
    with pytest.raises(TypeError, match="not a Reversed"):
        CachedLoader(Reversed(tripled, range(5)))


class Tripled(CachedDataset):
    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        return image, 3 * label


class Reversed(Subset):
    def __getitem__(self, index):
        return super().__getitem__(len(self) - 1 - index)


def test_random_transforms_are_the_same_with_any_number_of_workers(source, session):
    cached = CachedDataset(source, session, transform=jittered)
    epochs = []
    for workers in (1, 3):
        torch.manual_seed(3)
        loader = CachedLoader(cached, 4, shuffle=True, num_workers=workers, persistent_workers=True)
        epochs.append([list(loader), list(loader)])
    assert all(equal(a, b) for a, b in zip(epochs[0], epochs[1]))
    images = torch.cat([images for epoch in epochs[0] for images, _ in epoch]) % 1
    assert len(set(images.flatten(1)[:, 0].tolist())) > 2 * ROWS - 5  # each sample, in each epoch, another one


def test_errors_are_raised_at_their_batch(tmp_path, session):
    cached = CachedDataset(Failing(20, str(tmp_path / "reads")), session, transform=plus_one)
    loader = CachedLoader(cached, 2, num_workers=2)
    for _ in range(2):
        batches, seen, failed = iter(loader), [], 0
        while True:
            try:
                seen += next(batches)[1].tolist()
            except StopIteration:
                break
            except OSError as error:
                failed += 1
                assert "is damaged" in str(error) and "CachedLoader worker process" in str(error)
        assert failed == 3 and seen == [4, 5, *range(8, 20)]
    with pytest.raises(ZeroDivisionError):
        list(CachedLoader(cached, 4, num_workers=1, worker_init_fn=fails_at_0))
    with pytest.raises(RuntimeError, match="equal size|stack"):
        list(CachedLoader(CachedDataset(Listed([torch.zeros(2), torch.zeros(3), "text"]), session, key="ragged"), 2,
                          num_workers=1))


def test_a_killed_worker_and_a_batch_that_takes_too_long(session):
    cached = CachedDataset(Slow(ROWS, seconds=60), session, key="slow", transform=doubled)
    loader = CachedLoader(cached, 4, num_workers=1)
    batches = iter(loader)
    batches._prepare()
    worker, = wait_until(children, "a worker")
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="terminated abruptly"):
        next(batches)
    late = iter(CachedLoader(cached, 4, num_workers=1, timeout=0.05))
    with pytest.raises(RuntimeError, match="longer timeout="):
        next(late)
    for worker in children():
        os.kill(worker, signal.SIGKILL)
    cached.dataset.seconds = 0
    assert [batch.tolist() for batch in loader] == [[2 * n for n in range(i, i + 4)] for i in range(0, ROWS, 4)]


def test_leaving_an_epoch_early(source, session):
    loader = CachedLoader(CachedDataset(source, session, transform=plus_one), 4, num_workers=2, persistent_workers=True)
    floor = [[images + 1, labels] for images, labels in DataLoader(source, 4)]
    for _ in range(4):
        for number, _ in enumerate(loader):
            if number == 2:
                break
    assert_same(loader, floor)
    both = zip(loader, loader, floor)  # two epochs at once
    assert all(equal(a, c) and equal(b, c) for a, b, c in both)


@pytest.mark.parametrize("what", ["session", "server"])
def test_losing_the_cache_in_the_middle_of_an_epoch(own_server, tmp_path, what):
    source = Counted(ROWS, str(tmp_path / "reads"))
    cached = CachedDataset(source, transform=plus_one)
    loader = CachedLoader(cached, 4, num_workers=2)
    expected = [[images + 1, labels] for images, labels in DataLoader(Counted(ROWS, "/dev/null"), 4)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen = []
        for batch in loader:
            seen.append(batch)
            if len(seen) == 3:
                cached.cache.session.destroy() if what == "session" else libcache.Client().stop_server()
        assert_same(seen, expected)
        assert_same(loader, expected)
    assert len([warning for warning in caught if warning.category is RuntimeWarning]) <= 1


# ---- the slots -----------------------------------------------------------------------------------------------------


def test_a_kept_batch_is_never_overwritten(source, session):
    """However little of it is kept, and also when all of them are."""
    loader = CachedLoader(CachedDataset(source, session, transform=plus_one), 4, num_workers=1)
    list(loader)
    views = [(labels[0].item(), images[1].t()) for images, labels in loader]
    everything = list(loader)
    list(loader)
    assert all((view == first + 2).all() for first, view in views) and len(views) == 15
    assert [labels.tolist() for _, labels in everything] == [list(range(i, i + 4)) for i in range(0, ROWS, 4)]
    everything[0][0].add_(1)  # the caller's own


def test_memory_of_dropped_batches_is_used_again(source, session):
    loader = CachedLoader(CachedDataset(source, session, transform=plus_one), 4, num_workers=1)
    list(loader)
    places = collections.Counter()
    for images, _ in loader:
        places[images.data_ptr()] += 1
    assert len(places) <= loader._ahead + 2 and max(places.values()) > 1
    with open("/proc/self/maps") as maps:
        assert sum("libcache-batch" in line for line in maps) <= loader._ahead + 2
    del images, _, loader
    gc.collect()
    with open("/proc/self/maps") as maps:
        assert not any("libcache-batch" in line for line in maps)
    assert not any("libcache-batch" in os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
                   if os.path.islink(f"/proc/self/fd/{fd}"))


def test_slots_of_batches_that_grow(server):
    slots = Slots(2, 0)
    for n in (10, 11, 1000, 100_000, 3):
        batch = [torch.arange(n), np.arange(n, dtype=np.uint8), np.arange(9)[::2], "text"]
        for _ in range(3):
            slot = slots.take()
            handed = hand_over(batch, slot.place if slot is not None else None)
            got = slots.unpack(slot, handed)
            assert equal(got, batch)
            fits = slot is not None and slot.place.bytes >= handed.bytes
            assert fits == (handed.spans is not None)
            got[0][0] = 5
            del got
        assert fits and len(handed.packed) < 1000  # the numbers are in the slot
    kept = []
    for number in range(4):
        slot = slots.take()
        assert (slot is None) == (number >= 2)
        kept.append(slots.unpack(slot, hand_over(torch.full((3,), number), slot.place if slot is not None else None)))
    assert [tensor.tolist() for tensor in kept] == [[number] * 3 for number in range(4)]
    nowhere = slots.unpack(None, Handed(hand_over({"a": 1}, None).packed, None, 0))
    assert nowhere == {"a": 1}


def test_a_worker_that_is_late_does_not_write_into_the_slot_of_the_next_epoch(server):
    left = Slots(1, 4096).take()
    late = left.place
    del left  # its epoch was left
    slots = Slots(1, 4096)
    slot = slots.take()
    assert slot.place.path == late.path
    assert hand_over(torch.full((9,), 7), late).spans is None
    assert bytes(slot.memory) == bytes(4096)
    assert slots.unpack(slot, hand_over(torch.full((9,), 8), slot.place)).tolist() == [8] * 9
