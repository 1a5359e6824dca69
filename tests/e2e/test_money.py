"""What sandboxes cost and what stopping them saves, the day's budget, and the clock it all goes by."""

from __future__ import annotations

import json
import pathlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from support.clocks import Clocks
from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import CREATE, DELETE, living, only_id

Make = Callable[..., Daemon]
OTHER = {"profile": "default", "task": "other"}
MEDIUM = 0.04  # dollars an hour, says the emulated catalog


def money(peer: Peer) -> dict[str, Any]:
    found: dict[str, Any] = peer.status()["money"]
    return found


def health(peer: Peer, code: str) -> list[dict[str, Any]]:
    return [item for item in peer.call("daemon.health")["health"] if item["code"] == code]


def sandbox(peer: Peer) -> dict[str, Any]:
    found: dict[str, Any] = peer.status()["sandboxes"][0]
    return found


def cost_grows(peer: Peer) -> None:
    before = money(peer)["today_usd"]
    wait_until(lambda: money(peer)["today_usd"] > before, "it costs")


def reconciled(peer: Peer) -> None:
    peer.call("account.set", {"api_key": "test-key"})  # has it look again


@contextmanager
def rewritten(daemon: Daemon) -> Iterator[dict[str, Any]]:
    """The state of a daemon, which is stopped for that, to be changed: what was long ago is not waited for."""
    daemon.stop()
    file = daemon.state_dir / "state.json"
    state: dict[str, Any] = json.loads(file.read_text())
    yield state
    file.write_text(json.dumps(state))


def stopped_earlier(daemon: Daemon, seconds: int) -> None:
    with rewritten(daemon) as state:
        for record in state["sandboxes"]:
            if record["stopped_since"]:
                record["stopped_since"] -= seconds
    daemon.start()


def ready(peer: Peer) -> None:
    wait_until(lambda: peer.status()["daemon"]["phase"] == "ready", "it has compared")


def test_what_runs_costs_and_what_is_stopped_does_not(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        assert money(peer) == {"rate_usd_per_hour": 0, "prices_known": True, "today_usd": 0, "total_usd": 0, "saved_today_usd": 0,
                               "saved_usd": 0, "budget_per_day_usd": None}
        peer.sh("true")
        shown = wait_until(lambda: sandbox(peer)["rate_usd_per_hour"] and sandbox(peer), "its price is known")
        assert shown["rate_usd_per_hour"] == MEDIUM == money(peer)["rate_usd_per_hour"] and shown["plan"] == "medium"
        cost_grows(peer)
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})
        spent = money(peer)
        assert (spent["rate_usd_per_hour"], sandbox(peer)["rate_usd_per_hour"]) == (0, 0)
        assert sandbox(peer)["cost_usd"] == pytest.approx(spent["today_usd"]) and spent["saved_usd"] == 0
        peer.sh("true", key=OTHER)
        assert sandbox(peer)["cost_usd"] == pytest.approx(spent["today_usd"])  # nothing more
        peer.call("sandbox.terminate", {"key": DEFAULT_KEY})
        assert money(peer)["today_usd"] >= spent["today_usd"]  # what is gone was paid for


