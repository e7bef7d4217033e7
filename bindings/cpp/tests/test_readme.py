# SPDX-License-Identifier: Apache-2.0
"""The C++ in the README compiles, with warnings as errors, with and without exceptions."""
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
BLOCKS = re.findall(r"^```cpp\n(.*?)^```", (ROOT / "bindings" / "cpp" / "README.md").read_text(), re.M | re.S)


@pytest.mark.parametrize("more", [[], ["-fno-exceptions", "-fno-rtti"]], ids=["exceptions", "no_exceptions"])
@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_code_in_the_readme_compiles(block, more):
    done = subprocess.run(["g++", "-std=c++20", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wold-style-cast",
                           "-Werror", "-fsyntax-only", f"-I{ROOT / 'capi'}", f"-I{ROOT / 'bindings' / 'cpp'}", *more,
                           "-x", "c++", "-"], input=block, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
