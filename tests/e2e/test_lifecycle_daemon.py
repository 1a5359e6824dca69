"""Sandboxes over time: the idle reaper, neighbours, and daemons that end and come back."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import CREATE, DELETE, START, STOP, appears, living, only_id, workspace

OTHER_KEY = {"profile": "default", "task": "other"}


def ensure(peer: Peer, key: dict[str, str] = DEFAULT_KEY, **params: Any) -> dict[str, Any]:
    return peer.call("sandbox.ensure", {"key": key, **params})


def sandbox(peer: Peer, key: dict[str, str] = DEFAULT_KEY) -> dict[str, Any]:
    found: dict[str, Any] = peer.call("sandbox.get", {"key": key})["sandbox"]
    return found


def wait_stopped(emulator: Emulator) -> None:
    wait_until(lambda: [one["state"] for one in living(emulator)] == ["stopped"], "it is stopped")


# -- the reaper


@pytest.fixture
def hasty(make_daemon: Callable[..., Daemon]) -> Daemon:
    return make_daemon(idle_stop=0.3).start()


def test_an_idle_one_is_stopped_and_the_next_command_resumes_it(hasty: Daemon, emulator: Emulator) -> None:
    with hasty.peer() as peer:
        peer.sh("echo kept >file")
        wait_stopped(emulator)
        wait_until(lambda: sandbox(peer)["state"] == "stopped", "it is known")
        ended = peer.sh("cat file")
        assert (ended.stdout, ended.recreated, ended.generation, ended.message) == (b"kept\n", True, 2, None)
        wait_stopped(emulator)
    assert (emulator.count(STOP), emulator.count(CREATE), emulator.count(DELETE)) == (2, 1, 0)


def test_a_reaper_that_finds_it_deleted(hasty: Daemon, emulator: Emulator) -> None:
    """The one who is told is the next who runs something."""
    with hasty.peer() as peer:
        peer.sh("echo precious >file")
        emulator.delete_sandbox(only_id(emulator))
        wait_until(lambda: peer.call("sandbox.list")["sandboxes"] == [], "the reaper has noticed")
        ended = peer.sh("cat file")
        assert (ended.returncode, ended.recreated, ended.generation) == (1, True, 2) and "gone" in ended.message
        assert peer.sh("true").message is None


def test_one_in_use_is_never_stopped(hasty: Daemon, emulator: Emulator) -> None:
    """cases.md 13: a command much longer than the limit, and none of its calls."""
    with hasty.peer() as peer:
        exec_id = peer.start("/bin/sh", "-c", "sleep 1.2; echo lived")
        other = peer.run("true", key=OTHER_KEY)
        assert other.returncode == 0
        assert peer.finish(exec_id).stdout == b"lived\n"
        stops = [one for one in emulator.requests() if one["route"] == STOP.split()[1]]
        assert [one["sandbox_id"] for one in stops] == [sandbox(peer, OTHER_KEY)["id"]]
        for _ in range(8):  # as long as it is used
            assert not peer.sh("sleep 0.1").recreated
        assert sandbox(peer)["generation"] == 1


def test_a_reaper_that_meets_the_next_command(hasty: Daemon, emulator: Emulator) -> None:
    """Commands come at the very moment of the stop: each runs, once."""
    emulator.config(stop_ms=50, start_ms=50)
    with hasty.peer() as peer:
        for n in range(1, 7):
            assert peer.sh("echo x >>n").returncode == 0
            if n < 6:
                wait_until(lambda: emulator.count(STOP) == n, "the reaper has begun")
        assert peer.sh("cat n").stdout == b"x\n" * 6


def test_foreign_ones_are_never_touched(make_daemon: Callable[..., Daemon], emulator: Emulator) -> None:
    """cases.md 23. Neighbours that look more and more like ours."""
    emulator.config(max_active=20)
    foreign = [emulator.create_running(tags=tags) for tags in (
        {}, {"owner": "deepinfra-sandboxd"}, {"owner": "deepinfra-sandboxd", "sandboxd_instance": "f" * 32, "hermes_task_id": "default"},
        {"owner": "somebody", "hermes_task_id": "default"})]
    daemon = make_daemon(idle_stop=0.2)
    emulator.reset_stats()
    with daemon.start().peer() as peer:
        emulator.fault({"act_then_status": 504}, method="POST", route="/v1/sandboxes")
        ours = ensure(peer)["sandbox"]["id"]
        wait_until(lambda: emulator.sandbox(ours)["state"] == "stopped", "the reaper has come")
        for other in foreign:
            for method in ("sandbox.stop", "sandbox.terminate", "sandbox.start", "sandbox.get"):
                with pytest.raises(RpcFailure, match="sandbox_not_found"):
                    peer.call(method, {"id": other})
        peer.call("sandbox.terminate", {"key": DEFAULT_KEY})
    daemon.stop()
    with daemon.start().peer() as peer:
        ensure(peer)
        assert len(peer.call("sandbox.list")["sandboxes"]) == 1
    assert [emulator.sandbox(other)["state"] for other in foreign] == ["running"] * 4
    assert not set(emulator.stats()["by_sandbox"]) & set(foreign)


# -- the daemon ends and comes back


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_sandboxes_outlive_the_daemon(daemon: Daemon, emulator: Emulator, how: str) -> None:
    with daemon.peer() as peer:
        peer.sh("echo kept >file; echo here >/tmp/boot; (while :; do echo t >>ticks; sleep 0.02; done) >/dev/null 2>&1 </dev/null &")
        exec_id = peer.start("/bin/sh", "-c", "echo up; until [ -e go ]; do sleep 0.01; done; echo done >result")
        peer.notification("exec.output", exec_id=exec_id)
        getattr(daemon, how)()
    emulator.reset_stats()
    assert living(emulator)[0]["state"] == "running"
    with daemon.start().peer() as peer:
        ended = peer.sh("cat file /tmp/boot; touch go")
        assert (ended.stdout, ended.recreated, ended.generation, ended.message) == (b"kept\nhere\n", False, 1, None)
        appears(workspace(emulator) / "result")
        peer.attach(exec_id)
        ended = peer.finish(exec_id)
        assert (ended.reason, ended.returncode, ended.stdout) == ("exited", 0, b"up\n")
        assert (emulator.count(CREATE), emulator.count(START)) == (0, 0)
        assert sandbox(peer)["id"] == only_id(emulator)


def test_the_platforms_daily_stop(make_daemon: Callable[..., Daemon], emulator: Emulator) -> None:
    """Whatever runs: that ends, which is said, and the next command goes on with the files."""
    emulator.config(running_cap_s=3)
    with make_daemon().start().peer() as peer:
        peer.sh("echo kept >file")
        ended = peer.sh("echo begun; sleep 600")
        assert (ended.reason, ended.returncode, ended.stdout) == ("lost", None, b"begun\n") and ended.error["name"] == "outcome_unknown"
        emulator.config(running_cap_s=86_400)
        after = peer.sh("cat file")
        assert (after.stdout, after.recreated, after.generation) == (b"kept\n", True, 2)
    assert (emulator.count(CREATE), emulator.count(START)) == (1, 1)


def test_a_daemon_that_comes_back_to_changes(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        ensure(peer)
        ensure(peer, OTHER_KEY)
        stopped, deleted = sandbox(peer)["id"], sandbox(peer, OTHER_KEY)["id"]
    daemon.stop()
    emulator.stop_sandbox(stopped)
    emulator.delete_sandbox(deleted)
    with daemon.start().peer() as peer:
        resumed = peer.sh("true")
        assert (resumed.recreated, resumed.generation, resumed.message) == (True, 2, None)
        anew = peer.sh("true", key=OTHER_KEY)
        assert (anew.recreated, anew.generation) == (True, 2) and "gone" in anew.message
    assert emulator.count(CREATE) == 3


def test_another_account_is_never_mixed_in(make_daemon: Callable[..., Daemon], emulator: Emulator) -> None:
    emulator.config(other_accounts="second-key")
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        peer.sh("echo mine >file")
    daemon.stop()
    daemon.environment["DEEPINFRA_API_KEY"] = "second-key"
    emulator.reset_stats()
    with daemon.start().peer() as peer:
        with pytest.raises(RpcFailure, match="account_mismatch"):
            ensure(peer)
        ended = peer.run("true")
        assert (ended.reason, ended.started, ended.error["name"]) == ("failed", "no", "account_mismatch")
        assert emulator.count(CREATE) == 0
        assert ensure(peer, OTHER_KEY)["created"]  # of the new account
    daemon.stop()
    daemon.environment["DEEPINFRA_API_KEY"] = "test-key"
    with daemon.start().peer() as peer:
        ended = peer.sh("cat file")
        assert (ended.stdout, ended.recreated) == (b"mine\n", False)


def test_after_an_outage_it_compares_anew(daemon: Daemon, emulator: Emulator) -> None:
    """What others did meanwhile is known without anybody asking for that sandbox."""
    with daemon.peer() as peer:
        ensure(peer)
        ensure(peer, OTHER_KEY)
        lost = sandbox(peer, OTHER_KEY)["id"]
        emulator.config(accept_mode="refuse")
        emulator.drop_connections()
        exec_id = peer.start("echo", "back")
        wait_until(lambda: [item["code"] for item in peer.call("daemon.health")["health"]] == ["cloud_unreachable"], "the cloud is away")
        emulator.stop_sandbox(lost)
        time.sleep(5.5)  # so long is an outage
        emulator.config(accept_mode="normal")
        assert peer.finish(exec_id).stdout == b"back\n"
        wait_until(lambda: sandbox(peer, OTHER_KEY)["state"] == "stopped", "it has compared")
