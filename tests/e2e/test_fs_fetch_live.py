"""Files that change, or cannot be read, while they are fetched: each arrives as it once was, or is left out and named.

What happens meanwhile is done by the helper's own system calls, so that it happens each time at the same moment.
"""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from support.emulator import Emulator
from support.inside import hook
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import workspace
from support.trees import describe

SIZE = 5_000_000

# Calls `meanwhile(path)` when a file has been opened, and `amid(path)` when the second piece of one is about to be read.
TWISTED = """
import errno, os
real_open, real_pread, real_read = os.open, os.pread, os.read
paths, reads = {}, {}
def opened(path, *more, **how):
    fd = real_open(path, *more, **how)
    if os.fsencode(path).startswith(b"/workspace/d/"):
        if os.fsencode(path) not in paths.values():
            meanwhile(os.fsencode(path))
        paths[fd] = os.fsencode(path)
    return fd
def second(fd):
    if fd in paths:
        reads[fd] = reads.get(fd, 0) + 1
        if reads[fd] == 2:
            amid(paths[fd])
def pread(fd, *more):
    second(fd)
    return real_pread(fd, *more)
def read(fd, *more):
    second(fd)
    return real_read(fd, *more)
def append(path, data):
    with open(path, "ab") as file:
        file.write(data)
def overwrite(path, data):
    with open(path, "r+b") as file:
        file.write(data)
meanwhile = amid = lambda path: None
os.open, os.pread, os.read = opened, pread, read
"""


def twist(peer: Peer, code: str) -> None:
    peer.sh(f"mkdir /workspace/d; cd /workspace/d; head -c {SIZE} /dev/urandom > a-large; echo x > small; echo end > z")
    hook(peer, TWISTED + code)


def get(peer: Peer, remote: str, host: pathlib.Path, **more: Any) -> dict[str, Any]:
    return peer.call("fs.get", {"key": DEFAULT_KEY, "remote": remote, "host": str(host), **more})


def test_a_file_that_has_grown_since_it_was_seen(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    twist(peer, "def meanwhile(path): append(path, b'y' * 3000)\n")
    got = get(peer, "d", tmp_path / "d")
    assert got["skipped"] == [] and got["files"] == 3
    assert describe(tmp_path / "d") == describe(workspace(emulator) / "d")
    assert got["bytes"] == SIZE + 2 + 4 + 3 * 3000


@pytest.mark.parametrize("sparse", [False, True])
def test_a_log_that_is_always_appended_to(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, sparse: bool) -> None:
    twist(peer, "def amid(path): append(path, b'y' * 3000)\n")
    if sparse:
        peer.sh("cd /workspace/d; truncate -s 20M a-large; echo end >> a-large")
    before = (workspace(emulator) / "d" / "a-large").read_bytes()
    got = get(peer, "d", tmp_path / "d")
    assert got["skipped"] == []
    assert (workspace(emulator) / "d" / "a-large").stat().st_size > len(before)
    assert (tmp_path / "d" / "a-large").read_bytes() == before
    assert get(peer, "d/a-large", tmp_path / "alone")["bytes"] == (tmp_path / "alone").stat().st_size


@pytest.mark.parametrize("how", ["overwrite(path, b'yyyy')", "append(path, b'y'); overwrite(path, b'yyyy')", "os.truncate(path, 1200000)",
                                 "os.truncate(path, 500000); append(path, b'y' * 5000000)"])
def test_a_file_that_changes_in_any_other_way_is_left_out(peer: Peer, tmp_path: pathlib.Path, how: str) -> None:
    twist(peer, f"def amid(path):\n if path.endswith(b'large'): {how}\n")
    got = get(peer, "d", tmp_path / "d")
    assert [(each["remote"], each["reason"]) for each in got["skipped"]] == [("/workspace/d/a-large", "changing")]
    assert {name: what[2] for name, what in describe(tmp_path / "d").items()} == {b"small": b"x\n", b"z": b"end\n"}


def test_a_file_whose_end_cannot_be_read_is_left_out_and_the_rest_comes(peer: Peer, tmp_path: pathlib.Path) -> None:
    twist(peer, "def amid(path):\n if path.endswith(b'large'): raise OSError(errno.EIO, '')\n")
    got = get(peer, "d", tmp_path / "d")
    assert got["skipped"] == [{"remote": "/workspace/d/a-large", "reason": "unreadable", "text": "Input/output error"}]
    assert {name: what[2] for name, what in describe(tmp_path / "d").items()} == {b"small": b"x\n", b"z": b"end\n"}


def test_what_grows_beyond_what_was_asked_for_is_too_much(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    twist(peer, "def meanwhile(path): append(path, b'y' * 3000)\n")
    with pytest.raises(RpcFailure) as refused:
        get(peer, "d", tmp_path / "d", max_bytes=SIZE + 3000)
    assert refused.value.name == "too_large" and not (tmp_path / "d").exists()
    left = workspace(emulator) / ".deepinfra-sandboxd" / "sync"
    assert list(left.iterdir()) == [], "what was packed in vain"


def test_a_file_with_more_holes_than_are_taken_is_still_the_same(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    peer.sh("mkdir /workspace/d")
    source = workspace(emulator) / "d" / "holes"
    with open(source, "wb") as file:
        for i in range(3000):
            file.seek((i * 3 + (i % 7 == 0)) << 12)
            file.write(b"x%d" % i)
        file.truncate(64 << 20)
    got = get(peer, "d/holes", tmp_path / "holes")
    assert got["bytes"] == 64 << 20 and (tmp_path / "holes").stat().st_blocks < 60_000
    with open(source, "rb") as one, open(tmp_path / "holes", "rb") as other:
        while piece := one.read(1 << 20):
            assert piece == other.read(1 << 20)
        assert other.read() == b""
