"""Fetching when things go wrong: slow parts, full disks, killed daemons and clients, containers that forbid much."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.cli import running
from support.confined import WITHOUT_UNSHARE, needs_a_filter
from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.inside import hook
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import workspace
from support.trees import describe, make_tree

GET = {"method": "GET", "route": "/v1/sandboxes/{id}/fs/content"}
LIMIT_S = 30.0  # for what takes a moment on a machine that is idle
OTHER = {"profile": "default", "task": "other"}


def get(peer: Peer, remote: str, host: pathlib.Path, method: str = "get", **more: Any) -> dict[str, Any]:
    return peer.call("fs." + method, {"key": DEFAULT_KEY, "remote": remote, "host": str(host), **more})


def nothing_left(emulator: Emulator, daemon: Daemon, room: pathlib.Path) -> None:
    """On neither side, but for answers that are kept for whoever might ask again."""
    assert [name for name in os.listdir(room) if name.startswith(".")] == []
    assert list((daemon.state_dir / "stages").iterdir()) == []
    assert [name for name in os.listdir(daemon.state_dir) if "spool" in name] == []
    sync = workspace(emulator) / ".deepinfra-sandboxd" / "sync"
    wait_until(lambda: [name for name in os.listdir(sync) if not name.endswith(".done")] == [], "what was packed is gone", LIMIT_S)


@pytest.fixture
def peers(daemon: Daemon) -> Iterator[list[Peer]]:
    made = [daemon.peer() for _ in range(7)]
    yield made
    for peer in made:
        peer.close()


def test_slow_fetches_of_one_key_stop_nobody_else(peers: list[Peer], emulator: Emulator, tmp_path: pathlib.Path) -> None:
    *slow, other = peers
    slow[0].sh("head -c 1000 /dev/urandom > /workspace/f")
    source = tmp_path / "s"
    source.write_text("x")
    push = {"key": OTHER, "files": [{"host": str(source), "remote": "d/f"}]}
    sandbox = other.call("fs.push", push)["sandbox_id"]
    (theirs,) = (one["sandbox_id"] for one in emulator.sandboxes() if one["sandbox_id"] != sandbox)
    emulator.fault({"stall_before": True}, times=0, sandbox_id=theirs, **GET)
    for i, peer in enumerate(slow):
        peer.send("fs.get", {"key": DEFAULT_KEY, "remote": "f", "host": str(tmp_path / f"slow-{i}")})
    wait_until(lambda: emulator.faults()[0]["used"] == 4, "as many as may be wait for a part")
    source.write_text("yy")
    assert other.call("fs.push", push)["sent"] == 1
    assert other.call("fs.get", {"key": OTHER, "remote": "d/f", "host": str(tmp_path / "back")})["bytes"] == 2
    assert emulator.faults()[0]["used"] == 4, "the others have waited for their turn"


# The call that packs `small` begins, and goes on when it is told to.
SLOW_TO_PACK = """
import atexit, os, sys, time
with open("/workspace/calls", "a") as calls:
    calls.write(sys.argv[-2] + "\\n")
if "small" in sys.argv[-1]:
    open("/workspace/begun", "w").close()
    while not os.path.exists("/workspace/go"):
        time.sleep(0.01)
    atexit.register(lambda: open("/workspace/packed", "w").close())
