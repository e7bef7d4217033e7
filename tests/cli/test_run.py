# SPDX-License-Identifier: Apache-2.0
"""cache_admin --run: a server and a session for one program, and neither of them afterwards."""
import fcntl
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import time
from random import Random

import pytest

from conftest import ADMIN, is_alive, send, wait_until

# Says when it is ready, then waits for signals: prints the number of each, ends at the second or at end of input.
LISTENER = """
import signal, sys
numbers = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("ready", flush=True)
for _ in range(2):
    print(int(signal.sigwait(numbers)), flush=True)
sys.exit(7)
"""


def run(sandbox, *words, env=None, **options):
    return sandbox.admin("--run", "--", *words, env=env, **options)


def heed_signals():
    """The tests may run under nohup or as a job in the background; what is ignored there, programs inherit."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def launch(sandbox, *words, **options):
    """A program under --run that has said its first line."""
    options.setdefault("preexec_fn", heed_signals)
    process = sandbox.popen(ADMIN, "--run", "--", *words, **options)
    assert process.stdout.readline() == "ready\n", process.communicate(timeout=60)
    return process


def ended(sandbox, process):
    out, err = process.communicate(timeout=60)
    wait_until(lambda: not sandbox.processes(), "the server has ended")
    return process.returncode, out, err


def test_nothing_of_a_server_that_ended_well_is_left_and_the_log_of_one_that_was_killed_is(sandbox):
    assert run(sandbox, "true").status == 0
    assert os.listdir(sandbox.directory) == []
    run(sandbox, "sh", "-c", f"'{ADMIN}' --server_info --json > '{sandbox.folder}/info'; "
        f"kill -9 $('{sys.executable}' -c 'import json; info = json.load(open(\"{sandbox.folder}/info\")); "
        "print(info[\"keeper_pid\"], info[\"broker_pid\"])')")
    assert [name for name in os.listdir(sandbox.directory) if name.endswith(".log")]


def no_socket_left(sandbox):
    return not [name for name in os.listdir(sandbox.directory) if not name.endswith(".log")]


@pytest.mark.parametrize("status", [0, 1, 3, 255])
def test_it_passes_the_exit_status_on(sandbox, status):
    result = run(sandbox, "sh", "-c", f"exit {status}")
    assert (result.status, result.out, result.err) == (status, "", "")
    assert not sandbox.processes() and no_socket_left(sandbox)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_death_by_a_signal_is_128_and_the_signal(sandbox, number):
    assert run(sandbox, "sh", "-c", f"kill -{int(number)} $$").status == 128 + number
    assert not sandbox.processes()


def test_a_program_that_does_not_exist_is_127_and_one_that_cannot_be_run_126(sandbox):
    missing = run(sandbox, "/no/such/program")
    assert missing.status == 127 and "/no/such/program" in missing.err, missing
    forbidden = run(sandbox, "/etc/passwd")
    assert forbidden.status == 126 and "/etc/passwd" in forbidden.err, forbidden
    assert not sandbox.processes()


def test_the_program_finds_server_and_session_in_its_environment(sandbox):
    script = ("import json, os; print(json.dumps({name: os.environ.get(name) for name in "
              "('LIBCACHE_PORT', 'LIBCACHE_SESSION', 'SESSION_ID', 'LIBCACHE_DIR', 'SOMETHING')}))")
    result = run(sandbox, sys.executable, "-c", script, env={"SOMETHING": "else"})
    assert result.status == 0, result
    seen = json.loads(result.out)
    assert 1025 <= int(seen["LIBCACHE_PORT"]) <= 65535 and int(seen["LIBCACHE_PORT"]) != sandbox.port
    assert seen["LIBCACHE_SESSION"] == seen["SESSION_ID"] and 0 < int(seen["SESSION_ID"]) < 2**32
    assert (seen["LIBCACHE_DIR"], seen["SOMETHING"]) == (str(sandbox.directory), "else")


def test_the_server_answers_the_program_and_has_the_session(sandbox):
    result = run(sandbox, "sh", "-c", f"echo $SESSION_ID; '{ADMIN}' --server_info --json")
    session, info = result.out.splitlines()
    info = json.loads(info)
    assert info["session_ids"] == [int(session)] and info["supervised"]
    assert not is_alive(info["keeper_pid"]) and not is_alive(info["broker_pid"])


def test_the_program_can_store_rows(sandbox):
    words = [str(word) for word in sandbox.rows_command("$SESSION_ID", 1, 10, 100)]
    words[words.index(str(sandbox.port))] = "$LIBCACHE_PORT"
    words[-1] = "''"
    result = run(sandbox, "sh", "-c", f"{' '.join(words)} && '{ADMIN}' --list_sessions --json")
    assert result.status == 0, result
    cache, = json.loads(result.out)["sessions"][0]["caches"]
    assert cache["rows_in_memory"] == 10


def test_arguments_stdin_and_stdout_are_the_programs_own(sandbox):
    script = "import sys; print(sys.argv[1:]); print(sys.stdin.read()); print('to stderr', file=sys.stderr)"
    with open(sandbox.folder / "input", "w+") as data:
        data.write("from stdin")
        data.seek(0)
        result = run(sandbox, sys.executable, "-c", script, "a b", "", "--port", "--", "-g", stdin=data)
    assert (result.status, result.err) == (0, "to stderr\n"), result
    assert result.out == "['a b', '', '--port', '--', '-g']\nfrom stdin\n"


def test_options_reach_the_server(sandbox):
    result = sandbox.admin("--run", "-w", "1", "-l", "2", "-s", sandbox.folder, "-p", sandbox.port, "--backing", "memfd",
                           "--name", "job", "--", "sh", "-c", f"'{ADMIN}' --server_info --json && '{ADMIN}' -g --name job")
    assert result.status == 0, result
    info, session = result.out.splitlines()
    info = json.loads(info)
    expected = {"workers": 1, "log_level": 2, "spill_dir": str(sandbox.folder), "port": sandbox.port, "backing": "memfd"}
    assert {name: info[name] for name in expected} == expected
    assert info["session_ids"] == [int(session.split()[-1])]


def test_a_server_that_does_not_start_is_an_error_and_the_program_does_not_run(sandbox):
    mark = sandbox.folder / "ran"
    result = sandbox.admin("--run", "-s", "/no/such/folder", "--", "touch", mark)
    assert (result.status, result.out) == (1, "") and "not writable" in result.err, result
    with socket.create_server(("127.0.0.1", sandbox.port)):
        result = sandbox.admin("--run", "-p", sandbox.port, "--", "touch", mark)
    assert (result.status, result.out) == (1, "") and str(sandbox.port) in result.err, result
    assert not mark.exists() and not sandbox.processes()


def test_several_runs_at_once_have_servers_of_their_own(sandbox):
    running = [launch(sandbox, "sh", "-c", "echo ready; cat; echo $LIBCACHE_PORT", stdin=subprocess.PIPE)
               for _ in range(4)]
    ports = {process.communicate(timeout=60)[0] for process in running}
    assert [process.returncode for process in running] == [0] * 4 and len(ports) == 4, ports
    assert not sandbox.processes()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1,
                                    signal.SIGUSR2])
def test_a_signal_is_passed_on_and_the_program_decides(sandbox, number):
    process = launch(sandbox, sys.executable, "-c", LISTENER)
    process.send_signal(number)
    assert process.stdout.readline() == f"{int(number)}\n"
    process.send_signal(number)
    status, out, err = ended(sandbox, process)
    assert (status, out, err) == (7, f"{int(number)}\n", "")
    assert no_socket_left(sandbox)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_program_that_the_signal_ends_gives_128_and_the_signal(sandbox, number):
    process = launch(sandbox, "sh", "-c", "echo ready; exec sleep 1000")
    process.send_signal(number)
    assert ended(sandbox, process) == (128 + number, "", "")


def test_the_program_begins_with_no_signal_held_back(sandbox):
    result = run(sandbox, "grep", "SigBlk", "/proc/self/status")
    assert result.out.split() == ["SigBlk:", "0" * 16]


def test_a_signal_that_is_ignored_stays_so(sandbox):
    """nohup: neither --run nor the program ends at a hang-up."""
    process = sandbox.popen("sh", "-c", f"trap '' HUP; exec '{ADMIN}' --run -- sh -c 'echo ready; cat; exit 5'",
                            stdin=subprocess.PIPE)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    assert ended(sandbox, process)[0] == 5


def test_ctrl_c_on_a_terminal_reaches_the_program_once_and_the_server_not_at_all(sandbox):
    main, terminal = pty.openpty()
    process = sandbox.popen(ADMIN, "--run", "--", sys.executable, "-c", LISTENER, stdin=terminal,
                            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
    os.close(terminal)
    try:
        assert process.stdout.readline() == "ready\n"
        os.write(main, b"\x03")
        assert process.stdout.readline() == f"{int(signal.SIGINT)}\n"
        # What the program sees next is this, not the same Ctrl-C passed on.
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == f"{int(signal.SIGUSR1)}\n"
        assert ended(sandbox, process)[0] == 7
    finally:
        os.close(main)


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:
        return b""


def test_when_cache_admin_is_killed_the_server_ends(sandbox):
    process = launch(sandbox, "sh", "-c", "echo ready; cat", stdin=subprocess.PIPE)
    servers = {pid for pid in sandbox.processes() if b"cache_server" in command_line(pid)}
    assert servers
    process.kill()
    wait_until(lambda: not any(is_alive(pid) for pid in servers), "the server has noticed")
    assert ended(sandbox, process)[0] == -signal.SIGKILL  # the program ends with its input


def test_a_signal_while_the_server_starts_ends_it_and_the_program_does_not_run(sandbox):
    """A server that never serves stands in for a slow one."""
    program = sandbox.folder / "slow_server"
    program.write_text(f"#!/bin/sh\necho $$ > '{sandbox.folder}/pid'\nexec sleep 1000\n")
    program.chmod(0o755)
    process = sandbox.popen(sandbox.lone_admin(), "--run", "--", "touch", sandbox.folder / "ran",
                            env={"LIBCACHE_SERVER": str(program)})
    wait_until((sandbox.folder / "pid").exists, "the server is starting")
    process.terminate()
    assert ended(sandbox, process)[0] == 128 + signal.SIGTERM
    assert not (sandbox.folder / "ran").exists()


def test_a_server_that_is_killed_does_not_end_the_program(sandbox):
    process = launch(sandbox, "sh", "-c", "echo ready; cat; exit 4", stdin=subprocess.PIPE)

    def killed():  # again and again: the keeper may have started a new broker between two kills
        servers = [pid for pid in sandbox.processes() if b"cache_server" in command_line(pid)]
        for pid in servers:
            send(pid, signal.SIGKILL)
        return not servers

    wait_until(killed, "keeper and broker are dead")
    assert "server" in process.stderr.readline()
    assert ended(sandbox, process)[0] == 4


def servers_of(sandbox):
    return [pid for pid in sandbox.processes() if b"cache_server" in command_line(pid)]


def is_keeper(pid):
    """The one of the two that leads their session."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def test_the_broker_ends_when_the_keeper_is_killed_even_if_it_was_not_looking(sandbox):
    process = launch(sandbox, "sh", "-c", "echo ready; cat; exit 4", stdin=subprocess.PIPE)
    keeper, broker = sorted(servers_of(sandbox), key=is_keeper, reverse=True)
    send(broker, signal.SIGSTOP)
    send(keeper, signal.SIGKILL)
    wait_until(lambda: not is_alive(keeper), "the keeper is dead")
    send(broker, signal.SIGCONT)
    wait_until(lambda: not is_alive(broker), "the broker has ended")  # while the program runs
    assert "server" in process.stderr.readline()
    assert ended(sandbox, process)[0] == 4


def test_wherever_its_keeper_is_killed_nothing_of_the_server_stays(sandbox):
    """From the first moment of its life on: before, at and after the fork of the broker."""
    random = Random(1)
    for _ in range(25):
        process = sandbox.popen(ADMIN, "--run", "--", "cat", stdin=subprocess.PIPE)
        keeper = wait_until(lambda: next(filter(is_keeper, servers_of(sandbox)), None), "the keeper is there")
        time.sleep(random.random() * 0.02)  # not to wait for anything: to meet it somewhere
        send(keeper, signal.SIGKILL)
        ended(sandbox, process)  # waits until no process is left
