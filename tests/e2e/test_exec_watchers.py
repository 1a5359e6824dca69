"""Several clients read one command, each at its own pace: the sandbox keeps what the slowest of them has not got."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterator

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Exit, Peer
from support.scenes import EXEC, only_id, without_shim, workspace
from support.schema import output_bytes

MEGABYTES = 32
# Bytes that do not repeat, so that a piece that is lost, doubled or moved shows.
SCRIPT = f"read x; python3 -c 'import random, sys; r = random.Random(5); [sys.stdout.buffer.write(r.randbytes(65536)) for _ in range({MEGABYTES * 16})]'; exit 3"


def printed() -> str:
    noise = random.Random(5)
    return hashlib.sha256(b"".join(noise.randbytes(65536) for _ in range(MEGABYTES * 16))).hexdigest()


def has_all(ended: Exit) -> bool:
    return (ended.reason, ended.returncode, ended.dropped_bytes, hashlib.sha256(ended.stdout).hexdigest()) == ("exited", 3, 0, printed())


def go(peer: Peer, exec_id: str) -> None:
    peer.call("exec.stdin", {"exec_id": exec_id, "stream": "stdin", "offset": 0, "data_b64": "Cg==", "eof": True})


def read(peer: Peer, exec_id: str, upto: int) -> None:
    """Takes and acknowledges output up to that position at least."""
    at = 0
    while at < upto:
        piece = peer.notification("exec.output", exec_id=exec_id)
        at = piece["pos"] + len(output_bytes(piece))
        peer.send("exec.ack", {"exec_id": exec_id, "offset": at}, notification=True)


@pytest.fixture
def small_spool(emulator: Emulator) -> Iterator[None]:
    """A command's output is kept in the sandbox up to 8 MiB."""
    emulator.config(scratch_mb=72)  # of which the spool leaves 64 alone
    yield


def test_a_watcher_far_behind_the_first_loses_nothing(daemon: Daemon) -> None:
    """Neither when the first one acknowledges, nor when it says that it has got the end."""
    with daemon.peer(limit_s=120) as first, daemon.peer(limit_s=120) as slow:
        exec_id = first.start(script=SCRIPT, stdin_open=True)
        slow.attach(exec_id, window=65536)
        go(first, exec_id)
        assert has_all(first.finish(exec_id))
        assert has_all(slow.finish(exec_id))
        listed = first.call("exec.list")["execs"][-1]
    assert listed["exec_id"] == exec_id and listed["phase"] == "done"


@pytest.mark.usefixtures("small_spool")
@pytest.mark.parametrize("first_is_slow", [False, True])
def test_a_full_spool_waits_for_the_slowest(daemon: Daemon, first_is_slow: bool) -> None:
    with daemon.peer(limit_s=120) as first, daemon.peer(limit_s=120) as second:
        fast, slow = (second, first) if first_is_slow else (first, second)
        first.sh("true")
        exec_id = first.start(script=SCRIPT, stdin_open=True, window=65536)
        second.attach(exec_id, window=65536)
        go(first, exec_id)
        endings = []
        reader = threading.Thread(target=lambda: endings.append(fast.finish(exec_id)))
        reader.start()
        with daemon.peer() as other:
            # It is held up, and neither a cancel nor another command is.
            wait_until(lambda: other.call("exec.list")["execs"][-1]["output_bytes"] >= 4_000_000, "the fast one gets ahead", 60)
            assert other.sh("echo other").stdout == b"other\n"
        assert has_all(slow.finish(exec_id))
        reader.join()
    assert has_all(endings[0])


@pytest.mark.usefixtures("small_spool")
def test_a_watcher_that_leaves_holds_up_nothing_any_more(daemon: Daemon) -> None:
    with daemon.peer(limit_s=120) as first:
        first.sh("true")
        with daemon.peer(limit_s=120) as watcher:
            exec_id = first.start(script=SCRIPT, stdin_open=True)
            watcher.attach(exec_id, window=65536)
            go(first, exec_id)
            read(first, exec_id, 4_000_000)
        assert first.finish(exec_id).dropped_bytes == 0


