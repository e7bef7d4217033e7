# SPDX-License-Identifier: Apache-2.0
"""Client, Session, the exceptions, and that the classes say what libcache.h says."""
import ast
import dataclasses
import inspect
import pickle
import typing
import warnings
from pathlib import Path

import numpy as np
import pytest

import libcache
from libcache import _rows
from libcache._capi import ffi, lib


def test_sessions_are_made_listed_and_ended(server):
    client = libcache.Client()
    session = client.create_session()
    named = client.open_session("imagenet ☃")
    assert client.open_session("imagenet ☃").id == named.id != session.id
    session.open(3, tag="t", label="für Leute").close()
    listed = {each.id: each.name for each in client.sessions()}
    assert listed[session.id] is None and listed[named.id] == "imagenet ☃"
    stats, = session.caches()
    assert (stats.cache_id, stats.tag, stats.label) == (3, "t", "für Leute")
    named.destroy()
    session.destroy()
    assert session.id not in {each.id for each in client.sessions()}
    with pytest.raises(libcache.NoSession) as caught:
        session.destroy()
    assert isinstance(caught.value, LookupError) and caught.value.code == lib.CACHE_ENOSESSION


def test_a_session_that_is_kept(server):
    client = libcache.Client()
    with pytest.raises(libcache.NoSession):
        client.session(4_000_000_000).kept
    for kept, other in ((client.create_session(keep=True), client.create_session()),
                        (client.open_session("kept", keep=True), client.open_session("not kept"))):
        assert kept.kept and not other.kept
        kept.open(1).close()
        other.open(1).close()
        assert kept.caches()[0].kept == 1 and other.caches()[0].kept == 0
    assert client.open_session("kept").kept and client.open_session("not kept", keep=True).kept
    for name in ("kept", "not kept"):
        client.open_session(name).destroy()


def test_rows_that_do_not_fit_go_to_disk(no_server, tmp_path):
    spilling = no_server.start("-s", tmp_path)
    session = libcache.Client().create_session()
    assert libcache.Client().server_info().spill_dir.startswith(str(tmp_path)) and spilling
    with session.open(1, limit_bytes=2 << 20, spill=True) as cache:
        rows = [np.full(20_000, i, np.uint32) for i in range(100)]
        for i, row in enumerate(rows):
            assert cache.put(i, row)
        cache.flush()
        stats = cache.stat()
        assert stats.rows_spilled > 0 and stats.rows_in_memory + stats.rows_spilled == len(cache) == 100
        order = np.random.default_rng(0).permutation(100)
        kept = [cache[i][0] for i in order.tolist()]
        assert all((row == i).all() for row, i in zip(kept, order))
        assert (cache.gather(order) == np.stack([rows[i] for i in order])).all()
        assert all((row[0] == i).all() for row, i in zip(cache.get_many(order), order))
        out = np.empty((100, 20_000), np.uint32)
        assert cache._gather_rows(order, (out,)) and (out[:, -1] == order).all()
    assert all((row == i).all() for row, i in zip(kept, order))  # after close()


def test_spilling_without_a_folder_says_so(session):
    with pytest.raises(libcache.NotSupported, match="spill"):
        session.open(1, spill=True)


def test_joining_ignores_nothing_silently(session):
    with session.open(1, tag="a", limit_bytes=2 << 20):
        with pytest.raises(libcache.Conflict):
            session.open(1, tag="b")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with session.open(1) as any_tag, session.open(1, tag="a", limit_bytes=2 << 20):
                assert any_tag.stat().tag == "a"
        with pytest.warns(RuntimeWarning, match=str(session.id)) as caught:
            with session.open(1, limit_bytes=8 << 20) as other:
                assert other.stat().limit_bytes == 2 << 20
        assert len(caught) == 1 and caught[0].filename == __file__
    with pytest.raises(libcache.NotFound):
        session.open(2, create=False)
    with pytest.raises(libcache.InvalidArgument):
        session.open(3, limit_bytes=1)
    with pytest.raises(libcache.InvalidArgument):
        session.open(3, tag="t" * 65)


def test_a_read_only_handle_never_writes(session):
    with session.open(1) as writer, session.open(1, read_only=True) as reader:
        writer.put(0, 1)
        assert reader[0][0] == 1
        with pytest.raises(libcache.PermissionDenied):
            reader.put(1, 1)
        with pytest.raises(libcache.PermissionDenied):
            reader.reserve(1, ("uint8", 1))


def test_a_full_cache_says_so_and_goes_on_reading(session):
    with session.open(1, limit_bytes=1 << 20) as cache:
        stored = 0
        with pytest.raises(libcache.Full, match=".") as full:
            while True:
                cache.put(stored, bytes(10_000))
                stored += 1
        assert full.value.cause == "size"
        assert stored > 10 and len(cache) == stored
        assert len(cache.get(stored - 1)[0]) == 10_000


def test_server_info(server):
    info = libcache.Client().server_info()
    assert info.port == server.port and info.keeper_pid > 0
    assert f"{info.version_major}.{info.version_minor}.{info.version_patch}" == libcache.__version__
    assert info.memory_limit_bytes > 0 and info.backing_reason


