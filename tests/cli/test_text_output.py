# SPDX-License-Identifier: Apache-2.0
"""The lines that scripts written for the original cut apart: to the letter."""
import re

RULE = "-" * 70
HEADER = "     Session    Cache Id  Mem cached Disk cached  Avg cache size  Numa hit"


def setting(name, value):
    return f"{name:<20}{value:<50}"


def cache_line(session, cache, rows, mean):
    return f"{session:>12}{cache:>12}{rows:>12}{'n/a':>12}{mean:>16}{'n/a':>10}"


def listed(sandbox):
    result = sandbox.admin("--list_sessions")
    assert (result.status, result.err) == (0, ""), result
    return result.out.splitlines()


def test_start_says_pid_port_and_where_the_log_is(sandbox):
    result = sandbox.admin("--start")
    assert (result.status, result.err) == (0, ""), result
    lines = result.out.splitlines()
    assert lines[0] == "Cache server startup completed successfully!"
    match = re.fullmatch(r"The cache server daemon has been created as process id (\d+) and listening on port (\d+)\.",
                         lines[1])
    assert match and int(match.group(2)) == sandbox.port, result
    assert lines[2:4] == ["", "Recommendation:"] and len(lines) == 5, result
    assert str(sandbox.directory) in lines[4], result
    info = sandbox.admin("--server_info", "--json").json()
    assert info["keeper_pid"] == int(match.group(1))


def test_start_warns_when_the_number_of_workers_is_adjusted(sandbox):
    result = sandbox.admin("--start", "-w", "100")
    assert result.status == 0, result
    workers = sandbox.admin("--server_info", "--json").json()["workers"]
    assert (workers == 100) != bool(re.search(r"^WARNING: .*100", result.out, re.MULTILINE)), result
    if workers != 100:
        assert result.out.splitlines()[2].startswith("WARNING: "), result


def test_stop_says_which_port(served):
    result = served.admin("--stop")
    expected = f"Cache server on port {served.port} has been stopped successfully.\n"
    assert (result.status, result.out, result.err) == (0, expected, "")


def test_stop_without_a_server_says_that_there_is_none(sandbox):
    result = sandbox.admin("--stop")
    assert (result.status, result.out) == (1, ""), result
    assert f"Server on port {sandbox.port} is not reachable or has been shutdown already" in result.err


def test_a_second_start_says_that_the_server_runs(served):
    result = served.admin("--start")
    assert (result.status, result.out) == (1, "") and "Cache server is already up and running" in result.err, result


def test_a_session_is_one_line_that_ends_with_its_id(served):
    result = served.admin("--generate_session")
    assert re.fullmatch(rf"Session created for server on port {served.port}: \d+\n", result.out), result
    assert (result.status, result.err) == (0, "")


def test_dropped_sessions_are_a_line_each_in_the_order_asked(served):
    ids = [served.session() for _ in range(3)]
    result = served.admin("--destroy_session", *reversed(ids))
    assert result.out.splitlines() == [f"Drop session {number} successfully for server on port {served.port}"
                                       for number in reversed(ids)]
    assert (result.status, result.err) == (0, "")


def test_dropping_ends_at_the_first_unknown_session(served):
    first, last = served.session(), served.session()
    unknown = next(number for number in range(1, 4) if number not in (first, last))
    result = served.admin("-d", first, unknown, last)
    assert result.status == 1 and str(unknown) in result.err, result
    assert result.out == f"Drop session {first} successfully for server on port {served.port}\n"
    assert [int(line.split()[0]) for line in listed(served)[3:]] == [last]


def test_a_session_dropped_twice_is_unknown_the_second_time(served):
    session = served.session()
    assert served.admin("-d", session).status == 0
    result = served.admin("-d", session)
    assert (result.status, result.out) == (1, "") and str(session) in result.err, result


def test_a_dropped_cache_is_a_line_and_leaves_its_session_and_the_other_cache(served):
    session = served.session()
    for cache in (1, 2):
        served.put_rows(session, cache, 3, 100)
    result = served.admin("--destroy_cache", session, 1)
    expected = f"Drop cache 1 of session {session} successfully for server on port {served.port}\n"
    assert (result.status, result.out, result.err) == (0, expected, "")
    assert [line.split()[:2] for line in listed(served)[3:]] == [[str(session), "2"]]
    assert served.admin("--destroy_cache", session, 1).status == 1


def test_an_empty_listing(served):
    assert listed(served) == [f"Listing sessions for server on port {served.port}", "", "No active sessions."]


