"""Comparing what is known with what the platform says: long listings, slow answers, wrong ones, and names of states."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from support.clocks import Clocks
from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer
from support.scenes import CATALOG, CREATE, DELETE, LIST, STOP, living, only_id, without_shim

Make = Callable[..., Daemon]
OTHER = {"profile": "p", "task": "other"}


def ready(peer: Peer) -> None:
    wait_until(lambda: peer.status()["daemon"]["phase"] == "ready", "it has compared")


@pytest.mark.parametrize("pagination", ["link", "offset"])
def test_a_long_listing_is_read_to_its_end(make_daemon: Make, emulator: Emulator, pagination: str) -> None:
    """Also where nothing says that it goes on: the sandbox of a create whose answer was lost is on the second page."""
    emulator.config(max_active=20, pagination=pagination, page_size=10)
    foreign = [emulator.create_running() for _ in range(10)]
    emulator.fault({"act_then_drop": True}, method="POST", route="/v1/sandboxes")
    with make_daemon(max_active=20).start().peer(limit_s=60) as peer:
        made = peer.call("sandbox.ensure", {"key": DEFAULT_KEY})["sandbox"]["id"]
        assert {one["sandbox_id"] for one in living(emulator)} == {*foreign, made}
        assert emulator.count(CREATE) == 10 + 1 and not peer.status()["orphans"]


def test_a_short_one_costs_one_request(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.sh("true")
    daemon.kill()
    emulator.reset_stats()
    with daemon.start().peer() as peer:
        ready(peer)
        assert emulator.count(LIST) == 1


def test_one_serves_all_records(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        for task in ("running", "stopped", "deleted"):
            peer.call("sandbox.ensure", {"key": {"profile": "p", "task": task}})
        peer.call("sandbox.stop", {"key": {"profile": "p", "task": "stopped"}})
        peer.call("sandbox.terminate", {"key": {"profile": "p", "task": "deleted"}})
    daemon.kill()
    emulator.reset_stats()
    with daemon.start().peer() as peer:
        ready(peer)
        assert sorted(one["state"] for one in peer.status()["sandboxes"]) == ["running", "stopped"]
        assert {route: count for route, count in emulator.stats()["requests"].items() if route != CATALOG} == {LIST: 1}


def test_one_whose_look_up_hangs_holds_up_nothing_else(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(idle_stop=0.3).start()
    with daemon.peer() as peer:
        peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
        bad = only_id(emulator)
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})
        peer.call("sandbox.ensure", {"key": OTHER})
        good = peer.call("sandbox.get", {"key": OTHER})["sandbox"]["id"]
    daemon.kill()
    emulator.delete_sandbox(bad)
    emulator.config(list_deleted=False)
    emulator.fault({"stall_before": True}, method="GET", route="/v1/sandboxes/{id}", times=0, sandbox_id=bad)
    with daemon.start().peer():
        wait_until(lambda: emulator.sandbox(good)["state"] == "stopped", "the other one is reaped", 15)


@pytest.mark.parametrize("answer", [{"status": 404, "body": "<html>"}, {"status": 500, "body": "{}"}, {"status": 401, "body": "{}"}, {"drop_before": True}],
                         ids=["a proxy's 404", "500", "401", "dropped"])
def test_one_that_is_not_listed_is_not_gone_by_a_failed_question(daemon: Daemon, emulator: Emulator, answer: dict[str, Any]) -> None:
    with daemon.peer() as peer:
        peer.sh("echo kept >file")
        used = only_id(emulator)
    daemon.kill()
    emulator.reset_stats()
    emulator.fault({"status": 200, "body": "[]"}, method="GET", route="/v1/sandboxes")
    emulator.fault(answer, method="GET", route="/v1/sandboxes/{id}", sandbox_id=used)
    with daemon.start().peer(limit_s=60) as peer:
        ready(peer)
        ended = peer.sh("cat file")
        assert (ended.stdout, ended.message) == (b"kept\n", None)
        assert emulator.count(CREATE) == 0 and only_id(emulator) == used


def test_nothing_is_reaped_before_it_has_compared(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(idle_stop=0.2).start()
    with daemon.peer() as peer:
        peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
        daemon.kill()
    emulator.fault({"status": 500, "body": "{}"}, method="GET", route="/v1/sandboxes", times=0)
    with daemon.start().peer() as peer:
        wait_until(lambda: emulator.count(LIST) >= 3, "it has tried several times", 20)
        assert peer.status()["daemon"]["phase"] == "recovering" and emulator.count(STOP) == 0
        emulator.clear_faults()
        wait_until(lambda: emulator.count(STOP) == 1, "it has compared, and reaps", 40)


def test_that_it_cannot_compare_is_said_until_it_can(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
    daemon.kill()
    emulator.fault({"status": 500, "body": "{}"}, method="GET", route="/v1/sandboxes", times=0)

    def said(peer: Peer) -> list[dict[str, Any]]:
        return [item for item in peer.call("daemon.health")["health"] if item["code"] == "degraded"]

    with daemon.start().peer() as peer:
        (item,) = wait_until(lambda: said(peer), "it is said")
        assert item["severity"] == "warning" and "compared" in item["text"] and "500" in item["text"] and "doctor" in item["hint"]
        emulator.clear_faults()
        wait_until(lambda: not said(peer), "it has compared", 40)


def test_what_others_do_is_noticed_from_time_to_time(make_daemon: Make, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    """Nobody asks. The daemon believes that five minutes have passed."""
    daemon = make_daemon(idle_stop=20)  # whose timers are what notices that
    clocks = Clocks(tmp_path, daemon)
    with daemon.start().peer() as peer:
        peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
        emulator.stop_sandbox(only_id(emulator))
        assert peer.status()["sandboxes"][0]["state"] == "running" and emulator.count(LIST) == 0
        clocks.go_on(301)
        wait_until(lambda: peer.status()["sandboxes"][0]["state"] == "stopped", "it is noticed")
    assert emulator.count(LIST) == 1


def test_who_waits_for_a_place_that_only_our_records_hold(make_daemon: Make, emulator: Emulator) -> None:
    """It was stopped elsewhere, which nobody notices by itself."""
    daemon = make_daemon(max_active=1, evict_min_idle=600, queue_timeout=60).start()
    with daemon.peer(limit_s=60) as peer:
        peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
        emulator.stop_sandbox(only_id(emulator))
        assert peer.call("sandbox.ensure", {"key": OTHER})["created"]


def test_one_that_has_run_is_never_taken_for_a_failed_creation(daemon: Daemon, emulator: Emulator) -> None:
    """A platform that shows a sandbox as `creating` while it is started again: nobody waits for it, and it is not deleted for that."""
    with daemon.peer() as peer:
        peer.sh("echo precious >file")
        used = only_id(emulator)
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})
    daemon.stop()
    shown = {name: value for name, value in emulator.sandbox(used).items() if name in ("sandbox_id", "plan", "tags")} | {"state": "creating"}
    emulator.fault({"status": 200, "body": json.dumps(shown)}, method="GET", route="/v1/sandboxes/{id}", times=0)
    emulator.fault({"status": 200, "body": json.dumps([shown])}, method="GET", route="/v1/sandboxes", times=0)
    with daemon.start().peer() as peer:
        ready(peer)
        wait_until(lambda: peer.call("sandbox.get", {"key": DEFAULT_KEY})["sandbox"]["state"] == "creating", "it is seen so")
    daemon.stop()
    (record,) = json.loads((daemon.state_dir / "state.json").read_text())["sandboxes"]
    assert record["state"] == "creating" and not record["untried"]
    emulator.clear_faults()
    with daemon.start().peer() as peer:
        assert peer.sh("cat file").stdout == b"precious\n" and emulator.count(DELETE) == 0


def test_what_was_deleted_while_it_was_listed_is_no_orphan(daemon: Daemon, emulator: Emulator) -> None:
    emulator.config(boot_ms=60_000)
    with daemon.peer(limit_s=60) as peer:
        asked = peer.send("sandbox.ensure", {"key": DEFAULT_KEY})
        wait_until(lambda: living(emulator), "it is made")
        bad = only_id(emulator)
        emulator.config(boot_ms=5)
        emulator.fault({"latency_after_ms": 1500}, method="GET", route="/v1/sandboxes")
        peer.call("account.set", {"api_key": "test-key"})
        wait_until(lambda: emulator.faults()[-1]["used"], "the listing is under way")
        emulator.fail_sandbox(bad)
        assert peer.result(asked)["created"]
        wait_until(lambda: any(one["outcome"] == "done" and one["route"] == "/v1/sandboxes" and one["method"] == "GET" for one in emulator.requests()), "it has come")
        assert peer.status()["orphans"] == []


def test_a_lost_instance_id_counts_nothing_twice(daemon: Daemon) -> None:
    with daemon.peer() as peer:
        peer.sh("true")
    daemon.stop()
    (daemon.state_dir / "instance").write_text("garbage\n")
    with daemon.start().peer() as peer:
        ready(peer)
        assert peer.status()["account"]["active"] == 1


def test_a_stop_while_it_starts(make_daemon: Make, emulator: Emulator) -> None:
    """Who asked for it gets it, and then it is stopped."""
    emulator.config(boot_ms=800)
    with make_daemon().start().peer(limit_s=30) as peer:
        asked = peer.send("sandbox.ensure", {"key": DEFAULT_KEY})
        wait_until(lambda: living(emulator), "it is made")
        stopped = peer.send("sandbox.stop", {"key": DEFAULT_KEY})
        assert peer.result(asked)["created"] and peer.result(stopped)["sandbox"]["state"] == "stopped"
        assert living(emulator)[0]["state"] == "stopped"


def test_the_platform_stops_one_whose_daemon_is_gone(make_daemon: Make, emulator: Emulator) -> None:
    """Whatever runs in it: the time-out that it was made with is a dead man's switch."""
    daemon = make_daemon(server_timeout=2).start()
    with daemon.peer() as peer:
        running = peer.start("/bin/sh", "-c", "echo up; sleep 600 & while :; do echo x; sleep 0.1; done")
        peer.notification("exec.output", exec_id=running)
        calls = emulator.count()
        wait_until(lambda: emulator.count() >= calls + 5, "it is kept awake", 20)
        assert living(emulator)[0]["state"] == "running"
        daemon.kill()
    wait_until(lambda: living(emulator)[0]["state"] == "stopped", "the platform stops it", 20)


@pytest.mark.parametrize("shim", [True, False])
def test_while_a_command_runs_some_call_finishes_each_third_of_the_timeout(make_daemon: Make, emulator: Emulator, shim: bool) -> None:
    if not shim:
        without_shim(emulator)
    with make_daemon(server_timeout=3).start().peer(limit_s=60) as peer:
        peer.sh("true")
        emulator.reset_stats()
        running = peer.start("sleep", "600")
        wait_until(lambda: sum(one["outcome"] != "open" for one in emulator.requests()) >= 5, "calls finish", 40)
        ended = sorted(one["ended"] for one in emulator.requests() if one["outcome"] != "open")
        assert max(b - a for a, b in zip(ended, ended[1:], strict=False)) <= 3 / 3 + 0.5
        peer.call("exec.cancel", {"exec_id": running})