def test_no_server_is_an_error_that_says_what_to_do(no_server):
    with pytest.raises(libcache.ServerGone, match="cache_admin --start") as caught:
        libcache.Client()
    assert isinstance(caught.value, ConnectionError) and isinstance(caught.value, libcache.Error)


def test_wrong_arguments(server):
    for options in ({"port": 80}, {"port": 70_000}, {"hostname": "127.0.0.2"}):
        with pytest.raises(libcache.InvalidArgument):
            libcache.Client(**options)
    with pytest.raises(libcache.InvalidArgument):
        libcache.Client().open_session("")
    with pytest.raises(libcache.NoSession):
        libcache.Client().session(4_000_000_000).open(1)


def test_each_code_of_the_header_has_a_class():
    codes = ffi.typeof("enum cache_error").elements.keys() - {0}
    classes = [cls for cls in libcache.Error.__subclasses__() if cls is not libcache.FingerprintError]
    assert sorted(cls.code for cls in classes) == sorted(codes)
    for cls in classes:
        copy = pickle.loads(pickle.dumps(cls("why")))
        assert type(copy) is cls and str(copy) == "why" and copy.code == cls.code
        assert getattr(libcache, cls.__name__) is cls and cls.__doc__


@pytest.mark.parametrize("struct, cls", [("cache_stats", libcache.CacheStats),
                                         ("cache_server_stats", libcache.ServerInfo)])
def test_the_result_classes_have_the_fields_of_the_header(struct, cls):
    fields = [name for name, _ in ffi.typeof(struct).fields]
    assert [field.name for field in dataclasses.fields(cls)] == fields[1:]  # without `size`


def test_everything_public_is_documented():
    for name in libcache.__all__:
        value = getattr(libcache, name)
        assert inspect.getdoc(value), name
        if inspect.isclass(value):
            for key, member in vars(value).items():
                if not key.startswith("_") and callable(member):
                    assert inspect.getdoc(member), f"{name}.{key}"
    for name in ("get", "get_many", "gather", "contains", "put"):
        assert inspect.signature(getattr(libcache.Cache, name)) and len(getattr(libcache.Cache, name).__doc__) > 80


def test_everything_public_has_type_hints():
    for name in libcache.__all__:
        value = getattr(libcache, name)
        members = [value, *vars(value).values()] if inspect.isclass(value) else [value]
        for member in filter(inspect.isfunction, members):
            if not member.__name__.startswith("_") or member.__name__ == "__init__":
                hints = typing.get_type_hints(member, localns=vars(libcache))  # each names something that exists
                missing = set(inspect.signature(member).parameters) - {"self"} - set(hints)
                assert not missing and "return" in hints, (name, member.__name__, missing)
    assert Path(libcache.__file__).with_name("py.typed").exists()


def test_the_hints_of_the_extension_module_are_those_of_what_it_has():
    stub = ast.parse(Path(_rows.__file__).with_name("_rows.pyi").read_text(encoding="utf-8"))
    described = set()
    for part in stub.body:
        if isinstance(part, (ast.ClassDef, ast.FunctionDef)):
            described.add(part.name)
        if isinstance(part, ast.ClassDef):
            described |= {f"{part.name}.{member.name}" for member in part.body}
    there = {name for name in vars(_rows) if not name.startswith("__")}
    for name in list(there):
        value = getattr(_rows, name)
        if inspect.isclass(value):
            there |= {f"{name}.{key}" for key in vars(value) if key not in ("__doc__", "__new__")}
    assert described == there


@pytest.mark.parametrize("call, message", [
    (lambda session: session.open(-1), r"cache_id -1 is not in 0\.\.4294967295"),
    (lambda session: session.open(2**32), r"cache_id 4294967296 is not in 0\.\.4294967295"),
    (lambda session: session.open(1, limit_bytes=-1), r"limit_bytes -1 is not in 0\.\."),
    (lambda session: session.open(1, expected_rows=-3), r"expected_rows -3 is not in 0\.\."),
    (lambda session: session.destroy_cache(-1), r"cache_id -1 is not in 0\.\.4294967295"),
    (lambda session: session.open(1).reserve(2**63, b""), r"row id 9223372036854775808 is not in 0\.\."),
    (lambda session: session.client.session(-1), r"session_id -1 is not in 1\.\.4294967295"),
    (lambda session: libcache.Client(-1), r"port -1 is not in 1025\.\.65535"),
])
def test_a_number_that_does_not_fit_is_refused_by_name(session, call, message):
    with pytest.raises(libcache.InvalidArgument, match=message):
        call(session)


@pytest.mark.parametrize("call, message", [
    (lambda client: client.session("a"), r"not str 'a'; for a session's name: open_session\('a'\)"),
    (lambda client: client.open_session(99999), r"not int 99999; for a session's id: session\(99999\)"),
    (lambda client: client.open_session(None, keep=True), "a session's name is a str"),
    (lambda client: client.session(1.5), "session_id is a whole number, not float 1.5"),
    (lambda client: client.create_session().open("1"), "cache_id is a whole number, not str '1'"),
])
def test_an_argument_of_another_kind_is_refused_at_once(server, call, message):
    with pytest.raises(TypeError, match=message):
        call(libcache.Client())
