"""What was begun and that nobody waits for any more: an open create, a boot, a place in the queue. It ends, it holds up nobody,
and stopping or deleting it gets an answer."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import CREATE, DELETE, START, living

Make = Callable[..., Daemon]
OTHER = {"profile": "p", "task": "other"}


def ready(peer: Peer) -> None:
    wait_until(lambda: peer.status()["daemon"]["phase"] == "ready", "the daemon is ready")


def dies_in_a_create(daemon: Daemon, emulator: Emulator, made: bool, key: dict[str, str] = DEFAULT_KEY, **params: Any) -> None:
    """The daemon is gone before its create is answered; the platform has `made` the sandbox, or never got the request."""
    emulator.fault({"latency_after_ms": 600_000} if made else {"stall_before": True}, method="POST", route="/v1/sandboxes")
    with daemon.peer() as peer:
        peer.send("sandbox.ensure", {"key": key, **params})
        wait_until(lambda: emulator.faults()[-1]["used"] and len(living(emulator)) == made, "the create was sent")
    daemon.kill()
    emulator.clear_faults()


def records(daemon: Daemon) -> list[dict[str, Any]]:
    return json.loads((daemon.state_dir / "state.json").read_text())["sandboxes"]


ENDINGS = [("terminate", {}), ("stop", {}), ("release", {"mode": "terminate"}), ("release", {"mode": "stop"})]


@pytest.mark.parametrize("method, more, made", [(*one, True) for one in ENDINGS] + [(*one, False) for one in ENDINGS[::3]])
def test_an_open_create_can_be_ended(make_daemon: Make, emulator: Emulator, method: str, more: dict[str, Any], made: bool) -> None:
    daemon = make_daemon().start()
    dies_in_a_create(daemon, emulator, made)
    emulator.fault({"status": 503, "body": "{}"}, method="GET", route="/v1/sandboxes", times=1)  # so that the reconcile comes later
    with daemon.start().peer(limit_s=40) as peer:
        answer = peer.send(f"sandbox.{method}", {"key": DEFAULT_KEY, **more})
        with daemon.peer() as other:
            assert other.status()["daemon"]["pid"] == daemon.pid
        peer.result(answer)
        states = [each["state"] for each in emulator.sandboxes()]
        wanted = "stopped" if "stop" in (method, more.get("mode")) else "deleted"
        assert states == ([wanted] if made else [])
        peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
        assert [each["state"] for each in living(emulator)] == ["running"]


def test_a_create_that_never_took_effect_gives_its_place_back(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(max_active=1, queue_timeout=40).start()
    dies_in_a_create(daemon, emulator, made=False)
    with daemon.start().peer(limit_s=60) as peer:
        ready(peer)
        assert peer.call("sandbox.ensure", {"key": OTHER})["created"]
        assert emulator.count(CREATE) == 2
    daemon.kill()
    assert [each["create_pending"] for each in records(daemon)] == [False, False]


def test_a_session_whose_create_never_took_effect_is_forgotten(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(max_active=1, queue_timeout=40, orphan_grace=0.1).start()
    dies_in_a_create(daemon, emulator, made=False, persistent=False)
    with daemon.start().peer(limit_s=60) as peer:
        assert peer.call("sandbox.ensure", {"key": OTHER})["created"]


def test_what_such_a_create_made_after_all_is_deleted(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(max_active=2, queue_timeout=40).start()
    dies_in_a_create(daemon, emulator, made=True)
    late = living(emulator)[0]["sandbox_id"]
    emulator.fault({"status": 200, "body": "[]"}, method="GET", route="/v1/sandboxes", times=0)
    with daemon.start().peer(limit_s=60) as peer:
        peer.call("sandbox.terminate", {"key": DEFAULT_KEY})
        assert [each["sandbox_id"] for each in living(emulator)] == [late]
        emulator.clear_faults()
        with pytest.raises(RpcFailure) as nothing:
            peer.call("sandbox.get", {"key": DEFAULT_KEY})
        assert nothing.value.name == "sandbox_not_found"
    daemon.stop()
    daemon.start()
    wait_until(lambda: not living(emulator), "what turned up late is deleted")


def test_a_boot_that_nobody_waits_for_is_followed(make_daemon: Make, emulator: Emulator) -> None:
    emulator.config(boot_ms=3_000)
    daemon = make_daemon(idle_stop=0.2).start()
    with daemon.peer() as peer:
        peer.send("sandbox.ensure", {"key": DEFAULT_KEY})
        wait_until(lambda: living(emulator), "the sandbox is made")
    daemon.kill()
    daemon.start()
    wait_until(lambda: emulator.sandboxes()[0]["state"] == "stopped", "it has booted, was idle, and was stopped", limit_s=40)


def test_terminating_a_queued_key_is_done_when_its_command_is_cancelled(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(max_active=1, queue_timeout=600).start()
    with daemon.peer() as peer:
        running = peer.start("/bin/sh", "-c", "echo up; sleep 600")
        peer.notification("exec.output", exec_id=running)
        queued = peer.start("true", key=OTHER)
        peer.notification("sandbox.progress", key=OTHER)
        ended = peer.send("sandbox.terminate", {"key": OTHER})
        peer.call("exec.cancel", {"exec_id": queued})
        assert peer.finish(queued).reason == "cancelled"
        assert peer.result(ended) == {"sandbox_id": None}
        assert emulator.count(CREATE) == 1


def test_terminating_tells_the_sandbox_that_was_being_made(make_daemon: Make, emulator: Emulator) -> None:
    emulator.config(boot_ms=600_000)
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        made = peer.start("true")
        wait_until(lambda: living(emulator), "the sandbox is made")
        ended = peer.send("sandbox.terminate", {"key": DEFAULT_KEY})
        peer.call("exec.cancel", {"exec_id": made})
        peer.finish(made)
        assert peer.result(ended) == {"sandbox_id": emulator.sandboxes()[0]["sandbox_id"]}
        assert not living(emulator)


def test_a_start_that_nobody_waits_for_is_not_sent_when_the_patience_is_over(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})
        patient = {"status": 503, "headers": {"Retry-After": "60"}, "body": "{}"}
        emulator.fault(patient, method="POST", route="/v1/sandboxes/{id}/start")
        wanted = peer.start("true")
        wait_until(lambda: emulator.count(START) == 1, "the start was refused")
        peer.call("exec.cancel", {"exec_id": wanted})
        assert peer.finish(wanted).reason == "cancelled"
        peer.call("sandbox.terminate", {"key": DEFAULT_KEY})
        assert (emulator.count(START), emulator.count(DELETE)) == (1, 1)


def test_a_budget_that_was_spent_in_the_queue_refuses(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(max_active=1, budget_per_day="0.00003").start()  # some three seconds of one sandbox
    with daemon.peer() as peer:
        running = peer.start("/bin/sh", "-c", "echo up; sleep 600")
        peer.notification("exec.output", exec_id=running)
        queued = peer.send("sandbox.ensure", {"key": OTHER})
        peer.notification("sandbox.progress", key=OTHER)
        wait_until(lambda: peer.status()["money"]["today_usd"] >= 0.00003, "the budget is spent")
        peer.call("sandbox.stop", {"key": DEFAULT_KEY, "force": True})
        with pytest.raises(RpcFailure) as spent:
            peer.result(queued)
        assert spent.value.name == "budget_reached"
        assert emulator.count(CREATE) == 1


def test_patience_that_the_platform_asks_for_is_not_called_a_full_account(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(queue_timeout=0.5).start()
    patient = {"status": 429, "headers": {"Retry-After": "600"}, "body": json.dumps({"detail": "too many requests"})}
    emulator.fault(patient, method="POST", route="/v1/sandboxes")
    with daemon.peer() as peer:
        for task in ("first", "second"):
            with pytest.raises(RpcFailure) as refused:
                peer.call("sandbox.ensure", {"key": {"profile": "p", "task": task}})
            assert refused.value.name == "rate_limited" and "too many requests" in str(refused.value)
