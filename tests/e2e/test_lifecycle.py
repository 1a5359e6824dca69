"""The life of sandboxes: made once, found again, started, stopped and ended on demand."""

from __future__ import annotations

import hashlib
import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import pytest

from support.clocks import Clocks
from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import CREATE, DELETE, EXEC, GET, START, STOP, holder, living, only_id, workspace

OTHER_KEY = {"profile": "default", "task": "other"}


def ensure(peer: Peer, key: dict[str, str] = DEFAULT_KEY, **params: Any) -> dict[str, Any]:
    return peer.call("sandbox.ensure", {"key": key, **params})


def sandbox(peer: Peer, key: dict[str, str] = DEFAULT_KEY) -> dict[str, Any]:
    found: dict[str, Any] = peer.call("sandbox.get", {"key": key})["sandbox"]
    return found


# -- making and finding


def test_fifty_at_once_make_one(daemon: Daemon, emulator: Emulator) -> None:
    """cases.md 18."""
    emulator.config(boot_ms=300)
    peers = [daemon.peer() for _ in range(5)]
    asked = [(peer, peer.send("sandbox.ensure", {"key": DEFAULT_KEY})) for peer in peers for _ in range(10)]
    results = [peer.result(number) for peer, number in asked]
    assert {json.dumps({**each, "sandbox": each["sandbox"]["id"]}) for each in results} == {
        json.dumps({"sandbox": only_id(emulator), "created": True, "resumed": False, "generation": 1})}
    assert emulator.count(CREATE) == 1
    for peer in peers:
        told = peer.notification("sandbox.progress")
        assert told["key"] == DEFAULT_KEY and told["text"] and told["waited_s"] >= 0
        peer.close()


def test_found_running_it_costs_nothing(peer: Peer, daemon: Daemon, emulator: Emulator) -> None:
    first = ensure(peer)
    emulator.reset_stats()
    with daemon.peer() as second:
        again = ensure(second)
    assert (again["created"], again["resumed"], again["generation"]) == (False, False, 1)
    assert again["sandbox"]["id"] == first["sandbox"]["id"]
    assert emulator.count() == 0


def test_one_sandbox_a_key(peer: Peer, emulator: Emulator) -> None:
    """cases.md 22: everything is named "default"."""
    keys = [{"profile": profile, "task": task} for profile, task in
            [("default", "default"), ("/srv/a", "default"), ("default", "other"), ("a", "bc"), ("ab", "c")]]
    ids = [ensure(peer, key)["sandbox"]["id"] for key in keys]
    assert len(set(ids)) == 5 == len(living(emulator))
    for number, key in enumerate(keys):
        assert peer.sh(f"echo {number} >>n; cat n", key=key).stdout == f"{number}\n".encode()
    tags = [one["tags"] for one in living(emulator)]
    assert len({each["sandboxd_key"] for each in tags}) == 5


def test_what_the_platform_is_told(make_daemon: Callable[..., Daemon], emulator: Emulator) -> None:
    daemon = make_daemon(server_timeout=7200, plan="large").start()
    with daemon.peer() as peer:
        instance = peer.status()["daemon"]["instance"]
        ensure(peer)
        ensure(peer, OTHER_KEY, plan="small")
        created = {one["tags"]["hermes_task_id"]: one for one in living(emulator)}
        assert (created["default"]["plan"], created["other"]["plan"]) == ("large", "small")
        assert {one["timeout_seconds"] for one in created.values()} == {7200}
        for one in created.values():
            tags = one["tags"]
            assert (tags["owner"], tags["sandboxd_instance"]) == ("deepinfra-sandboxd", instance)
            assert tags["sandboxd_creation"].endswith(".1")
            assert "test-key" not in json.dumps(tags)
        assert ensure(peer, OTHER_KEY, plan="large")["sandbox"]["plan"] == "small"  # an existing one keeps its own
        with pytest.raises(RpcFailure, match="unknown_plan"):
            ensure(peer, {"profile": "p", "task": "t"}, plan="gigantic")
        assert len(living(emulator)) == 2
        assert [one["key"]["task"] for one in peer.call("sandbox.list")["sandboxes"]] == ["default", "other"]


# -- trouble while making


@pytest.mark.parametrize("action", [{"act_then_status": 504}, {"act_then_drop": True}, {"act_then_status": {"status": 200, "body": "{}"}},
                                    {"act_then_status": 503}], ids=str)
