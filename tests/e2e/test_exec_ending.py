"""How commands end before their time: time-outs, cancels, and what goes on in the background meanwhile."""

from __future__ import annotations

import pathlib
import time

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Exit, Peer, RpcFailure
from support.scenes import CREATE, EXEC, appears, living, only_id, processes, workspace

# A family of which every member wants to outlive the others: a child, a grandchild in a session of its own whose parent
# has gone, one with no output of ours, one that ignores every signal it can. Tells when all are there.
FAMILY = """
import os, signal, subprocess, sys
subprocess.Popen(["sleep", "600"])
subprocess.Popen(["sh", "-c", "setsid sleep 601 >/dev/null 2>&1 </dev/null & sleep 0.05"]).wait()
subprocess.Popen(["sh", "-c", "trap '' HUP INT TERM; while :; do sleep 602; done"], start_new_session=True)
for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(each, signal.SIG_IGN)
print("partial output", flush=True)
open("/workspace/family", "w").close()
while True:
    signal.pause()
"""


def family(peer: Peer, emulator: Emulator, **how: object) -> tuple[str, pathlib.Path]:
    """Starts one, and a bystander in the background of an earlier command; returns when both live."""
    peer.sh("(while :; do echo tick; sleep 0.02; done) >/workspace/ticks 2>&1 </dev/null &")
    ticks = workspace(emulator) / "ticks"
    appears(ticks)
    return peer.start("python3", "-c", FAMILY, **how), ticks  # type: ignore[arg-type]


def phase(peer: Peer, exec_id: str) -> str:
    (found,) = [one for one in peer.call("exec.list")["execs"] if one["exec_id"] == exec_id]
    word: str = found["phase"]
    return word


def is_dead(emulator: Emulator) -> bool:
    return not any("sleep 60" in line or "python3" in line for line in processes(emulator))


def goes_on(ticks: pathlib.Path) -> None:
    seen = ticks.stat().st_size
    wait_until(lambda: ticks.stat().st_size > seen, "the bystander goes on")


# -- time-outs


def test_a_time_out_ends_the_whole_tree_and_keeps_the_output(peer: Peer, emulator: Emulator) -> None:
    peer.sh("true")
    exec_id, ticks = family(peer, emulator, timeout_s=1.5)
    begun = time.monotonic()
    ended = peer.finish(exec_id)
    took = time.monotonic() - begun
    assert (ended.reason, ended.returncode, ended.started, ended.stdout) == ("timed_out", 124, "yes", b"partial output\n")
    assert 1.3 < took < 4
    assert is_dead(emulator), processes(emulator)
    goes_on(ticks)
    assert peer.sh("echo fine").stdout == b"fine\n"
    assert only_id(emulator) and emulator.count(CREATE) == 1


@pytest.mark.parametrize("timeout_s", [0.0001, 0.005, 0.02, 0.05])
def test_a_time_out_that_meets_the_start(peer: Peer, emulator: Emulator, timeout_s: float) -> None:
    """Whatever the moment, no process stays behind once the end is told."""
    peer.sh("true")
    for form in ({}, {"stdin": "x"}):
        ended = peer.run("sleep", "600", timeout_s=timeout_s, **form)
        assert (ended.reason, ended.returncode) == ("timed_out", 124)
        assert is_dead(emulator), processes(emulator)
        if ended.started == "no":
            assert ended.stdout == b""


def test_a_command_that_floods_is_ended_in_time(peer: Peer, daemon: Daemon) -> None:
    peer.sh("true")
    begun = time.monotonic()
    ended = peer.finish(peer.start("yes", timeout_s=1, window=16777216))
    assert (ended.reason, ended.returncode) == ("timed_out", 124)
    assert ended.stdout.startswith(b"y\ny\n") and len(ended.stdout) == ended.output_bytes
    assert time.monotonic() - begun < 10
    assert daemon.rss_kib() < 100 << 10


def test_a_command_whose_output_nobody_reads_is_ended_in_time(peer: Peer, daemon: Daemon, emulator: Emulator) -> None:
    peer.sh("true")
    exec_id = peer.start("yes", timeout_s=0.5, window=4096)
    with daemon.peer() as second:
        wait_until(lambda: any(one["exec_id"] == exec_id and one["phase"] == "done" for one in second.call("exec.list")["execs"]),
                   "its end is known")
    assert not any(line.startswith("yes") for line in processes(emulator))
    assert peer.finish(exec_id).reason == "timed_out"


