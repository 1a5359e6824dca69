"""Where a command ends: what its helpers wrote is there, what lives on lives on, and what is ended is ended."""

from __future__ import annotations

import threading
import time

import pytest
from shim_box import PATH, Box, read_text, wait_until
from shim_frames import parse


def took(box: Box, script: str, **options: object) -> tuple[float, object]:
    begin = time.monotonic()
    made = box.sh(script, **options)
    return time.monotonic() - begin, made


# -- what is still being written

@pytest.mark.parametrize("script, out", [
    ("exec > >(tee /tmp/log) 2>&1; echo hi", b"hi\n"),
    ("exec > >(cat | tr a-z A-Z | tee /tmp/log) 2>&1; echo hi", b"HI\n"),
    ("exec > >(sort); seq 5 -1 1", b"1\n2\n3\n4\n5\n"),
    ("exec > >(python3 -c 'import sys; print(sys.stdin.read().upper())'); echo hi", b"HI\n\n"),
])
def test_helpers_in_the_shell_are_waited_for(box: Box, script: str, out: bytes) -> None:
    for _ in range(15):
        made = box.sh(script)
        assert made.out == out, made.frames
        box.call("ack", made.hello["id"], "0", "--done")


def test_a_helper_that_hands_on_much(box: Box) -> None:
    made = box.sh("exec > >(gzip -1 | gzip -d); seq 1 300000")
    assert len(made.out) == 1988895 and made.out.endswith(b"299999\n300000\n")


# -- what lives on

@pytest.mark.parametrize("script, name", [
    ("setsid sleep 600 >/tmp/l 2>&1 </dev/null & disown; echo ok", "sleep 600"),
    ("sleep 600 & echo ok", "sleep 600"),
    ("nohup sleep 600 >log 2>&1 & echo ok", "sleep 600"),
    ("(trap '' HUP; sleep 600; echo late) & echo ok", "sleep 600"),
    ("python3 -c 'import os, time\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: time.sleep(600)\n os._exit(0)\n'; echo ok", "time.sleep(600)"),
])
def test_a_background_process_neither_blocks_nor_dies_nor_is_forgotten(box: Box, script: str, name: str) -> None:
    seconds, made = took(box, script, id="x")
    assert seconds < 2 and made.out == b"ok\n" and made.exit.number("code") == 0 and made.exit.number("background") >= 1
    wait_until(lambda: any(name in line for line in box.processes()), f"{name} lives")  # in the middle of an execve it has no name
    status = box.ps()["x"]
    assert status["state"] == "background" and int(status["descendants"]) >= 1
    # Even when all is acknowledged it stays in view and can be killed.
    assert box.call("ack", "x", "0", "--done").last["state"] == "gone"
    assert box.ps()["x"]["state"] == "background"
    killed = box.call("kill", "x").last
    assert (killed["confirmed"], killed["was"], killed["left"]) == ("yes", "ended", "0")
    assert not any(name in line for line in box.processes())
    wait_until(lambda: box.ps() == {}, "the runner has left")


def test_late_output_neither_kills_nor_blocks_its_writer(box: Box) -> None:
    made = box.sh("(sleep 0.3; seq 1 40000; echo written >/workspace/proof) & echo ok")
    assert made.out == b"ok\n"
    wait_until(lambda: box.plain("cat /workspace/proof") == "written\n", "the background process got through")


def test_yes_in_the_background_never_runs_dry_and_costs_little(box: Box) -> None:
    seconds, made = took(box, "yes & echo ok", id="x")
    assert seconds < 2 and b"ok\n" in made.out and len(made.out) < 10 << 20
    ticks = "cat /proc/$(pgrep -x yes)/stat /proc/$(pgrep -x deepinfrad)/stat | awk '{s += $14 + $15} END {print s}'"
    before = int(box.plain(ticks))
    time.sleep(1)
    assert int(box.plain(ticks)) - before < 30  # of 200 in a second of two processors
    assert box.call("kill", "x").last["confirmed"] == "yes"
    box.until_processes(0)


def test_a_busy_background_process_without_our_pipes_does_not_delay(box: Box) -> None:
    seconds, made = took(box, "(while :; do :; done) >/dev/null 2>&1 & echo ok", id="x")
    assert made.out == b"ok\n" and made.exit.number("elapsed_ms") < 250
    box.call("kill", "x")


