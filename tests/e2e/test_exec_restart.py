"""The daemon dies, is stopped or is replaced in the middle of commands: they go on, are found again, and never run twice."""

from __future__ import annotations

import hashlib
import json
import pathlib
import random
import time

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Exit, Peer, RpcFailure
from support.scenes import CREATE, EXEC, START, TWO_PARTS, only_id, processes, ran, without_shim, workspace
from support.schema import output_bytes

def restart(daemon: Daemon, how: str) -> None:
    getattr(daemon, how)()
    daemon.start()


def end_of(peer: Peer, exec_id: str, offset: int = 0) -> Exit:
    peer.attach(exec_id, offset)
    return peer.finish(exec_id)


def journal(daemon: Daemon) -> pathlib.Path:
    return daemon.state_dir / "execs.journal"


# -- while they run


@pytest.mark.usefixtures("on_disconnect")
def test_a_running_command_is_found_again(daemon: Daemon, emulator: Emulator, how: str) -> None:
    with daemon.peer() as peer:
        exec_id = peer.start("/bin/sh", "-c", TWO_PARTS)
        assert peer.output(exec_id, 6) == b"first\n"
    restart(daemon, how)
    with daemon.peer() as peer:
        peer.attach(exec_id, 6)
        (workspace(emulator) / "go").touch()
        ended = peer.finish(exec_id)
        assert (ended.reason, ended.returncode, ended.started) == ("exited", 3, "yes")
        assert (ended.stdout, ended.stderr, ended.output_bytes, ended.dropped_bytes) == (b"second\n", b"other\n", 19, 0)
    assert ran(emulator) == 1
    assert (emulator.count(CREATE), emulator.count(START)) == (1, 0)


def test_a_stopping_daemon_says_no_end_that_it_does_not_know(daemon: Daemon) -> None:
    with daemon.peer() as peer:
        exec_id = peer.start("/bin/sh", "-c", "echo up; sleep 600")
        peer.output(exec_id, 3)
        daemon.stop()
        assert peer.read_line() == b""  # closed, and not a word


def test_one_that_ended_in_the_meantime(daemon: Daemon, emulator: Emulator, how: str) -> None:
    with daemon.peer() as peer:
        exec_id = peer.start("/bin/sh", "-c", TWO_PARTS)
        peer.output(exec_id, 6)
    getattr(daemon, how)()
    (workspace(emulator) / "go").touch()
    wait_until(lambda: not any("until" in line for line in processes(emulator)), "the command's end")
    with daemon.start().peer() as peer:
        ended = end_of(peer, exec_id)
        assert (ended.returncode, ended.stdout, ended.stderr) == (3, b"first\nsecond\n", b"other\n")
    assert ran(emulator) == 1


def test_one_that_had_ended_before_keeps_its_end_and_its_output(daemon: Daemon, how: str) -> None:
    request = {"exec_id": "ended", "key": DEFAULT_KEY, "argv": ["/bin/sh", "-c", "echo out; exit 6"]}
    with daemon.peer() as peer:
        peer.call("exec.start", request)
        assert peer.finish("ended", acknowledge=False).returncode == 6
    restart(daemon, how)
    with daemon.peer() as peer:
        peer.call("exec.start", {**request, "resume": True})
        ended = peer.finish("ended")
        assert (ended.returncode, ended.stdout, ended.dropped_bytes) == (6, b"out\n", 0)
        peer.call("daemon.ping")  # the acknowledgement before it has been read
    restart(daemon, how)
    with daemon.peer() as peer:  # acknowledged, so only the end is left
        ended = end_of(peer, "ended")
        assert (ended.returncode, ended.stdout, ended.dropped_bytes) == (6, b"", 4)


def test_the_same_request_again_attaches_to_a_command_of_the_last_daemon(daemon: Daemon, emulator: Emulator, how: str) -> None:
    request = {"exec_id": "across", "key": DEFAULT_KEY, "argv": ["/bin/sh", "-c", TWO_PARTS]}
    with daemon.peer() as peer:
        peer.call("exec.start", request)
        peer.output("across", 6)
    restart(daemon, how)
    with daemon.peer() as peer:
        assert peer.call("exec.start", {**request, "offset": 3, "resume": True})["attached"] is True
        with pytest.raises(RpcFailure) as refused:
            peer.call("exec.start", {**request, "argv": ["/bin/true"]})
        assert refused.value.name == "exec_id_in_use"
        (workspace(emulator) / "go").touch()
        assert peer.finish("across").stdout == b"st\nsecond\n"
    assert ran(emulator) == 1