def test_it_is_kept_over_restarts_and_what_ran_meanwhile_is_counted(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.sh("true")
        wait_until(lambda: money(peer)["today_usd"] > 0, "it costs")
        before = money(peer)["total_usd"]
    daemon.kill()
    emulator.reset_stats()
    daemon.start()
    with daemon.peer() as peer:
        wait_until(lambda: money(peer)["total_usd"] > before, "it goes on")
        assert money(peer)["rate_usd_per_hour"] == MEDIUM
    assert emulator.count("GET /v1/sandboxes/catalog") == 0  # prices are kept for a day


@pytest.mark.parametrize("how", ["asleep", "away"])
def test_what_ran_unseen_is_counted_when_it_is_seen_again(make_daemon: Make, emulator: Emulator, tmp_path: pathlib.Path, how: str) -> None:
    """At the most until the platform has stopped what nobody uses: it may have stopped long ago, and a budget must not be spent by a guess."""
    daemon = make_daemon(server_timeout="1h", budget_per_day=0.2)
    clocks = Clocks(tmp_path, daemon)
    with daemon.start().peer() as peer:
        peer.sh("true")
        wait_until(lambda: money(peer)["today_usd"] > 0, "it costs")
        emulator.stop_sandbox(only_id(emulator))
        if how == "asleep":
            clocks.sleep(10 * 3600)
    if how == "away":
        daemon.kill()
        clocks.go_on(10 * 3600)
    emulator.config(date_offset_s=10 * 3600, latency_ms=100)
    with daemon.peer() if how == "asleep" else daemon.start().peer() as peer:
        assert money(peer)["total_usd"] == pytest.approx(0.04, abs=0.002)  # an hour of medium
        wait_until(lambda: peer.status()["sandboxes"][0]["state"] == "stopped", "it is seen")
        assert money(peer)["total_usd"] == pytest.approx(0.04, abs=0.002)
        assert peer.sh("true").returncode == 0


def test_what_still_runs_then_is_counted_in_full(make_daemon: Make, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    daemon = make_daemon(server_timeout="1h")
    clocks = Clocks(tmp_path, daemon)
    with daemon.start().peer() as peer:
        peer.sh("true")
        wait_until(lambda: money(peer)["today_usd"] > 0, "it costs")
        clocks.sleep(10 * 3600)
        emulator.config(date_offset_s=10 * 3600)
        wait_until(lambda: money(peer)["total_usd"] > 0.39, "somebody else has used it, and it is counted")
        assert money(peer)["total_usd"] == pytest.approx(0.4, abs=0.002)


def test_an_idle_stop_saves(make_daemon: Make, emulator: Emulator) -> None:
    with make_daemon(idle_stop=0.2).start().peer() as peer:
        peer.sh("true")
        wait_until(lambda: sandbox(peer)["state"] == "stopped", "it is stopped")
        wait_until(lambda: money(peer)["saved_today_usd"] > 0, "that saves")
        saved = money(peer)["saved_usd"]
        peer.sh("true")
        after = money(peer)["saved_usd"]
        assert saved <= after < MEDIUM  # not more than the hour after which the platform would have stopped it


@pytest.mark.parametrize("answer", [{"status": 500, "body": "{}"}, {"status": 200, "body": '[{"id": "medium", "price_per_hour": "0.04"}]'}])
def test_prices_that_cannot_be_had_are_said_to_be_unknown(make_daemon: Make, emulator: Emulator, answer: dict[str, Any]) -> None:
    emulator.fault(answer, method="GET", route="/v1/sandboxes/catalog", times=0)
    with make_daemon(budget_per_day=5).start().peer() as peer:
        assert peer.sh("true").returncode == 0
        assert sandbox(peer)["rate_usd_per_hour"] is None and money(peer)["prices_known"] is False
        assert health(peer, "prices_unknown")


# -- the budget


@pytest.mark.parametrize(("share", "severity"), [(0.5, None), (0.85, "warning"), (1.0, "error")])
def test_the_budget(make_daemon: Make, emulator: Emulator, share: float, severity: str | None) -> None:
    """At 80 % it warns, at the whole of it nothing new starts, and what runs goes on. Most of it was spent earlier today, says the
    state file."""
    daemon = make_daemon(budget_per_day=MEDIUM / share)
    with daemon.start().peer() as peer:
        peer.sh("true", key=OTHER)
        wait_until(lambda: money(peer)["today_usd"] > 0, "it costs")
        peer.call("sandbox.stop", {"key": OTHER})
        running = peer.start("/bin/sh", "-c", "echo up; until [ -e go ]; do sleep 0.02; done; echo done")
        peer.notification("exec.output", exec_id=running)
    with rewritten(daemon) as state:
        state["ledger"]["today_usd"] += MEDIUM
    with daemon.start().peer() as peer:
        reconciled(peer)
        peer.call("exec.attach", {"exec_id": running, "offset": 0})
        found = health(peer, "budget")
        assert [item["severity"] for item in found] == ([severity] if severity else [])
        assert not severity or ("$" in found[0]["text"] and found[0]["hint"])
        if severity == "error":
            for key in (OTHER, {"profile": "p", "task": "new"}):  # neither a start nor a create
                with pytest.raises(RpcFailure, match="budget_reached"):
                    peer.call("sandbox.ensure", {"key": key})
                ended = peer.run("true", key=key)
                assert (ended.reason, ended.started, ended.error["name"]) == ("failed", "no", "budget_reached")
            assert emulator.count(CREATE) == 2
        else:
            assert peer.sh("true", key=OTHER).returncode == 0
        assert peer.sh("touch go").returncode == 0
        assert b"done" in peer.finish(running).stdout


# -- the clock


def test_a_clock_that_is_wrong_is_said_so(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.sh("true")
        assert not health(peer, "clock")
        emulator.config(date_offset_s=3600)
        peer.call("plan.list")
        found = health(peer, "clock")
        assert len(found) == 1 and found[0]["severity"] == "warning" and "behind" in found[0]["text"] and found[0]["hint"]
        emulator.config(date_offset_s=0)
        peer.call("plan.list")
        assert not health(peer, "clock")


def test_retention_goes_by_the_clouds_clock(make_daemon: Make, emulator: Emulator) -> None:
    """Old enough, it is deleted when a second listing, some time after the first, says so too."""
    daemon = make_daemon(retention="3d").start()
    with daemon.peer() as peer:
        peer.sh("echo old >file")
        old = only_id(emulator)
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})
        peer.sh("true", key=OTHER)
    stopped_earlier(daemon, 2 * 86400)
    with daemon.peer() as peer:
        ready(peer)
        reconciled(peer)
        peer.call("plan.list")
        assert not health(peer, "expires") and emulator.sandbox(old)["state"] == "stopped"
    emulator.reset_stats()
    stopped_earlier(daemon, 86400 + 60)
    with daemon.peer() as peer:
        ready(peer)
        assert emulator.sandbox(old)["state"] == "stopped" and emulator.count("GET /v1/sandboxes") == 1

        def deleted() -> bool:
            reconciled(peer)
            return bool(emulator.sandbox(old)["state"] == "deleted")

        wait_until(deleted, "its time is over", 20)
        assert emulator.count("GET /v1/sandboxes") >= 2
        ended = peer.sh("true")
        assert ended.message is None  # that was meant
    assert len(living(emulator)) == 2


def test_one_listing_with_a_wrong_date_deletes_nothing(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(retention="3d").start()
    with daemon.peer() as peer:
        peer.sh("echo precious >file")
        used = only_id(emulator)
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})
    emulator.config(date_offset_s=3650 * 86400)
    daemon.stop()
    with daemon.start().peer() as peer:
        ready(peer)
        item = health(peer, "clock")[0]
        assert "nothing is deleted" in item["text"]
        for _ in range(5):
            reconciled(peer)
            peer.call("plan.list")
        emulator.config(date_offset_s=0)
        peer.call("plan.list")
        assert not health(peer, "clock")
        reconciled(peer)
        peer.call("plan.list")
    assert emulator.sandbox(used)["state"] == "stopped" and emulator.count(DELETE) == 0


