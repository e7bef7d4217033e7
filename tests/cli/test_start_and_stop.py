# SPDX-License-Identifier: Apache-2.0
"""Where a server starts, where it must not, and what it survives."""
import os
import re
import select
import shutil
import signal
import socket
import stat
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from conftest import ADMIN, OTHER_USER, SERVER, THIRD_USER, free_port, is_alive, send, wait_until


def no_process_left(sandbox):
    wait_until(lambda: not sandbox.processes(), "all processes of the server have ended")


def test_when_start_returns_the_server_serves(sandbox):
    for _ in range(5):
        sandbox.start()
        assert sandbox.session()
        assert sandbox.admin("--stop").status == 0


def test_when_stop_returns_the_server_is_gone_and_its_socket_too(served):
    assert [entry for entry in os.listdir(served.directory) if str(served.port) in entry]
    assert served.admin("--stop").status == 0
    no_process_left(served)
    sockets = [entry for entry in served.directory.iterdir() if stat.S_ISSOCK(entry.lstat().st_mode)]
    assert not sockets
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", served.port))


def test_stop_drops_the_sessions(served):
    served.session()
    assert served.admin("--stop").status == 0
    served.start()
    assert "No active sessions." in served.admin("--list_sessions").out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_server_cleanly(sandbox, number):
    os.kill(sandbox.start(), number)
    no_process_left(sandbox)
    result = sandbox.admin("--stop")
    assert result.status == 1 and "is not reachable" in result.err, result
    sandbox.start()


def test_a_second_start_changes_nothing(served):
    session = served.session()
    assert served.admin("--start").status == 1
    assert str(session) in served.admin("--list_sessions").out


def test_the_daemon_holds_none_of_the_callers_descriptors(sandbox):
    ours, theirs = os.pipe()
    sandbox.admin("--start", pass_fds=[theirs])
    os.close(theirs)
    readable, _, _ = select.select([ours], [], [], 0)  # the end of it, if nobody else has the other end
    os.close(ours)
    assert readable


def test_the_daemon_has_a_session_of_its_own(sandbox):
    pid = sandbox.start()
    assert os.getsid(pid) == pid or os.getsid(pid) != os.getsid(0)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"


def test_the_folder_is_for_its_owner_alone(served):
    assert stat.S_IMODE(served.directory.stat().st_mode) == 0o700


def test_a_port_held_by_another_program_is_an_error_that_names_it(sandbox):
    with socket.create_server(("127.0.0.1", sandbox.port)):
        result = sandbox.admin("--start")
    assert (result.status, result.out) == (1, "") and str(sandbox.port) in result.err, result
    wait_until(lambda: not sandbox.processes(), "the server that could not start has ended")
    sandbox.start()


def test_servers_on_two_ports_do_not_share_sessions(served):
    other = free_port()
    served.start("-p", other)
    session = served.session()
    assert served.admin("-d", session, "-p", other).status == 1
    assert served.admin("-d", session).status == 0


@pytest.mark.parametrize("folder", ["relative", ".", "/path_that_does_not_exist", "/dev/null", "/proc", "blank at end "])
def test_a_spill_folder_that_cannot_be_used_is_refused(sandbox, folder):
    result = sandbox.admin("--start", "--spilldir", folder, cwd=sandbox.folder)
    assert (result.status, result.out) == (1, "") and "not writable" in result.err, result
    assert not sandbox.processes()


def test_a_spill_folder_that_is_not_there_is_told_how_to_be_made(sandbox):
    result = sandbox.admin("--start", "-s", "/path_that_does_not_exist")
    assert "does not exist; make it with mkdir -p /path_that_does_not_exist. See cache_admin --help" in result.err, result


def test_a_libcache_dir_below_nothing_is_named_by_client_and_server(sandbox):
    nowhere = sandbox.folder / "no" / "where"
    for command in ("--start", "--server_info", "-g"):
        result = sandbox.admin(command, env={"LIBCACHE_DIR": str(nowhere)})
        assert (result.status, result.out) == (1, ""), result
        assert f"the folder {nowhere} (LIBCACHE_DIR) does not exist" in result.err, result
        assert f"mkdir -p {nowhere}" in result.err and "cache_admin --start" not in result.err, result
    result = sandbox.admin("--server_info", env={"LIBCACHE_DIR": str(nowhere.parent)})  # this one a server would make
    assert f"cache_admin --start -p {sandbox.port}" in result.err, result


def test_a_spill_folder_with_a_blank_in_its_name_is_good(sandbox):
    folder = sandbox.folder / "spilled rows"
    folder.mkdir()
    sandbox.start("-s", folder)
    assert sandbox.admin("--server_info", "--json").json()["spill_dir"] == str(folder)


