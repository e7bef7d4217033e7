# SPDX-License-Identifier: Apache-2.0
"""What measures libcache beside its peers and how it scales, the driver that runs it part by part, and the page made of
it. Nothing here looks at a time: the runs are too short to mean anything."""
import json
import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("LIBCACHE_BUILD", ROOT / "build")).resolve()
RECORDED = Path(__file__).with_name("recorded.json")
PEERS, SCALING = BUILD / "perf/peers", BUILD / "perf/scaling"
MEASURE, REPORT = ROOT / "perf/results/measure", ROOT / "perf/results/report"
FROM_PYTHON = ROOT / "perf/peers/from_python.py"
PATIENCE = 60  # seconds until what was asked for must have happened

needs_peers = pytest.mark.skipif(not PEERS.exists(), reason="make deps-peers was not called before the build: no perf/peers")
needs_matplotlib = pytest.mark.skipif(
    subprocess.run(["/usr/bin/python3", "-c", "import matplotlib"], capture_output=True, check=False).returncode != 0,
    reason="python3-matplotlib is not installed (make deps-peers)")


def run(*words, **more):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120, check=False, **more)


def wait_for(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {PATIENCE} s"
        time.sleep(0.01)
    return found


def processes_with(marker):
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if marker.encode() in (entry / "environ").read_bytes() and (entry / "cmdline").read_bytes():
                found.append((int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()))
        except OSError:
            pass  # ended meanwhile, or of another user
    return found


def tmpfs_folders_of(processes):
    """Folders in /dev/shm that these processes have mapped files of."""
    folders = set()
    for pid, _ in processes:
        try:
            folders |= set(re.findall(r"(/dev/shm/lcp-\w+)", Path(f"/proc/{pid}/maps").read_text()))
        except OSError:
            pass
    return folders


# ---- arguments -----------------------------------------------------------------------------------------------------------
WRONG = [
    pytest.param([PEERS], "--peer", marks=needs_peers),
    pytest.param([PEERS, "--peer", "Oracle", "--workload", "M", "f"], "Oracle", marks=needs_peers),
    pytest.param([PEERS, "--peer", "LMDB", "--workload", "X", "f"], "X", marks=needs_peers),
    pytest.param([PEERS, "--peer", "LMDB", "--workload", "M", "--scale", "2", "f"], "--scale", marks=needs_peers),
    ([SCALING], "subcommand"),
    ([SCALING, "rows"], "file"),
    ([SCALING, "rows", "--rows", "3", "f"], "--rows"),
    ([SCALING, "rows", "--ids", "odd", "f"], "odd"),
    ([SCALING, "caches", "--most", "100000", "f"], "--most"),
    ([MEASURE, "--build", BUILD, "--only", "nothing/*"], "nothing/*"),
    ([MEASURE, "--build", "/nonexistent", "--plan"], "/nonexistent"),
    ([MEASURE, "--rows", "many"], "--rows"),
    pytest.param([REPORT], "--figures", marks=needs_matplotlib),
    pytest.param([REPORT, "--figures", "/nonexistent", "--to", "."], "/nonexistent", marks=needs_matplotlib),
]


@pytest.mark.parametrize("words, named", WRONG)
def test_a_wrong_argument_is_named_with_status_2(words, named, tmp_path):
    done = run(*words, cwd=tmp_path)
    assert done.returncode == 2, done
    assert named in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("program, word", [
    pytest.param(PEERS, "--workload", marks=needs_peers), (SCALING, "processes"), (MEASURE, "--plan"),
    pytest.param(REPORT, "--whole", marks=needs_matplotlib)])
def test_help_is_told_with_status_0(program, word):
    done = run(program, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert word in done.stdout


# ---- the programs --------------------------------------------------------------------------------------------------------
MACHINE = {"processor", "cpus", "memory_bytes", "kernel", "libcache", "build", "backing"}


def check_peer(content, name, repetitions):
    assert content["peer"]["name"] == name and content["peer"]["how"]
    times = {(r["what"], r["order"], r["processes"]): r["ns"] for r in content["results"] if "ns" in r}
    assert set(times) == {(what, order, processes) for what in ("write", "look-up", "copy")
                          for order in ("sequential", "shuffled") for processes in (1, 2, 8)}
    for ns in times.values():
        assert len(ns) == repetitions and all(each > 0 for each in ns)
    memory = [r for r in content["results"] if "bytes" in r]
    assert [(r["what"], r["processes"]) for r in memory] == [("memory", 1), ("memory", 2), ("memory", 8), ("memory later", 8)]
    assert all(r["bytes"] >= r["row_bytes"] > 0 for r in memory)


@needs_peers
@pytest.mark.parametrize("name, program", [("floor", None), ("libcache", None), ("LMDB", None), ("files", None),
                                           ("Redis", "redis-server"), ("memcached", "memcached")])
def test_a_peer_is_measured(name, program, tmp_path):
    if program and not shutil.which(program):
        pytest.skip(f"{program} is not installed (make deps-peers)")
    environment = {**os.environ, "TMPDIR": str(tmp_path), "MEASURED": str(uuid.uuid4())}
    done = run(PEERS, "--peer", name, "--workload", "M", "--scale", "0.001", "--repetitions", "2", "--seconds", "0.0001",
               tmp_path / "out", env=environment)
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "out").read_text())
    assert set(content["machine"]) == MACHINE
    check_peer(content, name, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert wait_for(lambda: not processes_with(environment["MEASURED"]), "the end of what the program started")


ROWS = {"part", "ids", "rows", "put_ns", "put_floor_ns", "get_ns", "get_floor_ns", "header_bytes", "index_bytes", "rest_bytes",
        "index_levels", "open_seconds"}
CALLS = {f"{what}_{share}ns" for what in ("get", "put") for share in ("", "p50_", "p99_", "p999_")}
PARTS = [
    (["rows", "--rows", "1000", "--ids", "dense"], [ROWS]),
    (["rows", "--rows", "1000", "--ids", "random"], [ROWS]),
    (["processes", "--most", "1"], [{"part", "processes", *CALLS}]),
    (["caches", "--most", "10"],
     2 * [{"part", "caches", "open_us", "open_most_us", "get_ns", "list_seconds", "charged_bytes_each", "server_bytes"}]),
    (["sessions", "--most", "10"],
     [{"part", "sessions", "create_us", "create_most_us", "open_us", "open_most_us", "list_seconds", "server_bytes"}]),
    (["memory", "--limit", "4"],
     3 * [{"part", "workload", "rows", "limit_bytes", "row_bytes"}] + [{"part", "server_bytes", "reader_bytes"}]),
]


@pytest.mark.parametrize("words, fields", PARTS, ids=lambda value: " ".join(value) if isinstance(value[0], str) else "")
def test_scaling_is_measured(words, fields, tmp_path):
    done = run(SCALING, *words, "--repetitions", "2", tmp_path / "out", env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "out").read_text())
    assert set(content["machine"]) == MACHINE
    assert [set(result) for result in content["results"]] == fields
    for result in content["results"]:
        for value in result.values():
            if isinstance(value, list):
                assert len(value) == 2 and all(each > 0 for each in value)
        if "limit_bytes" in result:
            assert 1 < result["limit_bytes"] / result["row_bytes"] < 2
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@needs_peers
def test_ctrl_c_leaves_no_process_and_no_folder(tmp_path):
    environment = {**os.environ, "TMPDIR": str(tmp_path), "MEASURED": str(uuid.uuid4())}
    process = subprocess.Popen([PEERS, "--peer", "LMDB", "--workload", "M", "--seconds", "60", tmp_path / "out"],
                               env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folders = wait_for(lambda: tmpfs_folders_of(processes_with(environment["MEASURED"])), "LMDB's map")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=PATIENCE) != 0
    wait_for(lambda: not processes_with(environment["MEASURED"]), "the end of what the program started")
    assert [folder for folder in folders if Path(folder).exists()] == []
    assert list(tmp_path.iterdir()) == []


