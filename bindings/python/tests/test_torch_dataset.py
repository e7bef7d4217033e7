# SPDX-License-Identifier: Apache-2.0
"""libcache.torch.CachedDataset: one read of the source per row, whoever asks, and never a wrong row."""
import collections
import getpass
import inspect
import os
import pickle
import typing
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="no python3-torch (make deps-torch): CachedDataset is not tested")
from torch.utils.data import DataLoader, Subset, WeightedRandomSampler  # noqa: E402

import libcache  # noqa: E402
from libcache.torch import CachedDataset, RandomSampleError, SampleError, collate  # noqa: E402
from torch_sources import Counted, Failing, Listed, Noisy, doubled, equal, row_is  # noqa: E402

Point = collections.namedtuple("Point", "x y")
ROWS = 60


@pytest.fixture
def source(tmp_path, server):
    return Counted(ROWS, str(tmp_path / "reads"), salt=0)


def samples_of(loader):
    return [sample for batch in loader for sample in zip(batch[0], batch[1].tolist())]


def assert_epoch(loader, rows=ROWS):
    got = samples_of(loader)
    assert sorted(label for _, label in got) == list(range(rows))
    for image, label in got:
        assert (image == label).all() and image.shape == (3, 4)


def test_one_line_is_enough(server, source):
    cached = CachedDataset(source)
    for _ in range(3):
        for i in range(ROWS):
            assert row_is(cached[i], i)
    assert source.reads == ROWS + 1  # the first row is compared with itself
    assert len(cached) == ROWS and cached.salt == 0  # attributes of the source
    assert row_is(cached[-1], ROWS - 1) and row_is(cached[np.int64(3)], 3)
    for index in (ROWS, -ROWS - 1, -2 * ROWS + 1, 2**63, -2**70):
        for ask in (cached.__getitem__, lambda i: cached.__getitems__([i]), lambda i: cached.batch([i, 0])):
            with pytest.raises(IndexError):
                ask(index)
    with pytest.raises(AttributeError):
        cached.nothing
    assert row_is(CachedDataset(source)[5], 5) and source.reads == ROWS + 1  # found again
    shown = server.admin("--list_sessions", "--json", "-p", server.port).stdout
    assert cached.fingerprint in shown and getpass.getuser() in shown
    cached.cache.session.destroy()


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("workers, persistent", [(0, False), (1, False), (2, True), (4, False), (8, False)])
def test_the_source_is_read_once_per_row(source, session, workers, persistent, method):
    if method == "spawn" and workers not in (0, 2):
        pytest.skip("a spawned worker imports torch, which takes seconds: 2 stand for all, 8 are forked")
    cached = CachedDataset(source, session)
    options = {"multiprocessing_context": method} if workers else {}
    loader = DataLoader(cached, batch_size=7, shuffle=True, num_workers=workers, persistent_workers=persistent,
                        **options)
    gathering = DataLoader(cached.rows, batch_size=7, shuffle=True, num_workers=workers, collate_fn=collate, **options)
    for _ in range(3):
        assert_epoch(loader)
        assert source.reads == ROWS + 1
    assert_epoch(gathering)
    assert source.reads == ROWS + 1
    assert len(cached.cache) == ROWS


def test_everything_public_is_documented_and_has_type_hints():
    for name in libcache.torch.__all__:
        value = getattr(libcache.torch, name)
        assert inspect.getdoc(value), name
        members = [value, *vars(value).values()] if inspect.isclass(value) else [value]
        for member in members:
            member = member.fget if isinstance(member, property) else member
            if inspect.isfunction(member) and (not member.__name__.startswith("_") or member.__name__ == "__init__"):
                hints = typing.get_type_hints(member)
                assert set(inspect.signature(member).parameters) - {"self"} <= set(hints), (name, member)
                assert "return" in hints and (inspect.getdoc(member) or member.__name__ == "__init__"), (name, member)


def test_any_sampler(source, session):
    cached = CachedDataset(source, session)
    got = samples_of(DataLoader(cached, batch_size=5, sampler=WeightedRandomSampler([1.0] * ROWS, 200)))
    assert len(got) == 200 and all((image == label).all() for image, label in got)
    assert source.reads == len(cached.cache) + 1
    assert [label for _, label in samples_of(DataLoader(Subset(cached, [9, 2, 9]), batch_size=2))] == [9, 2, 9]
    left_early = iter(DataLoader(cached, batch_size=8, num_workers=2))
    assert len(next(left_early)[1]) == 8
    del left_early
    assert row_is(cached[0], 0)


