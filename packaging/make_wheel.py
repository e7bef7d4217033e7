# SPDX-License-Identifier: Apache-2.0
"""make_wheel.py STAGE OUT: a self-contained wheel in OUT from the library and the programs in STAGE (`make wheel`).

The Python package is built as always; then the library and the programs are put beside it, with entry points for the
programs. The wheel's platform tag names the oldest glibc that everything in it can do with, read from the symbols that
the files ask for, though none older than the one that it is made for (packaging/README.md).
"""
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import numpy

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "bindings" / "python"
OLDEST_GLIBC = (2, 28)  # the oldest that the wheel is for
PROGRAMS = {"cache_admin": "cache_admin", "dataset-cache": "cache_admin", "cache_perf": "cache_perf",
            "cache_server": "cache_server"}
# What every Linux with this glibc has: manylinux allows it. Anything else is put into the wheel. libgcc_s is not linked
# statically, since its unwinder asks a new glibc for things that an old one has not.
ALLOWED = re.compile(r"(libc|libm|libpthread|libdl|librt|libgcc_s|ld-linux-[\w-]+|libcache)\.so\.\d+")


def run(*words, **options):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        sys.exit(f"make_wheel.py: {' '.join(map(str, words))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build_package(stage, work):
    """The package as a wheel, whose modules look for the library in libcache/lib. The source tree stays clean."""
    source = shutil.copytree(PACKAGE, work / "bindings" / "python", ignore=shutil.ignore_patterns(
        "build", "tests", "perf", "examples", "__pycache__", "*.egg-info"))
    shutil.copytree(HERE.parent / "capi", work / "capi")
    environment = {**os.environ, "LIBCACHE_BUILD": str(stage), "LIBCACHE_RPATH": "$ORIGIN/lib",
                   "LIBCACHE_BUILD_TEMP": "temp"}
    run(sys.executable, "setup.py", "-q", "bdist_wheel", "--dist-dir", work / "dist", cwd=source, env=environment)
    (wheel,) = (work / "dist").glob("*.whl")
    return wheel


def needed(file):
    """Libraries beyond glibc that a file was linked with."""
    return [name for name in re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-d", file)) if not ALLOWED.fullmatch(name)]


def add_libraries(folder, licenses):
    """Copies what libcache.so needs to its side, with the words of their licences."""
    licenses.mkdir()
    found = dict(re.findall(r"^\s*(\S+) => (/\S+)", run("ldd", folder / "libcache.so.1"), re.M))
    for name in needed(folder / "libcache.so.1"):
        shutil.copy2(found[name], folder / name)
        if name.startswith("libstdc++") or needed(folder / name):
            sys.exit(f"make_wheel.py: libcache.so needs {name}, which needs more than glibc itself")
        owner = run("dpkg-query", "-S", Path(found[name]).resolve()).partition(":")[0]
        shutil.copy2(f"/usr/share/doc/{owner}/copyright", licenses / owner)


def glibc_needed(files):
    """The newest GLIBC_x.y that any of the files asks for."""
    newest = OLDEST_GLIBC
    for file in files:
        if missing := [name for name in needed(file) if not (file.parent.parent / "lib" / name).exists()]:
            sys.exit(f"make_wheel.py: {file.name} needs {', '.join(missing)}, neither part of glibc nor in the wheel")
        versions = re.findall(r"\bGLIBC_(\d+)\.(\d+)", run("readelf", "-V", file))
        newest = max([newest, *((int(major), int(minor)) for major, minor in versions)])
    return newest


def is_elf(path):
    return path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF"


def add_programs(stage, tree):
    package = tree / "libcache"
    (package / "lib").mkdir()
    shutil.copy2(stage / "lib" / "libcache.so.1", package / "lib")
    shutil.copytree(stage / "bin", package / "bin")
    shutil.copy2(HERE / "libcache_programs.py", tree)
    (info,) = tree.glob("*.dist-info")
    shutil.copy2(HERE.parent / "LICENSE", info)
    add_libraries(package / "lib", info / "licenses")
    lines = [f"{script} = libcache_programs:{function}" for script, function in PROGRAMS.items()]
    (info / "entry_points.txt").write_text("\n".join(["[console_scripts]", *lines, ""]))
    return info


def set_tag(info, glibc):
    machine = re.sub(r"[-.]", "_", sysconfig.get_platform()).removeprefix("linux_")
    platform = f"manylinux_{glibc[0]}_{glibc[1]}_{machine}"
    text = (info / "WHEEL").read_text()
    (info / "WHEEL").write_text(re.sub(r"^(Tag: \w+-\w+)-\w+$", rf"\1-{platform}", text, flags=re.M))


def bound_numpy(info):
    """Modules made with NumPy 1 cannot be imported with NumPy 2, which is what pip would take; made with 2 they can with
    both."""
    if int(numpy.__version__.partition(".")[0]) >= 2:
        return
    text, changed = re.subn(r"^Requires-Dist: numpy$", "Requires-Dist: numpy (<2)", (info / "METADATA").read_text(),
                            flags=re.M)
    if changed != 1:
        sys.exit("make_wheel.py: METADATA has no line 'Requires-Dist: numpy' to bound to NumPy 1")
    (info / "METADATA").write_text(text)


def main():
    stage, out = (Path(word).resolve() for word in sys.argv[1:])
    work = out / "work"
    tree = work / "tree"
    with zipfile.ZipFile(build_package(stage, work)) as archive:
        archive.extractall(tree)
    info = add_programs(stage, tree)
    bound_numpy(info)
    for script in (tree / "libcache" / "bin").iterdir():
        script.chmod(0o755)
    set_tag(info, glibc_needed(path for path in tree.rglob("*") if is_elf(path)))
    run(sys.executable, "-m", "wheel", "pack", tree, "-d", out)  # writes RECORD anew
    shutil.rmtree(work)
    print(*out.glob("*.whl"))


if __name__ == "__main__":
    main()