# -- deadline

def test_the_deadline_ends_the_tree_and_keeps_the_output(box: Box) -> None:
    seconds, made = took(box, "echo partial; setsid sleep 601 & python3 -c 'import subprocess; subprocess.run([\"sleep\", \"600\"])'", options=("--timeout-ms", "700"))
    assert 0.7 <= seconds < 1.7
    assert made.out == b"partial\n" and made.exit["reason"] == "timed_out" and made.exit["signal"] == "9"
    assert made.exit.number("background") == 0 and box.processes() == []


def test_the_deadline_holds_under_a_flood(box: Box) -> None:
    begin = time.monotonic()
    made = box.run("yes", options=("--timeout-ms", "500", "--spool-cap", "1048576"))
    assert time.monotonic() - begin < 3 and made.exit["reason"] == "timed_out"


def test_the_deadline_with_grace(box: Box) -> None:
    made = box.sh("trap 'echo cleaned; exit 9' TERM; sleep 60 & wait", options=("--timeout-ms", "300", "--kill-grace-ms", "3000"))
    assert made.out == b"cleaned\n" and made.exit["reason"] == "timed_out" and made.exit.number("code") == 9
    assert made.exit.number("elapsed_ms") < 2000
    made = box.sh("trap '' TERM; while :; do sleep 1; done", options=("--timeout-ms", "100", "--kill-grace-ms", "200"))
    assert made.exit["reason"] == "timed_out" and made.exit["signal"] == "9" and 300 <= made.exit.number("elapsed_ms") < 1300


def test_a_background_process_is_not_the_deadlines_business(box: Box) -> None:
    made = box.sh("sleep 600 & echo ok", options=("--timeout-ms", "300"))
    assert made.exit["reason"] == "exited"
    time.sleep(0.5)
    assert any("sleep 600" in line for line in box.processes())


# -- kill

def start(box: Box, script: str, id: str, *options: str):
    stream = box.open("run", id, *options, "--raw", "--", "bash", "-c", script)
    return stream


@pytest.mark.parametrize("script", ["sleep 100", "trap '' TERM INT; sleep 100; sleep 100", "setsid sleep 100 & setsid sh -c 'sleep 100 & sleep 100' & wait",
                                    "kill -STOP $$; sleep 100", "exec >&- 2>&-; sleep 100",
                                    "f() { while :; do (sleep 0.01; f) & sleep 0.02; done; }; f"])
def test_kill_ends_one_command_and_nothing_else(box: Box, script: str) -> None:
    with start(box, "while :; do echo x >>/workspace/ticks; sleep 0.01; done", "other"), start(box, "echo begun; " + script, "x") as stream:
        box.until_started("x")
        wait_until(lambda: int(box.ps()["x"]["pos"]) > 0, "it has begun")
        begin = time.monotonic()
        killed = box.call("kill", "x").last
        assert (killed["confirmed"], killed["was"]) == ("yes", "running")
        assert time.monotonic() - begin < 1.5
        made = parse(read_text(stream))
        assert made.out == b"begun\n" and (made.exit["reason"], made.exit["started"], made.exit["signal"]) == ("cancelled", "yes", "9")
        wait_until(lambda: all("ticks" in line or "sleep 0.01" in line for line in box.processes()), f"only the other one is left: {box.processes()}")
        size = int(box.plain("stat -c %s /workspace/ticks"))
        wait_until(lambda: int(box.plain("stat -c %s /workspace/ticks")) > size, "the other one goes on")


def test_kill_with_a_signal_lets_it_clean_up(box: Box) -> None:
    with start(box, "trap 'echo cleaned; exit 5' INT; echo begun; while :; do sleep 0.05; done", "x") as stream:
        wait_until(lambda: int(box.ps().get("x", {}).get("pos", 0)) > 0, "begun")
        assert box.call("kill", "x", "--signal", "INT", "--grace-ms", "3000").last["confirmed"] == "yes"
        made = parse(read_text(stream))
        assert made.out == b"begun\ncleaned\n" and made.exit["reason"] == "cancelled" and made.exit.number("code") == 5


