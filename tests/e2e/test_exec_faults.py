"""A command meets each fault of the platform: told as it is, never run twice, never a success by guess.

Every command leaves a line in /workspace/n when it runs. After each fault the lines are counted, and one more command shows
that the daemon has not been harmed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import Exit, Peer
from support.scenes import CREATE, EXEC, START, living, only_id, processes, workspace

LINE = "echo x >>/workspace/n; echo out; exit 3"
PAGE = "<html><body>Bad Gateway</body></html>"
GONE = json.dumps({"detail": "sandbox not found"})
CAP = json.dumps({"detail": {"error": "You have reached the maximum of 5 active sandboxes"}})


@pytest.fixture
def warm(peer: Peer, emulator: Emulator) -> Iterator[Peer]:
    """A daemon whose sandbox runs. Nothing is left half done at the end."""
    peer.sh("true")
    emulator.reset_stats()
    yield peer
    emulator.clear_faults()
    ended = peer.sh("echo sound")
    assert (ended.returncode, ended.stdout) == (0, b"sound\n")
    wait_until(lambda: all(one["outcome"] != "open" for one in emulator.requests()), "no stream is left open")


def lines(emulator: Emulator) -> int:
    path = workspace(emulator) / "n"
    return len(path.read_text().splitlines()) if path.exists() else 0


def assert_unknown(ended: Exit, started: str = "unknown") -> None:
    """Lost: whoever runs it again does so knowingly."""
    assert (ended.reason, ended.returncode, ended.started) == ("lost", None, started), ended
    assert (ended.error["name"], ended.error["retryable"]) == ("outcome_unknown", False)
    assert "not sent again" in ended.message or "not run again" in ended.message
    assert ended.error["hint"]


def assert_not_run(ended: Exit, name: str, retryable: bool) -> None:
    assert (ended.reason, ended.returncode, ended.started, ended.output_bytes) == ("failed", None, "no", 0), ended
    assert (ended.error["name"], ended.error["retryable"]) == (name, retryable)
    assert "has not run" in ended.message


def assert_ran(ended: Exit, *, recreated: bool = False) -> None:
    assert (ended.reason, ended.returncode, ended.started, ended.recreated) == ("exited", 3, "yes", recreated), ended
    assert ended.stdout == b"out\n"


# -- the sandbox is not what it was


def test_stopped_behind_our_back(warm: Peer, emulator: Emulator) -> None:
    warm.sh("echo kept >/workspace/file; echo lost >/tmp/file")
    emulator.stop_sandbox(only_id(emulator))
    ended = warm.sh(LINE)
    assert_ran(ended, recreated=True)
    assert (ended.generation, ended.message) == (2, None)
    assert lines(emulator) == 1
    assert (emulator.count(CREATE), emulator.count(START)) == (0, 1)
    after = warm.sh("cat /workspace/file /tmp/file")
    assert (after.stdout, after.recreated, after.generation) == (b"kept\n", False, 2)


def test_many_commands_meet_the_stopped_sandbox(warm: Peer, emulator: Emulator) -> None:
    emulator.stop_sandbox(only_id(emulator))
    for ended in [warm.finish(name) for name in [warm.start("/bin/sh", "-c", LINE) for _ in range(20)]]:
        assert_ran(ended, recreated=True)
        assert ended.generation == 2
    assert lines(emulator) == 20
    assert emulator.count(START) == 1


def test_three_conflicts_and_then_fine(warm: Peer, emulator: Emulator) -> None:
    """cases.md 15. The platform was wrong: the sandbox ran all the time."""
    emulator.fault_exec({"status": 409, "body": '{"detail": "not running"}'}, times=3)
    assert_ran(warm.sh(LINE))
    assert lines(emulator) == 1


@pytest.mark.parametrize(("status", "body"), [(409, '{"detail": "not running"}'), (404, GONE)])
def test_a_storm_of_contradictions_ends(warm: Peer, emulator: Emulator, status: int, body: str) -> None:
    """The sandbox runs, says everything else: so it is not called gone, nor replaced."""
    emulator.fault_exec({"status": status, "body": body}, times=0)
    begun = time.monotonic()
    assert_not_run(warm.sh(LINE), "cloud_error", True)
    assert time.monotonic() - begun < 10
    assert emulator.count(EXEC) <= 5
    assert (lines(emulator), emulator.count(CREATE)) == (0, 0)


@pytest.mark.parametrize("config", [{}, {"deleted_keep_s": 0}, {"deleted_call_status": "409"}, {"list_deleted": True},
                                    {"error_shape": "error_message"}], ids=str)
def test_deleted_elsewhere(warm: Peer, emulator: Emulator, config: dict[str, Any]) -> None:
    """cases.md 17: said once, then a fresh one."""
    emulator.config(**config)
    warm.sh("echo precious >file")
    old = only_id(emulator)
    emulator.delete_sandbox(old)
    ended = warm.sh(LINE)
    assert_ran(ended, recreated=True)
    assert "gone" in ended.message and ended.generation == 2
    assert only_id(emulator) != old
    assert (lines(emulator), emulator.count(CREATE)) == (1, 1)
    after = warm.sh("cat file")
    assert (after.returncode, after.recreated, after.message) == (1, False, None)
    assert warm.status()["sandboxes"][0]["id"] == only_id(emulator)


def test_a_404_that_the_listing_contradicts(warm: Peer, emulator: Emulator) -> None:
    """Nothing is thrown away on one word: the sandbox and its files are still there."""
    warm.sh("echo precious >file")
    old = only_id(emulator)
    emulator.fault_exec({"status": 404, "body": GONE})
    assert_ran(warm.sh(LINE))
    assert (only_id(emulator), lines(emulator), emulator.count(CREATE)) == (old, 1, 0)
    assert warm.sh("cat file").stdout == b"precious\n"


def test_a_404_that_nobody_can_confirm(warm: Peer, emulator: Emulator) -> None:
    """The sandbox's own 404 and a listing that fails: nothing new is created, until a listing tells."""
    old = only_id(emulator)
    emulator.fault_exec({"status": 404, "body": GONE})
    emulator.fault({"status": 404, "body": GONE}, method="GET", route="/v1/sandboxes/{id}")
    emulator.fault({"status": 502, "body": PAGE}, method="GET", route="/v1/sandboxes")
    assert_ran(warm.sh(LINE))
    assert (only_id(emulator), lines(emulator), emulator.count(CREATE)) == (old, 1, 0)