def test_many_daemons_one_after_the_other(daemon: Daemon, emulator: Emulator) -> None:
    """Megabytes of output, read across a dozen deaths at random moments: complete, in order, once."""
    dice = random.Random(11)
    size = 24 << 20
    script = f"echo x >>ran; python3 -c 'import sys,random; r=random.Random(5); [sys.stdout.buffer.write(r.randbytes(65536)) for _ in range({size >> 16})]'; exit 8"
    received = bytearray()
    with daemon.peer() as peer:
        peer.start("/bin/sh", "-c", script, exec_id="long")
    ended: Exit | None = None
    deaths = 0
    while ended is None:
        with daemon.peer() as peer:
            peer.attach("long", len(received))
            until = len(received) + dice.randrange(1 << 18, 4 << 20)
            while len(received) < until or deaths >= 12:
                message = peer.read()
                if message.get("method") == "exec.exit":
                    ended = Exit(message["params"])
                    break
                if message.get("method") == "exec.output":
                    assert message["params"]["pos"] == len(received)
                    received += output_bytes(message["params"])
                    peer.send("exec.ack", {"exec_id": "long", "offset": len(received)}, notification=True)
        if ended is None:
            deaths += 1
            restart(daemon, dice.choice(["stop", "kill"]))
    assert (ended.reason, ended.returncode, ended.output_bytes, ended.dropped_bytes) == ("exited", 8, size, 0)
    expected = random.Random(5)
    assert hashlib.sha256(received).digest() == hashlib.sha256(b"".join(expected.randbytes(65536) for _ in range(size >> 16))).digest()
    assert ran(emulator) == 1
    assert deaths > 3


def test_its_time_is_up_on_time_although_the_daemon_died(daemon: Daemon, emulator: Emulator, how: str) -> None:
    began = time.monotonic()
    with daemon.peer() as peer:
        exec_id = peer.start("/bin/sh", "-c", "echo up; sleep 600 & sleep 600", timeout_s=2)
        peer.output(exec_id, 3)
    restart(daemon, how)
    with daemon.peer() as peer:
        ended = end_of(peer, exec_id)
        assert (ended.reason, ended.returncode, ended.stdout) == ("timed_out", 124, b"up\n")
        assert 2 <= time.monotonic() - began < 20
    assert processes(emulator) == []


def test_it_can_be_cancelled_by_the_next_daemon(daemon: Daemon, emulator: Emulator, how: str) -> None:
    with daemon.peer() as peer:
        exec_id = peer.start("/bin/sh", "-c", "echo up; sleep 600 & sleep 600")
        peer.output(exec_id, 3)
    restart(daemon, how)
    with daemon.peer() as peer:
        assert peer.call("exec.cancel", {"exec_id": exec_id})["confirmed"] is True
        ended = end_of(peer, exec_id)
        assert (ended.reason, ended.returncode) == ("cancelled", 130)
    assert processes(emulator) == []


# -- before they run


def test_what_was_accepted_and_never_sent_has_not_run_and_can_be_run(daemon: Daemon, emulator: Emulator, how: str) -> None:
    emulator.config(boot_ms=60_000)
    request = {"exec_id": "early", "key": DEFAULT_KEY, "argv": ["/bin/sh", "-c", "echo x >>ran; echo out"]}
    with daemon.peer() as peer:
        peer.call("exec.start", request)
        wait_until(emulator.sandboxes, "the sandbox to be asked for")
    emulator.config(boot_ms=5)
    getattr(daemon, how)()
    emulator.delete_sandbox(only_id(emulator))  # it would boot for a minute
    with daemon.start().peer() as peer:
        peer.attach("early")
        ended = peer.finish("early", acknowledge=False)
        assert (ended.reason, ended.started, ended.error["name"], ended.error["retryable"]) == ("failed", "no", "shutting_down", True)
        with pytest.raises(RpcFailure) as refused:
            peer.call("exec.start", {**request, "argv": ["/bin/true"]})
        assert refused.value.name == "exec_id_in_use"
        assert peer.call("exec.start", {**request, "resume": True})["attached"] is False
        ended = peer.finish("early")
        assert (ended.reason, ended.returncode, ended.stdout) == ("exited", 0, b"out\n")
    assert ran(emulator) == 1


def test_whether_it_was_sent_is_settled_by_its_sandbox(daemon: Daemon, emulator: Emulator) -> None:
    """The daemon dies between its request and the answer. Nobody knows the id there: then nobody ever will."""
    with daemon.peer() as peer:
        peer.sh("true")
        emulator.fault_exec({"latency_ms": 400, "drop_before": True})
        emulator.reset_stats()
        exec_id = peer.start("/bin/sh", "-c", "echo x >>ran")
        wait_until(lambda: emulator.count(EXEC) == 1, "the request")
    daemon.kill()
    emulator.clear_faults()
    with daemon.start().peer() as peer:
        ended = end_of(peer, exec_id)
        assert (ended.reason, ended.started, ended.error["name"]) == ("failed", "no", "cloud_unreachable")
        assert "has not run" in ended.message
        late = emulator.exec(only_id(emulator), *run_line(emulator, exec_id))  # the request, should it arrive now
        assert b"reason=cancelled" in late.body and b"started=no" in late.body
    assert not (workspace(emulator) / "ran").exists()


