# SPDX-License-Identifier: Apache-2.0
"""What Tab offers after the words of a command line, asked of bash itself."""
import re

import pytest

from conftest import BUILD, ROOT, must_run, needs

pytestmark = needs("bash")
ASK = r"""
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
name=${1##*/}
read -r _ _ function _ < <(complete -p "$name")
"$function" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\n' "${COMPREPLY[@]}"
"""


def offered(*words, **options):
    program = BUILD / "bin" / words[0]
    return set(must_run("bash", "-c", ASK, "bash", ROOT / "packaging" / "completion.bash", program, *words[1:],
                        **options).split())


@pytest.mark.parametrize("program", ["cache_admin", "cache_server", "cache_perf", "dataset-cache"])
def test_every_option_of_the_help_is_offered(program):
    words = offered(program, "-")
    own_help = must_run(BUILD / "bin" / program, "--help")
    assert set(re.findall(r"(?<![\w<-])--[a-z]\w+", own_help)) <= words
    assert all(word in own_help for word in words)


def test_a_begun_option_is_completed():
    assert offered("cache_admin", "--st") == {"--start", "--stop"}


@pytest.mark.parametrize("words, values", [(("cache_server", "--backing", ""), {"auto", "huge", "memfd"}),
                                           (("cache_perf", "--ids", "d"), {"dense"}),
                                           (("cache_server", "--group", "roo"), {"root"}),
                                           (("cache_admin", "--start", "-l", ""), set("01234"))])
def test_values_are_offered_where_they_are_known(words, values):
    assert offered(*words) == values


def test_a_spill_folder_is_a_folder(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("")
    assert offered("cache_admin", "--start", "-s", f"{tmp_path}/") == {f"{tmp_path}/folder"}


def test_sessions_are_offered_where_one_is_named(server_folder):
    script = f"""for session in 1 2; do {BUILD}/bin/cache_admin -g; done >/dev/null
        {BUILD}/bin/cache_admin --list_sessions --json; printf '%s\\n' ----
        bash -c "$0" bash {ROOT}/packaging/completion.bash {BUILD}/bin/cache_admin -d ''"""
    listed, words = must_run(BUILD / "bin" / "cache_admin", "--run", "--", "sh", "-c", script, ASK,
                             environment={"LIBCACHE_DIR": server_folder}).split("----")
    sessions = set(re.findall(r'"session_id": *(\d+)', listed))
    assert len(sessions) >= 2 and set(words.split()) == sessions


def test_after_run_a_program_is_completed(tmp_path):
    (tmp_path / "train.py").write_text("")
    assert f"{tmp_path}/train.py" in offered("cache_admin", "--run", "--", "python", f"{tmp_path}/tr")
