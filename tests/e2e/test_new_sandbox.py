"""What exec.exit says of the sandbox that a command ran in: the one it was asked for in, that one started anew, or a new one."""

from __future__ import annotations

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Exit, Peer
from support.scenes import TWO_PARTS, living, only_id, workspace

SAME, ANEW, NEW = (False, None), (True, None), (True, True)


def said(ended: Exit) -> tuple[bool, bool | None]:
    assert ended.returncode == 0, ended
    return ended.recreated, ended.created


def four_at_once(peer: Peer) -> set[tuple[bool, bool | None]]:
    ids = [peer.start("true") for _ in range(4)]
    return {said(peer.finish(each)) for each in ids}


def test_of_a_first_one_nothing_is_said(peer: Peer) -> None:
    assert four_at_once(peer) == {SAME}
    assert four_at_once(peer) == {SAME}


def test_every_command_says_that_what_it_waited_for_is_a_new_one(peer: Peer, emulator: Emulator) -> None:
    peer.sh("true")
    peer.call("sandbox.terminate", {"key": DEFAULT_KEY})
    assert four_at_once(peer) == {NEW}
    emulator.delete_sandbox(only_id(emulator))
    assert four_at_once(peer) == {NEW}
    peer.call("sandbox.stop", {"key": DEFAULT_KEY})
    assert four_at_once(peer) == {ANEW}
    emulator.stop_sandbox(only_id(emulator))
    assert four_at_once(peer) == {ANEW}
    assert four_at_once(peer) == {SAME}


def test_one_that_another_client_has_made_is_new_to_who_asked_before_it_ran(peer: Peer, daemon: Daemon, emulator: Emulator) -> None:
    peer.sh("true")
    with daemon.peer() as other:
        peer.call("sandbox.terminate", {"key": DEFAULT_KEY})
        emulator.config(boot_ms=300)
        making = other.send("sandbox.ensure", {"key": DEFAULT_KEY})
        wait_until(lambda: living(emulator), "it is being made")
        assert said(peer.run("true")) == NEW
        assert other.result(making)["created"]
        peer.call("sandbox.terminate", {"key": DEFAULT_KEY})
        assert other.call("sandbox.ensure", {"key": DEFAULT_KEY})["created"]
        assert (ended := peer.run("true")).generation == 3 and said(ended) == SAME  # it was there when this was asked for


def test_a_daemon_in_between_changes_nothing_about_that(daemon: Daemon, emulator: Emulator, how: str) -> None:
    with daemon.peer() as peer:
        peer.sh("true")
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})
    getattr(daemon, how)()
    with daemon.start().peer() as peer:
        assert four_at_once(peer) == {ANEW}
        peer.call("sandbox.terminate", {"key": DEFAULT_KEY})
    getattr(daemon, how)()
    with daemon.start().peer() as peer:
        assert four_at_once(peer) == {NEW}
        assert four_at_once(peer) == {SAME}


def test_what_a_running_command_has_found_is_known_to_the_next_daemon(daemon: Daemon, emulator: Emulator, how: str) -> None:
    with daemon.peer() as peer:
        peer.sh("true")
        peer.call("sandbox.terminate", {"key": DEFAULT_KEY})
        exec_id = peer.start("/bin/sh", "-c", TWO_PARTS)
        peer.output(exec_id, 6)
    getattr(daemon, how)()
    with daemon.start().peer() as peer:
        peer.attach(exec_id)
        (workspace(emulator) / "go").touch()
        assert ((ended := peer.finish(exec_id, acknowledge=False)).recreated, ended.created) == NEW
    getattr(daemon, how)()
    with daemon.start().peer() as peer:
        peer.attach(exec_id)
        assert ((ended := peer.finish(exec_id)).recreated, ended.created) == NEW


def test_one_that_no_daemon_had_got_to_is_told_what_was_there_when_it_was_asked_for(daemon: Daemon, emulator: Emulator, how: str) -> None:
    request = {"exec_id": "early", "key": DEFAULT_KEY, "argv": ["true"]}
    with daemon.peer() as peer:
        peer.sh("true")
        peer.call("sandbox.terminate", {"key": DEFAULT_KEY})
        emulator.config(boot_ms=1500)
        peer.call("exec.start", request)
        wait_until(lambda: living(emulator), "it is being made")
    getattr(daemon, how)()
    wait_until(lambda: living(emulator)[0]["state"] == "running", "it has booted")
    with daemon.start().peer() as peer:
        wait_until(lambda: [one["state"] for one in peer.call("sandbox.list")["sandboxes"]] == ["running"], "the daemon has seen it")
        peer.call("exec.start", {**request, "resume": True})
        assert said(peer.finish("early")) == NEW