def test_a_signal_that_is_asked_for_again_is_not_sent_again(box: Box) -> None:
    """As when the first call's answer was lost; another signal is."""
    script = "trap 'echo asked' INT; trap 'echo ended; exit 5' TERM; touch /workspace/ready; while :; do sleep 0.05; done"
    with start(box, script, "x") as stream:
        wait_until(lambda: box.plain("ls /workspace") == "ready\n", "begun")

        def shims() -> int:
            return box.plain("ps -eo args").count("deepinfrad")

        before = shims()
        options = ("--grace-ms", "5000", "--confirm-ms", "1")
        answers = []
        asking = [threading.Thread(target=lambda: answers.append(box.call("kill", "x", "--signal", "INT", *options).last)) for _ in range(3)]
        for one in asking:
            one.start()
        wait_until(lambda: shims() == before + 3, "all three wait for its end")
        assert box.call("kill", "x", "--signal", "TERM", *options).last["confirmed"] == "yes"
        for one in asking:
            one.join()
        assert [answer["confirmed"] for answer in answers] == ["yes"] * 3
        made = parse(read_text(stream))
        assert made.out == b"asked\nended\n" and made.exit.number("code") == 5


def test_what_was_put_there_for_a_start_that_comes_too_late_goes(box: Box) -> None:
    assert box.call("kill", "x").last["was"] == "unclaimed"
    box.plain("echo secret >/workspace/input; echo secret >/workspace/script")
    made = box.call("run", "x", "--stdin", "file:/workspace/input", "--unlink-stdin", "--cleanup", "/workspace/script", "--", "cat")
    assert (made.exit["reason"], made.exit["started"]) == ("cancelled", "no")
    assert box.plain("ls /workspace") == ""


def test_a_cancel_cannot_be_overtaken_by_a_late_start(box: Box) -> None:
    killed = box.call("kill", "x").last
    assert (killed["confirmed"], killed["was"]) == ("yes", "unclaimed")
    for _ in range(2):
        made = box.sh("echo ran >/workspace/ran", id="x")
        assert (made.exit["reason"], made.exit["started"]) == ("cancelled", "no")
    assert box.call("kill", "x").last["was"] == "cancelled"
    assert box.plain("ls /workspace") == ""
    assert box.call("ack", "x", "0", "--done").last["state"] == "gone"


# Has the name of an id's socket but does not listen, as a runner for a moment: until the one who asks for its end has been seen to wait.
BINDER = """
import os, pathlib, socket, sys
def fnv1a(text, value):
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001b3 & (1 << 64) - 1
    return value
def waits(process):
    try:
        return b"(deepinfrad) S " in (process / "stat").read_bytes()
    except OSError:  # it has ended
        return False
words = [fnv1a(sys.argv[1], seed) for seed in (0xcbf29ce484222325, 0x9e3779b97f4a7c15)]
bound = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
bound.bind("\\0deepinfra-shim/1/%016x/%016x%016x" % (os.stat("/proc/self/ns/pid").st_ino, *words))
print("bound", flush=True)
while not any(waits(process) for process in pathlib.Path("/proc").glob("[0-9]*")):
    pass
if sys.argv[2] == "listens":  # and ends before it has claimed anything
    bound.listen()
    bound.accept()
"""


@pytest.mark.parametrize("then", ["lets go", "listens"])
def test_a_cancel_waits_for_a_runner_that_does_not_listen_yet(box: Box, then: str) -> None:
    stream = box.emulator.open_exec(box.id, "python3", "-c", BINDER, "x", then, timeout_seconds=60)
    assert read_text(stream, until="bound") == "bound\n"
    assert box.call("kill", "x").last.fields == {"confirmed": "yes", "was": "unclaimed", "left": "0", "errno": "-"}
    assert read_text(stream) == ""
    made = box.run("touch", "/workspace/ran", id="x")
    assert (made.last.name, made.last["started"]) == ("exit", "no") and box.plain("ls /workspace") == ""


