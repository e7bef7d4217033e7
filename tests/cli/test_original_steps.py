# SPDX-License-Identifier: Apache-2.0
"""The 47 steps by which the original tests its own command line, each with the state of the server that it needs. Where
the original relies on the default port, the sandbox's port is made the default (MS_CACHE_PORT)."""
import os
import signal
import socket

import pytest

from conftest import ADMIN, OTHER_USER, free_port, is_alive, wait_until

MOST_WORKERS = max(os.cpu_count(), 100)

REFUSED = {  # no server runs, and none does afterwards
    "A01 two commands": "--start --stop",
    "A02 no command": "--port 50082",
    "A03 a port that is no number": "-p abc --start",
    "A04 a command in the place of the port": "-p --start",
    "A05 an unknown option": "-p 50082 --start --not_exist_cmd",
    "A06 a spill folder that does not exist": "--start --spilldir /path_that_does_not_exist",
    "A14 stop without a server": "--stop",
    "A15 host 0.0.0.0": "--start -h 0.0.0.0",
    "A16 a host that is none": "--start -h illegal",
    "A17 no host after -h": "--start -h",
    "A18 an option in the place of the host": "--start -h --hostname",
    "A19 an option with its value in the place of the host": "--start -h --hostname 127.0.0.1",
    "A20 port 0": "--start -p 0",
    "A21 port -1": "--start -p -1",
    "A22 port 65536": "--start -p 65536",
    "A23 a port that is a word": "--start -p illegal",
    "A24 no port after -p": "--start -p",
    "A26 a session without a server": "-g",
    "A37 workers 0": "--start -w 0",
    "A38 workers -1": "--start -w -1",
    "A39 workers that are a word": "--start -w illegal",
    "A40 one worker too many": f"--start -w {MOST_WORKERS + 1}",
    "A41 very many workers": "--start -w 9999999",
    "A42 no number after -w": "--start -w",
    "A43 no folder after -s": "--start -s",
    "A45 log level 5": "--start -l 5",
    "A46 log level -1": "--start -l -1",
    "A47 no level after -l": "--start -l",
}

REFUSED_BY_SERVER = {  # a server runs, and still does afterwards
    "A28 a word after -g": "-g 1",
    "A29 session -2": "-d -2",
    "A30 a session that is a word": "-d illegal",
    "A31 no session after -d": "-d",
    "A32 an unknown session": "-d 99999",
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED.keys())
def test_without_a_server_it_refuses(sandbox, words):
    result = sandbox.admin(*words.split())
    assert (result.status, result.out) == (1, "") and result.err, result
    assert not sandbox.server_runs()


@pytest.mark.parametrize("words", REFUSED_BY_SERVER.values(), ids=REFUSED_BY_SERVER.keys())
def test_with_a_server_it_refuses(served, words):
    result = served.admin(*words.split())
    assert (result.status, result.out) == (1, "") and result.err, result
    assert served.server_runs()


def test_a07_a_server_starts_after_the_former_one_was_killed(sandbox):
    sandbox.start()

    def killed():  # again and again: the keeper may have started a new broker between two kills
        for pid in sandbox.processes():
            os.kill(pid, signal.SIGKILL)
        return not sandbox.processes()

    wait_until(killed, "the killed server is gone")
    assert sandbox.admin("--start").status == 0


def test_a08_a_second_start_is_refused(served):
    assert served.admin("--start").status == 1


def test_a09_a_server_that_runs_is_stopped(served):
    assert served.admin("--stop").status == 0
    assert not served.server_runs()


def test_a10_a_server_starts_on_the_default_port(sandbox):
    assert sandbox.admin("--start").status == 0


def test_a11_a_second_server_starts_on_another_port(served):
    assert served.admin("--start", "-p", free_port()).status == 0


def test_a12_stop_ends_the_server_of_the_default_port_alone(served):
    other = free_port()
    served.start("-p", other)
    assert served.admin("--stop").status == 0
    assert served.admin("--server_info", "-p", other).status == 0


def test_a13_stop_with_a_port_ends_the_server_of_that_port(served):
    other = free_port()
    served.start("-p", other)
    assert served.admin("--stop", "-p", other).status == 0
    assert served.server_runs()


def test_a25_a_port_that_another_program_listens_on_is_refused(sandbox):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        result = sandbox.admin("--start", "-p", port)
        assert (result.status, result.out) == (1, "") and str(port) in result.err, result


def test_a27_a_server_starts_where_a_session_was_refused(sandbox):
    assert sandbox.admin("-g").status == 1
    assert sandbox.admin("--start").status == 0


def test_a33_a_session_is_made_and_its_id_is_the_last_word(served):
    assert 0 < served.session() < 2**32


def test_a34_a_second_session_has_another_id(served):
    assert served.session() != served.session()


def test_a35_two_sessions_are_dropped_in_one_call(served):
    assert served.admin("-d", served.session(), served.session()).status == 0
    assert "No active sessions." in served.admin("--list_sessions").out


def test_a36_a_server_that_had_sessions_is_stopped(sandbox):
    pid = sandbox.start()
    sandbox.session()
    assert sandbox.admin("--stop").status == 0
    wait_until(lambda: not is_alive(pid), "the server has ended")


def test_a44_a_spill_folder_without_permission_is_refused(sandbox):
    as_user = []
    if os.geteuid() == 0:
        sandbox.needs_user(OTHER_USER)
        as_user = sandbox.as_user(OTHER_USER)
        sandbox.give_to(OTHER_USER)
    result = sandbox.command(*as_user, ADMIN, "--start", "-s", "/")
    assert (result.status, result.out) == (1, "") and "not writable" in result.err, result
