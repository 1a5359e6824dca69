"""Pushing into a sandbox whose disk is full, or becomes so: what was there stays, and what was sent in vain takes no room.

The sandboxes' disk is a small tmpfs here, which takes the right to mount one.
"""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import workspace

SIZE = 60_000_000
PUT = {"method": "PUT", "route": "/v1/sandboxes/{id}/fs/content"}


@pytest.fixture
def disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """What all sandboxes' files are on."""
    directory = tmp_path / "emulator" / "data"
    directory.mkdir(parents=True)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(directory)], capture_output=True)
    if mounted.returncode != 0:
        pytest.skip(f"no disk can be made: {mounted.stderr.decode()}")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


@pytest.fixture
def emulator(disk: pathlib.Path, tmp_path: pathlib.Path) -> Iterator[Emulator]:
    with Emulator(tmp_path, boot_ms=5, start_ms=5, stop_ms=5) as emulator:
        yield emulator


def push(peer: Peer, host: pathlib.Path, remote: str) -> dict[str, Any]:
    return peer.call("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(host), "remote": remote}]})


def noise(path: pathlib.Path, size: int) -> pathlib.Path:
    path.write_bytes(os.urandom(size))
    return path


def parts_in(emulator: Emulator) -> list[str]:
    directory = workspace(emulator) / ".deepinfra-sandboxd" / "sync"
    return [name for name in os.listdir(directory) if not name.endswith(".done")]


def refused(peer: Peer, host: pathlib.Path, remote: str) -> None:
    with pytest.raises(RpcFailure) as full:
        push(peer, host, remote)
    assert full.value.name == "no_space" and "sandbox" in full.value.message, full.value.message


@pytest.mark.parametrize("put_replace", ["truncate", "rename"])
@pytest.mark.parametrize("size", [40_000_000, 80_000_000], ids=["unpacking", "sending"])
def test_a_push_that_does_not_fit_takes_no_room(peer: Peer, disk: pathlib.Path, emulator: Emulator, tmp_path: pathlib.Path, size: int, put_replace: str) -> None:
    emulator.config(put_replace=put_replace)
    tree = tmp_path / "t"
    (tree / "ro").mkdir(parents=True)
    small = noise(tree / "ro" / "small", 10)
    (tree / "ro").chmod(0o555)
    push(peer, tree, "t")
    before = shutil.disk_usage(disk).free
    old = small.read_bytes()
    (tree / "ro").chmod(0o755)
    noise(tree / "ro" / "big", size)
    noise(small, 10)
    (tree / "ro").chmod(0o555)
    for _ in range(2):
        refused(peer, tree, "t")
        assert parts_in(emulator) == []
        assert shutil.disk_usage(disk).free > before - 100_000
    there = workspace(emulator) / "t" / "ro"
    assert (there / "small").read_bytes() in (old, small.read_bytes()) and not (there / "big").exists()
    assert there.stat().st_mode & 0o777 == 0o555
    assert peer.sh("head -c 25000000 /dev/zero > mine && rm mine").returncode == 0
    (tree / "ro" / "big").unlink()
    assert push(peer, tree, "t")["skipped"] == []
    assert (there / "small").read_bytes() == small.read_bytes()


def test_what_others_left_behind_makes_room(peer: Peer, disk: pathlib.Path, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    peer.sh("mkdir -p /workspace/.deepinfra-sandboxd/sync/dead")
    left = workspace(emulator) / ".deepinfra-sandboxd" / "sync" / "dead" / "part-000000"
    with open(left, "wb") as file:
        while shutil.disk_usage(disk).free:
            file.write(b"x" * min(1 << 20, shutil.disk_usage(disk).free))
            file.flush()
    assert push(peer, noise(tmp_path / "f", 10_000_000), "f")["sent"] == 1
    assert not left.exists()


def test_deleting_makes_room_on_a_full_disk(peer: Peer, disk: pathlib.Path, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    push(peer, noise(tmp_path / "f", 10_000_000), "f")
    peer.sh("cat /dev/zero > filler")
    assert shutil.disk_usage(disk).free < 1 << 20
    refused(peer, noise(tmp_path / "g", 4_000_000), "g")
    assert peer.call("fs.delete", {"key": DEFAULT_KEY, "remotes": ["f"]})["deleted"] == 1
    assert push(peer, tmp_path / "g", "g")["sent"] == 1


def test_a_push_that_fails_for_another_reason_leaves_no_parts(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
    emulator.fault({"status": 400, "body": "no such thing"}, **PUT, skip=1, times=0)
    with pytest.raises(RpcFailure) as failed:
        push(peer, noise(tmp_path / "f", 20_000_000), "f")
    assert failed.value.name == "cloud_error"
    assert parts_in(emulator) == []


def test_a_daemon_that_is_killed_while_the_disk_is_full(make_daemon: Callable[..., Daemon], disk: pathlib.Path, emulator: Emulator,
                                                        tmp_path: pathlib.Path) -> None:
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
        emulator.fault({"act_then_drop": "done"}, **PUT, skip=3, times=0)
        peer.send("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(noise(tmp_path / "f", 50_000_000)), "remote": "f"}]})
        wait_until(lambda: shutil.disk_usage(disk).free < 30_000_000, "parts have arrived")

    daemon.kill()
    emulator.clear_faults()
    daemon.start()
    with daemon.peer() as peer:
        assert push(peer, noise(tmp_path / "g", 25_000_000), "g")["sent"] == 1
    assert parts_in(emulator) == []
