"""A command's life beyond the connections that watch it: attached again, by the same client or another, from any position."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import EXEC, TWO_PARTS, appears, processes, ran, without_shim, workspace
from support.schema import output_bytes

def phase(peer: Peer, exec_id: str) -> str:
    (found,) = [one for one in peer.call("exec.list")["execs"] if one["exec_id"] == exec_id]
    word: str = found["phase"]
    return word


def noise(megabytes: int) -> str:
    """A command that prints that much, differently everywhere."""
    return f"python3 -c 'import sys,random; r=random.Random(4); [sys.stdout.buffer.write(r.randbytes(65536)) for _ in range({megabytes * 16})]'"


# -- the client goes, the command stays


@pytest.mark.usefixtures("on_disconnect")
def test_a_client_goes_and_another_one_goes_on(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as first:
        exec_id = first.start("/bin/sh", "-c", TWO_PARTS)
        assert first.output(exec_id, 6) == b"first\n"
    with daemon.peer() as second:
        assert second.attach(exec_id, 6)["phase"] == "running"
        second.sh("touch go")
        ended = second.finish(exec_id)
        assert (ended.reason, ended.returncode, ended.stdout, ended.stderr) == ("exited", 3, b"second\n", b"other\n")
        assert (ended.output_bytes, ended.dropped_bytes) == (19, 0)
    assert ran(emulator) == 1


def test_what_came_while_nobody_was_there_is_kept(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as first:
        exec_id = first.start("/bin/sh", "-c", f"echo up; until [ -e go ]; do sleep 0.01; done; {noise(6)}; exit 9")
        first.output(exec_id, 3)
    with daemon.peer() as second:
        (workspace(emulator) / "go").touch()
        wait_until(lambda: phase(second, exec_id) == "done", "the end of an unattended command")
        second.attach(exec_id)
        ended = second.finish(exec_id)
        assert (ended.returncode, ended.dropped_bytes, len(ended.stdout)) == (9, 0, 3 + 6 * 1024 * 1024)
        expected = second.sh(noise(6))
        assert hashlib.sha256(ended.stdout[3:]).digest() == hashlib.sha256(expected.stdout).digest()


def test_one_that_ended_unattended_can_be_read_from_anywhere(daemon: Daemon) -> None:
    with daemon.peer() as first:
        exec_id = first.start("/bin/sh", "-c", "printf 0123456789; exit 4")
    with daemon.peer() as second:
        wait_until(lambda: phase(second, exec_id) == "done", "the end")
        for offset in (0, 1, 9, 10):
            second.attach(exec_id, offset)
            ended = second.finish(exec_id, acknowledge=False)
            assert (ended.returncode, ended.stdout, ended.dropped_bytes) == (4, b"0123456789"[offset:], 0)
        with pytest.raises(RpcFailure) as refused:
            second.attach(exec_id, 11)
        assert refused.value.name == "invalid_params" and "10 bytes" in refused.value.message


def test_once_its_end_has_arrived_the_sandbox_forgets_it(peer: Peer, emulator: Emulator) -> None:
    exec_id = peer.start("/bin/sh", "-c", "echo gone; exit 5")
    assert peer.finish(exec_id).returncode == 5
    peer.sh("true")  # takes the word along
    assert not list((workspace(emulator) / ".deepinfra-sandboxd" / "claims").glob(f"*{exec_id}*"))
    peer.attach(exec_id)
    again = peer.finish(exec_id)
    assert (again.reason, again.returncode, again.stdout, again.output_bytes, again.dropped_bytes) == ("exited", 5, b"", 5, 5)


def test_an_end_that_did_not_arrive_is_not_forgotten(daemon: Daemon) -> None:
    with daemon.peer() as first:
        exec_id = first.start("/bin/sh", "-c", "echo kept; exit 5")
        first.finish(exec_id, acknowledge=False)
    with daemon.peer() as second:
        second.sh("true")
        second.attach(exec_id)
        assert second.finish(exec_id).stdout == b"kept\n"


def test_what_a_watcher_has_got_is_kept_for_who_asked(daemon: Daemon) -> None:
    """Its connection is lost, somebody looks at the command meanwhile, and then it comes back."""
    request = {"exec_id": "watched", "key": DEFAULT_KEY, "argv": ["/bin/sh", "-c", "echo kept; exit 5"]}
    with daemon.peer() as owner:
        owner.call("exec.start", request)
    with daemon.peer() as watcher:
        wait_until(lambda: phase(watcher, "watched") == "done", "the end")
        watcher.attach("watched")
        assert watcher.finish("watched").stdout == b"kept\n"
        watcher.sh("true")  # takes along what may be forgotten
    with daemon.peer() as owner:
        assert owner.call("exec.start", {**request, "resume": True})["attached"] is True
        assert owner.finish("watched").stdout == b"kept\n"


# -- several at once


def test_two_watch_and_one_of_them_does_not_read(daemon: Daemon) -> None:
    with daemon.peer() as first, daemon.peer() as second:
        exec_id = first.start("/bin/sh", "-c", f"echo up; {noise(8)}; exit 2", window=65536)
        begun = first.output(exec_id, 3)
        second.attach(exec_id, window=4096)
        first.send("exec.ack", {"exec_id": exec_id, "offset": len(begun)}, notification=True)
        ended = first.finish(exec_id)  # while the other one takes nothing
        assert (ended.returncode, ended.output_bytes) == (2, 3 + 8 * 1024 * 1024)
        watched = second.finish(exec_id)
        assert (watched.returncode, watched.dropped_bytes) == (2, 0)
        assert hashlib.sha256(watched.stdout).digest() == hashlib.sha256(begun + ended.stdout).digest()


def test_a_watcher_that_goes_disturbs_nobody(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as first:
        exec_id = first.start("/bin/sh", "-c", TWO_PARTS)
        first.output(exec_id, 6)
        with daemon.peer() as second:
            second.attach(exec_id)
            assert second.output(exec_id, 6) == b"first\n"
        (workspace(emulator) / "go").touch()
        assert first.finish(exec_id).stdout == b"second\n"


def test_where_one_begins_anew_another_still_goes_on_from_its_place(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as first:
        exec_id = first.start("/bin/sh", "-c", TWO_PARTS)
        first.output(exec_id, 6)
        first.close()
    with daemon.peer() as second, daemon.peer() as third:
        emulator.fault_exec({"latency_ms": 300})
        second.attach(exec_id)
        third.attach(exec_id, 6)  # before the second one has got anything
        (workspace(emulator) / "go").touch()
        assert second.finish(exec_id, acknowledge=False).stdout == b"first\nsecond\n"
        assert third.finish(exec_id).stdout == b"second\n"


def test_attached_while_it_still_waits_for_its_sandbox(daemon: Daemon, emulator: Emulator) -> None:
    emulator.config(boot_ms=400)
    with daemon.peer() as first, daemon.peer() as second:
        exec_id = first.start("/bin/sh", "-c", "echo out; exit 7")
        assert second.attach(exec_id)["phase"] == "queued"
        for each in (first, second):
            ended = each.finish(exec_id, acknowledge=False)
            assert (ended.returncode, ended.stdout) == (7, b"out\n")


# -- the same id again


def test_the_same_request_again_attaches(daemon: Daemon, emulator: Emulator) -> None:
    request = {"exec_id": "again-1", "key": DEFAULT_KEY, "argv": ["/bin/sh", "-c", TWO_PARTS], "timeout_s": 60}
    with daemon.peer() as first:
        assert first.call("exec.start", request)["attached"] is False
        first.output("again-1", 6)
        # On the same connection output starts anew, on another one it goes there too.
        assert first.call("exec.start", request)["attached"] is True
        assert first.output("again-1", 6) == b"first\n"
        with daemon.peer() as second:
            assert second.call("exec.start", {**request, "offset": 6, "resume": True})["attached"] is True
            (workspace(emulator) / "go").touch()
            assert second.finish("again-1", acknowledge=False).stdout == b"second\n"
        assert first.finish("again-1").stdout == b"second\n"
        assert first.call("exec.start", request)["attached"] is True
        assert first.finish("again-1").returncode == 3
    assert ran(emulator) == 1


@pytest.mark.parametrize("other", [{"argv": ["/bin/false"]}, {"key": {"profile": "default", "task": "other"}}, {"timeout_s": 61}, {"cwd": "/tmp"},
                                   {"env": {"A": "1"}}, {"stdin": ""}, {"merge_output": True}])
def test_another_request_under_a_known_id_is_refused_aloud(peer: Peer, emulator: Emulator, other: dict[str, object]) -> None:
    request = {"exec_id": "taken", "key": DEFAULT_KEY, "argv": ["/bin/true"], "timeout_s": 60}
    peer.call("exec.start", request)
    peer.finish("taken")
    emulator.reset_stats()
    with pytest.raises(RpcFailure) as refused:
        peer.call("exec.start", {**request, **other})
    assert refused.value.name == "exec_id_in_use" and "has not run" in refused.value.message
    assert emulator.count(EXEC) == 0


def test_what_nobody_knows_is_neither_attached_nor_resumed(peer: Peer, emulator: Emulator) -> None:
    for method, params in [("exec.attach", {"exec_id": "nobody"}),
                           ("exec.start", {"exec_id": "nobody", "key": DEFAULT_KEY, "argv": ["/bin/true"], "resume": True})]:
        with pytest.raises(RpcFailure) as refused:
            peer.call(method, params)
        assert refused.value.name == "exec_not_found"
    assert emulator.sandboxes() == []


def test_two_clients_ask_for_the_same_at_once(daemon: Daemon, emulator: Emulator) -> None:
    request = {"exec_id": "both", "key": DEFAULT_KEY, "argv": ["/bin/sh", "-c", "echo x >>ran; echo out"]}
    results = []

    def client() -> None:
        with daemon.peer() as peer:
            peer.call("exec.start", request)
            results.append(peer.finish("both", acknowledge=False).stdout)

    clients = [threading.Thread(target=client) for _ in range(8)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    assert results == [b"out\n"] * 8
    assert ran(emulator) == 1


# -- one is quicker than the other


def test_a_watcher_takes_the_place_of_a_client_that_leaves(daemon: Daemon, emulator: Emulator) -> None:
    """Where the disk is full the sandbox keeps a few megabytes, and waits until somebody says that he has them."""
    emulator.config(scratch_mb=80)
    with daemon.peer() as owner, daemon.peer() as watcher:
        owner.sh("cat /dev/zero >/tmp/full 2>/dev/null; cat /dev/zero >/var/tmp/full 2>/dev/null; true")
        exec_id = owner.start(script="echo up; until [ -e go ]; do sleep 0.01; done; head -c 30000000 /dev/zero; exit 3")
        owner.output(exec_id, 3)
        watcher.attach(exec_id)
        watcher.output(exec_id, 3)
        watcher.send("exec.ack", {"exec_id": exec_id, "offset": 3}, notification=True)
        owner.close()
        (workspace(emulator) / "go").touch()
        ended = watcher.finish(exec_id)
        assert (len(ended.stdout), ended.reason, ended.returncode, ended.dropped_bytes) == (30_000_000, "exited", 3, 0)


def test_a_watcher_that_waits_for_the_start_takes_the_place_too(daemon: Daemon, emulator: Emulator) -> None:
    emulator.config(boot_ms=700)
    with daemon.peer() as owner, daemon.peer() as watcher:
        exec_id = owner.start("/bin/sh", "-c", TWO_PARTS)
        watcher.attach(exec_id)
        owner.close()
        assert watcher.output(exec_id, 6) == b"first\n"
        watcher.sh("touch go")
        ended = watcher.finish(exec_id)
        assert (ended.returncode, ended.stdout, ended.stderr, ended.dropped_bytes) == (3, b"second\n", b"other\n", 0)
        assert ran(emulator) == 1


# -- where the shim cannot run


def test_without_the_shim_one_at_a_time_gets_what_was_not_acknowledged(daemon: Daemon, emulator: Emulator) -> None:
    without_shim(emulator)
    with daemon.peer() as first, daemon.peer() as second:
        exec_id = first.start("/bin/sh", "-c", TWO_PARTS)
        assert first.output(exec_id, 6) == b"first\n"
        with pytest.raises(RpcFailure) as refused:
            second.attach(exec_id)
        assert refused.value.name == "exec_id_in_use"
        first.close()
        wait_until(lambda: attached(second, exec_id), "the first client's end to be noticed")
        second.sh("touch go")
        ended = second.finish(exec_id)
        assert (ended.returncode, ended.stdout, ended.stderr, ended.dropped_bytes) == (3, b"first\nsecond\n", b"other\n", 0)


def attached(peer: Peer, exec_id: str) -> bool:
    try:
        peer.attach(exec_id)
    except RpcFailure:
        return False
    return True


# -- when a command cannot be ended


# What is said of processes that cannot be ended, by the shim and by the attached form's own way.
SURVIVORS = {
    "shim": '{"stdout": "deepinfra-shim/1 kill build=1 arch=x86_64 uid=0 boot=b\\nkilled confirmed=no was=running left=1 errno=-\\n"}\n'
            '{"returncode": 0}\n',
    "attached": '{"returncode": 1}\n',
}


@pytest.mark.parametrize("form", ["shim", "attached"])
@pytest.mark.parametrize("fallback", ["stop", "none"])
def test_only_what_cannot_be_killed_costs_the_sandbox(make_daemon: Callable[..., Daemon], emulator: Emulator, fallback: str, form: str) -> None:
    if form == "attached":
        without_shim(emulator)
    daemon = make_daemon(interrupt_fallback=fallback).start()
    with daemon.peer() as peer:
        exec_id = peer.start("/bin/sh", "-c", "echo up; sleep 600")
        peer.output(exec_id, 3)
        emulator.fault_exec({"status": 200, "body": SURVIVORS[form]})
        answer = peer.call("exec.cancel", {"exec_id": exec_id})
        ended = peer.finish(exec_id)
        assert (ended.reason, ended.returncode) == ("cancelled", 130)
        assert answer["confirmed"] is (fallback == "stop")
        if fallback == "stop":
            assert "the sandbox was stopped" in ended.message and "the sandbox was stopped" in answer["message"]
            assert emulator.sandboxes()[0]["state"] == "stopped"
        else:
            assert "may still be running" in ended.message
            assert emulator.sandboxes()[0]["state"] == "running"


@pytest.mark.parametrize("reads", [True, False])
def test_a_cancel_waits_for_a_slow_reader_a_moment_and_says_what_it_left(daemon: Daemon, emulator: Emulator, reads: bool) -> None:
    size = 8_000_000
    with daemon.peer() as slow, daemon.peer() as other:
        other.sh("true")
        exec_id = slow.start("/bin/sh", "-c", f"head -c {size} /dev/zero; touch done; sleep 600", window=65536)
        appears(workspace(emulator) / "done")
        assert other.call("exec.cancel", {"exec_id": exec_id})["confirmed"] is True
        if not reads:
            wait_until(lambda: other.call("sandbox.get", {"key": DEFAULT_KEY})["sandbox"]["running"] == [], "nobody to wait for it any more")
        first = slow.notification("exec.output", exec_id=exec_id)
        slow.send("exec.ack", {"exec_id": exec_id, "offset": len(output_bytes(first))}, notification=True)
        ended = slow.finish(exec_id)
        assert (ended.reason, ended.dropped_bytes) == ("cancelled", 0)
        got = len(output_bytes(first)) + len(ended.stdout)
        assert got == ended.output_bytes
        assert (got == size and ended.message is None) if reads else (got < size and "may be missing" in ended.message)


def test_a_cancel_that_comes_before_the_sandbox_has_answered(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.sh("true")
        emulator.fault_exec({"latency_ms": 3000})
        emulator.reset_stats()
        exec_id = peer.start("/bin/sh", "-c", "echo x >>ran; sleep 600")
        wait_until(lambda: emulator.count(EXEC) == 1, "the command to be sent")
        assert peer.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
        ended = peer.finish(exec_id)
        assert (ended.reason, ended.returncode, ended.started) == ("cancelled", 130, "no")
        emulator.clear_faults()
        wait_until(lambda: not processes(emulator), "nothing to run")
        assert not (workspace(emulator) / "ran").exists()


def test_the_directory_asked_for_is_named(peer: Peer) -> None:
    ended = peer.sh("pwd", cwd="/workspace/gone")
    assert ended.stdout == b"/workspace\n" and "/workspace/gone" in ended.message


# -- what it costs


@pytest.mark.parametrize("ensured", [False, True])
def test_the_first_command_of_a_new_sandbox_takes_three_calls(peer: Peer, emulator: Emulator, ensured: bool) -> None:
    """One puts the shim there, one makes it work, one is the command; whether the sandbox was asked for before or not."""
    if ensured:
        peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
    assert peer.sh("true").returncode == 0
    assert (emulator.count(EXEC), emulator.count("PUT /v1/sandboxes/{id}/fs/content")) == (2, 1)
    emulator.reset_stats()
    assert peer.sh("true").returncode == 0
    assert emulator.count() == 1
