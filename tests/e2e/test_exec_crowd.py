"""What stands between the daemon and a command that runs: a shim that was removed, connections left behind, helper calls that say
nothing. The command lives, and is told to live."""

from __future__ import annotations

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, Stream, wait_until
from support.rpc import DEFAULT_KEY, Peer
from support.scenes import EXEC, TWO_PARTS, only_id, piece, ran, without_shim, workspace

REMOVE = "rm -rf /workspace/* /workspace/.[!.]*"
INSTALL = {"act_then_status": {"status": 200, "body": '{"error": "internal error, try again"}\n'}}


def big(size: int) -> bytes:
    return b"y\n" * (size // 2)


def leftovers(emulator: Emulator, exec_id: str, count: int) -> list[Stream]:
    """Followers that a platform has left behind, and that nobody reads."""
    shim = next((workspace(emulator) / ".deepinfra-sandboxd").glob("shim-*")).name
    path = "/workspace/.deepinfra-sandboxd/" + shim
    return [emulator.open_exec(only_id(emulator), path, "follow", exec_id, "0", timeout_seconds=1000) for _ in range(count)]


# -- a command removes the shim


def test_stdin_after_the_shim_was_removed(peer: Peer, emulator: Emulator) -> None:
    exec_id = peer.start(script=f"{REMOVE}; echo gone; read x; echo got $x", stdin_open=True)
    peer.output(exec_id, 5)
    assert peer.call("exec.stdin", piece(exec_id, 0, b"hello\n", eof=True))["accepted"] == 6
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode, ended.stdout) == ("exited", 0, b"got hello\n")


def test_acknowledgements_after_the_shim_was_removed(peer: Peer, emulator: Emulator) -> None:
    """More output than the sandbox keeps: it waits for a word that only the shim can bring."""
    emulator.config(scratch_mb=72)  # of which the spool leaves 64 alone
    ended = peer.run(script=f"{REMOVE}; yes | head -c 40000000; exit 3", window=16 << 20)
    assert (ended.reason, ended.returncode, ended.params["dropped_bytes"]) == ("exited", 3, 0)
    assert ended.stdout == big(40_000_000)


# -- many connections to one runner


def test_more_watchers_than_there_were_ever_places(peer: Peer, daemon: Daemon, emulator: Emulator) -> None:
    exec_id = peer.start(script=TWO_PARTS)
    watchers = [daemon.peer() for _ in range(40)]
    for each in watchers:
        each.attach(exec_id)
        assert each.output(exec_id, 6) == b"first\n"
    (workspace(emulator) / "go").touch()
    assert peer.finish(exec_id).returncode == 3
    for each in watchers:
        ended = each.finish(exec_id)
        assert (ended.reason, ended.returncode, ended.params["dropped_bytes"]) == ("exited", 3, 0)
        assert (ended.stdout, ended.stderr) == (b"second\n", b"other\n")
        each.close()
    assert ran(emulator) == 1


def test_connections_left_behind_cost_no_command(peer: Peer, emulator: Emulator) -> None:
    """The daemon's own is cut, and comes back into a crowd."""
    exec_id = peer.start(script=TWO_PARTS)
    peer.output(exec_id, 6)
    left = leftovers(emulator, exec_id, 40)
    emulator.config(on_disconnect="keep")
    for _ in range(3):
        before = emulator.count(EXEC)
        emulator.drop_connections("rst")
        wait_until(lambda before=before: emulator.count(EXEC) > before, "it follows again")
        left += leftovers(emulator, exec_id, 40)
    (workspace(emulator) / "go").touch()
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode, ended.stdout, ended.params["dropped_bytes"]) == ("exited", 3, b"second\n", 0)
    assert ran(emulator) == 1
    for each in left:
        each.close()


def test_a_cancel_gets_through_a_crowd(peer: Peer, emulator: Emulator) -> None:
    exec_id = peer.start(script="echo hi; sleep 600")
    peer.output(exec_id, 3)
    left = leftovers(emulator, exec_id, 120)
    assert peer.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode) == ("cancelled", 130)
    assert emulator.sandboxes()[0]["state"] == "running"
    for each in left:
        each.close()


# -- a verdict on the shim


def test_one_error_while_installing_is_no_verdict(peer: Peer, emulator: Emulator) -> None:
    emulator.fault_exec(INSTALL)
    assert peer.sh("printf 'a\\377b'").stdout == b"a\xffb"
    assert not any(item["code"] == "shim_unusable" for item in peer.call("daemon.health")["health"])


def test_another_boot_is_another_chance(peer: Peer, emulator: Emulator) -> None:
    without_shim(emulator)
    assert peer.sh("printf 'a\\377b'").stdout == "a\ufffdb".encode()
    assert any(item["code"] == "shim_unusable" for item in peer.call("daemon.health")["health"])
    peer.call("sandbox.stop", {"key": DEFAULT_KEY})
    assert peer.sh("printf 'a\\377b'").stdout == b"a\xffb"
    assert not any(item["code"] == "shim_unusable" for item in peer.call("daemon.health")["health"])


# -- a call that says nothing


@pytest.mark.parametrize("action", [{"stall_after_bytes": 60}], ids=str)
def test_a_stalled_acknowledgement_is_said_again(daemon: Daemon, emulator: Emulator, action: dict[str, object]) -> None:
    emulator.config(scratch_mb=72)
    with daemon.peer(limit_s=90) as peer:
        exec_id = peer.start(script="echo up; until [ -e go ]; do sleep 0.01; done; yes | head -c 40000000; exit 3", window=16 << 20)
        peer.output(exec_id, 3)
        emulator.fault_exec(action)
        (workspace(emulator) / "go").touch()
        ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode, ended.stdout) == ("exited", 3, big(40_000_000))
