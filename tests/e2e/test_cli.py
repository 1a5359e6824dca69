"""The command line: what scripts and people rely on. Exit codes, bytes, tables, terminals, signals."""

from __future__ import annotations

import json
import os
import pathlib
import pwd
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.cli import LIMIT_S, Terminal, press_until_it_leaves, running
from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.scenes import EXEC, appears, living, only_id, processes, without_shim, workspace
from support.schema import Validator

VERBS = ["exec", "attach", "cancel", "list", "start", "stop", "terminate", "plans", "status", "wait", "serve"]


def validated(method: str, stdout: bytes) -> dict[str, Any]:
    """One JSON object on one line, as the method answers it."""
    assert stdout.count(b"\n") == 1 and stdout.endswith(b"\n")
    answer: dict[str, Any] = json.loads(stdout)
    Validator().result(method, answer)
    return answer


# -- exec


def test_exec_passes_bytes_and_code_on(daemon: Daemon) -> None:
    done = daemon.cli("exec", "--", "/bin/sh", "-c", r"printf 'out\n\0\033[1m\r'; printf 'err' >&2; exit 42")
    assert (done.returncode, done.stdout, done.stderr) == (42, b"out\n\0\033[1m\r", b"err")
    for code in (0, 1, 2, 3, 4, 124, 125, 130, 255):
        assert daemon.cli("exec", "--", "/bin/sh", "-c", f"exit {code}").returncode == code


def test_exec_takes_arguments_as_they_are(daemon: Daemon) -> None:
    arguments = ["", "a b", "--", "-x", "$HOME", "new\nline", "é"]
    done = daemon.cli("exec", "--", "printf", "%s|", *arguments)
    assert done.stdout == b"".join(os.fsencode(each) + b"|" for each in arguments)
    odd = os.fsdecode(b"\xff\x80")
    done = daemon.cli("exec", "-e", f"A={odd}", "--", "/bin/sh", "-c", 'printf "%s%s" "$1" "$A" | od -An -tx1', "sh", odd)
    assert done.stdout.split() == [b"ff", b"80", b"ff", b"80"]


def test_a_profile_is_shown_and_given_by_its_name(daemon: Daemon) -> None:
    """The plugin names it by its home; two that are called alike have to be told apart by that."""
    homes = ["/srv/a/profiles/work", "/srv/b/profiles/work", "/srv/a"]
    with daemon.peer() as peer:
        for home in homes:
            assert peer.sh(f"echo {home} >file", key={"profile": home, "task": "t"}).returncode == 0
    shown = daemon.cli("list").stdout.decode()
    names = re.findall(r"\b(?:work|default)~[0-9a-f]{6}\b", shown)
    assert len(set(names)) == 3 and "/srv" not in shown
    found = {daemon.cli("exec", "--profile", name, "--task", "t", "--", "cat", "file").stdout.decode() for name in names}
    assert found == {f"{home}\n" for home in homes}
    assert daemon.cli("exec", "--profile", homes[0], "--task", "t", "--", "cat", "file").stdout.decode() == f"{homes[0]}\n"
    assert {one["key"]["profile"] for one in json.loads(daemon.cli("list", "--json").stdout)["sandboxes"]} == set(homes)


