"""Trees of files for tests of transfers: made at random, described, compared."""

from __future__ import annotations

import os
import pathlib
import random
import stat
from typing import Any

ODD_NAMES = [b"plain", b"two words", b"quo'te", b'dou"ble', b"new\nline", b"-rf", b"--", b"$(touch x)", b"`id`", b"a;b", b"*", b"back\\slash",
             b"caf\xc3\xa9", b"latin\xe9", b"\xff\xfe", b".hidden", b"...", b"tab\t", b" lead", b"trail ", b"percent%41", b"\x01\x7f", b"n" * 200]


def describe(root: bytes | str | pathlib.Path) -> dict[bytes, tuple[Any, ...]]:
    """Every path below `root`, with its kind, mode and content."""
    top = os.fsencode(root)
    found: dict[bytes, tuple[Any, ...]] = {}
    for directory, names, files in os.walk(top):
        for name in names + files:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            relative = os.path.relpath(path, top)
            if stat.S_ISLNK(status.st_mode):
                found[relative] = ("link", os.readlink(path))
            elif stat.S_ISDIR(status.st_mode):
                found[relative] = ("directory", stat.S_IMODE(status.st_mode))
            else:
                with open(path, "rb") as file:
                    found[relative] = ("file", stat.S_IMODE(status.st_mode), file.read())
    return found


def without_marker(tree: dict[bytes, tuple[Any, ...]]) -> dict[bytes, tuple[Any, ...]]:
    """A tree in a sandbox without what the daemon keeps there."""
    return {path: what for path, what in tree.items() if os.path.basename(path) != b".deepinfra-sandboxd-sync"
            and not path.startswith(b".deepinfra-sandboxd")}


def make_tree(root: pathlib.Path, seed: int, files: int = 60) -> None:
    """A random tree with odd names, modes, links, empty files and directories."""
    chance = random.Random(seed)
    root.mkdir()
    directories = [os.fsencode(root)]
    made: list[bytes] = []
    for i in range(files):
        parent = chance.choice(directories)
        name = chance.choice(ODD_NAMES) + (b"" if chance.random() < 0.3 else b"%d" % i)
        path = os.path.join(parent, name)
        if os.path.lexists(path):
            continue
        kind = chance.random()
        if kind < 0.25 and parent.count(b"/") < 60:
            os.mkdir(path)
            directories.append(path)
        elif kind < 0.35 and made:
            target = os.path.relpath(chance.choice(made), parent)
            os.symlink(target, path)
        elif kind < 0.4:
            os.symlink(b"dangling inside", path)
        else:
            size = chance.choice([0, 0, 1, 511, 512, 513, 4096, chance.randrange(100_000)])
            with open(path, "wb") as file:
                file.write(chance.randbytes(size))
            os.chmod(path, chance.choice([0o644, 0o600, 0o755, 0o444, 0o777, 0o640]))
            made.append(path)
    for path in directories[1:]:
        os.chmod(path, chance.choice([0o755, 0o700, 0o750, 0o555]))