def test_the_platforms_default_limit_does_not_count(peer: Peer, emulator: Emulator) -> None:
    """Its 60 seconds end a command that asks for nothing (here: half a second)."""
    emulator.config(default_timeout_s=0.5)
    peer.sh("true")
    assert [peer.run("sleep", "1").returncode, peer.run("sleep", "1", timeout_s=300).returncode] == [0, 0]
    assert [one["timeout_s"] for one in emulator.commands() if "sleep" in one["argv"]] == [1800, 1800]


def test_waiting_for_the_sandbox_is_not_the_commands_time(peer: Peer, emulator: Emulator) -> None:
    emulator.config(boot_ms=700)
    ended = peer.run("echo", "late", timeout_s=0.5)
    assert (ended.reason, ended.stdout, ended.returncode) == ("exited", b"late\n", 0)


def test_what_goes_ahead_of_the_command_is_not_its_time(peer: Peer, emulator: Emulator) -> None:
    """The shim's way into the sandbox, input that is put there, and what the platform did not take at once."""
    emulator.fault({"latency_ms": 1500}, method="PUT")
    ended = peer.run(script="echo out", timeout_s=1)
    assert (ended.reason, ended.stdout) == ("exited", b"out\n")
    emulator.fault({"latency_ms": 1500}, method="PUT")
    ended = peer.run("wc", "-c", stdin="x" * 200_000, timeout_s=1)
    assert (ended.reason, ended.stdout) == ("exited", b"200000\n")
    emulator.fault_exec({"status": 502, "body": ""}, times=5)  # 1.5 s of pauses between the tries
    ended = peer.run(script="sleep 1; echo out", timeout_s=1.5)
    assert (ended.reason, ended.stdout) == ("exited", b"out\n")


def test_an_end_within_its_time_that_is_heard_of_late(peer: Peer, emulator: Emulator) -> None:
    """Every answer takes 0.6 s: the daemon's own clock is over before it knows."""
    peer.sh("true")
    emulator.config(latency_ms=600)
    for window in (65536, 4096):
        ended = peer.run(script="sleep 0.8; head -c 50000 /dev/zero; exit 3", timeout_s=1, window=window)
        assert (ended.reason, ended.returncode, len(ended.stdout)) == ("exited", 3, 50_000)


def test_an_end_within_its_time_in_front_of_a_client_that_does_not_read(peer: Peer, daemon: Daemon, emulator: Emulator) -> None:
    """Its end lies behind output that nobody has taken when the time is up."""
    peer.sh("true")
    exec_id = peer.start(script="head -c 3000000 /dev/zero; touch ended; exit 3", timeout_s=1, window=4096)
    appears(workspace(emulator) / "ended")
    with daemon.peer() as second:  # until the daemon's own clock is over too
        wait_until(lambda: phase(second, exec_id) == "done", "its end is known")
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode, len(ended.stdout), ended.dropped_bytes) == ("exited", 3, 3_000_000, 0)


def test_an_outage_that_outlasts_the_time(peer: Peer, emulator: Emulator) -> None:
    """It has ended by itself meanwhile: that is found out, and told."""
    peer.sh("true")
    exec_id = peer.start(script="echo hi; sleep 0.5; echo bye; touch ended; exit 3", timeout_s=2)
    peer.output(exec_id, 3)
    emulator.config(accept_mode="refuse")
    emulator.drop_connections("rst")
    appears(workspace(emulator) / "ended")
    wait_until(lambda: phase(peer, exec_id) == "ending", "its time is up")
    emulator.config(accept_mode="normal")
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode, ended.stdout) == ("exited", 3, b"bye\n")


# -- cancels