def test_a_listing_without_a_server_has_its_first_line(sandbox):
    result = sandbox.admin("--list_sessions")
    assert (result.status, result.out) == (1, f"Listing sessions for server on port {sandbox.port}\n\n"), result
    assert "is not reachable" in result.err


def test_a_listing_has_a_line_for_each_cache_in_ascending_order(served):
    with_caches, without = served.session(), served.session()
    served.put_rows(with_caches, 4000000000, 10, 788)
    served.put_rows(with_caches, 7, 3, 1)
    lines = {with_caches: [cache_line(with_caches, 7, 3, 1), cache_line(with_caches, 4000000000, 10, 788)],
             without: [f"{without:>12}{'n/a':>12}{'n/a':>12}{'n/a':>12}{'n/a':>16}{'n/a':>10}"]}
    assert listed(served) == [f"Listing sessions for server on port {served.port}", "", HEADER,
                              *lines[min(lines)], *lines[max(lines)]]


def test_an_empty_cache_is_listed_with_nothing_in_it(served):
    session = served.session()
    served.put_rows(session, 1, 0, 1)
    assert listed(served)[3:] == [cache_line(session, 1, "n/a", "n/a")]


def test_a_listing_shows_rows_of_a_cache_that_is_still_open(served):
    session = served.session()
    writer = served.hold_rows(session, 5, 20, 64)
    assert listed(served)[3:] == [cache_line(session, 5, 20, 64)]
    writer.communicate()
    assert writer.returncode == 0


def test_server_info_without_sessions(served):
    result = served.admin("--server_info")
    assert (result.status, result.err) == (0, ""), result
    lines = result.out.splitlines()
    assert lines[:4] == ["Cache Server Configuration: ", RULE, setting("config name", "value"), RULE]
    assert lines[4:6] == [setting("hostname", "127.0.0.1"), setting("port", served.port)]
    assert re.fullmatch(r"number of workers   \d+ +", lines[6]) and len(lines[6]) == 70
    assert lines[7:9] == [setting("log level", 1), setting("spill dir", "None")]
    assert lines[-3:] == [RULE, "Active sessions: ", "No active sessions."]


def test_server_info_shows_what_the_server_was_started_with(sandbox):
    sandbox.start("-l", "0", "-w", "1", "-s", sandbox.folder)
    # Neither the caller's option nor its environment.
    result = sandbox.admin("--server_info", "-l", "3", env={"MS_CACHE_HOST": "elsewhere", "GLOG_v": "4"})
    lines = result.out.splitlines()
    assert lines[4:9] == [setting("hostname", "127.0.0.1"), setting("port", sandbox.port),
                          setting("number of workers", 1), setting("log level", 0),
                          setting("spill dir", str(sandbox.folder))]


def test_server_info_tells_the_backing_and_why_and_the_tcp_port(served):
    lines = served.admin("--server_info").out.splitlines()
    assert setting("backing", "huge pages") in lines or setting("backing", "memfd") in lines, lines
    assert any(re.match(r"backing reason      \S", line) for line in lines), lines
    assert setting("tcp port", served.port) in lines


def test_a_backing_can_be_forced(sandbox):
    sandbox.start("--backing", "memfd")
    assert setting("backing", "memfd") in sandbox.admin("--server_info").out.splitlines()


def test_server_info_lists_each_session_once(served):
    first, second = served.session(), served.session()
    for cache in (1, 2, 3):
        served.put_rows(first, cache, 1, 1)
    lines = served.admin("--server_info").out.splitlines()
    assert lines[-3] == "Active sessions: "
    assert lines[-2] == "".join(f"{number}  " for number in sorted((first, second)))
    assert "--list_sessions" in lines[-1]


def test_a_session_of_a_name_is_the_same_for_all_who_ask(served):
    session = served.session("--name", "imagenet train")
    assert served.session("--name", "imagenet train") == session
    assert served.session("--name", "imagenet eval") != session
    assert served.admin("-d", session).status == 0
    assert served.session("--name", "imagenet train") != 0


def test_a_name_that_is_too_long_is_refused(served):
    result = served.admin("-g", "--name", "n" * 64)
    assert (result.status, result.out) == (1, "") and result.err, result


def test_errors_carry_no_source_line(served):
    for words in (("-d", 1), ("--destroy_cache", 1, 1), ("--start",)):
        result = served.admin(*words)
        assert result.status == 1 and not re.search(r"\.(cc|h|cpp|c)\b", result.err), result


def test_rows_are_listed_as_they_come(served):
    session = served.session()
    seen = []
    for rows in (1, 5, 9):
        served.put_rows(session, 1, rows, 8)
        seen.append(int(listed(served)[3].split()[2]))
    assert seen == [1, 5, 9]
