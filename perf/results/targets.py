# SPDX-License-Identifier: Apache-2.0
"""The rows that speed and memory were to reach: each figure beside its bound, and the physical reason where it is missed
(reasons.txt, kept by hand)."""
import re
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

from show import median, number, table

WORDS = {  # row -> what it says
    "G1": "`cache_get` of a row, its first byte read", "G2": "`cache_get_batch` of 32", "G3": "`cache_gather` of 64",
    "G4": "`cache_get` among the most rows of 64 bytes", "G5": "a reader's first pass by its second",
    "G6": "readers: rows per second", "W1": "`cache_put` into lent memory", "W2": "a whole first epoch",
    "W3": "page faults of the writer per 1,000 rows", "W4": "two writers by one: rows per second",
    "S1": "writing rows that spill", "S2": "gathering 64 spilled rows", "S3": "gathering 64 spilled rows",
    "M1": "limit by bytes of rows, when full", "M2": "index, bytes a row", "M3": "memory of an idle server, of a reader",
}
# ns a row of the original (MindSpore 1.1's cache, before this project began): seen on such a machine, not in this run.
ORIGINAL_NS = {"G1": {"M": 276_000}, "W2": {"M": 42_100, "I": 592_000}}
LEAST_ORIGINAL = {"G1": {"M": 2_000}, "W2": {"M": 100, "I": 2}}
# What `make bench` measures for a row, and of which workloads it is judged.
JUDGED = {"G1": ("get", "M"), "G2": ("get_batch", "M"), "G3": ("gather", "MCI"), "W1": ("put", "MCI"), "W2": ("epoch", "MCI")}
MOST_FLOORS_OF_MOST_ROWS = {"dense": 3.0, "random": 4.0}  # G4
MOST_INDEX_BYTES, LEAST_INDEXED_ROWS = 32, 100_000  # M2
MOST_LIMITS = {"M": 1.15, "C": 1.05, "I": 1.02}  # M1
MIB = 2**20


def load_compare():
    """perf/compare, which knows the bounds of what `make bench` measures."""
    loader = SourceFileLoader("compare", str(Path(__file__).resolve().parents[1] / "compare"))
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True  # its name has no suffix: no cache file beside it
    module = module_from_spec(spec_from_loader("compare", loader))
    loader.exec_module(module)
    sys.dont_write_bytecode = before
    return module


class Row:
    """A figure with its bound: `value` is compared, `said` is how it came about."""

    def __init__(self, row, workload, value, bound, said="", at_least=False, unit=""):
        self.row, self.workload, self.value, self.bound, self.said = row, workload, value, bound, said
        self.at_least, self.unit = at_least, unit

    @property
    def met(self):
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def cells(self, reasons):
        sign = "≥" if self.at_least else "≤"
        reason = "" if self.met else reasons.get((self.row, self.workload)) or reasons.get((self.row, ""), "")
        return [self.row, WORDS[self.row], self.workload, self.said, number(self.value) + self.unit,
                f"{sign} {self.bound:g}{self.unit}", "met" if self.met else "**missed**", reason]


def bench_rows(figures, compare):
    for row, (way, workloads) in JUDGED.items():
        for workload in workloads:
            if f"{row}/{way}/{workload}" not in figures:
                continue
            figure = figures[f"{row}/{way}/{workload}"]
            floor, lmdb = figures[f"{row}/floor/{workload}"], figures.get(f"{row}/lmdb/{workload}")
            yield Row(row, workload, figure.ns / floor.ns, compare.bound(compare.MOST_FLOORS, row, workload),
                      f"{figure} ns, floor {floor} ns", unit=" floors")
            if lmdb and (limit := compare.bound(compare.LEAST_PEERS, row, workload)):
                yield Row(row, workload, lmdb.ns / figure.ns, limit, f"LMDB {lmdb} ns", True, " x")
            if limit := LEAST_ORIGINAL.get(row, {}).get(workload):
                then = ORIGINAL_NS[row][workload]
                yield Row(row, workload, then / figure.ns, limit, f"the original: {then:,} ns, seen earlier", True, " x")
            if figure.faults is not None and (limit := compare.MOST_FAULTS.get(workload)):
                yield Row("W3", workload, figure.faults, limit)
    for title, first, second, limit, at_least in compare.PAIRS:
        for workload in "MCI":
            a, b = figures.get(first.format(workload)), figures.get(second.format(workload))
            if a and b:
                yield Row(title[:2], workload, a.rate / b.rate, limit, title[4:], at_least)


