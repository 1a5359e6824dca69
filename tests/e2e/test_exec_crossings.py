"""A command's start, its end and the kills meet on the way: nothing is done twice, nothing is lost, and what is told is so."""

from __future__ import annotations

import time

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer
from support.scenes import EXEC, SHIM, STOP, appears, only_id, processes, without_shim, workspace

KILL = '"kill"'  # in the body of a call that kills
HANDLER = "echo x >>n; trap 'echo asked; until [ -e go ]; do sleep 0.01; done; exit 7' INT; touch ready; while :; do sleep 0.01; done"
NEVER_ENDS = "echo partial; touch ready; sleep 600"


def sleeps(emulator: Emulator) -> bool:
    return any("sleep 600" in line for line in processes(emulator))


def lines(emulator: Emulator) -> int:
    path = workspace(emulator) / "n"
    return len(path.read_text().splitlines()) if path.exists() else 0


def no_shim_at_all(emulator: Emulator) -> None:
    """Not for the calls that kill either, nor once it was seen to run."""
    emulator.fault_exec({"latency_ms": 200, "status": 200, "body": '{"stderr": "sh: Permission denied\\n"}\n{"returncode": 126}\n'},
                        body=SHIM, times=0)


def kills(emulator: Emulator, exec_id: str) -> int:
    return sum(one["argv"][1:3] == ["kill", exec_id] for one in emulator.commands())


# -- a polite signal is handled once


def test_a_polite_cancel_is_handled_once_however_late_its_command_is_heard_of(peer: Peer, emulator: Emulator) -> None:
    peer.sh("true")
    emulator.fault_exec({"latency_after_ms": 300})
    exec_id = peer.start("/bin/sh", "-c", HANDLER)
    appears(workspace(emulator) / "ready")
    cancel = peer.send("exec.cancel", {"exec_id": exec_id, "signal": "INT"})
    assert peer.output(exec_id, len(b"asked\n")) == b"asked\n"  # so it has been heard of
    peer.sh("touch go")
    assert peer.result(cancel)["confirmed"]
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode, ended.stdout) == ("cancelled", 130, b"")


def test_a_polite_cancel_is_handled_once_though_its_answer_was_lost(peer: Peer, emulator: Emulator) -> None:
    peer.sh("true")
    exec_id = peer.start("/bin/sh", "-c", HANDLER)
    appears(workspace(emulator) / "ready")
    emulator.fault_exec({"act_then_drop": "started"})
    cancel = peer.send("exec.cancel", {"exec_id": exec_id, "signal": "INT"})
    wait_until(lambda: kills(emulator, exec_id) >= 2, "it is asked for again")
    peer.sh("touch go")
    assert peer.result(cancel)["confirmed"]
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode, ended.stdout) == ("cancelled", 130, b"asked\n")


def test_a_polite_cancel_is_handled_once_though_the_next_daemon_is_asked_for_it_too(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.sh("true")
        exec_id = peer.start("/bin/sh", "-c", HANDLER)
        appears(workspace(emulator) / "ready")
        peer.send("exec.cancel", {"exec_id": exec_id, "signal": "INT"})
        assert peer.output(exec_id, len(b"asked\n")) == b"asked\n"
    daemon.kill()
    with daemon.start().peer() as peer:
        peer.attach(exec_id)
        cancel = peer.send("exec.cancel", {"exec_id": exec_id, "signal": "INT"})
        wait_until(lambda: kills(emulator, exec_id) >= 2, "it is asked for again")
        peer.sh("touch go")
        assert peer.result(cancel)["confirmed"]
        ended = peer.finish(exec_id)
        assert (ended.reason, ended.started, ended.stdout) == ("cancelled", "yes", b"asked\n")


# -- several kills


def test_a_kill_that_stalls_holds_up_no_other(peer: Peer, emulator: Emulator) -> None:
    """The sharper one is confirmed, so the command is dead, whatever becomes of the first."""
    peer.sh("true")
    exec_id = peer.start("/bin/sh", "-c", NEVER_ENDS)
    appears(workspace(emulator) / "ready")
    emulator.fault_exec({"stall_before": True}, body=KILL)
    begun, before = time.monotonic(), emulator.count(EXEC)
    soft = peer.send("exec.cancel", {"exec_id": exec_id, "signal": "INT"})
    wait_until(lambda: emulator.count(EXEC) > before, "it stalls")
    assert peer.call("exec.cancel", {"exec_id": exec_id}) == peer.result(soft) == {"confirmed": True}
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.started, ended.stdout, ended.message) == ("cancelled", "yes", b"partial\n", None)
    assert time.monotonic() - begun < 8 and not sleeps(emulator)


