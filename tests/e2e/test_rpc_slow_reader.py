"""Clients that do not read: they cost a window, never memory, and nobody else notices.

"Does not read" is real here: bytes stay in the socket, because a Peer reads only when it is asked to.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import wait_until
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.schema import output_bytes

WINDOW = 1 << 20  # bytes, unless exec.start says otherwise
FLOOD = "yes 0123456789abcde"  # without end
RSS_BOUND_KIB = 24 * 1024  # what one client may add to the daemon, whatever it does; generous


@pytest.fixture
def other(daemon: Daemon) -> Iterator[Peer]:
    """Another client, which reads."""
    with daemon.peer() as peer:
        peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
        yield peer


def entry(peer: Peer, exec_id: str) -> dict[str, Any]:
    execs: list[dict[str, Any]] = peer.call("exec.list")["execs"]
    return next(each for each in execs if each["exec_id"] == exec_id)


def settled_output(peer: Peer, exec_id: str) -> int:
    """How many bytes of output the daemon has taken once that stands still, which it must."""
    seen = -1
    still_since = time.monotonic()

    def still() -> bool:
        nonlocal seen, still_since
        now = entry(peer, exec_id)["output_bytes"]
        if now != seen:
            seen, still_since = now, time.monotonic()
        return seen > 0 and time.monotonic() - still_since > 0.2

    wait_until(still, f"{exec_id}'s output stands still", 15)
    return seen


def read_to_the_window(peer: Peer, exec_id: str) -> int:
    """Takes what there is without acknowledging; returns how much output came, and that nothing follows."""
    got = 0
    peer.socket.settimeout(0.3)
    try:
        while True:
            message = peer.read()
            assert message["method"] in ("exec.output", "sandbox.progress"), message
            if message["method"] == "exec.output":
                assert message["params"]["exec_id"] == exec_id
                got += len(output_bytes(message["params"]))
    except TimeoutError:
        return got
    finally:
        peer.socket.settimeout(30)


@pytest.mark.parametrize("window", [4096, 65536, WINDOW, 4 * WINDOW])
def test_output_stops_at_the_window(daemon: Daemon, other: Peer, window: int) -> None:
    with daemon.peer() as slow:
        command = slow.start("sh", "-c", FLOOD, window=window)
        taken = settled_output(other, command)
        # A window on its way to the client, one waiting, what one read from the platform brings beyond that.
        assert taken <= 2 * window + 256 * 1024
        assert entry(other, command)["phase"] == "running"
        assert read_to_the_window(slow, command) == window
        assert entry(other, command)["output_bytes"] <= 2 * window + 256 * 1024


def test_the_command_itself_is_held_up(daemon: Daemon, other: Peer) -> None:
    """Its writes block, as on a full pipe, once the spool in the sandbox is full; it does not run on into somebody's memory."""
    size = 300_000_000  # the spool takes 256 MiB
    with daemon.peer() as slow:
        command = slow.start("sh", "-c", f"head -c {size} /dev/zero | tr '\\0' x; echo done >/workspace/done")
        settled_output(other, command)
        assert other.sh("cat /workspace/done").returncode == 1
        consumed = 0
        while (message := slow.read())["method"] != "exec.exit":
            if message["method"] == "exec.output":
                consumed += len(output_bytes(message["params"]))
                slow.send("exec.ack", {"exec_id": command, "offset": consumed}, notification=True)
        assert (message["params"]["returncode"], consumed) == (0, size)
        assert other.sh("cat /workspace/done").stdout == b"done\n"


def test_memory_stays_flat(daemon: Daemon, other: Peer) -> None:
    before = daemon.rss_kib()
    with daemon.peer() as slow:
        commands = [slow.start("sh", "-c", FLOOD) for _ in range(2)]
        for command in commands:
            settled_output(other, command)
        assert daemon.rss_kib() < before + RSS_BOUND_KIB


def test_nobody_else_is_delayed(daemon: Daemon, other: Peer) -> None:
    with daemon.peer() as slow:
        flood = slow.start("sh", "-c", FLOOD)
        settled_output(other, flood)
        worst = 0.0
        for _ in range(50):
            began = time.monotonic()
            assert other.call("daemon.ping") == {}
            worst = max(worst, time.monotonic() - began)
        assert worst < 1.0
        done = other.sh("head -c 3000000 /dev/zero | tr '\\0' x")  # in the same sandbox
        assert (done.returncode, len(done.stdout)) == (0, 3_000_000)
        assert entry(other, flood)["phase"] == "running"


def test_one_command_unread_and_another_finishing_on_the_same_connection(daemon: Daemon, other: Peer) -> None:
    with daemon.peer() as peer:
        flood = peer.start("sh", "-c", FLOOD)
        settled_output(other, flood)
        small = peer.start("sh", "-c", "echo small; echo two >&2; exit 5")
        done = peer.finish(small)  # acknowledges only the small one
        assert (done.stdout, done.stderr, done.returncode) == (b"small\n", b"two\n", 5)
        large = peer.sh("head -c 3000000 /dev/zero | tr '\\0' y")
        assert (large.returncode, len(large.stdout)) == (0, 3_000_000)
        assert peer.call("daemon.ping") == {}
        assert entry(other, flood)["phase"] == "running"


def test_an_acknowledgement_opens_the_window_again(daemon: Daemon, other: Peer) -> None:
    with daemon.peer() as peer:
        command = peer.start("sh", "-c", FLOOD, window=8192)
        consumed = read_to_the_window(peer, command)
        assert consumed == 8192
        for step in (1, 100, 4096, 8192):
            consumed_before = consumed
            # As a request, to see that it is answered too.
            acknowledged = peer.send("exec.ack", {"exec_id": command, "offset": consumed_before - 8192 + step})
            assert peer.result(acknowledged) == {}
            peer._unclaimed.clear()
            consumed += read_to_the_window_after(peer, command, step)
            peer.send("exec.ack", {"exec_id": command, "offset": consumed - 8192}, notification=True)
            assert consumed == consumed_before + step


