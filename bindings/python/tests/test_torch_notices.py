# SPDX-License-Identifier: Apache-2.0
"""What CachedDataset tells its user: of arguments that cannot be meant, of a server that it starts, of what is lost."""
import os
import socket
import subprocess
import sys
import threading
import time
import warnings
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="no python3-torch (make deps-torch): CachedDataset is not tested")
from torch.utils.data import DataLoader  # noqa: E402

import libcache  # noqa: E402
from libcache import _link  # noqa: E402
from libcache._counts import Stats  # noqa: E402
from libcache.torch import CachedDataset, CachedIterable, cached_loader  # noqa: E402
from conftest import WATCHDOG  # noqa: E402
from torch_sources import Counted, Listed, row_is  # noqa: E402

ROWS = 20
NO_SESSION = "4000000000"


@pytest.fixture
def source(tmp_path):
    return Counted(ROWS, str(tmp_path / "reads"))


def test_a_process_in_which_every_row_is_a_hit(session):
    """PyTorch looks for NumPy when it is first needed, which is in a function that libcache compiled. A process of its
    own, since in this one it has been found already."""
    cached = CachedDataset(Listed([(torch.full((2, 2), i), i) for i in range(4)]), session, key="hits")
    [cached[i] for i in range(4)]
    program = (f"import torch, libcache\nfrom libcache.torch import CachedDataset\n"
               f"class Sized(list):\n    def __getitem__(self, index): raise SystemExit('a miss')\n"
               f"cached = CachedDataset(Sized([0] * 4), libcache.Client().session({session.id}), key='hits')\n"
               f"print([int(cached[i][0].sum()) for i in range(4)])")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=WATCHDOG)
    assert done.stdout == "[0, 4, 8, 12]\n", done.stderr


@pytest.mark.parametrize("cache, instead", [(1234, r"int 1234; for a session's id: Client\(\)\.session\(1234\)"),
                                            ("x", r"str 'x'; for a session's name: Client\(\)\.open_session\('x'\)"),
                                            ([], r"list \[\]$")])
def test_what_is_no_cache_is_refused(server, source, cache, instead):
    for make in (lambda: CachedDataset(source, cache), lambda: CachedIterable([1], cache, key="no cache"),
                 lambda: cached_loader(cache)):
        with pytest.raises(TypeError, match="cache is a Session, a Cache or None, not " + instead):
            make()
    assert source.reads == 0


@pytest.mark.parametrize("variable, value, hint", [
    ("SESSION_ID", "99999999999", "LIBCACHE_SESSION"), ("SESSION_ID", "-5", "LIBCACHE_SESSION"),
    ("SESSION_ID", "abc", "LIBCACHE_SESSION"), ("SESSION_ID", "0", "LIBCACHE_SESSION"),
    ("LIBCACHE_SESSION", "4294967296", "cache_admin -g")])
def test_a_session_id_that_is_none_is_refused(no_server, source, monkeypatch, variable, value, hint):
    """Before a server is started, which would stay."""
    monkeypatch.setenv(variable, value)
    with pytest.raises(libcache.InvalidArgument, match=f"{variable} is '{value}'.*{hint}"):
        CachedDataset(source)
    with pytest.raises(libcache.ServerGone):
        libcache.Client()


def test_a_server_that_is_started_is_told_of(no_server, source, capfd):
    CachedDataset(source)
    info = libcache.Client().server_info()
    assert capfd.readouterr().err == (f"libcache: started a server on port {info.port} (pid {info.keeper_pid}); "
                                      f"cache_admin --stop -p {info.port} ends it\n")
    CachedDataset(source)
    assert capfd.readouterr().err == ""


def test_a_server_that_another_process_is_just_starting(no_server, source, monkeypatch, capfd):
    """Its socket is there before it serves: who asks then is the other's client, and starts none."""
    path = os.path.join(no_server.folder, f"cache_server.{no_server.port}")
    find_admin = _link._find_admin

    def begin():  # after nobody was found, before the start
        starting = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        starting.settimeout(WATCHDOG)
        starting.bind(path)
        starting.listen()
        threading.Thread(target=serve_for, args=(starting,)).start()
        return find_admin()

    def serve_for(starting):
        starting.accept()[0].close()  # cache_admin --start looks whether somebody listens
        client = starting.accept()[0]
        client.recv(4096)  # it waits for a welcome
        starting.close()
        os.unlink(path)
        no_server.start()
        client.close()
    monkeypatch.setattr(_link, "_find_admin", begin)
    cached = CachedDataset(source)
    assert cached.cache is not None and row_is(cached[3], 3)
    assert "started a server" not in capfd.readouterr().err
    assert len(libcache.Client().sessions()) == 1


def test_a_start_that_cannot_succeed_is_tried_once_and_told(no_server, source, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", no_server.port))
        taken.listen()
        tried = []
        run = subprocess.run
        monkeypatch.setattr(_link, "subprocess", SimpleNamespace(
            run=lambda *words, **options: tried.append(words) or run(*words, **options), DEVNULL=subprocess.DEVNULL))
        monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("waits for what nobody starts"))
        with pytest.warns(RuntimeWarning, match=f"said: cannot bind TCP port {no_server.port}"):
            cached = CachedDataset(source, port=no_server.port)
    assert len(tried) == 1 and row_is(cached[3], 3)