def test_nor_the_one_that_follows_the_answer_to_the_start(peer: Peer, emulator: Emulator) -> None:
    peer.sh("true")
    emulator.fault_exec({"latency_after_ms": 2000})
    exec_id = peer.start("/bin/sh", "-c", NEVER_ENDS)
    appears(workspace(emulator) / "ready")
    emulator.fault_exec({"stall_before": True}, body=KILL)
    begun = time.monotonic()
    assert peer.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.started, ended.stdout) == ("cancelled", "yes", b"partial\n")
    assert time.monotonic() - begun < 8 and not sleeps(emulator)


# -- an end that comes before the answer to the start


@pytest.mark.parametrize("latency_ms", [300, 3000])
def test_what_was_printed_before_the_start_was_answered_is_kept(peer: Peer, emulator: Emulator, latency_ms: int) -> None:
    peer.sh("true")
    emulator.fault_exec({"latency_after_ms": latency_ms})
    exec_id = peer.start("/bin/sh", "-c", NEVER_ENDS)
    appears(workspace(emulator) / "ready")
    assert peer.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    ended = peer.finish(exec_id, acknowledge=False)
    assert (ended.reason, ended.started, ended.stdout) == ("cancelled", "yes", b"partial\n")
    peer.attach(exec_id)
    assert peer.finish(exec_id).stdout == b"partial\n"


def test_what_was_printed_before_the_next_daemon_found_it_is_kept(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.sh("true")
        exec_id = peer.start("/bin/sh", "-c", NEVER_ENDS)
        peer.output(exec_id, len(b"partial\n"))
    daemon.kill()
    emulator.fault({"latency_ms": 4000}, method="GET", times=20)
    with daemon.start().peer() as peer:
        peer.attach(exec_id)
        assert peer.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
        ended = peer.finish(exec_id)
        assert (ended.reason, ended.started, ended.stdout) == ("cancelled", "yes", b"partial\n")
    emulator.clear_faults()


def test_it_is_known_to_have_run_when_another_client_has_its_output(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as other:
        other.sh("true")
        emulator.fault_exec({"latency_after_ms": 5000})
        with daemon.peer() as peer:
            exec_id = peer.start("/bin/sh", "-c", HANDLER)
            appears(workspace(emulator) / "ready")
            peer.send("exec.cancel", {"exec_id": exec_id, "signal": "INT"})
            wait_until(lambda: kills(emulator, exec_id) == 1, "it is being ended")
        other.attach(exec_id)
        ended = other.finish(exec_id)
        assert (ended.reason, ended.started, ended.stdout) == ("cancelled", "yes", b"asked\n")


def test_a_program_that_is_not_there_is_told_as_that(peer: Peer, emulator: Emulator) -> None:
    peer.sh("true")
    emulator.fault_exec({"latency_after_ms": 15000})
    exec_id = peer.start("/nonexistent")
    wait_until(lambda: b"failed" in peer.sh(f".deepinfra-sandboxd/shim-* ps | grep id={exec_id}").stdout, "it has failed")
    assert peer.call("exec.cancel", {"exec_id": exec_id})["confirmed"]
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode) == ("exited", 127)


def test_a_cancel_meets_the_end_of_the_sandbox(peer: Peer, daemon: Daemon, emulator: Emulator) -> None:
    peer.sh("true")
    exec_id = peer.start("/bin/sh", "-c", NEVER_ENDS)
    appears(workspace(emulator) / "ready")
    emulator.fault_exec({"latency_ms": 300}, body=KILL)
    before = emulator.count(EXEC)
    cancel = peer.send("exec.cancel", {"exec_id": exec_id})
    wait_until(lambda: emulator.count(EXEC) > before, "it is on its way")
    with daemon.peer() as other:
        other.call("sandbox.terminate", {"key": DEFAULT_KEY, "force": True})
    assert peer.result(cancel) == {"confirmed": True}
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.started) == ("cancelled", "yes")


# -- a runner that died before it began: its start is sent again

DIED_EARLY = (r'{"stdout": "deepinfra-shim/1 run build=x arch=x86_64 uid=0 boot=b id=again state=new pos=0 out=0 err=0\n"}' + "\n"
              r'{"stdout": "lost claim=claimed started=no boot=same code=- signal=-\n"}' + "\n" '{"returncode": 0}\n')


def test_a_second_start_that_is_refused_for_now_is_sent_again(peer: Peer, emulator: Emulator) -> None:
    peer.sh("true")
    emulator.fault_exec({"status": 200, "body": DIED_EARLY}, body="again")
    emulator.fault_exec({"status": 429, "body": "slow down"}, body="again")
    peer.start("echo", "hi", exec_id="again")
    ended = peer.finish("again")
    assert (ended.reason, ended.returncode, ended.stdout) == ("exited", 0, b"hi\n")


