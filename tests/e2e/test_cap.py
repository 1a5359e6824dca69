"""The account's cap of active sandboxes: who makes room, who waits, what they are told; and patience with a platform that asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import Peer, RpcFailure
from support.scenes import CREATE, EXEC, START, STOP, living, without_shim

Make = Callable[..., Daemon]


def key(task: str) -> dict[str, str]:
    return {"profile": "p", "task": task}


def ensure(peer: Peer, task: str, **params: Any) -> dict[str, Any]:
    return peer.call("sandbox.ensure", {"key": key(task), **params})


def ask(peer: Peer, task: str) -> int | None:
    return peer.send("sandbox.ensure", {"key": key(task)})


def state(peer: Peer, task: str) -> str:
    found: str = peer.call("sandbox.get", {"key": key(task)})["sandbox"]["state"]
    return found


def told(peer: Peer, task: str, *words: str) -> str:
    """The first progress about `task` that holds all words."""
    while True:
        news = peer.notification("sandbox.progress")
        if news["key"] == key(task) and all(word in news["text"] for word in words):
            text: str = news["text"]
            return text


def busy(peer: Peer, task: str) -> str:
    exec_id = peer.start("/bin/sh", "-c", "echo up; until [ -e /workspace/go ]; do sleep 0.02; done", key=key(task))
    peer.notification("exec.output", exec_id=exec_id)
    return exec_id


# -- making room


def test_creations_in_doubt_do_not_wait_for_each_other(make_daemon: Make, emulator: Emulator) -> None:
    """Each takes a place, as far as is known, and wants one."""
    daemon = make_daemon(max_active=2).start()
    emulator.fault({"stall_before": True}, method="POST", route="/v1/sandboxes", times=0)
    with daemon.peer() as peer:
        ask(peer, "a")
        ask(peer, "b")
        wait_until(lambda: emulator.faults()[-1]["used"] == 2, "both creates were sent")
    daemon.kill()
    emulator.clear_faults()
    with daemon.start().peer() as peer:
        assert all(peer.result(asked)["created"] for asked in [ask(peer, "a"), ask(peer, "b")])
    assert len(living(emulator)) == 2


def test_nor_does_one_stop_anothers_sandbox(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(max_active=2, evict_min_idle=0.1).start()
    with daemon.peer() as peer:
        ensure(peer, "a")
        emulator.fault({"stall_before": True}, method="POST", route="/v1/sandboxes")
        ask(peer, "b")
        wait_until(lambda: emulator.faults()[-1]["used"] == 1, "the create was sent")
    daemon.kill()
    emulator.clear_faults()
    with daemon.start().peer() as peer:
        assert ensure(peer, "b")["created"]
    assert emulator.count(STOP) == 0 and len(living(emulator)) == 2


def test_the_one_used_longest_ago_makes_room(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(max_active=3, evict_min_idle=0.1).start()
    with daemon.peer() as peer:
        for task in ("a", "b", "c", "a"):  # so b is the one
            assert peer.sh(f"echo {task} >>/workspace/file", key=key(task)).returncode == 0
        assert ensure(peer, "d")["created"]
        assert [state(peer, task) for task in "abcd"] == ["running", "stopped", "running", "running"]
        assert emulator.count(STOP) == 1
        assert peer.sh("cat file", key=key("b")).stdout == b"b\n"  # and makes room for it in turn
        assert sum(one["state"] == "running" for one in living(emulator)) == 3


def test_a_refusal_of_the_platform_makes_room_too(make_daemon: Make, emulator: Emulator) -> None:
    """Others on the account take places that nobody tells us about."""
    emulator.config(max_active=2)
    stranger = emulator.create_running()
    daemon = make_daemon(max_active=5, evict_min_idle=0.1).start()
    with daemon.peer() as peer:
        ensure(peer, "a")
        assert ensure(peer, "b")["created"]
        assert state(peer, "a") == "stopped"
        assert ensure(peer, "a")["resumed"]
    assert emulator.sandbox(stranger)["state"] == "running"


def test_what_is_used_or_at_work_makes_no_room(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(max_active=2, evict_min_idle=0.1, queue_timeout=1).start()
    with daemon.peer() as peer:
        running = busy(peer, "a")
        peer.sh("sleep 600 >/dev/null 2>&1 </dev/null & echo $! >/workspace/pid", key=key("b"))
        with pytest.raises(RpcFailure, match="cap_reached") as full:
            ensure(peer, "c")
        assert "p/a" in full.value.message and "command is running" in full.value.message
        assert "p/b" in full.value.message and "background" in full.value.message
        assert emulator.count(STOP) == 0
        # Once its job has ended, the second one makes room.
        peer.sh("kill $(cat /workspace/pid)", key=key("b"))
        assert ensure(peer, "c")["created"]
        assert state(peer, "b") == "stopped" and state(peer, "a") == "running"
        peer.sh("touch /workspace/go", key=key("a"))
        assert peer.finish(running).returncode == 0


def test_where_background_work_cannot_be_known_it_goes_last(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(max_active=2, evict_min_idle=0.1).start()
    with daemon.peer() as peer:
        without_shim(emulator)
        peer.sh("true", key=key("bare"))
        peer.sh("true", key=key("known"))
        wait_until(lambda: peer.call("sandbox.get", {"key": key("known")})["sandbox"]["idle_s"] > 0.15, "both are idle for long enough")
        ensure(peer, "c")
        assert (state(peer, "bare"), state(peer, "known")) == ("running", "stopped")
        assert "not known" in peer.call("sandbox.get", {"key": key("bare")})["sandbox"]["awake_because"]


# -- the queue


def test_who_waits_is_told_its_place_and_who_holds_the_slots(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(max_active=1).start()
    with daemon.peer() as peer:
        running = busy(peer, "a")
        first, second = ask(peer, "b"), ask(peer, "c")
        assert "p/a" in told(peer, "b", "place 1 of 2", "1 command is running")
        told(peer, "c", "place 2 of 2")
        shown = peer.call("sandbox.get", {"key": key("c")})["sandbox"]
        assert shown["state"] == "absent" and shown["id"] is None and "queue" in shown["awake_because"]
        waiting = [item for item in peer.call("daemon.health")["health"] if item["code"] == "cap_reached"]
        assert len(waiting) == 1 and "2" in waiting[0]["text"] and waiting[0]["hint"]
        peer.sh("touch /workspace/go", key=key("a"))
        peer.finish(running)
        peer.call("sandbox.stop", {"key": key("a")})
        assert peer.result(first)["created"]
        told(peer, "c", "place 1 of 1", "p/b")
        peer.call("sandbox.terminate", {"key": key("b")})
        assert peer.result(second)["created"]
        assert peer.call("daemon.health")["health"] == []
    assert emulator.count(CREATE) == 3  # nobody tried what could not work


def test_a_cancelled_command_leaves_the_queue(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(max_active=1).start()
    with daemon.peer() as peer:
        busy(peer, "a")
        waiting = peer.start("true", key=key("b"))
        told(peer, "b", "place 1")
        assert peer.call("exec.cancel", {"exec_id": waiting})["confirmed"]
        ended = peer.finish(waiting)
        assert (ended.reason, ended.started) == ("cancelled", "no")
        wait_until(lambda: all(one["key"] != key("b") for one in peer.call("sandbox.list")["sandboxes"]), "it has left the queue")
    assert emulator.count(CREATE) == 1


def test_a_client_that_goes_leaves_the_queue(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(max_active=1).start()
    with daemon.peer() as peer:
        busy(peer, "a")
        with daemon.peer() as leaving:
            ask(leaving, "b")
            told(leaving, "b", "place 1")
            with daemon.peer() as staying:
                kept = ask(staying, "c")
                told(staying, "c", "place 2")
                leaving.close()
                told(staying, "c", "place 1 of 1")
                peer.call("sandbox.terminate", {"key": key("a"), "force": True})
                assert staying.result(kept)["created"]
    assert emulator.count(CREATE) == 2


def test_waiting_comes_to_an_end(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(max_active=1, queue_timeout=0.5).start()
    with daemon.peer() as peer:
        busy(peer, "a")
        ended = peer.run("true", key=key("b"))
        assert (ended.reason, ended.started, ended.error["name"]) == ("failed", "no", "cap_reached")
        assert "p/a" in ended.message and "not run" in ended.message
        assert len(living(emulator)) == 1


def test_places_of_others_free_up_unseen(make_daemon: Make, emulator: Emulator) -> None:
    emulator.config(max_active=1)
    stranger = emulator.create_running()
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        first, second = ask(peer, "a"), ask(peer, "b")
        told(peer, "a", "place 1 of 2", "other programs")
        emulator.delete_sandbox(stranger)
        assert peer.result(first)["created"]
        emulator.delete_sandbox(peer.call("sandbox.get", {"key": key("a")})["sandbox"]["id"])
        assert peer.result(second)["created"]


def test_fifty_keys_on_a_cap_of_three(make_daemon: Make, emulator: Emulator) -> None:
    """cases.md 18. The platform's cap is the same: it is never even asked for a fourth."""
    emulator.config(max_active=3)
    daemon = make_daemon(max_active=3, evict_min_idle=0.02).start()
    with daemon.peer(limit_s=120) as peer:
        names = [peer.start("/bin/sh", "-c", f"echo {n} >>/workspace/n; cat /workspace/n", key=key(str(n))) for n in range(50)]
        for n, name in enumerate(names):
            ended = peer.finish(name)
            assert (ended.reason, ended.stdout) == ("exited", f"{n}\n".encode()), ended.message
        assert len(peer.call("sandbox.list")["sandboxes"]) == 50
    assert emulator.count(CREATE) == len(living(emulator)) == 50
    assert "429" not in emulator.stats()["statuses"]