@pytest.mark.usefixtures("small_spool")
def test_who_begins_further_on_takes_nothing_from_who_is_behind(make_daemon: Callable[..., Daemon], emulator: Emulator) -> None:
    """Each connection to the command says now and then that somebody is there, and what is safe with everybody, not with its own client."""
    emulator.config(idle_check=False)
    daemon = make_daemon(server_timeout=3).start()
    with daemon.peer(limit_s=120) as slow, daemon.peer(limit_s=120) as fast, daemon.peer(limit_s=120) as late:
        slow.sh("true")
        exec_id = slow.start(script=SCRIPT, stdin_open=True, window=65536)
        fast.attach(exec_id)
        go(slow, exec_id)
        read(fast, exec_id, 3_000_000)
        late.attach(exec_id, 3_000_000, window=65536)
        at = emulator.count(EXEC)
        wait_until(lambda: emulator.count(EXEC) >= at + 6, "it is said that somebody is there", 60)
        fast.close()
        late.close()
        assert has_all(slow.finish(exec_id))


@pytest.mark.usefixtures("small_spool")
def test_a_watcher_that_was_left_standing_is_not_waited_for_longer_than_the_grace(make_daemon: Callable[..., Daemon], emulator: Emulator) -> None:
    """Neither the command nor, after its end, the stop of its idle sandbox waits for it. What it lacks then is counted."""
    emulator.config(idle_check=False)
    daemon = make_daemon(server_timeout=3, spool_grace=2, idle_stop=1).start()
    with daemon.peer(limit_s=120) as first, daemon.peer(limit_s=120) as standing:
        first.sh("true")
        exec_id = first.start(script=SCRIPT, stdin_open=True)
        standing.attach(exec_id, window=65536)
        go(first, exec_id)
        assert has_all(first.finish(exec_id))
        wait_until(lambda: first.status()["sandboxes"][0]["state"] == "stopped", "the sandbox is not kept for it", 60)
        behind = standing.finish(exec_id)
    assert (behind.reason, behind.returncode, behind.params["output_bytes"]) == ("exited", 3, MEGABYTES << 20)
    assert 0 < behind.dropped_bytes == (MEGABYTES << 20) - len(behind.stdout)
    assert workspace(emulator).exists()


@pytest.mark.usefixtures("small_spool")
def test_so_is_one_that_came_while_the_owner_was_away(make_daemon: Callable[..., Daemon], emulator: Emulator) -> None:
    """It has taken the owner's place, and does not hold it up for ever when that comes back."""
    emulator.config(idle_check=False)
    daemon = make_daemon(server_timeout=3, spool_grace=2).start()
    request = {"exec_id": "long", "key": DEFAULT_KEY, "script": SCRIPT, "stdin_open": True}
    with daemon.peer(limit_s=60) as watcher:
        with daemon.peer() as owner:
            owner.call("exec.start", request)
            go(owner, "long")
        wait_until(lambda: len(watcher.status()["sandboxes"]) == 1, "it is there")
        watcher.attach("long", window=65536)
        with daemon.peer(limit_s=60) as owner:
            owner.call("exec.start", {**request, "resume": True})
            assert has_all(owner.finish("long"))


@pytest.mark.usefixtures("small_spool")
def test_an_owner_that_is_away_for_a_moment_loses_nothing_to_a_watcher(daemon: Daemon) -> None:
    request = {"exec_id": "long", "key": DEFAULT_KEY, "script": SCRIPT, "stdin_open": True, "window": 65536}
    with daemon.peer(limit_s=60) as watcher:
        with daemon.peer() as owner:
            owner.call("exec.start", request)
            watcher.attach("long")
            go(owner, "long")
            owner.output("long", 1)  # and does not say that it has it
        read(watcher, "long", 4_000_000)
        endings: list[Exit] = []
        reader = threading.Thread(target=lambda: endings.append(watcher.finish("long")))
        reader.start()
        with daemon.peer(limit_s=60) as owner:
            owner.call("exec.start", {**request, "resume": True})
            assert has_all(owner.finish("long"))
        reader.join()
        assert endings[0].dropped_bytes == 0


@pytest.mark.usefixtures("small_spool")
def test_after_a_restart_who_comes_back_second_loses_nothing(daemon: Daemon) -> None:
    request = {"exec_id": "long", "key": DEFAULT_KEY, "script": SCRIPT, "stdin_open": True, "window": 65536}
    with daemon.peer() as owner, daemon.peer() as watcher:
        owner.call("exec.start", request)
        watcher.attach("long", window=65536)
        go(owner, "long")
        read(owner, "long", 2_000_000)
        daemon.kill()
    daemon.start()
    with daemon.peer(limit_s=60) as owner, daemon.peer(limit_s=60) as watcher:
        owner.call("exec.start", {**request, "resume": True})
        read(owner, "long", 8_000_000)
        watcher.attach("long")
        endings: list[Exit] = []
        reader = threading.Thread(target=lambda: endings.append(owner.finish("long")))
        reader.start()
        assert has_all(watcher.finish("long"))
        reader.join()
        assert (endings[0].returncode, endings[0].dropped_bytes) == (3, 0)