def test_a_second_start_that_stalls_is_over_in_time(peer: Peer, emulator: Emulator) -> None:
    peer.sh("true")
    emulator.fault_exec({"status": 200, "body": DIED_EARLY}, body="again")
    emulator.fault_exec({"stall_before": True}, body="again")
    peer.start("sleep", "600", exec_id="again", timeout_s=1)
    ended = peer.finish("again")
    assert (ended.reason, ended.returncode) == ("timed_out", 124)


# -- where the shim cannot run


@pytest.fixture
def attached(peer: Peer, emulator: Emulator) -> Peer:
    without_shim(emulator)
    peer.sh("sleep 500 >/dev/null 2>&1 </dev/null &")  # it must outlive what is cancelled
    return peer


def assert_nothing_was_stopped(emulator: Emulator) -> None:
    assert emulator.count(STOP) == 0 and any("sleep 500" in line for line in processes(emulator))


def test_a_start_in_doubt_is_not_sent_again_by_the_next_daemon(daemon: Daemon, emulator: Emulator) -> None:
    request = {"exec_id": "once", "key": DEFAULT_KEY, "argv": ["/bin/sh", "-c", HANDLER]}
    with daemon.peer() as peer:
        without_shim(emulator)
        peer.sh("true")
        emulator.fault_exec({"latency_after_ms": 2600, "act_then_drop": "started"}, body="once")
        peer.call("exec.start", request)
        appears(workspace(emulator) / "ready")
        peer.send("exec.cancel", {"exec_id": "once", "signal": "INT"})
        wait_until(lambda: any("deepinfra-sandboxd-kill" in one["argv"] for one in emulator.commands()), "it is being ended")
        wait_until(lambda: all(one["outcome"] != "open" or "deepinfra-sandboxd-kill" in one["body_prefix"] for one in emulator.requests()),
                   "the answer to its start has dropped")
        daemon.kill()
    with daemon.start().peer() as peer:
        assert peer.call("exec.start", request)["attached"] is True
        assert peer.finish("once").reason in ("lost", "cancelled")  # or was there time to end it
        assert lines(emulator) == 1


def test_a_cancel_while_its_stdin_is_awaited_ends_nothing_else(attached: Peer, emulator: Emulator) -> None:
    no_shim_at_all(emulator)
    exec_id = attached.start("cat", stdin_open=True)
    attached.notification("sandbox.progress")
    assert attached.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    ended = attached.finish(exec_id)
    assert (ended.reason, ended.started) == ("cancelled", "no")
    assert_nothing_was_stopped(emulator)


def test_a_cancel_while_its_input_is_put_there_does_not_wait(attached: Peer, emulator: Emulator) -> None:
    emulator.fault({"stall_before": True}, method="PUT")
    exec_id = attached.start("cat", stdin="x" * 200000)
    wait_until(lambda: any(one["outcome"] == "open" and one["method"] == "PUT" for one in emulator.requests()), "it is on its way")
    assert attached.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    ended = attached.finish(exec_id)
    assert (ended.reason, ended.started, ended.message) == ("cancelled", "no", "cancelled before it started")


def test_a_cancel_while_the_stdin_of_the_command_that_found_the_shim_unable_is_awaited(peer: Peer, emulator: Emulator) -> None:
    peer.sh("sleep 500 >/dev/null 2>&1 </dev/null &")
    no_shim_at_all(emulator)
    exec_id = peer.start("cat", stdin_open=True)
    while "waiting for all of the command's stdin" not in peer.notification("sandbox.progress")["text"]:
        pass
    assert peer.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.started) == ("cancelled", "no")
    assert_nothing_was_stopped(emulator)


def test_a_second_start_that_cannot_be_is_told_as_not_run(peer: Peer, emulator: Emulator) -> None:
    peer.sh("true")
    emulator.fault_exec({"status": 200, "body": DIED_EARLY}, body="again")
    full = r'{"stdout": "deepinfra-shim/1 run build=x arch=x86_64 uid=0 boot=b\nerror name=claim_failed errno=28 at=claim started=no\n"}'
    emulator.fault_exec({"status": 200, "body": full + "\n" '{"returncode": 2}\n'}, body="again")
    peer.start("echo", "hi", exec_id="again")
    ended = peer.finish("again")
    assert (ended.reason, ended.started) == ("failed", "no")


def test_a_shim_that_is_found_unable_while_its_command_is_cancelled(peer: Peer, emulator: Emulator) -> None:
    peer.sh("sleep 500 >/dev/null 2>&1 </dev/null &")
    no_shim_at_all(emulator)
    before = emulator.count(EXEC)
    exec_id = peer.start("/bin/sh", "-c", "echo x >>n; sleep 600")
    wait_until(lambda: emulator.count(EXEC) > before, "it is on its way")
    assert peer.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.started) == ("cancelled", "no")
    assert_nothing_was_stopped(emulator)
    assert lines(emulator) == 0 and emulator.sandbox(only_id(emulator))["state"] == "running"
    assert emulator.count(EXEC) >= 3
