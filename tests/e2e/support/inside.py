"""Sandboxes whose python3 is somebody's own: it lies, or its system calls do."""

from __future__ import annotations

import io
import json
import tarfile
from typing import Any

from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer
from support.scenes import workspace

# Packs what it likes, and says about it what it likes.
LIAR = """#!/bin/sh
for verb; do
  case $last in drop) echo '{}'; exit 0;; esac
  last=$verb
done
op=$(printf %s "$last" | sed 's/.*"op":"\\([0-9a-f]*\\)".*/\\1/')
directory=/workspace/.deepinfra-sandboxd/sync/$op
mkdir -p $directory
for part in $(cat /workspace/parts); do
  cp /workspace/evil.tar $directory/part-$part
done
cat /workspace/answer
"""

# Called as `python3 -I -S -c PROGRAM VERB ARGUMENTS`.
HOOKED = """#!/bin/sh
shift 3
exec /usr/bin/python3 -I -S /usr/local/lib/hooks.py "$@"
"""
RUN_IT = """
import sys
program = sys.argv.pop(1)
exec(compile(program, "helper", "exec"), {"__name__": "__main__"})
"""


def _install(peer: Peer, path: str, text: str) -> None:
    assert peer.run("sh", "-c", f"mkdir -p $(dirname {path}); cat > {path}; chmod +x {path}", stdin=text).returncode == 0


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, mode
    return made


def packed(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for each, content in members:
            each.size = len(content)
            archive.addfile(each, io.BytesIO(content))
    return out.getvalue()


# What a fetch of workspace/d must refuse, each by its name.
_OUTSIDE = [
    (member("workspace/d", tarfile.SYMTYPE, "/etc"), b""),
    (member("/etc/evil"), b"absolute"),
    (member("workspace/d/../../../evil"), b"dots"),
    (member("workspace/other"), b"not asked for"),
    (member("workspace/dd"), b"a neighbour's name"),
    (member("workspace/d/abs", tarfile.SYMTYPE, "/etc"), b""),
    (member("workspace/d/up", tarfile.SYMTYPE, "../../.."), b""),
    (member("workspace/d/late", tarfile.SYMTYPE, "sub/../../x"), b""),
    (member("workspace/d/hard", tarfile.LNKTYPE, "workspace/d/good"), b""),
    (member("workspace/d/hard-out", tarfile.LNKTYPE, "/etc/passwd"), b""),
    (member("workspace/d/fifo", tarfile.FIFOTYPE), b""),
    (member("workspace/d/device", tarfile.CHRTYPE), b""),
]
# Links that each stay inside by their own names, and what leads out through them together.
_LINKS = [
    (member("workspace/d/sub", tarfile.SYMTYPE, "inside"), b""),
    (member("workspace/d/a/b", tarfile.DIRTYPE, mode=0o755), b""),
    (member("workspace/d/a/b/c", tarfile.SYMTYPE, "../.."), b""),
]
_THROUGH_LINKS = [
    (member("workspace/d/a/b/c/up", tarfile.SYMTYPE, "../../.."), b""),
    (member("workspace/d/a/b/c/up/evil"), b"evil"),
    (member("workspace/d/sub/through"), b"through a link"),
]
HOSTILE = [*_OUTSIDE, *_THROUGH_LINKS]
HOSTILE_TREE = [(member("workspace/d", tarfile.DIRTYPE, mode=0o755), b""), (member("workspace/d/good", mode=0o4755), b"good"),
                *_OUTSIDE, *_LINKS, *_THROUGH_LINKS]
HARMLESS = ["good", "sub", "a/b", "a/b/c"]  # of it


def told_of(members: list[tuple[tarfile.TarInfo, bytes]]) -> dict[str, int]:
    """What an honest helper would say about them."""
    return {"members": len(members), "bytes": sum(len(content) for _, content in members)}


def lie(peer: Peer, emulator: Emulator, archive: bytes, *, parts: int = 1, **answer: Any) -> None:
    """The next fetch gets `archive`, in each of its parts, and is told `answer`, or its `raw` text, about it."""
    peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
    prepare_lie(emulator, archive, parts=parts, **answer)
    _install(peer, "/usr/local/bin/python3", LIAR)


def prepare_lie(emulator: Emulator, archive: bytes, *, parts: int = 1, **answer: Any) -> None:
    """What LIAR needs."""
    told = {"kind": "directory", "sizes": [len(archive)] * parts, "drop": [], "skipped": [], "skipped_more": 0, **answer}
    (workspace(emulator) / "evil.tar").write_bytes(archive)
    (workspace(emulator) / "parts").write_text(" ".join(f"{i:06}" for i in range(parts)))
    (workspace(emulator) / "answer").write_text(told["raw"] if "raw" in told else json.dumps(told))


def hook(peer: Peer, code: str) -> None:
    """From now on the helper runs after `code`, which may replace functions of `os`."""
    _install(peer, "/usr/local/lib/hooks.py", code + RUN_IT)
    _install(peer, "/usr/local/bin/python3", HOOKED)


# The first helper that comes by leaves a mark and waits until it may go on; others, such as those of a later daemon, do not.
PARKED = """
import os, sys, time
def park():
    try:
        os.close(os.open("/workspace/parked", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    while not os.path.exists("/workspace/go"):
        time.sleep(0.005)
"""


class Parked:
    """The first helper of a verb, held where a test wants to look at what is around it."""

    def __init__(self, peer: Peer, emulator: Emulator, verb: str, where: str = "park()", others: str = "") -> None:
        """`where`: code that calls park() when the helper is where it is wanted; at once if nothing is given. `others`: code for all helpers."""
        self._workspace = workspace(emulator)
        hook(peer, PARKED + others + f"if sys.argv[-2] == {verb!r}:\n" + "".join(f"    {line}\n" for line in where.splitlines()))

    def arrives(self) -> None:
        wait_until((self._workspace / "parked").exists, "the helper is where it is held", 30)

    def release(self) -> None:
        (self._workspace / "go").touch()


def before(call: str, name: str) -> str:
    """Where a helper is about to do the last step with a file: `rename` it into its place, or `unlink` it."""
    return f"""real = os.{call}
def held(*paths, **how):
    if os.path.basename(os.fsencode(paths[-1])) == {name.encode()!r}: park()
    return real(*paths, **how)
os.{call} = held"""
