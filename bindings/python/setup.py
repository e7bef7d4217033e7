# SPDX-License-Identifier: Apache-2.0
"""Builds the two extension modules against a libcache, found in this order:

    LIBCACHE_BUILD=<folder>    the build folder of the tree around this file (header: ../../capi/libcache.h)
    LIBCACHE_PREFIX=<folder>   an installation: <folder>/include/libcache.h and <folder>/lib/libcache.so
    pkg-config libcache        an installation that pkg-config knows
    /usr/local, /usr
"""
import os
import subprocess
import sys
from pathlib import Path

import numpy
from setuptools import Extension, setup

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # a PEP 517 build does not have it there
import build_capi  # noqa: E402


def pkg_config():
    """(include folder, library folder) as pkg-config tells, or None."""
    try:
        words = ["pkg-config", "--variable=includedir", "--variable=libdir", "libcache"]
        lines = [subprocess.run([words[0], word, words[3]], capture_output=True, text=True, check=True).stdout.strip()
                 for word in words[1:3]]
    except (OSError, subprocess.CalledProcessError):
        return None
    return Path(lines[0]), Path(lines[1])


def candidates():
    """(include folder, library folder) one after the other, and only the one that the environment names."""
    if build := os.environ.get("LIBCACHE_BUILD"):
        yield HERE.parent.parent / "capi", Path(build).resolve() / "lib"
    elif prefix := os.environ.get("LIBCACHE_PREFIX"):
        yield Path(prefix).resolve() / "include", Path(prefix).resolve() / "lib"
    else:
        if found := pkg_config():
            yield found
        for prefix in ("/usr/local", "/usr"):
            yield Path(prefix, "include"), Path(prefix, "lib")


def find_libcache():
    tried = []
    for include, lib in candidates():
        if (include / "libcache.h").exists() and any(lib.glob("**/libcache.so")):
            return include, next(lib.glob("**/libcache.so")).parent
        tried.append(f"{include}/libcache.h with {lib}/libcache.so")
    sys.exit("no libcache to build against; tried " + ", ".join(tried) +
             ". Install it (make install), or set LIBCACHE_PREFIX to where it is installed.")


def run_path(lib):
    """Where the modules look for libcache.so: in the tree relative to themselves, else where it was found, if the
    system's own search would miss it."""
    if run := os.environ.get("LIBCACHE_RPATH"):
        return [run]
    return [] if str(lib).startswith("/usr/lib") else [str(lib)]


include, lib = find_libcache()
linking = {"libraries": ["cache"], "library_dirs": [str(lib)], "include_dirs": [str(include)],
           "runtime_library_dirs": run_path(lib)}
capi = build_capi.make_ffi(include / "libcache.h", **linking).distutils_extension(tmpdir=os.environ.get(
    "LIBCACHE_BUILD_TEMP", str(HERE / "build")))
# What makes modules that were built before stale: other declarations, or other versions of the symbols
interface = [str(file) for file in (include / "libcache.h", include / "libcache.map") if file.exists()]
capi.depends = interface
rows = Extension("libcache._rows", sources=["src/rows.c", "src/find.c", "src/ids.c", "src/columns.c", "src/gather.c",
                                           "src/gatherer.c", "src/put_rows.c", "src/counts.c"],
                 depends=["src/rows.h", *interface],
                 define_macros=build_capi.numpy_macros(numpy.__version__),
                 extra_compile_args=["-std=c11", "-Wall", "-Wextra", "-Wno-cast-function-type", "-O2"],
                 **{**linking, "include_dirs": [str(include), numpy.get_include()]})
setup(ext_modules=[capi, rows])
