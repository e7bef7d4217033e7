# SPDX-License-Identifier: Apache-2.0
"""The tutorial and its shell functions. The article, which spills, is in test_dataset_spill.py."""
import os
import subprocess

import pytest

from conftest import ADMIN, WATCHDOG
from dataset_files import EXAMPLES, cifar10, run_example, tables


def test_the_tutorial(no_server, tmp_path):
    said = run_example(no_server, "tutorial.sh", cifar10(tmp_path / "cifar", 100))
    source, after_map, shared = (table for table in tables(said))
    assert [f"{number} image shape: (32, 32, 3)" in said for number in range(4)] == [True] * 4
    assert [f"{number} image shape: (640, 480, 3)" in said for number in range(5)] == [True] * 5
    assert [f"process {shard}: 4 rows" in said for shard in range(4)] == [True] * 4
    assert [row[2:5] for row in source] == [["4", "n/a", "3076"]]
    assert ["5", "n/a", str(640 * 480 * 3 * 4 + 1)] in [row[2:5] for row in after_map]
    assert ["16", "n/a", "3076"] in [row[2:5] for row in shared]
    assert not no_server.stop()  # the script has


@pytest.mark.parametrize("function", ["generate_cache_session", "shutdown_cache_server"])
def test_shell_functions_without_a_server(no_server, function):
    words = ["sh", "-c", f'. "$0" && {function} {no_server.port}', str(EXAMPLES / "cache_util.sh")]
    result = subprocess.run(words, capture_output=True, text=True, timeout=WATCHDOG,
                            env={**os.environ, "CACHE_ADMIN": str(ADMIN)})
    assert (result.returncode == 0) == (function == "shutdown_cache_server"), result.stderr
