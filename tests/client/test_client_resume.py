"""Commands and calls outlive connections and daemons: nothing lost, nothing twice, and what cannot be known is said to be unknown."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Iterator

import pytest
from fake_daemon import NO_ANSWER, FakeDaemon, Message, Peer, Refusal, ShellDaemon, eventually

from deepinfra_sandboxd import Client, DaemonNotRunning, RpcError, daemon

COUNT = "for i in $(seq 3000); do echo line $i; done"
COUNTED = "".join(f"line {i}\n" for i in range(1, 3001)).encode()
ENSURE = {"key": {"profile": "p", "task": "t"}}


@pytest.fixture
def client(shell: ShellDaemon) -> Iterator[Client]:
    with Client(str(shell.path), timeout=5, patience=10) as client:
        yield client


def test_output_goes_on_where_it_was_after_any_number_of_cuts(shell: ShellDaemon, client: Client) -> None:
    dice = random.Random(1)
    with ThreadPoolExecutor() as pool:
        for _ in range(5):
            seen = shell.methods().count("exec.start")
            running = pool.submit(client.run, script=COUNT + "; exit 7", window=8192)
            while not running.done():
                if shell.methods().count("exec.start") > seen:
                    seen += 1
                    time.sleep(dice.random() / 50)
                    shell.drop()
                time.sleep(0.001)
            done = running.result()
            assert (done.message, done.returncode, done.reason) == ("", 7, "exited")
            assert done.stdout == COUNTED
    assert len(shell.started) == 5


def test_a_daemon_killed_and_started_again_in_the_middle(shell: ShellDaemon, client: Client) -> None:
    with ThreadPoolExecutor() as pool:
        running = pool.submit(client.run, script=f"{COUNT}; sleep 0.5; echo end")
        shell.wait_for("exec.start")
        shell.crash()
        time.sleep(0.2)
        shell.restart()
        assert running.result().stdout == COUNTED + b"end\n"
    assert len(shell.started) == 1


def test_a_lost_answer_to_the_start_runs_nothing_twice(shell: ShellDaemon, client: Client) -> None:
    shell.lose_answers = 2
    assert client.run(script="echo x >> n; cat n").stdout == b"x\n"
    assert len(shell.started) == 1
    assert "resume" not in shell.wait_for("exec.start", 3)  # it was not known to be accepted


def test_what_was_accepted_and_is_not_known_any_more_is_lost_and_not_run_again(
    shell: ShellDaemon, client: Client
) -> None:
    command = client.start(script="echo some; sleep 60")
    chunk = command.read(5)
    assert chunk is not None and chunk.data == b"some\n"
    started = shell.commands.pop(command.exec_id)
    shell.drop()
    end = command.wait(10)
    assert (end.reason, end.started, end.error, end.returncode) == ("lost", "unknown", "exec_not_found", 125)
    assert shell.wait_for("exec.start", 2)["resume"] is True and len(shell.started) == 1
    client.call("daemon.ping")
    assert "exec.ack" not in shell.methods()  # the sandbox is not told to forget what nobody has seen
    shell.commands[command.exec_id] = started  # to be ended with the daemon


def test_another_daemon_is_not_given_a_command_that_the_first_may_have_run(shell: ShellDaemon, client: Client) -> None:
    shell.lose_answers = 1
    shell.on["hello"] = lambda peer, params: {**shell.hello(), "instance": f"number {len(shell.peers)}"}
    command = client.start(script="echo x")
    assert command.end is not None and (command.end.reason, command.end.started) == ("lost", "unknown")
    assert "another daemon" in command.end.message and len(shell.started) == 1


def test_a_daemon_that_does_not_come_back_ends_the_command_as_lost(shell: ShellDaemon) -> None:
    with Client(str(shell.path), patience=0.3) as client:
        command = client.start(script="echo some; sleep 60")
        chunk = command.read(5)
        shell.crash()
        end = command.wait(10)
        assert chunk is not None and (end.reason, end.started) == ("lost", "unknown")
        assert "not running" in end.message and "systemctl" in end.hint
        with pytest.raises(DaemonNotRunning):
            client.call("daemon.ping")
        shell.restart()
        assert client.call("daemon.ping") == {}


def test_short_waits_do_not_renew_the_patience(shell: ShellDaemon) -> None:
    with Client(str(shell.path), patience=0.4) as client:
        command = client.start(script="sleep 60")
        shell.crash()
        begun = time.monotonic()
        while command.end is None:
            command.read(0.05)
            assert time.monotonic() - begun < 5
        assert command.end.reason == "lost"


def test_a_daemon_that_dies_of_a_command_each_time_is_not_asked_for_ever(fake: FakeDaemon) -> None:
    def die(peer: Peer, params: Message) -> object:
        peer.close()
        return NO_ANSWER

    fake.on["exec.start"] = die
    with Client(str(fake.path), patience=5) as client:
        command = client.start(["x"])
    assert command.end is not None and (command.end.reason, command.end.started) == ("lost", "unknown")
    assert fake.methods().count("exec.start") == 20


def test_a_wait_is_over_in_time_though_the_daemon_is_away(shell: ShellDaemon, client: Client) -> None:
    command = client.start(script="sleep 0.3; echo late")
    shell.crash()
    begun = time.monotonic()
    assert command.read(0.2) is None and time.monotonic() - begun < 2
    threading.Timer(0.1, command.nudge).start()
    assert command.read(30) is None and time.monotonic() - begun < 5
    shell.restart()
    assert command.wait(10).stdout == b"late\n"


@pytest.mark.parametrize("stage", ["answer", "exit"])
def test_a_daemon_that_shuts_down_hands_a_command_over_to_the_next(fake: FakeDaemon, stage: str) -> None:
    closing = threading.Event()

    def start(peer: Peer, params: Message) -> Message:
        if stage == "answer" and not closing.is_set():
            closing.set()
            threading.Timer(0.05, peer.close).start()
            raise Refusal("shutting_down", "going down")
        return {"exec_id": params["exec_id"], "accepted": True, "attached": False}

    def after(peer: Peer, params: Message) -> None:
        if stage == "exit" and not closing.is_set():
            closing.set()
            error = {"code": 1003, "name": "shutting_down", "retryable": True, "hint": ""}
            peer.exit(params["exec_id"], None, "failed", started="no", error=error)
            threading.Timer(0.05, peer.close).start()
        else:
            peer.output(params["exec_id"], b"done")
            peer.exit(params["exec_id"])

    fake.on["exec.start"], fake.after_start = start, after  # type: ignore[method-assign]
    with Client(str(fake.path), patience=5) as client:
        assert client.run(["x"]).stdout == b"done"
    assert fake.wait_for("exec.start", 2).get("resume", False) is (stage == "exit")


def test_the_end_is_acknowledged_so_that_the_sandbox_may_forget_it(shell: ShellDaemon, client: Client) -> None:
    done = client.run(script="echo x")
    eventually(lambda: shell.commands[done.exec_id].forgotten, "it is forgotten")
    unread = client.start(script="echo y")
    client.call("daemon.ping")
    eventually(lambda: shell.commands[unread.exec_id].end is not None, "it has ended")
    client.call("daemon.ping")
    assert not shell.commands[unread.exec_id].forgotten  # nobody has read it
    assert unread.wait(5).stdout == b"y\n"
    eventually(lambda: shell.commands[unread.exec_id].forgotten, "it is forgotten")


def test_another_client_goes_on_with_a_command_by_its_id(shell: ShellDaemon, client: Client) -> None:
    first = client.start(script="echo one; sleep 0.3; echo two", exec_id="shared")
    assert first.read(5) is not None
    client.close()
    with Client(str(shell.path)) as other:
        assert other.attach("shared").wait(10).stdout == b"one\ntwo\n"
        assert other.attach("shared", offset=4).wait(10).stdout == b"two\n"
        with pytest.raises(RpcError) as caught:
            other.attach("nobody")
        assert caught.value.name == "exec_not_found"
    assert len(shell.started) == 1


@pytest.mark.parametrize("cuts", [False, True])
def test_input_of_any_size_arrives_byte_by_byte(shell: ShellDaemon, client: Client, cuts: bool) -> None:
    data = random.Random(2).randbytes(8 << 20)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(client.run, ["sha256sum"], input=data)
        while cuts and not running.done():
            time.sleep(0.05)
            shell.drop()
        assert running.result().stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert len(shell.started) == 1
    assert "stdin" not in shell.wait_for("exec.start")


def test_a_script_of_any_size_runs(shell: ShellDaemon, client: Client) -> None:
    script = "# " + "x" * (3 << 20) + "\necho ran\n"
    assert client.run(script=script).stdout == b"ran\n"
    assert shell.wait_for("exec.start")["script_size"] == len(script)


def test_only_what_may_be_repeated_is_repeated(fake: FakeDaemon) -> None:
    lost: list[str] = []

    def lose(method: str, answer: Any) -> Any:
        def handler(peer: Peer, params: Message) -> Any:
            if method not in lost:
                lost.append(method)
                peer.close()
                return NO_ANSWER
            return answer

        return handler

    for method in ("daemon.ping", "sandbox.ensure", "sandbox.get"):
        fake.on[method] = lose(method, {"novelty": method})
    with Client(str(fake.path), patience=5) as client:
        assert client.call("daemon.ping") == {"novelty": "daemon.ping"}
        assert client.call("sandbox.ensure", ENSURE) == {"novelty": "sandbox.ensure"}
    assert fake.methods().count("sandbox.ensure") == 2


def test_a_call_to_a_daemon_that_is_just_going_is_made_to_the_next_one(fake: FakeDaemon) -> None:
    asked: list[Peer] = []

    def ensure(peer: Peer, params: Message) -> Message:
        asked.append(peer)
        if len(asked) < 4:
            raise Refusal("shutting_down", "going down")
        return {}

    fake.on["sandbox.ensure"] = ensure
    with Client(str(fake.path), patience=5) as client:
        assert client.call("sandbox.ensure", ENSURE) == {}
    asked.clear()
    with Client(str(fake.path), patience=0.01) as client, pytest.raises(RpcError, match="going down"):
        client.call("sandbox.ensure", ENSURE)


def test_many_threads_find_the_daemon_again_over_one_connection(shell: ShellDaemon, client: Client) -> None:
    with ThreadPoolExecutor(20) as pool:
        running = [pool.submit(client.run, script=f"sleep 0.3; echo {number}") for number in range(20)]
        shell.wait_for("exec.start", 20)
        shell.crash()
        shell.restart()
        assert [done.result().stdout for done in running] == [f"{number}\n".encode() for number in range(20)]
    assert len(shell.started) == 20 and len(shell.peers) == 2


def stand_in(path: Path, code: str) -> None:
    """A program that writes down its arguments, and its environment, before it does what *code* says."""
    path.parent.mkdir(exist_ok=True)
    name = path.name
    note = (
        f'env > {path.parent}/{name}.env; echo "$@" > {path.parent}/new; mv {path.parent}/new {path.parent}/{name}.args'
    )
    path.write_text(f"#!/bin/sh\n{note}\n{code}\n")
    path.chmod(0o755)


@contextlib.contextmanager
def appearing(path: Path, after: Path) -> Iterator[None]:
    """A daemon that listens once the file *after* is there."""
    daemons: list[FakeDaemon] = []

    def appear() -> None:
        eventually(after.exists, "it is started")
        daemons.append(FakeDaemon(path))

    thread = threading.Thread(target=appear)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        daemons[0].stop()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory at the head of PATH, with a daemon that does nothing."""
    directory = tmp_path / "bin"
    stand_in(directory / "deepinfra-sandboxd", "exit 1")
    monkeypatch.setenv("PATH", str(directory), prepend=":")
    return directory


