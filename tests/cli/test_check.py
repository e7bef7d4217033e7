# SPDX-License-Identifier: Apache-2.0
"""cache_admin --check: exit status, lines and JSON, for caches that are right and for such as are damaged, in
memory or on disk."""
import os
import re
import struct
from pathlib import Path

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


def spill_file(broker, folder):
    """The broker's descriptor of the file of spilled rows, which has no name."""
    for fd in Path("/proc", str(broker), "fd").iterdir():
        if os.readlink(fd).startswith(f"{folder}/"):
            return fd
    raise AssertionError(f"the broker has no file in {folder} open")


def flip(path, offset):
    with open(path, "r+b", buffering=0) as file:
        file.seek(offset)
        byte, = file.read(1)
        file.seek(offset)
        file.write(bytes([byte ^ 16]))


def test_spilled_rows_are_checked_byte_by_byte(sandbox):
    folder, row_bytes = sandbox.folder / "spill", 20000
    folder.mkdir()
    sandbox.start("--spilldir", folder)
    session = sandbox.session()
    result = sandbox.command(*sandbox.rows_command(session, 1, 200, row_bytes), env={"ROWS_SPILL_LIMIT": str(1 << 20)})
    assert result.status == 0, result
    spilled = sandbox.admin("--list_sessions", "--json").json()["sessions"][0]["caches"][0]["rows_spilled"]
    assert spilled > 100
    result = sandbox.admin("--check", "--rows")
    assert result.status == 0 and result.out.endswith(": 1, faults: 0\n"), result

    path = spill_file(sandbox.admin("--server_info", "--json").json()["broker_pid"], folder)
    places = [found.start() for found in re.finditer(b"r" * row_bytes, path.read_bytes())]
    assert len(places) == spilled
    # The first, one in the middle and the last byte of three rows' column.
    damaged = [places[0], places[spilled // 2] + row_bytes // 2, places[-1] + row_bytes - 1]
    for offset in damaged:
        flip(path, offset)
    result = sandbox.admin("--check")
    assert result.status == 0, result  # it does not read what is on disk
    for _ in range(2):  # looking changes nothing
        result = sandbox.admin("--check", session, 1, "--rows")
        assert result.status == 1 and result.err == "", result
        faults = re.findall(rf"Session {session}, cache 1: row (\d+): spilled row (\d+), (\d+) bytes at (\d+) of the "
                            r"spill file, is damaged: its CRC-32C differs", result.out)
        assert len(faults) == 3 and all(row == again for row, again, _, _ in faults), result
        for offset in damaged:
            assert sum(int(at) <= offset < int(at) + int(n) for _, _, n, at in faults) == 1, (offset, result)
        assert result.out.splitlines()[-1].endswith(": 1, faults: 3"), result
    answer = sandbox.admin("--check", "--rows", "--json")
    assert answer.status == 1 and len(answer.json()["caches"][0]["faults"]) == 3

    for offset in damaged:
        flip(path, offset)
    result = sandbox.admin("--check", "--rows")
    assert result.status == 0, result


def test_unknown_ids_and_bad_words_are_errors(served):
    session = served.session()
    unknown = session % 4294967295 + 1
    for words, sentence in (((unknown,), f"There is no session {unknown}"), ((session, 3), "There is no cache 3"),
                            (("x",), "Option --check: 'x'"), ((1, 2, 3), "3")):
        result = served.admin("--check", *words)
        assert result.status == 1 and sentence in result.err, result
    result = served.admin("--list_sessions", "--rows")
    assert result.status == 1 and "Only --check takes --rows" in result.err, result
