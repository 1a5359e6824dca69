"""`deepinfra-sandboxd cp`: files in and out by hand."""

from __future__ import annotations

import json
import os
import pathlib
import pty
import re
import subprocess
import termios
from collections.abc import Callable

import pytest

from support.cli import running
from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import Peer
from support.scenes import workspace
from support.trees import describe, make_tree, without_marker


def cp(daemon: Daemon, cwd: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(daemon.command("cp", *arguments), env=daemon.environment, cwd=cwd, capture_output=True, timeout=60, check=False)


def test_there_and_back(daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    make_tree(tmp_path / "tree", 11)
    (tmp_path / "data.csv").write_text("1,2\n")
    sent = cp(daemon, tmp_path, "data.csv", "sandbox:")
    assert (sent.returncode, sent.stdout, sent.stderr) == (0, b"copied 1 file, 4 B, to sandbox:data.csv\n", b"")
    assert (workspace(emulator) / "data.csv").read_text() == "1,2\n"
    assert cp(daemon, tmp_path, "tree", "sandbox:/workspace/app/src").returncode == 0
    assert without_marker(describe(workspace(emulator) / "app" / "src")) == describe(tmp_path / "tree")
    (tmp_path / "back").mkdir()
    assert cp(daemon, tmp_path, "sandbox:app/src", "back").returncode == 0
    assert describe(tmp_path / "back" / "src") == describe(tmp_path / "tree")
    told = cp(daemon, tmp_path, "--json", "sandbox:/workspace/data.csv", "copy.csv")
    assert json.loads(told.stdout)["kind"] == "file" and (tmp_path / "copy.csv").read_text() == "1,2\n"


@pytest.mark.parametrize("there", ["empty", "full"])
@pytest.mark.parametrize("target", ["out", "out/.", "./out/", "link"])
def test_a_file_goes_into_a_directory_that_is_there(daemon: Daemon, peer: Peer, emulator: Emulator, tmp_path: pathlib.Path, there: str,
                                                    target: str) -> None:
    peer.sh("mkdir /workspace/out; ln -s out /workspace/link" + ("; touch /workspace/out/mine" if there == "full" else ""))
    (tmp_path / "f").write_text("f")
    for _ in range(2):
        done = cp(daemon, tmp_path, "f", "sandbox:" + target)
        assert (done.returncode, done.stderr) == (0, b"")
        assert done.stdout == b"copied 1 file, 1 B, to sandbox:" + target.rstrip("/.").encode() + b"/f\n"
        assert (workspace(emulator) / "out" / "f").read_text() == "f"
    assert (workspace(emulator) / "out" / "mine").exists() == (there == "full")


def test_dots_behind_a_link_mean_what_they_mean_to_everybody(daemon: Daemon, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there" / "sub"
    for directory in (here, there):
        directory.mkdir(parents=True)
        (directory.parent / "f").write_text(directory.name)
    (here / "link").symlink_to(there)
    (here / "f").write_text("wrong")
    assert cp(daemon, here, "link/../f", "sandbox:").returncode == 0
    assert (workspace(emulator) / "f").read_text() == "sub"
    assert cp(daemon, here, "link/..", "sandbox:").returncode == 0
    assert (workspace(emulator) / "there" / "f").read_text() == "sub"
    assert cp(daemon, here, "sandbox:f", "link/../g").returncode == 0
    assert (tmp_path / "there" / "g").read_text() == "sub" and not (here / "g").exists()


def test_what_was_interrupted_changes_nothing_here_any_more(daemon: Daemon, peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    peer.sh("echo sandbox > /workspace/f")
    here = tmp_path / "f"
    here.write_text("mine")
    emulator.fault({"stall_before": True}, method="GET", route="/v1/sandboxes/{id}/fs/content")
    with running(daemon, "cp", "sandbox:f", str(here)) as copying:
        wait_until(lambda: emulator.faults()[0]["used"], "it is fetched")
        copying.terminate()  # as Ctrl-C, which background jobs may be deaf to
        copying.wait(timeout=30)
    here.write_text("edited since")
    emulator.drop_connections()
    wait_until(lambda: json.loads(daemon.cli("list", "--json").stdout)["sandboxes"][0]["running"] == [], "nothing of it goes on")
    assert here.read_text() == "edited since"


def test_what_goes_into_a_tree_that_was_pushed_leaves_the_rest_of_it_alone(daemon: Daemon, peer: Peer, emulator: Emulator,
                                                                          tmp_path: pathlib.Path) -> None:
    tree, key = tmp_path / "tree", {"profile": "default", "task": "default"}
    tree.mkdir()
    for name in ("a", "f"):
        (tree / name).write_text(name)
    pushing = {"key": key, "files": [{"host": str(tree), "remote": "tree"}]}
    peer.call("fs.push", pushing)
    peer.sh("echo edited >tree/a", key=key)
    (tmp_path / "f").write_text("put")
    assert cp(daemon, tmp_path, "f", "sandbox:tree").returncode == 0
    there = workspace(emulator) / "tree"
    assert ((there / "a").read_text(), (there / "f").read_text()) == ("edited\n", "put")
    assert peer.call("fs.push", pushing)["sent"] == 1  # what was put there is not what was pushed
    assert ((there / "a").read_text(), (there / "f").read_text()) == ("edited\n", "f")


def test_a_link_goes_into_a_directory_by_its_own_name(daemon: Daemon, peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    peer.sh("mkdir out; echo precious >out/v2", key={"profile": "default", "task": "default"})
    (tmp_path / "v2").write_text("2")
    (tmp_path / "current").symlink_to("v2")
    done = cp(daemon, tmp_path, "current", "sandbox:out")
    assert done.stdout == b"copied 1 file, 1 B, to sandbox:out/current\n"
    out = workspace(emulator) / "out"
    assert ((out / "current").read_text(), (out / "v2").read_text()) == ("2", "precious\n")


def test_a_directory_of_that_name_in_that_directory_is_in_the_way(daemon: Daemon, peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    peer.sh("mkdir -p /workspace/out/f/g; touch /workspace/plain")
    (tmp_path / "f").write_text("f")
    for target, told in (("out", b"/workspace/out/f: there is a directory of that name"), ("plain/f", b"/workspace/plain/f: there is a file")):
        done = cp(daemon, tmp_path, "f", "sandbox:" + target)
        assert done.returncode == 1 and told in done.stderr, done.stderr
    assert (workspace(emulator) / "out" / "f" / "g").is_dir()


def test_what_is_left_out_is_named_and_changes_the_exit_code(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "f").write_text("f")
    os.mkfifo(tmp_path / "d" / "pipe\x1b[31m")
    done = cp(daemon, tmp_path, "d", "sandbox:d")
    assert done.returncode == 1 and done.stdout.startswith(b"copied 1 file")
    assert b"not copied:" in done.stderr and b"a FIFO" in done.stderr and b"\x1b" not in done.stderr


def test_mistakes_are_explained(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    assert cp(daemon, tmp_path, "a", "b").returncode == 2
    assert cp(daemon, tmp_path, "a").returncode == 2
    missing = cp(daemon, tmp_path, "a", "sandbox:a")
    assert missing.returncode == 1 and b"No such file" in missing.stderr
    outside = cp(daemon, tmp_path, "sandbox:/etc/passwd", ".")
    assert outside.returncode == 1 and b"not a path below /workspace" in outside.stderr


def test_a_daemon_that_ends_meanwhile_is_asked_again(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path) -> None:
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        peer.call("sandbox.ensure", {"key": {"profile": "default", "task": "default"}})
    (tmp_path / "f").write_bytes(os.urandom(5_000_000))
    emulator.fault({"stall_before": True}, method="PUT")
    with subprocess.Popen(daemon.command("cp", "f", "sandbox:f"), env=daemon.environment, cwd=tmp_path, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as copying:
        wait_until(lambda: emulator.faults()[0]["used"], "the copy is under way")
        daemon.kill()
        daemon.start()
        out, err = copying.communicate(timeout=60)
    assert copying.returncode == 0, err
    assert (workspace(emulator) / "f").read_bytes() == (tmp_path / "f").read_bytes()


SIZE = 20_000_000  # more than one part
CONTENT = "/v1/sandboxes/{id}/fs/content"


@pytest.fixture
def slowly(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    """A file on each side, and a line on which it takes long enough for several words about it."""
    peer.sh(f"head -c {SIZE} /dev/urandom > there")
    (tmp_path / "here").write_bytes(os.urandom(SIZE))
    emulator.fault({"stall_after_bytes": 1_000_000, "stall_ms": 400}, method="GET", route=CONTENT)
    emulator.fault({"latency_after_ms": 400}, method="PUT", route=CONTENT)


def cp_on_terminal(daemon: Daemon, cwd: pathlib.Path, *arguments: str, only: str, columns: int = 80) -> tuple[bytes, bytes]:
    """What is written to the pipe that one of stdout and stderr is, and to the terminal that the `only` other one is."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, columns))
    piped = "stdout" if only == "stderr" else "stderr"
    with subprocess.Popen(daemon.command("cp", *arguments), env={**daemon.environment, "TERM": "xterm"}, cwd=cwd,
                          **{piped: subprocess.PIPE, only: theirs}) as copying:
        os.close(theirs)
        seen = b""
        try:
            while data := os.read(ours, 65536):
                seen += data
        except OSError:  # how a terminal whose other end is closed ends
            pass
        out, err = copying.communicate(timeout=60)
    os.close(ours)
    assert copying.returncode == 0
    return out or err, seen


@pytest.mark.usefixtures("slowly")
@pytest.mark.parametrize(("source", "target", "word"), [("here", "sandbox:f", b"sending"), ("sandbox:there", "f", b"receiving")])
def test_a_terminal_gets_a_bar_that_goes_away(daemon: Daemon, tmp_path: pathlib.Path, source: str, target: str, word: bytes) -> None:
    out, seen = cp_on_terminal(daemon, tmp_path, source, target, only="stderr")
    assert out.startswith(b"copied 1 file, 19.1 MiB, to ") and out.endswith(b"f\n")
    bars = re.findall(rb"\r" + word + rb" \[(#*)( *)\] +(\d+)% (\S+ \S+) of 19\.1 MiB\x1b\[K", seen)
    shares = [int(share) for _, _, share, _ in bars]
    assert any(0 < share < 100 for share in shares) and shares == sorted(shares) and shares[-1] == 100
    assert {len(full) + len(empty) for full, empty, _, _ in bars} == {30}
    assert len(bars[-1][0]) == 30 and bars[-1][3] == b"19.1 MiB"
    assert seen.endswith(b"\r\x1b[K") and b"\n" not in seen


@pytest.mark.usefixtures("slowly")
def test_no_line_is_wider_than_the_terminal(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    """It would wrap, could not be written over, and fill the screen."""
    _, seen = cp_on_terminal(daemon, tmp_path, "here", "sandbox:f", only="stderr", columns=30)
    lines = [line.removesuffix(b"\x1b[K") for line in seen.split(b"\r")]
    assert b"sending [" in seen and max(map(len, lines)) == 29 and any(line.endswith(b"...") for line in lines)


@pytest.mark.usefixtures("slowly")
@pytest.mark.parametrize(("source", "target"), [("here", "sandbox:f"), ("sandbox:there", "f")])
def test_nothing_is_drawn_where_there_is_no_terminal(daemon: Daemon, tmp_path: pathlib.Path, source: str, target: str) -> None:
    done = cp(daemon, tmp_path, source, target)
    assert (done.returncode, done.stderr) == (0, b"") and done.stdout.count(b"\n") == 1 and b"\r" not in done.stdout


@pytest.mark.usefixtures("slowly")
def test_a_terminal_that_is_only_for_the_answer_gets_no_bar(daemon: Daemon, tmp_path: pathlib.Path) -> None:
    errors, seen = cp_on_terminal(daemon, tmp_path, "sandbox:there", "f", only="stdout")
    assert (errors, seen) == (b"", f"copied 1 file, 19.1 MiB, to {tmp_path}/f\r\n".encode())
