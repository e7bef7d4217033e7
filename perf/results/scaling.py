# SPDX-License-Identifier: Apache-2.0
"""The page's part about more and more rows, processes, caches and sessions."""
from show import cell, median, number, pyplot, save, table

MIB = 2**20


class Scaling:
    def __init__(self, parts):
        self.parts = {}
        for name, part in parts.items():
            if name.startswith("scaling/"):
                for result in part["figures"]["results"]:
                    self.parts.setdefault(result["part"], []).append(result)
        self.parts.get("rows", []).sort(key=lambda r: (r["ids"], r["rows"]))

    def __bool__(self):
        return bool(self.parts)

    def lines(self):
        yield "## How it scales"
        yield ""
        yield "`make bench-scaling` measures this again. Rows of 64 bytes; a *get* finds a row, in random order, and reads its"
        yield "first byte."
        yield ""
        if "rows" in self.parts or "processes" in self.parts:
            yield "![cost by rows and by processes](results/scaling.svg)"
            yield ""
        for part in ("rows", "processes", "caches", "sessions", "full"):
            if part in self.parts:
                yield from getattr(self, f"{part}_lines")(self.parts[part])

    def rows_lines(self, rows):
        yield "By rows, one process. A *put* is its share of opening a fresh cache and filling it; its floor makes pages of"
        yield "the server's kind and copies the rows into them. A *get*'s floor reads the same rows of a plain array. Memory"
        yield "beside the rows' own bytes: for each row its *header* with padding, and its part of the *index*; once for all,"
        yield "the *rest*, most of it lent ahead to the writer. *open* is a fresh process's time until it has read a row."
        yield ""
        yield from table(["rows", "ids", "put, ns", "its floor", "get, ns", "its floor", "header, bytes a row",
                          "index, bytes a row", "levels", "rest, MiB", "open, ms"],
                         [[f"{r['rows']:,}", r["ids"], cell(r["put_ns"]), cell(r["put_floor_ns"]), cell(r["get_ns"]),
                           cell(r["get_floor_ns"]), number(r["header_bytes"]), number(r["index_bytes"]),
                           r["index_levels"], number(r["rest_bytes"] / MIB),
                           cell([1e3 * each for each in r["open_seconds"]])] for r in rows])

    def processes_lines(self, rows):
        yield "By processes: ns a row of all of them together, and percentiles of one call, of the process in which they are"
        yield "the highest (they hold the clock's own 20 to 40 ns; where there are more processes than processors, the last one"
        yield "is the scheduler's turn)."
        yield ""
        yield from table(["processes", "get, ns", "get 50 / 99 / 99.9 %, ns", "put, ns", "put 50 / 99 / 99.9 %, ns"],
                         [[r["processes"], cell(r["get_ns"]), self.percentiles(r, "get"), cell(r["put_ns"]),
                           self.percentiles(r, "put")] for r in rows])

    @staticmethod
    def percentiles(result, what):
        return " / ".join(number(result[f"{what}_{share}_ns"]) for share in ("p50", "p99", "p999"))

    def caches_lines(self, rows):
        yield "By caches that one process has open and reads in turn, 64 rows in each:"
        yield ""
        yield from table(["caches", "open, us", "slowest", "get, ns", "list all, ms", "charged to each, KiB", "server, MiB"],
                         [[f"{r['caches']:,}", number(r["open_us"]), number(r["open_most_us"]), cell(r["get_ns"]),
                           cell([1e3 * each for each in r["list_seconds"]]), number(r["charged_bytes_each"] / 1024),
                           number(r["server_bytes"] / MIB)] for r in rows])

    def sessions_lines(self, rows):
        yield "By sessions:"
        yield ""
        yield from table(["sessions", "make one, us", "slowest", "open a cache, us", "slowest", "list all, ms", "server, MiB"],
                         [[f"{r['sessions']:,}", number(r["create_us"]), number(r["create_most_us"]), number(r["open_us"]),
                           number(r["open_most_us"]), cell([1e3 * each for each in r["list_seconds"]]),
                           number(r["server_bytes"] / MIB)] for r in rows])

    def full_lines(self, rows):
        yield "A full cache, one writer: its limit by the bytes of the rows in it when the first one is refused."
        yield ""
        yield from table(["workload", "limit, MiB", "rows", "limit / bytes of rows"],
                         [[r["workload"], number(r["limit_bytes"] / MIB), f"{r['rows']:,}",
                           f"{r['limit_bytes'] / r['row_bytes']:.3f}"] for r in rows])

    def picture(self, folder):
        drawn = [(part, draw) for part, draw in (("rows", draw_rows), ("processes", draw_processes)) if part in self.parts]
        if not drawn:
            return
        figure, axes = pyplot().subplots(1, len(drawn), figsize=(5.5 * len(drawn), 4.2), squeeze=False)
        for axis, (part, draw) in zip(axes[0], drawn):
            draw(axis, self.parts[part])
            axis.set_xscale("log", base=2 if part == "processes" else 10)
            axis.set_yscale("log")
            axis.set_xlabel(part)
            if part == "processes":
                axis.xaxis.set_major_formatter("{x:g}")
            axis.set_ylabel("ns a row")
            axis.grid(alpha=0.3)
            axis.legend(fontsize="small")
        save(figure, folder / "scaling.svg")


def draw_rows(axis, results):
    for ids in sorted({r["ids"] for r in results}):
        rows = [r for r in results if r["ids"] == ids]
        for what in ("put", "get"):
            axis.plot([r["rows"] for r in rows], [median(r[f"{what}_ns"]) for r in rows], marker="o",
                      label=f"{what}, {ids} ids")
    for what, marker in (("put", "x"), ("get", ".")):  # of the last ids: a floor knows none
        axis.plot([r["rows"] for r in rows], [median(r[f"{what}_floor_ns"]) for r in rows], linestyle=":", color="gray",
                  marker=marker, label=f"floor of {what}")


def draw_processes(axis, results):
    for what in ("put", "get"):
        axis.plot([r["processes"] for r in results], [median(r[f"{what}_ns"]) for r in results], marker="o",
                  label=f"{what}, of all together")