def read_to_the_window_after(peer: Peer, command: str, expected: int) -> int:
    got = 0
    while got < expected:
        message = peer.read()
        assert message["method"] == "exec.output" and message["params"]["exec_id"] == command
        got += len(output_bytes(message["params"]))
    return got


def test_an_acknowledgement_that_goes_back_changes_nothing(daemon: Daemon, other: Peer) -> None:
    with daemon.peer() as peer:
        command = peer.start("sh", "-c", FLOOD, window=4096)
        assert read_to_the_window(peer, command) == 4096
        for offset in (4096, 4096, 0, 1000):
            peer.send("exec.ack", {"exec_id": command, "offset": offset}, notification=True)
        assert read_to_the_window(peer, command) == 4096  # once, not more


def test_nobody_can_acknowledge_what_was_not_sent(daemon: Daemon, other: Peer) -> None:
    with daemon.peer() as peer:
        command = peer.start("sh", "-c", FLOOD, window=4096)
        assert read_to_the_window(peer, command) == 4096
        for offset in (4097, 2**63 - 1):
            message = {"jsonrpc": "2.0", "id": offset, "method": "exec.ack", "params": {"exec_id": command, "offset": offset}}
            peer.send_wrong(message)
            error = peer.answer(offset)["error"]
            assert error["data"]["name"] == "invalid_params" and "'offset'" in error["message"]
        assert read_to_the_window(peer, command) == 0  # it opened nothing
        with pytest.raises(RpcFailure) as refused:
            peer.call("exec.ack", {"exec_id": "no-such", "offset": 0})
        assert refused.value.name == "exec_not_found"


def test_a_cancelled_command_that_nobody_reads_still_ends(daemon: Daemon, other: Peer) -> None:
    with daemon.peer() as slow:
        command = slow.start("sh", "-c", FLOOD)
        settled_output(other, command)
        assert other.call("exec.cancel", {"exec_id": command})["confirmed"] is True
        assert entry(other, command)["reason"] == "cancelled"
        done = slow.finish(command)  # what had come by then can still be read, then the exit
        assert (done.reason, done.returncode) == ("cancelled", 130)


def test_a_time_limit_holds_for_a_command_that_nobody_reads(daemon: Daemon, other: Peer) -> None:
    with daemon.peer() as slow:
        command = slow.start("sh", "-c", FLOOD, timeout_s=0.5)
        wait_until(lambda: entry(other, command)["reason"] == "timed_out", "its time is up", 15)
        done = slow.finish(command)
        assert (done.reason, done.returncode) == ("timed_out", 124)
        assert done.stdout.startswith(b"0123456789abcde\n" * 1000)


@pytest.mark.parametrize("how", ["close", "half-closed, then closed"])
def test_a_client_that_goes_away_behind_a_closed_window_lets_its_command_go_on(daemon: Daemon, other: Peer, how: str) -> None:
    """Nobody will ever acknowledge: the output is dropped, and counted, or the command would stand still for ever."""
    size = 40_000_000
    gone = daemon.peer()
    command = gone.start("sh", "-c", f"head -c {size} /dev/zero | tr '\\0' x; echo done >/workspace/done")
    if how == "half-closed, then closed":
        gone.socket.shutdown(socket.SHUT_WR)
    # All that may come is read, so that the daemon has nothing to write that would tell it.
    assert read_to_the_window(gone, command) == WINDOW
    gone.close()
    wait_until(lambda: entry(other, command)["phase"] == "done", "the command ends", 20)
    assert other.sh("cat /workspace/done").stdout == b"done\n"
    assert entry(other, command)["output_bytes"] == size


@pytest.mark.parametrize("method", ["rpc.discover", "daemon.status", "exec.list", "no.such.method"])
def test_who_never_reads_answers_is_not_read_any_more(daemon: Daemon, other: Peer, method: str) -> None:
    for _ in range(20):
        other.sh("true")
    before = daemon.rss_kib()
    with daemon.peer(validate=False) as mute:
        request = json.dumps({"jsonrpc": "2.0", "id": "x" * 2000, "method": method, "params": {}}).encode() + b"\n"
        block = request * 100
        mute.socket.settimeout(0.5)
        sent = 0
        try:
            while sent < 64 << 20:
                sent += mute.socket.send(block)
        except TimeoutError:
            pass
        assert sent < 8 << 20, "the daemon goes on reading from one who does not read"
        assert daemon.rss_kib() < before + RSS_BOUND_KIB
        assert other.call("daemon.ping") == {}
        assert other.sh("echo fine").stdout == b"fine\n"
        # It is held up, not punished: once it reads, all comes.
        mute.socket.settimeout(30)
        first = mute.read()
        assert first["id"] == "x" * 2000
        assert other.call("daemon.ping") == {}


def test_twenty_who_never_read(daemon: Daemon, other: Peer) -> None:
    before = daemon.rss_kib()
    mutes = [daemon.peer(validate=False) for _ in range(20)]
    request = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "daemon.status", "params": {}}).encode() + b"\n"
    for mute in mutes:
        mute.socket.settimeout(0.05)
        try:
            for _ in range(100):
                mute.socket.send(request * 200)
        except TimeoutError:
            pass
    assert other.call("daemon.ping") == {}
    assert other.sh("echo fine").stdout == b"fine\n"
    assert daemon.rss_kib() < before + 20 * 4 * 1024
    for mute in mutes:
        mute.close()
    assert other.call("daemon.ping") == {}
