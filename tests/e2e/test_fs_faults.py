"""Transfers when things go wrong: lost answers, cut connections, killed daemons, files that change, full disks."""

from __future__ import annotations

import os
import pathlib
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import CREATE, EXEC, START, living, workspace
from support.trees import describe, make_tree, without_marker

PUT = ("PUT", "/v1/sandboxes/{id}/fs/content")
GET = ("GET", "/v1/sandboxes/{id}/fs/content")


def push(peer: Peer, host: pathlib.Path, remote: str, **more: Any) -> dict[str, Any]:
    return peer.call("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(host), "remote": remote}], **more})


def fault(emulator: Emulator, what: tuple[str, str], action: dict[str, Any], **more: Any) -> None:
    emulator.fault(action, method=what[0], route=what[1], **more)


def noise(path: pathlib.Path, size: int) -> pathlib.Path:
    path.write_bytes(os.urandom(size))
    return path


def left_in_sandbox(emulator: Emulator) -> list[str]:
    """What transfers have left there, but for the last answer, which is kept for whoever might ask again."""
    directory = workspace(emulator) / ".deepinfra-sandboxd" / "sync"
    return [name for name in os.listdir(directory) if not name.endswith(".done")] if directory.exists() else []


@pytest.mark.parametrize("action", [{"drop_before": True}, {"act_then_drop": "done"}, {"status": 503}, {"status": 429, "headers": {"Retry-After": "0"}},
                                    {"status": 502, "body": "<html>"}], ids=lambda action: next(iter(action)) + str(action.get("status", "")))
def test_a_part_whose_answer_is_lost_is_sent_again(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, action: dict[str, Any]) -> None:
    peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
    fault(emulator, PUT, action, times=2)
    source = noise(tmp_path / "f", 3_000_000)
    assert push(peer, source, "f")["sent"] == 1
    assert (workspace(emulator) / "f").read_bytes() == source.read_bytes()
    assert left_in_sandbox(emulator) == []


@pytest.mark.usefixtures("on_disconnect")
@pytest.mark.parametrize("action", [{"act_then_drop": "started"}, {"act_then_drop": "done"}, {"drop_before": True}, {"cut_after_bytes": 5}, {"omit_terminal": True},
                                    {"act_then_status": 504}], ids=lambda action: "-".join(map(str, next(iter(action.items())))))
def test_unpacking_whose_answer_is_lost_is_done_once(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, action: dict[str, Any]) -> None:
    peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
    make_tree(tmp_path / "tree", 1)
    emulator.fault_exec(action, times=2)
    result = push(peer, tmp_path / "tree", "t")
    assert result["skipped"] == []
    assert without_marker(describe(workspace(emulator) / "t")) == describe(tmp_path / "tree")
    assert push(peer, tmp_path / "tree", "t")["sent"] == 0
    assert left_in_sandbox(emulator) == []


@pytest.mark.parametrize("action", [{"drop_before": True}, {"cut_after_bytes": 100_000}, {"cut_after_bytes": 100_000, "how": "rst"}, {"status": 500}])
def test_fetching_goes_on_after_a_dropped_connection(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, action: dict[str, Any]) -> None:
    peer.sh("head -c 40000000 /dev/urandom > /workspace/f")
    fault(emulator, GET, action, times=3)
    peer.call("fs.get", {"key": DEFAULT_KEY, "remote": "f", "host": str(tmp_path / "f")})
    assert (tmp_path / "f").read_bytes() == (workspace(emulator) / "f").read_bytes()


def test_an_outage_longer_than_a_moment_is_waited_out(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    peer.sh("echo x > f")
    fault(emulator, GET, {"drop_before": True}, times=9)  # about 20 s, as each try comes later than the one before
    assert peer.call("fs.get", {"key": DEFAULT_KEY, "remote": "f", "host": str(tmp_path / "f")})["bytes"] == 2
    assert emulator.faults()[0]["used"] == 9


def test_a_sandbox_that_was_stopped_behind_our_back_is_started_again(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    source = noise(tmp_path / "f", 1000)
    sandbox = push(peer, source, "f")["sandbox_id"]
    for step in (lambda: push(peer, noise(source, 1001), "f"),
                 lambda: peer.call("fs.get", {"key": DEFAULT_KEY, "remote": "f", "host": str(tmp_path / "g")}),
                 lambda: peer.call("fs.delete", {"key": DEFAULT_KEY, "remotes": ["f"]})):
        emulator.stop_sandbox(sandbox)
        step()
    assert (tmp_path / "g").read_bytes() == source.read_bytes()
    assert not (workspace(emulator) / "f").exists()


@pytest.mark.parametrize("state", ["running", "stopped"])
@pytest.mark.parametrize("method", ["get", "pull", "delete"])
def test_none_is_made_for_what_was_deleted_behind_our_back(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, method: str, state: str) -> None:
    sandbox = push(peer, noise(tmp_path / "f", 10), "f")["sandbox_id"]
    if state == "stopped":
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})
    emulator.delete_sandbox(sandbox)
    if method == "delete":
        assert peer.call("fs.delete", {"key": DEFAULT_KEY, "remotes": ["f"]}) == {"deleted": 0, "missing": 1, "failed": [], "failed_more": 0}
    else:
        with pytest.raises(RpcFailure) as refused:
            peer.call(f"fs.{method}", {"key": DEFAULT_KEY, "remote": "f", "host": str(tmp_path / "out")})
        assert refused.value.name == "sandbox_gone"
    assert emulator.count(CREATE) == 1
    assert living(emulator) == []
    assert push(peer, tmp_path / "f", "f")["sent"] == 1


def test_who_needs_a_sandbox_gets_one_although_a_fetch_found_it_gone(daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    with daemon.peer() as fetching, daemon.peer() as peer:
        emulator.delete_sandbox(push(peer, noise(tmp_path / "f", 10), "f")["sandbox_id"])
        emulator.fault({"latency_ms": 500}, method="GET", route="/v1/sandboxes/{id}")
        asked = fetching.send("fs.get", {"key": DEFAULT_KEY, "remote": "f", "host": str(tmp_path / "out")})
        wait_until(lambda: emulator.faults()[0]["used"], "its sandbox is looked up")
        assert push(peer, noise(tmp_path / "f", 11), "f")["sent"] == 1
        with pytest.raises(RpcFailure) as refused:
            fetching.result(asked)
        assert refused.value.name == "sandbox_gone"


@pytest.mark.parametrize("verb", ["stop", "terminate"])
@pytest.mark.parametrize("method", ["push", "get"])
def test_what_was_ended_by_force_is_not_brought_back(daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path, method: str, verb: str) -> None:
    source = noise(tmp_path / "f", 1_000_000)
    with daemon.peer() as peer, daemon.peer() as other:
        push(peer, source, "g")
        before = emulator.count(CREATE) + emulator.count(START)
        fault(emulator, PUT if method == "push" else GET, {"stall_before": True})
        if method == "push":
            asked = peer.send("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(source), "remote": "f"}]})
        else:
            asked = peer.send("fs.get", {"key": DEFAULT_KEY, "remote": "g", "host": str(tmp_path / "g")})
        wait_until(lambda: emulator.faults()[0]["used"], "it is under way")
        other.call(f"sandbox.{verb}", {"key": DEFAULT_KEY, "force": True})
        emulator.clear_faults()
        emulator.drop_connections()
        with pytest.raises(RpcFailure) as refused:
            peer.result(asked)
        assert refused.value.name == "cancelled"
        assert emulator.count(CREATE) + emulator.count(START) == before
        assert [each for each in living(emulator) if each["state"] != "stopped"] == []


def test_what_cannot_be_reached_is_an_error_that_names_it(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
    fault(emulator, PUT, {"status": 401}, times=0)
    with pytest.raises(RpcFailure) as refused:
        push(peer, noise(tmp_path / "f", 10), "f")
    assert refused.value.name == "unauthorized"
    emulator.clear_faults()
    assert push(peer, tmp_path / "f", "f")["sent"] == 1


@pytest.mark.usefixtures("on_disconnect")
@pytest.mark.parametrize("when", ["first part", "second part", "unpacking", "unpacked"])
def test_a_daemon_killed_while_it_pushes(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path, when: str) -> None:
    """Whatever it was about: every file there is whole, the same push ends well, and nothing is left over."""
    source = tmp_path / "tree"
    make_tree(source, 3)
    noise(source / "large", 20_000_000)
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        push(peer, source, "t")
        before = describe(workspace(emulator) / "t")
        noise(source / "large", 20_000_000)
        noise(source / "more", 5000)
        if when.endswith("part"):
            fault(emulator, PUT, {"stall_before": True}, skip=0 if when.startswith("first") else 1)
        else:
            emulator.fault_exec({"stall_before": True} if when == "unpacking" else {"act_then_drop": "done", "latency_after_ms": 60_000})
        peer.send("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(source), "remote": "t"}]})
        if when == "unpacked":
            wait_until(lambda: (workspace(emulator) / "t" / "more").exists(), "the files are in place")
        else:
            wait_until(lambda: emulator.faults()[0]["used"], "the request is made")
    daemon.kill()
    emulator.clear_faults()
    now = describe(workspace(emulator) / "t")
    after = describe(source)
    for path, what in now.items():
        assert what in (before.get(path), after.get(path)), path
    daemon.start()
    with daemon.peer() as peer:
        assert push(peer, source, "t")["skipped"] == []
        assert without_marker(describe(workspace(emulator) / "t")) == after
        assert push(peer, source, "t")["sent"] == 0
    assert left_in_sandbox(emulator) == []
    assert [name for name in os.listdir(daemon.state_dir) if "spool" in name] == []


@pytest.mark.parametrize("method", ["get", "pull"])
def test_a_daemon_killed_while_it_fetches(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path, method: str) -> None:
    room = tmp_path / "room"
    room.mkdir()
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        peer.sh("mkdir /workspace/d; cd /workspace/d; head -c 30000000 /dev/urandom > a; echo b > b")
        fault(emulator, GET, {"stall_before": True}, skip=1)
        peer.send("fs." + method, {"key": DEFAULT_KEY, "remote": "d", "host": str(room / "d")})
        wait_until(lambda: emulator.faults()[0]["used"], "the second part is asked for")
    assert any(name.startswith(".deepinfra-sandboxd-") for name in os.listdir(room))
    daemon.kill()
    emulator.clear_faults()
    assert not (room / "d").exists()
    daemon.start()
    with daemon.peer() as peer:
        assert os.listdir(room) == []
        peer.call("fs." + method, {"key": DEFAULT_KEY, "remote": "d", "host": str(room / "d")})
        push(peer, noise(tmp_path / "f", 10), "f")
    assert os.listdir(room) == ["d"]
    wait_until(lambda: left_in_sandbox(emulator) == [], "what was packed is gone")


def test_a_client_that_goes_away_does_not_stop_it(daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    source = noise(tmp_path / "f", 1_000_000)
    with daemon.peer() as peer:
        peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
        emulator.fault_exec({"latency_ms": 200})
        peer.send("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(source), "remote": "f"}]})
        wait_until(lambda: emulator.count(EXEC), "it unpacks")
    with daemon.peer() as peer:
        result = push(peer, source, "f")
        assert (result["sent"], result["unchanged"]) == (0, 1)


def test_a_file_that_changes_while_it_is_read_is_sent_again_or_named(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    source = noise(tmp_path / "f", 60_000_000)
    stop = threading.Event()

    def scribble() -> None:
        with open(source, "r+b") as file:
            while not stop.is_set():
                file.seek(0)
                file.write(os.urandom(8))
                file.flush()

    writer = threading.Thread(target=scribble)
    writer.start()
    try:
        result = push(peer, source, "d/f")
    finally:
        stop.set()
        writer.join()
    assert [each["reason"] for each in result["skipped"]] == ["changing"]
    assert not (workspace(emulator) / "d" / "f").exists()
    assert push(peer, source, "d/f")["sent"] == 1
    assert (workspace(emulator) / "d" / "f").read_bytes() == source.read_bytes()


def test_a_full_sandbox_says_so_and_keeps_what_it_had(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
    source = noise(tmp_path / "f", 1000)
    push(peer, source, "f")
    old = source.read_bytes()
    emulator.fault_exec({"act_then_status": {"status": 200, "body": '{"stdout": "{\\"error\\": \\"no_space: No space left on device\\"}\\n"}\n{"returncode": 0}\n'}})
    with pytest.raises(RpcFailure) as full:
        push(peer, noise(source, 1001), "f")
    assert full.value.name == "no_space" and "sandbox" in full.value.message
    assert (workspace(emulator) / "f").read_bytes() in (old, source.read_bytes())


def test_an_unreadable_manifest_only_costs_time(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path) -> None:
    source = noise(tmp_path / "f", 1000)
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        push(peer, source, "f")
        (manifest,) = (daemon.state_dir / "manifests").iterdir()
        assert manifest.stat().st_mode & 0o777 == 0o600
        manifest.write_bytes(manifest.read_bytes()[:-20])
        assert push(peer, source, "f")["sent"] == 1
        assert push(peer, source, "f")["unchanged"] == 1


def test_pushes_of_one_key_do_not_mix(daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    source = noise(tmp_path / "f", 3_000_000)
    peers = [daemon.peer() for _ in range(5)]
    try:
        numbers = [peer.send("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(source), "remote": "f"}]}) for peer in peers]
        assert sorted(peer.result(number)["sent"] for peer, number in zip(peers, numbers, strict=True)) == [0, 0, 0, 0, 1]
    finally:
        for peer in peers:
            peer.close()
    assert emulator.count("POST /v1/sandboxes") == 1


def test_progress_is_told_to_who_asked(peer: Peer, tmp_path: pathlib.Path) -> None:
    source = noise(tmp_path / "f", 30_000_000)
    number = peer.send("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(source), "remote": "f"}], "transfer": "mine"})
    news = peer.notification("fs.progress", transfer="mine", phase="sending")
    assert 0 < news["done_bytes"] <= news["total_bytes"] == 30_000_000
    assert peer.result(number)["sent"] == 1


@pytest.mark.parametrize("method", ["push", "get"])
def test_a_daemon_that_is_told_to_stop_does_not_wait_for_a_transfer(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path,
                                                                   method: str) -> None:
    daemon = make_daemon().start()
    room = tmp_path / "room"
    room.mkdir()
    with daemon.peer() as peer:
        peer.sh("head -c 40000000 /dev/urandom > /workspace/f")
        if method == "push":
            fault(emulator, PUT, {"stall_before": True}, skip=1)
            params: dict[str, Any] = {"files": [{"host": str(noise(tmp_path / "g", 40_000_000)), "remote": "g"}]}
        else:
            fault(emulator, GET, {"stall_before": True}, skip=1)
            params = {"remote": "f", "host": str(room / "f")}
        peer.send("fs." + method, {"key": DEFAULT_KEY, **params})
        wait_until(lambda: emulator.faults()[0]["used"], "the second part is on its way")
        assert daemon.stop() == 0
    assert os.listdir(room) == []
    assert not (workspace(emulator) / "g").exists()


def open_in(daemon: Daemon, path: pathlib.Path) -> bool:
    """Descriptors may go away while one looks."""
    return any(os.path.realpath(each) == str(path) for each in pathlib.Path(f"/proc/{daemon.pid}/fd").iterdir())


def stop_at_once(daemon: Daemon) -> None:
    begun = time.monotonic()
    assert daemon.stop() == 0
    assert time.monotonic() - begun < 5


@pytest.fixture
def widest_hole() -> Iterator[pathlib.Path]:
    """A file of an exbibyte, none of it stored; few file systems know of such."""
    try:
        with tempfile.NamedTemporaryFile(dir="/dev/shm") as file:
            os.truncate(file.fileno(), 1 << 60)
            yield pathlib.Path(file.name)
    except OSError as problem:
        pytest.skip(f"/dev/shm takes no such file: {problem}")


def test_a_stop_does_not_wait_for_a_hole_that_is_sent(make_daemon: Callable[..., Daemon], emulator: Emulator, widest_hole: pathlib.Path) -> None:
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        peer.send("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(widest_hole), "remote": "g"}]})
        wait_until(lambda: open_in(daemon, widest_hole), "it is being read")
        stop_at_once(daemon)


def test_a_stop_does_not_wait_for_a_hole_that_comes(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path) -> None:
    daemon = make_daemon().start()
    room = tmp_path / "room"
    room.mkdir()
    with daemon.peer() as peer:
        peer.sh("truncate -s 4T f")
        peer.send("fs.pull", {"key": DEFAULT_KEY, "remote": "f", "host": str(room / "f")})
        wait_until(lambda: list(room.glob(".*/arrived")), "it is being written")
        stop_at_once(daemon)
    assert os.listdir(room) == []


def test_a_stop_does_not_wait_for_a_file_that_is_compared(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path) -> None:
    daemon = make_daemon().start()
    source = tmp_path / "f"
    source.touch()
    os.truncate(source, 30 << 30)
    with daemon.peer() as peer:
        assert push(peer, source, "f")["sent"] == 1
        # More holes than are told one by one, so that all of them are read.
        with open(source, "r+b", buffering=0) as file:
            for i in range(12_000):
                os.pwrite(file.fileno(), b"x", i << 20)
        peer.send("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(source), "remote": "f"}]})
        wait_until(lambda: open_in(daemon, source), "it is being read")
        stop_at_once(daemon)
