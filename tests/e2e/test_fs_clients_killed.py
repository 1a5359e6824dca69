"""Clients that are killed, as by `kill -9`, while they wait for a transfer: what goes into the sandbox is finished without them, what
would come out of it is given up, and nothing is left over.

On neither side, that is: no temporary file, no right to transfer, nobody who holds the sandbox.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from support.cli import running
from support.daemon import REPOSITORY, Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer
from support.scenes import only_id, workspace
from support.trees import describe, without_marker

CONTENT = "/v1/sandboxes/{id}/fs/content"
OTHER = {"profile": "default", "task": "other"}
MOST_POINTS = 10  # a transfer that takes more requests than this has run away
LIMIT_S = 30.0  # for what takes a moment on a machine that is idle
SIZE = 18_000_000  # two parts, either way
AT_ONCE = 4  # fetches of one key

PYTHON = """
import json, sys
from deepinfra_sandboxd import Client
with Client(sys.argv[1]) as client:
    client.call(sys.argv[2], json.loads(sys.argv[3]))
"""


class Transfer:
    """One transfer as a client asks for it, and the two sides of it."""

    def __init__(self, client: str, method: str, daemon: Daemon, emulator: Emulator, base: pathlib.Path) -> None:
        self.client, self.method, self.daemon, self.emulator = client, method, daemon, emulator
        self.here, self.room = base / "here", base / "room"
        self.outward = method in ("push", "put")

    def prepare(self, peer: Peer) -> None:
        self.here.mkdir()
        self.room.mkdir()
        (self.here / "sub").mkdir(mode=0o750)
        (self.here / "large").write_bytes(os.urandom(SIZE))
        (self.here / "sub" / "small").write_text("small")
        peer.sh("mkdir d")
        if not self.outward:
            shutil.copytree(self.here, workspace(self.emulator) / "d", dirs_exist_ok=True)
        self.let_go(peer)

    def let_go(self, peer: Peer) -> None:
        peer.call("sandbox.release", {"key": DEFAULT_KEY, "mode": "keep"})

    def renew(self, turn: int) -> None:
        """Something new has to go, and where it goes is nothing whole."""
        source = self.here if self.outward else workspace(self.emulator) / "d"
        for name in ("large", "sub/small"):
            with open(source / name, "r+b") as file:
                file.write(b"%04d" % turn)
        for each in self.room.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()

    def params(self) -> dict[str, Any]:
        if self.method == "push":
            return {"key": DEFAULT_KEY, "files": [{"host": str(self.here), "remote": "d"}]}
        return {"key": DEFAULT_KEY, "host": str(self.here if self.outward else self.room / "d"), "remote": "d"}

    @contextmanager
    def asked_for(self) -> Iterator[subprocess.Popen[bytes]]:
        if self.client == "cp":
            with running(self.daemon, "cp", *((str(self.here), "sandbox:d") if self.outward else ("sandbox:d", str(self.room / "d")))) as process:
                yield process
            return
        arguments = [sys.executable, "-c", PYTHON, str(self.daemon.socket), "fs." + self.method, json.dumps(self.params())]
        with subprocess.Popen(arguments, env={**os.environ, "PYTHONPATH": str(REPOSITORY / "client-py")}) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.kill()

    def check_each_is_whole(self, before: dict[bytes, tuple[Any, ...]]) -> None:
        """While it goes on: in the sandbox each file is the old or the new one, and here there is all of it or nothing."""
        if self.outward:
            new = describe(self.here)
            for path, what in self.there().items():
                assert what in (before.get(path), new[path]), path
            return
        seen = [name for name in os.listdir(self.room) if not name.startswith(".deepinfra-sandboxd-")]
        assert seen in ([], ["d"])
        if seen and self.method == "get":
            assert set(os.listdir(self.room / "d")) == {"large", "sub"}

    def there(self) -> dict[bytes, tuple[Any, ...]]:
        return without_marker(describe(workspace(self.emulator) / "d"))

    def check_done(self) -> None:
        if self.method == "pull":
            assert os.listdir(self.room) == ["d"] and (self.room / "d").stat().st_size > SIZE
        else:
            assert self.there() == describe(self.here if self.outward else self.room / "d")

    def check_done_or_given_up(self) -> None:
        if self.outward or os.listdir(self.room):
            self.check_done()

    def check_nothing_left(self) -> None:
        assert [name for name in os.listdir(self.room) if name.startswith(".")] == []
        state = self.daemon.state_dir
        assert [name for name in os.listdir(state) if "spool" in name or name.endswith(".tmp")] == []
        assert not (state / "stages").exists() or os.listdir(state / "stages") == []
        assert [str(each) for each in descriptors(self.daemon) if each.name.startswith("spool") or f"{state}/#" in str(each)] == []
        sync = workspace(self.emulator) / ".deepinfra-sandboxd" / "sync"
        wait_until(lambda: [name for name in os.listdir(sync) if not name.endswith(".done")] == [], "nothing is left in the sandbox", LIMIT_S)


def descriptors(daemon: Daemon) -> list[pathlib.Path]:
    """What it has open; those that have no name are called by a number."""
    found = []
    for each in pathlib.Path(f"/proc/{daemon.pid}/fd").iterdir():
        try:
            found.append(pathlib.Path(os.readlink(each)))
        except FileNotFoundError:
            pass
    return found


def nothing_goes_on(peer: Peer, key: dict[str, str] = DEFAULT_KEY) -> bool:
    return peer.call("sandbox.get", {"key": key})["sandbox"]["running"] == []


def last_calls(emulator: Emulator) -> int:
    """Of all there were in sandboxes, those that do not begin while parts still come."""
    return sum('"parts":null' not in each["argv"][-1] for each in emulator.commands())


def holders(peer: Peer) -> int:
    held: int = peer.call("sandbox.get", {"key": DEFAULT_KEY})["sandbox"]["holders"]
    return held


@pytest.fixture(params=["cp-put", "cp-get", "python-push", "python-pull"])
def transfer(request: pytest.FixtureRequest, daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path) -> Transfer:
    return Transfer(*request.param.split("-"), daemon, emulator, tmp_path)


@pytest.mark.parametrize("how", ["latency_ms", "latency_after_ms"], ids=["before", "after"])
def test_killed_at_every_request(transfer: Transfer, peer: Peer, emulator: Emulator, how: str) -> None:
    """... of the daemon, which is slow then; `before` and `after` it takes effect."""
    transfer.prepare(peer)
    for point in range(MOST_POINTS):
        before = transfer.there()
        transfer.renew(point)
        emulator.clear_faults()
        emulator.fault({how: 100}, skip=point)
        with transfer.asked_for() as process:
            wait_until(lambda: emulator.faults()[0]["used"] or process.poll() is not None, "the request is made, or there is none", LIMIT_S)
            through = not emulator.faults()[0]["used"]
            process.kill()
            transfer.check_each_is_whole(before)
        wait_until(lambda: nothing_goes_on(peer) and holders(peer) == 0, f"it is over, killed at request {point}", LIMIT_S)
        transfer.check_done_or_given_up()
        transfer.check_nothing_left()
        result = peer.call("fs." + transfer.method, transfer.params())
        assert result["skipped"] == []
        transfer.check_done()
        if transfer.method == "push":
            assert result["sent"] == 0
        transfer.let_go(peer)
        if through:
            assert point >= 2  # as many parts as the line is fast
            return
    raise AssertionError("it never ends")


@pytest.mark.parametrize("method", ["get", "push"])
def test_those_of_killed_clients_stand_in_nobody_s_way(daemon: Daemon, peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, method: str) -> None:
    """As many as may go on at once hang, and nobody waits for them: other keys go on, and so does this one afterwards."""
    transfers = [Transfer("python", method, daemon, emulator, tmp_path / f"{i}") for i in range(AT_ONCE)]
    for each in transfers:
        each.here.parent.mkdir()
        each.prepare(peer)
    (tmp_path / "small").write_text("small")
    elsewhere = {"key": OTHER, "files": [{"host": str(tmp_path / "small"), "remote": "d/small"}]}
    emulator.fault({"stall_before": True}, method="GET" if method == "get" else "PUT", route=CONTENT, sandbox_id=only_id(emulator), times=AT_ONCE)
    for i, each in enumerate(transfers):
        with each.asked_for() as process:
            if method == "get":
                wait_until(lambda: emulator.faults()[0]["used"] == i + 1, "it hangs", LIMIT_S)
            else:  # one after the other: those behind the first wait for it
                wait_until(lambda: holders(peer) == 1, "it has asked", LIMIT_S)
            process.kill()
        wait_until(lambda: holders(peer) == 0, "it holds nothing any more", LIMIT_S)
    wait_until(lambda: emulator.faults()[0]["used"] == (AT_ONCE if method == "get" else 1), "they hang", LIMIT_S)
    assert peer.call("fs.push", elsewhere)["sent"] == 1
    assert peer.call("fs.get", {"key": OTHER, "remote": "d/small", "host": str(tmp_path / "back")})["bytes"] == len("small")
    assert not nothing_goes_on(peer)
    wait_until(lambda: nothing_goes_on(peer, OTHER), "that is over", LIMIT_S)
    peer.call("sandbox.terminate", {"key": OTHER})
    emulator.clear_faults()
    calls = last_calls(emulator)
    emulator.drop_connections()
    # Each unpacks what it has sent, or drops what it has fetched.
    wait_until(lambda: last_calls(emulator) - calls == AT_ONCE and nothing_goes_on(peer), "they are over", LIMIT_S)
    if method == "get":
        assert [os.listdir(each.room) for each in transfers] == [[]] * AT_ONCE
    else:
        assert transfers[0].there() in [describe(each.here) for each in transfers]
    for each in transfers:
        each.check_nothing_left()
    assert peer.call("fs." + method, transfers[0].params())["skipped"] == []
    transfers[0].check_done()


def test_a_sandbox_that_only_killed_clients_wanted_is_stopped(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path) -> None:
    daemon = make_daemon(idle_stop=1).start()
    transfer = Transfer("python", "push", daemon, emulator, tmp_path)
    with daemon.peer() as peer:
        transfer.prepare(peer)
        emulator.fault({"latency_ms": 150}, method="PUT", route=CONTENT)
        with transfer.asked_for() as process:
            wait_until(lambda: emulator.faults()[0]["used"], "it is under way", LIMIT_S)
            process.kill()
        wait_until(lambda: peer.call("sandbox.get", {"key": DEFAULT_KEY})["sandbox"]["state"] == "stopped", "it is stopped", LIMIT_S)
    transfer.check_done()