def test_hidden_options_of_the_original_are_taken(sandbox):
    sandbox.start("-m", "64", "-r", "0.5")
    half = sandbox.admin("--server_info", "--json").json()["memory_limit_bytes"]
    sandbox.admin("--stop")
    sandbox.start("--shared_memory_size", "1", "--memory_cap_ratio", "1")
    info = sandbox.admin("--server_info", "--json").json()
    assert half < info["memory_limit_bytes"], "-m is no limit"
    with open(info["log_path"], encoding="utf-8") as log:
        assert "-m 1 (--shared_memory_size) has no effect" in log.read()


def test_it_starts_with_an_empty_environment(sandbox):
    """The folder is then /tmp/libcache-<uid>, where a server of the caller may run: the port is a free one."""
    port = free_port()
    nothing = {name: None for name in sandbox.environment}
    started = sandbox.admin("--start", "--json", "-p", port, env=nothing)
    assert started.status == 0, started
    try:
        info = sandbox.admin("--server_info", "--json", "-p", port, env=nothing).json()
        sandbox.pids.update((info["keeper_pid"], info["broker_pid"]))
        assert info["socket_path"].startswith(f"/tmp/libcache-{os.getuid()}/")
        # ssh, cron and containers differ in this variable: the same server is found.
        assert sandbox.admin("-g", "-p", port, env={"LIBCACHE_DIR": None, "XDG_RUNTIME_DIR": "/nowhere"}).status == 0
    finally:
        assert sandbox.admin("--stop", "-p", port, env=nothing).status == 0
        os.unlink(started.json()["log_path"])


def test_it_starts_with_all_standard_streams_closed(sandbox):
    result = sandbox.command("sh", "-c", f"exec '{ADMIN}' --start <&- >&- 2>&-")
    assert result.status == 0 and sandbox.server_runs(), result


def test_a_killed_server_is_followed_by_a_new_one(sandbox):
    pid = sandbox.start()
    session = sandbox.session()
    victims = sandbox.processes()
    for victim in [pid, *(victims - {pid})]:  # the keeper first: it would start another broker
        os.kill(victim, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, victims)), "keeper and broker are dead")
    assert "is not reachable" in sandbox.admin("-g").err
    sandbox.start()
    assert sandbox.admin("-d", session).status == 1  # the sessions went with it
    assert sandbox.session()


def test_a_client_that_is_still_attached_to_a_killed_server_does_not_hinder_a_new_one(served):
    writer = served.hold_rows(served.session(), 1, 10, 100)
    info = served.admin("--server_info", "--json").json()
    for victim in info["keeper_pid"], info["broker_pid"]:  # the keeper first: it would start another broker
        os.kill(victim, signal.SIGKILL)
    wait_until(lambda: served.processes() == {writer.pid}, "only the client lives")
    served.start()
    assert "No active sessions." in served.admin("--list_sessions").out
    writer.communicate()
    assert writer.returncode == 0


@pytest.mark.parametrize("what", ["socket", "folder"])
def test_a_deleted_socket_is_made_anew_and_the_server_goes_on(served, what):
    session = served.session()
    socket_path = served.admin("--server_info", "--json").json()["socket_path"]
    if what == "socket":
        os.unlink(socket_path)
    else:
        shutil.rmtree(served.directory)
    wait_until(lambda: os.path.exists(socket_path), "the socket is there again")
    wait_until(served.server_runs, "the server answers again")
    assert served.admin("-d", session).status == 0
    assert stat.S_IMODE(served.directory.stat().st_mode) == 0o700


def test_a_deleted_socket_does_not_let_a_second_server_in(served):
    os.unlink(served.admin("--server_info", "--json").json()["socket_path"])
    result = served.admin("--start")
    assert result.status == 1 and result.err, result
    wait_until(served.server_runs, "the first server answers again")


def test_a_folder_of_another_user_is_refused(sandbox):
    sandbox.needs_user(OTHER_USER)
    sandbox.give_to(OTHER_USER)
    sandbox.directory.chmod(0o777)
    result = sandbox.admin("--start")
    assert (result.status, result.out) == (1, "") and str(sandbox.directory) in result.err, result


def test_a_file_in_the_place_of_the_folder_is_refused(sandbox):
    sandbox.directory.write_text("")
    result = sandbox.admin("--start")
    assert (result.status, result.out) == (1, "") and str(sandbox.directory) in result.err, result


def test_a_folder_whose_path_is_too_long_for_a_socket_is_refused_with_the_reason(sandbox):
    long_path = sandbox.folder / ("x" * 120)
    for words in (("--start",), ("-g",)):
        result = sandbox.admin(*words, env={"LIBCACHE_DIR": str(long_path)})
        assert (result.status, result.out) == (1, "") and result.err, result
    assert not sandbox.processes()


def test_the_server_program_is_found_by_its_variable_and_by_path(sandbox):
    """Where it does not lie beside cache_admin."""
    alone = sandbox.lone_admin()
    missing = sandbox.command(alone, "--start", env={"PATH": "/nowhere"})
    assert (missing.status, missing.out) == (1, "") and "cache_server" in missing.err, missing
    for env in ({"LIBCACHE_SERVER": str(SERVER)}, {"PATH": f"{SERVER.parent}:{os.environ['PATH']}"}):
        started = sandbox.command(alone, "--start", env=env)
        assert started.status == 0, started
        assert sandbox.admin("--stop").status == 0


