# SPDX-License-Identifier: Apache-2.0
"""The code in the README of this folder: blocks of lines that are indented by four. test_readme.py sees to it that each
is run by a test, as it stands; what a block takes for granted is made by the test."""
import os
import re
import subprocess
import textwrap
from pathlib import Path

from conftest import ADMIN, WATCHDOG

README = Path(__file__).resolve().parents[1] / "README.md"
BLOCKS = [textwrap.dedent(found) for found in
          re.findall(r"(?:^    \S.*\n(?:^ {5,}.*\n|^\n(?=    ))*)+", README.read_text(encoding="utf-8"), re.M)]


def block(beginning):
    """The block of the README that begins so."""
    (found,) = [text for text in BLOCKS if text.startswith(beginning)]
    return found


def run_python(code, **names):
    """The names that the code leaves behind."""
    exec(compile(code, README.name, "exec"), names)
    return names


def run_shell(code, folder, replaced=("", ""), **environment):
    """Runs commands in a folder. cache_admin is the one under test; a folder that it is given, and that no test may make
    (the first of `replaced`), becomes the second."""
    program = folder / "bin" / "cache_admin"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"""#!/bin/sh
for word; do
    shift
    [ "$word" != "{replaced[0]}" ] || word={replaced[1]}
    set -- "$@" "$word"
done
exec "{ADMIN}" "$@"
""")
    program.chmod(0o755)
    done = subprocess.run(["sh", "-ec", code], cwd=folder, capture_output=True, text=True, timeout=4 * WATCHDOG,
                          stdin=subprocess.DEVNULL, check=False,
                          env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}", **environment})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
