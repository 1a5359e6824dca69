"""Limits of the platform and of the sandbox that a long command meets: its age, its output, what is kept of it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.scenes import EXEC, appears, workspace

# Deterministic bytes that do not repeat within a megabyte, so that a piece that is lost, doubled or moved shows.
# Numbered noise: what repeats would take no room worth mentioning on the way.
PRINT = "import random, sys; noise = random.Random(7).randbytes\nfor i in range({n}): sys.stdout.buffer.write(b'%08d' % i + noise(1024))"


def printed(count: int) -> bytes:
    noise = random.Random(7).randbytes
    return b"".join(b"%08d" % i + noise(1024) for i in range(count))


def python(count: int) -> str:
    return f"echo x >>/workspace/n; python3 -c \"{PRINT.format(n=count)}\"; exit 5"


def ran_once(emulator: Emulator) -> bool:
    return (workspace(emulator) / "n").read_text() == "x\n"


@pytest.mark.parametrize("on_disconnect", ["keep", "kill_group"])
def test_a_connection_that_nobody_reads_never_gets_as_old_as_the_cap(make_daemon: Callable[..., Daemon], emulator: Emulator, on_disconnect: str) -> None:
    """Where the platform would kill whatever the command has started, it does not come to that."""
    daemon = make_daemon(server_timeout=3).start()
    emulator.config(idle_check=False, on_disconnect=on_disconnect)
    with daemon.peer(limit_s=90) as peer:
        peer.sh("true")
        emulator.config(command_cap_s=6, cap_kill="tree")
        before = emulator.count(EXEC)
        exec_id = peer.start(script=python(40000), window=65536)
        appears(workspace(emulator) / "n")

        def of_this() -> list[str]:
            return [one["ended"] for one in emulator.commands() if exec_id in one["argv"] and one["argv"][1] in ("run", "follow")]

        # The first connection ends while nobody reads; what keeps the sandbox awake after that are short calls.
        wait_until(lambda: of_this() and of_this()[0] not in ("starting", "running"), "it is let go of", 20)
        at = emulator.count(EXEC)
        wait_until(lambda: emulator.count(EXEC) >= at + 4, "time goes by", 30)
        assert emulator.count(EXEC) > before
        ended = peer.finish(exec_id)
        endings = of_this()
    assert (ended.reason, ended.returncode, ended.params["dropped_bytes"]) == ("exited", 5, 0)
    assert hashlib.sha256(ended.stdout).digest() == hashlib.sha256(printed(40000)).digest()
    assert not any("capped" in each for each in endings), endings
    assert ran_once(emulator)


@pytest.mark.parametrize("kill", ["group", "none", "tree"])
def test_the_platforms_limit_on_output(daemon: Daemon, emulator: Emulator, kill: str) -> None:
    """It is met once at the most. Where that ends the whole tree, that one command is lost and told to be; the next ones stay below."""
    with daemon.peer(limit_s=90) as peer:
        peer.sh("true")
        emulator.config(output_limit_bytes=3_000_000, output_limit_kill=kill)
        still_running = "; sleep 600" if kill == "tree" else ""
        ended = peer.run(script=python(10000).replace("; exit", still_running + "; exit"), window=1 << 20)
        assert ran_once(emulator)
        assert (ended.reason, ended.returncode) == (("lost", None) if kill == "tree" else ("exited", 5))
        assert ended.stdout == printed(10000)[:len(ended.stdout)]
        assert len(ended.stdout) == 10_320_000 or kill == "tree"
        (workspace(emulator) / "n").unlink()
        again = peer.run(script=python(10000), window=1 << 20)
        assert (again.reason, again.returncode, again.params["dropped_bytes"]) == ("exited", 5, 0)
        assert again.stdout == printed(10000) and ran_once(emulator)
    assert sum("output_limit" in one["ended"] for one in emulator.commands()) == 1


def test_what_ended_without_its_client_leaves_room_for_the_output_of_others(daemon: Daemon, emulator: Emulator) -> None:
    for _ in range(4):
        with daemon.peer() as peer:
            for _ in range(10):
                peer.start(script="echo x")
    with daemon.peer() as peer:
        wait_until(lambda: {one["phase"] for one in peer.call("exec.list")["execs"]} == {"done"}, "all have ended")
        exec_id = peer.start("true")
        assert peer.finish(exec_id).returncode == 0
    (argv,) = [one["argv"] for one in emulator.commands() if one["argv"][1:3] == ["run", exec_id]]
    assert int(argv[argv.index("--spool-cap") + 1]) > 255 << 20


def test_who_attaches_when_the_first_has_gone_gets_all_from_the_beginning(daemon: Daemon) -> None:
    """What that one had read and acknowledged, too."""
    with daemon.peer() as peer:
        peer.sh("true")
        exec_id = peer.start(script="yes 0123456789abcde | head -c 100000000; touch printed; until [ -e go ]; do sleep 0.01; done; exit 3")
        got = 0
        while got < 100_000_000:
            got += len(peer.output(exec_id, 1))
            peer.send("exec.ack", {"exec_id": exec_id, "offset": got}, notification=True)
    with daemon.peer(limit_s=60) as peer:
        peer.attach(exec_id)
        peer.run("touch", "go")
        ended = peer.finish(exec_id)
        assert (ended.returncode, ended.params["dropped_bytes"], len(ended.stdout)) == (3, 0, 100_000_000)
        assert ended.stdout == b"0123456789abcde\n" * (100_000_000 // 16)


def test_acknowledgements_stay_rare_after_a_restart(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        exec_id = peer.start(script="echo up; until [ -e go ]; do sleep 0.01; done; yes | head -c 60000000", window=1 << 20)
        peer.output(exec_id, 3)
    daemon.kill()
    daemon.start()
    with daemon.peer(limit_s=60) as peer:
        peer.attach(exec_id, 3)
        before = emulator.count(EXEC)
        (workspace(emulator) / "go").touch()
        ended = peer.finish(exec_id)
        assert len(ended.stdout) == 60_000_000 and ended.returncode == 0
        after_restart = emulator.count(EXEC) - before
    assert after_restart <= 8, after_restart  # one for each quarter of what is kept, and for each 32 MiB of output


@pytest.mark.parametrize("attended", [False, True])
def test_only_a_command_that_nobody_attends_drops_and_that_is_counted(make_daemon: Callable[..., Daemon], emulator: Emulator, attended: bool) -> None:
    """Both print more than their sandbox keeps. The one whose client is there and reads nothing waits for it, longer than the grace: of
    2 s at the least, and 15."""
    emulator.config(idle_check=False, scratch_mb=72)  # of which the spool leaves 64 alone
    daemon = make_daemon(server_timeout=3, spool_grace=2).start()
    with daemon.peer(limit_s=90) as peer:
        peer.sh("true")
        exec_id = peer.start(script=python(40000), window=65536)
        appears(workspace(emulator) / "n")
        if attended:
            at = emulator.count(EXEC)
            wait_until(lambda: emulator.count(EXEC) >= at + 20, "it is said that somebody is there", 80)
            ended = peer.finish(exec_id)
            assert (ended.reason, ended.returncode, ended.params["dropped_bytes"]) == ("exited", 5, 0)
            assert ended.stdout == printed(40000)
            return
    with daemon.peer(limit_s=90) as peer:
        wait_until(lambda: peer.call("exec.list")["execs"][-1]["phase"] == "done", "it gets through", 60)
        peer.attach(exec_id)
        ended = peer.finish(exec_id)
    dropped = ended.params["dropped_bytes"]
    assert (ended.reason, ended.returncode) == ("exited", 5)
    assert dropped > 1_000_000 and dropped + len(ended.stdout) == ended.params["output_bytes"] == 41_280_000
    assert printed(40000).endswith(ended.stdout[-1_000_000:])
