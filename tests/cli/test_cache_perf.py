# SPDX-License-Identifier: Apache-2.0
"""cache_perf as its users run it: against a running server and with one of its own."""
import json
import os
import signal

import pytest
from conftest import BUILD, is_alive, wait_until

PERF = BUILD / "bin" / "cache_perf"
SMALL = ["-s", 1000, "-r", 800, "-n", 2, "-w", 2, "-e", 3]


def perf(sandbox, *words, **options):
    return sandbox.command(PERF, *words, **options)


def report_of(sandbox, *words):
    """Runs with --json and returns what was written there."""
    path = sandbox.folder / "figures.json"
    result = perf(sandbox, *words, "--json", path)
    assert result.status == 0, result
    return json.loads(path.read_text())


def folders(sandbox):
    return {name for name in os.listdir(sandbox.folder) if name.startswith("lcp-")}


@pytest.fixture
def alone(sandbox):
    """A sandbox in which --server auto makes its folder."""
    sandbox.environment["TMPDIR"] = str(sandbox.folder)
    return sandbox


def test_without_arguments_and_with_help_it_explains_itself(sandbox):
    for words in [], ["--help"]:
        result = perf(sandbox, *words)
        assert result.status == 0 and result.err == ""
        for option in ("--num_rows", "--row_size", "--pipeline", "--epoch", "--shuffle", "--prefetch_size", "--spill",
                       "--cache_size", "--workers", "--connection", "--port", "--hostname", "--help"):
            assert option in result.out


@pytest.mark.parametrize("words", [
    ["-s", "10"], ["-r", "8"], ["-s", "0", "-r", "8"], ["-s", "10", "-r", "0"], ["-s", "-4", "-r", "8"],
    ["-s", "1k", "-r", "8"], ["-s", "10", "-r", "8x"], ["-s", "10", "-r", "9-8"], ["-s", "10", "-r"],
    ["-s", "10", "-s", "11", "-r", "8"], ["-s", "10", "-r", "8", "-n", "11"], ["-s", "10", "-r", "8", "-n", "0"],
    ["-s", "10", "-r", "8", "-n", "-1"], ["-s", "10", "-r", "8", "-e", "0"], ["-s", "10", "-r", "8", "-p", "0"],
    ["-s", "10", "-r", "8", "-w", "0"], ["-s", "10", "-r", "8", "--port", "80"], ["-s", "10", "-r", "8", "-h"],
    ["-s", "10", "-r", "8", "--hostname", "10.0.0.1"], ["-s", "10", "-r", "8", "--ids", "odd"],
    ["-s", "10", "-r", "8", "--spilldir", "/tmp"], ["-s", "10", "-r", "8", "--server", "auto", "--port", "5000"],
    ["-s", "10", "-r", "8", "-n", "1", "unknown"],
], ids=" ".join)
def test_a_wrong_argument_is_status_2_and_one_sentence(sandbox, words):
    result = perf(sandbox, *words)
    assert result.status == 2 and result.out == "", result
    assert result.err.startswith("cache_perf: ") and len(result.err.splitlines()) == 2


def test_without_a_server_it_says_how_to_get_one(sandbox):
    result = perf(sandbox, *SMALL)
    assert result.status == 1 and "not reachable" in result.err, result


def test_the_tables_of_the_original(served):
    result = perf(served, *SMALL, "--shuffle")
    assert result.status == 0, result
    lines = result.out.splitlines()
    for line in ("Number of pipelines: 2", "Number of epochs: 3", "Sample size: 1000", "Average row size: 800",
                 "Shuffle: true"):
        assert line in lines
    heads = [i for i, line in enumerate(lines) if line.split()[:2] == ["Pipeline", "#"]]
    assert len(heads) == 3
    for head in heads:
        assert lines[head] == (f"{'Pipeline #':>12}{'worker id':>10}{'min (μs)':>10}{'max (μs)':>10}{'avg (μs)':>10}"
                               f"{'median (μs)':>13}{'buffer count':>14}{'Elapsed time (s)':>18}")
        workers = [line.split() for line in lines[head + 1:head + 5]]
        assert [worker[:2] for worker in workers] == [["0", "0"], ["0", "1"], ["1", "0"], ["1", "1"]]
        assert [worker[6] for worker in workers] == ["250"] * 4
    statistics = lines.index(f"{'Mem cached':>12}{'Disk cached':>12}{'Avg cache size':>16}{'Numa hit':>10}")
    assert lines[statistics + 1].split() == ["1000", "n/a", "800", "n/a"]
    assert sum(line.startswith("Elapsed time: ") for line in lines) == 3
    assert "memcpy, 1 thread" in result.out and "populate, per row" in result.out


def test_the_session_is_gone_afterwards(served):
    assert perf(served, *SMALL).status == 0
    assert "No active sessions" in served.admin("--list_sessions").out


