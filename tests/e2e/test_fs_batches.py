"""A push of much: several archives, each put in place while the next is on its way."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import EXEC, workspace
from support.trees import describe, without_marker
from test_fs_faults import PUT, fault, left_in_sandbox, push

FILES, SIZE = 40, 3_000_000
CALLS = ("while parts still come", "when all are there")  # of one archive
FORBIDDEN = {"status": 403, "body": '{"error":{"message":"not you"}}'}


def make_much(root: pathlib.Path) -> None:
    """In a directory that nothing can be written to, and below it, so that it is met again with each archive."""
    chance = random.Random(5)
    (root / "closed" / "deep").mkdir(parents=True)
    for i in range(FILES):
        (root / "closed" / ("deep" if i % 2 else "") / f"{i}").write_bytes(chance.randbytes(SIZE))
    (root / "link").symlink_to("closed/deep")
    (root / "closed").chmod(0o555)


def there(emulator: Emulator) -> dict[bytes, tuple[Any, ...]]:
    return without_marker(describe(workspace(emulator) / "t"))


def test_all_of_it_arrives_in_several_archives(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    make_much(tmp_path / "much")
    peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
    before = emulator.count(EXEC)
    result = push(peer, tmp_path / "much", "t")
    assert (result["sent"], result["bytes"], result["skipped"]) == (FILES + 1, FILES * SIZE + len("closed/deep"), [])
    assert 3 <= emulator.count(EXEC) - before <= 6
    assert there(emulator) == describe(tmp_path / "much")
    assert push(peer, tmp_path / "much", "t")["sent"] == 0
    assert left_in_sandbox(emulator) == []


@pytest.mark.parametrize("which", ["part", "call"])
def test_after_a_failure_only_what_is_not_in_place_is_sent(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, which: str) -> None:
    make_much(tmp_path / "much")
    peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
    if which == "part":
        fault(emulator, PUT, FORBIDDEN, skip=4, times=0)
    else:
        emulator.fault_exec(FORBIDDEN, skip=len(CALLS), times=0)
    with pytest.raises(RpcFailure):
        push(peer, tmp_path / "much", "t")
    emulator.clear_faults()
    expected = describe(tmp_path / "much")
    some = there(emulator)
    assert {path for path, what in some.items() if what != expected[path]} <= {b"closed"}
    rest = push(peer, tmp_path / "much", "t")
    assert 0 < rest["sent"] < FILES and rest["skipped"] == []
    assert there(emulator) == expected
    assert left_in_sandbox(emulator) == []


def test_a_daemon_killed_between_two_archives(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path) -> None:
    make_much(tmp_path / "much")
    expected = describe(tmp_path / "much")
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
        emulator.fault_exec({"stall_before": True}, skip=len(CALLS), times=len(CALLS))
        peer.send("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(tmp_path / "much"), "remote": "t"}]})
        wait_until(lambda: emulator.faults()[0]["used"], "the second archive is to be unpacked")
    daemon.kill()
    emulator.clear_faults()
    some = there(emulator)
    assert some and all(what == expected[path] for path, what in some.items() if path != b"closed")
    daemon.start()
    with daemon.peer() as peer:
        rest = push(peer, tmp_path / "much", "t")
        assert 0 < rest["sent"] < FILES and rest["skipped"] == []
    assert there(emulator) == expected
    assert left_in_sandbox(emulator) == []


def test_what_is_gone_is_found_although_there_are_several_archives(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    """What was pushed before and is removed inside comes back with a push of much else."""
    make_much(tmp_path / "much")
    (tmp_path / "early").mkdir()
    (tmp_path / "early" / "one").write_text("1")
    (tmp_path / "early" / "two").write_text("2")
    push(peer, tmp_path / "early", "early")
    (workspace(emulator) / "early" / "one").unlink()
    both = [{"host": str(tmp_path / "early"), "remote": "early"}, {"host": str(tmp_path / "much"), "remote": "t"}]
    result = peer.call("fs.push", {"key": DEFAULT_KEY, "files": both})
    assert result["sent"] == FILES + 2 and result["skipped"] == []
    assert (workspace(emulator) / "early" / "one").read_text() == "1"
    assert there(emulator) == describe(tmp_path / "much")
