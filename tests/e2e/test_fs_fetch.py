"""fs.get, fs.put, fs.pull and fs.delete: what comes back, what does not, and a sandbox that lies."""

from __future__ import annotations

import os
import pathlib
import tarfile
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator
from support.inside import HARMLESS, HOSTILE, HOSTILE_TREE, lie, member, packed, told_of
from support.rpc import DEFAULT_KEY, Peer, RpcFailure, b64
from support.scenes import workspace
from support.trees import describe, make_tree, without_marker


def call(peer: Peer, method: str, **params: Any) -> dict[str, Any]:
    return peer.call("fs." + method, {"key": DEFAULT_KEY, **params})


def put(peer: Peer, host: pathlib.Path, remote: str, **more: Any) -> dict[str, Any]:
    return call(peer, "put", host=str(host), remote=remote, **more)


def get(peer: Peer, remote: str, host: pathlib.Path, **more: Any) -> dict[str, Any]:
    return call(peer, "get", remote=remote, host=str(host), **more)


def nothing_left(emulator: Emulator, daemon: Daemon, *directories: pathlib.Path) -> None:
    """No temporary file on either side, once the next transfer has swept."""
    for directory in directories:
        assert [name for name in os.listdir(directory) if name.startswith(".deepinfra-sandboxd-")] == []
    assert list((daemon.state_dir / "stages").glob("*")) == []


@pytest.mark.parametrize("seed", range(4))
def test_trees_come_back_as_they_went(peer: Peer, daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path, seed: int) -> None:
    make_tree(tmp_path / "tree", seed + 100)
    sent = put(peer, tmp_path / "tree", "/workspace/a/tree")
    assert sent["skipped"] == []
    got = get(peer, "a/tree", tmp_path / "back")
    assert (got["kind"], got["files"], got["skipped"]) == ("directory", sent["files"], [])
    assert describe(tmp_path / "back") == describe(tmp_path / "tree")
    nothing_left(emulator, daemon, tmp_path)


def test_times_before_1970_and_after_2242(peer: Peer, tmp_path: pathlib.Path) -> None:
    peer.sh("mkdir s; cd s; touch -d '1960-01-01 UTC' a; touch -d '2300-01-01 UTC' b; touch -d '1969-12-31 23:59:58.5 UTC' c; touch -d @5 d")
    times = {"a": -315619200, "b": 10413792000, "c": -2, "d": 5}  # to the second, rounded down
    get(peer, "s", tmp_path / "s")
    assert {name: (tmp_path / "s" / name).stat().st_mtime for name in times} == times
    put(peer, tmp_path / "s", "back")
    assert peer.sh("stat -c %Y back/*").stdout.split() == [b"%d" % time for time in times.values()]


@pytest.mark.parametrize("where", [".deepinfra-sandboxd", ".deepinfra-sandboxd/sync"])
def test_a_file_where_transfers_have_their_directory(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, where: str) -> None:
    (tmp_path / "f").write_text("f")
    peer.sh(f"mkdir -p .deepinfra-sandboxd; rm -r {where}; echo precious >{where}; echo g >g")
    for transfer in (lambda: put(peer, tmp_path / "f", "f"), lambda: get(peer, "g", tmp_path / "g")):
        with pytest.raises(RpcFailure) as refused:
            transfer()
        assert refused.value.name == "sync_failed" and "/workspace/.deepinfra-sandboxd" in f"{refused.value.message} {refused.value.hint}"
    assert (workspace(emulator) / where).read_text() == "precious\n"
    os.unlink(workspace(emulator) / where)
    put(peer, tmp_path / "f", "f")
    get(peer, "g", tmp_path / "g")
    assert (workspace(emulator) / "f").read_text() == "f" and (tmp_path / "g").read_text() == "g\n"


