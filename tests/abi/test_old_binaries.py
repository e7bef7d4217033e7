# SPDX-License-Identifier: Apache-2.0
"""Client, library and server of the first release, as they were compiled then, work with those of this build in every mix;
those of another major version are refused by name."""
import platform
import re
import shutil
import subprocess

import pytest

from conftest import BUILD, HERE, run

KEPT = sorted(HERE.glob(f"first-*-{platform.machine()}.tar.xz"))
OTHER_MAJOR = BUILD / "other_major"
NAMED = re.compile(r"version 9\.\d+ of libcache \((\S+)\) does not go with version 1\.\d+ of the server \((\S+)\)|"
                   r"version 1\.\d+ of libcache \((\S+)\) does not go with version 9\.\d+ of the server \((\S+)\)")


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The folder with old_client, libcache.so.1 and cache_server of the first release."""
    if not KEPT or not shutil.which("xz"):
        pytest.skip(f"no binaries of the first release for {platform.machine()}, or no xz to unpack them")
    folder = tmp_path_factory.mktemp("first")
    subprocess.run(["tar", "-C", folder, "-xf", KEPT[0]], check=True)
    unresolved = re.findall(r"(\S+) => not found", run("ldd", folder / "cache_server").stdout)
    if unresolved:
        pytest.skip(f"the first release's server needs {', '.join(unresolved)}")
    return folder


def side(first, name):
    """(library folder, server) of one side of a mix."""
    return (first, first / "cache_server") if name == "first" else (BUILD / "lib", BUILD / "bin" / "cache_server")


@pytest.mark.parametrize("server", ["first", "now"])
@pytest.mark.parametrize("writer", ["first", "now"])
@pytest.mark.parametrize("reader", ["first", "now"])
def test_the_first_releases_client_goes_on_working(first, serve, server, writer, reader):
    """Its program is always the old one; library and server are of either release."""
    folder = serve(side(first, server)[1])
    for word, library in (("put", writer), ("get", reader)):
        done = run(first / "old_client", word, "mix", LIBCACHE_DIR=folder, LD_LIBRARY_PATH=side(first, library)[0])
        assert done.returncode == 0 and done.stdout.startswith("libcache "), done.stderr


def test_the_old_client_sees_rows_that_are_not_its_own(first, serve):
    """The test above can fail: a get without its put does."""
    folder = serve(side(first, "now")[1])
    done = run(first / "old_client", "get", "nothing", LIBCACHE_DIR=folder, LD_LIBRARY_PATH=BUILD / "lib")
    assert done.returncode == 1 and "not so" in done.stderr


def test_a_new_program_works_with_the_first_releases_server(first, serve):
    folder = serve(first / "cache_server")
    done = run(BUILD / "bin" / "cache_admin", "--server_info", LIBCACHE_DIR=folder)
    assert done.returncode == 0, done.stderr


# ---- another major version -----------------------------------------------------------------------------------------------
@pytest.fixture
def other():
    if not (OTHER_MAJOR / "cache_server").exists():
        pytest.skip(f"{OTHER_MAJOR} is not built (make tests)")
    return OTHER_MAJOR


def refused(done, program, server):
    assert done.returncode != 0
    match = NAMED.search(done.stderr)
    assert match, done.stderr
    assert [path for path in match.groups() if path] == [str(program), str(server)]


def test_a_library_of_another_major_version_is_refused_by_name(serve, other):
    server, admin = BUILD / "bin" / "cache_server", BUILD / "bin" / "cache_admin"
    done = run(admin, "--list_sessions", LIBCACHE_DIR=serve(server), LD_LIBRARY_PATH=other)
    refused(done, admin, server)


def test_a_server_of_another_major_version_refuses_by_name(serve, other):
    admin = BUILD / "bin" / "cache_admin"
    done = run(admin, "--list_sessions", LIBCACHE_DIR=serve(other / "cache_server"))
    refused(done, admin, other / "cache_server")
    assert "update one" in done.stderr