def test_a_cancel_ends_one_command_and_nothing_else(peer: Peer, daemon: Daemon, emulator: Emulator) -> None:
    """cases.md 6 and 7."""
    other = peer.start("/bin/sh", "-c", "until [ -e go ]; do sleep 0.01; done; echo other")
    exec_id, ticks = family(peer, emulator)
    appears(workspace(emulator) / "family")
    with daemon.peer() as second:  # anybody may
        assert second.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
        assert is_dead(emulator), processes(emulator)
        assert second.call("exec.cancel", {"exec_id": exec_id})["confirmed"]
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode, ended.started, ended.stdout) == ("cancelled", 130, "yes", b"partial output\n")
    goes_on(ticks)
    peer.run("touch", "go")
    assert peer.finish(other).stdout == b"other\n"
    assert [one["state"] for one in living(emulator)] == ["running"]


def cancelled_with(peer: Peer, emulator: Emulator, script: str, signal: str) -> Exit:
    peer.sh("rm -f ready")
    exec_id = peer.start("/bin/sh", "-c", script)
    appears(workspace(emulator) / "ready")
    assert peer.call("exec.cancel", {"exec_id": exec_id, "signal": signal})["confirmed"]
    return peer.finish(exec_id)


@pytest.mark.parametrize("signal", ["INT", "TERM"])
def test_a_polite_cancel_lets_the_command_clean_up(peer: Peer, emulator: Emulator, signal: str) -> None:
    peer.sh("true")
    script = f"trap 'echo cleaned up; touch cleaned; exit 7' {signal}; touch ready; while :; do sleep 0.01; done"
    ended = cancelled_with(peer, emulator, script, signal)
    assert (ended.reason, ended.returncode, ended.stdout) == ("cancelled", 130, b"cleaned up\n")
    assert (workspace(emulator) / "cleaned").exists()


def test_a_polite_cancel_that_is_ignored_becomes_a_kill(peer: Peer, emulator: Emulator) -> None:
    ended = peer.sh("true")
    begun = time.monotonic()
    ended = cancelled_with(peer, emulator, "trap '' INT; touch ready; while :; do sleep 600; done", "INT")
    assert (ended.reason, ended.returncode) == ("cancelled", 130)
    assert time.monotonic() - begun < 6
    assert is_dead(emulator), processes(emulator)


def test_a_second_cancel_may_be_sharper(peer: Peer, emulator: Emulator) -> None:
    peer.sh("true")
    exec_id = peer.start("/bin/sh", "-c", "trap 'touch asked' INT; touch ready; while :; do sleep 0.01; done")
    appears(workspace(emulator) / "ready")
    soft = peer.send("exec.cancel", {"exec_id": exec_id, "signal": "INT"})
    appears(workspace(emulator) / "asked")
    begun = time.monotonic()
    sharp = peer.send("exec.cancel", {"exec_id": exec_id, "signal": "KILL"})
    assert peer.result(soft) == peer.result(sharp) == {"confirmed": True}
    assert peer.finish(exec_id).reason == "cancelled"
    assert time.monotonic() - begun < 3
    assert not any("trap" in line for line in processes(emulator))


def test_a_cancel_while_the_sandbox_boots(peer: Peer, emulator: Emulator) -> None:
    emulator.config(boot_ms=400)
    exec_id = peer.start("touch", "ran")
    peer.notification("sandbox.progress")
    assert peer.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode, ended.started, ended.generation) == ("cancelled", 130, "no", 0)
    assert peer.sh("ls").stdout == b""  # the boot goes on for whoever comes next
    assert (emulator.count(EXEC), emulator.count(CREATE)) == (2, 1)  # the shim, and `ls`


@pytest.mark.parametrize("route", ["PUT", "POST"])
def test_a_cancel_while_the_shim_is_installed(peer: Peer, emulator: Emulator, route: str) -> None:
    """Nothing of the command has been sent: so it has not run, and never will."""
    if route == "PUT":
        emulator.fault({"stall_before": True}, method="PUT")
    else:
        emulator.fault_exec({"stall_before": True})
    exec_id = peer.start("touch", "ran")
    wait_until(lambda: any(one["outcome"] == "open" and one["method"] == route for one in emulator.requests()), "it is being installed")
    begun = time.monotonic()
    assert peer.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode, ended.started) == ("cancelled", 130, "no")
    assert time.monotonic() - begun < 3
    emulator.clear_faults()
    assert peer.sh("ls").stdout == b""