# ---- the driver ----------------------------------------------------------------------------------------------------------
TRY = ["--build", BUILD, "--repetitions", "2", "--seconds", "0.0001", "--scale", "0.001", "--rows", "10000", "--processes", "1",
       "--caches", "1", "--sessions", "10"]


def measure(folder, *words, **more):
    return run(MEASURE, *TRY, "--figures", folder, *words, **more)


def test_the_plan_names_each_part_and_measures_nothing(tmp_path):
    done = measure(tmp_path / "figures", "--plan")
    assert done.returncode == 0, done.stderr
    for part in ("peers/I/memcached", "peers/M/shared_memory", "scaling/rows/random/10000", "scaling/sessions", "targets/bench"):
        assert re.search(rf"^  {part} +[\d.]+ (s|min) +[\d.]+ GiB$", done.stdout, re.M), done.stdout
    assert re.search(r"^(\d+) of \1 parts to measure, about [\d.]+ (s|min), at most [\d.]+ GiB", done.stdout, re.M)
    assert list((tmp_path / "figures").iterdir()) == []


def test_what_is_measured_is_not_measured_again_unless_asked(tmp_path):
    only = ["--only", "scaling/rows/dense/*", "--only", "scaling/caches"]
    first = measure(tmp_path, *only)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "[2/2]" in first.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scaling.caches.json", "scaling.rows.dense.10000.json"]
    content = json.loads((tmp_path / "scaling.caches.json").read_text())
    assert set(content) == {"part", "key", "date", "seconds", "busy_before", "stolen", "figures"}
    assert "0 of 2 parts to measure" in measure(tmp_path, *only).stdout
    assert "2 of 2 parts to measure" in measure(tmp_path, *only, "--again", "--plan").stdout
    # Figures of other programs do not count.
    content["key"]["programs"] = "0" * 12
    (tmp_path / "scaling.caches.json").write_text(json.dumps(content))
    assert "1 of 2 parts to measure" in measure(tmp_path, *only, "--plan").stdout


