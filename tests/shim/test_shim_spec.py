"""Sentences of daemon/shim/frames.h that no other test is about."""

from __future__ import annotations

import time

import pytest
from shim_box import HOME, PATH, Box, b64, read_text, shim_binary, wait_until
from shim_frames import parse

CLAIMS = HOME + "/claims"


def test_exit_status_0_1_and_2(box: Box) -> None:
    script = f"{PATH} run a -- true >/dev/null; echo $?; {PATH} run a --wrong >/dev/null; echo $?; {PATH} run b -- yes | head -c 5 >/dev/null; echo ${{PIPESTATUS[0]}}"
    assert box.plain(script) == "0\n2\n1\n"
    assert box.ps()["b"]["state"] == "running"  # only its follower has gone
    box.call("kill", "b")


def test_an_end_waits_for_its_acknowledgement_but_not_for_ever(box: Box) -> None:
    """--linger-s: the output goes, the claim with the outcome stays."""
    box.sh("echo hello; exit 3", id="x", options=("--linger-s", "1"))
    assert box.follow("x").out == b"hello\n"
    wait_until(lambda: box.ps()["x"]["state"] == "finished", "the runner has left")
    assert box.plain("pgrep -c deepinfrad").strip() == "0"
    made = box.follow("x")
    assert made.out == b"" and made.exit.number("code") == 3 and made.exit["output"] == "gone"
    assert box.sh("echo again", id="x").exit.number("code") == 3


def test_an_acknowledgement_in_the_middle_forgets_nothing(box: Box) -> None:
    with box.open("run", "x", "--", "sh", "-c", "echo begun; until [ -e /workspace/go ]; do sleep 0.01; done; exit 4") as stream:
        text = read_text(stream, until="begun")
        assert box.call("ack", "x", "0", "--done").last["state"] == "running"
        made = box.run("true", id="y", options=("--ack", "x"))
        assert [(one["id"], one["state"]) for one in made.named("acked")] == [("x", "running")]
        box.plain("touch /workspace/go")
        assert parse(text + read_text(stream)).exit.number("code") == 4
    assert box.follow("x").exit.number("code") == 4
    assert box.call("ack", "nobody", "0", "--done").last["state"] == "gone"


def test_a_thousand_acknowledgements_at_once(box: Box) -> None:
    words = [word for n in range(1024) for word in ("--ack", f"old-{n}")]
    assert len(box.run("true", id="x", options=tuple(words)).named("acked")) == 1024
    last = box.run("true", id="y", options=(*words, "--ack", "one-more")).last
    assert (last["name"], last["at"]) == ("usage", "--ack")


@pytest.mark.parametrize("option, times", [("--mark", 4), ("--cleanup", 4)])
def test_how_often_an_option_may_be_given(box: Box, option: str, times: int) -> None:
    assert box.run("true", options=(option, "/workspace/none") * times).exit.number("code") == 0
    last = box.run("touch", "/workspace/ran", options=(option, "/workspace/none") * (times + 1)).last
    assert (last["name"], last["at"]) == ("usage", option) and box.plain("ls /workspace") == ""


def test_keepalives_can_be_had_never(box: Box) -> None:
    assert box.run("sleep", "0.3", options=("--keepalive-ms", "0")).named("alive") == []
    assert len(box.run("sleep", "0.3", options=("--keepalive-ms", "50")).named("alive")) >= 2


def test_a_cap_below_one_block_is_one_block(box: Box) -> None:
    with box.open("run", "x", "--spool-cap", "1", "--", "yes") as stream:
        text = read_text(stream, until="full")
        assert box.ps()["x"]["pos"] == "65536"
        box.call("kill", "x")
        assert parse(text + read_text(stream)).exit["reason"] == "cancelled"


def test_the_claims_directory_does_not_depend_on_a_umask(box: Box) -> None:
    box.plain(f"rm -rf {CLAIMS}; umask 077; {PATH} run x -- true >/dev/null")
    assert box.plain(f"stat -c %a {CLAIMS}") == "1777\n"


# -- kill


@pytest.mark.parametrize("signal, number", [("INT", 2), ("TERM", 15), ("HUP", 1), ("QUIT", 3), ("KILL", 9), ("10", 10)])
def test_signals_by_name_and_number(box: Box, signal: str, number: int) -> None:
    with box.open("run", "x", "--", "sleep", "100") as stream:
        box.until_started("x")
        assert box.call("kill", "x", "--signal", signal).last["confirmed"] == "yes"
        assert parse(read_text(stream)).exit.number("signal") == number


@pytest.mark.parametrize("signal", ["0", "65", "SIGINT", ""])
def test_other_signals_are_misuse(box: Box, signal: str) -> None:
    assert box.call("kill", "x", "--signal", signal).last["name"] == "usage"
    assert box.ps() == {}