def test_every_kind_of_sample_comes_back(session):
    Image = pytest.importorskip("PIL.Image", reason="python3-pil is not installed: no test of pictures")
    pictures = []
    noise = np.random.default_rng(0).integers(0, 256, (9, 13, 4), np.uint8)
    for mode in ("1", "L", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "F", "LA"):
        pictures.append(Image.fromarray(noise, "RGBA").convert("RGB").convert("L" if mode in "LAIF" else "RGB")
                        .convert(mode))
    samples = [
        (torch.arange(6).view(2, 3), 5), torch.tensor(2.5), torch.zeros(0, 3), torch.tensor([True, False]),
        torch.arange(4, dtype=torch.bfloat16), torch.tensor([1 + 2j]), torch.arange(6).view(2, 3).t(), [], (), {}, None,
        {"image": np.arange(5, dtype=np.float16), 3: ("text", b"raw\0", None, True, -1, 2.5, 1j)}, [1, [2, [3, []]]],
        np.array(["a", "bcd"]), np.array([b"xy"]), np.array([1 + 2j], np.complex64), np.arange(3, dtype=">i4"),
        np.datetime64("2020-01-01"), np.float32(1.5), np.bool_(True), np.zeros((2, 0), np.longdouble),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)), Point(1, torch.ones(2)), "", b"", "🎲" * 1000,
        float("nan"), -2**63, {"a": {"b": {"c": [None, (1,)]}}}, tuple(range(100)), *pictures]
    cached = CachedDataset(Listed(samples), session, key="kinds")
    for _ in range(2):
        for i, sample in enumerate(samples):
            got = cached[i]
            if isinstance(sample, Image.Image):
                assert (got.mode, got.size, got.tobytes()) == (sample.mode, sample.size, sample.tobytes())
                assert got.getpalette() == sample.getpalette()
            elif isinstance(sample, float):
                assert type(got) is float and got != got
            else:
                assert equal(got, sample), (i, got, sample)
    assert len(cached.cache) == len(samples)


@pytest.mark.parametrize("sample, where", [
    (("fine", {"deep": [1, object()]}), r"sample\[1\]\['deep'\]\[1\] is a builtins.object"),
    ((1, {1, 2}), r"sample\[1\] is a builtins.set"),
    (torch.ones(2, requires_grad=True), "requires_grad"),
    (torch.ones(2).to_sparse(), "sparse"),
    (2**63, "64 bits"),
    ({(1, 2): 3}, "key"),
    (np.array([object()]), "object"),
])
def test_what_cannot_be_cached_is_an_error_that_names_the_field(session, sample, where):
    with pytest.raises(SampleError, match=where):
        CachedDataset(Listed([sample]), session, key="bad")