# -- refused: it has certainly not run


@pytest.mark.parametrize(("status", "body", "name", "retryable"), [
    (401, '{"detail": "bad key"}', "unauthorized", False), (403, '{"error": "forbidden"}', "unauthorized", False),
    (413, '{"detail": "too large"}', "too_large", False), (413, PAGE, "too_large", False),
    (400, '{"error": {"message": "bad request"}}', "cloud_error", True), (422, '{"detail": []}', "cloud_error", True)])
def test_a_refusal(warm: Peer, emulator: Emulator, status: int, body: str, name: str, retryable: bool) -> None:
    emulator.fault_exec({"status": status, "body": body})
    ended = warm.sh(LINE)
    assert_not_run(ended, name, retryable)
    assert str(status) in ended.message
    assert "<html>" not in ended.message
    assert (emulator.count(EXEC), lines(emulator)) == (1, 0)


@pytest.mark.parametrize(("body", "headers", "least_s"), [
    ('{"detail": "slow down"}', {}, 0.1), ('{"detail": "slow down"}', {"Retry-After": "1"}, 1.0), (PAGE, {}, 0.1), ("", {}, 0.1),
    (PAGE, {"Retry-After": "soon"}, 0.1), (CAP, {}, 0.1)])
def test_too_many_requests_are_waited_out(warm: Peer, emulator: Emulator, body: str, headers: dict[str, str], least_s: float) -> None:
    """cases.md 16."""
    emulator.fault_exec({"status": 429, "body": body, "headers": headers}, times=2 if least_s < 1 else 1)
    begun = time.monotonic()
    exec_id = warm.start("/bin/sh", "-c", LINE)
    told = warm.notification("sandbox.progress", state="running")  # why nothing happens
    assert "429" in told["text"] and "<html>" not in told["text"]
    assert_ran(warm.finish(exec_id))
    assert least_s <= time.monotonic() - begun < least_s + 5
    assert lines(emulator) == 1