def test_a_create_whose_answer_is_lost(peer: Peer, emulator: Emulator, action: dict[str, Any]) -> None:
    """cases.md 14: found by its tag; one sandbox lives, not two."""
    emulator.fault(action, method="POST", route="/v1/sandboxes")
    made = ensure(peer)
    assert (made["created"], made["generation"], made["sandbox"]["id"]) == (True, 1, only_id(emulator))
    assert emulator.count(CREATE) == 1
    assert peer.sh("echo fine").stdout == b"fine\n"


def test_a_create_that_was_lost_on_the_way(peer: Peer, emulator: Emulator) -> None:
    """Absent from two listings ten seconds apart, it is made in a second attempt. The wait is no option's."""
    emulator.fault({"drop_before": True}, method="POST", route="/v1/sandboxes")
    emulator.fault({"status": 504, "body": "<html>"}, method="POST", route="/v1/sandboxes")
    asked = [peer.send("sandbox.ensure", {"key": key}) for key in (DEFAULT_KEY, OTHER_KEY)]
    begun = time.monotonic()
    assert [peer.result(number)["created"] for number in asked] == [True, True]
    assert 9 < time.monotonic() - begun < 20
    assert len(living(emulator)) == 2 and emulator.count(CREATE) == 4
    assert {one["tags"]["sandboxd_creation"][-2:] for one in living(emulator)} == {".2"}


def test_one_that_does_not_boot_is_replaced_once(peer: Peer, emulator: Emulator) -> None:
    emulator.config(boot_ms=60000)
    asked = peer.send("sandbox.ensure", {"key": DEFAULT_KEY})
    wait_until(lambda: living(emulator), "it is created")
    bad = only_id(emulator)
    emulator.config(boot_ms=5)
    emulator.fail_sandbox(bad)
    made = peer.result(asked)
    assert made["created"] and made["sandbox"]["id"] == only_id(emulator) != bad


def test_boots_that_fail_again_and_again(peer: Peer, emulator: Emulator) -> None:
    emulator.config(boot_outcome="fail")
    for ask in (lambda: ensure(peer), lambda: peer.call("sandbox.start", {"key": DEFAULT_KEY})):
        with pytest.raises(RpcFailure, match="boot_failed"):
            ask()
        assert living(emulator) == []
    ended = peer.run("true")
    assert (ended.reason, ended.started, ended.error["name"]) == ("failed", "no", "boot_failed")
    assert emulator.count(CREATE) == 6 and emulator.count(EXEC) == 0
    emulator.config(boot_outcome="ok")
    assert ensure(peer)["created"]


@pytest.mark.parametrize("times", [1, 2])
def test_boots_that_hang(make_daemon: Callable[..., Daemon], emulator: Emulator, tmp_path: pathlib.Path, times: int) -> None:
    """Ended after two minutes, and tried once more. The daemon believes that they have passed."""
    emulator.config(boot_outcome="hang")
    daemon = make_daemon()
    clocks = Clocks(tmp_path, daemon)
    with daemon.start().peer() as peer:
        asked = peer.send("sandbox.ensure", {"key": DEFAULT_KEY})
        for time_ in range(1, times + 1):
            looks = wait_until(lambda: emulator.count(CREATE) == time_ and living(emulator) and emulator.count(GET), "it is made")  # noqa: B023
            wait_until(lambda: emulator.count(GET) > looks, "it is waited for")  # noqa: B023
            if time_ == times == 1:
                emulator.config(boot_outcome="ok")
            assert emulator.count(DELETE) == time_ - 1
            clocks.go_on(121 * time_)
            wait_until(lambda: emulator.count(DELETE) == time_, "it is deleted")  # noqa: B023
        answer = peer.answer(asked)
        if times == 1:
            assert answer["result"]["created"] and only_id(emulator) == answer["result"]["sandbox"]["id"]
        else:
            assert answer["error"]["data"]["name"] == "boot_failed" and not living(emulator)
        assert emulator.count(CREATE) == 2


def test_a_start_that_fails_keeps_the_files(peer: Peer, emulator: Emulator) -> None:
    peer.sh("echo precious >file")
    peer.call("sandbox.stop", {"key": DEFAULT_KEY})
    emulator.config(start_outcome="fail")
    with pytest.raises(RpcFailure, match="boot_failed") as failed:
        ensure(peer)
    assert "kept" in failed.value.hint
    assert emulator.count(DELETE) == 0 and emulator.count(START) == 2
    ended = peer.run("true")
    assert (ended.reason, ended.started, ended.error["name"]) == ("failed", "no", "boot_failed")
    assert (workspace(emulator) / "file").read_text() == "precious\n"  # only a person's word ends it
    peer.call("sandbox.terminate", {"key": DEFAULT_KEY})
    emulator.config(start_outcome="ok")
    ended = peer.sh("cat file")
    assert (ended.returncode, ended.recreated, ended.created, ended.generation, ended.message) == (1, True, True, 2, None)
    assert (again := peer.sh("true")).recreated is False and again.created is None


