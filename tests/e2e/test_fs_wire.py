"""What travels: compressed where the line is slower than the compressor, as it is where nothing would come of it, and always whole."""

from __future__ import annotations

import gzip
import os
import pathlib
import random
from collections.abc import Callable
from typing import Any

import pytest

from support.emulator import Emulator
from support.inside import Parked
from support.rpc import DEFAULT_KEY, Peer
from support.scenes import workspace
from support.trees import describe, without_marker

CONTENT = "/v1/sandboxes/{id}/fs/content"
GZIP = b"\x1f\x8b"
FILES, SIZE = 12, 500_000


def text(chance: random.Random) -> bytes:
    words = [b"%x" % chance.getrandbits(chance.choice([4, 8, 16, 24])) for _ in range(2000)]
    line = b" ".join(chance.choices(words, k=SIZE // 4))
    return (line * (1 + SIZE // len(line)))[:SIZE]


def compressed(chance: random.Random) -> bytes:
    return gzip.compress(chance.randbytes(SIZE - 1000), 1)


def make(root: pathlib.Path, content: Callable[[random.Random], bytes]) -> None:
    chance = random.Random(11)
    root.mkdir()
    for i in range(FILES):
        (root / f"{i}").write_bytes(content(chance))


@pytest.fixture
def slow(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> Peer:
    """On a line that takes half a second for a part, either way, and with a daemon that has seen how slow it is: slower than any
    compressor, even one that has to wait for its processor."""
    peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
    for method in ("PUT", "GET"):
        emulator.fault({"latency_ms": 500}, method=method, route=CONTENT, times=0)
    (tmp_path / "first").write_bytes(os.urandom(SIZE))
    peer.call("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(tmp_path / "first"), "remote": "first"}]})
    return peer


def travelled(emulator: Emulator, method: str) -> int:
    return sum(each["body_bytes"] for each in emulator.requests() if (each["method"], each["route"]) == (method, CONTENT))


def push(peer: Peer, emulator: Emulator, tree: pathlib.Path, **more: Any) -> tuple[dict[str, Any], set[bytes]]:
    """The answer, and how the parts begin that came there."""
    unpacking = Parked(peer, emulator, "unpack")
    before = travelled(emulator, "PUT")
    asked = peer.send("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(tree), "remote": "t"}], **more})
    unpacking.arrives()
    begins = {part.read_bytes()[:2] for part in (workspace(emulator) / ".deepinfra-sandboxd" / "sync").glob("*/part-*")}
    unpacking.release()
    result = peer.result(asked)
    assert result["wire_bytes"] == travelled(emulator, "PUT") - before
    return result, begins


def test_what_compression_pays_for_travels_compressed(slow: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    make(tmp_path / "t", text)
    for force in (False, True):
        result, begins = push(slow, emulator, tmp_path / "t", force=force)
        assert (result["sent"], result["bytes"]) == (FILES, FILES * SIZE)
        assert begins == {GZIP} and result["wire_bytes"] < 0.6 * result["bytes"]
        assert without_marker(describe(workspace(emulator) / "t")) == describe(tmp_path / "t")
        for name in ("parked", "go"):
            (workspace(emulator) / name).unlink()


@pytest.mark.parametrize("content", [compressed, lambda chance: chance.randbytes(SIZE)], ids=["gzip", "noise"])
def test_what_does_not_get_smaller_travels_as_it_is(slow: Peer, emulator: Emulator, tmp_path: pathlib.Path, content: Callable[[random.Random], bytes]) -> None:
    make(tmp_path / "t", content)
    result, begins = push(slow, emulator, tmp_path / "t")
    assert GZIP not in begins and 1 <= result["wire_bytes"] / result["bytes"] < 1.01
    assert without_marker(describe(workspace(emulator) / "t")) == describe(tmp_path / "t")


@pytest.mark.parametrize("method", ["get", "pull"])
def test_what_is_fetched_travels_compressed_too(slow: Peer, emulator: Emulator, tmp_path: pathlib.Path, method: str) -> None:
    slow.sh("mkdir t")
    make(workspace(emulator) / "t" / "d", text)
    os.chmod(workspace(emulator) / "t" / "d", 0o750)
    got = slow.call("fs." + method, {"key": DEFAULT_KEY, "remote": "t", "host": str(tmp_path / "t")})
    assert got["bytes"] == FILES * SIZE and got["wire_bytes"] < 0.6 * got["bytes"]
    if method == "get":
        assert describe(tmp_path / "t") == describe(workspace(emulator) / "t")
    else:
        assert (tmp_path / "t").stat().st_size > got["bytes"]