def test_a_jump_that_another_answer_confirms_is_believed(make_daemon: Make, emulator: Emulator) -> None:
    """A virtual machine that was paused for days: a minute is waited for, then two listings decide."""
    daemon = make_daemon(retention="3d").start()
    with daemon.peer() as peer:
        peer.sh("echo old >file")
        old = only_id(emulator)
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})
        emulator.config(date_offset_s=3 * 86400 + 60)
        begun = time.monotonic()

        def deleted() -> bool:
            reconciled(peer)
            time.sleep(0.5)
            return bool(emulator.sandbox(old)["state"] == "deleted")

        wait_until(deleted, "its time is over", 120)
        assert time.monotonic() - begun >= 70


def test_a_stop_is_not_dated_by_a_date_in_doubt(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.sh("true")
        emulator.config(date_offset_s=3650 * 86400)
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})
        emulator.config(date_offset_s=0)
    with rewritten(daemon) as state:
        assert state["sandboxes"][0]["stopped_since"] == 0
    with daemon.start().peer() as peer:
        ready(peer)
    with rewritten(daemon) as state:
        assert abs(state["sandboxes"][0]["stopped_since"] - time.time()) < 60


def test_a_wrong_date_costs_nothing_and_begins_no_day(make_daemon: Make, emulator: Emulator) -> None:
    with make_daemon(budget_per_day=1).start().peer() as peer:
        peer.sh("true")
        wait_until(lambda: money(peer)["today_usd"] > 0, "it costs")
        for days in (30, 3650):
            before = money(peer)["today_usd"]
            emulator.config(date_offset_s=days * 86400)
            peer.call("plan.list")
            assert before <= money(peer)["today_usd"] < before + MEDIUM / 60
            emulator.config(date_offset_s=0)
            peer.call("plan.list")
            assert before <= money(peer)["today_usd"] < before + MEDIUM / 60