def test_a_slow_boot_is_waited_for_and_told(peer: Peer, emulator: Emulator) -> None:
    emulator.config(boot_ms=2000, start_ms=300, boot_via_starting=True)
    exec_id = peer.start("echo", "booted")
    told = peer.notification("sandbox.progress")
    assert told["key"] == DEFAULT_KEY and "sandbox" in told["text"]
    shown = sandbox(peer)
    assert shown["state"] in ("creating", "starting") and shown["awake_because"]
    while told["waited_s"] < 1:  # now and then, while nothing changes
        told = peer.notification("sandbox.progress")
    ended = peer.finish(exec_id)
    assert (ended.stdout, ended.generation, emulator.count(CREATE), emulator.count(START)) == (b"booted\n", 1, 1, 0)


def test_who_leaves_does_not_end_the_work(daemon: Daemon, emulator: Emulator) -> None:
    emulator.config(boot_ms=200)
    with daemon.peer() as leaving:
        leaving.send("sandbox.ensure", {"key": DEFAULT_KEY})
        leaving.notification("sandbox.progress")
    with daemon.peer() as peer:
        ensure(peer)
    assert emulator.count(CREATE) == 1


# -- stopping, starting, ending


def test_files_survive_three_stops_by_checksum(peer: Peer, emulator: Emulator) -> None:
    """cases.md 19."""
    digest = peer.sh("head -c 3000000 /dev/urandom >big; mkdir -p a/b; ln -s ../big a/link; chmod 750 a; sha256sum <big").stdout
    for generation in range(2, 5):
        stopped = peer.call("sandbox.stop", {"key": DEFAULT_KEY})["sandbox"]
        assert (stopped["state"], stopped["generation"], stopped["idle_s"]) == ("stopped", generation - 1, None)
        started = peer.call("sandbox.start", {"id": stopped["id"]})["sandbox"]
        assert (started["state"], started["generation"], started["id"]) == ("running", generation, stopped["id"])
        assert peer.sh("sha256sum <a/link").stdout == digest
        assert peer.sh("stat -c %a a").stdout == b"750\n"
    assert hashlib.sha256((workspace(emulator) / "big").read_bytes()).hexdigest() == digest.split()[0].decode()


def test_a_resumed_one_says_so(peer: Peer, emulator: Emulator) -> None:
    ensure(peer)
    peer.sh("sleep 600 >/dev/null 2>&1 </dev/null & echo x >/tmp/x")
    peer.call("sandbox.stop", {"key": DEFAULT_KEY})
    assert peer.call("sandbox.stop", {"key": DEFAULT_KEY})["sandbox"]["state"] == "stopped"  # nothing to do
    assert emulator.count(STOP) == 1
    again = ensure(peer)
    assert (again["created"], again["resumed"], again["generation"]) == (False, True, 2)
    ended = peer.sh("pgrep sleep; cat /tmp/x")  # neither the job nor /tmp is there
    assert (ended.stdout, ended.recreated, ended.generation) == (b"", False, 2)


def test_a_busy_one_is_stopped_only_by_force(peer: Peer, emulator: Emulator) -> None:
    for method in ("sandbox.stop", "sandbox.terminate"):
        exec_id = peer.start("/bin/sh", "-c", "echo up; sleep 600")
        peer.notification("exec.output", exec_id=exec_id)
        with pytest.raises(RpcFailure, match="sandbox_busy") as busy:
            peer.call(method, {"key": DEFAULT_KEY})
        assert exec_id in busy.value.message and busy.value.error["data"]["sandbox_id"] == only_id(emulator)
        assert peer.call("sandbox.release", {"key": DEFAULT_KEY, "mode": "stop"})["action"] == "kept"
        peer.call(method, {"id": only_id(emulator), "force": True})
        ended = peer.finish(exec_id)
        assert ended.reason in ("lost", "failed") and ended.started == "yes" and ended.returncode is None
    assert living(emulator) == []
    assert peer.call("sandbox.list")["sandboxes"] == []
    with pytest.raises(RpcFailure, match="sandbox_not_found"):
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})
    made = ensure(peer)
    assert made["created"] and made["generation"] == 3  # never a number twice


