# SPDX-License-Identifier: Apache-2.0
"""Timing that the measurements of this folder share: what is compared runs in turns, repetition by repetition, so that
a machine that slows down slows all of them. Medians and spread are printed as the rows of a Markdown table, and every
repetition kept as JSON."""
import argparse
import json
import operator
import os
import platform
import statistics
import sys
import time

import libcache

_MET = {"<=": operator.le, ">=": operator.ge}


def parse_options(parser):
    """parse_args, and what would end a measurement when all of it is done: no folder for --json."""
    options = parser.parse_args()
    if options.json and not os.access(os.path.dirname(options.json) or ".", os.W_OK):
        parser.error(f"no file can be written in the folder of --json {options.json}")
    return options


def count(text):
    """A type of add_argument(): 1, 2, ..."""
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return int(text)


def need_server():
    """Ends with a sentence where no server runs."""
    try:
        libcache.Client().server_info()
    except libcache.Error as error:
        sys.exit(f"{error} (or let `cache_admin --run -- python3 {sys.argv[0]}` start one for this time)")


def in_turns(repetitions, **bodies):
    """Seconds by name, a list of `repetitions`; each body is called with the number of the repetition."""
    seconds = {name: [] for name in bodies}
    for repetition in range(repetitions):
        for name, body in bodies.items():
            started = time.perf_counter()
            body(repetition)
            seconds[name].append(time.perf_counter() - started)
    return seconds


class Report:
    """Rows of ours / floor, printed as they come. Behind a median, in brackets, are the least and the most."""

    def __init__(self):
        self.lines = []
        print(f"{platform.machine()}, Python {platform.python_version()}, Linux {platform.release()}\n")
        print("| row | figure | floor | ratio | target | met |\n|---|---|---|---|---|---|", flush=True)

    def add(self, row, ours, floor, count, unit, target):
        """ours, floor: seconds of each repetition, for `count` operations. target: "<= 1.1", of the ratio; "-": none"""
        scale = {"ns": 1e9, "us": 1e6, "s": 1.0}[unit] / count
        mine, other = ([value * scale for value in values] for values in (ours, floor))
        ratio = statistics.median(mine) / statistics.median(other)
        self.lines.append({"row": row, "unit": unit, "target": target, "ratio": ratio, "ours": mine, "floor": other})
        print(f"| {row} | {_figure(mine, unit)} | {_figure(other, unit)} | {ratio:.2f} | {target} | "
              f"{_met(ratio, target)} |", flush=True)

    def write(self, path):
        if path:
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"argv": sys.argv, "machine": platform.uname()._asdict(), "rows": self.lines}, file, indent=1)


def _figure(values, unit):
    return f"{statistics.median(values):.3g} {unit} ({min(values):.3g}..{max(values):.3g})"


def _met(ratio, target):
    compare, _, bound = target.partition(" ")
    if compare not in _MET:
        return ""
    return "yes" if _MET[compare](ratio, float(bound)) else "**no**"
