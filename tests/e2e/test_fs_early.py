"""A push of much on a quick line: what has come is put in place while the rest still comes."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer
from support.scenes import EXEC, only_id, workspace
from support.trees import describe, without_marker
from test_fs_faults import PUT, fault, left_in_sandbox, noise, push

FILES, SIZE = 60, 1_000_000
PARTS = 5  # of 4, then of 16 MiB, as the line is known to be quick
FIRST = 8_000_000  # of which that is known: it may take seconds
PUT_ROUTE = " ".join(PUT)
EARLY = '\\"parts\\":null'  # in a call that is made while parts still come


@pytest.fixture
def much(peer: Peer, tmp_path: pathlib.Path) -> pathlib.Path:
    """Something that the line is known to be quick enough for."""
    push(peer, noise(tmp_path / "first", FIRST), "first")
    return make_much(tmp_path / "much")


def make_much(root: pathlib.Path) -> pathlib.Path:
    (root / "closed").mkdir(parents=True)
    for i in range(FILES):
        noise(root / ("closed" if i % 2 else "") / f"{i:03}", SIZE)
    (root / "closed").chmod(0o555)
    return root


def start(peer: Peer, much: pathlib.Path) -> int:
    return peer.send("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(much), "remote": "t"}]})


def there(emulator: Emulator) -> dict[bytes, tuple[Any, ...]]:
    return without_marker(describe(workspace(emulator) / "t")) if (workspace(emulator) / "t").exists() else {}


def parts(emulator: Emulator) -> set[str]:
    sync = workspace(emulator) / ".deepinfra-sandboxd" / "sync"
    return {each.name for each in sync.glob("*/part-*")} | {each.name for each in sync.glob("*/last-*")}


def placed(emulator: Emulator) -> int:
    return sum(what[0] == "file" for what in there(emulator).values())


def helpers(emulator: Emulator) -> list[int]:
    """Their process ids."""
    return [each["pid"] for each in emulator.processes(only_id(emulator)) if each["cmdline"].startswith("python3 -I -S")]


def check_arrived(peer: Peer, emulator: Emulator, much: pathlib.Path, result: dict[str, Any]) -> None:
    assert (result["sent"], result["skipped"]) == (FILES, [])
    assert there(emulator) == describe(much)
    assert push(peer, much, "t")["sent"] == 0
    assert left_in_sandbox(emulator) == []


@pytest.mark.parametrize("put_replace", ["truncate", "rename"])
def test_files_are_in_place_before_the_last_part_is_sent(peer: Peer, emulator: Emulator, much: pathlib.Path, put_replace: str) -> None:
    emulator.config(put_replace=put_replace)
    calls, sent = emulator.count(EXEC), emulator.count(PUT_ROUTE)
    fault(emulator, PUT, {"latency_ms": 600_000}, skip=PARTS - 1)
    under_way = start(peer, much)
    wait_until(lambda: emulator.faults()[0]["used"], "the last part is to be sent")
    # Of a part it is known that it is whole when the next one is there.
    wait_until(lambda: placed(emulator) == ((4 + 16 + 16) << 20) // SIZE, "most is in place")
    assert "part-000000" not in parts(emulator)  # nor does all of it take room twice
    expected = describe(much)
    closed = b"closed"  # is open while something is put into it
    assert all(what == expected[path] for path, what in there(emulator).items() if path != closed)
    emulator.drop_connections()
    check_arrived(peer, emulator, much, peer.result(under_way))
    assert emulator.count(PUT_ROUTE) - sent == PARTS + 1
    assert emulator.count(EXEC) - calls <= 3


@pytest.mark.parametrize("action", [{"status": 403, "body": '{"error":{"message":"not you"}}'}, {"drop_before": True}, {"cut_after_bytes": 0}, {"stall_before": True},
                                    {"act_then_drop": "started"}, {"status": 200, "body": '{"stdout": "{\\"failed\\": [], \\"gone\\": []}\\n"}\n{"returncode": 0}\n'}],
                         ids=lambda action: "-".join(map(str, next(iter(action.items()))))[:20])
@pytest.mark.usefixtures("on_disconnect")
def test_nothing_depends_on_the_early_call(peer: Peer, emulator: Emulator, much: pathlib.Path, action: dict[str, Any]) -> None:
    emulator.fault_exec(action, body=EARLY, times=0)
    result = peer.result(start(peer, much))
    assert emulator.faults()[0]["used"] == 1
    check_arrived(peer, emulator, much, result)


@pytest.mark.parametrize("after", range(2, PARTS))
def test_what_was_cut_off_goes_on_where_it_was(peer: Peer, emulator: Emulator, much: pathlib.Path, after: int) -> None:
    sent = emulator.count(PUT_ROUTE)
    fault(emulator, PUT, {"latency_ms": 600_000}, skip=after)
    under_way = start(peer, much)
    wait_until(lambda: emulator.faults()[0]["used"], "one part is awaited")
    wait_until(lambda: placed(emulator) == ((4 + 16 * (after - 2)) << 20) // SIZE, "it has come as far as it can")
    [early] = helpers(emulator)
    emulator.sh(only_id(emulator), f"kill -9 {early}")
    wait_until(lambda: helpers(emulator) == [], "it is gone")
    emulator.drop_connections()
    check_arrived(peer, emulator, much, peer.result(under_way))
    assert emulator.count(PUT_ROUTE) - sent == PARTS + 1  # nothing twice, but for the one that was cut


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_what_a_daemon_began_ends_when_its_parts_are_swept(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path, how: str) -> None:
    emulator.config(on_disconnect="keep")
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        push(peer, noise(tmp_path / "first", FIRST), "first")
        fault(emulator, PUT, {"stall_before": True}, skip=PARTS - 1)
        start(peer, make_much(tmp_path / "much"))
        wait_until(lambda: emulator.faults()[0]["used"] and len(helpers(emulator)) == 1, "the last part is awaited")
    if how == "killed":
        daemon.kill()
    else:
        assert daemon.stop() == 0
    emulator.clear_faults()
    daemon.start()
    with daemon.peer() as peer:
        noise(tmp_path / "much" / "000", SIZE)
        check_arrived(peer, emulator, tmp_path / "much", push(peer, tmp_path / "much", "t"))
    wait_until(lambda: helpers(emulator) == [], "nobody waits for parts that never come")
    assert there(emulator) == describe(tmp_path / "much")


def test_what_changed_while_it_was_read_is_not_put_in_place(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    tree = tmp_path / "much"
    tree.mkdir()
    (tree / "a").write_text("a")
    large = noise(tree / "large", FILES * SIZE)
    push(peer, tree, "t")
    before = describe(tree)
    noise(large, FILES * SIZE)
    fault(emulator, PUT, {"latency_ms": 600_000}, skip=1)
    under_way = start(peer, tree)
    wait_until(lambda: emulator.faults()[0]["used"] and len(helpers(emulator)) == 1, "a part is awaited, and not all is read")
    with open(large, "r+b") as file:
        file.write(b"changed")
    fault(emulator, PUT, {"latency_ms": 600_000}, skip=PARTS - 1 + 1)  # the rest, and what is told of it
    emulator.drop_connections()
    wait_until(lambda: emulator.faults()[1]["used"], "it is sent again")
    assert there(emulator) == before
    emulator.drop_connections()
    assert peer.result(under_way)["skipped"] == []
    assert there(emulator) == describe(tree)
    assert left_in_sandbox(emulator) == []
