"""The client's mechanics against a scripted peer: connection, multiplexing, windows, loss."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_daemon import NO_ANSWER, ROOT, FakeDaemon, Message, Peer, Refusal, ShellDaemon, decode, eventually

from deepinfra_sandboxd import (
    Client,
    ConnectionLost,
    DaemonNotRunning,
    DaemonTooOld,
    Incompatible,
    NoAnswer,
    RpcError,
    TooLarge,
)

from deepinfra_sandboxd.rpc import REQUIRED

ENSURE = {"key": {"profile": "p", "task": "t"}}


def test_the_first_message_is_hello_and_later_calls_share_the_connection(fake: FakeDaemon, client: Client) -> None:
    assert client.call("daemon.ping") == {}
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda _: client.call("daemon.ping"), range(40))) == [{}] * 40
    assert fake.methods()[0] == "hello"
    assert fake.methods().count("hello") == 1 and len(fake.peers) == 1
    assert fake.wait_for("hello")["protocol"] == {"min": 1, "max": 1}
    assert client.hello().version == "9.9.9"


def test_an_error_answer_becomes_an_error_with_a_name(fake: FakeDaemon, client: Client) -> None:
    def refuse(peer: Peer, params: Message) -> Message:
        raise Refusal("cap_reached", "5 of 5 in use", code=2005, hint="stop one")

    fake.on["sandbox.ensure"] = refuse
    with pytest.raises(RpcError, match="5 of 5 in use") as caught:
        client.call("sandbox.ensure", ENSURE)
    error = caught.value
    assert (error.name, error.code, error.retryable, error.hint) == (
        "cap_reached", 2005, False, "stop one",
    )  # fmt: skip


def test_nobody_listening_is_said_with_the_command_that_starts_the_daemon(tmp_path: Path) -> None:
    with pytest.raises(DaemonNotRunning, match="not running.*none.sock.*No such file") as caught:
        Client(str(tmp_path / "none.sock")).hello()
    assert "systemctl --user start" in caught.value.hint
    with pytest.raises(DaemonNotRunning, match="too long"):
        Client("/tmp/" + "x" * 120).hello()


def test_a_socket_left_by_a_dead_daemon_is_not_running(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "left.sock"))
    with pytest.raises(DaemonNotRunning, match="refused"):
        Client(str(tmp_path / "left.sock")).hello()


def test_the_address_is_looked_for_in_order(
    fake: FakeDaemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DEEPINFRA_SANDBOXD_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    state = tmp_path / "deepinfra-sandboxd"
    state.mkdir()
    with pytest.raises(DaemonNotRunning):
        Client().hello()
    (state / "socket").write_text(f"{fake.path}\n")
    with Client() as found_by_state:
        assert found_by_state.hello().instance == "fake"
    runtime = tmp_path / "run" / "deepinfra-sandboxd"
    runtime.mkdir(parents=True)
    other = FakeDaemon(runtime / "rpc.sock")
    other.on["hello"] = lambda peer, params: {**other.hello(), "instance": "runtime"}
    try:
        with Client() as found_by_runtime:
            assert found_by_runtime.hello().instance == "runtime"
    finally:
        other.stop()


def test_another_protocol_is_incompatible_and_says_what_to_do(fake: FakeDaemon) -> None:
    fake.on["hello"] = lambda peer, params: {"protocol": 2, "version": "3"}
    with pytest.raises(Incompatible, match="protocol 2, not 1") as caught:
        Client(str(fake.path)).hello()
    assert "versions" in caught.value.hint

    def refuse(peer: Peer, params: Message) -> Message:
        raise Refusal("incompatible_protocol", "speaks 2 only", hint="upgrade the client")

    fake.on["hello"] = refuse
    with pytest.raises(Incompatible, match="speaks 2 only") as caught:
        Client(str(fake.path)).hello()
    assert caught.value.hint == "upgrade the client"


def test_the_protocol_before_our_own_will_do(fake: FakeDaemon, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepinfra_sandboxd.rpc.PROTOCOL", 2)
    assert client.call("daemon.ping") == {}  # the daemon answered 1
    assert fake.wait_for("hello")["protocol"] == {"min": 1, "max": 2}
    monkeypatch.setattr("deepinfra_sandboxd.rpc.PROTOCOL", 3)
    with pytest.raises(Incompatible, match="protocol 1, not 3"):
        Client(str(fake.path)).hello()


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"[1]\n", b"\xff\n", b"{" * 100_000 + b"\n"])
def test_a_peer_that_speaks_something_else_is_incompatible(fake: FakeDaemon, answer: bytes) -> None:
    def speak(peer: Peer, params: Message) -> object:
        peer.raw(answer)
        return NO_ANSWER

    fake.on["hello"] = speak
    with pytest.raises(Incompatible):
        Client(str(fake.path), timeout=5).hello()


def test_the_longest_line_is_taken_and_a_longer_one_ends_the_connection(fake: FakeDaemon, client: Client) -> None:
    def ping(peer: Peer, params: Message) -> Message:
        begin, end = b'{"jsonrpc":"2.0","method":"sandbox.dance","params":{"x":"', b'"}}\n'
        peer.raw(begin + b"y" * (size - len(begin) - len(end)) + end)
        return {}

    fake.on["daemon.ping"] = ping
    size = 1 << 20
    assert client.call("daemon.ping") == {}
    size += 1
    with pytest.raises(ConnectionLost, match="longer than any message"):
        client.call("daemon.ping")


def test_a_peer_that_is_silent_is_given_up(fake: FakeDaemon) -> None:
    fake.on["hello"] = lambda peer, params: NO_ANSWER
    with pytest.raises(NoAnswer, match="did not answer hello within 0.1 s"):
        Client(str(fake.path), timeout=0.1).hello()


def test_unknown_members_and_unknown_notifications_are_ignored(fake: FakeDaemon, client: Client) -> None:
    fake.on["hello"] = lambda peer, params: {**fake.hello(), "novelty": [1]}

    def ping(peer: Peer, params: Message) -> Message:
        peer.notify("sandbox.dance", tempo=120)
        peer.notify("exec.output", exec_id="nobody's", stream="stdout", offset=0, data="x")
        peer.send({"id": 424242, "result": {}})
        return {"novelty": True}

    fake.on["daemon.ping"] = ping
    assert client.call("daemon.ping") == {"novelty": True}


def test_lines_may_arrive_in_any_pieces(fake: FakeDaemon, client: Client) -> None:
    execution = client.start(["true"])
    exit_message = (
        b'{"jsonrpc":"2.0","method":"exec.output","params":{"exec_id":"%b","stream":"stdout",'
        b'"offset":0,"data":"gr\xc3\xbc\xc3\x9fe"}}\n'
        b'{"jsonrpc":"2.0","method":"exec.exit","params":{"exec_id":"%b","returncode":3,'
        b'"reason":"exited","started":"yes","recreated":false,"generation":1}}\n'
    ).replace(b"%b", execution.exec_id.encode())

    def send() -> None:
        for byte in exit_message:
            fake.peer().raw(bytes([byte]))

    threading.Thread(target=send).start()
    result = execution.wait(5)
    assert (result.returncode, result.stdout) == (3, "grüße".encode())


def test_output_behind_its_line_may_arrive_in_any_pieces(fake: FakeDaemon, client: Client) -> None:
    """Whatever the bytes are: line ends, what looks like a message, zeros. And text in a message is read as before."""
    execution = client.start(["true"])
    pieces = [b"\n", b'{"jsonrpc":"2.0","id":1,"result":{}}\n', b"\0\xff\n\n", b"x" * 300]
    message, pos = b"", 0
    for piece in pieces:
        place = {"exec_id": execution.exec_id, "stream": "stdout", "offset": pos, "pos": pos, "raw": len(piece)}
        message += json.dumps({"jsonrpc": "2.0", "method": "exec.output", "params": place}).encode() + b"\n" + piece
        pos += len(piece)
    place |= {"offset": pos, "pos": pos, "data": "text"}
    del place["raw"]
    message += json.dumps({"jsonrpc": "2.0", "method": "exec.output", "params": place}).encode() + b"\n"

    def send() -> None:
        for byte in message:
            fake.peer().raw(bytes([byte]))
        fake.peer().exit(execution.exec_id)

    threading.Thread(target=send).start()
    assert execution.wait(5).stdout == b"".join(pieces) + b"text"


@pytest.mark.parametrize("size", [-1, (1 << 20) + 1, "many"])
def test_output_of_no_possible_size_ends_the_connection(fake: FakeDaemon, client: Client, size: Any) -> None:
    execution = client.start(["true"])
    first = fake.peer()
    first.notify("exec.output", exec_id=execution.exec_id, stream="stdout", offset=0, pos=0, raw=size)
    fake.on["exec.attach"] = lambda peer, params: {"exec_id": params["exec_id"], "attached": True}
    fake.on["exec.start"] = lambda peer, params: {"exec_id": params["exec_id"], "accepted": True, "attached": True}

    def end() -> None:
        fake.wait_for("hello", 2)
        fake.wait_for("exec.start", 2)
        fake.peer().exit(execution.exec_id)

    threading.Thread(target=end).start()
    assert execution.wait(5).returncode == 0 and fake.peer() is not first


def test_a_daemon_that_sends_output_in_messages_only_will_do(fake: FakeDaemon, client: Client) -> None:
    fake.capabilities.remove("raw_output")
    execution = client.start(["true"])
    fake.peer().output(execution.exec_id, b"\0\xff")
    fake.peer().exit(execution.exec_id)
    assert execution.wait(5).stdout == b"\0\xff"


def test_what_the_shell_line_needs_is_sent_as_asked(fake: FakeDaemon, client: Client) -> None:
    client.start(
        script="cat", login=True, key=("p", "t"), timeout=1.5, input=b"\xff\0", env={"A": "b\n"},
        cwd=b"/workspace/\xe9", merge_output=True, persistent=False, plan="large", window=4096,
        exec_id="mine",
    )  # fmt: skip
    assert fake.wait_for("exec.start") == {
        "exec_id": "mine",
        "key": {"profile": "p", "task": "t"},
        "script": "cat",
        "login": True,
        "timeout_s": 1.5,
        "stdin": {"b64": base64.b64encode(b"\xff\0").decode()},
        "env": {"A": "b\n"},
        "cwd": {"b64": base64.b64encode(b"/workspace/\xe9").decode()},
        "merge_output": True,
        "persistent": False,
        "plan": "large",
        "window": 4096,
    }
    client.start(["a", "\udcff"])
    second = fake.wait_for("exec.start", 2)
    assert [decode(value) for value in second["argv"]] == [b"a", b"\xff"]
    assert second["key"] == {"profile": "default", "task": "default"}
    assert "stdin" not in second and "timeout_s" not in second
    client.start(["a"], input="")
    assert fake.wait_for("exec.start", 3)["stdin"] == ""


def test_arguments_that_make_no_sense_are_refused_before_anything_is_sent(fake: FakeDaemon, client: Client) -> None:
    with pytest.raises(TypeError):
        client.start()
    with pytest.raises(TypeError):
        client.start(["a"], script="b")
    with pytest.raises(TypeError, match="script="):
        client.start("ls -l")
    with pytest.raises(ValueError, match="window"):
        client.start(["a"], window=1)
    assert "exec.start" not in fake.methods()


def test_too_large_a_request_fails_before_anything_is_sent(fake: FakeDaemon, client: Client) -> None:
    with pytest.raises(TooLarge, match="nothing was sent"):
        client.run(["echo", *["x" * (1 << 17)] * 8])
    assert client.call("daemon.ping") == {} and "exec.start" not in fake.methods()
    client.start(["echo", *["x" * (1 << 17)] * 7])
    assert len(fake.wait_for("exec.start")["argv"]) == 8


@pytest.mark.parametrize(
    ("script", "input"),
    [("x" * 70_000, "y" * 70_000), ("x", "\0" * 30_000), ("é" * 70_000, None), ("x", b"\xff" * 100_000)],
)
def test_what_goes_with_the_request_is_bounded_as_it_is_written(
    fake: FakeDaemon, client: Client, script: str, input: str | bytes | None
) -> None:
    """Both together, and a zero byte takes six: the rest goes in pieces, of which a line holds any number of bytes."""
    taken: dict[str, bytes] = {}

    def take(peer: Peer, params: Message) -> Message:
        taken[params["stream"]] = taken.get(params["stream"], b"") + base64.b64decode(params["data_b64"])
        return {"accepted": len(taken[params["stream"]]), "state": "eof" if params["eof"] else "open"}

    fake.on["exec.stdin"] = take
    client.start(script=script, input=input)
    start = fake.wait_for("exec.start")
    assert len(json.dumps(start, ensure_ascii=False).encode()) < (1 << 17) + 1024
    fake.wait_for("exec.stdin")
    assert client.call("daemon.ping") == {}
    wanted = {"script": script.encode(), "stdin": input.encode() if isinstance(input, str) else input}
    for stream, data in wanted.items():
        there = taken.get(stream) if stream not in start else decode(start[stream])
        assert there == data


def test_a_daemon_that_lacks_something_is_too_old_by_name_with_the_fix(fake: FakeDaemon) -> None:
    fake.capabilities = ["exec.attach", "novelty"]
    with pytest.raises(DaemonTooOld, match=r"\(9.9.9\) is older.* lacks: exec.stdin, fs, generation") as caught:
        Client(str(fake.path)).hello()
    assert isinstance(caught.value, Incompatible) and "systemctl --user restart" in caught.value.hint


def test_run_gathers_both_streams_and_how_it_ended(fake: FakeDaemon, client: Client) -> None:
    def answer(peer: Peer, params: Message) -> None:
        peer.output(params["exec_id"], b"out\xff")
        peer.output(params["exec_id"], b"err", stream="stderr")
        peer.output(params["exec_id"], b"put")
        peer.exit(params["exec_id"], 7, recreated=True, generation=4, dropped_bytes=5)

    fake.after_start = answer
    result = client.run(["x"])
    assert (result.returncode, result.stdout, result.stderr) == (7, b"out\xffput", b"err")
    assert (result.reason, result.started, result.recreated) == ("exited", "yes", True)
    assert (result.generation, result.output_bytes, result.dropped_bytes) == (4, 10, 5)


@pytest.mark.parametrize(
    ("reason", "wire_code", "code"),
    [("timed_out", 124, 124), ("cancelled", 130, 130), ("lost", None, 125), ("failed", 0, 125)],
)
def test_an_end_that_is_not_the_commands_own(
    fake: FakeDaemon, client: Client, reason: str, wire_code: int | None, code: int
) -> None:
    error = {"code": 3001, "name": "sandbox_gone", "retryable": True, "hint": "h"}

    def end(peer: Peer, params: Message) -> None:
        peer.exit(params["exec_id"], wire_code, reason, message="why", error=error)

    fake.after_start = end
    result = client.run(["x"])
    assert (result.returncode, result.reason, result.message) == (code, reason, "why")
    assert (result.error, result.hint) == ("sandbox_gone", "h")


def test_a_refused_start_raises_and_is_the_end_of_the_exec(fake: FakeDaemon, client: Client) -> None:
    def refuse(peer: Peer, params: Message) -> Message:
        raise Refusal("not_configured", "no API key")

    fake.on["exec.start"] = refuse
    with pytest.raises(RpcError, match="no API key"):
        client.start(["x"])
    execution = client.prepare(["x"])
    assert list(execution) == []
    assert execution.end is not None
    assert (execution.end.reason, execution.end.started) == ("failed", "no")


def test_output_arrives_while_the_command_runs(fake: FakeDaemon, client: Client) -> None:
    execution = client.start(["x"])
    fake.peer().output(execution.exec_id, b"first")
    chunk = execution.read(5)
    assert chunk is not None and chunk.data == b"first" and not execution.finished
    fake.peer().output(execution.exec_id, b"second")
    fake.peer().exit(execution.exec_id)
    assert [chunk.data for chunk in execution] == [b"second"]
    assert execution.finished


def test_who_does_not_wait_gets_what_is_there(shell: ShellDaemon) -> None:
    with Client(str(shell.path)) as client:
        execution, taken = client.start(script="echo hi"), b""

        def finished() -> bool:
            nonlocal taken
            chunk = execution.read(0)
            taken += b"" if chunk is None else chunk.data
            return execution.finished

        eventually(finished, "it is read to its end")
        assert taken == b"hi\n"
        assert execution.wait(0).returncode == 0
        execution = client.start(script="sleep 60")
        with pytest.raises(NoAnswer):
            execution.wait(0)
        execution.kill()


@pytest.mark.parametrize("limit", [30 * 86400.0, 1e300, float("inf")])
def test_a_limit_may_be_of_any_length(shell: ShellDaemon, limit: float) -> None:
    with Client(str(shell.path), patience=limit) as client:
        execution = client.start(script="sleep 0.2; echo done")
        waiting = threading.Thread(target=lambda: client.run(["true"]))
        waiting.start()
        assert execution.wait(limit).stdout == b"done\n"
        waiting.join()
        assert len(shell.peers) == 1


def test_repeated_output_is_recognised_by_its_position(fake: FakeDaemon, client: Client) -> None:
    execution = client.start(["x"])
    peer, send = fake.peer(), {"exec_id": execution.exec_id, "offset": 0}
    peer.notify("exec.output", **send, stream="stdout", pos=0, data="abc")
    peer.notify("exec.output", **send, stream="stderr", pos=3, data="ERR")
    peer.notify("exec.output", **send, stream="stderr", pos=3, data="ERR")
    peer.notify("exec.output", **send, stream="stdout", pos=5, data="Rdé")
    peer.notify("exec.output", **send, stream="stdout", pos=100, data="after a gap")
    peer.exit(execution.exec_id)
    result = execution.wait(5)
    assert result.stdout == "abcdéafter a gap".encode()
    assert result.stderr == b"ERR"


def test_a_reader_that_stops_holds_up_only_its_own_command(fake: FakeDaemon, client: Client) -> None:
    window = 1 << 16
    stuck = client.start(["stuck"], window=window)
    flood = fake.peer().flood(stuck.exec_id, b"s" * 40 * window)
    eventually(lambda: fake.peer().sent.get(stuck.exec_id, 0) >= window, "the window is full")
    other = client.start(["other"])
    sender = threading.Thread(
        target=lambda: (
            fake.peer().output(other.exec_id, b"o" * (3 << 20)),
            fake.peer().exit(other.exec_id),
        )
    )
    sender.start()
    assert len(other.wait(10).stdout) == 3 << 20
    assert client.call("daemon.ping", timeout=5) == {}
    assert fake.peer().sent[stuck.exec_id] == window  # it has not read, so no more was sent
    assert fake.peer().acked.get(stuck.exec_id, 0) == 0
    taken = 0
    while taken < 40 * window:
        chunk = stuck.read(5)
        assert chunk is not None
        taken += len(chunk.data)
    flood.join(5)
    sender.join(5)
    fake.peer().exit(stuck.exec_id)
    assert stuck.read(5) is None and stuck.finished


def test_short_output_is_acknowledged_at_its_end_only(fake: FakeDaemon, client: Client) -> None:
    execution = client.start(["x"])
    fake.peer().output(execution.exec_id, b"short")
    assert execution.read(5) is not None
    client.call("daemon.ping")
    assert "exec.ack" not in fake.methods()
    fake.peer().exit(execution.exec_id)
    execution.wait(5)
    client.call("daemon.ping")
    assert fake.methods().count("exec.ack") == 1 and fake.wait_for("exec.ack")["offset"] == 5


def test_cancel_reaches_the_daemon_while_output_is_stuck(fake: FakeDaemon, client: Client) -> None:
    execution = client.start(["x"], window=1 << 16)
    fake.peer().output(execution.exec_id, b"x" * (1 << 16))
    assert execution.cancel("TERM") is True
    assert fake.wait_for("exec.cancel") == {"exec_id": execution.exec_id, "signal": "TERM"}
    fake.peer().exit(execution.exec_id, 130, "cancelled")
    assert execution.wait(5).returncode == 130


def test_an_interrupted_run_cancels_its_command(fake: FakeDaemon, client: Client) -> None:
    def interrupt(peer: Peer, params: Message) -> None:
        os.kill(os.getpid(), 2)

    fake.after_start = interrupt
    with pytest.raises(KeyboardInterrupt):
        client.run(["sleep", "100"])
    fake.wait_for("exec.cancel")


def test_a_lost_connection_ends_the_call_that_waits_and_the_command_goes_on_over_another(
    fake: FakeDaemon, client: Client
) -> None:
    execution = client.start(["x"])
    fake.peer().output(execution.exec_id, b"partial")
    fake.on["sandbox.stop"] = lambda peer, params: NO_ANSWER
    with ThreadPoolExecutor() as pool:
        stopped = pool.submit(client.call, "sandbox.stop", {"id": "sb_1"})
        fake.wait_for("sandbox.stop")
        fake.peer().raw(b'{"jsonrpc":"2.0","method":"exec.exit","params":{"torn')
        fake.peer().close()
        with pytest.raises(ConnectionLost):
            stopped.result(5)
    first = execution.read(5)
    assert first is not None and first.data == b"partial"
    assert execution.read(0.1) is None  # whoever reads finds it again
    assert fake.wait_for("exec.start", 2)["offset"] == len(b"partial")  # what was torn was no message
    fake.peer().exit(execution.exec_id, 7)
    assert execution.wait(5).returncode == 7
    assert client.call("daemon.ping") == {} and len(fake.peers) == 2
    assert fake.methods().count("sandbox.stop") == 1


def test_sending_never_waits_for_a_daemon_that_does_not_read(tmp_path: Path) -> None:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(tmp_path / "deaf.sock"))
    listener.listen(1)
    client = Client(str(tmp_path / "deaf.sock"), timeout=5)
    ready, resume = threading.Event(), threading.Event()
    counted: list[int] = []

    def serve() -> None:
        sock, _ = listener.accept()
        reader = sock.makefile("rb")
        reader.readline()
        hello = {"protocol": 1, "capabilities": sorted(REQUIRED)}
        sock.sendall(json.dumps({"jsonrpc": "2.0", "id": 1, "result": hello}).encode() + b"\n")
        ready.set()
        resume.wait(10)
        while (line := reader.readline()) and b"daemon.ping" not in line:
            counted.append(len(line))
        sock.sendall(b'{"jsonrpc":"2.0","id":22,"result":{}}\n')
        reader.readline()
        sock.close()

    thread = threading.Thread(target=serve)
    thread.start()
    client.hello()
    assert ready.wait(5)
    begun = time.monotonic()
    for _ in range(20):
        client.post("sandbox.release", {"padding": "x" * 900_000})
    assert time.monotonic() - begun < 2.0
    resume.set()
    assert client.call("daemon.ping", timeout=10) == {}
    assert len(counted) == 20 and min(counted) > 900_000
    client.close()
    thread.join(5)
    listener.close()


def test_progress_is_remembered_for_whoever_waits(fake: FakeDaemon, client: Client) -> None:
    def ensure(peer: Peer, params: Message) -> Message:
        key = {"profile": "p", "task": "t"}
        peer.notify("sandbox.progress", key=key, state="creating", text="booting", waited_s=1)
        return {}

    fake.on["sandbox.ensure"] = ensure
    client.call("sandbox.ensure", ENSURE)
    assert client.progress == {("p", "t"): "booting"}


def test_a_forked_child_makes_its_own_connection(fake: FakeDaemon, client: Client) -> None:
    client.call("daemon.ping")
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if client.call("daemon.ping") == {} else 1)
        except BaseException:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(fake.peers) == 2
    assert client.call("daemon.ping") == {} and len(fake.peers) == 2


def test_an_interpreter_can_end_at_any_time_without_a_word(fake: FakeDaemon) -> None:
    program = (
        "from deepinfra_sandboxd import Client\n"
        f"client = Client({str(fake.path)!r})\n"
        "execution = client.start(['x'])\n"
        "import threading\n"
        f"threading.Thread(target=client.call, args=('sandbox.ensure', {ENSURE}), daemon=True).start()\n"
        "print('ready')\n"
    )
    fake.on["sandbox.ensure"] = lambda peer, params: NO_ANSWER
    result = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "client-py")},
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert (result.returncode, result.stdout) == (0, "ready\n")
    assert "Exception" not in result.stderr and "Traceback" not in result.stderr


def test_two_hundred_commands_at_once(fake: FakeDaemon, client: Client) -> None:
    def answer(peer: Peer, params: Message) -> None:
        def later() -> None:
            peer.output(params["exec_id"], decode(params["argv"][0]) * 1000)
            peer.exit(params["exec_id"])

        threading.Thread(target=later, daemon=True).start()

    fake.after_start = answer
    executions = [client.start([f"{number};"]) for number in range(200)]
    for number, execution in enumerate(executions):
        assert execution.wait(10).stdout == f"{number};".encode() * 1000


def test_a_daemon_without_a_key_is_given_ours_before_it_needs_one(
    fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.account = {"configured": False, "fingerprint": None}
    fake.on["plan.list"] = lambda peer, params: {"plans": [], "default": None}
    monkeypatch.setenv("DEEPINFRA_API_KEY", " ours\n")
    with Client(str(fake.path)) as client, Client(str(fake.path), hand_over=False) as plugin:
        client.call("daemon.ping")
        plugin.call("plan.list")
        assert not fake.account["configured"]
        client.call("plan.list")
        client.call("plan.list")
    assert fake.account["configured"] and fake.methods().count("account.set") == 1


def test_a_key_that_is_refused_is_told_by_what_needed_it(fake: FakeDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.account = {"configured": False, "fingerprint": None}

    def refuse(peer: Peer, params: dict[str, object]) -> None:
        raise Refusal("unauthorized", "the platform refuses the API key", 2002)

    fake.on["account.set"] = refuse
    monkeypatch.setenv("DEEPINFRA_API_KEY", "wrong")
    with Client(str(fake.path), timeout=1, patience=0.2) as client, pytest.raises(RpcError) as caught:
        client.start(["true"])
    assert caught.value.name == "unauthorized" and "exec.start" not in fake.methods()