def test_samples_are_the_callers_own(source, session):
    cached = CachedDataset(source, session)
    first = cached[4][0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = cached[4][0]
        first += 1
    assert row_is(cached[4], 4)


def test_transforms_come_after_the_cache(source, session):
    calls = []

    def crop(image):
        calls.append(1)
        return image + len(calls)

    cached = CachedDataset(source, session, transform=crop, target_transform=doubled)
    assert cached[3][0][0, 0] != cached[3][0][0, 0]
    assert cached[3][1] == 6
    batch = collate([cached.rows[1], cached.rows[2]])
    assert batch[1].tolist() == [2, 4] and batch[0].shape == (2, 3, 4)
    assert source.reads == 5  # rows 0 (twice), 3, 1 and 2
    whole = CachedDataset(source, session, sample_transform=lambda sample: {"label": sample[1]})
    assert whole[3] == {"label": 3} and source.reads == 5


def test_a_random_source_is_refused(session):
    with pytest.raises(RandomSampleError, match="transform="):
        CachedDataset(Noisy(), session)
    assert CachedDataset(Counted(0, "/dev/null"), session).cache is not None  # nothing to compare


def test_errors_of_the_source_are_passed_on_and_not_cached(tmp_path, session):
    source = Failing(20, str(tmp_path / "reads"))
    cached = CachedDataset(source, session)
    for _ in range(2):
        for i in range(20):
            if i in (0, 3, 7):
                with pytest.raises(OSError, match=f"row {i} is damaged"):
                    cached[i]
            else:
                assert row_is(cached[i], i)
    assert source.reads == 18  # 17 rows, the first of them twice
    again = CachedDataset(source, session)
    assert row_is(again[19], 19) and source.reads == 18


def test_batches_are_those_of_default_collate(session):
    samples = [{"x": torch.full((2, 2), float(i)), "y": (i, float(i), i % 2 == 0), "z": np.arange(3) + i}
               for i in range(10)]
    cached = CachedDataset(Listed(samples), session, key="batches")
    plain = torch.utils.data.default_collate([samples[i] for i in (3, 1, 3)])
    for _ in range(2):
        assert equal(collate([cached.rows[i] for i in (3, 1, 3)]), plain)
    ragged = CachedDataset(Listed([torch.zeros(2), torch.zeros(3)]), session, key="ragged")
    for _ in range(2):
        with pytest.raises(RuntimeError):  # as without a cache
            collate([ragged.rows[0], ragged.rows[1]])
    assert equal(collate([samples[0], samples[1]]), torch.utils.data.default_collate(samples[:2]))


def test_it_pickles_small(source, session):
    cached = CachedDataset(source, session)
    assert row_is(cached[2], 2)
    packed = pickle.dumps(cached)
    assert len(packed) < 4096
    copy = pickle.loads(packed)
    assert row_is(copy[2], 2) and row_is(copy[5], 5) and row_is(cached[5], 5)
    assert source.reads == 4


def test_another_source_is_another_cache(tmp_path, session):
    log = str(tmp_path / "reads")
    for salt in (0, 1):
        cached = CachedDataset(Counted(5, log, salt), session)
        assert [float(cached[i][0][0, 0]) for i in range(5)] == [i + salt for i in range(5)]
    assert len(session.caches()) == 2
    mine = session.open(77)
    CachedDataset(Counted(5, log, 0), mine)
    with pytest.raises(libcache.Conflict, match="something else"):
        CachedDataset(Counted(5, log, 1), mine)


def test_an_id_that_another_data_set_has_is_left_to_it(tmp_path, session):
    """32 bits of the fingerprint name the cache: of two that agree in them the later one takes the next id."""
    source = Counted(3, str(tmp_path / "reads"))
    mine = CachedDataset(source, session).cache.cache_id
    other = session.client.create_session()
    try:
        other.open(mine, tag="another data set").put(0, b"its row")
        cached = CachedDataset(source, other)
        assert [float(cached[i][0][0, 0]) for i in range(3)] == [0, 1, 2]
        assert cached.cache.cache_id == (mine + 1) % 2**32
        assert sorted(stats.rows_in_memory for stats in other.caches()) == [1, 3]
    finally:
        other.destroy()


@pytest.mark.parametrize("key", ["图像数据集" * 40, "x" * 300, "ab" + "🎲" * 100, "\udc80\0" * 9, "中文"],
                         ids=["Chinese", "ASCII", "dice", "no UTF-8", "short"])
def test_a_label_in_any_script_is_kept_as_far_as_it_goes(session, key):
    cached = CachedDataset(Listed([1]), session, key=key)
    (label,) = [info.label for info in session.caches()]
    whole = f"Listed, 1 rows, key {key}"
    assert len(label.encode()) <= 255 and cached.cache is not None
    if len(whole.encode(errors="replace")) > 255:
        assert label.endswith("…") and whole.startswith(label[:-1]) and len(label.encode()) > 255 - 4
    else:
        assert label == whole.encode(errors="replace").decode().replace("\0", " ")


def test_verify_stat_notices_a_changed_file(tmp_path, session):
    paths = [str(tmp_path / f"{i}") for i in range(4)]
    for i, path in enumerate(paths):
        with open(path, "w") as file:
            file.write(str(i))

    class Files(Listed):
        def __getitem__(self, index):
            with open(self.samples_list[index]) as file:
                return file.read()

    def make():
        return CachedDataset(Files(paths), session, verify="stat", files=paths.__getitem__)
    cached = make()
    for _ in range(2):
        assert [cached[i] for i in range(4)] == ["0", "1", "2", "3"]
    with open(paths[2], "w") as file:
        file.write("changed")
    assert cached[2] == "2"  # a file is looked at when its row is first read in a process
    assert [make()[i] for i in range(4)] == ["0", "1", "changed", "3"]
    with pytest.raises(ValueError, match="files="):
        CachedDataset(Files(paths), session, verify="stat")


# ---- without a server, and with one that goes ----------------------------------------------------------------------


def test_a_server_is_started_once_however_many_ask(no_server, tmp_path):
    ranks = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                cached = CachedDataset(Counted(10, str(tmp_path / "reads")))
                status = 0 if cached.cache is not None and row_is(cached[3], 3) else 1
            finally:
                os._exit(status)
        ranks.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks] == [0] * 4
    assert len(libcache.Client().sessions()) == 1


def test_the_environment_names_the_session(server, source, monkeypatch):
    client = libcache.Client()
    by_id, by_name = client.create_session(), client.open_session("by name")
    monkeypatch.setenv("SESSION_ID", str(by_id.id))
    assert CachedDataset(source).cache.session.id == by_id.id
    monkeypatch.setenv("LIBCACHE_SESSION", "by name")
    assert CachedDataset(source).cache.session.id == by_name.id
    for session in (by_id, by_name):
        session.destroy()