def fake_build(folder, scaling):
    """A build whose perf/scaling is this shell script."""
    for name in ("lib/libcache.so.1", "bin/cache_server"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(BUILD / name, folder / name)
    (folder / "perf").mkdir()
    (folder / "perf/scaling").write_text("#!/bin/sh\n" + scaling)
    (folder / "perf/scaling").chmod(0o755)
    return folder


# The last argument is the file; the first the part.
WRITES = 'for out; do :; done; echo \'{"results":[]}\' > "$out"\n'


def test_the_failure_of_a_part_keeps_the_others(tmp_path):
    build = fake_build(tmp_path / "build", 'if [ "$1" = caches ]; then echo no caches today; exit 3; fi\n' + WRITES)
    done = measure(tmp_path / "figures", "--build", build, "--only", "scaling/*")
    assert done.returncode == 1
    assert "ended with 3" in done.stdout and "no caches today" in done.stdout
    assert done.stdout.splitlines()[-1] == "not measured: scaling/caches"
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == [
        f"scaling.{name}.json" for name in ("memory", "processes", "rows.dense.10000", "rows.random.10000", "sessions")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_ends_its_part_and_keeps_what_is_done(number, tmp_path):
    # The part cleans up when it is interrupted, as the real ones do.
    build = fake_build(tmp_path / "build", f'trap "echo cleaned > {tmp_path}/cleaned; exit 1" INT\n'
                       'if [ "$1" = caches ]; then echo $$ > ' f'{tmp_path}/pid; while :; do sleep 0.1; done; fi\n' + WRITES)
    figures, temporary = tmp_path / "figures", tmp_path / "tmp"
    temporary.mkdir()
    process = subprocess.Popen([str(word) for word in [MEASURE, *TRY, "--figures", figures, "--build", build, "--only",
                                                       "scaling/processes", "--only", "scaling/caches"]],
                               stdout=subprocess.PIPE, text=True)
    pid = int(wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip(), "the part's start"))
    process.send_signal(number)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 128 + number, said
    assert "interrupted" in said
    assert (tmp_path / "cleaned").exists()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the part's end")
    assert [path.name for path in figures.iterdir()] == ["scaling.processes.json"]


# ---- the page ------------------------------------------------------------------------------------------------------------
def recorded():
    return json.loads(RECORDED.read_text())


def page_of(folder, content, *words):
    (folder / "figures.json").write_text(json.dumps(content))
    done = run(REPORT, "--figures", folder / "figures.json", "--to", folder / "page", *words)
    assert done.returncode == 0, done.stderr
    return (folder / "page/RESULTS.md").read_text()


@needs_matplotlib
def test_the_page_has_every_figure_beside_its_target(tmp_path):
    page = page_of(tmp_path, recorded(), "--whole")
    assert "| G1 | `cache_get` of a row, its first byte read | M | 6.00 +-2% ns, floor 2.00 +-2% ns | 3 floors | ≤ 4 floors | met |" in page
    assert "| LMDB 600 +-2% ns | 100 x | ≥ 15 x | met |" in page
    assert "| 3 floors | ≤ 1.2 floors | **missed** |" in page
    assert "| W4 | two writers by one: rows per second | M | rows/s of 2 processes / of 1 | 1.82 | ≥ 1.7 | met |" in page
    assert re.search(r"\| S1 .* \| 0.5 of fio \| ≥ 0.9 of fio \| \*\*missed\*\* \|", page)
    for heading in ("## Targets", "## Beside what one could take in its place", "### MNIST", "## How it scales"):
        assert f"\n{heading}" in page
    for start in ("| libcache | ", "| LMDB | ", "| 100,000 | random | ", "| sessions | make one"):
        assert f"\n{start}" in page
    assert "make bench-results" in page and "A try" not in page
    widths = [len(line.split("|")) for line in page.splitlines() if line.startswith("| G")]
    assert set(widths) == {10}
    for picture in re.findall(r"\]\((results/\w+\.svg)\)", page):
        assert (tmp_path / "page" / picture).read_text().startswith("<?xml")


@needs_matplotlib
def test_the_same_figures_make_the_same_page(tmp_path):
    first = page_of(tmp_path, recorded())
    kept = (tmp_path / "page/results/figures.json").read_text()
    pictures = {path.name: path.read_bytes() for path in (tmp_path / "page/results").glob("*.svg")}
    assert page_of(tmp_path, json.loads(kept)) == first
    assert {path.name: path.read_bytes() for path in (tmp_path / "page/results").glob("*.svg")} == pictures
    assert set(pictures) == {"peers.svg", "scaling.svg"}
    measured = tmp_path / "measured"  # as the driver leaves them
    measured.mkdir()
    for at, part in enumerate(recorded()["parts"]):
        (measured / f"{at}.json").write_text(json.dumps(part))
    done = run(REPORT, "--figures", measured, "--to", tmp_path / "other")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "other/RESULTS.md").read_text() == first
    assert (tmp_path / "other/results/figures.json").read_text() == kept


