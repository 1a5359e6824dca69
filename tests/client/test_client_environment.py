"""The environment on the stub of hermes's base class, against a daemon that runs scripts here."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time
from pathlib import Path
from typing import Any, Callable, Iterator

import hermes_constants
import pytest
from fake_daemon import NO_ANSWER, Command, Message, Peer, Refusal, ShellDaemon, decode, eventually

from deepinfra_sandboxd import SandboxdError, daemon
from deepinfra_sandboxd.environment import DeepInfraEnvironment, can_unpack, fingerprint, plain
from deepinfra_sandboxd.provider import DeepInfraProvider
from tools import interrupt
from tools.environments import base, file_sync
from tools.environments.base import BaseEnvironment, EnvironmentConnectionError, FileFetchError, set_activity_callback


def make(provider: DeepInfraProvider, **options: Any) -> DeepInfraEnvironment:
    arguments = {"cwd": "/root", "timeout": 20, "task_id": "default", **options}
    environment = provider.create_environment(**arguments)
    assert isinstance(environment, DeepInfraEnvironment)
    return environment


def refuse(name: str, text: str, hint: str = "") -> Any:
    def handler(peer: Peer, params: Message) -> Message:
        raise Refusal(name, text, hint=hint)

    return handler


def on_thread(name: str, call: Any) -> Any:
    box: list[Any] = []
    thread = threading.Thread(target=lambda: box.append(call()), name=name)
    thread.start()
    thread.join(20)
    return box[0]


def restart(shell: ShellDaemon) -> None:
    """The platform stopped the sandbox: what a stop takes with it is gone."""
    shell.lose_what_a_stop_loses()


def held_making_the_session_again(
    shell: ShellDaemon, environment: DeepInfraEnvironment
) -> tuple[threading.Thread, threading.Event]:
    """A thread that is in the midst of that, and what lets it go on."""
    restart(shell)
    run, gate = shell._run, threading.Event()

    def held(command: Command) -> None:
        gate.wait(20)
        run(command)

    shell._run = held  # type: ignore[method-assign]
    thread = threading.Thread(target=environment.execute, args=("echo a",))
    thread.start()
    shell.wait_for("exec.start", 2)
    return thread, gate


@contextlib.contextmanager
def child_of_a_fork(check: Callable[[], bool]) -> Iterator[None]:
    """A child in which *check* has to be true by some time after the block."""
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if check() else 3)
        finally:
            os._exit(4)
    try:
        yield
        how = os.WEXITED | os.WNOWAIT | os.WNOHANG
        eventually(lambda: os.waitid(os.P_PID, child, how) is not None, "the child has come to its end")
    finally:
        os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0


@pytest.fixture
def synchronised(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile with files that hermes wants in the sandbox. The stub's manager tells what failed, hermes's does not."""
    if os.environ.get("HERMES_TIER") == "real":
        pytest.skip("of hermes's own manager: test_files_go_there_and_what_changed_comes_back")
    home = Path(os.environ["HERMES_HOME"])
    for name in ("skills/one.md", "cache/images/two.txt"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(name)
    file_sync.failures.clear()
    file_sync.waited.clear()
    can_unpack.cache_clear()  # and with it what was logged once
    # Each command looks again: the interval is hermes's own business.
    original = file_sync.FileSyncManager.__init__
    monkeypatch.setattr(
        file_sync.FileSyncManager, "__init__", lambda self, *a, **k: original(self, *a, **{"sync_interval": 0, **k})
    )
    return home


def test_a_session_keeps_exports_and_directory(shell: ShellDaemon, provider: DeepInfraProvider) -> None:
    environment = make(provider)
    assert environment.cwd == str(shell.directory)
    assert environment._snapshot_ready
    assert environment.execute("exit 3")["returncode"] == 3
    result = environment.execute("export A=1; mkdir d; cd d; echo hi")
    assert (result["output"].strip(), result["returncode"]) == ("hi", 0)
    assert result["cwd"] == str(shell.directory / "d") and result["cwd_observed"]
    result = environment.execute("echo a$A; pwd")
    assert result["output"].split() == ["a1", str(shell.directory / "d")]


def test_the_stub_and_hermes_get_the_request_they_mean(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPINFRA_SANDBOX_PLAN", "large")
    environment = make(provider, task_id="session:1", container_config={"container_cpu": 64})
    environment.execute("true", timeout=7)
    bootstrap, command = shell.wait_for("exec.start"), shell.wait_for("exec.start", 2)
    assert bootstrap["login"] is True and command["login"] is False
    assert command["key"]["task"] == "session:1" and command["key"]["profile"].startswith("/")
    assert command["timeout_s"] == 17 and command["merge_output"] is True
    assert command["plan"] == "large" and command["persistent"] is True
    assert "stdin" not in command and "argv" not in command
    assert shell.wait_for("sandbox.ensure")["plan"] == "large"


def test_one_ensure_one_start_and_one_word_that_all_was_taken(shell: ShellDaemon, provider: DeepInfraProvider) -> None:
    environment = make(provider)
    shell.wait_for("exec.ack")
    before = len(shell.messages)
    environment.execute("true")
    shell.wait_for("exec.ack", 2)
    assert shell.methods()[before:] == ["sandbox.ensure", "exec.start", "exec.ack"]


@pytest.mark.parametrize(
    "content",
    ["", "no newline", "crlf\r\n\0x", "\udcff\udc80 é\n" * 1000, "0123456789abcdef" * (5 << 16) + "end"],
    ids=["empty", "no-newline", "crlf-and-nul", "no-text", "5-MB"],
)
def test_stdin_is_delivered_byte_by_byte(shell: ShellDaemon, provider: DeepInfraProvider, content: str) -> None:
    environment = make(provider)
    result = environment.execute("cat > f; sha256sum < f", stdin_data=content)
    digest = hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()
    assert result["output"].split()[0] == digest
    assert environment.execute("cat; echo $?")["output"].strip() == "0"  # no stdin is /dev/null


def test_script_and_input_that_fit_in_no_line_together_are_delivered(
    shell: ShellDaemon, provider: DeepInfraProvider
) -> None:
    """Each is short enough by its characters; what counts is what both take when they are written down."""
    environment = make(provider)
    command = "cat | wc -c; : " + "é" * 100_000 + "\U0001F600" * 20_000
    result = environment.execute(command, stdin_data="\0" * 131_000)
    assert (result["output"].strip(), result["returncode"]) == ("131000", 0)


@pytest.mark.parametrize("lacking", ["exec.attach", "exec.stdin", "fs", "generation"])
def test_a_daemon_that_is_older_is_refused_by_name_with_the_fix(
    shell: ShellDaemon, provider: DeepInfraProvider, lacking: str
) -> None:
    shell.capabilities.remove(lacking)
    with pytest.raises(EnvironmentConnectionError, match=f"older than this package and lacks: {lacking}") as caught:
        make(provider)
    assert "systemctl --user restart deepinfra-sandboxd" in caught.value.retry_hint
    assert "exec.start" not in shell.methods()


def test_output_is_complete_up_to_the_last_byte(shell: ShellDaemon, provider: DeepInfraProvider) -> None:
    environment = make(provider)
    result = environment.execute("head -c 4000000 /dev/zero | tr '\\0' 'x'; echo; echo €end")
    assert result["returncode"] == 0
    assert result["output"] == "x" * 4000000 + "\n€end\n"


def test_time_up_keeps_what_was_printed_and_ends_the_command(shell: ShellDaemon, provider: DeepInfraProvider) -> None:
    environment = make(provider)
    begun = time.monotonic()
    result = environment.execute("echo before; sleep 60; echo never", timeout=1)
    assert time.monotonic() - begun < 2
    assert result["returncode"] == 124
    assert "before" in result["output"] and "never" not in result["output"]
    shell.wait_for("exec.cancel")
    assert environment.execute("echo alive")["output"].strip() == "alive"


def test_an_interrupt_is_seen_at_once_even_if_the_daemon_does_not_react(
    shell: ShellDaemon, provider: DeepInfraProvider
) -> None:
    environment = make(provider)
    shell.ignore_cancel = True
    thread = threading.get_ident()
    moment: list[float] = []

    def stop() -> None:
        moment.append(time.monotonic())
        interrupt.set_interrupt(True, thread)

    threading.Timer(0.3, stop).start()
    try:
        result = environment.execute("echo before; sleep 60")
        late = time.monotonic() - moment[0]
    finally:
        interrupt.set_interrupt(False, thread)
    assert result["returncode"] == 130 and "before" in result["output"]
    assert late < 0.25


@pytest.mark.parametrize("ends", ["later", "meanwhile"])
def test_a_command_handed_over_goes_on(shell: ShellDaemon, provider: DeepInfraProvider, ends: str) -> None:
    environment = make(provider)
    thread = threading.get_ident()
    threading.Timer(0.2, lambda: interrupt.request_yield(thread)).start()
    kept: list[Any] = []

    def take(handle: Any, output: str) -> dict[str, Any]:
        kept.append(handle)
        if ends == "meanwhile":
            handle.wait(5)
        return {"output": output, "returncode": None, "yielded_session_id": "proc_1", "pid": None}

    begun = time.monotonic()
    result = environment.execute("echo one; sleep 0.6; echo two", timeout=3, yield_handler=take)
    assert result == {"output": "one\n", "returncode": None, "yielded_session_id": "proc_1", "pid": None}
    assert ends == "meanwhile" or time.monotonic() - begun < 0.5
    assert kept[0].wait(5) == 0 and "two" in kept[0].stdout.read()
    assert "timeout_s" not in shell.wait_for("exec.start", 2)  # hermes has given it no limit any more
    environment.execute("true", timeout=3)
    assert shell.wait_for("exec.start", 3)["timeout_s"] == 13


@pytest.mark.parametrize("fails", [False, True])
def test_a_command_that_nobody_takes_over_after_all_is_waited_for(
    shell: ShellDaemon, provider: DeepInfraProvider, fails: bool
) -> None:
    environment = make(provider)
    environment.execute("true")
    restart(shell)
    thread, asked = threading.get_ident(), list[str]()
    threading.Timer(0.3, lambda: interrupt.request_yield(thread)).start()

    def take(handle: Any, output: str) -> None:
        asked.append(output)
        if fails:
            raise RuntimeError("no room for another background process")

    result = environment.execute("cd /; echo one; sleep 0.6; echo two", timeout=5, yield_handler=take)
    assert asked == ["one\n"] and (result["output"], result["returncode"]) == ("one\ntwo\n", 0)
    assert result["environment_recreated"] is True  # it is told with the result of the command, as always


def test_a_short_command_does_not_pay_for_hermes_polling(shell: ShellDaemon, provider: DeepInfraProvider) -> None:
    """hermes alone would look again after 5, 7, 11, 17, 25, 38, 57, 85, 128 ms."""
    environment = make(provider)
    lateness = []
    for _ in range(5):
        environment.execute("sleep 0.27; date +%s.%N > ended")  # hermes looks after 0.25 and 0.37 s
        lateness.append(time.time() - float((shell.directory / "ended").read_text()))
    assert sorted(lateness)[2] < 0.06  # includes bash saving the session


def test_a_yield_that_nobody_can_take_slows_no_command_down(shell: ShellDaemon, provider: DeepInfraProvider) -> None:
    environment = make(provider)
    thread = threading.get_ident()
    interrupt.request_yield(thread)  # of a command that has ended since; hermes leaves it standing
    try:
        lateness = []
        for _ in range(5):
            environment.execute("sleep 0.27; date +%s.%N > ended")
            lateness.append(time.time() - float((shell.directory / "ended").read_text()))
        assert sorted(lateness)[2] < 0.06 and interrupt.is_thread_yield_requested(thread)
    finally:
        interrupt.consume_yield(thread)


@pytest.mark.parametrize("how", ["/", "another"])
def test_a_command_that_stays_where_it_was_sent_does_not_move_the_session(
    shell: ShellDaemon, provider: DeepInfraProvider, tmp_path: Path, how: str
) -> None:
    """execute_code runs all of its own in "/", a command has a directory of its own, and a background job has none."""
    environment = make(provider)
    there = "/" if how == "/" else str(tmp_path)
    environment.execute("mkdir p; cd p", cwd=environment.cwd)
    result = environment.execute("true", cwd=there)
    assert result["cwd"] == there and result["cwd_observed"] is True
    assert environment.execute("pwd")["output"].strip() == str(shell.directory / "p")
    environment.execute("cd /", cwd=there)
    environment.execute("cd ..", cwd=str(shell.directory / "p"))
    assert environment.cwd == str(shell.directory)


def test_a_directory_that_hermes_removes_next_is_not_the_sessions(
    shell: ShellDaemon, provider: DeepInfraProvider
) -> None:
    environment = make(provider)
    directory = Path("/tmp/hermes_exec_0123456789ab")
    directory.mkdir(exist_ok=True)
    result = environment.execute(f"cd {directory} && echo script")
    assert result["cwd"] == str(directory)
    environment.execute(f"rm -rf {directory}", cwd="/", timeout=15)
    result = environment.execute("pwd")
    assert (result["output"].strip(), result["returncode"]) == (str(shell.directory), 0)


def test_home_is_honoured_where_somebody_went_and_no_preference_elsewhere(
    shell: ShellDaemon, provider: DeepInfraProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = str(tmp_path / "root")
    Path(home).mkdir()
    monkeypatch.setattr("deepinfra_sandboxd.environment.NO_PREFERENCE", ("", "~", home))
    environment = make(provider, cwd=home)
    assert environment.execute("pwd", cwd=home)["output"].strip() == str(shell.directory)
    result = environment.execute(f"cd {home}", cwd=str(shell.directory))
    assert environment.execute("pwd", cwd=result["cwd"])["output"].strip() == home
    assert environment.execute("pwd", cwd="~")["output"].strip() == str(shell.directory)
    environment.cleanup()
    environment = make(provider, cwd=home)  # hermes had dropped the idle one, and knows where the session is
    assert environment.execute("pwd", cwd=result["cwd"])["output"].strip() == home
    restart(shell)
    assert environment.execute("pwd", cwd=home)["output"].strip() == str(shell.directory)
    assert environment.execute("pwd", cwd=home)["output"].strip() == str(shell.directory)


def test_many_threads_on_one_object(shell: ShellDaemon, provider: DeepInfraProvider) -> None:
    environment = make(provider)
    results: dict[int, str] = {}

    def work(number: int) -> None:
        for turn in range(3):
            output = environment.execute(f"echo {number}-{turn}; sleep 0.02")["output"].strip()
            assert output == f"{number}-{turn}"
        results[number] = output

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert results == {number: f"{number}-2" for number in range(8)}
    assert len(shell.peers) == 1  # one connection for all


@pytest.mark.parametrize("hermes", ["0.21.3", "0.21.0"])
def test_after_a_restart_the_session_is_made_again_and_said_so(
    shell: ShellDaemon, provider: DeepInfraProvider, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, hermes: str
) -> None:
    if hermes == "0.21.0":
        monkeypatch.delattr(BaseEnvironment, "_mark_recreated")
    environment = make(provider)
    outside = tmp_path / "outside"
    outside.mkdir()
    environment.execute(f"export A=1; cd {outside}")
    assert environment.cwd == str(outside)
    restart(shell)
    outside.rmdir()
    # A tool of hermes's that does not pass it on is no reason not to say it again.
    assert environment.execute("test -e f", cwd=str(outside))["environment_recreated"] is True
    result = environment.execute("echo a$A; pwd", cwd=str(outside), bounded_capture=True)
    assert result["environment_recreated"] is True
    assert result["returncode"] == 0
    assert result["output"].split() == ["a", str(shell.directory)]
    result = environment.execute("pwd")
    assert "environment_recreated" not in result
    assert result["output"].strip() == str(shell.directory)
    # Another session of the same object still believes in the old directory.
    assert environment.execute("pwd", cwd=str(outside))["returncode"] == 0


def test_a_restart_that_an_idle_session_met_is_told_and_leaves_it_a_directory(
    shell: ShellDaemon, provider: DeepInfraProvider, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    environment = make(provider)
    environment.execute(f"cd {outside}")
    environment.cleanup()  # as hermes's reaper does before it drops it
    assert "environment_recreated" not in make(provider).execute("true", cwd=str(outside))
    restart(shell)
    outside.rmdir()
    environment = make(provider)
    result = environment.execute("pwd", cwd=str(outside), bounded_capture=True)
    assert (result["output"].strip(), result["returncode"]) == (str(shell.directory), 0)
    assert result["environment_recreated"] is True
    assert "environment_recreated" not in environment.execute("true")


def test_a_directory_that_was_made_again_is_not_mistaken_for_the_lost_one(
    shell: ShellDaemon, provider: DeepInfraProvider, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    make(provider).execute(f"cd {outside}")
    restart(shell)
    outside.rmdir()
    environment = make(provider)
    environment.execute(f"mkdir {outside}", bounded_capture=True)
    assert environment.execute("pwd", cwd=str(outside))["output"].strip() == str(outside)
    before = shell.methods().count("exec.start")
    assert environment.execute("pwd", cwd=str(outside))["output"].strip() == str(outside)
    assert shell.methods().count("exec.start") == before + 1  # that it is there is known now


def test_a_restart_that_a_failed_call_met_is_told_by_the_next(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = make(provider)
    restart(shell)
    with monkeypatch.context() as patched, pytest.raises(RuntimeError):
        patched.setattr(BaseEnvironment, "execute", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("no threads")))
        environment.execute("true")
    assert on_thread("proc-poller-1", lambda: environment.execute("echo 0")) == {
        "output": "0\n",
        "returncode": 0,
        "cwd": str(shell.directory),
        "cwd_observed": True,
    }
    assert environment.execute("true", bounded_capture=True)["environment_recreated"] is True
    assert "environment_recreated" not in environment.execute("true")


def test_a_stop_that_nobody_knows_of_is_met_before_the_command_runs(
    shell: ShellDaemon, provider: DeepInfraProvider, tmp_path: Path
) -> None:
    environment = make(provider)
    outside, new = tmp_path / "outside", tmp_path / "new"
    outside.mkdir()
    environment.execute(f"export A=1; cd {outside}")
    outside.rmdir()
    shell.stopped_unseen, asked = True, shell.methods().count("exec.start")
    command = f"echo x >> ran; echo a$A; mkdir {new}; cd {new}"
    result = environment.execute(command, cwd=str(outside), stdin_data="", bounded_capture=True)
    assert (result["output"], result["returncode"]) == ("a\n", 0) and result["environment_recreated"] is True
    assert (shell.directory / "ran").read_text() == "x\n"
    # Refused as of the old generation; then the session, a look for the directory, and the command under another id.
    starts = [m["params"] for m in shell.messages if m["method"] == "exec.start"][asked:]
    assert starts.pop(2)["argv"] == ["test", "-d", str(outside)]
    assert [(one["login"], one["generation"]) for one in starts] == [(False, 1), (True, 2), (False, 2)]
    assert len({one["exec_id"] for one in starts}) == 3 and starts[0]["exec_id"] not in shell.started
    result = environment.execute("pwd", cwd=str(new))  # it is of the new generation, and stays
    assert result["output"].strip() == str(new) and "environment_recreated" not in result
    assert shell.unasked == []


def test_a_sandbox_that_never_stays_is_not_tried_for_ever(shell: ShellDaemon, provider: DeepInfraProvider) -> None:
    environment = make(provider)
    refused = shell._refused

    def gone_again(command: Command) -> bool:
        shell.stopped_unseen = not command.params["login"]
        return refused(command)

    shell._refused = gone_again  # type: ignore[method-assign]
    result = environment.execute("touch ran", bounded_capture=True)
    assert result["returncode"] == 125 and "nothing was run" in result["output"]
    with pytest.raises(EnvironmentConnectionError, match="nothing was run"):
        environment.execute("touch ran")
    assert not (shell.directory / "ran").exists() and shell.unasked == []


def test_pollers_and_cleanup_start_nothing_that_was_stopped_unseen(
    shell: ShellDaemon, provider: DeepInfraProvider, synchronised: Path
) -> None:
    environment = make(provider)

    def poll() -> Any:
        return on_thread("proc-poller-1", lambda: environment.execute("kill -0 1; echo $?", cwd="/"))

    ensured = shell.methods().count("sandbox.ensure")
    shell.stopped_unseen = True
    assert poll()["output"] == ""  # nothing is known
    shell.stopped_seen, shell.generation = False, 5  # somebody else has started it
    assert poll() == {"output": "1\n", "returncode": 1}
    shell.stopped_unseen = True
    on_thread("proc-poller-1", lambda: environment.fetch_realpath("/x"))
    environment.cleanup(force_remove=False)
    assert shell.wait_for("fs.pull")["generation"] == 5
    assert shell.methods().count("sandbox.ensure") == ensured and shell.unasked == []


def teardowns(pid: int | str) -> tuple[str, ...]:
    """What hermes runs, from any thread, to be rid of what it began in a sandbox."""
    return (
        f"pkill -TERM -P {pid} 2>/dev/null; kill {pid} 2>/dev/null; true",
        f"kill {pid} 2>/dev/null",
        "rm -rf /tmp/hermes_rkernel_0123456789ab",
        "rm -rf /tmp/hermes_exec_0123456789ab",
    )


@pytest.mark.parametrize("way", ["stopped", "stopped unseen", "restarted", "gone"])
def test_hermes_ends_what_it_began_only_where_that_still_is(
    shell: ShellDaemon, provider: DeepInfraProvider, way: str
) -> None:
    environment = make(provider)
    ensured = shell.methods().count("sandbox.ensure")
    for command in teardowns(123456789):
        if way == "stopped":
            shell.state = "stopped"
        elif way == "stopped unseen":
            shell.stopped_unseen, shell.stopped_seen = True, False
        elif way == "restarted":
            shell.generation += 1
        else:
            shell.on["sandbox.get"] = refuse("sandbox_gone", "it was deleted")
        assert environment.execute(command, cwd="/", timeout=15) == {"output": "", "returncode": 0}
    assert shell.methods().count("sandbox.ensure") == ensured and shell.unasked == []
    assert len(shell.started) == 1  # the session's own beginning


def test_hermes_ends_what_runs(shell: ShellDaemon, provider: DeepInfraProvider) -> None:
    environment = make(provider)
    for kill in (0, 1):
        pid = environment.execute("sleep 60 > /dev/null 2>&1 & echo $!")["output"].strip()
        ensured = shell.methods().count("sandbox.ensure")
        assert environment.execute(teardowns(pid)[kill], cwd="/", timeout=15)["returncode"] == 0
        assert shell.methods().count("sandbox.ensure") == ensured
        eventually(lambda: environment.execute(f"kill -0 {pid}")["returncode"] == 1, "it has ended")
    directory = Path("/tmp/hermes_rkernel_0123456789ab")
    directory.mkdir(exist_ok=True)
    environment.execute(teardowns(pid)[2], cwd="/", timeout=15)
    assert not directory.exists()


@pytest.mark.parametrize(
    "command", ["kill 123456789 2>/dev/null; echo x", "kill -0 123456789 2>/dev/null && echo ALIVE", "rm -rf /tmp/mine"]
)
def test_what_only_resembles_that_is_a_command_like_any_other(
    shell: ShellDaemon, provider: DeepInfraProvider, command: str
) -> None:
    environment = make(provider)
    ensured = shell.methods().count("sandbox.ensure")
    environment.execute(command)
    assert shell.methods().count("sandbox.ensure") == ensured + 1


@pytest.mark.parametrize("how", ["interrupt", "failure", "lost"])
def test_a_session_that_could_not_be_made_again_is_made_by_the_next_command(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    environment = make(provider)
    environment.execute("export A=1")
    restart(shell)
    run, thread = shell._run, threading.get_ident()

    def trouble(command: Command) -> None:
        shell._run = run  # type: ignore[method-assign]
        if how == "interrupt":
            interrupt.set_interrupt(True, thread)
            return run(command)
        with command.changed:
            error = {"code": 4004, "name": "outcome_unknown", "retryable": False, "hint": ""}
            command.end, command.more = (None, "lost"), {"started": "unknown", "message": "cut", "error": error}

    listed = file_sync.iter_sync_files
    if how == "failure":
        monkeypatch.setattr(file_sync, "iter_sync_files", lambda base: (_ for _ in ()).throw(PermissionError("skills")))
        with pytest.raises(PermissionError):  # nothing was started: hermes tries again
            environment.execute("touch ran")
        monkeypatch.setattr(file_sync, "iter_sync_files", listed)
    else:
        shell._run = trouble  # type: ignore[method-assign]
        try:
            result = environment.execute("touch ran", bounded_capture=True)
        finally:
            interrupt.set_interrupt(False, thread)
        assert result["returncode"] == (130 if how == "interrupt" else 125), result
        assert "environment_recreated" not in result
    assert not (shell.directory / "ran").exists()
    result = environment.execute("export B=2; echo a$A", bounded_capture=True)
    assert result["environment_recreated"] is True and result["output"] == "a\n"
    result = environment.execute("echo b$B")
    assert result["output"] == "b2\n" and "environment_recreated" not in result


def test_a_host_without_descriptors_says_so(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = make(provider)
    restart(shell)
    with monkeypatch.context() as patched:
        patched.setattr("os.pipe", lambda: (_ for _ in ()).throw(OSError(errno.EMFILE, "Too many open files")))
        with pytest.raises(OSError, match="Too many open files"):  # nothing was started: hermes tries again
            environment.execute("touch ran")
    getattr(base, "violations", []).clear()  # without a pipe there is no handle to give
    assert not (shell.directory / "ran").exists()
    assert environment.execute("echo again")["output"] == "again\n"


def test_a_snapshot_that_failed_at_creation_is_made_by_the_next_command(
    shell: ShellDaemon, provider: DeepInfraProvider
) -> None:
    run = shell._run

    def broken(command: Command) -> None:
        with command.changed:
            command.end = (1, "exited")

    shell._run = broken  # type: ignore[method-assign]
    environment = make(provider)
    assert not environment._snapshot_ready
    shell._run = run  # type: ignore[method-assign]
    assert "environment_recreated" not in environment.execute("export A=1")
    assert environment.execute("echo a$A")["output"] == "a1\n"


@pytest.mark.parametrize("how", ["fails", "hangs"])
def test_a_login_shell_that_does_not_work_is_not_tried_for_each_command(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """hermes has found by then that others do, and takes these."""
    monkeypatch.setattr(BaseEnvironment, "_snapshot_timeout", 0.5)
    run = shell._run

    def broken(command: Command) -> None:
        if not command.params.get("login"):
            run(command)
        elif how == "fails":
            with command.changed:
                command.end = (3, "exited")

    def starts_of(call: Callable[[], Any]) -> list[bool]:
        before = len(shell.messages)
        assert call()
        return [m["params"].get("login", False) for m in shell.messages[before:] if m["method"] == "exec.start"]

    def echo() -> bool:
        return environment.execute("echo on")["output"] == "on\n"

    def echo_by_many() -> bool:
        answers: list[bool] = []
        threads = [threading.Thread(target=lambda: answers.append(echo())) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        return answers == [True] * 3

    shell._run = broken  # type: ignore[method-assign]
    environment = make(provider)
    assert starts_of(echo) == [False] and starts_of(echo_by_many) == [False] * 3
    restart(shell)  # of a sandbox, whose /root is another one then
    assert starts_of(echo) == [True, False, False] and starts_of(echo) == [False]
    monkeypatch.setattr("deepinfra_sandboxd.environment.LOGIN_PAUSE", 0.0)
    restart(shell)
    assert starts_of(echo) == [True, False, False] == starts_of(echo)  # the pause is over
    shell._run = run  # type: ignore[method-assign]
    assert starts_of(lambda: environment.execute("export A=1")) == [True, False]
    assert environment.execute("echo a$A")["output"] == "a1\n"


def test_threads_that_meet_a_restart_together_make_the_session_once(
    shell: ShellDaemon, provider: DeepInfraProvider
) -> None:
    environment = make(provider)
    restart(shell)
    before = shell.methods().count("exec.start")
    threads = [threading.Thread(target=environment.execute, args=(f"echo {number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert shell.methods().count("exec.start") - before == 4 + 1


def test_no_daemon_at_creation_is_a_connection_error_with_the_fix(
    shell: ShellDaemon, provider: DeepInfraProvider
) -> None:
    shell.stop()
    with pytest.raises(EnvironmentConnectionError) as caught:
        make(provider)
    assert "not running" in caught.value.reason and "systemctl" in caught.value.retry_hint


def test_refusals_at_creation_never_read_as_a_time_out(shell: ShellDaemon, provider: DeepInfraProvider) -> None:
    shell.on["sandbox.ensure"] = refuse("boot_failed", "boot timeout", "queue-timeout is 300 s")
    with pytest.raises(EnvironmentConnectionError, match="boot time limit") as caught:
        make(provider)
    assert "timeout" not in caught.value.retry_hint
    assert plain("a TimeoutError") == "a time limitError" and "timeout" not in plain("504 Gateway TIMEOUT").lower()


def test_no_daemon_later_is_a_result_and_nothing_runs_here(shell: ShellDaemon, provider: DeepInfraProvider) -> None:
    environment = make(provider)
    shell.stop()
    result = environment.execute("touch ran-on-the-host; echo $$", bounded_capture=True)
    assert result["returncode"] == 125
    assert "infrastructure error, not a command failure" in result["output"]
    assert "nothing was run" in result["output"] and "systemctl" in result["output"]
    assert not (shell.directory / "ran-on-the-host").exists()
    assert not list(shell.directory.parent.glob("**/ran-on-the-host"))


@pytest.mark.parametrize("how", ["no daemon", "refused", "unknown"])
def test_hermes_own_questions_are_never_answered_by_an_outage(
    shell: ShellDaemon, provider: DeepInfraProvider, how: str
) -> None:
    """A file tool takes any exit code but 0 for "File not found": only an exception says what it is."""
    environment = make(provider)
    probe = "if [ -f f ]; then wc -c < f; else echo missing; fi"
    if how == "no daemon":
        shell.stop()
    elif how == "refused":
        shell.on["exec.start"] = refuse("cap_reached", "5 of 5, a timeout", hint="stop one before the Timeout")
    else:
        shell.on["exec.start"] = refuse("outcome_unknown", "it may run")
        result = environment.execute(probe)
        assert result["returncode"] == 125 and "may have run" in result["output"]  # to ask again might run it twice
        return
    with pytest.raises(EnvironmentConnectionError, match="infrastructure error, not a command failure") as caught:
        environment.execute(probe)
    fix = "systemctl --user start" if how == "no daemon" else "stop one"
    assert "nothing was run" in str(caught.value) and fix in str(caught.value) and fix in caught.value.retry_hint
    assert "timeout" not in f"{caught.value} {caught.value.retry_hint}".lower()
    assert environment.execute(probe, bounded_capture=True)["returncode"] == 125  # the terminal tool would repeat it


@pytest.mark.parametrize("ending", ["exception", "None"])
def test_a_wait_of_hermes_that_fails_leaves_the_outcome_unknown(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    environment = make(provider)

    def wait(self: BaseEnvironment, handle: Any, *_: Any, **__: Any) -> dict[str, Any]:
        handle.wait(10)
        if ending == "exception":
            raise RuntimeError("select: Timeout")
        return {"output": "some", "returncode": None}

    monkeypatch.setattr(BaseEnvironment, "_wait_for_process", wait)
    result = environment.execute("echo x >> ran")
    assert result["returncode"] == 125
    if ending == "exception":  # which hermes would take for a reason to run it again
        assert "the outcome is unknown" in result["output"] and "timeout" not in result["output"].lower()
    else:
        assert result["output"] == "some"
    assert (shell.directory / "ran").read_text() == "x\n"


def test_a_sandbox_that_takes_longer_than_the_command_may_costs_the_command_nothing(
    shell: ShellDaemon, provider: DeepInfraProvider
) -> None:
    environment = make(provider)
    ensure = shell.on["sandbox.ensure"]

    def late(peer: Peer, params: Message) -> object:
        request = next(m["id"] for m in reversed(shell.messages) if m["method"] == "sandbox.ensure")
        answer = {"id": request, "result": ensure(peer, params)}
        threading.Timer(1.5, peer.send, [answer]).start()
        return NO_ANSWER

    shell.on["sandbox.ensure"] = late
    begun = time.monotonic()
    result = environment.execute("sleep 0.6; echo done", timeout=1)
    assert (result["output"], result["returncode"]) == ("done\n", 0) and time.monotonic() - begun > 1.5 + 0.6


def test_the_connection_going_away_in_the_middle(shell: ShellDaemon, provider: DeepInfraProvider) -> None:
    environment = make(provider)
    result: dict[str, Any] = {}
    work = "echo some; while [ ! -e go ]; do sleep 0.01; done; echo more; exit 3"
    worker = threading.Thread(target=lambda: result.update(environment.execute(work)))
    worker.start()
    command = shell.commands[shell.wait_for("exec.start", 2)["exec_id"]]
    eventually(lambda: shell.peer().sent.get(command.params["exec_id"]) == 5, "its output is on its way")
    provider.client.call("daemon.ping")  # answered behind the output, which has been taken in by then
    shell.drop()
    shell.wait_for("exec.start", 3)
    (shell.directory / "go").touch()
    worker.join(20)
    assert (result["output"], result["returncode"]) == ("some\nmore\n", 3)  # the agent sees nothing of it
    assert shell.wait_for("exec.start", 3)["offset"] == 5
    assert len(shell.started) == 2
    assert environment.execute("echo back")["output"].strip() == "back"  # it reconnects


def test_the_daemon_being_replaced_in_the_middle_is_a_delay_and_nothing_else(
    shell: ShellDaemon, provider: DeepInfraProvider
) -> None:
    environment = make(provider)
    provider.client.patience = 20
    result: dict[str, Any] = {}
    work = "for i in $(seq 2000); do echo line $i; done; sleep 0.3; echo end"
    worker = threading.Thread(target=lambda: result.update(environment.execute(work)))
    worker.start()
    shell.wait_for("exec.start", 2)
    shell.crash()
    time.sleep(0.3)
    shell.restart()
    worker.join(20)
    assert result["output"] == "".join(f"line {i}\n" for i in range(1, 2001)) + "end\n"
    assert result["returncode"] == 0 and len(shell.started) == 2


def test_a_kill_while_the_daemon_is_away_is_at_once_and_reaches_the_next_one(
    shell: ShellDaemon, provider: DeepInfraProvider
) -> None:
    environment = make(provider)
    provider.client.patience = 20
    thread, moment = threading.get_ident(), []

    def trouble() -> None:
        shell.wait_for("exec.start", 2)
        shell.crash()
        time.sleep(0.2)
        moment.append(time.monotonic())
        interrupt.set_interrupt(True, thread)

    threading.Thread(target=trouble).start()
    try:
        result = environment.execute("sleep 60")
        late = time.monotonic() - moment[0]
    finally:
        interrupt.set_interrupt(False, thread)
    assert result["returncode"] == 130 and late < 1
    assert "exec.cancel" not in shell.methods()
    shell.restart()
    assert shell.wait_for("exec.cancel")["exec_id"] == shell.started[1]


def test_a_wait_for_the_sandbox_is_interruptible_and_shows_life(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = make(provider)
    shell.on["sandbox.ensure"] = lambda peer, params: NO_ANSWER
    thread = threading.get_ident()
    threading.Timer(0.2, lambda: interrupt.set_interrupt(True, thread)).start()
    heard: list[str] = []
    set_activity_callback(heard.append)
    begun = time.monotonic()
    monkeypatch.setattr("tools.environments.base.touch_activity_if_due", lambda state, label: heard.append(label))
    try:
        result = environment.execute("touch ran")
    finally:
        interrupt.set_interrupt(False, thread)
        set_activity_callback(None)
    assert result["returncode"] == 130 and time.monotonic() - begun < 1
    assert heard and heard[0].startswith("waiting for the sandbox")
    assert not (shell.directory / "ran").exists()


def test_a_poller_gets_nothing_but_the_commands_own_output(shell: ShellDaemon, provider: DeepInfraProvider) -> None:
    environment = make(provider)

    def poll(command: str, **options: Any) -> Any:
        return on_thread("proc-poller-1", lambda: environment.execute(command, **options))

    assert poll("echo 0")["output"] == "0\n"
    ensured = shell.methods().count("sandbox.ensure")
    assert poll("echo x; sleep 9", timeout=1)["output"] == ""
    shell.state = "stopped"
    assert poll("kill -0 1; echo $?")["output"] == "1\n"
    assert poll("cat log")["output"] == ""
    shell.state = "starting"
    assert poll("kill -0 1; echo $?")["output"] == ""
    shell.on["sandbox.get"] = refuse("sandbox_not_found", "no such sandbox")
    assert poll("kill -0 1; echo $?")["output"] == "1\n"
    shell.on["sandbox.get"] = refuse("shutting_down", "going down")
    assert poll("kill -0 1; echo $?")["output"] == ""
    assert shell.methods().count("sandbox.ensure") == ensured  # never started for a poll
    shell.stop()
    assert poll("kill -0 1; echo $?") == {"output": "", "returncode": 125}


def test_a_poller_never_sees_an_exception(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = make(provider)

    def no_threads_left(*_: Any, **__: Any) -> Any:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(BaseEnvironment, "execute", no_threads_left)
    assert on_thread("proc-poller-1", lambda: environment.execute("x")) == {"output": "", "returncode": 125}
    with pytest.raises(RuntimeError):  # elsewhere hermes may try again: nothing was started
        environment.execute("x")


def test_waits_for_another_threads_session_and_for_the_key_are_interruptible(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(call: Any, ready: Any) -> Any:
        box: list[Any] = []
        thread = threading.Thread(target=lambda: box.append(call()))
        thread.start()
        ready()
        assert thread.ident is not None
        interrupt.set_interrupt(True, thread.ident)
        thread.join(5)
        interrupt.set_interrupt(False, thread.ident)
        assert box, "it still waits"
        return box[0]

    environment = make(provider)
    first, gate = held_making_the_session_again(shell, environment)
    ensured = shell.methods().count("sandbox.ensure")
    result = interrupted(lambda: environment.execute("echo b"), lambda: shell.wait_for("sandbox.ensure", ensured + 1))
    assert result["returncode"] == 130
    gate.set()
    first.join(20)

    def refused_creation() -> Any:
        with pytest.raises(EnvironmentConnectionError) as caught:
            make(provider)
        return caught.value.reason

    shell.account = {"configured": False, "fingerprint": None}
    monkeypatch.setenv("DEEPINFRA_API_KEY", "mine")
    shell.on["account.set"] = lambda peer, params: NO_ANSWER
    provider.client.close()
    assert "interrupted" in interrupted(refused_creation, lambda: shell.wait_for("account.set"))
    monkeypatch.setattr("deepinfra_sandboxd.client.KEY_LIMIT", 0.1)
    assert "did not answer account.set" in refused_creation()


def test_what_fails_at_creation_is_always_a_connection_error(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(file_sync, "iter_sync_files", lambda base: (_ for _ in ()).throw(PermissionError("skills")))
        with pytest.raises(EnvironmentConnectionError, match="skills"):
            make(provider)

    def last_answer(peer: Peer, params: Message) -> Message:
        threading.Timer(0.05, shell.stop).start()
        return shell._ensure(peer, params)

    shell.on["sandbox.ensure"], begin = last_answer, BaseEnvironment.init_session

    def after_the_end(self: BaseEnvironment) -> None:
        eventually(lambda: not provider.client.post("daemon.ping", {}), "the connection is gone")
        begin(self)

    monkeypatch.setattr(BaseEnvironment, "init_session", after_the_end)
    with pytest.raises(EnvironmentConnectionError, match="not running") as caught:
        make(provider)
    assert "systemctl" in caught.value.retry_hint


def test_an_interrupt_of_a_fetch_is_an_error_that_hermes_knows(
    shell: ShellDaemon, provider: DeepInfraProvider, tmp_path: Path
) -> None:
    environment = make(provider)
    shell.on["sandbox.ensure"] = lambda peer, params: NO_ANSWER
    thread = threading.get_ident()
    interrupt.set_interrupt(True, thread)
    try:
        with pytest.raises(FileFetchError, match="interrupted"):
            environment.fetch_file("/x", tmp_path / "out", max_bytes=1)
        assert environment.fetch_realpath("/x") is None
    finally:
        interrupt.set_interrupt(False, thread)


def test_a_poller_is_spared_what_the_machine_does_to_a_daemon(
    shell: ShellDaemon, provider: DeepInfraProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "deepinfra-sandboxd").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "deepinfra-sandboxd").chmod(0o755)
    (tmp_path / "file").touch()
    environment = make(provider)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    monkeypatch.setenv("DEEPINFRA_SANDBOXD_STATE_DIR", str(tmp_path / "file" / "below"))
    monkeypatch.setattr("deepinfra_sandboxd.client.GRACE", 0.1)
    shell.stop()
    poll = on_thread("proc-poller-1", lambda: environment.execute("kill -0 1; echo $?"))
    assert poll == {"output": "", "returncode": 125}
    result = environment.execute("echo x", bounded_capture=True)
    assert result["returncode"] == 125 and "cannot be started" in result["output"]
    with pytest.raises(EnvironmentConnectionError, match="cannot be started"):
        make(provider)


def test_an_explicit_removal_lets_go_even_if_the_sandbox_cannot_be_looked_at(
    shell: ShellDaemon, provider: DeepInfraProvider, synchronised: Path
) -> None:
    environment = make(provider)
    shell.on["sandbox.get"] = refuse("cloud_error", "no answer")
    environment.cleanup(force_remove=True)
    assert shell.wait_for("sandbox.release")["mode"] == "terminate"


def test_many_files_of_long_names_go_in_as_many_requests_as_lines_allow(
    shell: ShellDaemon, provider: DeepInfraProvider
) -> None:
    directory = Path(os.environ["HERMES_HOME"]) / "cache" / "web" / ("d" * 150) / ("e" * 150)
    directory.mkdir(parents=True)
    for number in range(2000):
        (directory / f"{number}.txt").touch()
    environment = make(provider)
    pushed = [m["params"]["files"] for m in shell.messages if m["method"] == "fs.push"]
    assert sum(map(len, pushed)) == 2000 and 1 < len(pushed) < 10
    environment._files.sync(force=True)  # hermes knows that all are there
    assert shell.methods().count("fs.push") == len(pushed)


def test_a_fork_while_another_thread_makes_the_session_again(shell: ShellDaemon, provider: DeepInfraProvider) -> None:
    environment = make(provider)
    first, gate = held_making_the_session_again(shell, environment)
    try:
        with child_of_a_fork(lambda: environment.execute("echo child")["output"] == "child\n"):
            shell.wait_for("exec.start", 3)  # the child's own: nobody lets go of its parent's lock
            gate.set()
    finally:
        gate.set()
        first.join(20)


def test_a_fork_while_another_thread_synchronises(
    shell: ShellDaemon, provider: DeepInfraProvider, synchronised: Path
) -> None:
    environment = make(provider)
    (synchronised / "skills/one.md").write_text("changed here")
    push, gate = shell.on["fs.push"], threading.Event()

    def held(peer: Peer, params: Message) -> Message:
        if len(params["files"]) == 1:  # the parent's
            gate.wait(20)
        return dict(push(peer, params))

    shell.on["fs.push"] = held
    first = threading.Thread(target=environment.execute, args=("true",))
    first.start()
    shell.wait_for("fs.push", 2)
    try:
        with child_of_a_fork(lambda: environment.execute("cat .hermes/skills/one.md")["output"] == "changed here"):
            pass
    finally:
        gate.set()
        first.join(20)


def test_cleanup_lets_go_or_terminates_by_its_cause(shell: ShellDaemon, provider: DeepInfraProvider) -> None:
    environment = make(provider)
    environment.cleanup()
    environment.cleanup(force_remove=False)
    environment.cleanup(force_remove=True)
    modes = [shell.wait_for("sandbox.release", count)["mode"] for count in (1, 2, 3)]
    assert modes == ["keep", "keep", "terminate"]
    assert environment.execute("echo still usable")["returncode"] == 0
    before = len(shell.messages)
    environment.__del__()
    assert len(shell.messages) == before
    shell.stop()
    eventually(lambda: not provider.client.post("daemon.ping", {}), "connection is gone")
    environment.cleanup()
    environment.cleanup(force_remove=True)


def test_another_api_key_is_refused_by_name(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.account = {"configured": True, "fingerprint": fingerprint("the daemon's")}
    monkeypatch.setenv("DEEPINFRA_API_KEY", "mine")
    with pytest.raises(EnvironmentConnectionError, match="account_mismatch") as caught:
        make(provider)
    assert "mine" not in str(caught.value) and "DEEPINFRA_SANDBOXD_SOCKET" in caught.value.retry_hint
    monkeypatch.setenv("DEEPINFRA_API_KEY", "the daemon's")
    assert make(provider).execute("echo ok")["output"].strip() == "ok"


def test_a_refused_key_is_replaced_by_the_one_that_hermes_has_now(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.account, shell.key_refused = {"configured": True, "fingerprint": fingerprint("old")}, True
    monkeypatch.setenv("DEEPINFRA_API_KEY", "new")
    environment = make(provider)
    assert shell.wait_for("account.set") == {"api_key": "new"}
    assert environment.execute("echo ok")["output"] == "ok\n" and shell.methods().count("account.set") == 1


def test_a_key_that_was_replaced_meanwhile_counts_for_older_sessions(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPINFRA_API_KEY", "old")
    shell.account = {"configured": True, "fingerprint": fingerprint("old")}
    older = make(provider, task_id="session:1")
    monkeypatch.setenv("DEEPINFRA_API_KEY", "new")
    shell.key_refused = True  # the old one
    make(provider, task_id="session:2")  # hands the new one over
    assert older.execute("echo ok", bounded_capture=True)["output"] == "ok\n"
    assert shell.methods().count("account.set") == 1


def made_with_a_key_of_before(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch
) -> DeepInfraEnvironment:
    """The daemon has that key, "old"; the profile's is "new" by now."""
    monkeypatch.setenv("DEEPINFRA_API_KEY", "old")
    shell.account = {"configured": True, "fingerprint": fingerprint("old")}
    environment = make(provider)
    monkeypatch.setenv("DEEPINFRA_API_KEY", "new")
    return environment


def refuse_the_key(shell: ShellDaemon, *, ensure: bool) -> None:
    """As the daemon does once the cloud refuses its key: it says so where it has to ask the cloud."""
    ensured, refused = shell.on["sandbox.ensure"], shell._refused
    shell.key_refused = True

    def maybe_ensured(peer: Peer, params: Message) -> Any:
        return (refuse("unauthorized", "answered 401") if ensure and shell.key_refused else ensured)(peer, params)

    def refuses(command: Command) -> bool:
        if not shell.key_refused:
            return refused(command)
        error = {"code": 2002, "name": "unauthorized", "retryable": False, "hint": "check it"}
        command.end, command.more = (None, "failed"), {"started": "no", "message": "answered 401", "error": error}
        return True

    shell.on["sandbox.ensure"], shell._refused = maybe_ensured, refuses  # type: ignore[method-assign]


@pytest.mark.parametrize("met_by", ["ensure", "session", "command"])
@pytest.mark.parametrize("tool", ["terminal", "file"])
def test_a_refused_key_gives_way_to_a_new_one_in_the_midst_of_a_session(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch, met_by: str, tool: str
) -> None:
    environment = made_with_a_key_of_before(shell, provider, monkeypatch)
    assert environment.execute("echo good")["output"] == "good\n"  # what works goes on, whatever the profile's is now
    if met_by == "session":
        restart(shell)
    refuse_the_key(shell, ensure=met_by == "ensure")
    options = {"bounded_capture": True} if tool == "terminal" else {}
    result = environment.execute("echo x >> ran; echo ok", **options)
    assert (result["output"], result["returncode"]) == ("ok\n", 0) and (shell.directory / "ran").read_text() == "x\n"
    assert [m["params"] for m in shell.messages if m["method"] == "account.set"] == [{"api_key": "new"}]
    assert environment.execute("export A=1; echo on")["output"] == "on\n"
    assert shell.methods().count("account.set") == 1


def test_a_setting_that_a_refused_call_took_along_is_not_lost(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = made_with_a_key_of_before(shell, provider, monkeypatch)
    monkeypatch.setenv("DEEPINFRA_SANDBOXD_IDLE_STOP", "600")
    environment._settings_due = 0.0
    refuse_the_key(shell, ensure=True)
    assert environment.execute("echo ok")["output"] == "ok\n"
    told = [m["params"].get("idle_stop_s") for m in shell.messages if m["method"] == "sandbox.ensure"]
    assert told[-2:] == [600, 600]


def test_the_end_of_a_session_counts_for_each_environment_of_its_key(
    shell: ShellDaemon, provider: DeepInfraProvider
) -> None:
    """hermes may have let go of one that is still in the midst of a call."""
    older, newer = (make(provider, container_config={"container_persistent": False}) for _ in range(2))
    with older._calling():
        tick = older._tick()
        tick()
        newer.end_session()
        with pytest.raises(SandboxdError, match="its session has ended"):
            tick()
    shell.wait_for("sandbox.release")
    assert older.execute("echo on")["output"] == "on\n"


def test_threads_that_meet_a_refused_key_together_all_go_on_with_the_new_one(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = made_with_a_key_of_before(shell, provider, monkeypatch)
    refuse_the_key(shell, ensure=False)
    started, tell = shell.methods().count("exec.start"), shell.after_start

    def tell_when_all_have_come(peer: Peer, params: Message) -> None:
        threading.Thread(target=lambda: [shell.wait_for("exec.start", started + 4), tell(peer, params)]).start()

    shell.after_start = tell_when_all_have_come  # type: ignore[method-assign]
    answers: list[str] = []
    threads = [
        threading.Thread(target=lambda: answers.append(environment.execute("echo ok", bounded_capture=True)["output"]))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert answers == ["ok\n"] * 4


def test_a_refused_key_that_nobody_has_replaced_is_asked_about_once(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEEPINFRA_API_KEY", "old")
    shell.account = {"configured": True, "fingerprint": fingerprint("old")}
    environment = make(provider)
    refuse_the_key(shell, ensure=False)
    started = shell.methods().count("exec.start")
    result = environment.execute("touch ran", bounded_capture=True)
    assert result["returncode"] == 125 and "answered 401; nothing was run" in result["output"]
    assert shell.methods().count("exec.start") == started + 1 and "account.set" not in shell.methods()


def test_a_daemon_without_a_key_is_given_the_profiles(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.account = {"configured": False, "fingerprint": None}
    monkeypatch.setenv("DEEPINFRA_API_KEY", "mine")
    make(provider)
    assert shell.wait_for("account.set") == {"api_key": "mine"}
    assert shell.methods().count("account.set") == 1
    assert fingerprint("test-key") == hashlib.sha256(
        b"deepinfra-sandboxd key v1\ntest-key"
    ).hexdigest()[:16]  # fmt: skip


def test_a_daemon_that_lost_its_key_is_given_one_that_the_profile_had_not_when_the_session_began(
    shell: ShellDaemon, provider: DeepInfraProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = make(provider)
    shell.account = {"configured": False, "fingerprint": None}
    shell.drop()
    assert environment.execute("echo without")["output"] == "without\n"  # it is the daemon's to refuse it
    monkeypatch.setenv("DEEPINFRA_API_KEY", "mine")
    assert environment.execute("echo ok")["output"] == "ok\n"
    assert shell.wait_for("account.set") == {"api_key": "mine"}


def test_lines_with_bytes_that_are_no_text_reach_the_shell(shell: ShellDaemon, provider: DeepInfraProvider) -> None:
    environment = make(provider)
    assert environment.execute("printf '%s' '\udcff' | od -An -tx1")["output"].strip() == "ff"
    assert isinstance(shell.wait_for("exec.start", 2)["script"], dict)
    assert decode(shell.wait_for("exec.start", 2)["script"]).count(b"\xff") == 1


def test_files_are_there_before_the_first_command_and_follow_the_host(
    shell: ShellDaemon, provider: DeepInfraProvider, synchronised: Path
) -> None:
    environment = make(provider)
    assert shell.methods().index("fs.push") < shell.methods().index("exec.start")
    assert (
        environment.execute("cat .hermes/skills/one.md .hermes/cache/images/two.txt")["output"]
        == "skills/one.mdcache/images/two.txt"
    )
    assert shell.methods().count("fs.push") == 1  # unchanged: nothing was sent again
    (synchronised / "cache/images/two.txt").write_text("changed here")
    (synchronised / "skills/one.md").unlink()
    assert environment.execute("cat .hermes/cache/images/two.txt; ls .hermes/skills")["output"] == "changed here"
    assert file_sync.failures == []


# What a command, which may be a model's, can do to what is synchronised.
PLANTED = """
cd .hermes
echo there > cache/images/two.txt; echo new > cache/images/new.txt
mkdir -p skills/two external_skills/0 project_skills plugins/p cache/unknown
for name in skills/one.md skills/two/SKILL.md external_skills/0/x.md project_skills/x.md plugins/p/__init__.py \
    token.json other.json config.yaml cache/unknown/x cache/x; do echo evil > $name; done
"""


def files_below(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]


def test_of_what_the_sandbox_changed_the_caches_come_back_at_cleanup_if_it_runs(
    shell: ShellDaemon, provider: DeepInfraProvider, synchronised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sync, "credentials", ["token.json"])
    (synchronised / "token.json").write_text("token.json")
    environment = make(provider)
    environment.execute(PLANTED)
    shell.state = "stopped"
    environment.cleanup()
    assert "fs.pull" not in shell.methods()  # which would start it
    shell.state = "running"
    environment.cleanup()
    assert {path.relative_to(synchronised).as_posix(): path.read_text() for path in files_below(synchronised)} == {
        "cache/images/two.txt": "there\n",
        "cache/images/new.txt": "new\n",
        "skills/one.md": "skills/one.md",
        "token.json": "token.json",
    }
    assert file_sync.failures == []


@pytest.mark.parametrize("how", ["command", "reaper", "session"])
def test_files_are_those_of_the_profile_whatever_thread_asks(
    shell: ShellDaemon, provider: DeepInfraProvider, synchronised: Path, tmp_path: Path, how: str
) -> None:
    other = tmp_path / "other-profile"
    (other / "cache/images").mkdir(parents=True)
    (other / "cache/images/two.txt").write_text("the other profile's")
    launched_with = {path: path.read_text() for path in files_below(synchronised)}
    token = hermes_constants.set_hermes_home_override(other)  # the gateway serves that one now
    try:
        persistent = {"container_persistent": how != "session"}
        environment = make(provider, task_id="s1", container_config=persistent)
    finally:
        hermes_constants.reset_hermes_home_override(token)
    changed = "cd .hermes/cache/images; cat two.txt; echo there > two.txt; echo new > new.txt"
    assert on_thread("kernel", lambda: environment.execute(changed))["output"].strip() == "the other profile's"
    if how == "command":
        assert shell.methods().count("fs.push") == 1  # nothing of the profile that the process began with
    elif how == "reaper":
        on_thread("reaper", environment.cleanup)
    else:
        token = hermes_constants.set_hermes_home_override(other)
        provider.end_session("s1")
        hermes_constants.reset_hermes_home_override(token)
        shell.wait_for("sandbox.release")  # the last that it does
    if how != "command":
        assert {path.name: path.read_text() for path in files_below(other)} == {"two.txt": "there\n", "new.txt": "new\n"}
    assert {path: path.read_text() for path in files_below(synchronised)} == launched_with
    assert file_sync.failures == []


@pytest.mark.parametrize("name", ["generation_changed", "sandbox_gone", "sandbox_not_found", "too_large", "stopped"])
def test_where_nothing_can_be_fetched_hermes_does_not_try_again(
    shell: ShellDaemon, provider: DeepInfraProvider, synchronised: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    environment = make(provider)
    if name == "stopped":  # between hermes's question and ours
        shell.on["sandbox.get"] = lambda peer, params: {"sandbox": shell._sandbox(params) | {"state": states.pop(0)}}
        states = ["running", "stopped"]
    else:
        shell.on["fs.pull"] = refuse(name, f"what {name} means")
    environment.cleanup()
    assert file_sync.failures == [] and file_sync.waited == []
    assert ("it is stopped" if name == "stopped" else f"what {name} means") in caplog.text
    shell.on["sandbox.get"] = lambda peer, params: {"sandbox": shell._sandbox(params)}
    shell.on["fs.pull"] = refuse("cloud_error", "no answer")  # which may be another time
    environment.cleanup()
    assert len(file_sync.failures) == 3 and len(file_sync.waited) == 2


def test_a_fetch_at_the_end_takes_no_longer_than_hermes_gives_it(
    shell: ShellDaemon, provider: DeepInfraProvider, synchronised: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(file_sync, "timeout", 0.3)
    environment = make(provider)
    shell.on["fs.pull"] = lambda peer, params: NO_ANSWER  # the network is gone
    begun = time.monotonic()
    on_thread("end", environment.cleanup)
    assert time.monotonic() - begun < 5
    assert shell.methods().count("fs.pull") == 1 and file_sync.failures == []
    assert "files were not fetched" in caplog.text
    late = Path(decode(shell.wait_for("fs.pull")["host"]).decode())
    assert not late.parent.exists()  # so that what comes after all is in nobody's way
    assert environment.execute("echo on")["output"] == "on\n"


def test_files_that_are_still_being_sent_hold_no_agent_up_that_ends(
    shell: ShellDaemon, provider: DeepInfraProvider, synchronised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepinfra_sandboxd.environment.SYNC_GRACE", 0.2)
    environment = make(provider)
    (synchronised / "cache/images/two.txt").write_text("changed here")
    push = shell.on["fs.push"]
    shell.on["fs.push"] = lambda peer, params: NO_ANSWER
    sending = threading.Thread(target=lambda: environment.execute("true"), daemon=True)
    sending.start()
    shell.wait_for("fs.push", 2)
    begun = time.monotonic()
    on_thread("end", lambda: environment.cleanup(force_remove=False))
    assert time.monotonic() - begun < 5 and "fs.pull" not in shell.methods()
    shell.on["fs.push"] = push
    shell.drop()  # it is sent again
    sending.join(20)
    assert file_sync.failures == []


@pytest.mark.parametrize("when", ["before", "while fetching"])
def test_a_daemon_that_is_gone_holds_no_agent_up_that_ends(
    shell: ShellDaemon, provider: DeepInfraProvider, synchronised: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    started: list[Any] = []
    monkeypatch.setattr(daemon, "start", lambda *how, **_: started.append(how) or "")
    provider.client.patience = 20
    environment = make(provider)
    if when == "before":
        shell.crash()
    else:
        shell.on["fs.pull"] = lambda *_: shell.listener.shutdown(socket.SHUT_RDWR) or shell.drop() or NO_ANSWER
    begun = time.monotonic()
    on_thread("end", lambda: environment.cleanup(force_remove=False))
    assert time.monotonic() - begun < 5
    assert file_sync.failures == [] and started == []


@pytest.mark.parametrize("removed", [True, False])
def test_what_goes_with_a_removal_is_fetched_also_from_a_daemon_that_was_restarted_since(
    shell: ShellDaemon, provider: DeepInfraProvider, synchronised: Path, removed: bool
) -> None:
    environment = make(provider)
    environment.execute("echo there > .hermes/cache/images/two.txt")
    shell.crash()
    shell.restart()
    environment.cleanup(force_remove=removed)
    assert (synchronised / "cache/images/two.txt").read_text() == ("there\n" if removed else "cache/images/two.txt")
    assert file_sync.failures == []


def test_a_removal_does_not_wait_long_for_what_it_could_fetch(
    shell: ShellDaemon, provider: DeepInfraProvider, synchronised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deepinfra_sandboxd.environment.SYNC_GRACE", 0.2)
    provider.client.patience = 60
    environment = make(provider)
    shell.crash()
    removal = threading.Thread(target=lambda: environment.cleanup(force_remove=True))
    with monkeypatch.context() as patched:
        asked, call = threading.Event(), provider.client.call

        def called(method: str, *arguments: Any, **options: Any) -> Any:
            if method == "sandbox.release":
                asked.set()
            return call(method, *arguments, **options)

        patched.setattr(provider.client, "call", called)
        removal.start()
        assert asked.wait(10)  # long before the patience with a daemon that is away is over
    shell.restart()
    removal.join(20)
    assert shell.wait_for("sandbox.release")["mode"] == "terminate" and "fs.pull" not in shell.methods()


def test_a_sandbox_without_caches_has_nothing_to_bring_back(
    shell: ShellDaemon, provider: DeepInfraProvider, synchronised: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environment = make(provider)
    environment.execute("rm -r .hermes/cache")
    environment.cleanup()
    assert shell.methods().count("fs.pull") == 1 and file_sync.failures == [] and caplog.text == ""


def test_a_python_that_cannot_unpack_what_comes_back_is_spared_the_tries(
    shell: ShellDaemon,
    provider: DeepInfraProvider,
    synchronised: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delattr(tarfile, "data_filter")
    for _ in range(2):
        environment = make(provider)
        environment.execute(PLANTED)
        environment.cleanup()
    assert "fs.pull" not in shell.methods() and file_sync.failures == []
    assert caplog.text.count("Python 3.11.4") == 1
    can_unpack.cache_clear()  # it is not so for the tests that come next


@pytest.mark.parametrize("configured", [1234, -5, None], ids=str)
def test_no_more_is_fetched_than_hermes_takes(
    shell: ShellDaemon,
    provider: DeepInfraProvider,
    synchronised: Path,
    monkeypatch: pytest.MonkeyPatch,
    configured: int | None,
) -> None:
    if configured is None:
        monkeypatch.delattr(file_sync, "_sync_back_max_bytes")
    else:
        monkeypatch.setattr(file_sync, "max_bytes", configured)
    make(provider).cleanup()
    assert shell.wait_for("fs.pull")["max_bytes"] == (2 << 30 if configured is None else max(0, configured))


def test_a_failed_upload_is_told_to_hermes_and_the_command_runs(
    shell: ShellDaemon, provider: DeepInfraProvider, synchronised: Path
) -> None:
    skipped = {"host": "/h", "remote": "/workspace/r", "reason": "unreadable", "text": "permission denied"}
    good = shell.on["fs.push"]
    shell.on["fs.push"] = lambda peer, params: {**good(peer, params), "skipped": [skipped]}
    assert make(provider).execute("echo ran")["output"] == "ran\n"
    # The host's file is a copy that hermes made, called by a number: what says which one it is is the other name.
    assert file_sync.failures and "/h /workspace/r: permission denied" in file_sync.failures[0]


def test_a_file_that_cannot_be_removed_is_told_to_hermes(
    shell: ShellDaemon, provider: DeepInfraProvider, synchronised: Path
) -> None:
    environment = make(provider)
    failed = {"remote": "/workspace/.hermes/skills/one.md", "text": "read-only file system"}
    shell.on["fs.delete"] = lambda peer, params: {"deleted": 0, "missing": 0, "failed": [failed]}
    (synchronised / "skills/one.md").unlink()
    assert environment.execute("echo ran")["output"] == "ran\n"
    assert [one for one in file_sync.failures if "skills/one.md: read-only file system" in one]
    environment.execute("true")
    assert shell.methods().count("fs.delete") == 2  # it was not taken for done


def test_after_a_restart_the_files_are_offered_again(
    shell: ShellDaemon, provider: DeepInfraProvider, synchronised: Path
) -> None:
    environment = make(provider)
    restart(shell)
    environment.execute("true")
    assert shell.methods().count("fs.push") == 2


def test_what_hermes_itself_does_not_let_through_is_told_and_nothing_is_run(
    shell: ShellDaemon, provider: DeepInfraProvider, synchronised: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest hermes lets this out of sync() alone: what another backend brought back was not yet applied."""

    def refuse_to_sync(manager: Any, *, force: bool = False) -> None:
        raise RuntimeError("unfinished sync-back belongs to another remote; upload blocked")

    environment = make(provider)
    started = shell.methods().count("exec.start")
    with monkeypatch.context() as blocked:
        blocked.setattr(file_sync.FileSyncManager, "sync", refuse_to_sync)
        with pytest.raises(EnvironmentConnectionError, match="unfinished sync-back"):
            make(provider)
        with pytest.raises(RuntimeError, match="unfinished sync-back"):  # hermes asks again
            environment.execute("echo no")
        assert shell.methods().count("exec.start") == started
    assert environment.execute("echo ok")["output"] == "ok\n" and make(provider).execute("echo ok")["returncode"] == 0


def test_files_are_fetched_byte_by_byte(shell: ShellDaemon, provider: DeepInfraProvider, tmp_path: Path) -> None:
    environment = make(provider)
    content = os.urandom(3 << 20)
    (shell.directory / "a b'c").write_bytes(content)
    environment.fetch_file(f"{shell.directory}/a b'c", tmp_path / "out", max_bytes=len(content))
    assert (tmp_path / "out").read_bytes() == content
    for path, limit in (
        (f"{shell.directory}/a b'c", 100),
        (f"{shell.directory}/none", 100),
        (str(shell.directory), 100),
    ):
        with pytest.raises(FileFetchError):
            environment.fetch_file(path, tmp_path / "other", max_bytes=limit)
    assert [path.name for path in tmp_path.iterdir() if "other" in path.name or "part" in path.name] == []
    (shell.directory / "link").symlink_to("a b'c")
    assert environment.fetch_realpath(f"{shell.directory}/link") == f"{shell.directory}/a b'c"
    assert environment.fetch_realpath("/nowhere/at/all") is None
    shell.stop()
    with pytest.raises(FileFetchError, match="not running"):
        environment.fetch_file("/x", tmp_path / "other", max_bytes=1)
    assert environment.fetch_realpath("/x") is None


@pytest.mark.parametrize("how", ["interrupt", "silence"])
def test_a_fetch_ends_when_the_user_wants_it_or_nothing_comes_any_more(
    shell: ShellDaemon, provider: DeepInfraProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    environment = make(provider)
    thread = threading.get_ident()

    def stuck(command: Command) -> None:
        with command.changed:
            command.output += b"some"
            command.changed.notify_all()
        if how == "interrupt":
            interrupt.set_interrupt(True, thread)

    shell._run = stuck  # type: ignore[method-assign]
    if how == "silence":
        monkeypatch.setattr("deepinfra_sandboxd.environment.SILENCE", 0.3)
    begun = time.monotonic()
    try:
        with pytest.raises(FileFetchError, match="interrupted" if how == "interrupt" else "nothing came") as caught:
            environment.fetch_file("/x", tmp_path / "out", max_bytes=100)
        assert how == "silence" or environment.fetch_realpath("/x") is None
    finally:
        interrupt.set_interrupt(False, thread)
    assert time.monotonic() - begun < 2 and "timeout" not in str(caught.value).lower()
    assert shell.wait_for("exec.cancel")["exec_id"] == shell.started[1]
    assert "timeout_s" not in shell.wait_for("exec.start", 2)  # one that goes on may take as long as it takes
    assert not list(tmp_path.glob("out*"))


def test_a_host_that_cannot_take_a_fetched_file_is_an_error_that_hermes_knows(
    shell: ShellDaemon, provider: DeepInfraProvider, tmp_path: Path
) -> None:
    environment = make(provider)
    (shell.directory / "f").write_text("x")
    (tmp_path / "directory").mkdir()
    for destination in (tmp_path / "none" / "out", tmp_path / "directory"):
        with pytest.raises(FileFetchError, match="could not write"):
            environment.fetch_file(f"{shell.directory}/f", destination, max_bytes=100)
    assert not list(tmp_path.glob("*.part"))


def test_while_the_interpreter_ends_no_stopped_sandbox_is_started(
    shell: ShellDaemon, provider: DeepInfraProvider, tmp_path: Path
) -> None:
    program = """
import atexit, sys
from deepinfra_sandboxd.provider import DeepInfraProvider
environment = DeepInfraProvider().create_environment(cwd="", timeout=5)
def last():
    print(environment.execute("kill -0 1; echo $?"))
    environment.cleanup(force_remove=False)
    environment._client.close()
    print(environment.execute("echo x"), environment.cleanup())
atexit.register(last)
print("ready", flush=True)
sys.stdin.readline()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    shell.state = "stopped"
    ensured = shell.methods().count("sandbox.ensure")
    first, second = process.communicate("\n", timeout=20)[0].splitlines()
    assert first == "{'output': '1\\n', 'returncode': 1}"
    assert second == "{'output': '', 'returncode': 125} None" and len(shell.peers) == 1  # it connects no more
    assert shell.methods().count("sandbox.ensure") == ensured
    assert shell.wait_for("sandbox.release")["mode"] == "keep"