def test_waiting_counts_not_as_the_commands_time(warm: Peer, emulator: Emulator) -> None:
    emulator.fault_exec({"status": 429, "headers": {"Retry-After": "1"}})
    assert_ran(warm.sh(LINE, timeout_s=0.9))
    assert lines(emulator) == 1


def test_no_retry_after_outlasts_the_queue_timeout(make_daemon: Callable[..., Daemon], emulator: Emulator) -> None:
    with make_daemon(queue_timeout=1).start().peer() as peer:
        peer.sh("true")
        emulator.fault_exec({"status": 429, "body": "slow down", "headers": {"Retry-After": "12"}}, times=0)
        emulator.reset_stats()
        begun = time.monotonic()
        ended = peer.sh("echo x >>n")
        assert 0.9 < time.monotonic() - begun < 5
        assert (ended.reason, ended.started, ended.error["name"]) == ("failed", "no", "rate_limited")
        assert emulator.count(EXEC) == 1  # nor is the platform asked before its time


# -- whether it ran is not known to the daemon, but to the shim


@pytest.mark.parametrize("action", [
    {"status": 404, "body": PAGE}, {"status": 500, "body": '{"detail": "oops"}'}, {"status": 502, "body": PAGE}, {"status": 503, "body": ""},
    {"status": 503, "body": '{"error": "no capacity"}', "headers": {"Retry-After": "1"}}, {"status": 504, "body": PAGE},
    {"status": 599, "body": "?"}, {"status": 200, "body": PAGE}, {"status": 302, "body": ""}, {"drop_before": True, "how": "fin"},
    {"drop_before": True, "how": "rst"}], ids=str)
def test_an_answer_that_says_nothing(warm: Peer, emulator: Emulator, action: dict[str, Any]) -> None:
    """Sent again under the same id, which starts it once at the most."""
    emulator.fault_exec(action, times=2)
    assert_ran(warm.sh(LINE))
    assert (emulator.count(EXEC), lines(emulator)) == (3, 1)


@pytest.mark.parametrize("action", [{"act_then_drop": "started"}, {"act_then_drop": "done"}, {"act_then_status": 502},
                                    {"act_then_status": {"status": 503, "body": PAGE, "headers": {"Retry-After": "1"}}},
                                    {"act_then_status": 404, "body": PAGE}], ids=str)
def test_it_ran_and_the_answer_was_lost(warm: Peer, emulator: Emulator, action: dict[str, Any]) -> None:
    emulator.fault_exec(action)
    assert_ran(warm.sh(LINE))
    assert (emulator.count(EXEC), lines(emulator)) == (2, 1)


def test_an_id_is_not_forgotten_while_an_answer_is_out(warm: Peer, emulator: Emulator) -> None:
    """A `run` without an answer might still arrive: so the sandbox keeps the claim that stops it."""
    emulator.fault_exec({"status": 502, "body": PAGE})
    doubtful = warm.start("/bin/sh", "-c", LINE)
    assert_ran(warm.finish(doubtful))
    certain = warm.start("/bin/sh", "-c", LINE)
    assert_ran(warm.finish(certain))
    warm.sh("true")  # takes the word along
    claims = workspace(emulator) / ".deepinfra-sandboxd" / "claims"
    wait_until(lambda: not any(certain in each.name for each in claims.iterdir()), "the certain one is forgotten")
    assert any(doubtful in each.name for each in claims.iterdir())


PLACES = [{"cut_after_bytes": n} for n in (0, 9, 100, 200, 250, 300)] + [{"cut_after_lines": 1}, {"omit_terminal": True}]