def test_a_cancel_is_not_overtaken_by_a_late_start(peer: Peer, emulator: Emulator) -> None:
    """The command is on its way when the cancel arrives before it: it must not start any more."""
    peer.sh("true")
    emulator.fault_exec({"latency_ms": 4000})
    exec_id = peer.start("/bin/sh", "-c", "echo x >>n; sleep 600")
    wait_until(lambda: emulator.count(EXEC) >= 3, "it is on its way")
    assert peer.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode, ended.started) == ("cancelled", 130, "no")
    wait_until(lambda: all(one["outcome"] != "open" for one in emulator.requests()), "it has arrived")
    assert not (workspace(emulator) / "n").exists()
    assert is_dead(emulator)


def test_nor_does_it_pass_for_one_that_may_have_run_when_the_answer_to_the_cancel_is_lost(peer: Peer, emulator: Emulator) -> None:
    peer.sh("true")
    emulator.fault_exec({"latency_ms": 2000})
    exec_id = peer.start("touch", "ran")
    wait_until(lambda: emulator.count(EXEC) >= 3, "it is on its way")
    emulator.fault_exec({"act_then_drop": "done"})
    assert peer.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode, ended.started, ended.message) == ("cancelled", 130, "no", "cancelled before it started")
    wait_until(lambda: all(one["outcome"] != "open" for one in emulator.requests()), "it has arrived")
    assert not (workspace(emulator) / "ran").exists()


@pytest.mark.parametrize("how, latency_ms", [("cancelled", 2000), ("timed_out", 5000)])
def test_nothing_forgets_the_claim_while_the_start_may_still_arrive(peer: Peer, emulator: Emulator, how: str, latency_ms: int) -> None:
    """Its end is told and acknowledged, and the next command would take along that the sandbox may forget it."""
    peer.sh("true")
    emulator.fault_exec({"latency_ms": latency_ms})
    exec_id = peer.start("/bin/sh", "-c", "echo x >>n", **({"timeout_s": 1} if how == "timed_out" else {}))
    wait_until(lambda: emulator.count(EXEC) >= 3, "it is on its way")
    if how == "cancelled":
        assert peer.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.started) == (how, "no")
    for _ in range(2):
        assert peer.sh("true").returncode == 0

    def arrived() -> list[int | None]:
        """The codes that the shim's calls to start it have ended with."""
        return [one["returncode"] for one in emulator.commands() if one["argv"][1:3] == ["run", exec_id]]

    assert arrived() == [], "the start arrives behind all that"
    wait_until(lambda: arrived() == [0], "it has arrived")
    assert not (workspace(emulator) / "n").exists()


def test_a_cancel_while_the_platform_makes_one_wait(peer: Peer, emulator: Emulator) -> None:
    """429 may last for minutes; the cancel does not. cases.md 16."""
    peer.sh("true")
    emulator.fault_exec({"status": 429, "body": "slow down", "headers": {"Retry-After": "60"}}, times=0)
    exec_id = peer.start("touch", "ran")
    wait_until(lambda: emulator.count(EXEC) >= 2, "it was refused")
    begun = time.monotonic()
    assert peer.call("exec.cancel", {"exec_id": exec_id})["confirmed"]
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.started) == ("cancelled", "no")
    assert time.monotonic() - begun < 2
    assert not (workspace(emulator) / "ran").exists()


def test_a_cancel_right_behind_the_start(peer: Peer, emulator: Emulator) -> None:
    """Sent in one go, at every stage: never a process left, whatever the end is called."""
    peer.sh("true")
    for delay_ms in (0, 5, 20, 60):
        emulator.config(latency_ms=delay_ms)
        exec_id = f"quick-{delay_ms}"
        start = peer.send("exec.start", {"exec_id": exec_id, "key": DEFAULT_KEY, "argv": ["sleep", "600"]})
        cancel = peer.send("exec.cancel", {"exec_id": exec_id})
        assert peer.result(start)["accepted"]
        assert peer.result(cancel)["confirmed"]
        assert peer.finish(exec_id).reason == "cancelled"
        assert is_dead(emulator), (delay_ms, processes(emulator))


