# SPDX-License-Identifier: Apache-2.0
"""--json: one object on one line, with the keys that --help lists."""
import json
import re

import pytest

from conftest import is_alive, wait_until


def test_each_output_is_one_line(sandbox):
    commands = [("--start",), ("-g",), ("--list_sessions",), ("--server_info",), ("--version",), ("--stop",)]
    for words in commands:
        result = sandbox.admin(*words, "--json")
        assert (result.status, result.err, result.out.count("\n")) == (0, "", 1), result
        assert isinstance(json.loads(result.out), dict)


def test_start_gives_what_the_text_says_and_more(sandbox):
    result = sandbox.admin("--json", "--start")
    assert (result.status, result.err) == (0, ""), result
    started = result.json()
    assert set(started) == {"port", "pid", "tcp_port", "socket_path", "log_path", "warnings"}
    assert (started["port"], started["tcp_port"], started["warnings"]) == (sandbox.port, sandbox.port, [])
    assert is_alive(started["pid"])
    assert started["socket_path"].startswith(str(sandbox.directory))
    assert started["log_path"].startswith(str(sandbox.directory))


def test_start_gives_the_warnings(sandbox):
    started = sandbox.admin("--start", "--json", "-w", "100").json()
    workers = sandbox.admin("--server_info", "--json").json()["workers"]
    assert len(started["warnings"]) == (workers != 100)
    assert not any(text.startswith("WARNING") for text in started["warnings"])


def test_a_start_that_fails_gives_the_servers_own_words(served):
    result = served.admin("--start", "--json")
    assert result.status == 1 and "Cache server is already up and running" in result.err, result
    assert "Cache server is already up and running" in result.json()["error"]["message"]


def test_a_session_is_a_number(served):
    made = served.admin("-g", "--json").json()
    assert made == {"port": served.port, "session_id": made["session_id"], "name": "", "kept": False}
    assert served.admin("-g", "--keep", "--json").json()["kept"] is True
    named = served.admin("-g", "--name", "train \"set\"", "--json").json()
    assert named["name"] == "train \"set\"" and 0 < named["session_id"] < 2**32 != made["session_id"]


def test_dropped_sessions_are_a_list(served):
    ids = [served.session(), served.session()]
    assert served.admin("--json", "-d", *ids).json() == {"port": served.port, "destroyed": ids}


def test_dropping_an_unknown_session_gives_those_before_it_and_the_error(served):
    session = served.session()
    unknown = 1 if session != 1 else 2
    result = served.admin("--json", "-d", session, unknown)
    answer = result.json()
    assert result.status == 1 and str(unknown) in result.err, result
    assert answer["destroyed"] == [session]
    assert answer["error"]["name"] == "CACHE_ENOSESSION" and answer["error"]["code"] == -1011
    assert str(unknown) in answer["error"]["message"]


def test_a_dropped_cache(served):
    session = served.session()
    served.put_rows(session, 3, 1, 1)
    answer = served.admin("--json", "--destroy_cache", session, 3).json()
    assert answer == {"port": served.port, "session_id": session, "cache_id": 3, "destroyed": True}
    again = served.admin("--json", "--destroy_cache", session, 3)
    assert again.status == 1 and again.json()["destroyed"] is False and again.json()["error"]["code"] < 0


def test_the_listing_has_every_number_of_a_cache(served):
    session, empty = served.session("--name", "train"), served.session()
    served.put_rows(session, 9, 10, 788, "10 rows of bytes")
    answer = served.admin("--json", "--list_sessions").json()
    assert set(answer) == {"port", "sessions", "destroyed"} and answer["port"] == served.port
    assert answer["destroyed"] == []
    by_id = {entry["session_id"]: entry for entry in answer["sessions"]}
    assert list(by_id) == sorted((session, empty))
    assert by_id[empty] == {"session_id": empty, "name": "", "kept": False, "caches": []}
    assert by_id[session]["name"] == "train" and len(by_id[session]["caches"]) == 1
    cache = by_id[session]["caches"][0]
    assert (cache["cache_id"], cache["label"], cache["tag"]) == (9, "10 rows of bytes", "")
    assert (cache["rows_in_memory"], cache["rows_spilled"]) == (10, 0)
    assert (cache["row_bytes"], cache["mean_row_bytes"]) == (7880, 788)
    assert 7880 <= cache["used_bytes"] <= cache["charged_bytes"] <= cache["limit_bytes"]
    numbers = ("granted_bytes", "dead_bytes", "index_bytes", "free_bytes", "largest_free_bytes", "index_levels",
               "layouts", "writers", "readers", "generation", "populated_bytes", "huge_page_bytes", "spilled_bytes",
               "spill_file_bytes")
    assert all(isinstance(cache[name], int) for name in numbers) and isinstance(cache["huge_pages"], bool)
    assert cache["populated_bytes"] <= cache["charged_bytes"] and cache["idle_ms"] >= 0 and cache["kept"] is False