def test_a_kill_of_another_request_is_refused(box: Box) -> None:
    with box.open("run", "x", "--digest", "aa", "--", "sleep", "100") as stream:
        box.until_started("x")
        last = box.call("kill", "x", "--digest", "bb").last
        assert (last.name, last["name"]) == ("error", "id_in_use")
        assert box.ps()["x"]["state"] == "running"
        assert box.call("kill", "x", "--digest", "aa").last["confirmed"] == "yes"
        read_text(stream)


def test_the_grace_is_as_long_as_it_was_said(box: Box) -> None:
    with box.open("run", "x", "--", "sh", "-c", "trap '' INT; echo begun; while :; do sleep 1; done") as stream:
        text = read_text(stream, until="begun")
        begin = time.monotonic()
        assert box.call("kill", "x", "--signal", "INT", "--grace-ms", "400").last["confirmed"] == "yes"
        assert 0.4 <= time.monotonic() - begin < 2.4
        assert parse(text + read_text(stream)).exit.number("signal") == 9


# -- stdin


def test_stdin_that_is_only_asked_about(box: Box) -> None:
    with box.open("run", "x", "--stdin", "open", "--", "cat") as stream:
        box.until_started("x")
        assert box.call("stdin", "x", "0").last.fields == {"state": "open", "accepted": "0", "written": "0"}
        box.call("stdin", "x", "0", "--data", b64(b"abc"))
        assert box.call("stdin", "x", "0").last.fields == {"state": "open", "accepted": "3", "written": "3"}
        assert box.call("stdin", "x", "3", "--data", b64(b"d"), "--eof").last["accepted"] == "4"
        assert parse(read_text(stream)).out == b"abcd"


def test_stdin_of_a_command_that_has_none(box: Box) -> None:
    with box.open("run", "x", "--", "sleep", "100") as stream:
        box.until_started("x")
        assert box.call("stdin", "x", "0", "--data", b64(b"abc")).last.fields == {"state": "none", "accepted": "0", "written": "0"}
        box.call("kill", "x")
        read_text(stream)


def test_a_chunk_that_overlaps_what_was_accepted_is_fed_from_there(box: Box) -> None:
    """A daemon that was killed in between may cut its chunks elsewhere."""
    with box.open("run", "x", "--stdin", "open", "--", "cat") as stream:
        box.until_started("x")
        box.call("stdin", "x", "0", "--data", b64(b"abcdef"))
        assert box.call("stdin", "x", "3", "--data", b64(b"defghi")).last["accepted"] == "9"
        assert box.call("stdin", "x", "1", "--data", b64(b"bc")).last["accepted"] == "9"
        assert box.call("stdin", "x", "9", "--eof").last["accepted"] == "9"
        assert parse(read_text(stream)).out == b"abcdefghi"


# -- what is left of a command without its runner


def test_a_runner_that_dies_while_the_last_output_is_taken(box: Box) -> None:
    """The code is kept the moment the command ends: `lost`, but with it."""
    watch = f"until grep -q phase=exited {CLAIMS}/x 2>/dev/null; do :; done; pkill -9 -x deepinfrad"
    for attempt in range(10):
        with box.emulator.open_exec(box.id, "bash", "-c", watch, timeout_seconds=30) as watcher:
            box.emulator.exec(box.id, PATH, "run", "x", "--", "bash", "-c", "(while :; do :; done) & exit 3", timeout_seconds=30)
            for _ in watcher:
                pass
        last = box.follow("x").last
        box.plain("pkill -9 bash")
        if last.name == "lost":
            break
        box.call("ack", "x", "0", "--done")  # the runner was faster
    assert (last.name, last["claim"], last["started"], last["code"]) == ("lost", "exited", "yes", "3")
    assert box.ps()["x"]["state"] == "exited" and box.ps()["x"]["code"] == "3"


def test_runners_of_another_binary_are_followed_and_killed(box: Box) -> None:
    """As after an upgrade of the daemon: another name, another file."""
    other = HOME + "/shim-other"
    box.emulator.put(box.id, other + ".new", shim_binary())
    box.plain(f"chmod 755 {other}.new && mv {other}.new {other}")
    with box.open("run", "x", "--", "sh", "-c", "echo begun; sleep 100") as stream:
        assert "begun" in read_text(stream, until="begun")
        box.plain(f"rm {PATH}")
        answer = box.emulator.exec(box.id, other, "follow", "x", "2", "--max-seconds", "1")
        made = parse(answer.text())
        assert made.hello["state"] == "attached" and made.out == b"gun\n" and made.last["why"] == "seconds"
        assert parse(box.emulator.exec(box.id, other, "kill", "x").text()).last["confirmed"] == "yes"