def test_an_unconfirmed_cancel_says_so(peer: Peer, emulator: Emulator) -> None:
    peer.sh("true")
    exec_id = peer.start("/bin/sh", "-c", "echo up; touch up; sleep 600")
    appears(workspace(emulator) / "up")
    emulator.fault_exec({"status": 500, "body": "no"}, times=0)
    result = peer.call("exec.cancel", {"exec_id": exec_id})
    assert not result["confirmed"] and "may still be running" in result["message"]
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode, ended.stdout) == ("cancelled", 130, b"up\n")
    assert "may still be running" in ended.message
    assert any("sleep 600" in line for line in processes(emulator))


def test_a_cancel_of_what_has_ended_by_itself(peer: Peer, emulator: Emulator) -> None:
    """Nobody knew yet: its code is the truth, its last bytes arrive, and what it left in the background is ended."""
    peer.sh("true")
    exec_id = peer.start(script="echo hi; sleep 600 & sleep 0.3; echo bye; touch ended; exit 3")
    peer.output(exec_id, 3)
    emulator.fault_exec({"drop_before": True}, times=0)
    emulator.drop_connections("rst")
    appears(workspace(emulator) / "ended")
    wait_until(lambda: not any("touch" in line for line in processes(emulator)), "its end")
    emulator.clear_faults()
    assert peer.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode, ended.stdout) == ("exited", 3, b"bye\n")
    assert is_dead(emulator), processes(emulator)


@pytest.mark.parametrize("restarted", [False, True])
def test_a_cancel_after_the_end_ends_what_it_left_in_the_background(daemon: Daemon, emulator: Emulator, restarted: bool) -> None:
    with daemon.peer() as peer:
        peer.sh("true")
        exec_id = peer.start(script="sleep 600 >/dev/null 2>&1 & echo hi")
        assert peer.finish(exec_id).stdout == b"hi\n"
        peer.sh("true")  # takes along that this may be forgotten
        before = emulator.count(EXEC)
        plain = peer.start("true")
        peer.finish(plain)
        assert peer.call("exec.cancel", {"exec_id": plain}) == {"confirmed": True}
        assert emulator.count(EXEC) == before + 1
    if restarted:
        daemon.kill()
        daemon.start()
    with daemon.peer() as peer:
        emulator.fault_exec({"status": 500, "body": "no"}, times=0)
        answer = peer.call("exec.cancel", {"exec_id": exec_id})
        assert not answer["confirmed"] and "could not be ended" in answer["message"]
        assert not is_dead(emulator)
        emulator.clear_faults()
        assert peer.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
        assert is_dead(emulator), processes(emulator)


def test_of_a_sandbox_that_is_no_more_nothing_is_left(peer: Peer, emulator: Emulator) -> None:
    exec_id = peer.start(script="sleep 600 >/dev/null 2>&1 & echo hi")
    assert peer.finish(exec_id).stdout == b"hi\n"
    peer.call("sandbox.terminate", {"key": DEFAULT_KEY})
    before = emulator.count(EXEC)
    assert peer.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    assert emulator.count(EXEC) == before


def test_an_end_told_in_doubt_is_put_right_for_who_asks_again(peer: Peer, daemon: Daemon, emulator: Emulator) -> None:
    peer.sh("true")
    exec_id = peer.start(script="echo hi; until [ -e go ]; do sleep 0.01; done; echo bye; touch ended; exit 3")
    peer.output(exec_id, 3)
    emulator.fault_exec({"status": 500, "body": "no"}, times=0)
    emulator.drop_connections("rst")
    assert not peer.call("exec.cancel", {"exec_id": exec_id})["confirmed"]
    ended = peer.finish(exec_id)
    assert (ended.reason, ended.returncode) == ("cancelled", 130) and "may still be running" in ended.message
    (workspace(emulator) / "go").touch()
    appears(workspace(emulator) / "ended")
    emulator.clear_faults()
    with daemon.peer() as second:
        second.attach(exec_id, 0)
        ended = second.finish(exec_id)
        assert (ended.reason, ended.returncode, ended.stdout, ended.message) == ("exited", 3, b"hi\nbye\n", None)
        listed = {one["exec_id"]: one for one in second.call("exec.list")["execs"]}
        assert (listed[exec_id]["reason"], listed[exec_id]["returncode"]) == ("exited", 3)