def test_a_path_of_a_profile_means_what_the_plugin_calls_it(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    home = (tmp_path / "root" / "profiles" / "work").resolve()
    home.mkdir(parents=True)
    (tmp_path / "link").symlink_to("root")
    with daemon.peer() as peer:
        assert peer.sh("echo work >file", key={"profile": str(home), "task": "default"}).returncode == 0
        assert peer.sh("echo native >file").returncode == 0  # of ~/.hermes
    for path in (f"{home}/", f"{tmp_path}/link/profiles/work", f"{tmp_path}/link/../root/profiles/work"):
        assert daemon.cli("exec", "--profile", path, "--", "cat", "file").stdout == b"work\n"
    native = pathlib.Path(pwd.getpwuid(os.getuid()).pw_dir) / ".hermes"
    assert daemon.cli("exec", "--profile", str(native), "--", "cat", "file").stdout == b"native\n"
    assert len(json.loads(daemon.cli("list", "--json").stdout)["sandboxes"]) == 2


def test_exec_of_megabytes(daemon: Daemon) -> None:
    done = daemon.cli("exec", "--", "/bin/sh", "-c", "yes 0123456 | head -c 20000000; yes e | head -c 100000 >&2")
    assert done.stdout == b"0123456\n" * 2500000
    assert (done.stderr, done.returncode) == (b"e\n" * 50000, 0)


def test_exec_options(daemon: Daemon, emulator: Emulator) -> None:
    assert daemon.cli("exec", "--cwd", "/tmp", "--", "pwd").stdout == b"/tmp\n"
    assert daemon.cli("exec", "-C/nowhere", "--", "pwd").stderr.startswith(b"deepinfra-sandboxd: the working directory /nowhere could not")
    assert daemon.cli("exec", "--env", "A=1=2", "-eB=", "--", "/bin/sh", "-c", 'echo "$A-${B-unset}-"').stdout == b"1=2--\n"
    assert daemon.cli("exec", "--task", "t", "--profile", "/p", "--", "true").returncode == 0
    assert sorted(one["tags"]["hermes_task_id"] for one in living(emulator)) == ["default", "t"]
    assert daemon.cli("exec", "--id", "mine", "--", "true").returncode == 0
    again = daemon.cli("exec", "--id", "mine", "--", "touch", "twice")
    assert again.returncode == 125 and b"mine" in again.stderr
    assert daemon.cli("exec", "--", "ls").stdout == b""


def test_exec_that_times_out(daemon: Daemon) -> None:
    done = daemon.cli("exec", "--timeout", "500ms", "--", "/bin/sh", "-c", "echo partial; sleep 600")
    assert (done.returncode, done.stdout) == (124, b"partial\n")
    assert b"timed out" in done.stderr


@pytest.mark.parametrize(("action", "said"), [
    ({"status": 401, "body": "{}"}, b"has not run"), ({"status": 502, "body": "<html>"}, b"whether it ran is not known"),
    ({"cut_after_lines": 1, "how": "fin"}, b"it ran; how it ended is not known")], ids=str)
def test_exec_that_fails_says_whether_it_ran(daemon: Daemon, emulator: Emulator, action: dict[str, Any], said: bytes) -> None:
    """With the shim next to nothing stays unknown, so this is without."""
    without_shim(emulator)
    daemon.cli("exec", "--", "true")
    emulator.fault_exec(action)
    done = daemon.cli("exec", "--", "/bin/sh", "-c", "echo out; sleep 0.2; exit 0")
    assert done.returncode == 125
    assert said in done.stderr and b"hint:" in done.stderr
    assert all(line.startswith(b"deepinfra-sandboxd: ") for line in done.stderr.splitlines())


@pytest.mark.parametrize("action", [{"status": 502, "body": "<html>"}, {"cut_after_lines": 1, "how": "fin"}], ids=str)
def test_exec_does_not_notice_what_the_daemon_bears(daemon: Daemon, emulator: Emulator, action: dict[str, Any]) -> None:
    daemon.cli("exec", "--", "true")
    emulator.fault_exec(action)
    done = daemon.cli("exec", "--", "/bin/sh", "-c", "echo out; sleep 0.2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\n", b"")


def test_exec_tells_when_the_sandbox_was_started_anew(daemon: Daemon, emulator: Emulator) -> None:
    assert daemon.cli("exec", "--", "true").stderr == b""  # a first one is nothing to speak of
    emulator.stop_sandbox(only_id(emulator))
    done = daemon.cli("exec", "--", "echo", "on")
    assert (done.returncode, done.stdout) == (0, b"on\n")
    assert b"started anew" in done.stderr
    emulator.delete_sandbox(only_id(emulator))
    (lost,) = daemon.cli("exec", "--", "true").stderr.splitlines()
    assert b"is gone, with its files" in lost
    daemon.cli("terminate", "--task", "default")
    (removed,) = daemon.cli("exec", "--", "true").stderr.splitlines()
    assert b"a new sandbox was made" in removed and b"not even in /workspace" in removed


def test_output_comes_at_once(daemon: Daemon, emulator: Emulator) -> None:
    with running(daemon, "exec", "--", "/bin/sh", "-c", "printf first; until [ -e go ]; do sleep 0.01; done; echo second") as cli:
        assert cli.stdout is not None and cli.stdout.read(5) == b"first"  # no newline, not at its end
        daemon.cli("exec", "--", "touch", "go")
        assert cli.stdout.read() == b"second\n"
        assert cli.wait(LIMIT_S) == 0


def test_ctrl_c_ends_the_command_alone(daemon: Daemon, emulator: Emulator) -> None:
    daemon.cli("exec", "--", "/bin/sh", "-c", "(while :; do echo t >>ticks; sleep 0.02; done) >/dev/null 2>&1 </dev/null &")
    script = "echo up; setsid sleep 601 & sleep 600"
    with running(daemon, "exec", "--", "/bin/sh", "-c", script) as cli, running(
            daemon, "exec", "--", "/bin/sh", "-c", "echo up; until [ -e go ]; do sleep 0.01; done; exit 7") as other:
        for each in (cli, other):
            assert each.stdout is not None and each.stdout.readline() == b"up\n"
        cli.send_signal(signal.SIGINT)
        assert cli.wait(LIMIT_S) == 130
        assert not any("sleep 60" in line for line in processes(emulator))
        ticks = workspace(emulator) / "ticks"
        size = ticks.stat().st_size
        wait_until(lambda: ticks.stat().st_size > size, "the rest goes on")
        daemon.cli("exec", "--", "touch", "go")
        assert other.wait(LIMIT_S) == 7
    assert living(emulator)[0]["state"] == "running"


def test_a_second_ctrl_c_leaves_at_once(daemon: Daemon, emulator: Emulator) -> None:
    daemon.cli("exec", "--", "true")
    with running(daemon, "exec", "--id", "stubborn", "--", "/bin/sh", "-c", "echo up; sleep 600") as cli:
        assert cli.stdout is not None and cli.stdout.readline() == b"up\n"
        emulator.fault_exec({"latency_ms": 4000}, times=0)
        before = emulator.count(EXEC)
        cli.send_signal(signal.SIGINT)
        wait_until(lambda: emulator.count(EXEC) > before, "the cancel is under way")
        assert cli.poll() is None
        begun = time.monotonic()
        press_until_it_leaves(cli)
        assert cli.wait(LIMIT_S) == 130
        assert time.monotonic() - begun < 2
        assert cli.stderr is not None and b"stubborn is being cancelled and may still be running" in cli.stderr.read()
    wait_until(lambda: processes(emulator) == [], "the cancel that was sent")


def test_signals_that_come_together_are_one(daemon: Daemon, emulator: Emulator) -> None:
    """timeout(1) signals its child and its group; so do supervisors. Neither means: without the command's end."""
    daemon.cli("exec", "--", "true")
    with running(daemon, "exec", "--", "/bin/sh", "-c", "echo up; sleep 600") as cli:
        assert cli.stdout is not None and cli.stdout.readline() == b"up\n"
        for each in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):  # it gets both before it can look
            cli.send_signal(each)
        assert cli.wait(LIMIT_S) == 130
        assert cli.stderr is not None and cli.stderr.read() == b""
    assert processes(emulator) == []


