"""Transfers of an ordinary user, for whom modes mean something: root may do what they forbid, and most test machines are root's."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from support.confined import WITHOUT_UNSHARE, needs_a_filter
from support.daemon import Daemon, find_binary
from support.emulator import Emulator
from support.inside import HARMLESS, HOSTILE, HOSTILE_TREE, LIAR, packed, prepare_lie, told_of
from support.scenes import workspace
from support.trees import describe, without_marker

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")


@dataclass(frozen=True)
class User:
    """Somebody with a daemon and a directory to work in."""

    daemon: Daemon
    work: pathlib.Path
    become: tuple[str, ...]

    def run(self, *argv: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*self.become, *argv], env=self.daemon.environment, cwd=self.work, capture_output=True, timeout=60, check=False)

    def sh(self, script: str) -> None:
        done = self.run("sh", "-c", script)
        assert done.returncode == 0, done.stderr

    def inside(self, script: str) -> None:
        done = self.run(*self.daemon.command("exec", "--", "sh", "-c", script))
        assert done.returncode == 0, done.stderr

    def cp(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        return self.run(*self.daemon.command("cp", *arguments))


@pytest.fixture(params=["as usual", pytest.param("where unshare is forbidden", marks=needs_a_filter)])
def user(request: pytest.FixtureRequest, emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> Iterator[User]:
    """Who runs the tests, or nobody if that is root; with a daemon for each of the ways to unpack here."""
    become = NOBODY if os.geteuid() == 0 else ()
    # Not below pytest's own directory, which is only its user's.
    base = pathlib.Path(tempfile.mkdtemp(prefix="sandboxd-test-", dir="/tmp"))
    try:
        binary = base / "deepinfra-sandboxd"
        shutil.copy(find_binary(), binary)
        monkeypatch.setenv("DEEPINFRA_SANDBOXD", str(binary))
        (base / "work").mkdir()
        daemon = Daemon(base, emulator.url, prefix=become if request.param == "as usual" else (*WITHOUT_UNSHARE, *become))
        daemon.log_file.touch()
        for path in (base, base / "work", daemon.directory):
            path.chmod(0o777)
        with daemon:
            yield User(daemon, base / "work", become)
    finally:
        subprocess.run(["chmod", "-R", "u+rwx", str(base)], check=True)
        shutil.rmtree(base)


def test_directories_that_forbid_writing_arrive_as_they_are(user: User, emulator: Emulator) -> None:
    user.inside("cd /workspace; mkdir -p d/ro/deeper; echo 1 > d/ro/f; echo 2 > d/ro/deeper/g; chmod 555 d/ro/deeper d/ro d")
    done = user.cp("sandbox:d", "d")
    assert (done.returncode, done.stderr) == (0, b"")
    assert describe(user.work / "d") == describe(workspace(emulator) / "d")
    assert (user.work / "d").stat().st_mode & 0o777 == 0o555


def test_they_are_merged_with_what_is_there(user: User) -> None:
    user.inside("cd /workspace; mkdir -p d/ro d/new; echo new > d/ro/f; echo 1 > d/new/g; chmod 555 d/ro d/new")
    user.sh("mkdir -p m/d/ro; echo old > m/d/ro/f; echo mine > m/d/ro/mine; chmod 500 m/d/ro m/d")
    done = user.cp("sandbox:d", "m/")
    assert (done.returncode, done.stderr) == (0, b"")
    there = describe(user.work / "m" / "d")
    assert {name: what[1:] for name, what in there.items()} == {b"ro": (0o500,), b"ro/f": (0o644, b"new\n"), b"ro/mine": (0o644, b"mine\n"),
                                                               b"new": (0o555,), b"new/g": (0o644, b"1\n")}
    assert (user.work / "m" / "d").stat().st_mode & 0o777 == 0o500


def test_what_could_not_be_put_in_place_is_not_counted(user: User) -> None:
    user.inside("cd /workspace; mkdir -p d/sub/deep; echo 1 > d/f; echo 22 > d/sub/g; echo 333 > d/sub/deep/h; chmod 500 d/sub/deep")
    user.sh("mkdir -p m/d; echo in the way > m/d/sub")
    done = user.cp("sandbox:d", "m/")
    assert done.returncode == 1 and done.stdout.startswith(b"copied 1 file, 2 B, to ")
    assert b"not copied: " in done.stderr and b"m/d/sub: " in done.stderr
    assert (user.work / "m" / "d" / "sub").read_text() == "in the way\n"


def test_nothing_is_left_of_a_directory_that_could_not_be_moved(user: User) -> None:
    user.inside("cd /workspace; mkdir -p d/sub/deep; echo 1 > d/sub/deep/h; chmod 500 d/sub/deep d/sub")
    user.sh("mkdir -p m/d; echo in the way > m/d/sub")
    user.cp("sandbox:d", "m/")
    assert os.listdir(user.work / "m") == ["d"]
    assert list((user.daemon.state_dir / "stages").iterdir()) == []


def test_what_cannot_be_read_is_left_out_and_named(user: User, emulator: Emulator) -> None:
    user.sh("mkdir -p u/shut u/mute; echo x > u/secret; echo y > u/open; echo z > u/shut/f; echo q > u/mute/f; chmod 000 u/secret u/shut; chmod 400 u/mute")
    done = user.cp("u", "sandbox:u")
    assert done.returncode == 1 and done.stdout == b"copied 1 file, 2 B, to sandbox:u\n"
    named = done.stderr.decode().splitlines()
    for path in ("u/secret", "u/shut", "u/mute/f"):
        assert [line for line in named if line.endswith(f"{user.work}/{path}: Permission denied")], named
    there = without_marker(describe(workspace(emulator) / "u"))
    assert {name for name, what in there.items() if what[0] == "file"} == {b"open"}
    told = json.loads(user.cp("--json", "u", "sandbox:again").stdout)
    assert sorted((each["host"], each["remote"], each["reason"], each["text"]) for each in told["skipped"]) == [
        (f"{user.work}/u/{path}", f"/workspace/again/{path}", "unreadable", "Permission denied") for path in ("mute/f", "secret", "shut")]


def test_nothing_hostile_is_unpacked_either(user: User, emulator: Emulator) -> None:
    user.inside(f"cat > /usr/local/bin/python3 <<'END'\n{LIAR}END\nchmod +x /usr/local/bin/python3")
    prepare_lie(emulator, packed(HOSTILE_TREE), **told_of(HOSTILE_TREE))
    done = user.cp("sandbox:d", "d")
    assert done.returncode == 1 and done.stdout.startswith(b"copied 3 files, 4 B, to ")
    refused = [line.split(": ")[1] for line in done.stderr.decode().splitlines()]
    assert sorted(refused) == sorted("/" + each.name for each, _ in HOSTILE)
    assert {os.fsdecode(name) for name in describe(user.work / "d")} == {"a", *HARMLESS}
    assert os.listdir(user.work) == ["d"] and not os.path.lexists("/etc/evil")
    assert list((user.daemon.state_dir / "stages").iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="there is nobody else to own something")
def test_what_cannot_be_removed_is_not_forgotten(user: User) -> None:
    stage = user.work / ".deepinfra-sandboxd-1"
    user.daemon.stop()
    notes = user.daemon.state_dir / "stages"
    user.sh(f"mkdir {stage} {notes}; touch {stage}/ours; printf %s {stage} > {notes}/1")
    (stage / "theirs").mkdir()
    (stage / "theirs" / "f").touch()
    note = notes / "1"
    user.daemon.start()
    assert user.run(*user.daemon.command("status")).stdout  # it listens before it has looked for what was left
    assert os.listdir(stage) == ["theirs"] and note.exists()
    user.daemon.stop()
    shutil.rmtree(stage / "theirs")
    user.daemon.start()
    assert user.run(*user.daemon.command("status")).stdout  # it listens before it has looked for what was left
    assert not stage.exists() and not note.exists()
