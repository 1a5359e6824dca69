"""One-session sandboxes: never resumed, never shared, and gone with the process they were made for."""

from __future__ import annotations

import json
import pathlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import DELETE, living, only_id, workspace

Make = Callable[..., Daemon]

SESSION = """
import json, socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); f = s.makefile("rw")
calls = [("hello", {"client": "session/1", "protocol": 1}), ("sandbox.ensure", {"key": json.loads(sys.argv[2]), "persistent": False})]
for n, (method, params) in enumerate(calls):
    f.write(json.dumps({"jsonrpc": "2.0", "id": n, "method": method, "params": params}) + "\\n"); f.flush()
    while (answer := json.loads(f.readline())).get("id") != n: pass
print(json.dumps(answer), flush=True)
if "--hang-up" in sys.argv: f.close(); s.close()
sys.stdin.read()
"""


@contextmanager
def session(daemon: Daemon, *more: str) -> Iterator[str]:
    """A process that has an ephemeral sandbox; yields its id, and is killed at the end."""
    arguments = [sys.executable, "-c", SESSION, str(daemon.socket), json.dumps(DEFAULT_KEY), *more]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["result"]["sandbox"]["id"]
        process.kill()


GUEST = """
import json, socket, sys
s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); f = s.makefile("rw")
def ask(line):
    f.write(line + "\\n"); f.flush()
    while "id" not in (answer := json.loads(f.readline())): pass
    print(json.dumps(answer), flush=True)
ask(json.dumps({"jsonrpc": "2.0", "id": 0, "method": "hello", "params": {"client": "guest/1", "protocol": 1}}))
for line in sys.stdin: ask(line.strip())
"""


class Guest:
    """Another process, which uses the sandbox of a session."""

    def __init__(self, daemon: Daemon) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", GUEST, str(daemon.socket)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._answer()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": {"key": DEFAULT_KEY, **params}}) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        result: dict[str, Any] = json.loads(self.process.stdout.readline())["result"]
        return result

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def hasty(make_daemon: Make) -> Daemon:
    return make_daemon(orphan_grace=0.2).start()


def stays(emulator: Emulator, seconds: float) -> None:
    """Nothing ends while some times orphan-grace pass."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert living(emulator)
        time.sleep(0.05)


def gone(emulator: Emulator) -> bool:
    return not living(emulator)


def test_it_ends_with_its_process(hasty: Daemon, emulator: Emulator) -> None:
    with session(hasty) as made:
        assert only_id(emulator) == made
    wait_until(lambda: gone(emulator), "it is deleted")
    with hasty.peer() as peer:
        wait_until(lambda: peer.call("sandbox.list")["sandboxes"] == [], "it is forgotten")
        assert peer.sh("true").message is None  # that was meant to go


def test_a_closed_connection_is_not_a_process_that_has_gone(hasty: Daemon, emulator: Emulator) -> None:
    with session(hasty, "--hang-up") as made, hasty.peer() as peer:
        for _ in range(10):  # as a guest, for several times the grace
            assert peer.sh("sleep 0.1").returncode == 0
        assert only_id(emulator) == made
        peer.call("sandbox.release", {"key": DEFAULT_KEY, "mode": "terminate"})  # a guest only lets go
        assert only_id(emulator) == made
    wait_until(lambda: gone(emulator), "it is deleted")


def test_nor_is_a_daemon_that_comes_back(hasty: Daemon, emulator: Emulator) -> None:
    with session(hasty) as made:
        for how in ("stop", "kill"):
            getattr(hasty, how)()
            with hasty.start().peer() as peer:
                wait_until(lambda: peer.status()["daemon"]["phase"] == "ready", "it has looked")
                assert peer.sh("sleep 0.5").returncode == 0
            assert only_id(emulator) == made
        hasty.stop()
    hasty.start()  # its process has ended meanwhile
    wait_until(lambda: gone(emulator), "it is deleted")


def test_what_runs_in_it_ends_with_it(hasty: Daemon, emulator: Emulator) -> None:
    program = SESSION.replace("print(json", """f.write(json.dumps({"jsonrpc": "2.0", "id": 9, "method": "exec.start", "params": {"exec_id": "long",
    "key": json.loads(sys.argv[2]), "argv": ["sleep", "600"], "persistent": False}}) + "\\n"); f.flush()