@needs_matplotlib
def test_parts_of_different_programs_or_machines_make_no_page(tmp_path):
    for change, named in ((("key", "programs", "other"), "other programs"), (("figures", "machine", {}), "different machines")):
        content = recorded()
        content["parts"][0][change[0]][change[1]] = change[2]
        (tmp_path / "figures.json").write_text(json.dumps(content))
        done = run(REPORT, "--figures", tmp_path / "figures.json", "--to", tmp_path / "page")
        assert done.returncode == 1 and named in done.stderr


@needs_matplotlib
@pytest.mark.parametrize("part, word, value", [("peers/M/LMDB", "--scale", "0.5"), ("peers/M/LMDB", "--seconds", "0.01"),
                                               ("scaling/caches", "--repetitions", "4")])
def test_a_try_is_said_to_be_one_and_is_not_published(part, word, value, tmp_path):
    content = recorded()
    words = next(each for each in content["parts"] if each["part"] == part)["key"]["words"]
    words[words.index(word) + 1] = value
    (tmp_path / "figures.json").write_text(json.dumps(content))
    done = run(REPORT, "--figures", tmp_path / "figures.json", "--to", tmp_path / "page", "--whole")
    assert done.returncode == 1 and part in done.stderr
    if word == "--scale":
        assert "**A try: 1 parts (peers/M/LMDB)" in page_of(tmp_path, content)


@needs_matplotlib
def test_a_reason_stands_beside_what_is_missed(tmp_path):
    reasons = tmp_path / "reasons"
    reasons.write_text("# why\nW2: pages are made first\nW2 M: the guest makes pages\nG1: not shown, it is met\n")
    page = page_of(tmp_path, recorded(), "--reasons", reasons)
    assert "| **missed** | the guest makes pages |" in page
    assert "not shown" not in page
    for wrong in ("W2 the colon is missing", "Z9: no such row"):
        reasons.write_text(f"# why\n{wrong}\n")
        done = run(REPORT, "--figures", RECORDED, "--to", tmp_path, "--reasons", reasons)
        assert done.returncode == 1 and f"{reasons}:2" in done.stderr and wrong in done.stderr


@needs_matplotlib
@pytest.mark.skipif(not (ROOT / "perf/RESULTS.md").exists(), reason="no page of figures is published yet")
def test_the_published_page_is_what_its_figures_make(tmp_path):
    done = run(REPORT, "--figures", ROOT / "perf/results/figures.json", "--whole", "--to", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "RESULTS.md").read_text() == (ROOT / "perf/RESULTS.md").read_text(), "make results"
