"""What was pushed and then removed in the sandbox: it is noticed, and nobody's edit is overwritten for it.

Each command tells of a few files, before it starts, whether they are there; each push that sends something looks at the rest.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer
from support.scenes import EXEC, without_shim, workspace
from support.trees import describe

PUT = {"method": "PUT", "route": "/v1/sandboxes/{id}/fs/content"}


def push(peer: Peer, *pairs: tuple[pathlib.Path, str], **more: Any) -> dict[str, Any]:
    return peer.call("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(host), "remote": remote} for host, remote in pairs], **more})


def counts(result: dict[str, Any]) -> tuple[int, int]:
    assert result["skipped"] == []
    return result["sent"], result["unchanged"]


def tree_of(path: pathlib.Path, *names: str) -> pathlib.Path:
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(name)
    return path


def remove(peer: Peer, what: str) -> None:
    """The command that removes cannot tell; the next one does."""
    assert peer.sh(f"rm -rf {what}").returncode == 0
    peer.sh("true")


@pytest.mark.parametrize("what", ["proj/src", "proj/src/*", "proj/src/../../*", "proj"])
def test_a_tree_below_another_directory(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, what: str) -> None:
    tree = tree_of(tmp_path / "src", "a", "b/c", "b/d")
    tree.chmod(0o700)
    push(peer, (tree, "proj/src"))
    remove(peer, f"/workspace/{what}")
    emulator.reset_stats()
    assert counts(push(peer, (tree, "proj/src"))) == (3, 0)
    assert emulator.count() <= 3  # a look, an archive, a call
    assert describe(workspace(emulator) / "proj" / "src") == describe(tree)
    assert (workspace(emulator) / "proj" / "src").stat().st_mode & 0o777 == 0o700
    emulator.reset_stats()
    assert counts(push(peer, (tree, "proj/src"))) == (0, 3)
    assert emulator.count() == 0


def test_a_file_of_workspace_itself(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    file = tree_of(tmp_path, "f") / "f"
    push(peer, (file, "/workspace/f"))
    remove(peer, "/workspace/*")
    assert counts(push(peer, (file, "f"))) == (1, 0)


@pytest.mark.parametrize("gone", [0, 5, 9])
def test_one_of_many_trees_is_noticed_when_its_turn_has_come(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, gone: int) -> None:
    file = tree_of(tmp_path, "f") / "f"
    pairs = [(file, f"/workspace/r{i}/f") for i in range(10)]
    push(peer, *pairs)
    peer.sh(f"rm -rf /workspace/r{gone}")
    for _ in range(3):  # ten trees, four a command
        peer.sh("true")
    assert counts(push(peer, *pairs)) == (1, 9)


def test_what_was_deleted_by_another_name(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    (tmp_path / "f").write_text("f")
    files = [{"host": str(tmp_path / "f"), "remote": "real/f"}]
    peer.call("fs.push", {"key": DEFAULT_KEY, "files": files})
    peer.sh("ln -s real /workspace/link")
    assert peer.call("fs.delete", {"key": DEFAULT_KEY, "remotes": ["link/f"]})["deleted"] == 1
    assert peer.call("fs.push", {"key": DEFAULT_KEY, "files": files})["sent"] == 1
    calls = emulator.count(EXEC)
    peer.call("fs.delete", {"key": DEFAULT_KEY, "remotes": ["nothing"]})  # a name like any other
    assert peer.call("fs.push", {"key": DEFAULT_KEY, "files": files})["unchanged"] == 1
    assert emulator.count(EXEC) == calls + 1


def test_what_is_still_there_is_somebody_s_work(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    tree = tree_of(tmp_path / "t", "a", "b", "c")
    push(peer, (tree, "p"))
    peer.sh("cd /workspace/p && git init -q . && git add a && git -c user.email=a -c user.name=a commit -qm1 && echo edited > a && git clean -qfdx")
    peer.sh("true")
    assert counts(push(peer, (tree, "p"))) == (2, 1)
    assert (workspace(emulator) / "p" / "a").read_text() == "edited\n"
    assert (workspace(emulator) / "p" / "b").read_text() == "b"


def test_another_thing_of_that_name_is_left_alone_and_asked_about_once(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    file = tree_of(tmp_path, "f") / "f"
    push(peer, (file, "d/f"))
    peer.sh("rm /workspace/d/f; mkdir /workspace/d/f; echo kept > /workspace/d/f/kept")
    peer.sh("true")
    assert counts(push(peer, (file, "d/f"))) == (0, 1)
    peer.sh("true")
    emulator.reset_stats()
    assert counts(push(peer, (file, "d/f"))) == (0, 1)
    assert emulator.count() == 0
    assert (workspace(emulator) / "d" / "f" / "kept").exists()


def test_a_push_that_sends_something_looks_for_all_that_was_pushed(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    one, other = tree_of(tmp_path / "first", "a", "b"), tree_of(tmp_path / "second", "c", "d")
    push(peer, (one, "one"), (other, "other"))
    peer.sh("rm -rf /workspace/one /workspace/other")
    (one / "a").write_text("changed")
    assert counts(push(peer, (one, "one"))) == (2, 0)
    assert counts(push(peer, (other, "other"))) == (2, 0)  # though no command has told of it


def test_a_directory_that_a_push_made_on_its_way_is_not_taken_for_the_one_that_was_there(peer: Peer, emulator: Emulator,
                                                                                         tmp_path: pathlib.Path) -> None:
    tree, file = tree_of(tmp_path / "t", "a", "b/c"), tree_of(tmp_path, "new") / "new"
    (tree / "b").chmod(0o750)
    tree.chmod(0o700)
    push(peer, (tree, "t"))
    peer.sh("rm -rf /workspace/t")
    push(peer, (file, "t/b/new"))
    assert counts(push(peer, (tree, "t"))) == (2, 0)
    (workspace(emulator) / "t" / "b" / "new").unlink()
    assert describe(workspace(emulator) / "t") == describe(tree)
    assert (workspace(emulator) / "t").stat().st_mode & 0o777 == 0o700


def test_what_was_gone_for_a_while_is_asked_about_again(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    tree = tree_of(tmp_path / "t", "a")
    push(peer, (tree / "a", "a"))
    remove(peer, "/workspace/none; mv /workspace/a /workspace/kept")
    peer.sh("mv /workspace/kept /workspace/a")
    assert counts(push(peer, (tree / "a", "a"))) == (0, 1)
    remove(peer, "/workspace/a")
    assert counts(push(peer, (tree / "a", "a"))) == (1, 0)


@pytest.mark.parametrize("kind", ["links", "directories", "files that cannot be read"])
def test_a_tree_without_a_file_that_can_be_read(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, kind: str) -> None:
    tree = tmp_path / "t"
    (tree / "sub").mkdir(parents=True)
    if kind == "links":
        (tree / "l").symlink_to("nowhere")
    elif kind == "files that cannot be read":
        (tree / "f").touch(mode=0o200)
    push(peer, (tree, "t"))
    remove(peer, "/workspace/t")
    push(peer, (tree, "t"))
    assert describe(workspace(emulator) / "t") == describe(tree)
    peer.sh("true")
    emulator.reset_stats()
    push(peer, (tree, "t"))
    assert emulator.count() == 0


def test_commands_without_the_shim_make_the_next_push_look(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path) -> None:
    tree = tree_of(tmp_path / "t", "a", "b/c")
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        push(peer, (tree, "t"))
        without_shim(emulator, body="mv -f")
        assert peer.sh("true").returncode == 0
        assert counts(push(peer, (tree, "t"))) == (0, 2)
        peer.sh("rm -r /workspace/t/b; echo edited >/workspace/t/a")
        emulator.reset_stats()
        assert counts(push(peer, (tree, "t"))) == (1, 1)
        assert emulator.count() <= 3  # a look, an archive, a call
        assert ((workspace(emulator) / "t" / "a").read_text(), (workspace(emulator) / "t" / "b" / "c").read_text()) == ("edited\n", "b/c")
        emulator.reset_stats()
        assert counts(push(peer, (tree, "t"))) == (0, 2)
        assert emulator.count() == 0
        # One that is under way may do it at any time, so its end counts too.
        slow = peer.start("sh", "-c", "touch /workspace/on; until [ -e /workspace/go ]; do sleep 0.01; done; rm /workspace/t/b/c")
        wait_until(lambda: (workspace(emulator) / "on").exists(), "it runs")
        assert counts(push(peer, (tree, "t"))) == (0, 2)
        (workspace(emulator) / "go").touch()
        assert peer.finish(slow).returncode == 0
        assert counts(push(peer, (tree, "t"))) == (1, 1)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_what_a_command_has_told_outlives_the_daemon(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path,
                                                     end: str) -> None:
    tree = tree_of(tmp_path / "t", "a")
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        push(peer, (tree, "t"))
        remove(peer, "/workspace/t")
    getattr(daemon, end)()
    daemon.start()
    with daemon.peer() as peer:
        assert counts(push(peer, (tree, "t"))) == (1, 0)
    assert (workspace(emulator) / "t" / "a").exists()


def test_what_a_command_tells_while_something_else_is_pushed(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    one, other = tree_of(tmp_path / "first", "a"), tree_of(tmp_path / "second", "b")
    push(peer, (one, "one"), (other, "other"))
    (one / "a").write_text("changed")
    emulator.fault({"latency_ms": 500}, **PUT)
    under_way = peer.send("fs.push", {"key": DEFAULT_KEY, "files": [{"host": str(one), "remote": "one"}]})
    wait_until(lambda: emulator.faults()[0]["used"], "it is being sent")
    remove(peer, "/workspace/other")
    assert counts(peer.result(under_way)) == (1, 0)
    assert counts(push(peer, (other, "other"))) == (1, 0)


def test_a_look_that_cannot_be_made_is_made_later(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    tree = tree_of(tmp_path / "t", "a")
    sandbox = push(peer, (tree, "t"))["sandbox_id"]
    remove(peer, "/workspace/t")
    emulator.stop_sandbox(sandbox)  # behind the daemon's back
    emulator.fault({"act_then_drop": "done"}, method="POST", route=EXEC.split(" ")[1])
    assert counts(push(peer, (tree, "t"))) == (1, 0)


def test_twenty_thousand_files_are_looked_at_in_pieces(peer: Peer, daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    tree = tmp_path / "t"
    for i in range(21_000):
        file = tree / str(i % 50) / f"{i}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    push(peer, (tree, "t"))
    peer.sh("cd /workspace/t; rm -rf 49 1; rm 2/2")
    (tree / "0" / "0").write_text("changed")
    assert push(peer, (tree, "t"))["sent"] == 2 * 420 + 1 + 1
    assert describe(workspace(emulator) / "t") == describe(tree)
    assert daemon.rss_kib() < 24 << 10


def test_a_file_that_is_forced_goes_whether_it_is_there_or_not(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    tree = tree_of(tmp_path / "t", "a", "b")
    push(peer, (tree, "t"))
    remove(peer, "/workspace/t/a")
    assert counts(push(peer, (tree, "t"), force=True)) == (2, 0)
    assert sorted(os.listdir(workspace(emulator) / "t")) == ["a", "b"]