def test_without_a_cache_it_is_the_source(no_server, tmp_path, monkeypatch):
    source = Counted(10, str(tmp_path / "reads"))
    monkeypatch.setenv("SESSION_ID", "4000000000")  # no session has this id
    with pytest.warns(RuntimeWarning, match="cannot be opened"):
        cached = CachedDataset(source)
    for _ in range(2):
        assert [cached[i][1] for i in range(10)] == list(range(10))
    assert source.reads == 20
    with pytest.raises(libcache.NoSession):
        CachedDataset(source, required=True)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("what", ["session", "server", "server restarted"])
def test_losing_the_cache_in_the_middle_of_an_epoch(own_server, tmp_path, what, workers):
    """The epoch goes on with the right rows, and one warning; the next one caches again where it can."""
    source = Counted(ROWS, str(tmp_path / "reads"))
    cached = CachedDataset(source)
    loader = DataLoader(cached, batch_size=4, num_workers=workers)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        seen = []
        for number, (images, labels) in enumerate(loader):
            assert all((image == label).all() for image, label in zip(images, labels))
            seen += labels.tolist()
            if number == 3:
                if what == "session":
                    cached.cache.session.destroy()
                else:
                    libcache.Client().stop_server()
                if what == "server restarted":
                    own_server.start()
        assert seen == list(range(ROWS))
        assert_epoch(loader)
        if what != "server":  # it is there again: this epoch, the third, must find what the second stored
            assert_epoch(loader)
            before = source.reads
            assert_epoch(loader)
            assert source.reads == before
    assert len([warning for warning in caught if warning.category is RuntimeWarning]) <= 1


def test_a_lost_cache_is_tried_again_when_an_epoch_was_asked_for(own_server, tmp_path):
    """Not for every row, which would take as long as a server takes to refuse; and though no row comes twice."""
    cached = CachedDataset(Counted(ROWS, str(tmp_path / "reads")))
    cached.cache.session.destroy()
    own_server.stop()
    with pytest.warns(RuntimeWarning, match="not there"):
        cached[1]  # with this one it is lost
    own_server.start()
    others = [i for i in range(ROWS) if i != 1]
    for i in [*others, others[0]]:  # the rest of this epoch, and the first row of the next
        assert not libcache.Client().sessions()
        assert row_is(cached[i], i)
    assert row_is(cached[others[1]], others[1])
    assert libcache.Client().sessions() and others[1] in cached._link.cache


class Given(torch.utils.data.Sampler):
    """The indices of each epoch, as given."""

    def __init__(self, *epochs):
        self.epochs = iter(epochs)

    def __iter__(self):
        return iter(next(self.epochs))


def test_a_worker_tries_a_lost_cache_again_after_its_share_of_an_epoch(own_server, tmp_path):
    """Workers that live on do not see an epoch begin, and a sampler need not come back to the row that was lost."""
    cached = CachedDataset(Counted(ROWS, str(tmp_path / "reads")))
    workers, first = 2, list(range(ROWS))
    loader = DataLoader(cached, sampler=Given(first, first[2:]), num_workers=workers, persistent_workers=True)
    cached.cache.session.destroy()
    own_server.stop()
    assert len(list(loader)) == ROWS  # batches of one row: each worker lost the cache with its first
    own_server.start()
    assert [int(label) for _, label in loader] == first[2:]
    [stats] = libcache.Client().sessions()[0].caches()
    assert stats.rows_in_memory > ROWS // 2  # nearly the whole epoch, by both


def test_hits_go_on_without_a_server(own_server, tmp_path):
    source = Counted(ROWS, str(tmp_path / "reads"))
    cached = CachedDataset(source)
    assert_epoch(DataLoader(cached, batch_size=4))
    libcache.Client().stop_server()
    assert_epoch(DataLoader(cached, batch_size=4))
    assert_epoch(DataLoader(cached, batch_size=4, num_workers=2))
    assert source.reads == ROWS + 1


def test_a_full_cache_keeps_what_it_has(session):
    samples = [torch.full((10_000,), i, dtype=torch.int64) for i in range(50)]
    cached = CachedDataset(Listed(samples), session, key="full", limit_bytes=2 << 20)
    with pytest.warns(RuntimeWarning, match="full") as caught:
        for _ in range(3):
            for i in range(50):
                assert cached[i][0] == i
    assert len(caught) == 1 and 5 < len(cached.cache) < 50
    required = CachedDataset(Listed(samples), session, key="full", required=True)
    with pytest.raises(libcache.Full):
        [required[i] for i in range(50)]