def test_what_follows_an_end_told_in_doubt_is_acknowledged_too(daemon: Daemon, emulator: Emulator) -> None:
    """Where the disk is full the sandbox keeps a few megabytes, and waits until somebody says that he has them."""
    emulator.config(scratch_mb=80)
    size = 30_000_000
    with daemon.peer() as peer:
        peer.sh("cat /dev/zero >/tmp/full 2>/dev/null; cat /dev/zero >/var/tmp/full 2>/dev/null; true")
        exec_id = peer.start(script=f"echo up; until [ -e go ]; do sleep 0.01; done; head -c {size - 3} /dev/zero; exit 3")
        peer.output(exec_id, 3)
        emulator.fault_exec({"status": 500, "body": "no"}, times=0)
        emulator.drop_connections("rst")
        assert not peer.call("exec.cancel", {"exec_id": exec_id})["confirmed"]
        peer.finish(exec_id)
        emulator.clear_faults()
        (workspace(emulator) / "go").touch()
        with daemon.peer() as second:
            second.attach(exec_id, 0)
            ended = second.finish(exec_id)
            assert (len(ended.stdout), ended.reason, ended.returncode, ended.dropped_bytes) == (size, "exited", 3, 0)


def test_only_what_exists_can_be_cancelled(peer: Peer) -> None:
    with pytest.raises(RpcFailure, match="exec_not_found"):
        peer.call("exec.cancel", {"exec_id": "nonesuch"})
    exec_id = peer.start("true")
    peer.finish(exec_id)
    assert peer.call("exec.cancel", {"exec_id": exec_id})["confirmed"]


# -- the background


@pytest.mark.parametrize("script", ["sleep 600 & echo ok", "setsid sleep 600 >/tmp/l 2>&1 </dev/null & disown; echo ok",
                                    "nohup sleep 600 >/dev/null 2>&1 & echo ok", "(sleep 600; echo late) & echo ok"])
def test_what_goes_to_the_background_holds_nobody_up(peer: Peer, emulator: Emulator, script: str) -> None:
    """cases.md 1."""
    peer.sh("true")
    begun = time.monotonic()
    ended = peer.run(script=script)
    assert (ended.stdout, ended.returncode) == (b"ok\n", 0)
    assert time.monotonic() - begun < 2
    wait_until(lambda: peer.sh("pgrep -x sleep").returncode == 0, "it lives on")  # it may still be on its way to become sleep
    wait_until(lambda: all(one["outcome"] != "open" for one in emulator.requests()), "no stream is left open")


def test_a_platform_that_waits_for_the_background(peer: Peer, emulator: Emulator) -> None:
    """Holds nobody up: the command has ended when its first process has, and its output until then has been told."""
    emulator.config(waits_for_children=True)
    peer.sh("true")
    begun = time.monotonic()
    assert peer.run(script="setsid sleep 600 >/tmp/l 2>&1 </dev/null & disown; echo ok").returncode == 0
    assert time.monotonic() - begun < 2
    ended = peer.run(script="sleep 601 & echo ok; exit 3", timeout_s=1)
    assert (ended.stdout, ended.reason, ended.returncode) == (b"ok\n", "exited", 3)
    assert time.monotonic() - begun < 5
    time.sleep(1.2)  # the time-out was the command's, which has ended
    assert {f"sleep {n}" for n in (600, 601)} <= {line.strip() for line in processes(emulator)}


@pytest.mark.parametrize("outcome", ["error", "cut"])
def test_the_platforms_own_cap_ends_no_command(peer: Peer, emulator: Emulator, outcome: str) -> None:
    """At 30 minutes (here: half a second) the platform ends what is attached to it, which is a follower."""
    peer.sh("true")
    emulator.config(command_cap_s=0.5, cap_outcome=outcome)
    ended = peer.sh("echo x >>n; for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.3; done; exit 7")
    assert (ended.reason, ended.returncode, ended.stdout) == ("exited", 7, b"1\n2\n3\n4\n5\n6\n7\n8\n")
    assert (workspace(emulator) / "n").read_text() == "x\n"