def run_line(emulator: Emulator, exec_id: str) -> list[str]:
    """What the shim was asked, but for the program."""
    (shim,) = [one for one in (workspace(emulator) / ".deepinfra-sandboxd").glob("shim-*")]
    return [f"/workspace/.deepinfra-sandboxd/{shim.name}", "run", exec_id, "--", "/bin/sh", "-c", "echo x >>/workspace/ran"]


# -- what cannot be found any more


def test_a_sandbox_that_was_stopped_meanwhile(daemon: Daemon, emulator: Emulator, how: str) -> None:
    with daemon.peer() as peer:
        exec_id = peer.start("/bin/sh", "-c", TWO_PARTS)
        peer.output(exec_id, 6)
    getattr(daemon, how)()
    emulator.stop_sandbox(only_id(emulator))
    emulator.reset_stats()
    with daemon.start().peer() as peer:
        ended = end_of(peer, exec_id)
        assert (ended.reason, ended.returncode, ended.started, ended.error["name"]) == ("lost", None, "unknown", "outcome_unknown")
        assert "does not run any more" in ended.message and "not sent again" in ended.message
        assert (emulator.count(EXEC), emulator.count(START)) == (0, 0)
        assert peer.sh("cat ran").stdout == b"x\n"  # the next one starts it


def test_without_the_shim_it_is_lost_and_can_still_be_ended(daemon: Daemon, emulator: Emulator, how: str) -> None:
    without_shim(emulator)
    with daemon.peer() as peer:
        exec_id = peer.start("/bin/sh", "-c", "echo x >>ran; echo up; sleep 600")
        peer.output(exec_id, 3)
    restart(daemon, how)
    with daemon.peer() as peer:
        ended = end_of(peer, exec_id)
        assert (ended.reason, ended.returncode) == ("lost", None) and "cannot run the shim" in ended.message
        assert peer.call("exec.cancel", {"exec_id": exec_id})["confirmed"] is True
    assert processes(emulator) == []
    assert ran(emulator) == 1