# -- patience


@pytest.mark.parametrize("answer", [{"status": 429, "headers": {"Retry-After": "2"}, "body": ""}, {"status": 429, "body": ""},
                                    {"status": 429, "body": "<html>slow down</html>"}], ids=["Retry-After", "bare", "a page"])
def test_a_platform_that_asks_for_patience(make_daemon: Make, emulator: Emulator, answer: dict[str, Any]) -> None:
    """cases.md 16."""
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        emulator.fault(answer, method="POST", route="/v1/sandboxes")
        begun = time.monotonic()
        asked = ask(peer, "a")
        told(peer, "a", "patience")
        assert peer.result(asked)["created"]
        took = time.monotonic() - begun
        assert took >= (2 if "headers" in answer else 0.3)
        assert emulator.count(CREATE) == 2


def test_patience_is_shared_by_the_account(make_daemon: Make, emulator: Emulator) -> None:
    """One request is told to wait; so do all the others, of whatever kind."""
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        peer.sh("true", key=key("running"))
        ensure(peer, "stopped")
        peer.call("sandbox.stop", {"key": key("stopped")})
        emulator.reset_stats()
        emulator.fault({"status": 429, "headers": {"Retry-After": "2"}, "body": ""})
        with pytest.raises(RpcFailure, match="rate_limited"):
            peer.call("plan.list")
        asked = [ask(peer, "stopped"), ask(peer, "new")]
        assert peer.sh("echo run", key=key("running")).stdout == b"run\n"
        assert peer.result(asked[0])["resumed"] and peer.result(asked[1])["created"]
        first, *rest = emulator.requests()
        assert len(rest) >= 5 and all(one["at"] - first["at"] >= 1.9 for one in rest)