@pytest.mark.parametrize("on_disconnect", ["keep", "kill_group"])
@pytest.mark.parametrize("how", ["fin", "rst"])
@pytest.mark.parametrize("place", PLACES, ids=str)
def test_the_stream_breaks_off(warm: Peer, emulator: Emulator, place: dict[str, Any], how: str, on_disconnect: str) -> None:
    """cases.md 2. All of the output arrives, once, with the right code."""
    emulator.config(on_disconnect=on_disconnect)
    emulator.fault_exec({**place, "how": how})
    assert_ran(warm.sh(LINE))
    assert lines(emulator) == 1


@pytest.mark.parametrize("on_disconnect", ["keep", "kill_group"])
def test_the_stream_breaks_off_again_and_again(warm: Peer, emulator: Emulator, on_disconnect: str) -> None:
    emulator.config(on_disconnect=on_disconnect)
    for size in (700, 5000, 20000, 70000, 300, 0):
        emulator.fault_exec({"cut_after_bytes": size, "how": "rst"})
    ended = warm.sh("echo x >>n; for i in $(seq 1 2000); do echo out $i; echo err $i >&2; done; printf '\\377'; exit 3")
    assert (ended.reason, ended.returncode) == ("exited", 3)
    assert ended.stdout == b"".join(b"out %d\n" % i for i in range(1, 2001)) + b"\xff"
    assert ended.stderr == b"".join(b"err %d\n" % i for i in range(1, 2001))
    assert (lines(emulator), ended.dropped_bytes) == (1, 0)


def test_a_platform_that_kills_all_when_a_stream_breaks(warm: Peer, emulator: Emulator) -> None:
    """Only what cannot be known is lost: what was received stands, and nothing runs again."""
    emulator.config(on_disconnect="kill_tree")
    exec_id = warm.start("/bin/sh", "-c", "echo x >>n; echo out; sleep 600")
    warm.notification("exec.output", exec_id=exec_id)
    emulator.drop_connections("rst")
    ended = warm.finish(exec_id)
    assert_unknown(ended, "yes")
    assert "runner" in ended.message
    assert lines(emulator) == 1
    assert_ran(warm.sh(LINE))


def test_a_command_that_removes_the_shim(warm: Peer, emulator: Emulator) -> None:
    """Put back when it is missed: by the next command, by a stream that broke off, by a cancel."""
    wipe = "rm -rf /workspace/* /workspace/.[!.]*"
    ended = warm.sh(f"{wipe}; {LINE}")
    assert_ran(ended)
    assert_ran(warm.sh(LINE))
    assert lines(emulator) == 2
    exec_id = warm.start("/bin/sh", "-c", f"{wipe}; echo x >>n; touch up; until [ -e go ]; do sleep 0.01; done; echo out; exit 3")
    wait_until(lambda: (workspace(emulator) / "up").exists(), "it runs")
    emulator.drop_connections("rst")
    wait_until(lambda: (workspace(emulator) / ".deepinfra-sandboxd").exists(), "the shim is put back")
    (workspace(emulator) / "go").touch()
    assert_ran(warm.finish(exec_id))
    assert lines(emulator) == 1
    exec_id = warm.start("/bin/sh", "-c", f"{wipe}; touch gone; sleep 600")
    wait_until(lambda: (workspace(emulator) / "gone").exists(), "it runs")
    assert warm.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    assert warm.finish(exec_id).reason == "cancelled"
    assert not any("sleep 600" in line for line in processes(emulator))


@pytest.mark.parametrize(("status", "body"), [(409, '{"detail": "not running"}'), (404, GONE), (429, "slow down"), (401, "{}"), (500, "")])
def test_a_refusal_while_the_command_is_found_again(warm: Peer, emulator: Emulator, status: int, body: str) -> None:
    """It runs all the time; one wrong word does not change that."""
    exec_id = warm.start("/bin/sh", "-c", "echo x >>n; touch up; until [ -e go ]; do sleep 0.01; done; echo out; exit 3")
    wait_until(lambda: (workspace(emulator) / "up").exists(), "it runs")
    emulator.fault_exec({"status": status, "body": body}, times=3)
    emulator.drop_connections("rst")
    wait_until(lambda: emulator.count(EXEC) >= 4, "it was refused")
    (workspace(emulator) / "go").touch()
    assert_ran(warm.finish(exec_id))
    assert lines(emulator) == 1


