"""Commands through the daemon: what goes in and what comes out, byte for byte and in time."""

from __future__ import annotations

import hashlib
import json
import os
import re

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer, RpcFailure, b64
from support.scenes import EXEC, appears, only_id, workspace

LONGEST_ARGUMENT = 131071  # bytes: MAX_ARG_STRLEN without the zero byte

# Prints its arguments, working directory and a variable as hex, so that no text channel can hide a difference.
SHOW = ("import os,sys,json; print(json.dumps({'argv':[os.fsencode(a).hex() for a in sys.argv[1:]],"
        "'cwd':os.fsencode(os.getcwd()).hex(),'env':{os.fsencode(k).hex():os.fsencode(v).hex() for k,v in os.environ.items()}}))")


def shown(stdout: bytes) -> dict:
    return json.loads(stdout)


def sent(value: bytes) -> str | dict[str, str]:
    """A bytes_value: text where it is text."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return b64(value)


# -- output


def test_output_arrives_while_the_command_runs(peer: Peer) -> None:
    exec_id = peer.start("/bin/sh", "-c", "echo first; until [ -e go ]; do sleep 0.01; done; echo second")
    first = peer.notification("exec.output", exec_id=exec_id)
    assert first["data"] == "first\n" and first["offset"] == 0
    assert peer.run("touch", "go").returncode == 0  # only now can it go on
    assert peer.finish(exec_id).stdout == b"second\n"


def test_every_exit_code_is_passed_on(peer: Peer) -> None:
    peer.sh("true")
    started = {code: peer.start("/bin/sh", "-c", f"exit {code}") for code in range(256)}
    assert {code: peer.finish(name).returncode for code, name in started.items()} == {code: code for code in range(256)}


@pytest.mark.parametrize("told", ["shell", "negative", "minus_one"])
def test_a_signal_ends_it_as_a_shell_would_tell(peer: Peer, emulator: Emulator, told: str) -> None:
    """However the platform tells signals."""
    emulator.config(signal_returncode=told)
    for signal in (1, 2, 9, 15, 64):
        ended = peer.sh(f"echo before; kill -{signal} $$")
        assert (ended.reason, ended.returncode, ended.stdout) == ("exited", 128 + signal, b"before\n")


def test_the_streams_are_apart_unless_merged(peer: Peer) -> None:
    script = "echo 1; echo 2 >&2; echo 3; echo 4 >&2"
    apart = peer.sh(script)
    assert (apart.stdout, apart.stderr, apart.output_bytes) == (b"1\n3\n", b"2\n4\n", 8)
    merged = peer.sh(script, merge_output=True)
    assert (merged.stdout, merged.stderr) == (b"1\n2\n3\n4\n", b"")
    with_input = peer.sh(f"cat; {script}", merge_output=True, stdin="0\n")
    assert (with_input.stdout, with_input.stderr) == (b"0\n1\n2\n3\n4\n", b"")


def test_megabytes_on_both_streams_within_a_small_window(peer: Peer, daemon: Daemon) -> None:
    """Offsets without gaps and the window itself are checked by the peer, message by message."""
    script = "for i in 1 2 3 4; do head -c 500000 /dev/zero | tr '\\0' o; head -c 300000 /dev/zero | tr '\\0' e >&2; done"
    ended = peer.sh(script, window=4096)
    assert (ended.stdout, ended.stderr) == (b"o" * 2000000, b"e" * 1200000)
    assert (ended.output_bytes, ended.dropped_bytes) == (3200000, 0)


def test_a_reader_that_waits_holds_up_its_own_command_alone(peer: Peer, daemon: Daemon) -> None:
    slow = peer.start("/bin/sh", "-c", "yes | head -c 30000000; echo end >&2; sleep 600", window=65536)
    first = peer.notification("exec.output", exec_id=slow)
    assert [peer.sh("echo other").stdout for _ in range(5)] == [b"other\n"] * 5
    with daemon.peer() as second:
        assert second.sh("echo third").stdout == b"third\n"
        listed = {one["exec_id"]: one["phase"] for one in second.call("exec.list")["execs"]}
        assert listed[slow] == "running"
        assert second.call("exec.cancel", {"exec_id": slow})["confirmed"]
    peer.send("exec.ack", {"exec_id": slow, "offset": len(first["data"])}, notification=True)  # it may have filled the window
    assert peer.finish(slow).reason == "cancelled"
    assert daemon.rss_kib() < 64 << 10


def test_text_of_every_width_passes(peer: Peer) -> None:
    text = "a€😀\u0000\r\n\t\u001b[1m" + "ü" * 70000
    ended = peer.run("cat", stdin=text)
    assert ended.stdout.decode() == text


@pytest.mark.parametrize("how", ["join", "replace"])
def test_characters_cut_between_reads(peer: Peer, emulator: Emulator, how: str) -> None:
    """Whatever the platform does to them."""
    text = "€uro and 😀, " * 50
    emulator.config(chunk_bytes=1, split_characters=how)
    ended = peer.sh("cat; exit 4", stdin=text, window=4096)
    assert (ended.stdout.decode(), ended.returncode) == (text, 4)


def test_every_byte_arrives_as_it_was_printed(peer: Peer, emulator: Emulator) -> None:
    ended = peer.sh(r"printf '\203\377\000x'; exit 4")
    assert (ended.returncode, ended.stdout) == (4, b"\x83\xff\0x")
    data = os.urandom(300000) + bytes(range(256)) * 10
    emulator.config(chunk_bytes=1000)
    ended = peer.sh("cat; cat /workspace/none; head -c 100000 /dev/urandom | tee /workspace/random >&2", stdin=b64(data))
    assert ended.stdout == data
    assert ended.stderr.endswith((workspace(emulator) / "random").read_bytes())


def test_a_command_that_writes_to_its_own_streams_by_name(peer: Peer) -> None:
    """Opening them again must neither fail nor truncate what is there."""
    ended = peer.sh("echo 1; echo 2 >/dev/stdout; echo 3 | tee /dev/stderr; echo 4 >/proc/self/fd/1; echo 5 >>/dev/stderr")
    assert (ended.stdout, ended.stderr) == (b"1\n2\n3\n4\n", b"3\n5\n")


# -- arguments, environment, directory


ARGUMENTS = [b"", b" ", b"a b", b"'", b'"', b"\\", b"\\n", b"$HOME", b"`id`", b"*", b"--", b"-n", b"-", b"a=b", b"\n", b"x\n\n", b"\t",
             b"\x01\x7f", "€😀".encode(), b"%s%b\\0101", b"\xff\xfe", b"\x80\n", b"caf\xe9 ", b"\\\xff", b"!#~{1,2}"]


def test_arguments_arrive_as_they_were_given(peer: Peer) -> None:
    text = [each for each in ARGUMENTS if isinstance(sent(each), str)]
    for arguments in (text, ARGUMENTS, ARGUMENTS[::-1], [b""], [b"\xff"]):
        ended = peer.run("python3", "-c", SHOW, *[sent(each) for each in arguments])
        assert ended.returncode == 0, ended.stderr
        assert [bytes.fromhex(each) for each in shown(ended.stdout)["argv"]] == arguments


@pytest.mark.parametrize("name", ["plain", "a=b", "-n", "-u", "--", "with space", "new\nline", "-a=b", "$(id)", "ünï"])
def test_programs_of_any_name(peer: Peer, emulator: Emulator, name: str) -> None:
    peer.sh("true")
    program = workspace(emulator) / name
    program.write_text("#!/bin/sh\necho \"ran with $#: $1\"\nexit 5\n")
    program.chmod(0o755)
    for argv0, env in ((f"/workspace/{name}", {}), (name, {"PATH": "/workspace:/usr/bin:/bin"})):
        ended = peer.run(argv0, "one=1", "-2", env=env)
        assert (ended.stdout, ended.returncode) == (b"ran with 2: one=1\n", 5), (argv0, ended.stderr)


def test_a_missing_program_is_the_commands_own_failure(peer: Peer) -> None:
    ended = peer.run("/workspace/none")
    assert (ended.reason, ended.returncode, ended.started) == ("exited", 127, "yes")
    assert "No such file" in ended.message
    peer.sh("echo >plain")
    assert peer.run("/workspace/plain").returncode == 126


def test_the_environment_is_clean_but_for_what_was_given(peer: Peer) -> None:
    given = {"EMPTY": b"", "LINES": b"a\nb\n", "QUOTES": b"'\"\\$x", "EQUAL": b"a=b=c", "a.b-c d": b"odd name", "BYTES": b"\xff\x80\n",
             "ünï": "€".encode(), "HOME": b"/workspace", "-u": b"dash"}
    for chosen in (given, {name: value for name, value in given.items() if name != "BYTES"}):
        ended = peer.run("python3", "-c", SHOW, env={name: sent(value) for name, value in chosen.items()})
        seen = {bytes.fromhex(name).decode(): bytes.fromhex(value) for name, value in shown(ended.stdout)["env"].items()}
        assert {name: seen[name] for name in chosen} == chosen
        assert seen.keys() - chosen.keys() <= {"PATH", "LANG", "HOME", "LC_CTYPE"}
    # What the daemon itself knows, the key above all, is not in there, nor with stdin, whose way in is another one.
    ended = peer.run("env", stdin="x")
    assert b"test-key" not in ended.stdout
    names = {line.partition(b"=")[0] for line in ended.stdout.splitlines()}
    assert names == {b"PATH", b"LANG", b"HOME"}


@pytest.mark.parametrize("directory", [b"/tmp", b"/workspace/a b", b"/workspace/-x", b"/workspace/new\nline\n", b"/workspace/\xff\\\xfe",
                                       "/workspace/ünï $x".encode()])
def test_directories_of_any_name(peer: Peer, emulator: Emulator, directory: bytes) -> None:
    peer.sh("true")
    if directory != b"/tmp":
        os.makedirs(os.path.join(os.fsencode(workspace(emulator)), os.path.basename(directory)))
    ended = peer.run("python3", "-c", SHOW, cwd=sent(directory))
    assert bytes.fromhex(shown(ended.stdout)["cwd"]) == directory
    assert ended.stderr == b""


def test_a_missing_directory_is_replaced_and_said_so(peer: Peer) -> None:
    ended = peer.run("pwd", cwd="/nowhere/at all")
    assert (ended.returncode, ended.stdout) == (0, b"/workspace\n")
    assert ended.stderr == b""
    assert "directory" in ended.message and "/workspace" in ended.message
    assert peer.run("pwd").message is None
    failed = peer.run("false", cwd="/nowhere")
    assert (failed.returncode, failed.stderr) == (1, b"") and "/workspace" in failed.message


def test_a_missing_directory_whose_name_is_no_text(peer: Peer, daemon: Daemon) -> None:
    """The message names it, and is text all the same, here and from the journal."""
    exec_id = peer.start("true", cwd=b64(b"/nowhere/caf\xe9"))
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode) == ("exited", 0)
    assert "/nowhere/caf\ufffd" in ended.message
    daemon.kill()
    daemon.start()
    with daemon.peer() as next_one:
        next_one.attach(exec_id)
        again = next_one.finish(exec_id)
        assert (again.reason, again.returncode, again.message) == ("exited", 0, ended.message)


# -- scripts


def test_scripts_that_could_confuse_a_wrapper(peer: Peer) -> None:
    """cases.md 8."""
    for script, code, stdout in [
        ("cat <<EOF\nhello $((1+1))\nEOF", 0, b"hello 2\n"),  # ends exactly at its marker
        ("cat <<'EOF'\n$x\nEOF\n", 0, b"$x\n"),
        ("true # c", 0, b""),
        ("false # c", 1, b""),
        ("set -euo pipefail; true", 0, b""),
        ("set -e; false; echo not reached", 1, b""),
        ("exit 3", 3, b""),
        ("exec true", 0, b""),
        ("exec sh -c 'exit 9'", 9, b""),
        ("trap 'echo bye' EXIT; echo hi", 0, b"hi\nbye\n"),
        ("[[ x =~ x ]] && echo {1..3}", 0, b"1 2 3\n"),  # it is bash
        ("exec >/workspace/out; echo lost; cat /workspace/out >&2", 0, b""),
        ("echo \"a'b\" 'c\"d'", 0, b"a'b c\"d\n"),
        ("echo a\\\nb", 0, b"ab\n"),
        ("printf 'no newline'", 0, b"no newline"),
        ("if", 2, b""),
    ]:
        ended = peer.run(script=script)
        assert (ended.returncode, ended.stdout) == (code, stdout), (script, ended.stderr)


def test_a_script_in_a_login_shell(peer: Peer) -> None:
    ask = "shopt -q login_shell && echo login || echo plain"
    assert peer.run(script=ask, login=True).stdout == b"login\n"
    assert peer.run(script=ask).stdout == b"plain\n"


@pytest.mark.parametrize("login", [False, True])
def test_a_script_longer_than_an_argument_may_be(peer: Peer, emulator: Emulator, login: bool) -> None:
    script = "read -r line; echo \"got $line\"; cat >/dev/null\n" + "# filling 'it' up\n" * 20000 + "shopt -q login_shell && echo login\nexit 6"
    assert len(script) > 300000
    ended = peer.run(script=script, login=login, stdin="a line\n" + "x" * 200000)
    assert (ended.stdout, ended.returncode) == (b"got a line\nlogin\n" if login else b"got a line\n", 6), ended.stderr
    left = sorted(each.name.partition("-")[0] for each in (workspace(emulator) / ".deepinfra-sandboxd").iterdir())
    assert left == [".gitignore", "claims", "shim"]  # nothing else is left lying around


# -- input


@pytest.mark.parametrize("data", [
    b"small\n", b"no newline", b"\n", b"a\r\nb\r\n", b"\0", b"a\0b\0", b"EOF\n", b"cat <<EOF\nx\nEOF\n", b"'\"$(id)`id`\\", bytes(range(256)),
    b"x" * 65536, b"x" * 65537, os.urandom(500000), "€😀".encode() * 50000], ids=lambda data: f"{len(data)}-{data[:6]!r}")
def test_input_round_trips(peer: Peer, data: bytes) -> None:
    expected = hashlib.sha256(data).hexdigest()
    ended = peer.sh("sha256sum; exit 3", stdin=sent(data))
    assert (ended.stdout.split()[0].decode(), ended.returncode) == (expected, 3), ended.stderr
    assert peer.run("sha256sum", stdin=b64(data)).stdout.split()[0].decode() == expected
    assert peer.run(script="sha256sum", stdin=b64(data)).stdout.split()[0].decode() == expected


def test_no_input_and_empty_input(peer: Peer) -> None:
    assert peer.run("readlink", "/proc/self/fd/0").stdout == b"/dev/null\n"
    ended = peer.run("wc", "-c", stdin="")
    assert (ended.returncode, ended.stdout.strip()) == (0, b"0")


@pytest.mark.parametrize("size", [100, 200000])
def test_a_command_that_does_not_read_its_input(peer: Peer, size: int) -> None:
    ended = peer.sh("exec <&-; echo fine; exit 8", stdin="y" * size)
    assert (ended.returncode, ended.stdout, ended.stderr) == (8, b"fine\n", b"")


# -- refused before anything runs


def test_what_no_kernel_takes_is_refused(peer: Peer, emulator: Emulator) -> None:
    too_long = "x" * (LONGEST_ARGUMENT + 1)
    for params in ({"argv": ["echo", too_long]}, {"argv": [too_long]}, {"argv": ["env"], "env": {"A": too_long}},
                   {"argv": ["env"], "env": {"A": too_long[:LONGEST_ARGUMENT - 1]}},
                   {"argv": ["pwd"], "cwd": "/" + too_long}):
        with pytest.raises(RpcFailure) as refused:
            peer.call("exec.start", {"exec_id": "long", "key": DEFAULT_KEY, **params})
        assert refused.value.name == "argument_too_long"
        assert not refused.value.retryable
    for params in ({"argv": ["a\0b"]}, {"argv": ["env"], "env": {"A": "\0"}}, {"argv": ["pwd"], "cwd": "/a\0"}, {"script": "a\0b"}):
        with pytest.raises(RpcFailure) as refused:
            peer.call("exec.start", {"exec_id": "long", "key": DEFAULT_KEY, **params})
        assert refused.value.name == "invalid_params"
    assert emulator.count() == 0  # not even a sandbox was made
    assert peer.call("exec.list")["execs"] == []
    longest = "y" * LONGEST_ARGUMENT
    assert peer.run("/bin/sh", "-c", 'printf "%s" "$1" | wc -c', "sh", longest).stdout.strip() == str(LONGEST_ARGUMENT).encode()


@pytest.mark.parametrize(("sign", "times"), [("%", 43_000), ("%", 131_000), ("x", 131_071)])
def test_what_the_kernel_takes_arrives(peer: Peer, sign: str, times: int) -> None:
    """Text goes as it is: signs that would have to be encoded make it no longer."""
    word = sign * times
    words = [word] * (900_000 // len(word.encode()))
    ended = peer.run("/bin/sh", "-c", 'echo $#; printf %s "$@" | sha256sum', "sh", *words)
    total = hashlib.sha256("".join(words).encode()).hexdigest()
    assert (ended.stdout, ended.returncode) == (f"{len(words)}\n{total}  -\n".encode(), 0)


def test_what_is_too_long_in_all_is_refused(peer: Peer, emulator: Emulator) -> None:
    bytes_ = b64(b"\xff" * 43_000)  # each takes three bytes on its way
    ended = peer.run("echo", *[bytes_] * 17)
    assert (ended.reason, ended.started, ended.error["name"]) == ("failed", "no", "argument_too_long")
    assert "2097152" in ended.message
    assert not peer.call("daemon.health")["health"]
    assert emulator.count(EXEC) == 0


@pytest.mark.parametrize("how", ["error", "126", "1"])
def test_what_the_sandboxes_kernel_refuses_has_not_run(peer: Peer, emulator: Emulator, how: str) -> None:
    """As much as can be said to go in, and too much together with what the sandbox adds."""
    emulator.config(too_long_argv=how)
    peer.sh("true")
    words = ["/bin/echo", *[b64(b"\xff" * 43_000)] * 16]
    over = peer.run(*words, "y" * 40_000, exec_id="over")
    assert over.error["name"] == "argument_too_long"
    excess = int(re.findall(r"of (\d+) bytes", over.message)[0]) - (2 << 20)
    ended = peer.run(*words, "y" * (40_000 - excess), exec_id="just")
    assert (ended.reason, ended.started, ended.error["name"]) == ("failed", "no", "argument_too_long"), ended
    assert not peer.call("daemon.health")["health"]
    assert peer.sh("echo next").stdout == b"next\n"


def test_an_exec_id_never_runs_twice(peer: Peer, daemon: Daemon, emulator: Emulator) -> None:
    exec_id = peer.start("/bin/sh", "-c", "echo line >>n; until [ -e go ]; do sleep 0.01; done", exec_id="Once.1-a_b")
    again = {"exec_id": exec_id, "key": DEFAULT_KEY, "argv": ["/bin/sh", "-c", "echo line >>n"]}
    with daemon.peer() as second:
        for asker in (peer, second):
            with pytest.raises(RpcFailure, match="exec_id_in_use"):
                asker.call("exec.start", again)
        peer.run("touch", "go")
        assert peer.finish(exec_id).returncode == 0
        for asker in (peer, second):
            with pytest.raises(RpcFailure, match="exec_id_in_use"):
                asker.call("exec.start", again)
    assert (workspace(emulator) / "n").read_text() == "line\n"
    assert emulator.count(EXEC) == 3  # one of them installs the shim


# -- how much it takes


def test_the_first_command_puts_the_shim_in_its_place(peer: Peer, emulator: Emulator) -> None:
    """Two requests more, once, however many come first."""
    peer.call("sandbox.list")
    for name in [peer.start("true") for _ in range(10)]:
        assert peer.finish(name).returncode == 0
    assert (emulator.count("PUT /v1/sandboxes/{id}/fs/content"), emulator.count(EXEC)) == (1, 11)


def test_a_warm_command_is_one_request_on_a_warm_connection(peer: Peer, emulator: Emulator) -> None:
    for name in [peer.start("true") for _ in range(3)]:
        peer.finish(name)
    # A command ends with the shim's word, a moment before its connection is at rest: so there are a few.
    wait_until(lambda: all(one["outcome"] != "open" for one in emulator.requests()), "connections at rest")
    emulator.reset_stats()
    peer.sh("echo 1")
    peer.run(script="echo 2", login=True)
    peer.run("cat", stdin="3")
    peer.run("false", cwd="/nowhere", env={"A": "1"}, timeout_s=100)
    stats = emulator.stats()
    assert (stats["total"], stats["requests"]) == (4, {EXEC: 4})
    assert stats["connections_accepted"] == 0  # all on those that were open


def test_two_hundred_at_once(peer: Peer, daemon: Daemon, emulator: Emulator) -> None:
    """None fails and none waits for another: they all meet at a barrier that only the last one opens."""
    peer.sh("mkdir in")
    script = 'mkdir "in/$1"; until [ "$(ls in | wc -l)" -eq 200 ]; do sleep 1; done; echo "$1"; exit $(($1 % 100))'
    others = [daemon.peer() for _ in range(4)]
    try:
        started = [(others[n % 4], n, others[n % 4].start("/bin/sh", "-c", script, "sh", str(n))) for n in range(200)]
        for asker, n, name in started:
            ended = asker.finish(name)
            assert (ended.returncode, ended.stdout) == (n % 100, f"{n}\n".encode()), ended
    finally:
        for each in others:
            each.close()
    assert emulator.count(EXEC) == 202


def test_a_command_outlives_its_client(daemon: Daemon, peer: Peer, emulator: Emulator) -> None:
    peer.sh("true")
    with daemon.peer() as other:
        exec_id = other.start("/bin/sh", "-c", "echo before; touch up; until [ -e go ]; do sleep 0.01; done; "
                              "head -c 5000000 /dev/zero; echo done >result; exit 4")
        appears(workspace(emulator) / "up")
    peer.run("touch", "go")
    appears(workspace(emulator) / "result")

    def listed() -> dict:
        return next(one for one in peer.call("exec.list")["execs"] if one["exec_id"] == exec_id)

    for _ in range(1000):
        if listed()["phase"] == "done":
            break
    assert (listed()["reason"], listed()["returncode"]) == ("exited", 4)


def test_the_phases_of_a_command(peer: Peer, emulator: Emulator) -> None:
    emulator.config(boot_ms=300)
    exec_id = peer.start("/bin/sh", "-c", "until [ -e go ]; do sleep 0.01; done; echo done; exit 2", exec_id="phases")
    other = {"profile": "default", "task": "other"}

    def entry() -> dict:
        found = peer.call("exec.list", {"key": DEFAULT_KEY})["execs"]
        return next(one for one in found if one["exec_id"] == exec_id)

    peer.notification("sandbox.progress")
    assert (entry()["phase"], entry()["sandbox_id"], entry()["returncode"]) == ("queued", None, None)
    peer.run("true")
    wait_until(lambda: entry()["phase"] == "running", "its runner has spoken too")
    assert entry()["sandbox_id"] == only_id(emulator)
    assert peer.call("sandbox.get", {"key": DEFAULT_KEY})["sandbox"]["running"] == [exec_id]
    assert peer.call("exec.list", {"key": other})["execs"] == []
    peer.run("touch", "go")
    peer.finish(exec_id)
    after = entry()
    assert (after["phase"], after["reason"], after["returncode"], after["output_bytes"]) == ("done", "exited", 2, 5)
    assert entry()["elapsed_s"] == after["elapsed_s"] >= 0.3