"""


def test_what_has_begun_since_is_not_swept(peers: list[Peer], emulator: Emulator, tmp_path: pathlib.Path) -> None:
    one, two, *_ = peers
    one.sh("cd /workspace; echo x > small; echo y > big")
    hook(one, SLOW_TO_PACK)
    emulator.fault({"drop_before": True}, times=0, **GET)
    first = one.send("fs.get", {"key": DEFAULT_KEY, "remote": "small", "host": str(tmp_path / "small")})
    wait_until((workspace(emulator) / "begun").exists, "the older call is on its way")
    second = two.send("fs.get", {"key": DEFAULT_KEY, "remote": "big", "host": str(tmp_path / "big")})
    wait_until(lambda: emulator.faults()[0]["used"], "the younger one has packed")
    (workspace(emulator) / "go").touch()
    wait_until((workspace(emulator) / "packed").exists, "the older one has too")
    emulator.clear_faults()
    assert (one.result(first)["bytes"], two.result(second)["bytes"]) == (2, 2)
    assert (workspace(emulator) / "calls").read_text().split().count("pack") == 2, "nothing had to be packed again"


def test_several_at_once_of_one_key(peers: list[Peer], emulator: Emulator, tmp_path: pathlib.Path) -> None:
    getting, pushing = peers[:4], peers[4]
    pushing.sh("mkdir /workspace/d; cd /workspace/d; for i in 0 1 2 3; do head -c 4000 /dev/urandom > $i; done")
    source = tmp_path / "s"
    for turn in range(20):
        source.write_text(f"{turn}")
        pushed = pushing.send("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(source), "remote": "s"}]})
        got = [peer.send("fs.get", {"key": DEFAULT_KEY, "remote": f"d/{i}", "host": str(tmp_path / f"{i}")}) for i, peer in enumerate(getting)]
        assert [peer.result(number)["bytes"] for peer, number in zip(getting, got)] == [4000] * 4
        assert pushing.result(pushed)["sent"] == 1


def test_no_thread_stays_where_it_has_worked(daemon: Daemon, peer: Peer, tmp_path: pathlib.Path) -> None:
    peer.sh("echo x > /workspace/f")
    get(peer, "f", tmp_path / "f")
    tasks = pathlib.Path(f"/proc/{daemon.pid}/task")
    assert {os.readlink(task / "cwd") for task in tasks.iterdir()} == {os.readlink(f"/proc/{daemon.pid}/cwd")}


@needs_a_filter
def test_where_unshare_is_forbidden(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path) -> None:
    daemon = make_daemon(prefix=WITHOUT_UNSHARE).start()
    room = tmp_path / "room"
    room.mkdir()
    make_tree(tmp_path / "tree", 5)
    with daemon.peer() as peer:
        peer.call("fs.put", {"key": DEFAULT_KEY, "host": str(tmp_path / "tree"), "remote": "tree"})
        assert get(peer, "tree", room / "tree")["skipped"] == []
        assert describe(room / "tree") == describe(tmp_path / "tree")
        peer.sh("mkdir /workspace/d; cd /workspace/d; ln -s / out; ln -s sub in; mkdir sub; echo x > sub/f")
        assert [each["remote"] for each in get(peer, "d", room / "d")["skipped"]] == ["/workspace/d/out"]
        assert sorted(os.listdir(room / "d")) == ["in", "sub"]
        # A link of this side's own on the way is the user's, and followed.
        (tmp_path / "alias").symlink_to(room)
        assert get(peer, "tree", tmp_path / "alias" / "again")["skipped"] == []
        assert describe(room / "again") == describe(tmp_path / "tree")
    nothing_left(emulator, daemon, room)
    assert pathlib.Path.cwd() == pathlib.Path(os.readlink(f"/proc/{daemon.pid}/cwd"))


@pytest.fixture
def small_disk(make_daemon: Callable[..., Daemon], tmp_path: pathlib.Path) -> Callable[..., Daemon]:
    """Starts a daemon for which a directory is a disk of its own, of a given size: no other process sees it so."""
    able = os.geteuid() == 0 and subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0
    if not able:
        pytest.skip("no mounts of our own may be made here")

    def start(directory: pathlib.Path, size: str) -> Daemon:
        directory.mkdir(parents=True, exist_ok=True)
        mount = f'mount -t tmpfs -o size={size},mode=700 tmpfs "{directory}" && exec "$@"'
        return make_daemon(prefix=("unshare", "-m", "sh", "-c", mount, "sh")).start()

    return start


@pytest.mark.parametrize("content", ["/dev/urandom", "/dev/zero"])
@pytest.mark.parametrize("method", ["get", "pull"])
def test_a_full_disk_here_is_known_before_anything_comes(small_disk: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path, method: str,
                                                         content: str) -> None:
    room = tmp_path / "room"
    daemon = small_disk(room, "20m")
    with daemon.peer() as peer:
        peer.sh("head -c 40000000 " + content + " > /workspace/f")
        with pytest.raises(RpcFailure) as full:
            get(peer, "f", room / "f", method)
    assert full.value.name == "no_space" and str(room) in full.value.message
    assert "this machine" in full.value.hint and "plan" not in full.value.hint
    assert emulator.count("GET /v1/sandboxes/{id}/fs/content") == 0
    assert os.listdir(f"/proc/{daemon.pid}/root{room}") == []


def test_a_directory_where_something_is_mounted(small_disk: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path) -> None:
    daemon = small_disk(tmp_path / "room", "20m")
    seen = pathlib.Path(f"/proc/{daemon.pid}/root{tmp_path}/room")
    with daemon.peer() as peer:
        peer.sh("mkdir -p d/sub; chmod 700 d; echo x > d/f; echo y > d/sub/g")
        (seen / "sub").mkdir()
        got = get(peer, "d", tmp_path / "room")
        assert (got["files"], got["skipped"]) == (2, [])
        assert describe(seen) == describe(workspace(emulator) / "d")
        peer.sh("head -c 30000000 /dev/urandom > d/f")
        with pytest.raises(RpcFailure) as full:
            get(peer, "d", tmp_path / "room")
        assert full.value.name == "no_space" and f"{tmp_path}/room" in full.value.message
    nothing_left(emulator, daemon, seen)


def test_what_another_file_system_is_mounted_over_is_named(small_disk: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path) -> None:
    daemon = small_disk(tmp_path / "d" / "sub", "20m")
    seen = pathlib.Path(f"/proc/{daemon.pid}/root{tmp_path}/d/sub")
    (seen / "mine").write_text("mine")
    with daemon.peer() as peer:
        peer.sh("mkdir -p d/sub/deep; echo x > d/f; echo y > d/sub/g; echo z > d/sub/deep/h")
        got = get(peer, "d", tmp_path / "d")
        assert (got["files"], (tmp_path / "d" / "f").read_text(), os.listdir(seen)) == (1, "x\n", ["mine"])
        assert {each["remote"]: each["reason"] for each in got["skipped"]} == {
            "/workspace/d/sub/g": "in_the_way", "/workspace/d/sub/deep": "in_the_way"}
        assert all("another file system" in each["text"] for each in got["skipped"])
        # And what it says to do does it.
        assert get(peer, "d/sub", tmp_path / "d" / "sub")["skipped"] == []
        assert sorted(os.listdir(seen)) == ["deep", "g", "mine"]
    nothing_left(emulator, daemon, seen)
    nothing_left(emulator, daemon, tmp_path / "d")


@pytest.mark.parametrize("method", ["get", "pull"])
def test_holes_need_no_room_here(small_disk: Callable[..., Daemon], tmp_path: pathlib.Path, method: str) -> None:
    room = tmp_path / "room"
    daemon = small_disk(room, "20m")
    with daemon.peer() as peer:
        peer.sh("truncate -s 1G f; head -c 5000000 /dev/zero >> f")
        assert get(peer, "f", room / "f", method)["bytes"] == (1 << 30) + 5_000_000


@pytest.mark.parametrize("method", ["get", "pull"])
def test_a_disk_here_that_fills_up_meanwhile(small_disk: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path, method: str) -> None:
    room = tmp_path / "room"
    daemon = small_disk(room, "20m")
    seen = pathlib.Path(f"/proc/{daemon.pid}/root{room}")
    with daemon.peer() as peer:
        peer.sh("head -c 16000000 /dev/urandom > /workspace/f")
        emulator.fault({"latency_ms": 500}, **GET)
        asked = peer.send("fs." + method, {"key": DEFAULT_KEY, "remote": "f", "host": str(room / "f")})
        wait_until(lambda: emulator.faults()[0]["used"], "the part is on its way")
        (seen / "filler").write_bytes(b"x" * 12_000_000)
        with pytest.raises(RpcFailure) as full:
            peer.result(asked)
        assert full.value.name == "no_space" and "this machine" in full.value.message and "this machine" in full.value.hint
        assert os.listdir(seen) == ["filler"]
        (seen / "filler").unlink()
        assert get(peer, "f", room / "f", method)["files"] == 1
        assert os.listdir(seen) == ["f"]


@pytest.mark.parametrize("method", ["get", "pull", "push"])
def test_no_room_here_for_what_is_on_its_way(small_disk: Callable[..., Daemon], tmp_path: pathlib.Path, method: str) -> None:
    daemon = small_disk(tmp_path / "one" / "daemon" / "state", "6m")
    source = tmp_path / "f"
    source.write_bytes(os.urandom(30_000_000))
    with daemon.peer() as peer:
        peer.sh("head -c 30000000 /dev/urandom > /workspace/f")
        with pytest.raises(RpcFailure) as full:
            if method == "push":
                peer.call("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(source), "remote": "g"}]})
            else:
                get(peer, "f", tmp_path / "back", method)
    assert full.value.name == "no_space" and "this machine" in full.value.message and "this machine" in full.value.hint


def test_a_sandbox_too_full_to_pack_says_that_it_is_the_sandbox(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    peer.sh("echo x > /workspace/f")
    emulator.fault_exec({"act_then_status": {"status": 200, "body": '{"stdout": "{\\"error\\": \\"no_space: 12\\"}\\n"}\n{"returncode": 0}\n'}})
    with pytest.raises(RpcFailure) as full:
        get(peer, "f", tmp_path / "f")
    assert full.value.name == "no_space" and "the sandbox's disk" in full.value.message
    assert "in the sandbox" in full.value.hint and "this machine" not in full.value.hint


STEPS: dict[str, Callable[[Emulator], int]] = {
    "asked to pack": lambda emulator: emulator.fault_exec({"stall_before": True}),
    "packed": lambda emulator: emulator.fault_exec({"act_then_drop": "done", "latency_after_ms": 60_000}),
    "first part": lambda emulator: emulator.fault({"stall_before": True}, **GET),
    "amid the first part": lambda emulator: emulator.fault({"stall_after_bytes": 5_000_000}, **GET),
    "second part": lambda emulator: emulator.fault({"stall_before": True}, skip=1, **GET),
}
OLD, NEW = b"old", b"new"


def prepare(peer: Peer, room: pathlib.Path) -> None:
    """Something in the sandbox in more than one part, and its older state here."""
    peer.sh("mkdir /workspace/d; cd /workspace/d; head -c 30000000 /dev/urandom > a; printf new > b; printf new > c")
    (room / "d").mkdir(parents=True)
    for name in ("a", "b", "c"):
        (room / "d" / name).write_bytes(OLD)


def check_whole(emulator: Emulator, directory: pathlib.Path) -> None:
    """Each file is the old or the new one."""
    new = (workspace(emulator) / "d" / "a").read_bytes()
    assert sorted(os.listdir(directory)) == ["a", "b", "c"]
    assert (directory / "a").read_bytes() in (OLD, new)
    assert {(directory / name).read_bytes() for name in ("b", "c")} <= {OLD, NEW}


@pytest.mark.parametrize("step", STEPS)
def test_a_daemon_killed_at_any_step(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path, step: str) -> None:
    daemon = make_daemon().start()
    room = tmp_path / "room"
    with daemon.peer() as peer:
        prepare(peer, room)
        STEPS[step](emulator)
        peer.send("fs.get", {"key": DEFAULT_KEY, "remote": "d", "host": str(room / "d")})
        wait_until(lambda: emulator.faults()[0]["used"], step)
    daemon.kill()
    emulator.clear_faults()
    assert {(room / "d" / name).read_bytes() for name in ("a", "b", "c")} == {OLD}
    daemon.start()
    with daemon.peer() as peer:
        assert os.listdir(room) == ["d"]
        get(peer, "d", room / "d")
    assert describe(room / "d") == describe(workspace(emulator) / "d")
    nothing_left(emulator, daemon, room)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("name", ["d", "b"])
def test_a_daemon_killed_while_it_puts_things_in_place(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path, preload: pathlib.Path,
                                                      name: str, when: str) -> None:
    dying = {"LD_PRELOAD": str(preload), "KILL_AT_NAME": name, "KILL_AT_COUNT": "1", "KILL_AT_WHEN": when}
    daemon = make_daemon(environment=dying).start()
    room = tmp_path / "room"
    with daemon.peer() as peer:
        prepare(peer, room)
        if name == "d":
            for each in (room / "d").iterdir():
                each.unlink()  # then it is moved as a whole
        peer.send("fs.get", {"key": DEFAULT_KEY, "remote": "d", "host": str(room / "d")})
        wait_until(lambda: not daemon.alive(), "it is killed", LIMIT_S)
    daemon.kill()
    if name == "d" and when == "before":
        assert os.listdir(room / "d") == []
    else:
        check_whole(emulator, room / "d")
    for variable in dying:
        del daemon.environment[variable]
    daemon.start()
    with daemon.peer() as peer:
        assert os.listdir(room) == ["d"]
        get(peer, "d", room / "d")
    assert describe(room / "d") == describe(workspace(emulator) / "d")
    nothing_left(emulator, daemon, room)


SLOW_STEPS: dict[str, Callable[[Emulator], int]] = {
    "asked to pack": lambda emulator: emulator.fault_exec({"latency_ms": 300}),
    "packed": lambda emulator: emulator.fault_exec({"act_then_drop": "done"}),
    "first part": lambda emulator: emulator.fault({"latency_ms": 300}, **GET),
    "second part": lambda emulator: emulator.fault({"latency_ms": 300}, skip=1, **GET),
}


@pytest.mark.parametrize("step", SLOW_STEPS)
def test_a_client_killed_at_any_step(daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path, step: str) -> None:
    """What it asked for replaces nothing, unless it was there already, and nothing is left."""
    room = tmp_path / "room"
    with daemon.peer() as peer:
        prepare(peer, room)
    before = describe(room / "d")
    SLOW_STEPS[step](emulator)
    with running(daemon, "cp", "sandbox:d", str(room)) as copying:
        wait_until(lambda: emulator.faults()[0]["used"], step)
        copying.kill()
    with daemon.peer() as peer:
        wait_until(lambda: peer.call("sandbox.get", {"key": DEFAULT_KEY})["sandbox"]["running"] == [], "it is over", LIMIT_S)
    assert describe(room / "d") in (before, describe(workspace(emulator) / "d"))
    nothing_left(emulator, daemon, room)