@pytest.mark.parametrize("words", [
    [], ["--shuffle", "--batch", 32], ["--ids", "random"], ["-r", "1-3000"], ["-r", "5"], ["--copy", "--batch", 7],
    ["--ids", "random", "--copy", "-r", "100-200", "--shuffle"], ["-r", "300000", "-s", "100"],
], ids=lambda words: " ".join(map(str, words)) or "plain")
def test_every_byte_is_right(served, words):
    settings = {"-s": 1000, "-r": 800, "-n": 3, "-w": 2, "-e": 3}
    for option in list(settings):
        if option in words:
            del settings[option]
    figures = report_of(served, *[word for pair in settings.items() for word in pair], *words, "--verify")
    rows = figures["settings"]["num_rows"]
    assert [epoch["kind"] for epoch in figures["epochs"]] == ["write", "read", "read"]
    for epoch in figures["epochs"]:
        assert (epoch["rows"], epoch["missing"], epoch["refused"], epoch["wrong"]) == (rows, 0, 0, 0)
        assert epoch["warm"]["count"] + epoch["cold"]["count"] == epoch["times"]["count"]
        assert epoch["times"]["count"] == sum(worker["times"]["count"] for worker in epoch["workers"])
    assert figures["statistics"]["rows_in_memory"] == rows
    assert figures["statistics"]["row_bytes"] == figures["epochs"][0]["bytes"]


def test_the_quantiles_are_in_order_and_the_machine_is_described(served):
    figures = report_of(served, *SMALL)
    for epoch in figures["epochs"]:
        names = ("min_ns", "p50_ns", "p90_ns", "p99_ns", "p999_ns", "max_ns")
        times = [epoch["times"][name] for name in names]
        assert times == sorted(times) and times[0] >= 0
    for key in ("processor", "cpus", "memory_bytes", "kernel", "libcache", "build", "backing"):
        assert figures["context"][key]


def test_a_full_cache_is_said_and_the_run_goes_on(served):
    figures = report_of(served, "-s", 5000, "-r", 4096, "-n", 2, "-w", 1, "-e", 2, "-a", 4)
    write, read = figures["epochs"]
    assert write["refused"] > 0 and write["rows"] + write["refused"] == 5000
    assert read["rows"] == write["rows"] and read["missing"] == write["refused"]
    assert any("the cache was full" in sentence for sentence in figures["context"]["hindrances"])


def test_a_duration_replaces_the_number_of_epochs(served):
    figures = report_of(served, "-s", 1000, "-r", 80, "-n", 1, "-w", 1, "-e", 1, "--duration", 0.2)
    assert len(figures["epochs"]) > 1 and figures["epochs"][-1]["interrupted"]


def test_a_server_of_its_own_ends_with_the_run(alone):
    result = perf(alone, *SMALL, "--server", "auto")
    assert result.status == 0, result
    assert not alone.processes() and not folders(alone)


def test_ctrl_c_reports_what_there_is_and_leaves_nothing_behind(alone):
    process = alone.popen(PERF, "-s", 2000, "-r", 800, "-n", 2, "-w", 1, "--duration", 600, "--server", "auto",
                          start_new_session=True)
    for line in process.stdout:
        if line.startswith("Epoch 2"):
            break
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT, err
    assert "Ended early" in out and "were dropped" in out
    assert not alone.processes() and not folders(alone)


def test_a_killed_cache_perf_takes_its_pipelines_along(alone):
    process = alone.popen(PERF, "-s", 2000, "-r", 800, "-n", 2, "-w", 1, "--duration", 600, "--server", "auto")
    for line in process.stdout:
        if line.startswith("Epoch 2"):
            break
    process.kill()
    process.wait()
    process.stdout.close()
    process.stderr.close()
    wait_until(lambda: not alone.processes(), "pipelines and server end after cache_perf was killed")


def test_a_killed_pipeline_ends_the_run_with_its_number(alone):
    process = alone.popen(PERF, "-s", 2000, "-r", 800, "-n", 2, "-w", 1, "--duration", 600, "--server", "auto")
    pid = None
    for line in process.stdout:
        if line.startswith("Pipeline 1: process "):
            pid = int(line.split()[3].rstrip(","))
        if line.startswith("Epoch 2"):
            break
    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1 and "pipeline 1" in err and "signal 9" in err, err
    assert not alone.processes() and not folders(alone)


def test_a_server_without_a_spill_folder_refuses_spilling(served):
    result = perf(served, *SMALL, "--spill")
    assert result.status == 1 and "--spilldir" in result.err, result
    assert "No active sessions" in served.admin("--list_sessions").out


def test_spilled_rows_come_back_and_leave_nothing(alone):
    spill = alone.folder / "spill"
    spill.mkdir()
    result = perf(alone, "-s", "6000", "-r", "1000", "-n", "2", "-w", "1", "-e", "2", "-a", "4", "--verify", "--spill",
                  "--server", "auto", "--spilldir", spill)
    assert result.status == 0 and "Disk cached" in result.out and "not in the cache" not in result.out, result
    assert not list(spill.iterdir())
    assert not alone.processes() and not folders(alone)
