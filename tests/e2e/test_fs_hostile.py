"""A sandbox that wants to cost its host more than it was asked for: memory, inodes, depth, time."""

from __future__ import annotations

import gzip
import os
import pathlib
import subprocess
import tarfile
from collections.abc import Callable

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.inside import lie, member, packed
from support.memory import bounded
from support.rpc import DEFAULT_KEY, Peer, RpcFailure

STRETCHES = 1_000_000


def record(key: bytes, value: bytes) -> bytes:
    body = b" " + key + b"=" + value + b"\n"
    size = len(body)
    while size != len(body) + len(b"%d" % size):
        size = len(body) + len(b"%d" % size)
    return b"%d" % size + body


def padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 512)


def head(name: str, kind: bytes, size: int) -> bytes:
    made = member(name, kind)
    made.size = size
    return made.tobuf(tarfile.USTAR_FORMAT)


def extended(name: str, records: bytes, content: bytes) -> bytes:
    return head("pax", b"x", len(records)) + padded(records) + head(name, b"0", len(content)) + padded(content)


def sparse_map() -> bytes:
    """A map in front of the content, as our own helper makes them."""
    table = padded(b"%d\n" % STRETCHES + b"".join(b"%d\n1\n" % (2 * i) for i in range(STRETCHES)))
    return extended("GNUSparseFile.0/f", record(b"GNU.sparse.major", b"1") + record(b"GNU.sparse.minor", b"0") +
                    record(b"GNU.sparse.name", b"workspace/d/f") + record(b"GNU.sparse.realsize", b"%d" % (2 * STRETCHES)),
                    table + b"\0" * STRETCHES)


def sparse_records() -> bytes:
    """One in the extended header itself."""
    numbers = b",".join(b"%d,1" % (2 * i) for i in range(STRETCHES))
    return extended("workspace/d/f", record(b"GNU.sparse.size", b"%d" % (2 * STRETCHES)) + record(b"GNU.sparse.map", numbers), b"\0" * STRETCHES)