def test_a_file_is_replaced_and_a_directory_merged(peer: Peer, tmp_path: pathlib.Path) -> None:
    peer.sh("mkdir -p /workspace/d/sub; echo new > /workspace/d/f; echo in > /workspace/d/sub/g; chmod 700 /workspace/d/sub")
    target = tmp_path / "d"
    (target / "sub").mkdir(parents=True)
    (target / "f").write_text("old")
    (target / "mine").write_text("mine")
    before = (target / "sub").stat().st_mode
    get(peer, "d", target)
    assert {name: (target / name).read_text() for name in ("f", "mine", "sub/g")} == {"f": "new\n", "mine": "mine", "sub/g": "in\n"}
    assert (target / "sub").stat().st_mode == before
    got = get(peer, "d/f", tmp_path / "f")
    assert got["kind"] == "file" and (tmp_path / "f").read_text() == "new\n"
    with pytest.raises(RpcFailure) as in_the_way:
        get(peer, "d/f", target)
    assert in_the_way.value.name == "in_the_way"


def test_directories_of_this_side_are_opened_to_nobody(peer: Peer, tmp_path: pathlib.Path) -> None:
    peer.sh("mkdir -p d/sub d/new; touch d/sub/f; chmod 777 d d/sub d/new")
    target = tmp_path / "d"
    for each in (target, target / "sub"):
        each.mkdir()
        each.chmod(0o1700)
    get(peer, "d", target)
    assert [each.stat().st_mode & 0o7777 for each in (target, target / "sub", target / "new")] == [0o1700, 0o1700, 0o777]
    assert (target / "sub" / "f").exists()


def test_links_on_this_side_are_not_followed(peer: Peer, tmp_path: pathlib.Path) -> None:
    peer.sh("mkdir -p /workspace/d/sub; echo x > /workspace/d/sub/f")
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "sub").symlink_to(outside)
    got = get(peer, "d", tmp_path / "d")
    assert [each["reason"] for each in got["skipped"]] == ["in_the_way"]
    assert os.listdir(outside) == []


def test_large_and_sparse_files_come_in_parts(peer: Peer, daemon: Daemon, tmp_path: pathlib.Path) -> None:
    peer.sh("mkdir /workspace/big; head -c 130000000 /dev/urandom > /workspace/big/noise; truncate -s 3G /workspace/big/holes; "
            "printf end >> /workspace/big/holes")
    total = peer.sh("sha256sum < /workspace/big/noise").stdout.split()[0]
    got = get(peer, "big", tmp_path / "big")
    assert got["bytes"] == 130_000_000 + (3 << 30) + 3 and got["wire_bytes"] < 140_000_000
    holes = tmp_path / "big" / "holes"
    assert holes.stat().st_size == (3 << 30) + 3 and holes.stat().st_blocks < 1000
    put(peer, tmp_path / "big" / "noise", "again")
    assert peer.sh("sha256sum < /workspace/again").stdout.split()[0] == total
    assert daemon.rss_kib() < 32 << 10


