#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Runs every test of a build folder and ends with one line 'N passed, N failed'.

A test program is an executable of BUILD/tests: a Criterion program (each of its tests counts) or a plain one (exit 0
passed, 77 skipped, anything else failed; its last line of output says why). The folders of PYTEST_FOLDERS run under
pytest. `--sanitized FOLDER` adds the programs of a second build (make test-asan, test-tsan) to the same count.

Each program runs in a session of its own under a watchdog, with a temporary folder of its own. Every process that it
starts carries LIBCACHE_TEST_RUN in its environment: what is still alive when the program has ended is killed and
makes it fail, since a test that leaves a server behind has not tested its end.
"""
import argparse
import ast
import concurrent.futures
import fnmatch
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST_FOLDERS = ["tests/cli", "tests/cost", "tests/docs", "tests/examples", "tests/exchange", "tests/perf",
                  "bindings/cpp/tests", "bindings/python/tests", "bindings/rust/tests", "tests/abi", "tests/packaging"]
PYTEST_BY_FILE = ["bindings/python/tests"]  # it takes minutes: each file is a program, under a watchdog of its own
SKIPPED = 77
EMULATOR = os.environ.get("LIBCACHE_TEST_EMULATOR", "").split()  # of programs for another machine: tests/aarch64
LEFTOVER_GRACE_SECONDS = 10  # for a server that ends by itself when its client has ended


class Program:
    """One thing to start: a Criterion program, a plain program or a pytest folder."""

    def __init__(self, name, kind, path, build):
        self.name, self.kind, self.path, self.build = name, kind, path, build

    def command(self, report):
        if self.kind == "criterion":
            return [*EMULATOR, str(self.path), f"--xml={report}", "-j1", "--timeout", "1200" if EMULATOR else "120"]
        if self.kind == "pytest":
            return ["/usr/bin/python3", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}",
                    str(self.path)]
        return [*EMULATOR, str(self.path)]


class Result:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.reasons = []  # of skipped tests
        self.output = ""
        self.seconds = 0.0


def find_programs(build, prefix=""):
    """The programs of build/tests; `prefix` names a sanitized build."""
    programs = []
    for path in sorted((build / "tests").glob("*")):
        if path.is_file() and os.access(path, os.X_OK):
            kind = "criterion" if b"libcriterion.so" in path.read_bytes() else "plain"
            programs.append(Program(prefix + path.name, kind, path, build))
    return programs


def find_pytest_folders(build):
    programs = []
    for folder in PYTEST_FOLDERS:
        files = sorted((ROOT / folder).glob("**/test_*.py"))
        if folder in PYTEST_BY_FILE:
            programs += [Program(str(file.relative_to(ROOT)), "pytest", file, build) for file in files]
        elif files:
            programs.append(Program(folder, "pytest", ROOT / folder, build))
    return programs


def processes_of(run_id):
    """Living processes (pid, command line) that were started under this run id."""
    marker = f"LIBCACHE_TEST_RUN={run_id}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            if marker in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                command = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append((int(entry), command.strip()))
        except OSError:
            pass  # ended meanwhile, or of another user
    return found


def kill_processes(processes):
    for pid, _ in processes:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def where_it_hangs(run_id):
    """What each thread of a hanging program waits for, as far as the kernel tells."""
    lines = []
    for pid, command in processes_of(run_id):
        lines.append(f"  process {pid}: {command}")
        for task in sorted(Path("/proc", str(pid), "task").glob("*")):
            try:
                name, wait = (task / "comm").read_text().strip(), (task / "wchan").read_text().strip()
                lines.append(f"    thread {task.name} ({name}) waits in {wait}")
            except OSError:
                pass
    return "\n".join(lines)


def leftovers_of(run_id):
    """Processes that outlive their test; servers get a moment to see that nobody needs them."""
    deadline = time.monotonic() + LEFTOVER_GRACE_SECONDS
    while (left := processes_of(run_id)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def run_process(program, report, folder, run_id, watchdog):
    """Returns (exit status or None if it hung, everything it wrote)."""
    environment = dict(os.environ, LIBCACHE_BUILD=str(program.build), LIBCACHE_TEST_RUN=run_id, TMPDIR=folder,
                       PYTHONDONTWRITEBYTECODE="1",
                       # handle_segv: tests that expect SIGSEGV must see the signal itself
                       ASAN_OPTIONS="detect_leaks=1:handle_segv=0:" + os.environ.get("ASAN_OPTIONS", ""),
                       UBSAN_OPTIONS="print_stacktrace=1:" + os.environ.get("UBSAN_OPTIONS", ""),
                       TSAN_OPTIONS="halt_on_error=1:second_deadlock_stack=1:" + os.environ.get("TSAN_OPTIONS", ""))
    for name in ("LIBCACHE_DIR", "LIBCACHE_PORT", "LIBCACHE_SESSION", "SESSION_ID", "MS_CACHE_PORT", "MS_CACHE_HOST",
                 "GLOG_v"):
        environment.pop(name, None)  # what the developer's shell says must not reach a test
    # The output goes to a file: a forgotten server would keep a pipe open and block us.
    with open(os.path.join(folder, "output"), "w+b") as output:
        process = subprocess.Popen(program.command(report), stdin=subprocess.DEVNULL, stdout=output,
                                   stderr=subprocess.STDOUT, env=environment, cwd=ROOT, start_new_session=True)
        status, note = None, ""
        try:
            status = process.wait(timeout=watchdog)
        except subprocess.TimeoutExpired:
            note = f"\nkilled by the watchdog after {watchdog} s:\n{where_it_hangs(run_id)}\n"
            kill_processes(processes_of(run_id))
            process.kill()
            process.wait()
        output.seek(0)
        return status, output.read().decode(errors="replace") + note


def count_xml(report, result):
    """Adds the single tests of a JUnit-like report (Criterion, pytest)."""
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            result.failed += 1
        elif case.find("skipped") is not None:
            result.skipped += 1
            if reason := skip_reason(case.find("skipped")):
                result.reasons.append(f"{case.get('name')}: {reason}")
        else:
            result.passed += 1


def skip_reason(skipped):
    """Why; of a file that skips itself as a whole, pytest says it in the text only: (path, line, 'Skipped: why')."""
    message = skipped.get("message")
    if message != "collection skipped" or not skipped.text:
        return message
    return ast.literal_eval(skipped.text)[2].removeprefix("Skipped: ")


def judge(program, status, report, result):
    if program.kind == "plain":
        if status == 0:
            result.passed = 1
        elif status == SKIPPED:
            result.skipped = 1
            result.reasons.append((result.output.strip().splitlines() or ["no reason given"])[-1])
        else:
            result.failed = 1
        return
    if os.path.exists(report):
        count_xml(report, result)
    if program.kind == "criterion":
        result.reasons += re.findall(r"^SKIP (.*)$", result.output, re.MULTILINE)
        # Criterion counts such a test as passed.
        result.failed += len(re.findall(r"crashed during its setup or teardown", result.output))
    nothing_ran = result.passed + result.failed + result.skipped == 0
    all_skipped = program.kind == "pytest" and status == 5 and result.skipped > 0  # 5: no test was collected
    if (status != 0 and result.failed == 0 and not all_skipped) or nothing_ran:
        result.failed += 1  # it hung, crashed as a whole, or held no test


def run_program(program, watchdog):
    result, run_id = Result(), str(uuid.uuid4())
    folder = tempfile.mkdtemp(prefix="lct-", dir="/tmp")  # short: a socket's path has 107 bytes
    os.chmod(folder, 0o1777)  # as /tmp is: some tests go on as another user
    report = os.path.join(folder, "report.xml")
    started = time.monotonic()
    try:
        status, result.output = run_process(program, report, folder, run_id, watchdog)
        judge(program, status, report, result)
        if status is not None and status < 0:
            result.output += f"\nended by signal {-status} ({signal.Signals(-status).name})\n"
        if left := leftovers_of(run_id):
            kill_processes(left)
            result.failed += 1
            result.output += "\nleft behind:\n" + "\n".join(f"  process {pid}: {command}" for pid, command in left)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result.seconds = time.monotonic() - started
    return result


def show(program, result):
    counts = [f"{n} {word}" for n, word in ((result.passed, "passed"), (result.failed, "failed"),
                                            (result.skipped, "skipped")) if n]
    print(f"{program.name:<40} {', '.join(counts):<30} {result.seconds:7.1f} s", flush=True)
    for reason in result.reasons:
        print(f"    skipped: {reason}")
    if result.failed:
        print("\n".join("    | " + line for line in result.output.rstrip().splitlines()), flush=True)


def parse_arguments():
    parser = argparse.ArgumentParser(description="Runs the tests of a build folder.")
    parser.add_argument("--build", default="build", help="folder with bin, lib and tests (default: build)")
    parser.add_argument("--sanitized", action="append", default=[], metavar="FOLDER",
                        help="also run the test programs of this build; its name goes in front of theirs")
    parser.add_argument("--no-pytest", action="store_true", help="test programs only")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="programs whose name matches (repeatable)")
    parser.add_argument("--list", action="store_true", help="print the names of the programs and end")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() + 1,  # some of them wait more than they compute
                        help="programs at a time (default: one more than CPUs)")
    parser.add_argument("--watchdog", type=int, default=300, help="seconds until a program is killed (default: 300)")
    return parser.parse_args()


def selected_programs(options):
    build = (ROOT / options.build).resolve()
    programs = find_programs(build) + ([] if options.no_pytest else find_pytest_folders(build))
    for folder in options.sanitized:
        folder = (ROOT / folder).resolve()
        programs += find_programs(folder, folder.name + "/")
    if options.only:
        programs = [program for program in programs
                    if any(fnmatch.fnmatch(program.name, f"*{pattern}*") for pattern in options.only)]
    return programs


def main():
    options = parse_arguments()
    # Started in the background of a shell we ignore it, and so would all that is tested
    signal.signal(signal.SIGINT, signal.default_int_handler)
    programs = selected_programs(options)
    if options.list:
        print("\n".join(program.name for program in programs))
        return 0
    totals = Result()
    with concurrent.futures.ThreadPoolExecutor(max(1, options.jobs)) as pool:
        running = {pool.submit(run_program, program, options.watchdog): program for program in programs}
        for finished in concurrent.futures.as_completed(running):
            result = finished.result()
            show(running[finished], result)
            totals.passed += result.passed
            totals.failed += result.failed
            totals.skipped += result.skipped
    skipped = f", {totals.skipped} skipped" if totals.skipped else ""
    print(f"{totals.passed} passed, {totals.failed} failed{skipped}")
    return 0 if totals.passed and not totals.failed else 1


if __name__ == "__main__":
    sys.exit(main())
