# SPDX-License-Identifier: Apache-2.0
"""The page's part about what one could take in libcache's place."""
from show import cell, median, pyplot, save, table

WORKLOADS = {"M": "MNIST, 60,000 rows of 788 bytes", "C": "CIFAR-10, 50,000 rows of 3,076 bytes",
             "I": "ImageNet crops, 8,000 rows of 150,532 bytes"}
PROCESSES = (1, 2, 8)
COLUMNS = [(what, order) for what in ("write", "look-up", "copy") for order in ("sequential", "shuffled")]
ORDER = ["floor", "libcache", "LMDB", "files", "Redis", "memcached", "libcache from Python", "shared_memory"]


class Peers:
    def __init__(self, parts):
        self.about, self.ns, self.memory, self.later = {}, {}, {}, {}
        for name, part in parts.items():
            if not name.startswith("peers/"):
                continue
            peer = part["figures"]["peer"]
            self.about[peer["name"]] = " ".join(word for word in (peer["version"] and peer["version"] + ":", peer["how"]) if word)
            for result in part["figures"]["results"]:
                key = result["workload"], result["peer"]
                if "ns" in result:
                    self.ns[*key, result["what"], result["order"], result["processes"]] = result["ns"]
                else:
                    where = self.later if result["what"] == "memory later" else self.memory
                    where.setdefault(key, []).append(result["bytes"] / result["row_bytes"])
        self.names = sorted(self.about, key=ORDER.index)

    def __bool__(self):
        return bool(self.about)

    def present(self, workload):
        return [peer for peer in self.names if (workload, peer) in self.memory]

    def rows(self, workload):
        for peer in self.present(workload):
            times = [cell(*(self.ns[workload, peer, what, order, n] for n in PROCESSES)) for what, order in COLUMNS]
            memory = " / ".join(f"{share:.2f}" for share in self.memory[workload, peer])
            yield [peer, *times, f"{memory}; {self.later[workload, peer][0]:.2f}"]

    def lines(self):
        yield "## Beside what one could take in its place"
        yield ""
        yield "`make bench-peers` measures this again. ns a row, the least is best, with 1 / 2 / 8 processes: time from the"
        yield "first one's start to the last one's end, by the rows of all of them; half as much with two processes means"
        yield "that both ran at full speed. Every process is a fork that has connected before. *write* stores all rows in a"
        yield "fresh store, shared out among the processes, its pages made meanwhile (by libcache's server on the second"
        yield "processor, by the writer itself in the floor); *look-up* finds a row and reads its first byte; *copy* copies all"
        yield "of it into a buffer. Readers have read every row once before. *memory*: what rows, their keeping and the peer's"
        yield "own server take, by the bytes of the rows, just after 1 / 2 / 8 processes have written them shuffled; and"
        yield "later, when they were read. Every byte of every row is checked once in each store that is kept for reading."
        yield ""
        yield "![ns a row, shuffled, one process](results/peers.svg)"
        yield ""
        for workload, title in WORKLOADS.items():
            if self.present(workload):
                yield f"### {title}"
                yield ""
                heads = [f"{what}, {order}" for what, order in COLUMNS]
                yield from table(["kept by", *heads, "memory"], self.rows(workload))
        for peer in self.names:
            yield f"- **{peer}**: {self.about[peer]}."
        yield ""
        yield "Redis and memcached send a row through a socket, so their *look-up* is the least they can send: one byte"
        yield "(GETRANGE), the whole row. shared_memory has no index: it stands for what a careful user could write by hand"
        yield "for rows of one size, all of which are there. The memory of files holds the kernel's inodes and names, of"
        yield "libcache what is lent ahead to its writers; it goes back when they have been idle for two seconds."
        yield ""

    def picture(self, folder):
        shown = [workload for workload in WORKLOADS if self.present(workload)]
        figure, axes = pyplot().subplots(1, len(shown), figsize=(4.5 * len(shown), 4.5), sharey=True, squeeze=False)
        for axis, workload in zip(axes[0], shown):
            names = self.present(workload)
            for i, what in enumerate(("write", "look-up", "copy")):
                axis.bar([place + (i - 1) * 0.27 for place in range(len(names))],
                         [median(self.ns[workload, peer, what, "shuffled", 1]) for peer in names], 0.25, label=what)
            axis.set_title(WORKLOADS[workload].split(",")[0])
            axis.set_yscale("log")
            axis.set_xticks(range(len(names)), names, rotation=40, ha="right")
            axis.grid(axis="y", alpha=0.3)
        axes[0][0].set_ylabel("ns a row, shuffled, one process")
        axes[0][0].legend()
        save(figure, folder / "peers.svg")
