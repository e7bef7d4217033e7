# SPDX-License-Identifier: Apache-2.0
"""cache_admin --check: exit status, lines and JSON, for caches that are right and for one that is damaged."""
import re
import struct

from conftest import wait_until

CHARGED_BYTES = 184  # offset of RegionHeader::charged_bytes


def damage(pid):
    """Adds a chunk to what the region that process `pid` writes states as charged."""
    with open(f"/proc/{pid}/maps") as maps:
        start = next(int(line.split("-")[0], 16) for line in maps if " rw-s " in line)
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(start + CHARGED_BYTES)
        charged, = struct.unpack("<Q", memory.read(8))
        memory.seek(start + CHARGED_BYTES)
        memory.write(struct.pack("<Q", charged + 65536))


def test_caches_that_are_right(served):
    first, second = served.session(), served.session()
    for session, cache in ((first, 1), (first, 2), (second, 1)):
        served.put_rows(session, cache, 50, 100)
    result = served.admin("--check")
    assert result.status == 0 and result.err == "", result
    assert result.out == f"Caches checked for server on port {served.port}: 3, faults: 0\n"
    answer = served.admin("--check", first, "--rows", "--json").json()
    assert answer["right"] is True
    assert answer["caches"] == [{"session_id": first, "cache_id": cache, "faults": []} for cache in (1, 2)]
    assert len(served.admin("--check", first, 2, "--json").json()["caches"]) == 1


def test_a_damaged_cache_is_told_and_the_status_is_1(served):
    session = served.session()
    served.put_rows(session, 1, 50, 100)
    holder = served.hold_rows(session, 2, 50, 100)
    wait_until(lambda: served.admin("--check").status == 0, "the server has finished what it does for the rows")
    damage(holder.pid)
    result = served.admin("--check")
    assert result.status == 1, result
    assert re.match(rf"Session {session}, cache 2: charged: \d+ stated", result.out), result
    assert result.out.splitlines()[-1].endswith(": 2, faults: 1")
    answer = served.admin("--check", "--json")
    assert answer.status == 1 and answer.json()["right"] is False
    assert [len(cache["faults"]) for cache in answer.json()["caches"]] == [0, 1]


def test_unknown_ids_and_bad_words_are_errors(served):
    session = served.session()
    unknown = session % 4294967295 + 1
    for words, sentence in (((unknown,), f"There is no session {unknown}"), ((session, 3), "There is no cache 3"),
                            (("x",), "Option --check: 'x'"), ((1, 2, 3), "3")):
        result = served.admin("--check", *words)
        assert result.status == 1 and sentence in result.err, result
    result = served.admin("--list_sessions", "--rows")
    assert result.status == 1 and "Only --check takes --rows" in result.err, result