@pytest.mark.parametrize("how", ["cancelled", "timed_out"])
def test_each_gets_the_last_output_of_a_command_that_is_ended(daemon: Daemon, how: str) -> None:
    """And one exec.exit: the connections here refuse a second one."""
    with daemon.peer(limit_s=30) as owner, daemon.peer(limit_s=30) as watcher, daemon.peer() as other:
        owner.sh("true")
        for _ in range(8):
            exec_id = owner.start(script="trap 'seq 1 60000; echo bye; exit' INT TERM; echo up; while :; do sleep 0.01; done",
                                  **({"timeout_s": 0.5} if how == "timed_out" else {}))
            watcher.attach(exec_id)
            owner.output(exec_id, 3)
            watcher.output(exec_id, 3)
            if how == "cancelled":
                other.send("exec.cancel", {"exec_id": exec_id, "signal": "INT"})
            endings = [peer.finish(exec_id) for peer in (owner, watcher)]
            assert [(one.reason, one.dropped_bytes) for one in endings] == [(how, 0)] * 2, endings[0].params
            if how == "cancelled":
                assert all(one.stdout.endswith(b"bye\n") for one in endings)


def test_what_a_watcher_says_to_have_is_not_taken_from_the_owner(daemon: Daemon) -> None:
    """Whose connection was lost with the end on its way."""
    request = {"exec_id": "watched", "key": DEFAULT_KEY, "argv": ["/bin/sh", "-c", "echo kept; exit 5"]}
    with daemon.peer() as watcher:
        with daemon.peer() as owner:
            owner.call("exec.start", request)
            wait_until(lambda: watcher.call("exec.list")["execs"][0]["phase"] == "done", "it ends")
        watcher.attach("watched")
        assert watcher.finish("watched").stdout == b"kept\n"
        watcher.sh("true")  # with which the sandbox would be told to forget it
    with daemon.peer() as owner:
        owner.call("exec.start", {**request, "resume": True})
        ended = owner.finish("watched")
        assert (ended.returncode, ended.stdout, ended.dropped_bytes) == (5, b"kept\n", 0)


def test_who_was_told_the_end_stands_in_nobodys_way(daemon: Daemon, emulator: Emulator) -> None:
    """Where there is room for one client, the next one gets the end too, while the first is still connected."""
    without_shim(emulator)
    with daemon.peer() as first, daemon.peer() as second:
        first.sh("true")
        exec_id = first.start("/bin/sh", "-c", "echo hi; exit 3")
        assert first.finish(exec_id).returncode == 3
        for peer in (first, second):
            peer.attach(exec_id)
            assert peer.finish(exec_id).returncode == 3


def test_nobody_goes_on_to_acknowledge_what_is_gone(make_daemon: Callable[..., Daemon], emulator: Emulator) -> None:
    """A watcher that read nothing was spoken for when the sandbox was stopped elsewhere; all have left since."""
    emulator.config(idle_check=False)
    daemon = make_daemon(server_timeout=3, idle_stop=6).start()
    with daemon.peer(limit_s=60) as owner:
        with daemon.peer() as watcher:
            owner.sh("true")
            stopped = only_id(emulator)
            exec_id = owner.start("/bin/sh", "-c", "head -c 2000000 /dev/zero; sleep 600")
            watcher.attach(exec_id, window=4096)
            read(owner, exec_id, 2_000_000)
            at = emulator.count(EXEC)
            wait_until(lambda: emulator.count(EXEC) >= at + 4, "it is said that somebody is there", 30)
            emulator.stop_sandbox(stopped)
            assert owner.finish(exec_id).reason == "lost"
        owner.sh("true", key={"profile": "p", "task": "other"})
        emulator.reset_stats()
        wait_until(lambda: emulator.count("POST /v1/sandboxes/{id}/stop") == 1, "some seconds go by", 60)
        refused = [one for one in emulator.requests() if one["sandbox_id"] == stopped and one["route"].endswith("/exec")]
        assert len(refused) <= 1
