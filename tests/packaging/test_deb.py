# SPDX-License-Identifier: Apache-2.0
"""`make deb`: the packages install, run and purge in a copy of the system that lies over it (an overlay in a mount
namespace of its own), and nothing of them is left."""
import os
import re
import shutil
import subprocess

import pytest

from conftest import BUILD, ENVIRONMENT, ROOT, make, must_run, needs, run

pytestmark = needs("dpkg-deb", "dpkg-shlibdeps", "dpkg-gensymbols")
PACKAGES = ("libcache1", "libcache-dev", "libcache-tools")

IN_THE_COPY = r"""
set -eu
cd /
dpkg -i "$PACKAGES_IN"/*.deb >/dump/installing 2>&1
dpkg --status libcache1 libcache-dev libcache-tools | grep -c '^Status: install ok installed$'
dpkg --audit
gcc -std=c11 "$SOURCE" -lcache -o /dump/user
LIBCACHE_DIR=/dump/server cache_admin --run -- /dump/user
ldd /usr/bin/cache_admin | grep -o '/[^ ]*libcache.so.1'
dpkg --purge libcache-tools libcache-dev libcache1 >/dump/purging 2>&1
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """A folder with the packages, made in a build folder of their own from the programs of the build."""
    folder = tmp_path_factory.mktemp("deb")
    for name in ("bin", "lib", "obj"):
        os.symlink(BUILD / name, folder / name)
    make("deb", build=folder, environment={"DEBFULLNAME": "A Tester", "DEBEMAIL": "tester@debian.org"})
    return folder / "deb"


def unpacked(packages, name, folder):
    (package,) = packages.glob(f"{name}_*.deb")
    must_run("dpkg-deb", "-R", package, folder)
    return folder


def test_there_are_three_packages_and_nothing_else(packages):
    assert {path.name.split("_")[0] for path in packages.iterdir()} == set(PACKAGES)


def test_each_package_says_what_it_needs(packages):
    needs_of = {name: must_run("dpkg-deb", "-f", next(packages.glob(f"{name}_*.deb")), "Depends") for name in PACKAGES}
    assert "libc6" in needs_of["libcache1"] and "libcache1 (=" in needs_of["libcache-dev"]
    assert "libcache1 (=" in needs_of["libcache-tools"] and "libspdlog" in needs_of["libcache-tools"]


def test_other_packages_learn_which_version_they_need(packages, tmp_path):
    symbols = (unpacked(packages, "libcache1", tmp_path / "lib") / "DEBIAN" / "symbols").read_text()
    since = {node: text for node, text in re.findall(r"^LIBCACHE_([\d.]+) {(.*?)^}", (ROOT / "capi" / "libcache.map").read_text(), re.M | re.S)}
    assert "cache_put;" in since["1.0"]
    for node, text in since.items():
        for name in re.findall(r"^\s+(cache_\w+);", text, re.M):
            version = re.search(rf"^ {name}@LIBCACHE_{re.escape(node)} ([\d.]+)$", symbols, re.M)
            assert version, f"{name}@LIBCACHE_{node}"
            assert version[1] == node or version[1] in next(packages.glob("libcache1_*.deb")).name, version[0]


def test_files_have_the_modes_that_they_should(packages, tmp_path):
    tools = unpacked(packages, "libcache-tools", tmp_path / "tools")
    for path in tools.rglob("*"):
        mode = path.stat().st_mode & 0o7777
        assert mode == (0o755 if path.is_dir() or path.parent.name == "bin" else 0o644), path
    for program in (tools / "usr" / "bin").iterdir():
        assert not re.search("R(UN)?PATH", must_run("readelf", "-d", program)), "a package's programs need no search path"


@needs("lintian")
def test_lintian_finds_nothing(packages):
    done = run("lintian", "--allow-root", "--fail-on", "error,warning", *packages.glob("*.deb"))
    assert done.returncode == 0, done.stdout + done.stderr


def in_an_overlay(script, scratch, environment):
    """Runs a shell script in a copy of / whose changes end up in scratch/upper. Skips where that is not allowed."""
    # upper and work may not lie on an overlay themselves: a tmpfs can hold both
    mounts = """mount -t tmpfs none "$0" && mkdir "$0/upper" "$0/work" "$0/root" && mkdir "$0/upper/dump" &&
        mount -t overlay none -o "lowerdir=/,upperdir=$0/upper,workdir=$0/work" "$0/root" &&
        mount --bind /proc "$0/root/proc" && mount --bind /dev "$0/root/dev" && mount --bind /tmp "$0/root/tmp" || exit 77
        chroot "$0/root" sh -c "$1" || { cat "$0/upper/dump/"*ing >&2; exit 1; }
        rm -rf "$0/upper/dump"
        echo left behind:
        cd "$0/upper" && find . ! -type d | sort"""
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("only root can lay a copy over the system")
    done = subprocess.run(["unshare", "-m", "sh", "-c", mounts, str(scratch), script], capture_output=True, text=True,
                          timeout=280, env={**ENVIRONMENT, **environment}, stdin=subprocess.DEVNULL, check=False)
    if done.returncode == 77:
        pytest.skip(f"no overlay over the system: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split("left behind:\n")


# What dpkg and ldconfig write for themselves whatever is installed.
OF_THE_SYSTEM = re.compile(r"\./var/(lib/dpkg/(status|available|lock|triggers/|diversions|info/format|.*-old$)|log/|cache/(ldconfig|man|debconf)/)"
                           r"|\./etc/ld\.so\.cache$|\./proc|\./dev|\./tmp")


def test_the_packages_install_run_and_purge(packages, tmp_path):
    user = tmp_path / "user.c"
    shutil.copy(ROOT / "tests" / "packaging" / "user.c", user)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    said, left = in_an_overlay(IN_THE_COPY, scratch, {"PACKAGES_IN": str(packages), "SOURCE": str(user)})
    lines = said.splitlines()
    assert lines[0] == "3" and "row 42 is there" in lines[1] and lines[2].startswith(("/lib/", "/usr/lib/")), said
    assert [line for line in left.splitlines() if not OF_THE_SYSTEM.match(line)] == []
