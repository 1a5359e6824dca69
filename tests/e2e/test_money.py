"""What sandboxes cost and what stopping them saves, the day's budget, and the clock it all goes by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import CREATE, living, only_id

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


def test_an_idle_stop_saves(make_daemon: Make, emulator: Emulator) -> None:
    with make_daemon(idle_stop=0.2).start().peer() as peer:
        peer.sh("true")
        wait_until(lambda: sandbox(peer)["state"] == "stopped", "it is stopped")
        wait_until(lambda: money(peer)["saved_today_usd"] > 0, "that saves")
        saved = money(peer)["saved_usd"]
        peer.sh("true")
        after = money(peer)["saved_usd"]
        assert saved <= after < MEDIUM  # not more than the hour after which the platform would have stopped it


def test_prices_that_cannot_be_had_are_said_to_be_unknown(make_daemon: Make, emulator: Emulator) -> None:
    emulator.fault({"status": 500, "body": "{}"}, method="GET", route="/v1/sandboxes/catalog", times=0)
    with make_daemon(budget_per_day=5).start().peer() as peer:
        assert peer.sh("true").returncode == 0
        assert sandbox(peer)["rate_usd_per_hour"] is None and money(peer)["prices_known"] is False
        assert health(peer, "prices_unknown")


# -- the budget


@pytest.mark.parametrize(("share", "severity"), [(0.5, None), (0.85, "warning"), (1.0, "error")])
def test_the_budget(make_daemon: Make, emulator: Emulator, share: float, severity: str | None) -> None:
    """At 80 % it warns, at the whole of it nothing new starts, and what runs goes on. A cent or so is spent by then: the emulated
    clock is put an hour ahead."""
    daemon = make_daemon(budget_per_day=MEDIUM / share)
    with daemon.start().peer() as peer:
        running = peer.start("/bin/sh", "-c", "echo up; until [ -e go ]; do sleep 0.02; done; echo done")
        peer.notification("exec.output", exec_id=running)
        peer.sh("true", key=OTHER)
        peer.call("sandbox.stop", {"key": OTHER})
        wait_until(lambda: money(peer)["today_usd"] > 0, "it costs")
        emulator.config(date_offset_s=3601)
        peer.call("plan.list")
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
    daemon = make_daemon(retention="3d").start()
    with daemon.peer() as peer:
        peer.sh("echo old >file")
        old = only_id(emulator)
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})
        peer.sh("true", key=OTHER)
        emulator.config(date_offset_s=2 * 86400)
        reconciled(peer)
        assert not health(peer, "expires")
        wait_until(lambda: health(peer, "clock"), "it has looked")
        assert emulator.sandbox(old)["state"] == "stopped"
        emulator.config(date_offset_s=3 * 86400 + 60)
        reconciled(peer)
        wait_until(lambda: emulator.sandbox(old)["state"] == "deleted", "its time is over")
        ended = peer.sh("true")
        assert ended.message is None  # that was meant
    assert len(living(emulator)) == 2


def test_without_it_nothing_is_deleted_but_people_are_warned(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.sh("echo old >file")
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})
        emulator.config(date_offset_s=6 * 86400 + 60)
        reconciled(peer)
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