def test_ctrl_c_while_the_sandbox_boots(daemon: Daemon, emulator: Emulator) -> None:
    emulator.config(boot_ms=400)
    with running(daemon, "exec", "--id", "early", "--", "touch", "ran") as cli:
        wait_until(lambda: living(emulator), "it boots")
        cli.send_signal(signal.SIGINT)
        assert cli.wait(LIMIT_S) == 130
    assert daemon.cli("exec", "--", "ls").stdout == b""


def test_a_reader_that_goes_ends_the_command(daemon: Daemon, emulator: Emulator) -> None:
    """`| head -1`: as a local command would end by SIGPIPE."""
    daemon.cli("exec", "--", "true")
    with running(daemon, "exec", "--", "yes") as cli, subprocess.Popen(["head", "-1"], stdin=cli.stdout, stdout=subprocess.PIPE) as head:
        assert cli.stdout is not None
        cli.stdout.close()
        assert head.communicate(timeout=LIMIT_S)[0] == b"y\n"
        assert cli.wait(LIMIT_S) in (130, 141)
        assert cli.stderr is not None and cli.stderr.read() == b""
    assert not any(line.startswith("yes") for line in processes(emulator))


def test_killing_the_cli_leaves_the_command(daemon: Daemon, emulator: Emulator) -> None:
    with running(daemon, "exec", "--", "/bin/sh", "-c", "echo up; until [ -e go ]; do sleep 0.01; done; echo done >result") as cli:
        assert cli.stdout is not None and cli.stdout.readline() == b"up\n"
        cli.kill()
    daemon.cli("exec", "--", "touch", "go")
    appears(workspace(emulator) / "result")