def test_a_stream_that_never_makes_sense_ends(warm: Peer, emulator: Emulator) -> None:
    """A platform, or a sandbox, whose every answer is nonsense is not asked for ever."""
    exec_id = warm.start("/bin/sh", "-c", "echo x >>n; touch up; sleep 600")
    wait_until(lambda: (workspace(emulator) / "up").exists(), "it runs")
    emulator.fault_exec({"status": 200, "body": '{"stdout": "no shim\\n"}\n{"returncode": 0}\n'}, times=0)
    emulator.drop_connections("rst")
    assert_unknown(warm.finish(exec_id))
    emulator.clear_faults()
    assert warm.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    assert (lines(emulator), processes(emulator)) == (1, [])


@pytest.mark.parametrize("action", [
    {"terminal": '{"returncode": "0"}'}, {"terminal": '{"returncode": null}'}, {"terminal": '{"returncode": 0'}, {"terminal": "0"},
    {"terminal": '{"returncode": 1.5}'}, {"terminal": '{"returncode": 99999999999999999999}'}, {"terminal": "[]"}, {"terminal": '{"error": null}'},
    {"terminal": '{"returncode": 0, "returncode": }'}, {"terminal": "\\xff\\xfe"}, {"terminal": '{"stdout": 5}'}, {"inject": "garbage\n"},
    {"inject": '{"stdout": "x"\n'}, {"inject": "[" * 10000 + "\n"}, {"inject": '{"stdout": "' + "x" * 5000000 + '"}\n'}],
    ids=lambda action: str(action)[:40])
def test_a_stream_that_makes_no_sense(warm: Peer, emulator: Emulator, action: dict[str, Any]) -> None:
    """The end that counts is the shim's; until it has come, the stream is asked for again."""
    emulator.fault_exec(action)
    assert_ran(warm.sh(LINE))
    assert lines(emulator) == 1


def test_the_platform_ends_it_with_an_error(warm: Peer, emulator: Emulator) -> None:
    """The attached call, not the command."""
    emulator.fault_exec({"terminal": '{"error": "output \\u001b[31mtoo large"}', "cut_after_lines": 1})
    assert_ran(warm.sh(LINE))
    assert lines(emulator) == 1


def test_the_sandbox_stops_in_the_middle(warm: Peer, emulator: Emulator) -> None:
    for outcome in ("error", "cut"):
        emulator.config(stop_outcome_of_streams=outcome)
        exec_id = warm.start("/bin/sh", "-c", "echo x >>n; echo out; sleep 600")
        warm.notification("exec.output", exec_id=exec_id)
        emulator.stop_sandbox(only_id(emulator))
        ended = warm.finish(exec_id)
        assert ended.reason in ("lost", "failed") and ended.returncode is None and ended.started == "yes", outcome
        assert ended.error["name"] == "outcome_unknown"
        assert warm.sh("cat n; echo >n").recreated  # and the next command finds out
        assert lines(emulator) == 1


# -- odd, but all right


@pytest.mark.parametrize("action", [{"omit_end": True}, {"piece_bytes": 1}, {"inject": "{}\n\n{}\n"}, {"inject": '{"unknown": 1}\n'},
                                    {"terminal": '{"returncode": 3, "duration": 1}\n{"returncode": 5}'}], ids=str)
def test_an_odd_stream_that_is_clear(warm: Peer, emulator: Emulator, action: dict[str, Any]) -> None:
    emulator.fault_exec(action)
    assert_ran(warm.sh(LINE))
    assert (emulator.count(EXEC), lines(emulator)) == (1, 1)


def test_idle_connections_that_the_platform_has_closed(warm: Peer, emulator: Emulator) -> None:
    """The common case of a quiet minute: noticed before a command is entrusted to one."""
    for how in ("fin", "rst"):
        for name in [warm.start("/bin/sh", "-c", LINE) for _ in range(4)]:  # several at rest
            warm.finish(name)
        wait_until(lambda: emulator.stats()["connections_open"], "connections at rest")
        emulator.drop_connections(how, idle_only=True)
        assert_ran(warm.sh(LINE))
    assert lines(emulator) == 10