def test_a_platform_without_machines_is_not_pressed(make_daemon: Make, emulator: Emulator) -> None:
    """After a 503 whatever needs a machine waits as long as it asks for; what runs goes on."""
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        peer.sh("true", key=key("running"))
        for task in ("a", "b"):
            ensure(peer, task)
            peer.call("sandbox.stop", {"key": key(task)})
        emulator.reset_stats()
        emulator.fault({"status": 503, "headers": {"Retry-After": "2"}, "body": '{"detail": "no capacity"}'}, method="POST",
                       route="/v1/sandboxes/{id}/start")
        asked = [ask(peer, "a")]
        wait_until(lambda: emulator.faults()[0]["used"], "it has been told so")
        asked += [ask(peer, "b"), ask(peer, "new")]
        assert peer.sh("echo run", key=key("running")).stdout == b"run\n"
        first = next(one["at"] for one in emulator.requests() if one["route"].endswith("/start"))
        assert [one["route"] for one in emulator.requests()].count("/v1/sandboxes/{id}/exec") == 1
        assert peer.result(asked[0])["resumed"] and peer.result(asked[1])["resumed"] and peer.result(asked[2])["created"]
        for_machines = [one["at"] - first for one in emulator.requests() if f"{one['method']} {one['route']}" in (START, CREATE)]
        assert len(for_machines) == 4 and all(later >= 1.9 for later in for_machines[1:]), for_machines


def test_a_refused_key_is_said_at_once_and_not_hammered(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        peer.sh("true", key=key("a"))
        emulator.reset_stats()
        emulator.fault({"status": 401, "body": '{"detail": "bad key"}'}, times=0)
        begun = time.monotonic()
        for n in range(20):
            ended = peer.run("true", key=key("a"))
            assert (ended.reason, ended.started, ended.error["name"]) == ("failed", "no", "unauthorized")
            with pytest.raises(RpcFailure, match="unauthorized"):
                ensure(peer, str(n))
        took = time.monotonic() - begun
        assert took < 20
        assert emulator.count() <= 2 + took / 1.5  # of forty: two, and then ever more rarely
        assert [item["code"] for item in peer.call("daemon.health")["health"]] == ["unauthorized"]
        emulator.clear_faults()
        peer.call("account.set", {"api_key": "test-key"})  # it is good again
        assert peer.sh("true", key=key("a")).returncode == 0


def test_a_start_waits_for_its_place_too(make_daemon: Make, emulator: Emulator) -> None:
    emulator.config(max_active=1)
    daemon = make_daemon(queue_timeout=20).start()
    with daemon.peer() as peer:
        ensure(peer, "a")
        peer.call("sandbox.stop", {"key": key("a")})
        stranger = emulator.create_running()
        asked = ask(peer, "a")
        told(peer, "a", "place 1 of 1", "other programs")
        emulator.delete_sandbox(stranger)
        assert peer.result(asked)["resumed"]
        assert emulator.count(START) >= 2 and emulator.count(EXEC) == 0
