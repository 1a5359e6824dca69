"""Files of the host that change around a push: what was sent is what is remembered, and the next push sees the rest."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.inside import Parked
from support.kill_points import build_preload
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import START, workspace

LONG_AGO = 10**18  # nanoseconds: a time that no clock here can come near
MOST_TRIES = 20


def params(*files: pathlib.Path) -> dict[str, Any]:
    return {"key": DEFAULT_KEY, "files": [{"host": str(each), "remote": f"d/{each.name}"} for each in files]}


def write(path: pathlib.Path, content: bytes) -> None:
    """Into the file that is there, with a time of long ago."""
    with open(path, "r+b" if path.exists() else "xb") as file:
        file.write(content)
        file.truncate()
    os.utime(path, ns=(LONG_AGO, LONG_AGO))


def replace(path: pathlib.Path, content: bytes) -> None:
    """With another file, as editors do."""
    aside = path.with_name("aside")
    write(aside, content)
    aside.rename(path)


CHANGES: dict[str, Callable[[pathlib.Path], None]] = {
    "longer": lambda path: write(path, b"what is new"),
    "same size and time": lambda path: write(path, b"new"),
    "another file of the same size and time": lambda path: replace(path, b"new"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_after_it_was_read_is_sent_by_the_next_push(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, change: str) -> None:
    changing, other = tmp_path / "f", tmp_path / "g"
    write(changing, b"old")
    write(other, b"other")
    peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
    unpacking = Parked(peer, emulator, "unpack")
    asked = peer.send("fs.push", params(changing, other))
    unpacking.arrives()
    CHANGES[change](changing)
    unpacking.release()
    there = workspace(emulator) / "d"
    assert peer.result(asked)["sent"] == 2
    assert (there / "f").read_bytes() == b"old"
    again = peer.call("fs.push", params(changing, other))
    assert (again["sent"], again["unchanged"]) == (1, 1)
    assert (there / "f").read_bytes() == changing.read_bytes() != b"old"
    assert peer.call("fs.push", params(changing, other))["unchanged"] == 2


@pytest.mark.parametrize("method", ["push", "put"])
@pytest.mark.parametrize("what", ["a file", "a tree"])
def test_what_is_gone_before_it_was_read_is_named(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, method: str, what: str) -> None:
    here = tmp_path / "here"
    files = [here] if what == "a file" else [here / "a", here / "b"]
    for each in files:
        each.parent.mkdir(exist_ok=True)
        each.write_text("important")
    emulator.fault({"stall_before": True}, method="GET", route="/v1/sandboxes/{id}")
    pair = {"host": str(here), "remote": "d"}
    asked = peer.send(f"fs.{method}", {"key": DEFAULT_KEY, **(pair if method == "put" else {"files": [pair]})})
    wait_until(lambda: emulator.faults()[0]["used"], "all was seen, and its sandbox is awaited")
    for each in files:
        each.unlink()
    emulator.drop_connections()
    if what == "a file" and method == "put":
        with pytest.raises(RpcFailure) as refused:
            peer.result(asked)
        assert refused.value.name == "host_file"
    else:
        skipped = peer.result(asked)["skipped"]
        assert [(each["host"], each["reason"]) for each in skipped] == [(str(each), "missing") for each in files]
    sync = workspace(emulator) / ".deepinfra-sandboxd" / "sync"
    assert [name for name in os.listdir(sync) if not name.endswith(".done")] == []


def test_a_file_that_is_gone_after_it_was_read_stays_as_it_was_sent(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    source = tmp_path / "f"
    write(source, b"old")
    peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
    unpacking = Parked(peer, emulator, "unpack")
    asked = peer.send("fs.push", params(source))
    unpacking.arrives()
    source.unlink()
    unpacking.release()
    assert peer.result(asked)["sent"] == 1
    assert [each["reason"] for each in peer.call("fs.push", params(source))["skipped"]] == ["missing"]
    write(source, b"old")
    assert peer.call("fs.push", params(source))["unchanged"] == 1
    assert (workspace(emulator) / "d" / "f").read_bytes() == b"old"


@pytest.fixture
def coarse(make_daemon: Callable[..., Daemon], tmp_path: pathlib.Path) -> Daemon:
    """For which files have times in whole seconds, so that a change within the same one cannot be seen by them."""
    return make_daemon(environment={"LD_PRELOAD": str(build_preload(tmp_path, "whole_seconds"))}).start()


def same_look(before: os.stat_result, after: os.stat_result) -> bool:
    def look(status: os.stat_result) -> tuple[int, ...]:
        return status.st_size, int(status.st_mtime), int(status.st_ctime), status.st_ino

    return look(before) == look(after)


@pytest.mark.parametrize("restarted", [False, True], ids=["", "by another daemon"])
def test_a_change_that_no_time_tells_of_is_seen(coarse: Daemon, emulator: Emulator, tmp_path: pathlib.Path, restarted: bool) -> None:
    """Sent and changed within one tick of the file system's clock: all that can be seen of the file is as it was."""
    source = tmp_path / "f"

    def push() -> dict[str, Any]:
        with coarse.peer() as peer:
            return peer.call("fs.push", params(source))

    write(source, b"first")
    push()
    for turn in range(MOST_TRIES):
        write(source, b"old %02d" % turn)
        assert push()["sent"] == 1
        before = source.stat()
        write(source, b"new %02d" % turn)
        after = source.stat()
        if restarted:
            coarse.kill()
            coarse.start()
        assert push()["sent"] == 1
        assert (workspace(emulator) / "d" / "f").read_bytes() == b"new %02d" % turn
        assert push()["unchanged"] == 1
        if same_look(before, after):
            return
    raise AssertionError("a push never took less than what was left of a second")


def test_nor_does_a_link_change_unseen_while_its_sandbox_starts(coarse: Daemon, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    """A link is read when the push begins, and the rest may take a while."""
    tree, link = tmp_path / "t", tmp_path / "t" / "l"
    tree.mkdir()
    params = {"key": DEFAULT_KEY, "files": [{"host": str(tree), "remote": "t"}]}
    with coarse.peer() as peer:
        peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
        emulator.config(start_ms=2200)  # by then, what was changed when the push began is no longer new
        for turn in range(MOST_TRIES):
            peer.call("sandbox.stop", {"key": DEFAULT_KEY})
            starts = emulator.count(START)
            link.symlink_to(f"old {turn:02}")
            before = link.lstat()
            asked = peer.send("fs.push", params)
            wait_until(lambda: emulator.count(START) > starts, "it has looked at what there is")
            link.unlink()
            link.symlink_to(f"new {turn:02}")
            assert peer.result(asked)["sent"] == 1
            assert os.readlink(workspace(emulator) / "t" / "l") == f"old {turn:02}"
            assert peer.call("fs.push", params)["sent"] == 1
            assert os.readlink(workspace(emulator) / "t" / "l") == f"new {turn:02}"
            if same_look(before, link.lstat()):
                return
            if before.st_ino != link.lstat().st_ino:
                pytest.skip("this file system tells a link that takes another one's place by its inode")
            link.unlink()
        raise AssertionError("a push never began and had looked within what was left of a second")