def test_letting_go_with_two_processes(peer: Peer, daemon: Daemon, emulator: Emulator) -> None:
    ensure(peer)
    with holder(daemon):
        assert sandbox(peer)["holders"] == 2
        for mode in ("stop", "terminate"):
            kept = peer.call("sandbox.release", {"key": DEFAULT_KEY, "mode": mode})
            assert (kept["action"], kept["holders"]) == ("kept", 1) and kept["message"]
        assert living(emulator)[0]["state"] == "running"
    # Its process is gone, without a word.
    assert peer.call("sandbox.release", {"key": DEFAULT_KEY, "mode": "keep"}) == {"action": "kept", "holders": 0}
    assert peer.call("sandbox.release", {"key": DEFAULT_KEY, "mode": "stop"}) == {"action": "stopped", "holders": 0}
    assert peer.call("sandbox.release", {"key": DEFAULT_KEY, "mode": "stop"}) == {"action": "none", "holders": 0}
    assert living(emulator)[0]["state"] == "stopped"
    assert peer.call("sandbox.release", {"key": DEFAULT_KEY, "mode": "terminate"})["action"] == "terminated"
    assert peer.call("sandbox.release", {"key": DEFAULT_KEY, "mode": "terminate"})["action"] == "none"
    assert living(emulator) == []


def test_a_connection_that_closes_lets_go_of_nothing(daemon: Daemon, peer: Peer) -> None:
    with daemon.peer() as other:
        ensure(other)
    assert sandbox(peer)["holders"] == 1  # the process lives


@pytest.mark.parametrize("action", [{"status": 409, "body": '{"detail": "wrong state"}'}, {"status": 404, "body": '{"detail": "not found"}'},
                                    {"status": 502, "body": "<html>"}, {"act_then_drop": True}, {"status": 429, "body": ""}], ids=str)
def test_a_stop_that_is_refused_is_seen_through(peer: Peer, emulator: Emulator, action: dict[str, Any]) -> None:
    """cases.md 15."""
    peer.sh("echo precious >file")
    emulator.fault(action, method="POST", route="/v1/sandboxes/{id}/stop")
    assert peer.call("sandbox.stop", {"key": DEFAULT_KEY})["sandbox"]["state"] == "stopped"
    assert living(emulator)[0]["state"] == "stopped"
    emulator.fault(action, method="POST", route="/v1/sandboxes/{id}/start")
    assert peer.sh("cat file").stdout == b"precious\n"
    assert emulator.count(CREATE) == 1


def test_a_stop_of_what_others_have_stopped_or_deleted(peer: Peer, emulator: Emulator) -> None:
    ensure(peer)
    emulator.stop_sandbox(only_id(emulator))
    assert peer.call("sandbox.stop", {"key": DEFAULT_KEY})["sandbox"]["state"] == "stopped"
    ensure(peer)
    gone = only_id(emulator)
    emulator.delete_sandbox(gone)
    with pytest.raises(RpcFailure) as refused:
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})
    assert refused.value.name in ("sandbox_gone", "sandbox_not_found")
    ended = peer.sh("true")
    assert ended.recreated and "gone" in ended.message  # told to the first who runs something
    peer.call("sandbox.terminate", {"key": DEFAULT_KEY})
    assert peer.sh("true").message is None  # that was our own doing


def test_a_start_while_it_is_stopping(peer: Peer, emulator: Emulator) -> None:
    emulator.config(stop_ms=300)
    peer.sh("echo kept >file")
    stop = peer.send("sandbox.stop", {"key": DEFAULT_KEY})
    start = peer.send("sandbox.ensure", {"key": DEFAULT_KEY})
    assert peer.result(stop)["sandbox"]["id"] == only_id(emulator)
    assert (peer.result(start)["resumed"], sandbox(peer)["state"]) == (True, "running")
    # The same where somebody else is stopping it.
    emulator.request("POST", emulator.path(only_id(emulator), "/stop"))
    ended = peer.sh("cat file")
    assert (ended.stdout, ended.recreated, ended.generation) == (b"kept\n", True, 3)


def test_ephemeral_ones_are_never_resumed(peer: Peer, emulator: Emulator) -> None:
    made = ensure(peer, persistent=False)
    assert not made["sandbox"]["persistent"]
    peer.sh("echo secret >file")
    first = only_id(emulator)
    peer.call("sandbox.stop", {"key": DEFAULT_KEY})
    again = ensure(peer, persistent=False)
    assert (again["created"], again["resumed"]) == (True, False)
    assert only_id(emulator) != first
    assert peer.sh("cat file").returncode == 1
    assert peer.call("sandbox.release", {"key": DEFAULT_KEY, "mode": "terminate"})["action"] == "terminated"
    assert living(emulator) == []
    ended = peer.run("echo", "once", persistent=False)
    assert (ended.stdout, sandbox(peer)["persistent"]) == (b"once\n", False)