def test_progress_is_for_terminals_only(daemon: Daemon, emulator: Emulator) -> None:
    emulator.config(boot_ms=300)
    quiet = daemon.cli("exec", "--", "echo", "done")
    assert (quiet.stdout, quiet.stderr) == (b"done\n", b"")
    code, seen = Terminal(daemon, "exec", "--task", "other", "--", "echo", "done").end()
    assert code == 0
    assert b"waiting for the new sandbox to boot" in seen
    assert seen.endswith(b"\r\x1b[Kdone\r\n")  # wiped before the output


def test_ctrl_c_on_a_terminal(daemon: Daemon, emulator: Emulator) -> None:
    daemon.cli("exec", "--", "true")
    terminal = Terminal(daemon, "exec", "--", "/bin/sh", "-c", "echo up; sleep 600")
    terminal.until(b"up")
    os.kill(terminal.process.pid, signal.SIGINT)
    code, seen = terminal.end()
    assert code == 130 and b"cancelling the command" in seen


# -- the other verbs


def test_cancel(daemon: Daemon) -> None:
    with running(daemon, "exec", "--id", "long", "--", "/bin/sh", "-c", "echo up; sleep 600") as cli:
        assert cli.stdout is not None and cli.stdout.readline() == b"up\n"
        done = daemon.cli("cancel", "--signal", "TERM", "long")
        assert (done.returncode, done.stdout) == (0, b"cancelled long\n")
        assert cli.wait(LIMIT_S) == 130
    assert validated("exec.cancel", daemon.cli("cancel", "--json", "long").stdout)["confirmed"]
    unknown = daemon.cli("cancel", "none")
    assert (unknown.returncode, unknown.stdout) == (1, b"") and b"none" in unknown.stderr
    assert daemon.cli("cancel").returncode == 2
    assert daemon.cli("cancel", "--signal", "HUP", "long").returncode in (1, 2)


def test_the_life_of_a_sandbox(daemon: Daemon, emulator: Emulator) -> None:
    done = daemon.cli("start", "--task", "t")
    sandbox_id = only_id(emulator)
    assert (done.returncode, done.stdout) == (0, f"started {sandbox_id} (task t of profile default)\n".encode()) or (
        done.stdout == f"started {sandbox_id} (task t)\n".encode())
    with running(daemon, "exec", "--task", "t", "--", "/bin/sh", "-c", "echo up; sleep 600") as cli:
        assert cli.stdout is not None and cli.stdout.readline() == b"up\n"
        busy = daemon.cli("stop", "--task", "t")
        assert busy.returncode == 1 and b"running" in busy.stderr and b"hint:" in busy.stderr
        assert daemon.cli("stop", "--force", sandbox_id).returncode == 0
        assert cli.wait(LIMIT_S) == 125
    assert living(emulator)[0]["state"] == "stopped"
    answer = validated("sandbox.start", daemon.cli("start", "--json", sandbox_id).stdout)
    assert answer["sandbox"]["state"] == "running"
    assert validated("sandbox.stop", daemon.cli("stop", "--json", sandbox_id).stdout)["sandbox"]["state"] == "stopped"
    assert validated("sandbox.terminate", daemon.cli("terminate", "--json", "-t", "t").stdout)["sandbox_id"] == sandbox_id
    assert living(emulator) == []
    for verb in ("stop", "terminate", "start"):
        gone = daemon.cli(verb, sandbox_id)
        assert gone.returncode == 1 and sandbox_id.encode() in gone.stderr
        assert daemon.cli(verb).returncode == 2
        assert daemon.cli(verb, "--task", "t", sandbox_id).returncode == 2