while json.loads(f.readline()).get("id") != 9: pass
print(json""")
    with subprocess.Popen([sys.executable, "-c", program, str(hasty.socket), json.dumps(DEFAULT_KEY)], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        process.kill()
    wait_until(lambda: gone(emulator), "it is deleted")


def test_it_is_not_shared(hasty: Daemon, emulator: Emulator) -> None:
    with session(hasty) as made, hasty.peer() as peer:
        with pytest.raises(RpcFailure, match="sandbox_busy") as refused:
            peer.call("sandbox.ensure", {"key": DEFAULT_KEY, "persistent": False})
        assert "pid" in refused.value.message and refused.value.error["data"]["sandbox_id"] == made
        ended = peer.run("true", persistent=False)
        assert (ended.reason, ended.started, ended.error["name"]) == ("failed", "no", "sandbox_busy")
        assert peer.sh("echo looked in").stdout == b"looked in\n"  # a person at the command line may


def test_another_session_of_the_same_key_gets_its_own(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(orphan_grace=600).start()
    with session(daemon) as first:
        with daemon.peer() as peer:
            peer.sh("echo secret >file")
    with daemon.peer() as peer:  # at once: the grace has not passed
        made = peer.call("sandbox.ensure", {"key": DEFAULT_KEY, "persistent": False})
        assert made["created"] and made["sandbox"]["id"] == only_id(emulator) != first
        assert peer.sh("cat file", persistent=False).returncode == 1


def works_until_told(peer: Peer) -> str:
    """A command that has begun, and ends when there is a file `go`."""
    running = peer.start("/bin/sh", "-c", "echo up; until [ -e go ]; do sleep 0.02; done; echo done")
    peer.notification("exec.output", exec_id=running)
    return running


def test_a_guest_works_on_until_the_grace_has_passed(make_daemon: Make, emulator: Emulator) -> None:
    """Its session has ended, and nobody wants the key for one of its own: another command of the guest ends nothing."""
    daemon = make_daemon(orphan_grace=600).start()
    with daemon.peer() as peer:
        with session(daemon) as made:
            running = works_until_told(peer)
        assert peer.sh("touch go").returncode == 0
        assert peer.finish(running).stdout == b"done\n"
        assert only_id(emulator) == made


def test_the_owner_that_lets_go_ends_no_command_of_a_guest(make_daemon: Make, emulator: Emulator) -> None:
    """Nor does what the guest asks for next. Who wants one of its own is refused; when nobody works in it any more, it goes."""
    daemon = make_daemon(orphan_grace=1).start()
    with daemon.peer() as owner, daemon.peer() as other, Guest(daemon) as guest:
        made = owner.call("sandbox.ensure", {"key": DEFAULT_KEY, "persistent": False})["sandbox"]["id"]
        guest.ask("exec.start", exec_id="long", argv=["/bin/sh", "-c", "until [ -e go ]; do sleep 0.02; done; touch ended"])
        wait_until(lambda: other.call("exec.list")["execs"][0]["phase"] == "running", "it runs")
        let_go = owner.call("sandbox.release", {"key": DEFAULT_KEY, "mode": "terminate"})
        assert (let_go["action"], let_go["holders"]) == ("kept", 1)
        guest.ask("exec.start", exec_id="short", argv=["true"])
        with pytest.raises(RpcFailure, match="sandbox_busy"):
            other.call("sandbox.ensure", {"key": DEFAULT_KEY, "persistent": False})
        assert only_id(emulator) == made and other.call("exec.list")["execs"][0]["phase"] == "running"
        (workspace(emulator) / "go").touch()
        wait_until(lambda: gone(emulator), "nobody works in it any more")
        assert {one["exec_id"]: one["returncode"] for one in other.call("exec.list")["execs"]} == {"long": 0, "short": 0}


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_guests_command_is_known_as_that_to_the_next_daemon(make_daemon: Make, emulator: Emulator, end: str) -> None:
    """The owner's ends with its session, as before."""
    daemon = make_daemon(orphan_grace=0.2).start()
    with Guest(daemon) as guest:
        with session(daemon) as made:
            guest.ask("exec.start", exec_id="long", argv=["/bin/sh", "-c", "touch begun; until [ -e go ]; do sleep 0.02; done; touch ended"])
            wait_until(lambda: (workspace(emulator) / "begun").exists(), "it runs")
            getattr(daemon, end)()
        daemon.start()
        with daemon.peer() as peer:
            wait_until(lambda: peer.status()["daemon"]["phase"] == "ready", "it has compared")
            stays(emulator, 5 * 0.2)
            assert only_id(emulator) == made
            (workspace(emulator) / "go").touch()
            wait_until(lambda: gone(emulator), "nobody works in it any more")
            assert [one["returncode"] for one in peer.call("exec.list")["execs"]] == [0]


def test_a_guest_that_does_nothing_does_not_keep_it(hasty: Daemon, emulator: Emulator) -> None:
    with Guest(hasty) as guest:
        with session(hasty) as made:
            guest.ask("sandbox.ensure")
            assert only_id(emulator) == made
        wait_until(lambda: gone(emulator), "it is deleted")


def test_nor_does_one_that_wants_its_own_end_anothers_command(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(orphan_grace=600).start()
    with daemon.peer() as guest:
        with session(daemon) as made:
            running = works_until_told(guest)
        with subprocess.Popen([sys.executable, "-c", SESSION, str(daemon.socket), json.dumps(DEFAULT_KEY)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE) as another:
            assert another.stdout is not None
            refused = json.loads(another.stdout.readline())["error"]
            assert refused["data"]["name"] == "sandbox_busy" and running in refused["message"]
            another.kill()
        assert guest.sh("touch go").returncode == 0 and guest.finish(running).returncode == 0
        assert only_id(emulator) == made
    with session(daemon) as fresh:  # nobody works in it any more
        assert only_id(emulator) == fresh != made


@pytest.mark.parametrize("mode", ["keep", "stop", "terminate"])
def test_released_it_is_terminated(daemon: Daemon, peer: Peer, emulator: Emulator, mode: str) -> None:
    peer.call("sandbox.ensure", {"key": DEFAULT_KEY, "persistent": False})
    exec_id = peer.start("/bin/sh", "-c", "echo up; sleep 600", persistent=False)
    peer.notification("exec.output", exec_id=exec_id)
    assert peer.call("sandbox.release", {"key": DEFAULT_KEY, "mode": mode}) == {"action": "terminated", "holders": 0}
    assert gone(emulator) and emulator.count(DELETE) == 1
    assert peer.finish(exec_id).returncode is None


def test_idle_it_is_deleted_and_that_is_said(make_daemon: Make, emulator: Emulator) -> None:
    """Stopped it would be of no use: it is never resumed."""
    with make_daemon(idle_stop=0.2).start().peer() as peer:
        peer.call("sandbox.ensure", {"key": DEFAULT_KEY, "persistent": False})
        wait_until(lambda: gone(emulator), "it is deleted")
        ended = peer.sh("true", persistent=False)
        assert "gone" in ended.message and ended.recreated


def test_it_makes_no_room_for_others(make_daemon: Make, emulator: Emulator) -> None:
    with make_daemon(max_active=1, evict_min_idle=0.05, queue_timeout=0.5).start().peer() as peer:
        peer.call("sandbox.ensure", {"key": DEFAULT_KEY, "persistent": False})
        with pytest.raises(RpcFailure, match="cap_reached"):
            peer.call("sandbox.ensure", {"key": {"profile": "p", "task": "other"}})
        assert living(emulator)[0]["state"] == "running"


def test_another_session_takes_over_what_one_has_only_begun(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(orphan_grace=0.2).start()
    emulator.fault({"latency_after_ms": 600_000}, method="POST", route="/v1/sandboxes")
    arguments = [sys.executable, "-c", SESSION, str(daemon.socket), json.dumps(DEFAULT_KEY)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        wait_until(lambda: living(emulator), "its create has taken effect")
        daemon.kill()
        first.kill()
    emulator.clear_faults()
    emulator.config(latency_ms=100)
    daemon.start()
    with session(daemon) as mine:
        assert mine == only_id(emulator)
        stays(emulator, 5 * 0.2)
    wait_until(lambda: gone(emulator), "it ends with the second one")


def test_a_daemon_without_descriptors_takes_nobody_for_dead(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(prefix=("prlimit", "--nofile=64:64"), orphan_grace=0.2).start()
    with session(daemon):
        many = [socket.socket(socket.AF_UNIX) for _ in range(90)]
        for one in many:
            one.setblocking(False)
            with suppress(BlockingIOError):
                one.connect(str(daemon.socket))
        wait_until(lambda: "Too many open files" in daemon.log(), "it has none left")
        stays(emulator, 5 * 0.2)
        for one in many:
            one.close()
        stays(emulator, 5 * 0.2)
    wait_until(lambda: gone(emulator), "it ends with its process")


def test_as_many_descriptors_as_the_machine_allows(make_daemon: Make) -> None:
    """The usual soft limit is a tenth of what many clients take."""
    daemon = make_daemon(prefix=("prlimit", "--nofile=100:4000")).start()
    soft, hard = pathlib.Path(f"/proc/{daemon.pid}/limits").read_text().split("Max open files")[1].split()[:2]
    assert (soft, hard) == ("4000", "4000")


def test_a_cloud_that_is_away_does_not_save_it(hasty: Daemon, emulator: Emulator) -> None:
    with session(hasty):
        emulator.fault({"status": 500, "body": "{}"}, method="DELETE", times=2)
    wait_until(lambda: gone(emulator), "it is deleted")
