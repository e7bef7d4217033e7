# SPDX-License-Identifier: Apache-2.0
"""Timing that the measurements of this folder share: what is compared runs in turns, repetition by repetition, so that
a machine that slows down slows all of them; medians and spread are printed, and kept as JSON."""
import json
import platform
import statistics
import sys
import time


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
    """Lines of `row: ours / floor`, printed as they come."""

    def __init__(self):
        self.lines = []
        print(f"{platform.machine()}, Python {platform.python_version()}, Linux {platform.release()}")
        print(f"{'row':<34} {'ours':>14} {'compared with':>14}  ratio  target")

    def add(self, row, ours, floor, count, unit, target):
        """ours, floor: seconds of each repetition, for `count` operations."""
        scale = {"ns": 1e9, "us": 1e6, "s": 1.0}[unit] / count
        mine, other = (statistics.median(values) * scale for values in (ours, floor))
        self.lines.append({"row": row, "unit": unit, "target": target, "ratio": mine / other,
                           "ours": [value * scale for value in ours], "floor": [value * scale for value in floor]})
        spread = "  ".join(f"{min(values) * scale:.3g}..{max(values) * scale:.3g}" for values in (ours, floor))
        print(f"{row:<34} {mine:11.4g} {unit:<2} {other:11.4g} {unit:<2}  {mine / other:5.2f}  {target}   ({spread})",
              flush=True)

    def write(self, path):
        if path:
            with open(path, "w", encoding="utf-8") as file:
                json.dump({"argv": sys.argv, "machine": platform.uname()._asdict(), "rows": self.lines}, file, indent=1)
