# SPDX-License-Identifier: Apache-2.0
"""What a command line may say, and what the environment adds. None of these needs a server."""
import os

import pytest

from conftest import ADMIN, BUILD, free_port

REFUSED = {
    "the same option twice": ("--stop", "-p", "50053", "-p", "50053"),
    "the same option in both forms": ("--stop", "-p", "50053", "--port", "50054"),
    "the same command twice": ("-g", "--generate_session"),
    "a command after --help": ("--help", "--start"),
    "a port with trailing junk": ("--stop", "-p", "50053x"),
    "a port with a blank before it": ("--stop", "-p", " 50053"),
    "a port with a blank after it": ("--stop", "-p", "50053 "),
    "an empty port": ("--stop", "-p", ""),
    "a port with a sign": ("--stop", "-p", "+50053"),
    "a port in hexadecimal": ("--stop", "-p", "0xC355"),
    "a port that would wrap to 50053": ("--stop", "-p", str(2**32 + 50053)),
    "a port that no integer holds": ("--stop", "-p", "9" * 30),
    "a port below 1025": ("--stop", "-p", "1024"),
    "a session with trailing junk": ("-d", "5x"),
    "a session that would wrap": ("-d", str(2**32)),
    "session 0": ("-d", "0"),
    "two sessions in one word": ("-d", "1 2"),
    "sessions with a comma": ("-d", "1,2"),
    "a good session and a bad one": ("-d", "1", "two"),
    "-d twice": ("-d", "1", "-d", "2"),
    "destroy_cache without a cache": ("--destroy_cache", "1"),
    "destroy_cache with a third value": ("--destroy_cache", "1", "2", "3"),
    "destroy_cache with cache -1": ("--destroy_cache", "1", "-1"),
    "a word that is no option": ("--stop", "now"),
    "an empty word": ("--stop", ""),
    "localhost": ("--stop", "-h", "localhost"),
    "workers with trailing junk": ("--stop", "-w", "4cores"),
    "workers out of range, though not needed": ("-g", "-w", "0"),
    "a log level out of range, with --help": ("--help", "-l", "5"),
    "no shared memory": ("--start", "-m", "0"),
    "shared memory that would wrap": ("--start", "-m", str(2**32 + 1)),
    "ratio 0": ("--start", "-r", "0"),
    "ratio above 1": ("--start", "-r", "1.01"),
    "a ratio that is not a number": ("--start", "-r", "nan"),
    "a ratio with trailing junk": ("--start", "-r", "0.5x"),
    "an unknown backing": ("--start", "--backing", "tape"),
    "an empty spill folder": ("--start", "-s", ""),
    "--name with a command that makes no session": ("--stop", "--name", "x"),
    "--run without a program": ("--run",),
    "--run with nothing after the dashes": ("--run", "--"),
    "--run without the dashes": ("--run", "true"),
    "--run with --json": ("--run", "--json", "--", "true"),
    "a program after another command": ("--stop", "--", "true"),
    "--json alone": ("--json",),
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_text_on_stderr_alone(sandbox, words):
    result = sandbox.admin(*words)
    assert (result.status, result.out) == (1, "") and result.err, result
    assert not sandbox.directory.exists() or not os.listdir(sandbox.directory), "something was done"


def test_all_unknown_words_are_reported_together(sandbox):
    result = sandbox.admin("--stop", "--first", "-p", "50053", "second", "-x")
    assert result.status == 1 and all(word in result.err for word in ("--first", "second", "-x", "--help")), result


def test_no_argument_prints_the_help_on_stderr_and_fails(sandbox):
    result = sandbox.admin()
    assert (result.status, result.out) == (1, "") and "--generate_session" in result.err, result


def test_help_prints_the_help_and_succeeds(sandbox):
    result = sandbox.admin("--help")
    assert (result.status, result.err) == (0, ""), result
    shown = ("--start", "--stop", "-g", "-d", "--list_sessions", "--server_info", "-p, --port", "-w, --workers",
             "-s, --spilldir", "-l, --loglevel", "-h, --hostname", "50052", "127.0.0.1", "--run", "--json")
    hidden = ("--shared_memory_size", "--memory_cap_ratio")
    assert all(word in result.out for word in shown) and not any(word in result.out for word in hidden), result


@pytest.mark.parametrize("words, option", [(("-d", "-p", "47312"), "--destroy_session"),
                                           (("--destroy_cache", "-p", "1"), "--destroy_cache")], ids=["-d", "--destroy_cache"])
def test_an_option_in_the_place_of_a_session_id_is_told_from_a_bad_id(sandbox, words, option):
    result = sandbox.admin(*words)
    assert (result.status, result.out) == (1, ""), result
    assert result.err.startswith(f"Option {option} needs a session id, not '-p'; cache_admin --list_sessions shows them."), result
    assert "'x' is not a whole number" in sandbox.admin("-d", "x").err


def test_admin_and_server_tell_the_same_of_an_option(sandbox):
    def words_of(*program):
        return " ".join(sandbox.command(*program, "--help").out.split())
    admin, server = words_of(ADMIN), words_of(BUILD / "bin" / "cache_server")
    for text in ("default: what the spill folder's disk has",
                 "default: 10 % of what all caches may use, at least 2048, or a quarter of it if that is less",
                 "a group whose members may read too", "The members of the group may also put rows, and make sessions and caches"):
        assert text.lower() in admin.lower() and text.lower() in server.lower(), text
    assert "[--group_write]" in admin


def test_help_replaces_a_command_before_it(sandbox):
    assert sandbox.admin("--stop", "--help").status == 0


@pytest.mark.parametrize("variable", ["MS_CACHE_PORT", "LIBCACHE_PORT"])
def test_the_environment_gives_the_default_port(sandbox, variable):
    port = free_port()
    result = sandbox.admin("--stop", env={"MS_CACHE_PORT": None, variable: str(port)})
    assert f"port {port} " in result.err, result


def test_libcache_port_goes_before_ms_cache_port_and_the_option_before_both(sandbox):
    both = {"LIBCACHE_PORT": "50060", "MS_CACHE_PORT": "50061"}
    assert "port 50060 " in sandbox.admin("--stop", env=both).err
    assert "port 50062 " in sandbox.admin("--stop", "-p", "50062", env=both).err


def test_without_environment_the_port_is_50052(sandbox):
    result = sandbox.admin("--stop", env={"MS_CACHE_PORT": None})
    assert "Server on port 50052 is not reachable or has been shutdown already" in result.err, result


@pytest.mark.parametrize("value", ["abc", "50053x", " 50053", "0", "65536"])
@pytest.mark.parametrize("variable", ["MS_CACHE_PORT", "LIBCACHE_PORT"])
def test_a_bad_port_in_the_environment_is_an_error(sandbox, variable, value):
    result = sandbox.admin("-g", env={variable: value})
    assert (result.status, result.out) == (1, "") and variable in result.err, result


def test_a_bad_port_in_the_environment_is_only_a_complaint_beside_the_option(sandbox):
    result = sandbox.admin("--stop", "-p", "50053", env={"MS_CACHE_PORT": "abc"})
    assert "MS_CACHE_PORT" in result.err and "port 50053 is not reachable" in result.err, result


@pytest.mark.parametrize("value", ["abc", "5", "-1", "1x"])
def test_a_bad_log_level_in_the_environment_is_an_error(sandbox, value):
    result = sandbox.admin("-g", env={"GLOG_v": value})
    assert (result.status, result.out) == (1, "") and "GLOG_v" in result.err, result


def test_a_bad_log_level_in_the_environment_is_only_a_complaint_beside_the_option(sandbox):
    result = sandbox.admin("--stop", "-l", "2", env={"GLOG_v": "abc"})
    assert "GLOG_v" in result.err and "is not reachable" in result.err, result


def test_an_empty_variable_is_as_none(sandbox):
    result = sandbox.admin("--stop", env={"MS_CACHE_PORT": "", "LIBCACHE_PORT": "", "GLOG_v": ""})
    assert "port 50052 is not reachable" in result.err, result


def test_dataset_cache_is_the_same_program(sandbox):
    other_name = BUILD / "bin" / "dataset-cache"
    assert os.path.samefile(other_name, ADMIN)
    assert sandbox.command(other_name, "--version").out == sandbox.admin("--version").out


def test_version_is_a_line(sandbox):
    result = sandbox.admin("--version")
    assert result.status == 0 and result.out.startswith("cache_admin 1.") and result.out.count("\n") == 1, result


def test_a_stdout_that_is_full_is_an_error(sandbox):
    with open("/dev/full", "w") as full:
        result = sandbox.admin("--version", stdout=full)
    assert result.status == 1 and "stdout" in result.err, result
