"""`deepinfra-sandboxd cp`: files in and out by hand."""

from __future__ import annotations

import json
import os
import pathlib
import pty
import subprocess
from collections.abc import Callable

import pytest

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
        assert done.stdout == b"copied 1 file, 1 B, to sandbox:" + target.rstrip("/").encode() + b"/f\n"
        assert (workspace(emulator) / "out" / "f").read_text() == "f"
    assert (workspace(emulator) / "out" / "mine").exists() == (there == "full")


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


def test_a_terminal_gets_a_bar_that_goes_away(daemon: Daemon, peer: Peer, tmp_path: pathlib.Path) -> None:
    peer.call("sandbox.ensure", {"key": {"profile": "default", "task": "default"}})
    (tmp_path / "f").write_bytes(os.urandom(20_000_000))
    ours, theirs = pty.openpty()
    with subprocess.Popen(daemon.command("cp", "f", "sandbox:f"), env={**daemon.environment, "TERM": "xterm"}, cwd=tmp_path, stdout=subprocess.PIPE,
                          stderr=theirs) as copying:
        os.close(theirs)
        seen = b""
        try:
            while data := os.read(ours, 65536):
                seen += data
        except OSError:  # how a terminal whose other end is closed ends
            pass
        out, _ = copying.communicate(timeout=60)
    os.close(ours)
    assert out == b"copied 1 file, 19.1 MiB, to sandbox:f\n"
    assert b"sending [" in seen and b"100% 19.1 MiB of 19.1 MiB" in seen
    assert seen.endswith(b"\r\x1b[K")