def test_a_server_program_that_dies_by_a_signal_is_an_error(sandbox):
    alone = sandbox.lone_admin()
    program = alone.parent / "cache_server"
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    for words in (("--start",), ("--start", "--json")):
        result = sandbox.command(alone, *words)
        assert result.status == 1 and "signal 9" in result.err, result


def test_two_users_start_with_the_defaults(sandbox):
    """Port 50052 and /tmp/libcache-<uid>, which only the default gives: so by users who are not the caller."""
    users = (OTHER_USER, THIRD_USER)
    for uid in users:
        sandbox.needs_user(uid)
        if os.path.exists(f"/tmp/libcache-{uid}"):
            pytest.skip(f"/tmp/libcache-{uid} exists already")
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", 50052))
        except OSError:
            pytest.skip("TCP port 50052 is taken")
    defaults = {"LIBCACHE_DIR": None, "MS_CACHE_PORT": None}

    def admin(uid, *words):
        return sandbox.command(*sandbox.as_user(uid), ADMIN, *words, env=defaults)

    try:
        for uid in users:
            started = admin(uid, "--start")
            assert started.status == 0, started
        infos = [admin(uid, "--server_info", "--json").json() for uid in users]
        assert [info["port"] for info in infos] == [50052, 50052]
        assert [info["tcp_port"] for info in infos] == [50052, None]
        assert [info["socket_path"].startswith(f"/tmp/libcache-{uid}/") for uid, info in zip(users, infos)] == [True] * 2
        assert "another user" in admin(THIRD_USER, "--server_info").out
        sessions = [int(admin(uid, "-g").out.split()[-1]) for uid in users]
        assert admin(OTHER_USER, "-d", sessions[1]).status == 1
        assert [admin(uid, "-d", session).status for uid, session in zip(users, sessions)] == [0, 0]
        assert admin(OTHER_USER, "--stop").status == 0
        assert admin(THIRD_USER, "--stop").status == 0
    finally:
        sandbox.end_all()
        for uid in users:
            shutil.rmtree(f"/tmp/libcache-{uid}", ignore_errors=True)


def test_another_user_cannot_speak_to_a_server(served):
    served.needs_user(OTHER_USER)
    served.folder.chmod(0o755)
    result = served.command(*served.as_user(OTHER_USER), ADMIN, "--server_info")
    assert result.status == 1 and result.err, result
    # Not even where the folder lets it pass: the server looks at who speaks.
    served.directory.chmod(0o755)
    for entry in served.directory.iterdir():
        entry.chmod(0o666)
    result = served.command(*served.as_user(OTHER_USER), ADMIN, "--server_info")
    assert (result.status, result.out) == (1, "") and result.err, result
    assert served.server_runs()


def test_a_broker_that_keeps_dying_is_restarted_with_back_off_and_the_log_says_so(sandbox):
    sandbox.start("-l", "0")
    log = Path(sandbox.admin("--server_info", "--json").json()["log_path"])
    for death in range(3):
        info = sandbox.admin("--server_info", "--json").json()
        assert info["supervised"] is True and info["generation"] == death + 1
        send(info["broker_pid"], signal.SIGKILL)
        wait_until(lambda: log.read_text().count("killed by signal 9") == death + 1, "the keeper sees the death")
    wait_until(sandbox.server_runs, "the last broker serves")
    # Never before: that no load of the machine can bring about.
    told = [(datetime.fromisoformat(when), pause) for when, pause in
            re.findall(r"^(\S+ \S+) .*(?:the next starts in (\d+) ms|broker started as process)", log.read_text(), re.M)]
    pauses = [int(pause) for _, pause in told if pause]
    assert pauses == [0, 50, 100]
    for (death, pause), (start, _) in zip(told, told[1:]):
        assert not pause or start - death >= timedelta(milliseconds=int(pause) - 1), told


def test_an_unsupervised_server_says_so_and_another_starts_when_it_is_stopped(sandbox):
    pid = sandbox.start()
    session = sandbox.session()
    send(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), "the keeper has ended")
    wait_until(lambda: sandbox.admin("--server_info", "--json").json()["supervised"] is False, "the broker notices")
    assert "nobody restarts the server" in sandbox.admin("--server_info").out
    assert str(session) in sandbox.admin("--list_sessions").out
    assert sandbox.admin("--stop").status == 0
    sandbox.start()


def test_start_works_at_once_after_keeper_and_broker_were_killed(sandbox):
    pid = sandbox.start()
    broker = sandbox.admin("--server_info", "--json").json()["broker_pid"]
    send(pid, signal.SIGKILL)
    send(broker, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid) and not is_alive(broker), "both have ended")
    sandbox.start()
    assert "No active sessions." in sandbox.admin("--list_sessions").out
