"""fs.get and fs.pull of much: many files, large ones, and paths that are as long as a path can be."""

from __future__ import annotations

import os
import pathlib
import subprocess
import tarfile
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator
from support.memory import bounded
from support.rpc import DEFAULT_KEY, Peer
from support.scenes import workspace
from support.trees import describe

MANY = 10_000
LEVELS = 220
LONGEST = 4095  # bytes of a path that the kernel takes
OURS = 100  # more than the name of the place beside the target, where things are made ready, is long

# In the sandbox, as its paths are shorter there than seen from here.
MAKE = """
import os, sys
os.umask(0)
os.chdir("/workspace")
def write(path, content, mode=0o644):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
    os.chmod(path, mode)
for i in range(int(sys.argv[1])):
    write("d/%d/%d" % (i % 100, i), b"%d" % i, (0o644, 0o600, 0o755, 0o444)[i % 4])
os.chmod("d/7", 0o555)
os.makedirs("d/empty/in/it", 0o700)
os.symlink("../8/8", "d/9/link")
for path in sys.argv[2:]:
    write("d/" + path, b"far away")
"""


def far_away(first: str, size: int) -> str:
    """A file's path of so many bytes, more than LEVELS below `first`."""
    directories = "/".join([first, *["y" * ((size - len(first)) // LEVELS - 1)] * (LEVELS - 1)])
    return directories + "/" + "f" * (size - len(directories) - 1)


def described_tar(file: pathlib.Path, top: str) -> dict[bytes, tuple[Any, ...]]:
    """As describe() would tell what can be unpacked from it."""
    found: dict[bytes, tuple[Any, ...]] = {}
    with tarfile.open(file) as archive:
        for each in archive:
            path = os.fsencode(os.path.relpath(each.name, top))
            if each.isdir():
                found[path] = ("directory", each.mode)
            elif each.issym():
                found[path] = ("link", os.fsencode(each.linkname))
            else:
                content = archive.extractfile(each)
                assert content is not None
                found[path] = ("file", each.mode, content.read())
    assert found.pop(b".")[0] == "directory"
    return found


@pytest.mark.parametrize("method", ["get", "pull"])
def test_ten_thousand_files_and_deep_trees_come_back(peer: Peer, daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch,
                                                     method: str) -> None:
    room = tmp_path / "room"
    room.mkdir()
    below = LONGEST - len(f"{room}/d/")
    fits, beyond = far_away("x", below - OURS), far_away("z", below + 1)
    assert peer.run("python3", "-c", MAKE, str(MANY), fits, beyond).returncode == 0
    with bounded(daemon):
        got = peer.call("fs." + method, {"key": DEFAULT_KEY, "remote": "d", "host": str(room / "d")})
    monkeypatch.chdir(workspace(emulator))
    there = describe("d")
    assert os.fsencode(fits) in there and os.fsencode(beyond) in there and len(there) > MANY + 2 * LEVELS
    if method == "pull":
        assert (got["files"], got["skipped"]) == (MANY + 3, [])
        assert described_tar(room / "d", "workspace/d") == there
        return
    # What has no place here is named, and takes nothing else with it.
    left_out = {os.fsencode(each["remote"].removeprefix("/workspace/d/")) for each in got["skipped"]}
    assert {each["reason"] for each in got["skipped"]} == {"refused"} and got["skipped_more"] == 0
    assert os.fsencode(beyond) in left_out and all(len(path) > below - OURS and path.startswith(b"z/") for path in left_out)
    monkeypatch.chdir(room)
    assert describe("d") == {path: what for path, what in there.items() if path not in left_out}
    assert got["files"] == MANY + 2


def test_however_much_there_is_the_daemon_stays_small(daemon: Daemon, peer: Peer, tmp_path: pathlib.Path) -> None:
    source = tmp_path / "large"
    with open(source, "wb") as file:
        for _ in range(200):
            file.write(os.urandom(1 << 20))
    peer.socket.settimeout(120)
    with bounded(daemon):
        peer.call("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(source), "remote": "d/large"}]})
        peer.call("fs.get", {"key": DEFAULT_KEY, "remote": "d/large", "host": str(tmp_path / "back")})
        peer.call("fs.pull", {"key": DEFAULT_KEY, "remote": "d", "host": str(tmp_path / "tar")})
    assert subprocess.run(["cmp", str(source), str(tmp_path / "back")], check=False).returncode == 0
    for path in (source, tmp_path / "back", tmp_path / "tar"):
        path.unlink()