def test_cancel_races_with_start(box: Box) -> None:
    """Whoever wins, both say the same."""
    for number in range(20):
        id, answers = f"race-{number}", {}
        threads = [threading.Thread(target=lambda: answers.update(run=box.run("sleep", "100", id=id))),
                   threading.Thread(target=lambda: answers.update(kill=box.call("kill", id)))]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        killed, ended = answers["kill"].last, answers["run"].exit
        assert killed["confirmed"] == "yes" and ended["reason"] == "cancelled"
        assert (killed["was"] == "unclaimed") == (ended["started"] == "no")
    assert box.processes() == []


def test_kill_of_an_ended_command(box: Box) -> None:
    box.run("true", id="x")
    killed = box.call("kill", "x").last
    assert (killed["confirmed"], killed["was"]) == ("yes", "ended")
    assert box.follow("x").exit["reason"] == "exited"


# -- a runner that is gone

def kill_runner(box: Box, id: str) -> None:
    main = box.ps()[id]["pid"]
    box.plain(f"kill -9 $(ps -o ppid= -p {main})")


def test_a_killed_runner_is_found_out(box: Box) -> None:
    with start(box, "echo x >>/workspace/n; echo begun; (setsid sleep 300 &); sleep 300", "x") as stream:
        wait_until(lambda: int(box.ps().get("x", {}).get("pos", 0)) > 0, "begun")
        kill_runner(box, "x")
        made = parse(read_text(stream))
    assert made.out == b"begun\n"
    assert (made.last.name, made.last["claim"], made.last["boot"]) == ("lost", "started", "same")
    assert box.run("true", id="x").last.name == "lost"
    killed = box.call("kill", "x").last
    assert (killed["was"], killed["confirmed"], killed["left"]) == ("lost", "no", "0")
    assert [line for line in box.processes()] == ["sleep 300"]  # what left the session cannot be found: hence "no"
    assert box.plain("cat /workspace/n") == "x\n"


def test_a_runner_killed_after_the_end_leaves_the_outcome(box: Box) -> None:
    box.sh("echo hello; exit 3", id="x")
    box.plain("pkill -9 -x deepinfrad")
    made = box.follow("x", 2)
    (gap,) = made.named("gap")
    assert (gap["pos"], gap["n"]) == ("2", "4")
    assert made.exit.number("code") == 3 and made.exit["output"] == "gone"
    assert box.follow("x", 6).exit["output"] == "kept"
    assert box.ps()["x"]["state"] == "finished"
    assert box.call("ack", "x", "6", "--done").last["state"] == "gone"


def test_a_claim_of_an_earlier_boot_is_lost(box: Box) -> None:
    with start(box, "echo begun; sleep 300", "x"):
        wait_until(lambda: int(box.ps().get("x", {}).get("pos", 0)) > 0, "begun")
        box.emulator.stop_sandbox(box.id)
    box.emulator.request("POST", box.emulator.path(box.id, "/start"))
    box.emulator.wait_state(box.id, "running")
    if box.emulator.exec(box.id, PATH, "ps").terminal != {"returncode": 0}:
        box.install()
    last = box.follow("x").last
    assert (last.name, last["claim"], last["boot"]) == ("lost", "started", "other")
    killed = box.call("kill", "x").last
    assert (killed["was"], killed["confirmed"]) == ("lost", "yes")


def test_a_claim_without_a_start_is_taken_over(box: Box) -> None:
    box.run("true", id="model")
    box.plain("sed 's/phase=finished/phase=claimed /' /workspace/.deepinfra-sandboxd/claims/model >/workspace/.deepinfra-sandboxd/claims/x; : >/workspace/.deepinfra-sandboxd/claims/y")
    for id in ("x", "y"):
        last = box.follow(id).last
        assert (last.name, last["claim"], last["started"]) == ("lost", "claimed", "no")
        assert box.run("echo", "now", id=id).out == b"now\n"


@pytest.mark.parametrize("make", ["mkdir {}", "ln -s /etc/passwd {}", "mkfifo {}", "echo nonsense >{}"])
def test_something_else_in_place_of_a_claim(box: Box, make: str) -> None:
    box.plain(make.format("/workspace/.deepinfra-sandboxd/claims/x"))
    last = box.run("touch", "/workspace/ran", id="x").last
    assert (last.name, last["name"]) == ("error", "claim_unreadable")
    assert box.plain("ls /workspace") == ""
