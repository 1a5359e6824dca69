"""Input that comes in pieces: stdin while the command runs, scripts too long for a message."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Exit, Peer, RpcFailure, b64
from support.scenes import AHEAD, EXEC, FIND_SHIMS, PIECE, START, only_id, piece, pour, processes, without_shim, workspace

PUT = "PUT /v1/sandboxes/{id}/fs/content"


def opened(peer: Peer, *argv: str, **how: Any) -> str:
    return peer.start(*argv, stdin_open=True, **how)


def give(peer: Peer, exec_id: str, offset: int, data: bytes, **how: Any) -> dict[str, Any]:
    return peer.call("exec.stdin", piece(exec_id, offset, data, **how))


@pytest.fixture(params=["shim", "attached"])
def kind(request: pytest.FixtureRequest, emulator: Emulator) -> Iterator[str]:
    if request.param == "attached":
        without_shim(emulator)
    yield request.param


# -- stdin


def test_a_conversation_with_a_command(peer: Peer) -> None:
    """What is given arrives while the command runs, and its answer comes back before the next piece is given."""
    exec_id = opened(peer, "/bin/sh", "-c", 'while read -r line; do echo "got $line"; done; echo over; exit 3')
    assert give(peer, exec_id, 0, b"one\n") == {"accepted": 4, "state": "open"}
    assert peer.output(exec_id, 8) == b"got one\n"
    assert give(peer, exec_id, 4, b"two\n") == {"accepted": 8, "state": "open"}
    assert peer.output(exec_id, 8) == b"got two\n"
    assert give(peer, exec_id, 8, b"", eof=True) == {"accepted": 8, "state": "eof"}
    ended = peer.finish(exec_id)
    assert (ended.returncode, ended.stdout) == (3, b"over\n")


@pytest.mark.parametrize("size", [0, 1, 65_537, 131_073, 5_000_000, 64 << 20])
def test_any_size_round_trips(peer: Peer, size: int) -> None:
    data = random.Random(size).randbytes(size)
    exec_id = opened(peer, "sh", "-c", "sha256sum; echo end")
    if data:
        pour(peer, exec_id, data)
    else:
        assert give(peer, exec_id, 0, b"", eof=True)["state"] == "eof"
    ended = peer.finish(exec_id)
    assert ended.stdout == f"{hashlib.sha256(data).hexdigest()}  -\nend\n".encode()


@pytest.mark.parametrize("text", [b"a\r\nb\r\n", b"\0\0x\0", b"no newline", b"cat <<'EOF'\nEOF\n", b"\xff\xfe", "€😀".encode()])
def test_bytes_arrive_as_they_are(peer: Peer, kind: str, text: bytes) -> None:
    exec_id = opened(peer, "od", "-An", "-v", "-tx1")  # as digits, since output alone may be altered without the shim
    give(peer, exec_id, 0, text, eof=True)
    assert bytes.fromhex(peer.finish(exec_id).stdout.decode()) == text


def test_a_piece_sent_again_is_not_taken_twice(peer: Peer, emulator: Emulator) -> None:
    exec_id = opened(peer, "cat")
    assert give(peer, exec_id, 0, b"abc")["accepted"] == 3
    assert give(peer, exec_id, 0, b"abc")["accepted"] == 3
    assert give(peer, exec_id, 1, b"bcd")["accepted"] == 4  # partly known
    for action in ({"act_then_drop": "done"}, {"act_then_drop": "started"}, {"drop_before": True}, {"status": 502, "body": ""},
                   {"omit_terminal": True}, {"cut_after_bytes": 10}):
        emulator.fault_exec(action)
        before = give(peer, exec_id, 4, b"")["accepted"]  # only asks
        assert give(peer, exec_id, before, b"x")["accepted"] == before + 1
    give(peer, exec_id, 10, b"", eof=True)
    assert give(peer, exec_id, 10, b"", eof=True)["state"] in ("eof", "ended")
    assert peer.finish(exec_id).stdout == b"abcdxxxxxx"


def test_a_hole_is_refused_and_nothing_is_lost(peer: Peer, kind: str) -> None:
    exec_id = opened(peer, "cat")
    assert give(peer, exec_id, 0, b"abc")["accepted"] == 3
    with pytest.raises(RpcFailure) as refused:
        give(peer, exec_id, 5, b"fg")
    assert refused.value.name == "invalid_params" and "3 bytes" in refused.value.message
    give(peer, exec_id, 3, b"de", eof=True)
    assert peer.finish(exec_id).stdout == b"abcde"


def test_a_command_that_does_not_read_holds_up_its_writer_alone(peer: Peer) -> None:
    exec_id = opened(peer, "/bin/sh", "-c", "until [ -e go ]; do sleep 0.01; done; sha256sum")
    data = random.Random(3).randbytes(3 * PIECE)
    requests = [peer.send("exec.stdin", piece(exec_id, at, data[at:at + PIECE], eof=at + PIECE == len(data))) for at in range(0, len(data), PIECE)]
    assert peer.run("touch", "go").returncode == 0  # another command, its answer and its end pass by
    assert peer.result(requests[-1])["accepted"] == len(data)
    assert hashlib.sha256(data).hexdigest().encode() in peer.finish(exec_id).stdout


def test_a_runner_that_stands_still_for_a_while_costs_no_input(peer: Peer, emulator: Emulator) -> None:
    """Stopped, as by a system that has no time for it, for longer than the shim waits for its answer."""
    exec_id = opened(peer, "/bin/sh", "-c", 'while read -r line; do echo "got $line"; done; echo over')
    assert give(peer, exec_id, 0, b"one\n")["accepted"] == 4
    sandbox = only_id(emulator)
    assert emulator.sh(sandbox, FIND_SHIMS + "kill -STOP $runners").terminal == {"returncode": 0}
    late = peer.send("exec.stdin", piece(exec_id, 4, b"two\n"))
    asked = emulator.count(EXEC)
    wait_until(lambda: emulator.count(EXEC) >= asked + 2, "it was said again", limit_s=15)
    assert emulator.sh(sandbox, FIND_SHIMS + "kill -CONT $runners").terminal == {"returncode": 0}
    assert peer.result(late) == {"accepted": 8, "state": "open"}
    assert give(peer, exec_id, 8, b"", eof=True)["state"] == "eof"
    assert peer.finish(exec_id).stdout == b"got one\ngot two\nover\n"


def test_a_large_piece_that_nobody_reads_does_not_stay_in_the_sandbox(peer: Peer, emulator: Emulator) -> None:
    exec_id = opened(peer, "/bin/sh", "-c", "exec <&-; echo closed; until [ -e go ]; do sleep 0.01; done")
    peer.output(exec_id, 7)
    assert give(peer, exec_id, 0, b"x" * PIECE)["state"] == "closed"
    home = workspace(emulator) / ".deepinfra-sandboxd"
    assert not [each.name for each in home.iterdir() if each.name.startswith("stdin-")]
    peer.run("touch", "go")
    assert peer.finish(exec_id).returncode == 0


def test_too_many_unanswered_pieces_are_refused(peer: Peer, emulator: Emulator) -> None:
    emulator.config(boot_ms=300)
    exec_id = opened(peer, "cat")
    requests = [peer.send("exec.stdin", piece(exec_id, at, b"x")) for at in range(AHEAD + 1)]
    with pytest.raises(RpcFailure) as refused:
        peer.result(requests[-1])
    assert refused.value.name == "too_many_requests"
    assert peer.result(requests[-2])["accepted"] == AHEAD
    give(peer, exec_id, AHEAD, b"", eof=True)
    assert peer.finish(exec_id).stdout == b"x" * AHEAD


def test_a_command_that_closes_its_stdin(peer: Peer) -> None:
    exec_id = opened(peer, "/bin/sh", "-c", "exec <&-; echo closed; until [ -e go ]; do sleep 0.01; done")
    peer.output(exec_id, 7)
    offset = 0

    def closed() -> bool:
        nonlocal offset
        answer = give(peer, exec_id, offset, b"x" * 4096)
        offset = answer["accepted"]
        return bool(answer["state"] == "closed")

    wait_until(closed, "the closed end to be noticed")
    peer.run("touch", "go")
    assert peer.finish(exec_id).returncode == 0
    assert give(peer, exec_id, 0, b"x")["state"] == "ended"


def test_without_an_announcement_there_is_no_stdin(peer: Peer) -> None:
    for exec_id in (peer.start("sleep", "5"), peer.start("sleep", "5", stdin="x")):
        for stream in ("stdin", "script"):
            with pytest.raises(RpcFailure) as refused:
                give(peer, exec_id, 0, b"x", stream=stream)
            assert refused.value.name == "invalid_params"
        peer.call("exec.cancel", {"exec_id": exec_id})


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_stdin_goes_on_with_the_next_daemon(daemon: Daemon, how: str) -> None:
    with daemon.peer() as peer:
        exec_id = opened(peer, "cat")
        assert give(peer, exec_id, 0, b"before ")["accepted"] == 7
        peer.output(exec_id, 7)
    getattr(daemon, how)()
    with daemon.start().peer() as peer:
        peer.attach(exec_id)
        assert give(peer, exec_id, 0, b"") == {"accepted": 7, "state": "open"}
        assert give(peer, exec_id, 0, b"before after", eof=True)["accepted"] == 12
        ended = peer.finish(exec_id)
        assert (ended.returncode, ended.stdout) == (0, b"before after")


def test_a_cancel_is_not_held_up_by_stdin(peer: Peer, emulator: Emulator) -> None:
    exec_id = opened(peer, "sleep", "600")
    requests = [peer.send("exec.stdin", piece(exec_id, at * PIECE, b"x" * PIECE)) for at in range(3)]
    wait_until(lambda: any("sleep 600" in line for line in processes(emulator)), "the command")
    assert peer.call("exec.cancel", {"exec_id": exec_id})["confirmed"] is True
    assert peer.finish(exec_id).reason == "cancelled"
    assert all(peer.result(each)["state"] in ("open", "ended", "closed") for each in requests)


def test_without_the_shim_it_starts_when_all_is_there(peer: Peer, emulator: Emulator) -> None:
    without_shim(emulator)
    data = random.Random(7).randbytes(2_000_000)
    exec_id = opened(peer, "sha256sum")
    pour(peer, exec_id, data)
    assert hashlib.sha256(data).hexdigest().encode() in peer.finish(exec_id).stdout
    assert not list((workspace(emulator) / ".deepinfra-sandboxd").glob("stdin*"))


# -- scripts


def scripted(peer: Peer, script: bytes, **how: Any) -> Exit:
    exec_id = peer.start(script_size=len(script), **how)
    pour(peer, exec_id, script, stream="script")
    return peer.finish(exec_id)


@pytest.mark.parametrize("size", [1_000, 131_073, 5_000_000, 64 << 20])
def test_scripts_of_any_size_run(peer: Peer, size: int, kind: str) -> None:
    del kind
    head, tail = b"exec <&-\nsum=$(sha256sum /dev/fd/3 2>/dev/null)\ncat <<'EOF' >text\n", b"\nEOF\nsha256sum text; exit 7\n"
    text = (b"%d,x\r\n" % size) * (size // 10 + 1)
    text = text[: max(size - len(head) - len(tail), 0)]
    ended = scripted(peer, head + text + tail)
    assert (ended.returncode, ended.stdout[:64].decode()) == (7, hashlib.sha256(text + b"\n").hexdigest())


def test_a_script_and_stdin_and_a_login_shell(peer: Peer) -> None:
    script = b"shopt -q login_shell && echo login; cat"
    exec_id = peer.start(script_size=len(script), login=True, stdin_open=True, exec_id="mixed")
    pour(peer, exec_id, script, stream="script")
    give(peer, exec_id, 0, b"input", eof=True)
    assert peer.finish(exec_id).stdout == b"login\ninput"


def test_nothing_runs_before_the_script_is_there(peer: Peer, emulator: Emulator) -> None:
    script = b"echo whole"
    exec_id = peer.start(script_size=len(script))
    assert give(peer, exec_id, 0, script[:4], stream="script") == {"accepted": 4, "state": "open"}
    assert emulator.count(EXEC) == 0 and emulator.sandboxes() == []
    with pytest.raises(RpcFailure) as refused:
        give(peer, exec_id, 4, b"x" * 100, stream="script")
    assert refused.value.name == "too_large"
    with pytest.raises(RpcFailure) as short:
        give(peer, exec_id, 4, script[4:-1], stream="script", eof=True)
    assert short.value.name == "invalid_params"
    assert give(peer, exec_id, len(script) - 1, script[-1:], stream="script")["state"] == "eof"
    assert peer.finish(exec_id).stdout == b"whole\n"


def test_another_script_than_announced_is_not_run(peer: Peer, emulator: Emulator) -> None:
    script, other = b"echo one >ran", b"echo two >ran"
    exec_id = peer.start(script_size=len(script), script_sha256=hashlib.sha256(script).hexdigest())
    pour(peer, exec_id, other, stream="script")
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.started, ended.error["name"]) == ("failed", "no", "invalid_params")
    assert "not the one" in ended.message and emulator.sandboxes() == []


def test_another_script_of_the_same_size_under_a_known_id_is_refused(peer: Peer) -> None:
    script, other = b"echo one", b"echo two"
    announced = {"exec_id": "mine", "script_size": len(script)}
    known = announced | {"script_sha256": hashlib.sha256(script).hexdigest()}
    exec_id = peer.start(**known)
    for at in range(0, len(script), 3):  # the sum is of all of it, in whatever pieces it comes, and twice
        give(peer, exec_id, at, script[at : at + 3], stream="script")
        give(peer, exec_id, max(at - 1, 0), script[max(at - 1, 0) : at + 2], stream="script")
    assert peer.finish(exec_id).stdout == b"one\n"
    with pytest.raises(RpcFailure, match="exec_id_in_use"):
        peer.start(**announced | {"script_sha256": hashlib.sha256(other).hexdigest()})


def test_a_half_script_is_cancelled_without_a_trace(peer: Peer, emulator: Emulator) -> None:
    exec_id = peer.start(script_size=10)
    give(peer, exec_id, 0, b"abc", stream="script")
    assert peer.call("exec.cancel", {"exec_id": exec_id})["confirmed"] is True
    assert peer.finish(exec_id).started == "no"
    assert emulator.sandboxes() == []


def left_behind(emulator: Emulator, exec_id: str) -> list[int]:
    """Sizes of the files that its start was to find."""
    home = workspace(emulator) / ".deepinfra-sandboxd"
    return [each.stat().st_size for each in home.iterdir() if each.name in (f"stdin-{exec_id}", f"script-{exec_id}")]


LARGE = {"stdin": {"argv": ["cat"], "stdin": "x" * 200_000}, "script": {"script": "# " + "x" * 200_000}}


@pytest.mark.parametrize("what", LARGE)
def test_what_was_put_for_a_command_that_is_cancelled_before_it_is_sent_goes(peer: Peer, emulator: Emulator, kind: str, what: str) -> None:
    peer.sh("true")
    emulator.fault({"latency_after_ms": 5000}, method="PUT")
    exec_id = peer.start(**LARGE[what])
    wait_until(lambda: max(left_behind(emulator, exec_id), default=0) >= 200_000, "it is there")
    begun = time.monotonic()
    assert peer.call("exec.cancel", {"exec_id": exec_id})["confirmed"] is True
    assert peer.finish(exec_id).started == "no"
    assert time.monotonic() - begun < 2  # it waits neither for the PUT nor for the removal
    wait_until(lambda: left_behind(emulator, exec_id) == [], "it is gone")


def test_what_the_platform_writes_after_the_cancel_goes_too(peer: Peer, emulator: Emulator) -> None:
    peer.sh("true")
    emulator.fault({"latency_ms": 500}, method="PUT")
    before = emulator.count(PUT)
    exec_id = peer.start(**LARGE["stdin"])
    wait_until(lambda: emulator.count(PUT) > before, "it is under way")
    assert peer.call("exec.cancel", {"exec_id": exec_id})["confirmed"] is True
    assert peer.finish(exec_id).started == "no" and left_behind(emulator, exec_id) == []
    wait_until(lambda: left_behind(emulator, exec_id) == [200_000], "it is written all the same")
    wait_until(lambda: left_behind(emulator, exec_id) == [], "it is gone")


def test_what_was_put_for_a_command_that_never_arrived_goes(peer: Peer, emulator: Emulator) -> None:
    peer.sh("true")
    exec_id = "never"
    emulator.fault_exec({"stall_before": True}, body=exec_id)
    before = emulator.count(EXEC)
    peer.start(exec_id=exec_id, **LARGE["stdin"])
    wait_until(lambda: emulator.count(EXEC) > before, "it is on its way")
    assert left_behind(emulator, exec_id) == [200_000]
    assert peer.call("exec.cancel", {"exec_id": exec_id})["confirmed"] is True
    assert peer.finish(exec_id).started == "no"
    wait_until(lambda: left_behind(emulator, exec_id) == [], "it is gone")


def test_what_was_put_for_a_command_that_is_refused_goes(peer: Peer, emulator: Emulator, kind: str) -> None:
    peer.sh("true")
    exec_id = "refused"
    emulator.fault_exec({"status": 401, "body": "{}"}, body=exec_id)
    peer.start(exec_id=exec_id, **LARGE["script"])
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.started) == ("failed", "no")
    wait_until(lambda: left_behind(emulator, exec_id) == [], "it is gone")


def test_a_sandbox_that_was_stopped_is_not_started_to_take_it_away(peer: Peer, emulator: Emulator) -> None:
    peer.sh("true")
    emulator.fault({"latency_after_ms": 5000}, method="PUT")
    exec_id = peer.start(**LARGE["stdin"])
    wait_until(lambda: max(left_behind(emulator, exec_id), default=0) >= 200_000, "it is there")
    emulator.stop_sandbox(only_id(emulator))
    before = emulator.count(EXEC)
    assert peer.call("exec.cancel", {"exec_id": exec_id})["confirmed"] is True
    wait_until(lambda: emulator.count(EXEC) > before, "the removal was asked for")
    assert peer.finish(exec_id).started == "no"
    assert (emulator.state(only_id(emulator)), emulator.count(START)) == ("stopped", 0)


def test_a_script_whose_upload_is_cut_is_put_again(peer: Peer, emulator: Emulator) -> None:
    peer.sh("true")
    emulator.fault({"cut_after_bytes": 0}, method="PUT")
    ended = scripted(peer, b"# " + b"x" * 300_000 + b"\necho x >>ran; exit 4\n")
    assert ended.returncode == 4
    assert (workspace(emulator) / "ran").read_text() == "x\n"


def test_memory_stays_flat(daemon: Daemon) -> None:
    with daemon.peer() as peer:
        peer.sh("true")
        before = daemon.rss_kib()
        data = bytes(64 << 20)
        exec_id = opened(peer, "sh", "-c", "wc -c")
        pour(peer, exec_id, data)
        assert peer.finish(exec_id).stdout.strip() == str(len(data)).encode()
        assert daemon.rss_kib() - before < 48 * 1024


def test_keys_of_an_exec_are_those_of_its_start(peer: Peer) -> None:
    for wrong in ({"stdin": "x", "stdin_open": True}, {"script": "true", "script_size": 4}, {"argv": ["true"], "script_size": 4},
                  {"script_size": 0}, {"script_size": 104857601}, {}):
        message = {"jsonrpc": "2.0", "id": 900, "method": "exec.start",
                   "params": {"exec_id": "wrong", "key": DEFAULT_KEY, **({"argv": ["true"]} if "stdin" in wrong else {}), **wrong}}
        peer.send_wrong(message)
        assert peer.answer(900)["error"]["data"]["name"] == "invalid_params"