def test_a_daemon_that_is_not_running_is_spawned(
    tmp_path: Path, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPINFRA_API_KEY", "k")
    monkeypatch.setenv("SOMEONES_TOKEN", "secret")
    path, arguments = tmp_path / "own.sock", programs / "deepinfra-sandboxd.args"
    with appearing(path, arguments), Client(str(path)) as client:
        assert client.call("daemon.ping") == {}
    assert arguments.read_text().split() == ["serve", "--socket", str(path)]
    environment = (programs / "deepinfra-sandboxd.env").read_text()
    assert "DEEPINFRA_API_KEY=k" in environment and "SOMEONES_TOKEN" not in environment


def test_nothing_is_started_by_who_only_looks(tmp_path: Path, programs: Path) -> None:
    with pytest.raises(DaemonNotRunning):
        Client(str(tmp_path / "none.sock"), start=False).hello()
    assert not (programs / "deepinfra-sandboxd.args").exists()


@pytest.mark.parametrize("works", [True, False])
def test_systemd_is_asked_first_where_there_is_a_user_manager(user_manager: Path, programs: Path, works: bool) -> None:
    stand_in(programs / "systemctl", f"exit {0 if works else 5}")
    started = programs / ("systemctl.args" if works else "deepinfra-sandboxd.args")
    with appearing(user_manager, started), Client() as client:
        assert client.call("daemon.ping") == {}
    assert (programs / "systemctl.args").read_text() == "--user start deepinfra-sandboxd.socket\n"
    assert (programs / "deepinfra-sandboxd.args").exists() is not works


@pytest.fixture
def user_manager(programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with systemd, of which ``programs`` has no systemctl yet; where its socket would be."""
    monkeypatch.delenv("DEEPINFRA_SANDBOXD_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "states"))
    runtime = Path(os.environ["XDG_RUNTIME_DIR"])
    (runtime / "systemd").mkdir(parents=True)
    (runtime / "systemd" / "private").touch()
    (runtime / "deepinfra-sandboxd").mkdir()
    return runtime / "deepinfra-sandboxd" / "rpc.sock"


def test_for_good_means_the_service_and_its_socket(user_manager: Path, programs: Path) -> None:
    """The service's own start at each login finds what ran before, and stops it when idle, without any client."""
    stand_in(programs / "systemctl", "exit 0")
    assert "journalctl" in daemon.start(enable=True)
    units = "deepinfra-sandboxd.socket deepinfra-sandboxd.service"
    assert (programs / "systemctl.args").read_text() == f"--user enable --now {units}\n"


def test_a_systemctl_that_hangs_is_waited_for_no_longer_than_the_caller_wants(
    user_manager: Path, programs: Path
) -> None:
    class Enough(Exception):
        pass

    def tick() -> None:
        if (programs / "systemctl.args").exists():
            raise Enough

    stand_in(programs / "systemctl", "until [ -e $0.go ]; do sleep 0.02; done")
    begun = time.monotonic()
    with pytest.raises(Enough):
        Client().call("daemon.ping", tick=tick)
    assert time.monotonic() - begun < 4  # its own limit is 5 s
    (programs / "systemctl.go").touch()  # it goes on by itself, and ends with this test
    for thread in threading.enumerate():
        if thread.name == "deepinfra-sandboxd-start":
            thread.join()


@pytest.mark.parametrize("by", ["systemd", "spawn"])
def test_short_reads_start_one_daemon_and_end_when_it_does_not_come(
    shell: ShellDaemon, programs: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    monkeypatch.setattr("deepinfra_sandboxd.client.GRACE", 0.1)
    monkeypatch.setattr("deepinfra_sandboxd.client.START_LIMIT", 1.0)
    name, code = ("deepinfra-sandboxd", 1) if by == "spawn" else ("systemctl", 0)
    stand_in(programs / name, f"echo >> $0.count; sleep 0.1; echo >> $0.done; exit {code}")
    counts, whole = programs / f"{name}.count", programs / f"{name}.done"
    path = shell.path
    if by == "systemd":
        path = request.getfixturevalue("user_manager")
        path.symlink_to(shell.path)
    with Client(str(path) if by == "spawn" else None, patience=0.5) as client:
        execution = client.start(script="exec sleep 60")
        shell.crash()
        begun = time.monotonic()
        while not execution.finished and time.monotonic() < begun + 8:
            execution.read(0.02)
        assert execution.finished and time.monotonic() > begun + 1.0
        assert execution.end is not None and execution.end.reason == "lost"
        assert "does not listen" in execution.end.hint
        assert (counts.read_text(), whole.read_text()) == ("\n", "\n")  # one, and that was left to its end
        with pytest.raises(DaemonNotRunning):
            client.call("daemon.ping")
        assert counts.read_text() == "\n\n"  # whoever asks next may have mended it


def test_a_start_that_nobody_waited_for_is_no_answer_to_who_asks_later(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepinfra_sandboxd.client.START_LIMIT", 0.3)
    monkeypatch.setattr("deepinfra_sandboxd.client.FORGOTTEN", 0.1)
    stand_in(programs / "deepinfra-sandboxd", "echo >> $0.count")
    counts = programs / "deepinfra-sandboxd.count"

    def interrupted() -> None:
        if counts.exists():
            raise InterruptedError

    with Client() as client:
        with pytest.raises(InterruptedError):
            client.call("daemon.ping", tick=interrupted)
        deadline = time.monotonic() + 0.5
        eventually(lambda: time.monotonic() > deadline, "its time is up")
        with pytest.raises(DaemonNotRunning):
            client.call("daemon.ping")
    assert counts.read_text() == "\n\n"


def test_a_machine_that_lets_no_daemon_be_started_says_so(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DEEPINFRA_SANDBOXD_STATE_DIR", str(tmp_path / "file" / "below"))
    with pytest.raises(DaemonNotRunning, match="cannot be started: .*file/below") as caught:
        Client().hello()
    assert "deepinfra-sandboxd serve" in caught.value.hint


def test_a_daemon_that_ends_at_once_is_looked_up_in_its_log(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepinfra_sandboxd.client.START_LIMIT", 0.3)
    stand_in(programs / "deepinfra-sandboxd", "echo no such option >&2; exit 2")
    with pytest.raises(DaemonNotRunning) as caught:
        Client().hello()
    log = tmp_path / "state" / "spawned.log"
    assert f"tail {log}" in caught.value.hint
    eventually(lambda: log.read_text() == "no such option\n", "its last words are there")


def test_a_daemon_that_was_lost_is_first_given_time_to_come_back_by_itself(
    shell: ShellDaemon, client: Client, programs: Path
) -> None:
    client.hello()
    shell.crash()
    threading.Timer(0.4, shell.restart).start()
    assert client.call("daemon.ping") == {}
    assert not (programs / "deepinfra-sandboxd.args").exists()
