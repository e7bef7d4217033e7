# SPDX-License-Identifier: Apache-2.0
"""libcache.torch.CachedLoader: the batches of DataLoader, in its order, without its way through /dev/shm."""
import gc
import os
import signal
import subprocess
import sys
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no python3-torch (make deps-torch): CachedLoader is not tested")
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, Subset, WeightedRandomSampler  # noqa: E402

import libcache  # noqa: E402
from conftest import wait_until  # noqa: E402
from libcache._rows import Gatherer  # noqa: E402
from libcache.torch import CachedDataset, CachedLoader, collate  # noqa: E402
from libcache.torch._ring import Ring  # noqa: E402
from torch_sources import Counted, Failing, Listed, Slow, doubled, equal, fails_at_0  # noqa: E402

ROWS = 60


@pytest.fixture
def source(tmp_path, server):
    return Counted(ROWS, str(tmp_path / "reads"))


def children():
    """Processes of this one that are not yet ended."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(pid) for pid in file.read().split() if is_python(pid)]


def is_python(pid):
    try:
        if "python" not in os.path.basename(os.readlink(f"/proc/{pid}/exe")):
            return False
        with open(f"/proc/{pid}/cmdline") as file:
            command = file.read()
        # Helpers of multiprocessing's start methods stay; a zombie has no command.
        return command != "" and "resource_tracker" not in command and "forkserver" not in command
    except OSError:
        return False


def wait_for_end_of_workers():
    try:
        wait_until(lambda: not children(), "end of the workers")
    except pytest.fail.Exception:
        for worker in children():
            os.kill(worker, signal.SIGABRT)  # pytest's fault handler writes what its threads are doing
        raise


def assert_same(ours, floor):
    ours, floor = list(ours), list(floor)
    assert len(ours) == len(floor) > 0
    for a, b in zip(ours, floor):
        assert equal(a, b)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("workers", range(9))
def test_the_batches_of_a_dataloader(source, session, workers, persistent, method):
    if method == "spawn" and workers not in (1, 2) or persistent and not workers:
        pytest.skip("a spawned worker imports torch, which takes seconds: 1 and 2 stand for all" if workers else "")
    cached = CachedDataset(source, session)
    options = {"batch_size": 7, "shuffle": True, "num_workers": workers, "persistent_workers": persistent}
    ours = CachedLoader(cached, **options, **({"multiprocessing_context": method} if workers else {}),
                        generator=torch.Generator().manual_seed(5))
    options.update(num_workers=0, persistent_workers=False)
    floor = DataLoader(source, **options, generator=torch.Generator().manual_seed(5))
    for epoch in range(3):
        before = source.reads
        expected = list(floor)
        read = source.reads - before
        assert_same(ours, expected)
        assert source.reads - before - read == (ROWS - 1 if epoch == 0 else 0)  # row 0 was read at the beginning
    assert len(ours) == len(floor) and len(cached.cache) == ROWS
    del ours
    gc.collect()
    wait_for_end_of_workers()


@pytest.mark.parametrize("workers", [0, 2])
def test_every_sampler(source, session, workers):
    cached = CachedDataset(source, session)
    plain = {"num_workers": workers}
    for options in ({"batch_size": 8, "drop_last": True}, {"batch_size": 8}, {},
                    {"batch_sampler": BatchSampler(SequentialSampler(range(10)), 3, False)},
                    {"batch_size": 4, "sampler": [9, 3, 3, 0]}):
        assert_same(CachedLoader(cached, **options, **plain), DataLoader(source, **options))
    torch.manual_seed(1)
    ours = list(CachedLoader(cached, 5, sampler=WeightedRandomSampler([1.0] * ROWS, 200), **plain))
    torch.manual_seed(1)
    assert_same(ours, DataLoader(source, 5, sampler=WeightedRandomSampler([1.0] * ROWS, 200)))
    from_the_end = CachedLoader(cached, 2, sampler=[-1, -ROWS, 5], **plain)
    assert [labels.tolist() for _, labels in from_the_end] == [[ROWS - 1, 0], [5]]
    part = Subset(Subset(cached, range(10, 30)), [5, 0, 19, 5])
    assert [label for _, labels in CachedLoader(part, 3, **plain) for label in labels.tolist()] == [15, 10, 29, 15]
    assert list(CachedLoader(cached, None)) and list(CachedLoader(Subset(cached, []), 4)) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_of_the_source_are_raised_at_their_batch(tmp_path, session, workers):
    """Rows 0, 3 and 7 are damaged: with batches of 2 these are the batches 0, 1 and 3; all others come."""
    source = Failing(20, str(tmp_path / "reads"))
    loader = CachedLoader(CachedDataset(source, session), 2, num_workers=workers)
    for _ in range(2):
        batches, seen, failed = iter(loader), [], 0
        while True:
            try:
                seen += next(batches)[1].tolist()
            except StopIteration:
                break
            except OSError as error:
                failed += 1
                assert "is damaged" in str(error)
        assert failed == 3 and seen == [4, 5, *range(8, 20)]


def test_an_epoch_of_hits_starts_no_worker(source, session):
    loader = CachedLoader(CachedDataset(source, session), 4, num_workers=2)
    for first in (True, False):
        workers = {worker for _ in loader for worker in children()}
        assert bool(workers) == first
        wait_for_end_of_workers()


def test_leaving_an_epoch_early(source, session):
    cached = CachedDataset(source, session)
    loader = CachedLoader(cached, 4, num_workers=2)
    for number, batch in enumerate(loader):
        if number == 2:
            break
    del batch
    gc.collect()
    wait_for_end_of_workers()
    assert_same(loader, DataLoader(source, 4))
    both = zip(loader, loader)  # two epochs at once
    assert all(equal(a, b) for a, b in both)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_killed_worker_is_an_error_of_its_epoch(session, persistent):
    cached = CachedDataset(Slow(ROWS, seconds=60), session, key="slow")
    loader = CachedLoader(cached, 4, num_workers=1, persistent_workers=persistent)
    batches = iter(loader)
    batches._prepare()
    worker, = wait_until(children, "a worker")
    os.kill(worker, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="terminated abruptly"):
        next(batches)
    cached.dataset.seconds = 0
    assert [batch.tolist() for batch in loader] == [list(range(i, i + 4)) for i in range(0, ROWS, 4)]


def test_two_epochs_at_once_have_workers_of_their_own(session):
    """That one of them ends does not take the rows that the other waits for."""
    cached = CachedDataset(Slow(ROWS, seconds=0.005), session, key="slow")
    loader = CachedLoader(cached, 4, num_workers=1)
    left = iter(loader)
    next(left)
    stays = iter(loader)
    next(stays)
    left.close()
    assert len(list(stays)) == ROWS // 4 - 1


def test_a_timeout_is_an_error_that_says_so(session):
    cached = CachedDataset(Slow(ROWS, seconds=60), session, key="slow")
    batches = iter(CachedLoader(cached, 4, num_workers=1, timeout=0.05))
    with pytest.raises(RuntimeError, match="longer timeout="):
        next(batches)
    for worker in children():
        os.kill(worker, signal.SIGKILL)


def test_an_error_of_worker_init_fn_is_passed_on(source, session):
    loader = CachedLoader(CachedDataset(source, session), 4, num_workers=1, worker_init_fn=fails_at_0)
    with pytest.raises(ZeroDivisionError):
        list(loader)


def test_workers_end_with_a_killed_trainer(server, tmp_path):
    program = """if True:
        import os, signal, sys
        from libcache.torch import CachedDataset, CachedLoader
        from torch_sources import Slow
        batches = iter(CachedLoader(CachedDataset(Slow(9, seconds=60), key="killed"), 1, num_workers=2))
        batches._prepare(), batches._prepare()  # the first row is there
        print(*[process.pid for process in batches._misses._pool._processes.values()], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)"""
    done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60)
    workers = done.stdout.split()
    assert len(workers) == 2
    wait_until(lambda: not any(is_python(pid) for pid in workers), "end of the workers")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("what", ["session", "server", "server restarted"])
def test_losing_the_cache_in_the_middle_of_an_epoch(own_server, tmp_path, what, workers):
    source = Counted(ROWS, str(tmp_path / "reads"))
    cached = CachedDataset(source)
    loader = CachedLoader(cached, 4, num_workers=workers)
    expected = list(DataLoader(Counted(ROWS, "/dev/null"), 4))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen = []
        for number, batch in enumerate(loader):
            seen.append(batch)
            if number == 3:
                if what == "session":
                    cached.cache.session.destroy()
                else:
                    libcache.Client().stop_server()
                if what == "server restarted":
                    own_server.start()
        assert_same(seen, expected)
        assert_same(loader, expected)
        if what != "server":
            before = source.reads
            assert_same(loader, expected)
            assert source.reads == before
    assert len([warning for warning in caught if warning.category is RuntimeWarning]) <= 1


def test_a_full_cache_gives_all_batches(session):
    samples = [torch.full((10_000,), i, dtype=torch.int64) for i in range(50)]
    cached = CachedDataset(Listed(samples), session, key="full", limit_bytes=2 << 20)
    for workers in (0, 2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert_same(CachedLoader(cached, 7, num_workers=workers), DataLoader(Listed(samples), 7))
    assert 5 < len(cached.cache) < 50


def test_what_cannot_be_gathered_goes_the_long_way(source, session, tmp_path):
    cached = CachedDataset(source, session, target_transform=doubled)
    for workers in (0, 1):
        assert [n for _, labels in CachedLoader(cached, 4, num_workers=workers) for n in labels.tolist()] == [
            2 * i for i in range(ROWS)]
    text = CachedDataset(Listed(["a", "b", "c"]), session, key="text")
    assert list(CachedLoader(text, 2)) == [["a", "b"], ["c"]]
    plain = CachedDataset(source, session)
    assert list(CachedLoader(plain, 30, collate_fn=len)) == [30, 30]
    ragged = CachedDataset(Listed([torch.zeros(2), torch.zeros(2), torch.zeros(3), torch.zeros(3), torch.zeros(1)]),
                           session, key="ragged")
    for _ in range(2):
        assert [batch.shape[1] for batch in CachedLoader(ragged, 2)] == [2, 3, 1]
        with pytest.raises(RuntimeError):  # as DataLoader does
            list(CachedLoader(ragged, 5))
    mixed = CachedDataset(Listed([(1, 2.0), [1, 2.0], (1.0, 2)]), session, key="mixed")
    for _ in range(2):
        assert_same(CachedLoader(mixed, 1), DataLoader(mixed.dataset, 1))
    with pytest.raises(TypeError, match="CachedDataset"):
        CachedLoader(source)


def test_a_kept_batch_is_never_overwritten(source, session):
    """However little of it is kept: a view, or what autograd saved."""
    loader = CachedLoader(CachedDataset(source, session), 4)
    list(loader)
    views = [(labels[0].item(), images[1].t()) for images, labels in loader]
    list(loader)
    assert all((view == first + 1).all() for first, view in views) and len(views) == 15


def test_memory_of_dropped_batches_is_used_again(source, session):
    loader = CachedLoader(CachedDataset(source, session), 4)
    list(loader)
    places = set()
    for images, _ in loader:
        places.add(images.data_ptr())
    assert len(places) <= loader._ahead + 2
    ring = Ring(2, False)
    specs = ((np.dtype(np.int64), (3,)),)
    first = ring.take(specs)
    place = first.arrays[0].ctypes.data
    tensor = first.tensors[0][1:]
    del first
    assert ring.take(specs).arrays[0].ctypes.data != place
    del tensor
    assert ring.take(specs).arrays[0].ctypes.data == place


def test_pinning_without_a_device_is_said(source, session):
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.warns(RuntimeWarning, match="no CUDA device"):
        loader = CachedLoader(CachedDataset(source, session), 4, pin_memory=True)
    assert_same(loader, DataLoader(source, 4))
    rows = CachedDataset(source, session).rows
    with pytest.warns(RuntimeWarning, match="no CUDA device"):
        batch = collate([rows[i] for i in range(4)], pin_memory=True)
    assert batch[1].tolist() == [0, 1, 2, 3] and not batch[0].is_pinned()


# ---- the gathering thread ------------------------------------------------------------------------------------------


def test_a_gatherer_gives_its_results_in_order(cache):
    for i in range(100):
        cache.put(i, np.full((2, 3), i, np.uint8), i)
    gatherer = Gatherer()
    with pytest.raises(ValueError, match="nothing was submitted"):
        gatherer.result()
    batches = []
    for first in range(0, 100, 10):
        outs = np.zeros((10, 2, 3), np.uint8), np.zeros(10, np.int64)
        gatherer.submit(cache, np.arange(first, first + 10), outs)
        batches.append(outs)
    for first, (images, numbers) in zip(range(0, 100, 10), batches):
        assert gatherer.result() is True
        assert numbers.tolist() == list(range(first, first + 10)) and (images[:, 1, 2] == numbers).all()
    for outs in ((np.zeros((1, 2, 3), np.uint8),), (np.zeros((1, 6), np.uint8), np.zeros(1, np.int64)),
                 (np.zeros((1, 2, 3), np.uint8), np.zeros(1, np.int32))):
        gatherer.submit(cache, [5], outs)
        assert gatherer.result() is False  # another row than that
    gatherer.submit(cache, [100], (np.zeros((1, 2, 3), np.uint8), np.zeros(1, np.int64)))
    assert gatherer.result() is False  # not there
    for wrong in ((cache, [1], []), (cache, [1], (np.zeros(2, np.int64),)), ("no cache", [1], (np.zeros(1),))):
        with pytest.raises((TypeError, ValueError)):
            gatherer.submit(*wrong)
    gatherer.submit(cache, np.arange(10), batches[0])
    del gatherer  # with a batch in flight


def test_a_gatherer_belongs_to_its_process(cache):
    cache.put(0, 1)
    gatherer = Gatherer()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            gatherer.submit(cache, [0], (np.zeros(1, np.int64),))
        except RuntimeError:
            del gatherer
            again = Gatherer()
            again.submit(cache, [0], (np.zeros(1, np.int64),))
            status = 0 if again.result() else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
