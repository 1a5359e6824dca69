"""The daemon dies as by `kill -9` at every request of fs.push and fs.delete, and at every write of what it remembers.

Whatever it was about, each file in the sandbox is whole, old or new; the next daemon brings both sides to be equal with the same
calls, and nothing is left over. What was at work in the sandbox goes on without the daemon, or is ended. Each operation is
repeated, dying one step later every time, until it gets through.
"""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.kill_points import gets_through
from support.rpc import DEFAULT_KEY, Peer
from support.scenes import workspace
from support.trees import describe

pytestmark = pytest.mark.usefixtures("on_disconnect")

MOST_POINTS = 20  # an operation that takes more steps than this has run away
DELETED = ["t/gone", "t/dir"]


def first_tree(tree: pathlib.Path) -> None:
    shutil.rmtree(tree, ignore_errors=True)
    (tree / "dir").mkdir(parents=True)
    for name in ("same", "changes", "becomes-a-directory", "gone", "dir/inside"):
        (tree / name).write_text(name)
    (tree / "link").symlink_to("dir")


def second_tree(tree: pathlib.Path) -> None:
    """With DELETED gone, and kinds that a push may replace by itself."""
    for name in ("becomes-a-directory", "link", "gone"):
        (tree / name).unlink()
    shutil.rmtree(tree / "dir")
    (tree / "changes").write_text("has changed")
    for name in ("becomes-a-directory/new", "link/new", "new/new"):
        (tree / name).parent.mkdir()
        (tree / name).write_text(name)
    (tree / "dir").write_text("a file now")


def push(peer: Peer, tree: pathlib.Path) -> dict[str, Any]:
    return peer.call("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(tree), "remote": "t"}]})


def delete(peer: Peer) -> None:
    peer.call("fs.delete", {"key": DEFAULT_KEY, "remotes": DELETED})


class Scene:
    def __init__(self, operation: str, daemon: Daemon, emulator: Emulator, tree: pathlib.Path) -> None:
        self.operation, self.daemon, self.emulator, self.tree = operation, daemon, emulator, tree

    def prepare(self, peer: Peer) -> None:
        """All is as the first tree is, and the operation is what is missing to the second one."""
        first_tree(self.tree)
        peer.call("fs.delete", {"key": DEFAULT_KEY, "remotes": ["t"]})
        push(peer, self.tree)
        self.before = describe(workspace(self.emulator) / "t")
        second_tree(self.tree)
        if self.operation == "push":
            delete(peer)

    def params(self) -> dict[str, Any]:
        if self.operation == "push":
            return {"key": DEFAULT_KEY, "files": [{"host": str(self.tree), "remote": "t"}]}
        return {"key": DEFAULT_KEY, "remotes": DELETED}

    def there(self) -> dict[bytes, tuple[Any, ...]] | None:
        """Nothing while a call of the daemon that was killed still removes something there."""
        try:
            return describe(workspace(self.emulator) / "t")
        except FileNotFoundError:
            return None

    def check(self, where: str) -> None:
        now, after = wait_until(self.there, "what is there"), describe(self.tree)
        for path, what in now.items():
            assert what[0] == "directory" or what in (self.before.get(path), after.get(path)), (where, path)
        self.emulator.clear_faults()
        self.daemon.environment.pop("LD_PRELOAD", None)
        with self.daemon.start().peer() as peer:
            if self.operation == "delete":
                delete(peer)
            assert push(peer, self.tree)["skipped"] == [], where
            assert describe(workspace(self.emulator) / "t") == after, where
            assert push(peer, self.tree)["sent"] == 0, where
        # A call of the daemon that was killed may still be at work there.
        sync = workspace(self.emulator) / ".deepinfra-sandboxd" / "sync"
        wait_until(lambda: all(name.endswith(".done") for name in os.listdir(sync)), f"nothing is left over, {where}")


@pytest.fixture(params=["push", "delete"])
def scene(request: pytest.FixtureRequest, make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path) -> Scene:
    return Scene(request.param, make_daemon(), emulator, tmp_path / "tree")


@pytest.mark.parametrize("how", [{"stall_before": True}, {"latency_after_ms": 600_000}], ids=["before it takes effect", "after"])
def test_killed_at_every_request(scene: Scene, how: dict[str, Any]) -> None:
    for point in range(MOST_POINTS):
        with scene.daemon.start().peer() as peer:
            scene.prepare(peer)
            scene.emulator.fault(how, skip=point)
            asked = peer.send("fs." + scene.operation, scene.params())
            through = gets_through(peer, scene.emulator, asked)
        scene.daemon.kill()
        scene.check(f"request {point}")
        scene.daemon.kill()
        if through:
            assert point >= {"push": 2, "delete": 1}[scene.operation]
            return
    raise AssertionError("it never ends")


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_every_write(scene: Scene, preload: pathlib.Path, when: str) -> None:
    daemon = scene.daemon
    for point in range(1, MOST_POINTS):
        with daemon.start().peer() as peer:
            scene.prepare(peer)
        daemon.kill()
        (manifest,) = (daemon.state_dir / "manifests").iterdir()
        daemon.environment |= {"LD_PRELOAD": str(preload), "KILL_AT_NAME": manifest.name, "KILL_AT_COUNT": str(point), "KILL_AT_WHEN": when}
        died = False
        with daemon.start().peer() as peer:
            try:
                peer.call("fs." + scene.operation, scene.params())
            except ConnectionError:
                died = True
        if died:
            wait_until(lambda: not daemon.alive(), "it is dead")
        daemon.kill()
        scene.check(f"write {point}")
        daemon.kill()
        if not died:
            assert point > 2  # each writes before and after
            return
    raise AssertionError("it never ends")