def told_by_a_job(job):
    """What a process of its own is warned of in job()."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                job()
            os.write(writer, "\n".join(str(warning.message) for warning in caught).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as file:
        told = file.read()
    os.waitpid(pid, 0)
    return told


def test_each_job_is_told_that_its_session_does_not_exist(server, source, monkeypatch):
    monkeypatch.setenv("SESSION_ID", NO_SESSION)
    for _ in range(3):
        told = told_by_a_job(lambda: (CachedDataset(source), CachedDataset(source)))
        assert told.count("\n") == 0, "one warning per job"
        assert f"SESSION_ID names session {NO_SESSION}, which does not exist; unset it, or export one" in told
        assert "until it is back" not in told  # it never will be
    with pytest.raises(libcache.NoSession, match="SESSION_ID names"):
        CachedDataset(source, required=True)


def test_ranks_of_a_job_are_told_once(server, source, monkeypatch):
    monkeypatch.setenv("SESSION_ID", NO_SESSION)

    def job():
        CachedDataset(source)
        assert told_by_a_job(lambda: CachedDataset(source)) == ""
    assert "SESSION_ID names" in told_by_a_job(job)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_session_that_is_destroyed_in_mid_epoch(server, source, workers, tmp_path, monkeypatch):
    """It is told where the rows go from then on, by whoever notices, and this process has the new cache at once."""
    log = tmp_path / "told"

    def tell(message, *rest, **more):  # workers inherit it
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{message}\n")
    cached = CachedDataset(source)
    loader = DataLoader(cached, batch_size=2, num_workers=workers)
    old = cached.cache.session
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", tell)
        for number, _ in enumerate(loader):
            if number == 1:
                old.destroy()
        new = cached.cache.session
        for _ in range(2):
            assert len(list(loader)) == ROWS // 2
    assert log.read_text(encoding="utf-8") == (f"session {old.id} was destroyed: rows are read again into "
                                               f"session {new.id} (the cache of Counted, {ROWS} rows)\n")
    assert new.id != old.id and cached.cache.session == new and len(cached.cache) == ROWS
    new.destroy()


def test_a_sampler_finds_out_for_a_process_that_reads_no_rows(server, source):
    cached = CachedDataset(source)
    cached.cache.session.destroy()
    with pytest.warns(RuntimeWarning, match="was destroyed: rows are read again"):
        assert len(cached) == ROWS
    assert row_is(cached[3], 3) and 3 in cached._link.cache
    cached.cache.session.destroy()


def test_a_lost_cache_is_none_and_comes_back(own_server, source):
    cached = CachedDataset(source)
    cached.cache.session.destroy()
    own_server.stop()
    with pytest.warns(RuntimeWarning, match="not there"):
        assert cached.cache is None
    own_server.start()
    assert cached.cache is not None


def test_what_is_lost_again_is_told_again(own_server, source):
    """Once per loss: a cache that is found again begins anew."""
    for _ in range(2):
        cached = CachedDataset(source)
        cached.cache.session.destroy()
        own_server.stop()
        with pytest.warns(RuntimeWarning, match="is not there: rows come from the source") as caught:
            assert all(row_is(cached[i], i) for _ in range(2) for i in range(1, ROWS))
        assert len(caught) == 1
        own_server.start()


def test_rows_that_do_not_fit_go_to_disk_with_spill(no_server, source, tmp_path):
    with pytest.raises(libcache.NotSupported, match="spill"):
        CachedDataset(source, spill=True)  # the server that it starts has no folder for them
    no_server.stop()
    no_server.start("-s", tmp_path)
    samples = [torch.full((10_000,), i, dtype=torch.int64) for i in range(50)]
    cached = CachedDataset(Listed(samples), key="spill", limit_bytes=2 << 20, spill=True)
    for _ in range(2):
        assert all(bool((cached[i] == i).all()) for i in range(50))
    cached.cache.flush()
    assert len(cached.cache) == 50 and cached.cache.stat().rows_spilled > 0


def test_files_and_streams_that_do_not_fit_go_to_disk_with_spill(no_server, tmp_path):
    no_server.start("-s", tmp_path)
    load = cached_loader(decode=lambda file: file.read(), limit_bytes=2 << 20, spill=True)
    stream = CachedIterable(Repeated(50), limit_bytes=2 << 20, spill=True)
    for number in range(50):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 80_000)
    for _ in range(2):
        assert all(load(tmp_path / str(i)) == bytes([i]) * 80_000 for i in range(50))
        assert [int(sample[-1]) for sample in stream] == list(range(50))
    assert sorted(int(sample[-1]) for sample in DataLoader(stream, None, num_workers=2)) == list(range(50))
    for cached in (load, stream):
        cached.cache.flush()
        assert len(cached.cache) == 50 and cached.cache.stat().rows_spilled > 0
    assert load.cache_stats() == Stats(50, 50, 50, {}) and stream.cache_stats().stored == 50


class Repeated(torch.utils.data.IterableDataset):
    """Large samples."""

    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return (torch.full((10_000,), i, dtype=torch.int64) for i in range(self.rows))


def test_warnings_show_the_line_of_the_program(session):
    samples = [torch.zeros(10_000) for _ in range(100)]
    small = CachedDataset(Listed(samples), session, key="lines", limit_bytes=2 << 20)
    with pytest.warns(RuntimeWarning, match="limit") as other_limit:
        CachedDataset(Listed(samples), session, key="lines", limit_bytes=4 << 20)
    with pytest.warns(RuntimeWarning, match="is full") as full:
        for _ in DataLoader(small, batch_size=10):
            pass
    assert [warning.filename for warning in (*other_limit, *full)] == [__file__] * 2
