"""fs.push and fs.delete of things that are not what they were, or not what anybody expects: kinds, depths, times, holes."""

from __future__ import annotations

import os
import pathlib
import stat
import subprocess
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import EXEC, workspace
from support.trees import describe


def push(peer: Peer, *pairs: tuple[pathlib.Path, str], **more: Any) -> dict[str, Any]:
    return peer.call("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(host), "remote": remote} for host, remote in pairs], **more})


def put(peer: Peer, host: pathlib.Path, remote: str) -> dict[str, Any]:
    return peer.call("fs.put", {"key": DEFAULT_KEY, "host": str(host), "remote": remote})


def delete(peer: Peer, *remotes: str) -> dict[str, Any]:
    return peer.call("fs.delete", {"key": DEFAULT_KEY, "remotes": list(remotes)})


def reasons(result: dict[str, Any]) -> dict[str, str]:
    return {each["remote"].removeprefix("/workspace/"): each["reason"] for each in result["skipped"]}


def write(path: pathlib.Path, text: str) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_link_that_became_a_directory_leads_nowhere_any_more(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    tree = tmp_path / "t"
    write(tree / "sub" / "x", "original")
    (tree / "sub").chmod(0o750)
    (tree / "l").symlink_to("sub")
    push(peer, (tree, "t"))
    (tree / "l").unlink()
    write(tree / "l" / "x", "of the new directory")
    (tree / "l").chmod(0o700)
    assert push(peer, (tree, "t"))["skipped"] == []
    assert describe(workspace(emulator) / "t") == describe(tree)


def test_a_link_of_the_sandbox_s_own_is_followed_on_the_way_but_is_no_directory(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    peer.sh("mkdir /workspace/real; chmod 711 /workspace/real; ln -s real /workspace/l; ln -s nothing /workspace/broken")
    tree = tmp_path / "t"
    file = write(tmp_path / "f", "f")
    write(tree / "g", "g")
    tree.chmod(0o700)
    assert push(peer, (file, "l/f"))["skipped"] == []
    assert (workspace(emulator) / "real" / "f").read_text() == "f"
    result = push(peer, (tree, "l"), (file, "broken/f"))
    assert reasons(result) == {"l": "in_the_way", "l/g": "in_the_way", "broken/f": "in_the_way"}
    assert stat.S_IMODE((workspace(emulator) / "real").stat().st_mode) == 0o711
    assert os.readlink(workspace(emulator) / "broken") == "nothing"


def test_a_link_that_has_no_place_keeps_nothing_else_from_its_own(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    tree = tmp_path / "t"
    write(tree / "a" / "x", "x")
    write(tree / "b", "b")
    push(peer, (tree, "t"))
    (tree / "a" / "x").unlink()
    (tree / "a").rmdir()
    (tree / "a").symlink_to("b")
    write(tree / "b", "b2")
    (tree / "c").symlink_to("b")
    result = push(peer, (tree, "t"))
    assert reasons(result) == {"t/a": "in_the_way"}
    there = workspace(emulator) / "t"
    assert ((there / "b").read_text(), os.readlink(there / "c"), (there / "a" / "x").read_text()) == ("b2", "b", "x")


def test_a_file_that_became_a_directory_and_a_file_again(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    file = write(tmp_path / "f", "F")
    push(peer, (file, "x/a"))
    assert push(peer, (file, "x/a/below"))["skipped"] == []
    assert (workspace(emulator) / "x" / "a" / "below").read_text() == "F"
    assert reasons(push(peer, (file, "x/a"))) == {"x/a": "in_the_way"}
    assert delete(peer, "x/a")["deleted"] == 1
    assert push(peer, (file, "x/a"))["sent"] == 1
    put(peer, file, "x/a/b")  # what a push has put there a put may replace too
    assert reasons(push(peer, (file, "x/a"))) == {"x/a": "in_the_way"}


def test_what_would_be_in_a_file_of_the_same_push_is_named(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    tree = tmp_path / "t"
    write(tree / "x", "file x")
    (tree / "l").symlink_to("x")
    file = write(tmp_path / "f", "below")
    for sent in (2, 0):
        result = push(peer, (tree, "t"), (file, "t/x/y"), (file, "t/x/y/z"), (file, "t/l/y"), (file, "t/x-"))
        assert reasons(result) == {"t/x/y": "in_the_way", "t/x/y/z": "in_the_way", "t/l/y": "in_the_way"}
        assert (result["sent"], result["unchanged"]) == (sent + bool(sent), 3 - sent - bool(sent))
    assert (workspace(emulator) / "t" / "x").read_text() == "file x"


def test_a_file_that_nobody_pushed_is_not_replaced_by_a_directory(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    peer.sh("echo precious > /workspace/notes.txt")
    tree = tmp_path / "t"
    write(tree / "q", "q")
    with pytest.raises(RpcFailure) as refused:
        put(peer, tree, "notes.txt")
    assert refused.value.name == "in_the_way"
    assert reasons(push(peer, (tree, "notes.txt"), (tree / "q", "notes.txt/sub/q"))) == {
        "notes.txt": "in_the_way", "notes.txt/q": "in_the_way", "notes.txt/sub/q": "in_the_way"}
    assert (workspace(emulator) / "notes.txt").read_text() == "precious\n"


def test_a_push_that_was_cut_off_still_knows_what_is_its_own(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    """A file that became a directory: what was remembered of the file must outlive a push that did not get through."""
    tree = tmp_path / "t"
    write(tree / "x", "file")
    push(peer, (tree, "t"))
    (tree / "x").unlink()
    write(tree / "x" / "y", "below")
    emulator.fault({"status": 401}, method="POST", route=EXEC.split(" ")[1], times=1)
    with pytest.raises(RpcFailure):
        push(peer, (tree, "t"))
    assert push(peer, (tree, "t"))["skipped"] == []
    assert describe(workspace(emulator) / "t") == describe(tree)


@pytest.mark.parametrize("depth", [600, 1500])
def test_no_depth_is_too_deep(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, depth: int) -> None:
    tree = tmp_path / "t"
    deep = tree.joinpath(*["d"] * depth)
    subprocess.run(["mkdir", "-p", deep], check=True)
    write(deep / "f", "1")
    assert push(peer, (tree, "t"))["sent"] == 1
    write(deep / "f", "22")
    assert push(peer, (tree, "t"))["sent"] == 1
    assert (workspace(emulator) / "t").joinpath(*["d"] * depth, "f").read_text() == "22"
    assert delete(peer, "t")["deleted"] == 1
    assert not (workspace(emulator) / "t").exists()
    subprocess.run(["rm", "-r", tree], check=True)  # what cleans up after tests goes no deeper than 1000


def test_a_tree_deeper_than_any_path_is_deleted(peer: Peer, emulator: Emulator) -> None:
    program = "import os\nos.chdir('/workspace')\nfor i in range(3000):\n os.mkdir('dd'); os.chdir('dd')\nopen('f', 'w')\nos.chmod('.', 0o555)"
    assert peer.run("python3", "-c", program).returncode == 0
    assert delete(peer, "dd") == {"deleted": 1, "missing": 0, "failed": [], "failed_more": 0}
    assert not (workspace(emulator) / "dd").exists()


@pytest.mark.parametrize("when", [-(10**9), -1, 0, 1 << 33, 1 << 40])
def test_files_of_any_time(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, when: int) -> None:
    file = write(tmp_path / "f", "x")
    os.utime(file, (when, when))
    assert push(peer, (file, "f"))["sent"] == 1
    assert (workspace(emulator) / "f").stat().st_mtime == file.stat().st_mtime
    assert push(peer, (file, "f"))["unchanged"] == 1


@pytest.mark.parametrize("holes", [3000, 50_000])
def test_a_file_with_many_holes(peer: Peer, daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path, holes: int) -> None:
    file = tmp_path / "f"
    with open(file, "wb") as out:
        for i in range(holes):
            os.pwrite(out.fileno(), b"x", i * 8192)
        out.truncate(holes * 8192)
    assert push(peer, (file, "d/f"))["bytes"] == holes * 8192
    there = workspace(emulator) / "d" / "f"
    with open(file, "rb") as mine, open(there, "rb") as theirs:
        while block := mine.read(1 << 20):
            assert theirs.read(1 << 20) == block
        assert theirs.read(1) == b""
    assert daemon.rss_kib() < 32 << 10
    assert push(peer, (file, "d/f"))["unchanged"] == 1


def test_deleting_leaves_nothing_behind(peer: Peer, emulator: Emulator) -> None:
    peer.sh("true")
    sync = workspace(emulator) / ".deepinfra-sandboxd" / "sync"
    many = [f"m/file-with-a-rather-long-name-{i}" for i in range(6000)]
    for _ in range(3):
        assert delete(peer, *many)["missing"] == 6000
        assert [path.name for path in sync.iterdir() if path.suffix != ".done"] == []
        assert len(list(sync.iterdir())) == 1


@pytest.mark.parametrize("count", [1, 6000])
def test_deleting_is_told_as_it_was_though_the_answer_was_lost(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, count: int) -> None:
    push(peer, (write(tmp_path / "f", "x"), "f"))
    emulator.fault_exec({"act_then_drop": "done"}, times=2)
    missing = [f"m/file-with-a-rather-long-name-{i}" for i in range(count - 1)]
    result = delete(peer, "f", *missing)
    assert (result["deleted"], result["missing"]) == (1, count - 1)


def test_what_was_remembered_of_sandboxes_that_are_gone_goes_too(peer: Peer, daemon: Daemon, tmp_path: pathlib.Path) -> None:
    file = write(tmp_path / "f", "x")
    for i in range(4):
        key = {"profile": "default", "task": f"t{i}"}
        peer.call("fs.push", {"key": key, "files": [{"host": str(file), "remote": "d/f"}]})
        peer.call("sandbox.terminate", {"key": key})
    assert len(os.listdir(daemon.state_dir / "manifests")) <= 1
