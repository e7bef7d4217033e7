# SPDX-License-Identifier: Apache-2.0
"""The deliberate faults of tests/faults are about the code as it is, and name tests that there are. What finds them is
tried by make mutants, which takes hours."""
import importlib.machinery
import importlib.util
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOADER = importlib.machinery.SourceFileLoader("mutants", str(ROOT / "tests/mutants"))
mutants = importlib.util.module_from_spec(importlib.util.spec_from_loader("mutants", LOADER))
LOADER.exec_module(mutants)

FAULTS = mutants.read_faults()


def is_there(words):
    name = words.split()[0].split("::")[0]
    if name.endswith(".py"):
        return (ROOT / name).is_file()
    return any((ROOT / "tests").glob(f"*/{name.removeprefix('fuzz_')}.c*"))  # fuzz_: a harness over its corpus


def test_names_are_given_once():
    assert [name for name, times in Counter(fault["name"] for fault in FAULTS).items() if times > 1] == []


def test_the_text_that_is_replaced_is_there_once():
    assert {fault["name"]: fault["file"] for fault in FAULTS
            if (ROOT / fault["file"]).read_text().count(fault["text"]) != 1} == {}


def test_each_has_words_a_build_and_tests_that_there_are():
    assert [fault["name"] for fault in FAULTS
            if not fault["breaks"] or fault["instead"] == fault["text"] or not fault["tests"]
            or fault["build"] not in ("plain", "address", "thread") or not all(map(is_there, fault["tests"]))] == []