def test_what_is_not_there_or_too_much_is_said_before_anything_is_written(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    with pytest.raises(RpcFailure) as none:
        get(peer, "x", tmp_path / "x")
    assert none.value.name == "sandbox_not_found" and emulator.count("POST /v1/sandboxes") == 0
    peer.sh("head -c 100000 /dev/urandom > /workspace/f")
    for remote, more, name in (("nothing", {}, "file_not_found"), ("f", {"max_bytes": 99999}, "too_large"),
                               ("/workspace/.deepinfra-sandboxd", {}, "path_outside_workspace")):
        with pytest.raises(RpcFailure) as refused:
            get(peer, remote, tmp_path / "x", **more)
        assert refused.value.name == name
    with pytest.raises(RpcFailure) as nowhere:
        get(peer, "f", tmp_path / "no" / "directory")
    assert nowhere.value.name == "host_file"
    assert not (tmp_path / "x").exists()
    assert get(peer, "f", tmp_path / "x", max_bytes=100000)["bytes"] == 100000


def test_a_file_that_is_not_here_cannot_be_put(peer: Peer, tmp_path: pathlib.Path) -> None:
    with pytest.raises(RpcFailure) as missing:
        put(peer, tmp_path / "nothing", "x")
    assert missing.value.name == "host_file" and "No such file" in missing.value.message
    peer.sh("mkdir -p /workspace/dir/full")
    (tmp_path / "f").write_text("f")
    with pytest.raises(RpcFailure) as in_the_way:
        put(peer, tmp_path / "f", "dir")
    assert in_the_way.value.name == "in_the_way"


def test_a_pull_is_one_tar_named_from_the_root(peer: Peer, daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    make_tree(tmp_path / "tree", 7)
    peer.call("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(tmp_path / "tree"), "remote": "/workspace/.hermes"}]})
    got = call(peer, "pull", remote="/workspace/.hermes", host=str(tmp_path / "out.tar"))
    assert (tmp_path / "out.tar").stat().st_mode & 0o777 == 0o600
    with tarfile.open(tmp_path / "out.tar", errors="surrogateescape", encoding="utf-8") as archive:
        names = {os.fsencode(member.name) for member in archive}
        archive.extractall(tmp_path / "unpacked", filter="fully_trusted") if hasattr(tarfile, "fully_trusted_filter") else archive.extractall(tmp_path / "unpacked")
    assert all(name == b"workspace/.hermes" or name.startswith(b"workspace/.hermes/") for name in names)
    assert describe(tmp_path / "unpacked" / "workspace" / ".hermes") == describe(tmp_path / "tree")
    assert got["files"] == sum(what[0] != "directory" for what in describe(tmp_path / "tree").values())
    nothing_left(emulator, daemon, tmp_path)


def test_a_pull_may_leave_out_what_is_as_it_was_pushed(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    odd = pathlib.Path(os.fsdecode(b"\xff new\nline"))
    contents = {"same": b"x" * 3_000_000, "empty": b"", "edited": b"here", "saved here since": b"a", "deleted here since": b"a", odd: b"odd"}
    tree = tmp_path / "tree"
    tree.mkdir()
    for name, content in contents.items():
        (tree / name).write_bytes(content)
    peer.call("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(tree), "remote": "/workspace/t"}]})
    (tree / "saved here since").write_bytes(b"b")
    (tree / "deleted here since").unlink()
    (tree / "same").touch()
    # What the sandbox itself has made, or made of it: of the same size, a copy under another name, a link in its place.
    peer.sh("cd /workspace/t; printf hehe > edited; cp same copy; : > new; rm empty; ln -s same empty")
    assert taken(peer, tmp_path, changed_only=True) == {"edited", "copy", "new", "empty"}
    assert taken(peer, tmp_path) == {"edited", "copy", "new", *map(str, contents)}
    # Too much is what is left, and a file that was named itself is never left out.
    with pytest.raises(RpcFailure) as refused:
        call(peer, "pull", remote="t", host=str(tmp_path / "t.tar"), changed_only=True, max_bytes=2_000_000)
    assert refused.value.name == "too_large"  # the copy
    peer.sh("rm /workspace/t/copy")
    call(peer, "pull", remote="t", host=str(tmp_path / "t.tar"), changed_only=True, max_bytes=2_000_000)
    assert call(peer, "pull", remote="t/same", host=str(tmp_path / "t.tar"), changed_only=True)["files"] == 1


def taken(peer: Peer, tmp_path: pathlib.Path, **more: bool) -> set[str]:
    """What a pull of t brings that is no directory."""
    call(peer, "pull", remote="t", host=str(tmp_path / "t.tar"), **more)
    with tarfile.open(tmp_path / "t.tar", errors="surrogateescape", encoding="utf-8") as archive:
        return {member.name.removeprefix("workspace/t/") for member in archive if not member.isdir()}


def test_delete_takes_any_spelling(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    odd = [b"two words", b"-rf", b"$(touch x)", b"new\nline", b"\xff", b"*", b"quo'te"]
    for name in odd:
        (pathlib.Path(os.fsdecode(os.fsencode(tree) + b"/" + name))).write_bytes(b"x")
    peer.call("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(tree), "remote": "t"}]})
    peer.sh("mkdir -p /workspace/t/deep/er; chmod 500 /workspace/t/deep; ln -s /workspace/keep /workspace/t/link; mkdir /workspace/keep")
    assert call(peer, "delete", remotes=[b64(b"t/" + odd[0]), "t//deep", "./t/link", "t/nothing"])["deleted"] == 3
    assert (workspace(emulator) / "keep").is_dir()
    result = call(peer, "delete", remotes=[b64(b"/workspace/t/" + name) for name in odd])
    assert (result["deleted"], result["missing"], result["failed"]) == (len(odd) - 1, 1, [])
    assert without_marker(describe(workspace(emulator) / "t")) == {}
    again = peer.call("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(tree), "remote": "t"}]})
    assert again["sent"] == len(odd)


def test_thousands_of_paths_are_deleted_at_once(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    peer.sh("mkdir /workspace/m; cd /workspace/m; for i in $(seq 6000); do : > file-with-a-rather-long-name-$i; done")
    result = call(peer, "delete", remotes=[f"m/file-with-a-rather-long-name-{i}" for i in range(1, 6002)])
    assert (result["deleted"], result["missing"]) == (6000, 1)
    assert os.listdir(workspace(emulator) / "m") == []


def test_delete_stays_below_workspace_and_makes_no_sandbox(peer: Peer, emulator: Emulator) -> None:
    assert call(peer, "delete", remotes=["x", "y"])["missing"] == 2
    assert emulator.count("POST /v1/sandboxes") == 0
    for path in ("/workspace", "/etc/passwd", "a/../../etc", "/workspace/.deepinfra-sandboxd/sync"):
        with pytest.raises(RpcFailure) as refused:
            call(peer, "delete", remotes=["good", path])
        assert refused.value.name == "path_outside_workspace"
    peer.sh("ln -s /tmp /workspace/escape; touch /tmp/keep")
    result = call(peer, "delete", remotes=["escape/keep"])
    assert [each["reason"] for each in result["failed"]] == ["failed"]
    assert peer.sh("test -e /tmp/keep").returncode == 0


@pytest.mark.parametrize("method", ["get", "pull"])
def test_nothing_hostile_reaches_the_host(unpacking: Daemon, emulator: Emulator, tmp_path: pathlib.Path, method: str) -> None:
    room = tmp_path / "room"
    room.mkdir()
    with unpacking.peer() as peer:
        lie(peer, emulator, packed(HOSTILE_TREE), **told_of(HOSTILE_TREE))
        before = set(os.listdir(tmp_path))
        got = call(peer, method, remote="d", host=str(room / "d"))
    assert {os.fsencode(each["remote"]) for each in got["skipped"] if each["reason"] == "refused"} == {
        b"/" + os.fsencode(each.name) for each, _ in HOSTILE}
    if method == "pull":
        with tarfile.open(room / "d") as archive:
            assert {each.name for each in archive} == {"workspace/d", *(f"workspace/d/{name}" for name in HARMLESS)}
            assert archive.getmember("workspace/d/good").mode == 0o755
        return
    assert {os.fsdecode(name) for name in describe(room / "d")} == {"a", *HARMLESS}
    assert describe(room / "d")[b"good"] == ("file", 0o755, b"good")
    assert set(os.listdir(tmp_path)) == before and not os.path.lexists("/etc/evil")
    assert set(os.listdir(room)) == {"d"}
    nothing_left(emulator, unpacking, room)


def test_what_is_left_out_is_counted_however_much_it_is(peer: Peer, tmp_path: pathlib.Path) -> None:
    peer.sh("mkdir /workspace/d; cd /workspace/d; for i in $(seq 2500); do ln -s /usr/bin/python3 $i; done")
    result = get(peer, "d", tmp_path / "d")
    assert len(result["skipped"]) + result["skipped_more"] == 2500


@pytest.mark.parametrize("answer", [
    {"bytes": 3}, {"members": 0}, {"members": 2}, {"members": None}, {"sizes": [10]}, {"sizes": [1 << 40]}, {"sizes": []}, {"sizes": [512]}, {"sizes": ["x"]}, {"bytes": -1}, {"drop": [1.5]}, {"skipped": [1]},
    {"raw": "no json"}, {"raw": "[]"}, {"raw": "{}"}, {"raw": '{"error": "\\u001b[31mred"}'}, {"raw": "x" * 5_000_000},
])
def test_a_sandbox_that_contradicts_itself_is_an_error(peer: Peer, daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path, answer: dict[str, Any]) -> None:
    lie(peer, emulator, packed([(member("workspace/d"), b"four")]), **{"members": 1, "bytes": 4, **answer})
    with pytest.raises(RpcFailure) as refused:
        get(peer, "d", tmp_path / "d")
    assert refused.value.name == "sync_failed" and "\x1b" not in refused.value.message
    assert not (tmp_path / "d").exists()
    nothing_left(emulator, daemon, tmp_path)
    assert peer.call("daemon.ping") == {}