def test_plans(daemon: Daemon) -> None:
    answer = validated("plan.list", daemon.cli("plans", "--json").stdout)
    table = daemon.cli("plans").stdout.decode().splitlines()
    assert table[0].split() == ["PLAN", "VCPU", "RAM", "GB", "DISK", "GB", "$", "AN", "HOUR"]
    assert [line.split()[0] for line in table[1:]] == [plan["id"] for plan in answer["plans"]]


def test_list(daemon: Daemon) -> None:
    assert daemon.cli("list").stdout == b"no sandboxes\n"
    assert validated("sandbox.list", daemon.cli("list", "--json").stdout) == {"sandboxes": []}
    daemon.cli("start", "--task", "b")
    daemon.cli("start", "--task", "a", "--profile", "/p")
    assert [one["key"]["task"] for one in validated("sandbox.list", daemon.cli("list", "--json").stdout)["sandboxes"]] == ["a", "b"]
    assert len(daemon.cli("list").stdout.splitlines()) == 3


def test_status(daemon: Daemon, emulator: Emulator) -> None:
    with running(daemon, "exec", "--id", "seen", "--", "/bin/sh", "-c", "echo up; sleep 600") as cli:
        assert cli.stdout is not None and cli.stdout.readline() == b"up\n"
        daemon.cli("start", "--task", "warm", "--profile", "/srv/p")
        daemon.cli("stop", "--task", "warm", "--profile", "/srv/p")
        done = daemon.cli("status")
        ids = {one["tags"]["hermes_task_id"]: one["sandbox_id"] for one in living(emulator)}
    assert (done.returncode, done.stderr) == (0, b"")
    text = re.sub(r"pid \d+, up \d+s", "pid N, up Ns", done.stdout.decode()).replace(emulator.url, "URL")
    text = re.sub(r"running   \ds  default", "running   Ns  default", text)
    for task, sandbox_id in ids.items():
        text = text.replace(sandbox_id, f"id-{task}".ljust(len(sandbox_id)))
    width = len(ids["warm"])
    assert text == f"""\
daemon    ready, version 0.1.0, pid N, up Ns
account   URL, key 09ad442b2d2785dc, 1 of 5 sandboxes active
money     $0.04 an hour now, $0.00 today

STATE    TASK     PLAN    IDLE  RUNNING  $ AN HOUR   COST  {'SANDBOX':{width}}  PROFILE         AWAKE BECAUSE
stopped  warm     medium     -        -          0  $0.00  {'id-warm':{width}}  default~c4cbe8
running  default  medium    0s        1       0.04  $0.00  {'id-default':{width}}  default         1 command is running

COMMAND  TASK     PHASE    FOR  PROFILE
seen     default  running   Ns  default
"""


def test_status_json_and_health(make_daemon: Callable[..., Daemon], emulator: Emulator) -> None:
    daemon = make_daemon(api_key=None).start()
    done = daemon.cli("status", "--json")
    answer = validated("daemon.status", done.stdout)
    assert not answer["account"]["configured"] and answer["health"]
    assert done.returncode == 1  # degraded
    plain = daemon.cli("status")
    assert plain.returncode == 1 and b"no API key" in plain.stdout and b"DEEPINFRA_API_KEY" in plain.stdout
    refused = daemon.cli("exec", "--", "true")
    assert refused.returncode == 125 and b"DEEPINFRA_API_KEY" in refused.stderr
    assert daemon.cli("plans").returncode == 1
    assert emulator.count() == 0


KEY = {"DEEPINFRA_API_KEY": " test-key\n"}


@pytest.mark.parametrize("verb", [("exec", "--", "true"), ("plans",), ("cp", "/etc/hostname", "sandbox:"), ("terminate", "--task", "none")])
def test_a_daemon_without_a_key_is_given_ours(make_daemon: Callable[..., Daemon], verb: tuple[str, ...]) -> None:
    daemon = make_daemon(api_key=None).start()
    assert daemon.cli("status", environment=KEY).returncode == 1  # who only looks changes nothing
    code = 1 if "none" in verb else 0
    assert daemon.cli(*verb, environment=KEY).returncode == code
    assert daemon.cli("plans").returncode == 0
    assert (daemon.state_dir / "api-key").read_text() == "test-key\n"


