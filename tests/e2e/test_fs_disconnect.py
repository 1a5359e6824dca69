"""A transfer's call that is cut off while it is at work: the platform may end it, or let it go on for as long as it likes.

The helper is held where it has put some files in place and not yet others, or amid packing. Then its connection breaks, or its
daemon dies and another one begins while the helper of the old one still lives.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import tarfile
from collections.abc import Callable
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.inside import Parked, before
from support.rpc import DEFAULT_KEY, Peer
from support.scenes import EXEC, processes, workspace
from support.trees import describe, without_marker

NAMES = ("a", "b", "c")
LIMIT_S = 30.0
# Where a helper that packs has read one file of those it was asked for.
AFTER_A_FILE = """real_close = os.close
def close(fd):
    real_close(fd)
    park()
os.close = close"""
# ... has removed one file of a tree.
AFTER_AN_UNLINK = """real = os.unlink
def unlink(path):
    real(path)
    if os.path.dirname(os.fsencode(path)) == b"/workspace/t": park()
os.unlink = unlink"""
# For whoever is held, others wait as long as a test may need.
PATIENTLY = 'sys.argv[1] = sys.argv[1].replace("COURTESY = 1 ", "COURTESY = 30 ")\n'
# ... has done all its work, which is not told yet.
BEFORE_IT_ANSWERS = "import atexit\natexit.register(park)"

pytestmark = pytest.mark.usefixtures("on_disconnect")


def fill(tree: pathlib.Path, text: str) -> dict[bytes, tuple[Any, ...]]:
    tree.mkdir(exist_ok=True)
    for name in NAMES:
        (tree / name).write_text(f"{name} {text}")
    return describe(tree)


def params(tree: pathlib.Path) -> dict[str, Any]:
    return {"key": DEFAULT_KEY, "files": [{"host": str(tree), "remote": "t"}]}


def there(emulator: Emulator) -> dict[bytes, tuple[Any, ...]]:
    return without_marker(describe(workspace(emulator) / "t"))


def left(emulator: Emulator) -> list[str]:
    """What transfers have left there, but for answers that are kept for whoever might ask again."""
    return [name for name in os.listdir(workspace(emulator) / ".deepinfra-sandboxd" / "sync") if not name.endswith(".done")]


def at_work(emulator: Emulator) -> bool:
    return any("hooks.py" in line for line in processes(emulator))


def waits_for_its_turn(emulator: Emulator) -> bool:
    """Whether a helper waits for another one's lock on the operation's directory."""
    (operation,) = left(emulator)
    inode = (workspace(emulator) / ".deepinfra-sandboxd" / "sync" / operation).stat().st_ino
    return any("->" in line and f":{inode} " in line for line in pathlib.Path("/proc/locks").read_text().splitlines())


def all_have_ended(emulator: Emulator) -> None:
    wait_until(lambda: not at_work(emulator), "no helper is at work", LIMIT_S)


@pytest.mark.parametrize("how", ["fin", "rst"])
def test_a_push_whose_unpacking_is_cut_off_is_put_in_place_once(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, on_disconnect: str, how: str) -> None:
    tree = tmp_path / "tree"
    fill(tree, "old")
    peer.call("fs.push", params(tree))
    expected = fill(tree, "new")
    unpacking = Parked(peer, emulator, "unpack", before("rename", "b"))
    asked = peer.send("fs.push", params(tree))
    unpacking.arrives()
    assert (there(emulator)[b"a"], there(emulator)[b"b"][2]) == (expected[b"a"], b"b old")
    calls = emulator.count(EXEC)
    emulator.drop_connections(how)
    wait_until(lambda: emulator.count(EXEC) > calls, "it is asked again", LIMIT_S)
    if on_disconnect == "keep":
        wait_until(lambda: waits_for_its_turn(emulator), "the second one waits for the first", LIMIT_S)
        assert there(emulator)[b"b"][2] == b"b old"
        unpacking.release()
    result = peer.result(asked)
    assert (result["sent"], result["skipped"]) == (len(NAMES), [])
    assert there(emulator) == expected
    all_have_ended(emulator)
    assert left(emulator) == []
    assert peer.call("fs.push", params(tree))["unchanged"] == len(NAMES)


def test_what_a_dead_daemon_has_left_at_work_undoes_nothing(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path,
                                                           on_disconnect: str) -> None:
    tree = tmp_path / "tree"
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        old = fill(tree, "old")
        peer.call("fs.push", params(tree))
        fill(tree, "new")
        unpacking = Parked(peer, emulator, "unpack", before("rename", "b"))
        peer.send("fs.push", params(tree))
        unpacking.arrives()
    daemon.kill()
    if on_disconnect == "kill_group":
        all_have_ended(emulator)
    assert there(emulator) == {**old, b"a": ("file", 0o644, b"a new")}
    expected = fill(tree, "newest")
    daemon.start()
    with daemon.peer() as peer:
        result = peer.call("fs.push", params(tree))
        assert (result["sent"], result["skipped"]) == (len(NAMES), [])
        assert at_work(emulator) == (on_disconnect == "keep")
        unpacking.release()
        all_have_ended(emulator)
        assert there(emulator) == expected
        assert left(emulator) == []
        assert peer.call("fs.push", params(tree))["unchanged"] == len(NAMES)


def test_a_deletion_that_is_cut_off_is_told_as_it_was(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, on_disconnect: str) -> None:
    fill(tmp_path / "tree", "old")
    peer.call("fs.push", params(tmp_path / "tree"))
    deleting = Parked(peer, emulator, "delete", before("unlink", "b"))
    asked = peer.send("fs.delete", {"key": DEFAULT_KEY, "remotes": ["t/a", "t/nothing", "t/b"]})
    deleting.arrives()
    assert sorted(there(emulator)) == [b"b", b"c"]
    calls = emulator.count(EXEC)
    emulator.drop_connections()
    wait_until(lambda: emulator.count(EXEC) > calls, "it is asked again", LIMIT_S)
    if on_disconnect == "keep":
        wait_until(lambda: waits_for_its_turn(emulator), "the second one waits for the first", LIMIT_S)
        deleting.release()
    assert peer.result(asked) == {"deleted": 2, "missing": 1, "failed": [], "failed_more": 0}
    assert sorted(there(emulator)) == [b"c"]
    all_have_ended(emulator)
    assert left(emulator) == []
    assert peer.call("fs.push", params(tmp_path / "tree"))["sent"] == 2


def test_what_a_dead_daemon_was_about_to_change_stays_as_it_was_pushed_since(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path,
                                                                             on_disconnect: str) -> None:
    """Directories that it would make, or make of files, and their modes."""
    tree = tmp_path / "tree"
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        fill(tree, "old")
        (tree / "x").write_text("x")
        peer.call("fs.push", params(tree))
        fill(tree, "new")
        (tree / "x").unlink()
        for name in ("x", "y"):
            (tree / name).mkdir()
            (tree / name / "file").write_text("new")
        unpacking = Parked(peer, emulator, "unpack", before("rename", "b"))
        peer.send("fs.push", params(tree))
        unpacking.arrives()
    daemon.kill()
    for name in ("x", "y"):
        shutil.rmtree(tree / name)
    (tree / "x").write_text("x again")
    tree.chmod(0o700)
    expected = fill(tree, "newest")
    daemon.start()
    with daemon.peer() as peer:
        result = peer.call("fs.push", params(tree))
        assert (result["sent"], result["skipped"]) == (len(NAMES) + 1, [])
        unpacking.release()
        all_have_ended(emulator)
        assert (there(emulator), (workspace(emulator) / "t").stat().st_mode & 0o777) == (expected, 0o700)
        assert peer.call("fs.push", params(tree))["unchanged"] == len(NAMES) + 1


def test_a_deletion_that_an_ended_daemon_has_left_at_work_goes_no_further(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path,
                                                                          how: str) -> None:
    tree = tmp_path / "tree"
    expected = fill(tree, "as it was")
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        peer.call("fs.push", params(tree))
        deleting = Parked(peer, emulator, "delete", AFTER_AN_UNLINK)
        peer.send("fs.delete", {"key": DEFAULT_KEY, "remotes": ["t"]})
        deleting.arrives()
        if how == "stop":
            daemon.stop()
        else:
            daemon.kill()
    daemon.start()
    with daemon.peer() as peer:
        assert peer.call("fs.push", params(tree))["sent"] == len(NAMES)
        deleting.release()
        all_have_ended(emulator)
        assert there(emulator) == expected
        assert left(emulator) == []
        assert peer.call("fs.push", params(tree))["unchanged"] == len(NAMES)


def test_its_last_step_is_waited_for(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path, on_disconnect: str) -> None:
    tree = tmp_path / "tree"
    expected = fill(tree, "as it was")
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        peer.call("fs.push", params(tree))
        deleting = Parked(peer, emulator, "delete", before("unlink", "b"), others=PATIENTLY)
        peer.send("fs.delete", {"key": DEFAULT_KEY, "remotes": ["t"]})
        deleting.arrives()
    daemon.kill()
    daemon.start()
    with daemon.peer() as peer:
        asked = peer.send("fs.push", params(tree))
        if on_disconnect == "keep":
            wait_until(lambda: any(".gone-" in name for name in left(emulator)), "the deletion is swept", LIMIT_S)
        deleting.release()
        assert peer.result(asked)["sent"] == len(NAMES)
        all_have_ended(emulator)
        assert there(emulator) == expected


def test_a_deletion_that_others_have_swept_is_begun_anew(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    fill(tmp_path / "tree", "as it was")
    peer.call("fs.push", params(tmp_path / "tree"))
    deleting = Parked(peer, emulator, "delete", AFTER_AN_UNLINK)
    asked = peer.send("fs.delete", {"key": DEFAULT_KEY, "remotes": ["t"]})
    deleting.arrives()
    (operation,) = left(emulator)
    sync = workspace(emulator) / ".deepinfra-sandboxd" / "sync"
    (sync / operation).rename(sync / f"{operation}.gone-1")
    deleting.release()
    assert peer.result(asked) == {"deleted": 1, "missing": 0, "failed": [], "failed_more": 0}
    assert not (workspace(emulator) / "t").exists()
    assert left(emulator) == []


@pytest.mark.parametrize("where", [AFTER_A_FILE, BEFORE_IT_ANSWERS], ids=["amid it", "before it answers"])
@pytest.mark.parametrize("method", ["get", "pull"])
def test_packing_that_is_cut_off_is_asked_for_again(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, on_disconnect: str, method: str, where: str) -> None:
    peer.sh("mkdir d; cd d; head -c 3000000 /dev/urandom > a; echo b > b")
    packing = Parked(peer, emulator, "pack", where)
    asked = peer.send("fs." + method, {"key": DEFAULT_KEY, "remote": "d", "host": str(tmp_path / "d")})
    packing.arrives()
    calls = emulator.count(EXEC)
    emulator.drop_connections()
    wait_until(lambda: emulator.count(EXEC) > calls, "it is asked again", LIMIT_S)
    if where == AFTER_A_FILE and on_disconnect == "keep":
        wait_until(lambda: waits_for_its_turn(emulator), "the second one waits for the first", LIMIT_S)
        packing.release()
    assert peer.result(asked)["files"] == 2
    packing.release()
    if method == "get":
        assert describe(tmp_path / "d") == describe(workspace(emulator) / "d")
    else:
        with tarfile.open(tmp_path / "d") as archive:
            content = archive.extractfile("workspace/d/a")
            assert content is not None and content.read() == (workspace(emulator) / "d" / "a").read_bytes()
    all_have_ended(emulator)
    wait_until(lambda: left(emulator) == [], "what was packed is gone", LIMIT_S)


@pytest.mark.parametrize("method", ["get", "pull"])
def test_what_a_dead_daemon_has_left_packing_leaves_nothing(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path, on_disconnect: str,
                                                           method: str) -> None:
    room = tmp_path / "room"
    room.mkdir()
    asked = {"key": DEFAULT_KEY, "remote": "d", "host": str(room / "d")}
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        peer.sh("mkdir d; cd d; head -c 3000000 /dev/urandom > a; echo b > b")
        packing = Parked(peer, emulator, "pack", AFTER_A_FILE)
        peer.send("fs." + method, asked)
        packing.arrives()
        assert list((workspace(emulator) / ".deepinfra-sandboxd" / "sync").glob("*/part-*"))
    daemon.kill()
    daemon.start()
    with daemon.peer() as peer:
        assert peer.call("fs." + method, asked)["files"] == 2
        assert os.listdir(room) == ["d"]
        packing.release()
        all_have_ended(emulator)
        peer.call("fs." + method, asked)  # sweeps
        wait_until(lambda: left(emulator) == [], "what was packed is gone", LIMIT_S)
    assert (room / "d" / "b").read_text() == "b\n" if method == "get" else (room / "d").stat().st_size > 3_000_000