def test_a_doubt_is_not_ended_by_one_date(daemon: Daemon, emulator: Emulator) -> None:
    """The create may still take effect, whatever one answer says of the time."""
    with daemon.peer() as peer:
        emulator.fault({"drop_before": True}, method="POST", route="/v1/sandboxes")
        emulator.fault({"status": 403, "body": "{}"}, method="GET", route="/v1/sandboxes", times=0)
        with pytest.raises(RpcFailure):
            peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
        emulator.clear_faults()
        reconciled(peer)
        peer.call("plan.list")
        emulator.config(date_offset_s=2 * 86400)
        peer.call("plan.list")
        peer.call("sandbox.ensure", {"key": OTHER})
    with rewritten(daemon) as state:
        record = next(one for one in state["sandboxes"] if one["task"] == "default")
        assert record["create_pending"] and len(record["doubts"]) == 1


def test_a_platform_that_does_not_tell_the_time(make_daemon: Make, emulator: Emulator) -> None:
    """What a sandbox costs is known all the same, and a doubt ends after a day; nothing is deleted by its age."""
    emulator.config(send_date=False)
    daemon = make_daemon(retention="3d").start()
    with daemon.peer() as peer:
        peer.sh("true")
        wait_until(lambda: money(peer)["today_usd"] > 0, "it costs")
        old = only_id(emulator)
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})
        emulator.fault({"drop_before": True}, method="POST", route="/v1/sandboxes")
        peer.sh("true", key=OTHER)  # the second attempt

    def other(state: dict[str, Any]) -> dict[str, Any]:
        record: dict[str, Any] = next(one for one in state["sandboxes"] if one["task"] == "other")
        return record

    with rewritten(daemon) as state:
        (doubt,) = other(state)["doubts"]
        assert abs(doubt["since"] - time.time()) < 60
        doubt["since"] -= 86400 + 60
        next(one for one in state["sandboxes"] if one["sandbox_id"] == old)["stopped_since"] = int(time.time()) - 6 * 86400
    with daemon.start().peer() as peer:
        ready(peer)
        reconciled(peer)
        reconciled(peer)
        assert emulator.sandbox(old)["state"] == "stopped"
    with rewritten(daemon) as state:
        assert other(state)["doubts"] == []


def test_without_it_nothing_is_deleted_but_people_are_warned(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.sh("echo old >file")
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})
    stopped_earlier(daemon, 6 * 86400 + 60)
    with daemon.peer() as peer:
        wait_until(lambda: health(peer, "expires"), "it is said")
        assert "default/default" in health(peer, "expires")[0]["text"]
        assert peer.sh("cat file").stdout == b"old\n"
        assert not health(peer, "expires")


def test_status_for_people(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.sh("true")
        wait_until(lambda: sandbox(peer)["rate_usd_per_hour"], "its price is known")
    said = daemon.cli("status").stdout.decode()
    assert "$0.04 an hour now" in said and "COST" in said and "0.04" in said