@pytest.mark.parametrize("key", ["canary-refused", "canary refused"])
def test_a_key_that_is_refused_is_told_as_that(make_daemon: Callable[..., Daemon], key: str) -> None:
    daemon = make_daemon(api_key=None).start()
    refused = daemon.cli("exec", "--", "true", environment={"DEEPINFRA_API_KEY": key})
    assert refused.returncode == 125 and b"key" in refused.stderr and b"no API key" not in refused.stderr
    assert b"canary" not in refused.stderr and b"has not run" in refused.stderr


def test_status_that_watches(daemon: Daemon) -> None:
    terminal = Terminal(daemon, "status", "--watch")
    terminal.until(b"no sandboxes")
    daemon.cli("start", "--task", "seen")
    terminal.until(b"seen")
    os.kill(terminal.process.pid, signal.SIGINT)
    assert terminal.end()[0] in (-signal.SIGINT, 130)


def test_colour_is_for_terminals_that_want_it(daemon: Daemon) -> None:
    daemon.cli("start", "--task", "default")
    assert b"\x1b" not in daemon.cli("status").stdout
    code, seen = Terminal(daemon, "status").end()
    assert code == 0 and b"\x1b[32mrunning\x1b[0m" in seen
    for wish in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        assert b"\x1b" not in Terminal(daemon, "status", **wish).end()[1]
    error = Terminal(daemon, "stop", "none").end()[1]
    assert error.startswith(b"\x1b[1;31merror:\x1b[0m ")


def test_names_cannot_play_tricks(daemon: Daemon) -> None:
    name = "evil\x1b[2J\n\u202e\u009b€"
    done = daemon.cli("start", "--task", name)
    assert done.returncode == 0
    for output in (done.stdout, daemon.cli("list").stdout, daemon.cli("status").stdout, Terminal(daemon, "list", NO_COLOR="1").end()[1]):
        text = output.decode()
        assert not set(text.replace("\r\n", "\n")) & set("\x1b\u202e\u009b\r")
        assert "evil\\x1b[2J\\x0a\\u{202e}\\u{9b}€" in text
    assert daemon.cli("exec", "--task", name, "--id", "x", "--", "true").returncode == 0


def test_wait(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon()
    assert daemon.cli("wait", "--timeout", "100ms").returncode == 3
    with running(daemon, "wait", "--timeout", "20") as waiting:
        daemon.start()
        assert waiting.wait(LIMIT_S) == 0
    assert daemon.cli("wait").returncode == 0
    assert daemon.cli("wait", "--timeout", "soon").returncode == 2


# -- no daemon, or not ours


def every_verb() -> list[tuple[str, ...]]:
    return [("status",), ("status", "--json"), ("list",), ("plans",), ("cancel", "x"), ("start", "-t", "x"), ("stop", "-t", "x"),
            ("terminate", "-t", "x"), ("exec", "--", "true"), ("attach", "x")]


def test_without_a_daemon(make_daemon: Callable[..., Daemon]) -> None:
    """cases.md 24: a clear error, and nothing runs here."""
    daemon = make_daemon()
    marker = daemon.directory / "ran-here"
    for arguments in every_verb():
        done = daemon.cli(*arguments)
        assert done.returncode == (125 if arguments[0] in ("exec", "attach") else 3), arguments
        assert done.stdout == b"" and b"not running" in done.stderr and b"hint:" in done.stderr and b"serve" in done.stderr
    assert daemon.cli("exec", "--", "touch", str(marker)).returncode == 125
    assert not marker.exists()
    with socket.socket(socket.AF_UNIX) as stale:  # a file that nobody listens on
        daemon.socket.parent.mkdir(parents=True)
        stale.bind(str(daemon.socket))
    assert daemon.cli("status").returncode == 3


def test_a_socket_that_never_answers(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon()
    daemon.socket.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(daemon.socket))
        listener.listen(16)
        started = [(arguments, subprocess.Popen(daemon.command(*arguments), env=daemon.environment, stdin=subprocess.DEVNULL,
                                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)) for arguments in every_verb()]
        for arguments, process in started:
            stdout, stderr = process.communicate(timeout=LIMIT_S)
            assert process.returncode == (125 if arguments[0] in ("exec", "attach") else 4), arguments
            assert stdout == b"" and b"does not answer" in stderr and b"hint:" in stderr
        assert daemon.cli("wait", "--timeout", "200ms").returncode == 4


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"{}\n" * 3 + b"[]\n", b"x" * 2000000, b"",
                                    b'{"jsonrpc":"2.0","id":1,"result":{"protocol":2}}\n', b'{"jsonrpc":"2.0","id":1,"error":5}\n',
                                    b'{"jsonrpc":"2.0","id":1,"error":{"code":1002,"message":"no","data":{"name":"incompatible_protocol",'
                                    b'"retryable":false,"hint":"upgrade"}}}\n'], ids=lambda answer: str(answer[:30]))