def test_the_listing_shows_which_sessions_are_kept(served):
    kept, named = served.session("--keep"), served.session("--name", "both", "--keep")
    assert served.session("--name", "both") == named  # flags are added, never taken away
    sessions = served.admin("--json", "--list_sessions").json()["sessions"]
    assert {entry["session_id"]: entry["kept"] for entry in sessions} == {kept: True, named: True}


def test_budgets_are_handed_to_the_server_and_shown(sandbox):
    sandbox.start("--headroom", "100", "-s", sandbox.folder, "--spill_limit", "64", "--idle_ttl", "3600")
    info = sandbox.admin("--server_info", "--json").json()
    assert (info["headroom_bytes"], info["spill_limit_bytes"], info["spill_used_bytes"]) == (100 << 20, 64 << 20, 0)
    assert info["available_bytes"] > 0
    text = sandbox.admin("--server_info").out
    assert "headroom            100.0 MiB of " in text and "spilled             0.0 MiB of 64.0 MiB" in text


@pytest.mark.parametrize("words, complaint", [
    (("--headroom", "-1"), "--headroom"), (("--headroom", "much"), "--headroom"),
    (("--idle_ttl", "1h"), "--idle_ttl"), (("--spill_limit", "64"), "--spill_limit needs --spilldir"),
    (("--keep",), "Only --generate_session takes --keep")])
def test_budgets_that_mean_nothing_are_refused(sandbox, words, complaint):
    result = sandbox.admin("--start", *words)
    assert result.status == 1 and complaint in result.err, result


def test_the_listing_names_who_holds_what_is_live_and_what_is_destroyed(served):
    session = served.session()
    holder = served.hold_rows(session, 4, 10, 1000, "held")
    cache, = served.admin("--json", "--list_sessions").json()["sessions"][0]["caches"]
    assert (cache["state"], cache["pids"]) == ("live", [holder.pid])
    assert served.admin("-d", session).status == 0
    answer = served.admin("--json", "--list_sessions").json()
    assert answer["sessions"] == []
    destroyed, = answer["destroyed"]
    assert destroyed["charged_bytes"] > 10_000
    assert (destroyed["session_id"], destroyed["cache_id"], destroyed["label"]) == (session, 4, "held")
    assert destroyed["pids"] == [holder.pid]
    assert f"Destroyed, but still mapped: cache 4 of session {session}" in served.admin("--list_sessions").out
    holder.communicate()
    wait_until(lambda: served.admin("--json", "--list_sessions").json()["destroyed"] == [], "the memory is free")


def test_server_info_has_every_setting_and_total(sandbox):
    pid = sandbox.start("-l", "2", "-w", "1", "-s", sandbox.folder)
    session = sandbox.session()
    info = sandbox.admin("--server_info", "--json").json()
    expected = {"hostname": "127.0.0.1", "port": sandbox.port, "tcp_port": sandbox.port, "workers": 1, "log_level": 2,
                "spill_dir": str(sandbox.folder), "keeper_pid": pid, "supervised": True, "generation": 1,
                "sessions": 1, "caches": 0, "session_ids": [session]}
    assert {name: info[name] for name in expected} == expected
    assert info["backing"] in ("huge", "memfd") and info["backing_reason"]
    assert is_alive(info["broker_pid"]) and info["broker_pid"] != pid
    assert 0 <= info["memory_used_bytes"] <= info["memory_limit_bytes"] > 0
    assert info["clients"] >= 1 and info["messages"] >= 1
    assert re.fullmatch(r"\d+\.\d+\.\d+", info["version"])
    assert all(info[name].startswith("/") for name in ("server_path", "socket_path", "log_path"))


def test_server_info_without_spilling_has_null(served):
    assert served.admin("--server_info", "--json").json()["spill_dir"] is None


def test_stop(served):
    pids = served.processes()
    assert pids
    assert served.admin("--stop", "--json").json() == {"port": served.port, "stopped": True}
    wait_until(lambda: not served.processes(), "the server's processes have ended")


def test_without_a_server_each_command_gives_the_error(sandbox):
    for words in (("--stop",), ("-g",), ("-d", "5"), ("--list_sessions",), ("--server_info",),
                  ("--destroy_cache", "1", "2")):
        result = sandbox.admin(*words, "--json")
        assert result.status == 1 and "is not reachable" in result.err, result
        assert result.json()["error"]["name"] == "CACHE_ESERVER", result


def test_argument_errors_print_nothing_on_stdout(sandbox):
    result = sandbox.admin("--json", "-d", "x")
    assert (result.status, result.out) == (1, "") and result.err, result


def test_version(sandbox):
    answer = sandbox.admin("--json", "--version").json()
    assert set(answer) == {"version", "library_version"}
