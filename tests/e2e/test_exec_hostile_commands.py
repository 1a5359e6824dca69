"""Commands that do what users' commands do to whatever runs beside them, in every way a platform may treat a dropped exec.

Each runs twice: undisturbed, and with every connection broken while it waits to do its deed. Afterwards it has run once, its end
is told as it was or else as unknown, and the sandbox serves the next command. Nothing here leaves the emulator's sandbox.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import shutil
import time
from collections.abc import Iterator

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import Exit, Peer
from support.scenes import CREATE, EXEC, FIND_SHIMS, RUNNER, appears, only_id, processes, workspace

MODES = ["keep", "kill_group", "kill_tree"]
# Counts that it runs, tells that it does, and waits until it may go on; all outside of what the deeds destroy.
PREFACE = "echo x >>/root/ran; echo begun; until [ -e /root/go ]; do sleep 0.01; done; "


@dataclasses.dataclass
class Deed:
    script: str
    stdout: bytes = b""
    stderr: bytes = b""
    code: int = 0
    needs: str = "sh"  # program without which it cannot be done


DEEDS = {
    "writes to its streams by name": Deed("echo 1 >/dev/stdout; echo 2 >/dev/stderr; echo 3 >>/proc/self/fd/1", b"1\n3\n", b"2\n"),
    "tee to a stream by name": Deed("echo hi | tee /dev/stderr | tee /dev/fd/1", b"hi\nhi\n", b"hi\n"),
    "exec to a file": Deed("exec >/workspace/out 2>&1; echo hi; echo ho >&2; exit 3", code=3),
    "tee in the shell": Deed("exec > >(tee /workspace/log) 2>&1; echo hi; exit 4", b"hi\n", code=4),
    "closes its descriptors": Deed("exec 0<&- 1>&- 2>&-; sleep 0.05; exit 5", code=5),
    "closes one and goes on": Deed("exec 2>&-; echo still here; exit 6", b"still here\n", code=6),
    "kills its group": Deed("kill 0; sleep 10", code=143),
    "kills its own words": Deed("pkill -f 'until . -e /root/go'; sleep 10", code=143, needs="pkill"),
    "kills what it can find of us": Deed("pkill -f '[s]him'; pkill -f '[s]andboxd'; pkill -f '[d]igest'; echo there", b"there\n", needs="pkill"),
    "empties /workspace": Deed("rm -rf /workspace/* /workspace/.[!.]*; ls -A /workspace | grep -v sandboxd; echo done", b"done\n"),
    "empties /tmp": Deed("rm -rf /tmp/* /tmp/.[!.]* /var/tmp/*; ls -A /tmp; echo done", b"done\n"),
    "cleans a repository": Deed("cd /workspace && git init -q . && git clean -fdxq; ls -A | grep -v sandboxd; echo done", b".git\ndone\n", needs="git"),
    "makes /workspace unreadable": Deed("chmod 000 /workspace/.deepinfra-sandboxd; echo done; chmod 755 /workspace/.deepinfra-sandboxd", b"done\n"),
    "goes to the background": Deed("nohup sleep 600 >/workspace/log 2>&1 & echo ok", b"ok\n"),
    "stops itself for a moment": Deed("(sleep 0.1; kill -CONT $$) & kill -STOP $$; echo back", b"back\n"),
    "forks much": Deed("for i in $(seq 1 200); do (:) & done; wait; echo forked", b"forked\n"),
    "ignores every signal": Deed("trap '' HUP INT TERM QUIT PIPE; kill -TERM $$; kill -INT $$; echo alive", b"alive\n"),
    "changes its session": Deed("setsid -w sh -c 'echo elsewhere; exit 7'; exit $?", b"elsewhere\n", code=7),
    "limits itself": Deed("ulimit -n 3 -f 0 2>/dev/null; echo limited", b"limited\n"),
    "speaks our language": Deed(r"printf 'exit reason=exited started=yes code=0\no 0 0 r 5\nhello\n{\"returncode\": 0}\n'; exit 8",
                                b'exit reason=exited started=yes code=0\no 0 0 r 5\nhello\n{"returncode": 0}\n', code=8),
}


@pytest.fixture(params=MODES)
def mode(emulator: Emulator, request: pytest.FixtureRequest) -> str:
    emulator.config(on_disconnect=request.param)
    return str(request.param)


@pytest.fixture
def warm(peer: Peer, emulator: Emulator, mode: str) -> Iterator[Peer]:
    """Nothing runs twice, and what comes after is as if nothing had been."""
    peer.sh("true")
    yield peer
    assert peer.sh("cat /root/ran").stdout == b"x\n"
    before = emulator.count(EXEC)
    ended = peer.sh("echo sound; pwd")
    assert (ended.returncode, ended.stdout, emulator.count(EXEC)) == (0, b"sound\n/workspace\n", before + 1)
    assert emulator.count(CREATE) == 1 and only_id(emulator)
    lost = [one for one in peer.call("exec.list")["execs"] if one["reason"] == "lost"]
    assert [one["code"] for one in peer.call("daemon.health")["health"]] == ["runner_gone"] * len(lost)


def do(warm: Peer, emulator: Emulator, deed: Deed, disturbed: bool) -> Exit:
    """Whether it is disturbed between beginning and deed, or not."""
    exec_id = warm.start(script=PREFACE + deed.script)
    warm.notification("exec.output", exec_id=exec_id)
    if disturbed:
        emulator.drop_connections("rst")
    wait_until(lambda: emulator.sh(only_id(emulator), "touch /root/go").terminal == {"returncode": 0}, "it may go on")
    ended = warm.finish(exec_id)
    ended.stdout = b"begun\n" + ended.stdout  # which notification() took
    return ended


@pytest.mark.parametrize("disturbed", [False, True], ids=["undisturbed", "cut"])
@pytest.mark.parametrize("name", DEEDS)
def test_a_deed(warm: Peer, emulator: Emulator, mode: str, name: str, disturbed: bool) -> None:
    deed = DEEDS[name]
    if shutil.which(deed.needs) is None:
        pytest.skip(f"{deed.needs} is not installed")
    ended = do(warm, emulator, deed, disturbed)
    if disturbed and mode == "kill_tree":  # it is gone with everything that could tell: unknown, and said so
        assert (ended.reason, ended.returncode, ended.started, ended.stdout) == ("lost", None, "yes", b"begun\n"), ended
        assert (ended.error["name"], ended.error["retryable"]) == ("outcome_unknown", False)
    else:
        assert (ended.reason, ended.returncode, ended.started) == ("exited", deed.code, "yes"), ended
        assert (ended.stdout, ended.stderr) == (b"begun\n" + deed.stdout, deed.stderr)
        assert ended.dropped_bytes == 0


@pytest.mark.parametrize("disturbed", [False, True], ids=["undisturbed", "cut"])
def test_one_that_kills_everything(warm: Peer, emulator: Emulator, mode: str, disturbed: bool) -> None:
    """`kill -9 -1` takes the runner along, which alone could tell how it ends; only its own shell is spared."""
    ended = do(warm, emulator, Deed("kill -9 -1; echo x >>/root/after"), disturbed)
    assert (ended.reason, ended.returncode, ended.started, ended.stdout) == ("lost", None, "yes", b"begun\n"), ended
    assert ended.error["name"] == "outcome_unknown" and "not run again" in ended.message


def test_a_runner_that_the_system_kills(warm: Peer, emulator: Emulator, mode: str) -> None:
    """As for want of memory: the command is lost from sight, not run again, and nothing is called a success."""
    exec_id = warm.start(script=PREFACE + "echo after")
    warm.notification("exec.output", exec_id=exec_id)
    emulator.sh(only_id(emulator), f"pkill -9 -x {RUNNER}")
    ended = warm.finish(exec_id)
    assert (ended.reason, ended.returncode, ended.started) == ("lost", None, "yes")
    assert ended.error["name"] == "outcome_unknown"
    answer = warm.call("exec.cancel", {"exec_id": exec_id})  # it may live on, and a late cancel says what it can
    assert isinstance(answer["confirmed"], bool)


@pytest.mark.parametrize("disturbed", [False, True], ids=["undisturbed", "cut"])
def test_yes_in_the_background(warm: Peer, emulator: Emulator, mode: str, disturbed: bool) -> None:
    begun = time.monotonic()
    ended = do(warm, emulator, Deed("yes & echo ok"), disturbed)
    assert time.monotonic() - begun < 10
    if disturbed and mode == "kill_tree":
        assert ended.reason == "lost"
        return
    assert (ended.reason, ended.returncode) == ("exited", 0)
    rest = ended.stdout.removeprefix(b"begun\n").replace(b"ok\n", b"", 1)
    assert b"ok\n" in ended.stdout and rest == (b"y\n" * len(rest))[: len(rest)]
    assert any(line.strip() == "yes" for line in processes(emulator))  # not forgotten: it still has somewhere to write to


SMALL = 'mkdir -p "$0" && mount -t tmpfs -o "$1" none "$0" && shift && exec "$@"'


@pytest.mark.parametrize("limit", ["size=1m", "nr_inodes=40"])
def test_no_room_in_workspace(tmp_path: pathlib.Path, limit: str) -> None:
    """The emulator keeps its workspaces on a small file system of its own. A few commands can still run on a full one, so that there
    can be room again; those for which no claim can be written do not run, and the error says why."""
    prefix = ("unshare", *(() if os.geteuid() == 0 else ("-r",)), "-m", "sh", "-c", SMALL, str(tmp_path / "emulator" / "data"), limit)
    try:
        emulator = Emulator(tmp_path, boot_ms=5, command_prefix=prefix).start()
    except RuntimeError as error:
        pytest.skip(f"no private mounts here: {error}")
    with emulator, Daemon(tmp_path, emulator.url) as daemon, daemon.peer() as peer:
        peer.sh("true")
        assert peer.sh("cat /dev/zero >fill" if "size" in limit else "for i in $(seq 100); do touch fill$i || exit; done").returncode == 1
        assert [peer.sh(f"echo {n}").stdout for n in range(20)] == [b"%d\n" % n for n in range(20)]
        waiting = [peer.start(script="until [ -e /root/go ]; do sleep 0.01; done") for _ in range(9)]
        wait_until(lambda: peer.call("exec.list")["execs"] and all(one["phase"] in ("running", "done") for one in peer.call("exec.list")["execs"]),
                   "each runs or does not")
        emulator.sh(only_id(emulator), "touch /root/go")
        ends = [peer.finish(each) for each in waiting]
        failed = [one for one in ends if one.reason == "failed"]
        assert len(failed) >= 4 and all(one.returncode == 0 for one in ends if one not in failed)
        for ended in failed:
            assert (ended.returncode, ended.started) == (None, "no")
            assert "No space left" in ended.message and "has not run" in ended.message and "full" in ended.error["hint"]
        assert peer.sh("rm -f fill*; echo room >sound; cat sound").stdout == b"room\n"


def test_a_disk_that_fills_while_it_prints(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    """/tmp and /var/tmp, where long output is kept, are full: it comes through memory, slower, and whole."""
    emulator.config(scratch_mb=80)
    peer.sh("cat /dev/zero >/tmp/full 2>/dev/null; cat /dev/zero >/var/tmp/full 2>/dev/null; true")
    ended = peer.run(script="seq 1 3000000; echo x >>/root/ran", window=16777216)
    assert (ended.reason, ended.returncode, ended.dropped_bytes) == ("exited", 0, 0)
    assert ended.stdout.count(b"\n") == 3000000 and ended.stdout.endswith(b"\n3000000\n")
    assert peer.sh("cat /root/ran").stdout == b"x\n"


def test_one_that_speaks_to_us_for_another_in_no_text(peer: Peer, emulator: Emulator) -> None:
    """It finds the process that the platform reads another command's output from, and writes there."""
    peer.sh("true")
    exec_id = peer.start(script=PREFACE + "echo precious; exit 9")
    peer.notification("exec.output", exec_id=exec_id)
    said = emulator.sh(only_id(emulator), FIND_SHIMS + "echo 'note name=cwd errno=2 cwd=%FF' >/proc/${followers# }/fd/1 && touch /root/go")
    assert said.terminal == {"returncode": 0}
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode, ended.stdout) == ("exited", 9, b"precious\n")
    assert "\ufffd" in ended.message


def test_a_claim_that_somebody_wrote_over(peer: Peer, emulator: Emulator) -> None:
    """While it runs and while nobody is connected: the runner is found by its socket, and the rubbish believed by nobody."""
    peer.sh("true")
    exec_id = peer.start(script=PREFACE + "exit 9")
    peer.notification("exec.output", exec_id=exec_id)
    claims = workspace(emulator) / ".deepinfra-sandboxd" / "claims"
    appears(claims / exec_id)
    for claim in claims.iterdir():
        claim.write_bytes(b"phase=finished code=0 reason=exited was_started=1\n" * 3)
    emulator.drop_connections("rst")
    emulator.sh(only_id(emulator), "touch /root/go")
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode, ended.stdout) == ("exited", 9, b"")
    assert peer.sh("cat /root/ran").stdout == b"x\n"