def test_something_else_on_the_socket(make_daemon: Callable[..., Daemon], answer: bytes) -> None:
    daemon = make_daemon()
    daemon.socket.parent.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(daemon.socket))
        listener.listen()
        with running(daemon, "status") as cli:
            connection, _ = listener.accept()
            with connection:
                connection.recv(4096)
                try:
                    connection.sendall(answer)
                except OSError:
                    pass  # it has seen enough
            assert cli.wait(LIMIT_S) == 4
            assert cli.stderr is not None and cli.stderr.read().startswith(b"error: ")


# -- usage


def test_help_of_everything(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon()
    overview = daemon.cli("--help")
    assert overview.returncode == 0 and overview.stderr == b""
    for verb in VERBS:
        assert re.search(rf"^  {verb} ", overview.stdout.decode(), re.M), verb
        done = daemon.cli(verb, "--help")
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout.startswith(b"usage: deepinfra-sandboxd " + verb.encode())
        assert daemon.cli("help", verb).stdout == done.stdout == daemon.cli(verb, "-h").stdout
        assert max(map(len, done.stdout.decode().splitlines())) <= 110
    assert re.fullmatch(rb"deepinfra-sandboxd \d+\.\d+\.\d+\n", daemon.cli("--version").stdout)


def test_wrong_usage(daemon: Daemon, emulator: Emulator) -> None:
    for arguments in ((), ("nonesuch",), ("--nonesuch",), ("status", "--nonesuch"), ("status", "surplus"), ("list", "--task"), ("stop", "a", "b"),
                      ("plans", "--json=yes"), ("wait", "--timeout"), ("stat",), ("serve", "--nonesuch"), ("serve", "--idle-stop", "soon")):
        done = daemon.cli(*arguments)
        assert done.returncode == 2, (arguments, done)
        assert done.stdout == b"" and done.stderr.startswith(b"error: ")
    for arguments in (("exec",), ("exec", "ls"), ("exec", "--"), ("exec", "--nonesuch", "--", "ls"), ("exec", "--timeout", "0", "--", "ls"),
                      ("exec", "--timeout", "x", "--", "ls"), ("exec", "--env", "A", "--", "ls"), ("exec", "--tas", "x", "--", "ls"),
                      ("exec", "--reconnect", "soon", "--", "ls"), ("attach",), ("attach", "a", "b"), ("attach", "a", "--offset", "-1"),
                      ("attach", "a", "--offset", "1k"), ("attach", "a", "--offset", "9223372036854775808")):
        done = daemon.cli(*arguments)
        assert done.returncode == 125, (arguments, done)  # 2 would be taken for the command's own
        assert done.stdout == b"" and done.stderr.startswith(b"deepinfra-sandboxd: error: ")
    assert emulator.count() == 0


def test_an_output_that_cannot_be_written(daemon: Daemon) -> None:
    for arguments in (("status",), ("exec", "--", "echo", "x")):
        with open("/dev/full", "wb") as full:
            done = subprocess.run(daemon.command(*arguments), env=daemon.environment, stdin=subprocess.DEVNULL, stdout=full,
                                  stderr=subprocess.PIPE, timeout=LIMIT_S, check=False)
        assert done.returncode != 0 and b"No space left" in done.stderr
