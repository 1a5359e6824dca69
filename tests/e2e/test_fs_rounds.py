"""A random tree is pushed, changed in every way a tree can be, and pushed again, several times: it always ends byte- and mode-equal.

What is gone on the host is deleted in the sandbox by name, as a client does that keeps both sides equal. In between, things are
removed in the sandbox, daemons are killed, and answers get lost.
"""

from __future__ import annotations

import os
import pathlib
import random
import shutil
import stat
from collections.abc import Callable
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator
from support.rpc import DEFAULT_KEY, Peer, b64
from support.scenes import workspace
from support.trees import ODD_NAMES, describe, make_tree

ROUNDS = 6
Tree = dict[bytes, tuple[Any, ...]]


def paths(root: bytes, kind: Callable[[int], bool]) -> list[bytes]:
    return sorted(os.path.join(root, path) for path in describe(root) if kind(os.lstat(os.path.join(root, path)).st_mode))


def discard(path: bytes) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def fresh(path: bytes, root: bytes, chance: random.Random) -> None:
    """A file, a link or a small tree, where nothing is."""
    kind = chance.randrange(4)
    if kind == 0:
        with open(path, "wb") as file:
            file.write(chance.randbytes(chance.choice([0, 1, 513, 40_000])))
        os.chmod(path, chance.choice([0o644, 0o600, 0o755, 0o444]))
    elif kind == 1:
        others = paths(root, stat.S_ISREG) + paths(root, stat.S_ISDIR)
        os.symlink(os.path.relpath(chance.choice(others), os.path.dirname(path)) if others else b"nothing", path)
    else:
        os.mkdir(path)
        for name in chance.sample(ODD_NAMES, chance.randrange(4)):
            with open(os.path.join(path, name), "wb") as file:
                file.write(name)
        os.chmod(path, chance.choice([0o755, 0o700, 0o555]))


def change(root: bytes, chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 12)):
        everything = paths(root, lambda mode: True)
        what = chance.random()
        if what < 0.2 or not everything:
            parent = chance.choice([root, *paths(root, stat.S_ISDIR)])
            path = os.path.join(parent, chance.choice(ODD_NAMES) + b"-%d" % chance.randrange(10**6))
            if not os.path.lexists(path):
                fresh(path, root, chance)
            continue
        path = chance.choice(everything)
        if what < 0.5:
            discard(path)
            if what < 0.4:
                fresh(path, root, chance)
        elif not os.path.islink(path):
            if os.path.isfile(path) and what < 0.8:
                with open(path, "ab") as file:
                    file.write(b"more")
            else:
                os.chmod(path, chance.choice([0o755, 0o700, 0o750, 0o555]))


def vanished(before: Tree, now: Tree) -> list[bytes]:
    """What a push cannot do: it takes nothing away, and a directory with something in it stays one."""
    return [path for path, what in before.items() if path not in now or (what[0] == "directory" and now[path][0] != "directory")]


def both(tree: bytes, inner: bytes) -> Tree:
    found = describe(tree)
    found[b"inner"] = ("directory", stat.S_IMODE(os.stat(inner).st_mode))
    found.update({os.path.join(b"inner", path): what for path, what in describe(inner).items()})
    return found


def bring_over(peer: Peer, gone: list[bytes], tree: bytes, inner: bytes) -> dict[str, Any]:
    if gone:
        peer.call("fs.delete", {"key": DEFAULT_KEY, "remotes": [b64(b"t/" + path) for path in gone]})
    files = [{"host": b64(tree), "remote": "t"}, {"host": b64(inner), "remote": "t/inner"}]
    return peer.call("fs.push", {"key": DEFAULT_KEY, "files": files})


def disturb(peer: Peer, emulator: Emulator, chance: random.Random) -> None:
    """Something is removed there, and the next push has to notice by itself."""
    there = os.fsencode(workspace(emulator) / "t")
    everything = paths(there, lambda mode: True)
    for path in chance.sample(everything, min(len(everything), chance.randrange(3))):
        if os.path.lexists(path):
            discard(path)
    if chance.random() < 0.3:
        emulator.fault_exec({"act_then_drop": "done"})


@pytest.mark.parametrize("seed", range(8))
def test_rounds_of_changes_end_equal(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path, seed: int) -> None:
    chance = random.Random(seed)
    make_tree(tmp_path / "tree", seed)
    make_tree(tmp_path / "nested", seed + 100, files=15)
    tree, inner = os.fsencode(tmp_path / "tree"), os.fsencode(tmp_path / "nested")
    daemon = make_daemon().start()
    before: Tree = {}
    for number in range(ROUNDS):
        if number:
            change(tree, chance)
            change(inner, chance)
        # Something always has to go, so that the push looks for the rest.
        reason = os.path.join(inner, b"round")
        if os.path.lexists(reason):
            discard(reason)
        with open(reason, "w") as file:
            file.write(str(number))
        now = both(tree, inner)
        with daemon.peer() as peer:
            if number:
                disturb(peer, emulator, chance)
            result = bring_over(peer, vanished(before, now), tree, inner)
            assert result["skipped"] == [], number
            assert describe(workspace(emulator) / "t") == now, number
            again = bring_over(peer, [], tree, inner)
            assert (again["sent"], again["skipped"]) == (0, []), number
            assert again["unchanged"] == sum(what[0] != "directory" for what in now.values())
        before = now
        if chance.random() < 0.4:
            daemon.kill()
            daemon.start()