# -- silence


def test_a_silent_stream_does_not_delay_the_time_out(warm: Peer, emulator: Emulator) -> None:
    """cases.md 9."""
    emulator.fault_exec({"stall_after_bytes": 0})
    begun = time.monotonic()
    ended = warm.sh("echo x >>n; echo out; sleep 600", timeout_s=1)
    assert (ended.reason, ended.returncode) == ("timed_out", 124)
    assert 0.9 < time.monotonic() - begun < 4
    assert not any("sleep 600" in line for line in processes(emulator))
    assert lines(emulator) == 1


def test_an_answer_that_never_comes_does_not_delay_the_time_out(warm: Peer, emulator: Emulator) -> None:
    emulator.fault_exec({"stall_before": True})
    begun = time.monotonic()
    ended = warm.sh(LINE, timeout_s=1)
    assert (ended.reason, ended.returncode, ended.started) == ("timed_out", 124, "no")
    assert 0.9 < time.monotonic() - begun < 4
    assert lines(emulator) == 0


def test_a_silent_stream_can_be_cancelled(warm: Peer, emulator: Emulator) -> None:
    emulator.fault_exec({"stall_after_bytes": 17})
    exec_id = warm.start("/bin/sh", "-c", "echo out; echo x >>n; sleep 600")
    wait_until(lambda: lines(emulator), "it runs")
    assert warm.call("exec.cancel", {"exec_id": exec_id}) == {"confirmed": True}
    assert warm.finish(exec_id).reason == "cancelled"
    assert not any("sleep 600" in line for line in processes(emulator))


# -- what goes ahead of the command


@pytest.mark.parametrize(("action", "name"), [
    ({"status": 413, "body": "{}"}, "too_large"), ({"status": 401, "body": "{}"}, "unauthorized")], ids=str)
def test_large_input_that_cannot_be_put_in_place(warm: Peer, emulator: Emulator, action: dict[str, Any], name: str) -> None:
    emulator.fault(action, method="PUT")
    ended = warm.sh(LINE, stdin="x" * 200000)
    assert (ended.reason, ended.started, ended.error["name"]) == ("failed", "no", name)
    assert (emulator.count(EXEC), lines(emulator)) == (0, 0)


@pytest.mark.parametrize("action", [{"status": 502, "body": PAGE}, {"drop_before": True}, {"act_then_drop": True}], ids=str)
def test_large_input_is_put_again(warm: Peer, emulator: Emulator, action: dict[str, Any]) -> None:
    """Until the command itself is sent, nothing can have run."""
    emulator.fault(action, method="PUT")
    ended = warm.sh("wc -c; echo x >>n", stdin="x" * 200000)
    assert (ended.returncode, ended.stdout.strip(), lines(emulator)) == (0, b"200000", 1)


def test_large_input_meets_a_stopped_sandbox(warm: Peer, emulator: Emulator) -> None:
    emulator.stop_sandbox(only_id(emulator))
    ended = warm.sh("cat | wc -c; echo x >>n", stdin="y" * 200000)
    assert (ended.returncode, ended.stdout.strip(), ended.recreated) == (0, b"200000", True)
    assert lines(emulator) == 1


# -- the sandbox cannot be had


@pytest.mark.parametrize(("action", "name"), [
    ({"status": 401, "body": "{}"}, "unauthorized"), ({"status": 403, "body": "{}"}, "unauthorized"),
    ({"status": 400, "body": '{"detail": "no"}'}, "cloud_error")])
def test_no_sandbox_no_command(peer: Peer, emulator: Emulator, action: dict[str, Any], name: str) -> None:
    emulator.fault(action, method="POST", route="/v1/sandboxes")
    ended = peer.sh(LINE)
    assert (ended.reason, ended.started, ended.error["name"], ended.generation) == ("failed", "no", name, 0)
    assert (emulator.count(EXEC), living(emulator)) == (0, [])
    assert peer.call("sandbox.list")["sandboxes"] == []
    assert peer.sh("echo sound").stdout == b"sound\n"
