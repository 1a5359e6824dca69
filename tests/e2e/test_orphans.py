"""What of ours no record has in use: late creations end by themselves, orphans are shown and left to people. And what is not ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import CREATE, DELETE, living, only_id

Make = Callable[..., Daemon]
ODD_KEY = {"profile": "/srv/agents/ada", "task": "build"}


def ready(daemon: Daemon) -> Peer:
    peer = daemon.start().peer()
    wait_until(lambda: peer.status()["daemon"]["phase"] == "ready", "it has compared")
    return peer


def lose_state(daemon: Daemon) -> None:
    daemon.stop()
    for name in ("state.json", "sandbox-keys"):
        (daemon.state_dir / name).unlink()


def ready_again(daemon: Daemon) -> Peer:
    daemon.stop()
    return ready(daemon)


def orphans(peer: Peer) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = peer.status()["orphans"]
    return found


@pytest.fixture
def lost(daemon: Daemon, emulator: Emulator) -> dict[str, str]:
    """Sandboxes by their task that the daemon, now stopped, has lost the record of."""
    with daemon.peer() as peer:
        for key in (DEFAULT_KEY, ODD_KEY):
            peer.sh("echo kept >file", key=key)
        peer.call("sandbox.ensure", {"key": {"profile": "default", "task": "session"}, "persistent": False})
        ids = {one["key"]["task"]: one["id"] for one in peer.status()["sandboxes"]}
    lose_state(daemon)
    emulator.create_running(tags={"owner": "deepinfra-sandboxd", "sandboxd_instance": "f" * 32})  # another daemon's
    return ids


def test_they_are_shown_and_left_alone(daemon: Daemon, emulator: Emulator, lost: dict[str, str]) -> None:
    emulator.reset_stats()
    with ready(daemon) as peer:
        shown = {one["task"]: one for one in orphans(peer)}
        assert {task: one["id"] for task, one in shown.items()} == lost
        assert shown["default"]["key"] == DEFAULT_KEY and shown["build"]["key"] is None and not shown["session"]["persistent"]
        item = next(item for item in peer.call("daemon.health")["health"] if item["code"] == "orphans")
        assert item["severity"] == "warning" and "3" in item["text"] and "doctor" in item["hint"]
        assert peer.status()["sandboxes"] == []
        for method in ("sandbox.stop", "sandbox.terminate"):
            with pytest.raises(RpcFailure, match="sandbox_not_found"):
                peer.call(method, {"id": lost["default"]})
    assert set(emulator.stats()["requests"]) <= {"GET /v1/sandboxes", "GET /v1/sandboxes/catalog"}


def test_adopted_it_is_as_before(daemon: Daemon, emulator: Emulator, lost: dict[str, str]) -> None:
    with ready(daemon) as peer:
        with pytest.raises(RpcFailure, match="invalid_params"):
            peer.call("orphan.adopt", {"id": lost["build"], "key": DEFAULT_KEY})
        for key in (DEFAULT_KEY, ODD_KEY):
            assert peer.call("orphan.adopt", {"id": lost[key["task"]], "key": key})["sandbox"]["state"] == "running"
            assert peer.sh("cat file", key=key).stdout == b"kept\n"
        with pytest.raises(RpcFailure, match="sandbox_not_found"):
            peer.call("orphan.adopt", {"id": lost["default"], "key": DEFAULT_KEY})
        assert [one["task"] for one in orphans(peer)] == ["session"]
        assert peer.call("orphan.terminate", {"id": lost["session"]}) == {"sandbox_id": lost["session"]}
        assert emulator.sandbox(lost["session"])["state"] == "deleted"
        assert peer.call("daemon.health")["health"] == []
    daemon.kill()
    with ready(daemon) as peer:
        assert peer.sh("cat file", key=ODD_KEY).stdout == b"kept\n" and orphans(peer) == []


def test_a_key_that_has_another_by_now(daemon: Daemon, emulator: Emulator, lost: dict[str, str]) -> None:
    with ready(daemon) as peer:
        peer.sh("true")
        with pytest.raises(RpcFailure, match="sandbox_busy"):
            peer.call("orphan.adopt", {"id": lost["default"], "key": DEFAULT_KEY})
        assert emulator.sandbox(lost["default"])["state"] == "running"


def test_only_orphans_are_ever_terminated_so(daemon: Daemon, emulator: Emulator, lost: dict[str, str]) -> None:
    with ready(daemon) as peer:
        peer.sh("true")
        ours = peer.call("sandbox.get", {"key": DEFAULT_KEY})["sandbox"]["id"]
        for other in [ours, *(one["sandbox_id"] for one in living(emulator) if one["sandbox_id"] not in lost.values())]:
            with pytest.raises(RpcFailure, match="sandbox_not_found"):
                peer.call("orphan.terminate", {"id": other})
    assert emulator.count(DELETE) == 0


def test_the_keys_are_found_again_without_the_state(daemon: Daemon, emulator: Emulator) -> None:
    """A profile that is a path and a task that no tag holds whole: the file beside the state knows them."""
    keys = [ODD_KEY, {"profile": "default", "task": "t" * 200}]
    with daemon.peer() as peer:
        for key in keys:
            peer.sh("echo kept >file", key=key)
    daemon.stop()
    (daemon.state_dir / "state.json").write_text("{ torn")
    book = daemon.state_dir / "sandbox-keys"
    assert book.stat().st_mode & 0o777 == 0o600
    book.write_text("no json\n{}\n" + book.read_text() + '{"profile": "torn')
    with ready(daemon) as peer:
        shown = orphans(peer)
        assert sorted((one["key"] for one in shown), key=str) == sorted(keys, key=str)
        for one in shown:
            peer.call("orphan.adopt", {"id": one["id"], "key": one["key"]})
        for key in keys:
            assert peer.sh("cat file", key=key).stdout == b"kept\n"
        peer.sh("true", key={"profile": "p", "task": "another"})
    assert book.read_text().splitlines()[-1] == '{"profile":"p","task":"another"}'


def test_the_twin_of_one_that_is_adopted_stays(daemon: Daemon, emulator: Emulator) -> None:
    """Two sandboxes of one creation, and no record of which was in use."""
    with daemon.peer() as peer:
        peer.sh("echo precious >file")
        used = only_id(emulator)
    twin = emulator.create_running(tags=tags_like(emulator, 2))
    lose_state(daemon)
    with ready(daemon) as peer:
        assert len(orphans(peer)) == 2
        peer.call("orphan.adopt", {"id": twin, "key": DEFAULT_KEY})
        assert [one["id"] for one in orphans(peer)] == [used]
        with pytest.raises(RpcFailure, match="sandbox_busy"):
            peer.call("orphan.adopt", {"id": used, "key": DEFAULT_KEY})
    with ready_again(daemon) as peer:
        wait_until(lambda: [one["id"] for one in orphans(peer)] == [used], "it is shown still")
    assert emulator.count(DELETE) == 0 and emulator.sandbox(used)["state"] == "running"


def test_they_are_counted(make_daemon: Make, emulator: Emulator) -> None:
    """They take places and cost money, and who waits for a place is told of them."""
    emulator.config(max_active=1)
    daemon = make_daemon(max_active=1, queue_timeout=1).start()
    with daemon.peer() as peer:
        peer.sh("true")
    lose_state(daemon)
    with ready(daemon) as peer:
        lost = orphans(peer)[0]
        assert peer.status()["account"]["active"] == 1
        wait_until(lambda: peer.status()["money"]["rate_usd_per_hour"] == 0.04, "its price is known")
        assert orphans(peer)[0]["rate_usd_per_hour"] == 0.04
        before = peer.status()["money"]["today_usd"]
        wait_until(lambda: peer.status()["money"]["today_usd"] > before, "it costs")
        with pytest.raises(RpcFailure, match="cap_reached") as refused:
            peer.call("sandbox.ensure", {"key": {"profile": "p", "task": "other"}})
        assert lost["id"] in refused.value.message and "doctor" in refused.value.message
        assert "other programs" not in refused.value.message
        peer.call("orphan.adopt", {"id": lost["id"], "key": DEFAULT_KEY})
        assert peer.status()["account"]["active"] == 1 and peer.status()["sandboxes"][0]["cost_usd"] > 0


def test_what_runs_in_one_can_be_asked(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.sh("sleep 600 >/dev/null 2>&1 &")
    lose_state(daemon)
    with ready(daemon) as peer:
        lost = only_id(emulator)
        found = peer.call("orphan.inspect", {"id": lost})
        assert found["inside"] == "running" and "1 process of" in found["text"]
        emulator.stop_sandbox(lost)
        peer.call("account.set", {"api_key": "test-key"})
        wait_until(lambda: orphans(peer)[0]["state"] == "stopped", "it is seen")
        assert peer.call("orphan.inspect", {"id": lost}) == {"sandbox_id": lost, "inside": "nothing", "text": None}
        with pytest.raises(RpcFailure, match="sandbox_not_found"):
            peer.call("orphan.inspect", {"id": "sb_none"})


# -- late creations


def tags_like(emulator: Emulator, attempt: int) -> dict[str, str]:
    """Those of the one sandbox that lives, as another attempt to create it would carry them."""
    tags: dict[str, str] = dict(emulator.sandbox(only_id(emulator))["tags"])
    tags["sandboxd_creation"] = tags["sandboxd_creation"].rpartition(".")[0] + f".{attempt}"
    return tags


def test_one_that_turns_up_late_is_deleted(daemon: Daemon, emulator: Emulator) -> None:
    """An earlier attempt of the sandbox in use took effect after all."""
    with daemon.peer() as peer:
        peer.sh("echo kept >file")
        used = only_id(emulator)
    late = emulator.create(tags=tags_like(emulator, 7))
    daemon.stop()
    with ready(daemon) as peer:
        wait_until(lambda: emulator.sandbox(late)["state"] == "deleted", "the late one is deleted")
        assert peer.sh("cat file").stdout == b"kept\n" and only_id(emulator) == used
        assert orphans(peer) == []


def test_also_when_its_key_has_moved_on(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
        tags = tags_like(emulator, 1)
        peer.call("sandbox.terminate", {"key": DEFAULT_KEY})
        peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
        used = only_id(emulator)
    daemon.kill()
    late = emulator.create(tags=tags)
    with ready(daemon):
        wait_until(lambda: emulator.sandbox(late)["state"] == "deleted", "the late one is deleted")
    assert only_id(emulator) == used


def test_a_doubt_is_kept_for_a_day(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        emulator.fault({"act_then_drop": True}, method="POST", route="/v1/sandboxes")
        emulator.fault({"status": 403, "body": "{}"}, method="GET", route="/v1/sandboxes", times=0)
        with pytest.raises(RpcFailure):
            peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
    daemon.kill()
    state = json.loads((daemon.state_dir / "state.json").read_text())["sandboxes"][0]
    assert state["create_pending"] and [one["creation_id"] for one in state["doubts"]] == [state["creation_id"]]
    emulator.clear_faults()
    with ready(daemon) as peer:
        assert peer.call("sandbox.ensure", {"key": DEFAULT_KEY})["sandbox"]["id"] == only_id(emulator)
    assert emulator.count(CREATE) == 1


# -- what is lost is told


def test_a_loss_found_at_the_start_is_told_even_after_another_start(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.sh("echo precious >file")
    daemon.stop()
    emulator.delete_sandbox(only_id(emulator))
    for how in ("stop", "kill"):
        ready(daemon).close()
        getattr(daemon, how)()
    with ready(daemon) as peer:
        ended = peer.sh("cat file")
        assert (ended.returncode, ended.recreated) == (1, True) and "gone" in ended.message
        assert peer.sh("true").message is None


def test_a_listing_that_misses_one_loses_nothing(daemon: Daemon, emulator: Emulator) -> None:
    """cases.md 23: gone is only what the platform says of that very id."""
    with daemon.peer() as peer:
        peer.sh("echo kept >file")
    daemon.stop()
    emulator.fault({"status": 200, "body": "[]"}, method="GET", route="/v1/sandboxes", times=0)
    with ready(daemon) as peer:
        ended = peer.sh("cat file")
        assert (ended.stdout, ended.message) == (b"kept\n", None)
    assert emulator.count(CREATE) == 1
