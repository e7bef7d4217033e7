# SPDX-License-Identifier: Apache-2.0
"""Makes the cffi module libcache._capi from libcache.h itself, so that the header and the binding cannot differ.

The C preprocessor strips comments, conditions and macros from the header; what is left is C that cffi reads. Numbers
that the header gives as macros are asked from the compiler (`#define NAME ...`), not copied.
"""
import re
import subprocess
from pathlib import Path

import cffi


def preprocess(text):
    """The declarations of the header, without the system headers that it includes (cffi knows their types)."""
    text = re.sub(r"^#include.*$", "", text, flags=re.MULTILINE)
    return subprocess.run(["cc", "-E", "-P", "-x", "c", "-"], input=text, capture_output=True, text=True,
                          check=True).stdout


def number_macros(text):
    return re.findall(r"^#define (CACHE_\w+) \d+u?\b", text, flags=re.MULTILINE)


def numpy_macros(version):
    """Names that the sources have from NumPy 1 and NumPy 2 calls otherwise, for setuptools."""
    return [("NPY_NTYPES", "NPY_NTYPES_LEGACY")] if int(version.split(".")[0]) >= 2 else []


def make_ffi(header, **linking):
    """The FFI object for setuptools. linking: libraries, library_dirs, include_dirs, runtime_library_dirs."""
    text = Path(header).read_text(encoding="utf-8")
    ffi = cffi.FFI()
    ffi.cdef("\n".join(f"#define {name} ..." for name in number_macros(text)))
    ffi.cdef(preprocess(text))
    ffi.cdef('extern "Python" int libcache_on_entry(const cache_list_entry *, void *);')
    ffi.set_source("libcache._capi", '#include "libcache.h"', **linking)
    return ffi