def test_a_platform_that_is_away_when_the_daemon_comes_back(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        exec_id = peer.start("/bin/sh", "-c", TWO_PARTS)
        peer.output(exec_id, 6)
    daemon.kill()
    fault = {"status": 503, "body": ""}
    emulator.fault(fault, times=1_000_000)
    with daemon.start().peer() as peer:
        peer.attach(exec_id)
        wait_until(lambda: emulator.count() > 3, "the daemon to try")
        emulator.clear_faults()
        (workspace(emulator) / "go").touch()
        assert peer.finish(exec_id).stdout == b"first\nsecond\n"


# -- the journal


def test_the_journal_survives_being_torn(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        exec_id = peer.start("/bin/sh", "-c", TWO_PARTS)
        peer.output(exec_id, 6)
        daemon.kill()
    with open(journal(daemon), "ab") as torn:
        torn.write(b'{"id":"' + exec_id.encode() + b'","digest":"')
    with daemon.start().peer() as peer:
        (workspace(emulator) / "go").touch()
        assert end_of(peer, exec_id, 6).stdout == b"second\n"
        assert peer.sh("true").returncode == 0
    restart(daemon, "kill")
    with daemon.peer() as peer:
        assert end_of(peer, exec_id).returncode == 3
    assert all(json.loads(line) for line in journal(daemon).read_text().splitlines())


def test_a_list_that_an_answer_cannot_hold_says_so_and_has_the_newest(daemon: Daemon) -> None:
    """What goes on is in it in any case."""
    with daemon.peer() as peer:
        peer.sh("true")
        going_on = peer.start("sleep", "600")
        wait_until(lambda: peer.call("exec.list")["execs"][-1]["phase"] == "running", "it runs")
    daemon.kill()
    lines = [json.loads(line) for line in journal(daemon).read_text().splitlines()]
    (ended,) = [line for line in lines if line["id"] != going_on and line["phase"] == "ended"][-1:]
    with open(journal(daemon), "a") as more:
        for n in range(4000):
            profile = "/home/somebody/.hermes/profiles/" + "x" * 60
            more.write(json.dumps({**ended, "id": f"{n:032}", "profile": profile, "task": "y" * 60}) + "\n")
    daemon.start()
    with daemon.peer(limit_s=30) as peer:
        answer = peer.call("exec.list")
        listed = [one["exec_id"] for one in answer["execs"]]
        assert answer["truncated"] and going_on in listed and listed[-1] == f"{3999:032}" and 1000 < len(listed) < 4000
        assert "truncated" not in peer.call("exec.list", {"key": DEFAULT_KEY})
        peer.call("exec.cancel", {"exec_id": going_on})


def test_a_long_command_that_has_just_ended_is_not_forgotten_for_all_that_came_after_it(daemon: Daemon, emulator: Emulator) -> None:
    """Its client has gone, and thousands were started behind it, and are over and told."""
    with daemon.peer() as peer:
        peer.sh("true")
        longest = peer.start(script="until [ -e go ]; do sleep 0.01; done; echo result; exit 5")
        wait_until(lambda: peer.call("exec.list")["execs"][-1]["phase"] == "running", "it runs")
    daemon.kill()
    lines = [json.loads(line) for line in journal(daemon).read_text().splitlines()]
    (ended,) = [line for line in lines if line["id"] != longest and line["phase"] == "ended"][-1:]
    with open(journal(daemon), "a") as more:
        for n in range(4500):
            more.write(json.dumps({**ended, "id": f"{n:032}", "profile": "other", "forgotten": True}) + "\n")
    with daemon.start().peer() as peer:
        (workspace(emulator) / "go").touch()

        def over() -> bool:
            return any(one["exec_id"] == longest and one["phase"] == "done" for one in peer.call("exec.list", {"key": DEFAULT_KEY})["execs"])

        wait_until(over, "it has ended")
        assert peer.sh("exit 4").returncode == 4
        assert end_of(peer, longest).stdout == b"result\n"
        with pytest.raises(RpcFailure) as forgotten:
            peer.attach(f"{0:032}")
        assert forgotten.value.name == "exec_not_found"
        peer.attach(f"{4499:032}")


def test_the_journal_holds_no_secret_and_is_private(daemon: Daemon) -> None:
    with daemon.peer() as peer:
        peer.run("/bin/sh", "-c", "echo canary-argv", env={"TOKEN": "canary-env"}, stdin="canary-stdin")
    assert b"canary" not in journal(daemon).read_bytes()
    assert journal(daemon).stat().st_mode & 0o777 == 0o600


def test_a_journal_that_cannot_be_written_is_said_and_commands_go_on(daemon: Daemon) -> None:
    daemon.stop()
    journal(daemon).unlink(missing_ok=True)
    journal(daemon).mkdir()
    with daemon.start().peer() as peer:
        assert peer.sh("exit 4").returncode == 4
        assert any(item["code"] == "journal" for item in peer.call("daemon.health")["health"])


def test_the_journal_does_not_grow_for_ever(daemon: Daemon) -> None:
    with daemon.peer() as peer:
        peer.sh("true")
    filler = journal(daemon).read_text().splitlines()[-1]
    daemon.stop()
    journal(daemon).write_text((filler + "\n") * 20_000)
    with daemon.start().peer() as peer:
        assert journal(daemon).stat().st_size < 100_000
        assert peer.sh("exit 2").returncode == 2


def test_an_offset_beyond_the_end_ends_no_command_of_an_earlier_daemon(daemon: Daemon, emulator: Emulator) -> None:
    """Which cannot tell how much there is. Its client is told the end, as any other, and what it really was."""
    with daemon.peer() as peer:
        exec_id = peer.start("/bin/sh", "-c", "echo hi; until [ -e go ]; do sleep 0.02; done; echo done")
        peer.output(exec_id, 3)
        daemon.kill()
    daemon.start()
    with daemon.peer(limit_s=30, validate=False) as wrong, daemon.peer(limit_s=30) as right:
        wait_until(lambda: right.call("exec.list")["execs"][0]["phase"] == "running", "it is found again")
        wrong.attach(exec_id, 1000)
        right.attach(exec_id)
        assert right.output(exec_id, 3) == b"hi\n"
        (workspace(emulator) / "go").touch()
        for peer in (wrong, right):
            ended = peer.finish(exec_id)
            assert (ended.reason, ended.returncode, ended.params["output_bytes"], ended.dropped_bytes) == ("exited", 0, 8, 0)


def test_in_another_boot_a_command_in_doubt_is_not_run(daemon: Daemon, emulator: Emulator) -> None:
    """It may have run in the one before, and nobody expects it in this one."""
    with daemon.peer(limit_s=60) as peer, daemon.peer(limit_s=60) as other:
        generation = other.sh("true").generation
        emulator.fault_exec({"drop_before": True}, body="in-doubt", times=5)
        peer.start("/bin/sh", "-c", "echo ran >>n", exec_id="in-doubt", generation=generation)
        wait_until(lambda: any(one["used"] for one in emulator.faults()), "it is sent, and its answer lost")
        emulator.stop_sandbox(only_id(emulator))
        assert other.sh("true").generation == generation + 1
        ended = peer.finish("in-doubt")
        assert (ended.reason, ended.error["name"]) == ("lost", "outcome_unknown")
        assert not (workspace(emulator) / "n").exists()
