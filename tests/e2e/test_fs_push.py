"""fs.push: what is sent, what is not, and what is there afterwards."""

from __future__ import annotations

import os
import pathlib
import socket
import stat
from collections.abc import Callable
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator
from support.rpc import DEFAULT_KEY, Peer, RpcFailure, b64
from support.scenes import workspace
from support.trees import describe, make_tree, without_marker

REQUEST_BOUND_FIRST = 4
REQUEST_BOUND_CHANGED = 3


def push(peer: Peer, *pairs: tuple[Any, Any], **more: Any) -> dict[str, Any]:
    files = [{"host": value(host), "remote": value(remote)} for host, remote in pairs]
    return peer.call("fs.push", {"key": DEFAULT_KEY, "files": files, **more})


def value(path: Any) -> Any:
    return b64(path) if isinstance(path, bytes) else str(path)


def ready(peer: Peer) -> None:
    peer.call("sandbox.ensure", {"key": DEFAULT_KEY})


def test_a_file_arrives_with_its_mode(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    source = tmp_path / "run.sh"
    source.write_bytes(b"#!/bin/sh\necho hi\n")
    source.chmod(0o750)
    result = push(peer, (source, "/workspace/bin/run.sh"))
    assert (result["sent"], result["unchanged"], result["skipped"], result["bytes"]) == (1, 0, [], 18)
    there = workspace(emulator) / "bin" / "run.sh"
    assert there.read_bytes() == source.read_bytes()
    assert there.stat().st_mode & 0o7777 == 0o750
    assert int(there.stat().st_mtime) == int(source.stat().st_mtime)


@pytest.mark.parametrize("seed", range(6))
def test_trees_of_any_kind_end_equal(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, seed: int) -> None:
    make_tree(tmp_path / "tree", seed)
    result = push(peer, (tmp_path / "tree", "/workspace/some/tree"))
    assert result["skipped"] == []
    assert without_marker(describe(workspace(emulator) / "some" / "tree")) == describe(tmp_path / "tree")
    again = push(peer, (tmp_path / "tree", "/workspace/some/tree"))
    assert (again["sent"], again["unchanged"]) == (0, result["sent"])


def small_files(root: pathlib.Path, count: int) -> list[tuple[Any, Any]]:
    root.mkdir()
    pairs = []
    for i in range(count):
        file = root / f"file {i}"
        file.write_bytes(os.urandom(1000 + i))
        pairs.append((file, f"/workspace/.hermes/skills/{i % 20}/file {i}"))
    return pairs


@pytest.mark.parametrize("how", ["one by one", "as a directory"])
def test_six_hundred_files_take_few_requests_and_unchanged_none(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, how: str) -> None:
    ready(peer)
    pairs = small_files(tmp_path / "files", 600)
    asked = pairs if how == "one by one" else [(tmp_path / "files", "/workspace/files")]
    emulator.reset_stats()
    assert push(peer, *asked)["sent"] == 600
    assert emulator.count() <= REQUEST_BOUND_FIRST
    emulator.reset_stats()
    assert push(peer, *asked)["unchanged"] == 600
    assert emulator.count() == 0
    pairs[7][0].write_bytes(b"new")
    assert push(peer, *asked)["sent"] == 1
    assert emulator.count() <= REQUEST_BOUND_CHANGED


def test_another_client_and_another_daemon_still_know(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path) -> None:
    pairs = small_files(tmp_path / "files", 30)
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        push(peer, *pairs)
    daemon.kill()
    daemon.start()
    with daemon.peer() as peer:
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})
        emulator.reset_stats()
        result = push(peer, *pairs)
        assert (result["sent"], result["unchanged"]) == (0, 30)
        assert emulator.count() == 0
        assert peer.status()["sandboxes"][0]["state"] == "stopped"