def old_sparse() -> bytes:
    """One in blocks of its own behind the header."""
    def blocks(first: int, count: int) -> bytes:
        return b"".join(b"%011o\0%011o\0" % (2 * i, 1) for i in range(first, first + count))

    count = 4 + 21 * (STRETCHES // 21)
    made = bytearray(head("workspace/d/f", b"S", count))
    made[257:265] = b"ustar  \0"
    made[386:482] = blocks(0, 4)
    made[482] = 1
    made[483:495] = b"%011o\0" % (2 * count)
    made[148:156] = b" " * 8
    made[148:156] = b"%06o\0 " % sum(made)
    more = b"".join(blocks(first, 21) + bytes([first + 21 < count]) + b"\0" * 7 for first in range(4, count, 21))
    return bytes(made) + more + padded(b"\0" * count)


def long_name() -> bytes:
    name = b"workspace/d/" + b"n" * (64 << 20)
    return head("././@LongLink", b"L", len(name)) + padded(name) + head("workspace/d/f", b"0", 0)


@pytest.mark.parametrize("method", ["get", "pull"])
@pytest.mark.parametrize(("bomb", "why"), [(sparse_map, "header, or map of a sparse file, is longer"), (old_sparse, "header, or map of a sparse file, is longer"),
                                           (sparse_records, "no proper archive"), (long_name, "no proper archive")], ids=lambda what: getattr(what, "__name__", ""))
def test_a_header_is_never_long(peer: Peer, daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path, method: str, bomb: Callable[[], bytes],
                                why: str) -> None:
    archive = head("workspace/d/", b"5", 0) + bomb() + b"\0" * 1024
    lie(peer, emulator, gzip.compress(archive, 1), members=2, bytes=2 * STRETCHES)
    with bounded(daemon), pytest.raises(RpcFailure) as refused:
        peer.call("fs." + method, {"key": DEFAULT_KEY, "remote": "d", "host": str(tmp_path / "out")})
    assert refused.value.name == "sync_failed" and why in refused.value.message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("method", ["get", "pull"])
def test_there_are_no_more_members_than_were_announced(peer: Peer, daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path, method: str) -> None:
    directories = [(member(f"workspace/d/{i}", tarfile.DIRTYPE), b"") for i in range(20_000)]
    lie(peer, emulator, gzip.compress(packed(directories), 1), members=10, bytes=0)
    with bounded(daemon), pytest.raises(RpcFailure) as refused:
        peer.call("fs." + method, {"key": DEFAULT_KEY, "remote": "d", "host": str(tmp_path / "out"), "max_bytes": 0})
    assert refused.value.name == "sync_failed" and "more members" in refused.value.message
    assert not (tmp_path / "out").exists()


def test_more_members_than_the_disk_has_inodes_for_are_refused_before_they_come(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    free = os.statvfs(tmp_path)
    if free.f_files == 0:
        pytest.skip("this file system makes inodes as they are needed")
    lie(peer, emulator, packed([(member("workspace/d"), b"")]), members=free.f_files + 1, bytes=0)
    with pytest.raises(RpcFailure) as refused:
        peer.call("fs.get", {"key": DEFAULT_KEY, "remote": "d", "host": str(tmp_path / "out")})
    assert refused.value.name == "no_space" and "inodes" in refused.value.message and "this machine" in refused.value.hint
    assert emulator.count("GET /v1/sandboxes/{id}/fs/content") == 0


def test_nothing_more_is_fetched_of_what_is_refused(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    lie(peer, emulator, b"no archive".ljust(1024, b"."), parts=40, members=1, bytes=0)
    emulator.fault({"latency_ms": 50}, times=0, method="GET", route="/v1/sandboxes/{id}/fs/content")
    with pytest.raises(RpcFailure) as refused:
        peer.call("fs.get", {"key": DEFAULT_KEY, "remote": "d", "host": str(tmp_path / "out")})
    assert refused.value.name == "sync_failed" and "no proper archive" in refused.value.message
    assert emulator.count("GET /v1/sandboxes/{id}/fs/content") < 20


def test_no_more_travels_than_what_was_announced_can_take(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    archive = packed([(member("workspace/d"), b"")]).ljust(4 << 20, b"\0")
    lie(peer, emulator, archive, parts=10, members=1, bytes=0, kind="file")
    with pytest.raises(RpcFailure) as refused:
        peer.call("fs.get", {"key": DEFAULT_KEY, "remote": "d", "host": str(tmp_path / "d"), "max_bytes": 0})
    assert refused.value.name == "sync_failed"
    assert emulator.count("GET /v1/sandboxes/{id}/fs/content") == 0


def test_a_directory_is_not_made_again_and_again(unpacking: Daemon, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    directory, file, link = member("workspace/d/x", tarfile.DIRTYPE, mode=0o755), member("workspace/d/x"), member("workspace/d/x", tarfile.SYMTYPE, "y")
    members = [member("workspace/d", tarfile.DIRTYPE, mode=0o755), directory, file, directory, link, directory]
    with unpacking.peer() as peer:
        lie(peer, emulator, packed([(each, b"") for each in members]), members=len(members), bytes=0)
        got = peer.call("fs.get", {"key": DEFAULT_KEY, "remote": "d", "host": str(tmp_path / "d")})
    assert [(each["reason"], each["text"]) for each in got["skipped"]] == [("refused", "a directory is called so")] * 2
    assert (tmp_path / "d" / "x").is_dir()


def test_what_is_refused_leaves_no_memory_behind(peer: Peer, daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    archive = packed([(member("workspace/d"), os.urandom(300_000)), (member("workspace/d"), b"one too many")])
    lie(peer, emulator, archive, members=1, bytes=300_000)
    with bounded(daemon):
        for _ in range(100):
            with pytest.raises(RpcFailure):
                peer.call("fs.pull", {"key": DEFAULT_KEY, "remote": "d", "host": str(tmp_path / "out")})


@pytest.mark.parametrize("method", ["get", "pull"])
def test_nothing_is_made_that_is_deeper_than_a_path_is_long(unpacking: Daemon, emulator: Emulator, tmp_path: pathlib.Path, method: str) -> None:
    room = tmp_path / "room"
    room.mkdir()
    deep = "workspace/d" + "/x" * 12_000
    fitting = "workspace/d" + "/y" * ((4000 - len(os.fsencode(room))) // 2)
    members = [member("workspace/d", tarfile.DIRTYPE, mode=0o755), member(deep, tarfile.DIRTYPE, mode=0o755), member(fitting, mode=0o644)]
    with unpacking.peer() as peer:
        lie(peer, emulator, packed([(each, b"") for each in members]), members=3, bytes=0)
        got = peer.call("fs." + method, {"key": DEFAULT_KEY, "remote": "d", "host": str(room / "d")})
    assert [each["reason"] for each in got["skipped"]][0] == "refused" and "longer than this system takes" in got["skipped"][0]["text"]
    assert os.listdir(room) == ["d"] and list((unpacking.state_dir / "stages").iterdir()) == []
    if method == "pull":
        with tarfile.open(room / "d") as archive:
            assert {each.name for each in archive} == {"workspace/d", fitting}
    else:
        assert os.listdir(room / "d") == ["y"]
        subprocess.run(["rm", "-r", room], check=True)  # what cleans up after tests goes no deeper than 1000


# Makes removing slow enough to be looked at.
SLOW_TO_REMOVE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>
int unlinkat(int at, const char* name, int flags) {
    usleep(10000);
    return ((int (*)(int, const char*, int))dlsym(RTLD_NEXT, "unlinkat"))(at, name, flags);
}
"""


def test_nobody_waits_for_what_is_removed(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path) -> None:
    library, room = tmp_path / "slow.so", tmp_path / "room"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", str(library), "-", "-ldl"], input=SLOW_TO_REMOVE.encode(), check=True)
    room.mkdir()
    daemon = make_daemon(environment={"LD_PRELOAD": str(library)}).start()
    count = 300
    files = [(member(f"workspace/d/{i}"), b"x") for i in range(count)]
    with daemon.peer() as peer, daemon.peer() as other:
        lie(peer, emulator, packed([(member("workspace/d", tarfile.DIRTYPE), b""), *files]), members=count + 2, bytes=count)
        peer.send("fs.get", {"key": DEFAULT_KEY, "remote": "d", "host": str(room / "d")})
        wait_until(lambda: len(list(room.glob(".*/arrived/*"))) == count, "all of it is there")
        wait_until(lambda: len(list(room.glob(".*/arrived/*"))) < count, "it is being removed")
        assert other.call("daemon.ping") == {}
        assert os.listdir(room), "the answer came before the removal had ended"
        wait_until(lambda: not os.listdir(room), "it is gone")