def scaling_rows(results):
    by_rows = [result for result in results if result["part"] == "rows"]
    for ids in ("dense", "random"):
        of_ids = [result for result in by_rows if result["ids"] == ids]
        if of_ids:
            most = max(of_ids, key=lambda result: result["rows"])
            ours, floor = median(most["get_ns"]), median(most["get_floor_ns"])
            yield Row("G4", f"{most['rows']:,} rows, {ids} ids", ours / floor, MOST_FLOORS_OF_MOST_ROWS[ids],
                      f"{number(ours)} ns, floor {number(floor)} ns", unit=" floors")
        for result in of_ids:
            if result["rows"] >= LEAST_INDEXED_ROWS:
                yield Row("M2", f"{result['rows']:,} rows, {ids} ids", result["index_bytes"], MOST_INDEX_BYTES)
    for result in results:
        if result["part"] == "full":
            yield Row("M1", result["workload"], result["limit_bytes"] / result["row_bytes"],
                      MOST_LIMITS[result["workload"]])
        if result["part"] == "own":
            yield Row("M3", "server", result["server_bytes"] / MIB, 10, unit=" MiB")
            yield Row("M3", "reader", result["reader_bytes"] / MIB, 1, unit=" MiB")


def spill_rows(results):
    for result in results:
        if (result["row"], result["workload"]) in (("S1", "M"), ("S2", "C")):
            continue  # beside the targets
        bound = 3.0 if result["row"] == "S3" else 0.9
        ours, floor = (median(result[who]) / 1e6 for who in ("libcache", "floor"))
        yield Row(result["row"], result["workload"], result["ratio"], bound,
                  f"{number(ours)} MB/s, fio {number(floor)} MB/s", True, " of fio")


def all_rows(parts):
    rows = []
    if bench := parts.get("targets/bench"):
        compare = load_compare()
        rows += bench_rows(compare.figures_of(bench["figures"]), compare)
    rows += scaling_rows([result for name, part in parts.items() if name.startswith("scaling/")
                          for result in part["figures"]["results"]])
    if spill := parts.get("targets/spill"):
        rows += spill_rows(spill["figures"])
    return sorted(rows, key=lambda row: list(WORDS).index(row.row))


def read_reasons(path):
    """(row, workload or "") -> the reason."""
    reasons = {}
    for at, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = re.fullmatch(r"([A-Z]\d)(?: ([^:]+))?: (\S.*)", line)
        if not found or found[1] not in WORDS:
            sys.exit(f"report: {path}:{at} is not 'ROW [WORKLOAD]: reason' with a row of {', '.join(WORDS)}: {line}")
        reasons[found[1], found[2] or ""] = found[3]
    return reasons


def lines(parts, reasons_path):
    rows, reasons = all_rows(parts), read_reasons(reasons_path)
    if not rows:
        return
    met = sum(row.met for row in rows)
    yield "## Targets"
    yield ""
    yield f"{met} of {len(rows)} are met. A figure is a ratio to its floor in the same program unless said: what an array in"
    yield "plain memory, the making of its pages, or fio takes for the same. M, C, I: rows of MNIST (788 bytes), CIFAR-10"
    yield "(3,076 bytes), ImageNet crops (150,532 bytes); ns a row; +- is the deviation of the repetitions by their mean."
    yield "A pass over fresh memory (W2, W4, and its floors) is the middle one of five in each repetition: a virtual machine may"
    yield "give pages that were free for some seconds back to its host, and a pass that meets some takes many times as long."
    yield ""
    yield from table(["row", "what", "of", "measured", "figure", "target", "", "why not"],
                     [row.cells(reasons) for row in rows])
    if not any(row.row in ("S1", "S2", "S3") for row in rows):
        yield "Spilling beside fio (S1, S2, S3) was not measured in this run: `make bench-spill`."
        yield ""