def test_touched_copies_cost_nothing_and_new_modes_are_sent(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    source = tmp_path / "f"
    source.write_bytes(b"content")
    push(peer, (source, "/workspace/d/f"))
    copy = tmp_path / "staged"
    copy.write_bytes(b"content")
    os.utime(copy, ns=(1, 1))
    assert push(peer, (copy, "/workspace/d/f"))["unchanged"] == 1
    copy.chmod(0o600)
    assert push(peer, (copy, "/workspace/d/f"))["sent"] == 1
    assert (workspace(emulator) / "d" / "f").stat().st_mode & 0o777 == 0o600


def test_a_change_that_leaves_size_and_time_is_seen(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    source = tmp_path / "f"
    source.write_bytes(b"one")
    os.utime(source, ns=(10**18, 10**18))
    push(peer, (source, "/workspace/d/f"))
    source.write_bytes(b"two")
    os.utime(source, ns=(10**18, 10**18))
    assert push(peer, (source, "/workspace/d/f"))["sent"] == 1
    assert (workspace(emulator) / "d" / "f").read_bytes() == b"two"


def test_an_edit_in_the_sandbox_is_not_overwritten_unless_forced(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    source = tmp_path / "f"
    source.write_bytes(b"mine")
    push(peer, (source, "/workspace/d/f"))
    assert peer.sh("echo edited > /workspace/d/f").returncode == 0
    assert push(peer, (source, "/workspace/d/f"))["unchanged"] == 1
    assert (workspace(emulator) / "d" / "f").read_bytes() == b"edited\n"
    assert push(peer, (source, "/workspace/d/f"), force=True)["sent"] == 1
    assert (workspace(emulator) / "d" / "f").read_bytes() == b"mine"


def test_a_fresh_sandbox_starts_from_nothing(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    pairs = small_files(tmp_path / "files", 5)
    push(peer, *pairs)
    peer.call("sandbox.terminate", {"key": DEFAULT_KEY})
    assert push(peer, *pairs)["sent"] == 5
    assert len(list((workspace(emulator) / ".hermes" / "skills").rglob("file *"))) == 5


def test_a_sandbox_deleted_elsewhere_is_replaced_and_filled(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    pairs = small_files(tmp_path / "files", 5)
    first = push(peer, *pairs)
    emulator.delete_sandbox(first["sandbox_id"])
    pairs[0][0].write_bytes(b"changed")
    second = push(peer, *pairs)
    assert second["sandbox_id"] != first["sandbox_id"]
    assert second["sent"] == 5


def test_a_tree_removed_inside_is_noticed_by_the_next_push_that_sends(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    pairs = small_files(tmp_path / "files", 8)
    push(peer, *pairs)
    assert peer.sh("rm -rf /workspace/.hermes").returncode == 0
    pairs[0][0].write_bytes(b"changed")
    assert push(peer, *pairs)["sent"] == 8
    assert len(list((workspace(emulator) / ".hermes" / "skills").rglob("file *"))) == 8
    assert push(peer, *pairs)["unchanged"] == 8


def test_what_cannot_be_sent_is_named_and_the_rest_is_sent(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "good").write_bytes(b"good")
    os.mkfifo(tree / "fifo")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tree / "sock"))
    (tree / "out").symlink_to("../../etc/passwd")
    (tree / "absolute").symlink_to("/etc/passwd")
    (tree / "in").symlink_to("good")
    result = push(peer, (tree, "t"), (tmp_path / "nothing", "n"))
    skipped = {pathlib.PurePath(each["remote"]).name: each["reason"] for each in result["skipped"]}
    assert skipped == {"fifo": "special", "sock": "special", "out": "link_outside", "absolute": "link_outside", "n": "missing"}
    assert sorted(without_marker(describe(workspace(emulator) / "t"))) == [b"good", b"in"]
    assert os.readlink(workspace(emulator) / "t" / "in") == "good"


def devices(tree: pathlib.Path) -> list[str]:
    """Names of what only root may make; those would be harmless to read."""
    try:
        os.mknod(tree / "character", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        os.mknod(tree / "block", stat.S_IFBLK | 0o666, os.makedev(1, 0))
    except PermissionError as problem:
        pytest.skip(f"no devices can be made: {problem}")
    return ["character", "block"]


def test_of_two_for_one_place_only_the_later_is_told_of(peer: Peer, tmp_path: pathlib.Path) -> None:
    (tmp_path / "f").write_text("f")
    pairs = [(tmp_path / "nothing", "a"), (tmp_path / "nothing", "b"), (tmp_path / "f", "a"), (tmp_path / "f", "c"), (tmp_path / "nothing", "c")]
    result = push(peer, *pairs)
    assert result["sent"] == 2
    assert [each["remote"] for each in result["skipped"]] == ["/workspace/b", "/workspace/c"]


def test_a_file_that_does_not_say_how_long_it_is(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    (tmp_path / "empty").touch()
    result = push(peer, (pathlib.Path("/proc/cpuinfo"), "cpuinfo"), (tmp_path / "empty", "empty"))
    assert [(each["host"], each["reason"]) for each in result["skipped"]] == [("/proc/cpuinfo", "special")]
    assert result["sent"] == 1 and (workspace(emulator) / "empty").exists() and not (workspace(emulator) / "cpuinfo").exists()


def test_devices_are_named_wherever_they_are(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "good").write_bytes(b"good")
    names = devices(tree / "sub")
    (tmp_path / "link").symlink_to(tree / "sub" / "block")
    result = push(peer, (tree, "t"), (tree / "sub" / "character", "c"), (tmp_path / "link", "b"))
    assert {each["remote"]: (each["host"], each["reason"]) for each in result["skipped"]} == {
        **{f"/workspace/t/sub/{name}": (f"{tree}/sub/{name}", "special") for name in names},
        "/workspace/c": (f"{tree}/sub/character", "special"), "/workspace/b": (f"{tree}/sub/block", "special")}
    assert all("device" in each["text"] for each in result["skipped"])
    assert sorted(without_marker(describe(workspace(emulator) / "t"))) == [b"good", b"sub"]
    assert not (workspace(emulator) / "c").exists() and not (workspace(emulator) / "b").exists()
    with pytest.raises(RpcFailure) as refused:
        peer.call("fs.put", {"key": DEFAULT_KEY, "host": f"{tree}/sub/character", "remote": "c"})
    assert refused.value.name == "host_file" and f"{tree}/sub/character" in refused.value.message and "device" in refused.value.message


LINKS = {"out": ("../x", True), "sub/out": ("../../x", True), "sub/deep/root": ("/", True), "sub/through": ("../sub/../../x", True),
         "in": ("sub/f", False), "sub/in": ("../sub/deep", False), "sub/deep/broken": ("../../nothing", False), "self": (".", False)}


def test_links_that_lead_out_are_named_and_others_kept(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    tree = tmp_path / "tree"
    (tree / "sub" / "deep").mkdir(parents=True)
    (tree / "sub" / "f").write_text("f")
    (tmp_path / "x").write_text("a secret")
    for path, (target, _) in LINKS.items():
        (tree / path).symlink_to(target)
    result = push(peer, (tree, "t"))
    assert {each["remote"]: each["reason"] for each in result["skipped"]} == {
        f"/workspace/t/{path}": "link_outside" for path, (_, out) in LINKS.items() if out}
    expected = {path: what for path, what in describe(tree).items() if not LINKS.get(os.fsdecode(path), ("", False))[1]}
    assert without_marker(describe(workspace(emulator) / "t")) == expected
    assert push(peer, (tree, "t"))["sent"] == 0


def test_a_directory_is_never_lost_to_a_file(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    peer.sh("mkdir -p /workspace/x/full /workspace/x/empty; echo keep > /workspace/x/full/keep; echo file > /workspace/x/was-file")
    source = tmp_path / "f"
    source.write_bytes(b"f")
    result = push(peer, (source, "x/full"), (source, "x/empty"), (source, "x/was-file/below"))
    assert [(each["remote"], each["reason"]) for each in result["skipped"]] == [("/workspace/x/full", "in_the_way"), ("/workspace/x/was-file/below", "in_the_way")]
    assert (workspace(emulator) / "x" / "full" / "keep").exists()
    assert (workspace(emulator) / "x" / "empty").read_bytes() == b"f"
    assert (workspace(emulator) / "x" / "was-file").read_bytes() == b"file\n"


@pytest.mark.parametrize("remote", ["/etc/x", "/workspace/../etc/x", "..", "/workspacex/f", "/workspace/.deepinfra-sandboxd/shim", "a/../b", ""])
def test_only_paths_below_workspace(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, remote: str) -> None:
    with pytest.raises(RpcFailure) as refused:
        push(peer, (tmp_path, remote))
    assert refused.value.name == "path_outside_workspace"
    assert emulator.count() == 0


def test_a_link_that_leads_out_of_the_workspace_is_not_followed(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    peer.sh("ln -s /tmp /workspace/escape")
    source = tmp_path / "f"
    source.write_bytes(b"f")
    result = push(peer, (source, "escape/f"))
    assert [each["reason"] for each in result["skipped"]] == ["failed"]
    assert peer.sh("test -e /tmp/f").returncode == 1


def test_large_files_travel_in_parts(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    emulator.config(file_limit_bytes=100 << 20)
    sizes = {"a": (100 << 20), "b": (100 << 20) + 1, "c": 150 << 20}
    for name, size in sizes.items():
        with open(tmp_path / name, "wb") as file:
            for _ in range(size >> 20):
                file.write(os.urandom(1 << 20))
            file.write(b"x" * (size & 0xFFFFF))
        result = push(peer, (tmp_path / name, f"big/{name}"))
        assert result["sent"] == 1 and result["bytes"] == size
        there = workspace(emulator) / "big" / name
        assert there.stat().st_size == size
        with open(tmp_path / name, "rb") as mine, open(there, "rb") as theirs:
            while block := mine.read(1 << 20):
                assert theirs.read(1 << 20) == block
        os.unlink(tmp_path / name)


def test_five_sparse_gigabytes(peer: Peer, daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    source = tmp_path / "sparse"
    with open(source, "wb") as file:
        file.truncate(5 << 30)
        for at, text in ((0, b"begin"), (3 << 30, b"middle"), ((5 << 30) - 3, b"end")):
            file.seek(at)
            file.write(text)
    result = push(peer, (source, "s/sparse"))
    assert result["bytes"] == 5 << 30 and result["wire_bytes"] < 1 << 20
    there = workspace(emulator) / "s" / "sparse"
    assert there.stat().st_size == 5 << 30 and there.stat().st_blocks < 1000
    with open(there, "rb") as file:
        for at, text in ((0, b"begin"), (3 << 30, b"middle"), ((5 << 30) - 3, b"end")):
            file.seek(at)
            assert file.read(len(text)) == text
    assert daemon.rss_kib() < 32 << 10


def test_a_command_tells_that_a_tree_was_removed_and_costs_no_request(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    """The command that removes the tree cannot tell; the next one does, before anything is pushed."""
    pairs = small_files(tmp_path / "files", 8)
    other = tmp_path / "other"
    other.write_bytes(b"other")
    push(peer, *pairs, (other, "elsewhere/other"))
    peer.sh("rm -rf /workspace/.hermes")
    emulator.reset_stats()
    peer.sh("true")
    assert emulator.count() == 1
    result = push(peer, *pairs, (other, "elsewhere/other"))
    assert (result["sent"], result["unchanged"]) == (8, 1)
    peer.sh("true")
    assert push(peer, *pairs)["unchanged"] == 8


def test_a_daemon_that_was_restarted_notices_a_removed_tree_too(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path) -> None:
    pairs = small_files(tmp_path / "files", 3)
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        push(peer, *pairs)
        peer.sh("rm -rf /workspace/.hermes")
    daemon.kill()
    daemon.start()
    with daemon.peer() as peer:
        peer.sh("true")
        assert push(peer, *pairs)["sent"] == 3


def test_ten_thousand_files_and_a_deep_tree(peer: Peer, daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    root = tmp_path / "tree"
    for i in range(10_000):
        file = root / f"{i % 100}" / f"{i}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"%d" % i)
    deep = root.joinpath(*["deep"] * 300)
    deep.mkdir(parents=True)
    (deep / "bottom").write_bytes(b"bottom")
    assert push(peer, (root, "many"))["sent"] == 10_001
    assert without_marker(describe(workspace(emulator) / "many")) == describe(root)
    assert daemon.rss_kib() < 32 << 10
    emulator.reset_stats()
    assert push(peer, (root, "many"))["unchanged"] == 10_001
    assert emulator.count() == 0
