"""A daemon whose key has changed: what the old key made is not touched, not watched, named, and not charged for ever."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import CREATE, DELETE, EXEC, STOP, living, only_id, workspace

Make = Callable[..., Daemon]


def ready(peer: Peer) -> None:
    wait_until(lambda: peer.status()["daemon"]["phase"] == "ready", "it has compared")


def mismatch(peer: Peer) -> list[dict[str, Any]]:
    return [item for item in peer.call("daemon.health")["health"] if item["code"] == "account_mismatch"]


def test_they_are_named_and_not_promised_anything(make_daemon: Make, emulator: Emulator) -> None:
    emulator.config(other_accounts="second-key")
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        peer.sh("true")
        assert not mismatch(peer)
    used = only_id(emulator)
    daemon.kill()
    daemon.options["idle-stop"] = 0.3
    daemon.environment["DEEPINFRA_API_KEY"] = "second-key"
    with daemon.start().peer() as peer:
        ready(peer)
        item = mismatch(peer)[0]
        assert item["severity"] == "warning" and "default/default" in item["text"] and used in item["text"] and item["hint"]
        shown = peer.status()["sandboxes"][0]
        assert "another account" in shown["awake_because"] and shown["idle_s"] is None
        assert peer.status()["account"]["active"] == 0
        with pytest.raises(RpcFailure, match="account_mismatch"):
            peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
        assert emulator.sandbox(used)["state"] == "running" and emulator.count(STOP) == 0 == emulator.count(DELETE)
    daemon.stop()
    daemon.environment["DEEPINFRA_API_KEY"] = "test-key"
    with daemon.start().peer() as peer:
        ready(peer)
        assert not mismatch(peer)


def test_their_commands_are_not_asked_about_and_found_again_with_the_old_key(make_daemon: Make, emulator: Emulator) -> None:
    emulator.config(other_accounts="second-key")
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        name = peer.start("/bin/sh", "-c", "echo begun; until [ -e go ]; do sleep 0.05; done; echo done; exit 3")
        peer.output(name, 6)
    used = only_id(emulator)
    daemon.kill()
    daemon.environment["DEEPINFRA_API_KEY"] = "second-key"
    asked = emulator.count(EXEC)
    with daemon.start().peer() as peer:
        ready(peer)
        peer.attach(name)
        ended = peer.finish(name)
        assert (ended.reason, ended.returncode, ended.started) == ("lost", None, "unknown")
        assert ended.error["name"] == "outcome_unknown" and "another account" in ended.message
        assert emulator.count(EXEC) == asked
    daemon.stop()
    daemon.environment["DEEPINFRA_API_KEY"] = "test-key"
    with daemon.start().peer() as peer:
        ready(peer)
        (workspace(emulator) / "go").touch()
        peer.attach(name)
        ended = peer.finish(name)
        assert (ended.reason, ended.returncode, ended.stdout) == ("exited", 3, b"begun\ndone\n")
    assert emulator.sandbox(used)["state"] == "running"


def test_their_cost_ends_with_their_timeout(make_daemon: Make, emulator: Emulator) -> None:
    """Seen running two days ago, for the last time: an hour of it is counted, and nothing more an hour."""
    emulator.config(other_accounts="second-key")
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        peer.sh("true")
        wait_until(lambda: peer.status()["money"]["today_usd"] > 0, "it costs")
    daemon.stop()
    file = daemon.state_dir / "state.json"
    state = json.loads(file.read_text())
    before = state["ledger"]["total_usd"]
    for name in ("counted_to_ms", "seen_at_ms"):
        state["sandboxes"][0]["usage"][name] -= 2 * 86_400_000
    file.write_text(json.dumps(state))
    daemon.environment["DEEPINFRA_API_KEY"] = "second-key"
    with daemon.start().peer() as peer:
        ready(peer)
        found = peer.status()
        assert found["money"]["total_usd"] - before == pytest.approx(0.04, abs=0.001)  # an hour of medium
        assert found["money"]["rate_usd_per_hour"] == 0 and found["sandboxes"][0]["rate_usd_per_hour"] is None


def refused_once(peer: Peer, emulator: Emulator) -> None:
    """One answer says that the key is no good."""
    emulator.fault({"status": 401, "body": '{"detail": "x"}'}, method="GET", route="/v1/sandboxes/catalog")
    with pytest.raises(RpcFailure, match="unauthorized"):
        peer.call("plan.list")


def test_one_refusal_lets_no_other_account_in(daemon: Daemon, emulator: Emulator) -> None:
    emulator.config(other_accounts="second-key")
    with daemon.peer() as peer:
        peer.sh("true")
        refused_once(peer, emulator)
        with pytest.raises(RpcFailure, match="account_mismatch"):
            peer.call("account.set", {"api_key": "second-key"})
        assert not [item for item in peer.call("daemon.health")["health"] if item["severity"] == "error"]
        assert peer.sh("true").returncode == 0
    assert emulator.count(CREATE) == 1 and len(living(emulator)) == 1


def test_nor_does_one_that_cannot_be_asked_again(daemon: Daemon, emulator: Emulator) -> None:
    emulator.config(other_accounts="second-key")
    with daemon.peer() as peer:
        peer.sh("true")
        refused_once(peer, emulator)
        emulator.fault({"status": 500, "body": "{}"}, method="GET", route="/v1/sandboxes")
        with pytest.raises(RpcFailure, match="account_mismatch"):
            peer.call("account.set", {"api_key": "second-key"})


def test_a_key_that_was_withdrawn_while_nothing_went_on_gives_way_at_the_first_offer(daemon: Daemon, emulator: Emulator) -> None:
    emulator.config(other_accounts="second-key")
    with daemon.peer() as peer:
        ready(peer)
        emulator.fault({"status": 401, "body": '{"detail": "x"}'}, method="GET", route="/v1/sandboxes")
        assert peer.call("account.set", {"api_key": "second-key"})["configured"]
        assert peer.sh("true").returncode == 0


def test_what_waits_for_a_place_while_the_key_changes_makes_nothing_on_the_other_account(make_daemon: Make, emulator: Emulator) -> None:
    """And what one account says is not taken for the other's word."""
    emulator.config(other_accounts="second-key")
    daemon = make_daemon(max_active=1).start()
    other, third = ({"profile": "p", "task": task} for task in ("other", "third"))
    with daemon.peer() as peer, daemon.peer() as waiting:
        peer.sh("echo kept >file")
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})
        running = peer.start("/bin/sh", "-c", "echo up; exec sleep 1000", key=other)
        peer.output(running, 3)
        asked = [waiting.send("sandbox.ensure", {"key": key}) for key in (DEFAULT_KEY, third)]
        wait_until(lambda: waiting.notification("sandbox.progress")["text"].startswith("waiting for one of"), "they wait")
        emulator.fault({"status": 401, "body": '{"detail": "x"}'}, method="GET", route="/v1/sandboxes")
        assert peer.call("account.set", {"api_key": "second-key"})["configured"]
        with pytest.raises(RpcFailure, match="account_mismatch"):
            waiting.result(asked[0])
        assert waiting.result(asked[1])["created"]
        accounts = {one["state"]: one["account"] for one in emulator.sandboxes() if one["account"] != 0}
        assert accounts == {"running": 1} and emulator.count(DELETE) == 0
        shown = {one["key"]["task"]: one["awake_because"] for one in peer.status()["sandboxes"]}
        assert "another account" in shown["other"] and "another account" not in shown["third"]
    daemon.stop()
    daemon.environment["DEEPINFRA_API_KEY"] = "test-key"
    with daemon.start().peer() as peer:
        ready(peer)
        assert [item["text"] for item in mismatch(peer) if "third" in item["text"]]
        peer.call("sandbox.stop", {"key": other, "force": True})
        assert peer.sh("cat file").stdout == b"kept\n"


# -- the same account with a new key


@pytest.mark.parametrize("method", ["exec", "sandbox.stop", "sandbox.forget"])
def test_nobody_is_sent_away_before_it_is_known_whose_it_is(daemon: Daemon, emulator: Emulator, method: str) -> None:
    with daemon.peer() as peer:
        peer.sh("echo kept >file")
    daemon.stop()
    made_with_another_key(daemon)
    emulator.config(latency_ms=150)
    with daemon.start().peer() as peer:
        if method == "exec":
            assert peer.sh("cat file").stdout == b"kept\n"
        elif method == "sandbox.stop":
            peer.call(method, {"key": DEFAULT_KEY})
            assert emulator.sandbox(only_id(emulator))["state"] == "stopped"
        else:
            with pytest.raises(RpcFailure, match="invalid_params"):
                peer.call(method, {"key": DEFAULT_KEY})


def test_nor_is_an_ended_commands_output_given_away(daemon: Daemon, emulator: Emulator) -> None:
    """Asked for again just as the key was replaced."""
    emulator.config(more_keys="new-key", latency_ms=100)
    with daemon.peer() as peer:
        exec_id = peer.start("echo", "kept")
        peer.output(exec_id, 5)
        peer.notification("exec.exit", exec_id=exec_id)
    with daemon.peer() as peer:
        emulator.fault({"status": 401, "body": '{"detail": "x"}'}, method="GET", route="/v1/sandboxes")
        peer.call("account.set", {"api_key": "new-key"})
        peer.attach(exec_id)
        ended = peer.finish(exec_id)
        assert (ended.stdout, ended.returncode, ended.params["dropped_bytes"]) == (b"kept\n", 0, 0)


def test_a_key_that_is_refused_keeps_nobody_waiting(daemon: Daemon, emulator: Emulator) -> None:
    """Asking again is put off ever longer meanwhile."""
    with daemon.peer() as peer:
        peer.sh("true")
    daemon.stop()
    made_with_another_key(daemon)
    emulator.fault({"status": 401, "body": '{"detail": "bad key"}'}, times=0)
    with daemon.start().peer(limit_s=8) as peer:
        for _ in range(5):
            with pytest.raises(RpcFailure, match="unauthorized"):
                peer.call("sandbox.ensure", {"key": DEFAULT_KEY})


def test_where_that_cannot_be_learnt_this_is_said(daemon: Daemon, emulator: Emulator) -> None:
    with daemon.peer() as peer:
        peer.sh("true")
    daemon.stop()
    made_with_another_key(daemon)
    emulator.fault({"status": 500, "body": "{}"}, method="GET", route="/v1/sandboxes", times=0)
    with daemon.start().peer() as peer:
        with pytest.raises(RpcFailure, match="cloud_error") as refused:
            peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
        assert "listing the sandboxes" in refused.value.message and refused.value.error["data"]["retryable"]
        emulator.clear_faults()
        assert peer.sh("true").returncode == 0


def test_one_that_is_shown_vouches_for_all_of_the_old_key(daemon: Daemon, emulator: Emulator) -> None:
    """Also for one that the platform has deleted meanwhile: its key is usable again, and its loss is told."""
    other = {"profile": "default", "task": "other"}
    with daemon.peer() as peer:
        peer.sh("true")
        gone = only_id(emulator)
        peer.sh("echo kept >file", key=other)
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})
    daemon.stop()
    made_with_another_key(daemon)
    emulator.delete_sandbox(gone)
    with daemon.start().peer() as peer:
        ready(peer)
        assert not mismatch(peer)
        assert peer.sh("cat file", key=other).stdout == b"kept\n"
        ended = peer.sh("true")
        assert ended.returncode == 0 and "gone" in ended.message


def test_so_does_one_that_a_create_in_doubt_has_made(daemon: Daemon, emulator: Emulator) -> None:
    emulator.fault({"act_then_drop": True}, method="POST", route="/v1/sandboxes")
    emulator.fault({"status": 500, "body": "{}"}, method="GET", route="/v1/sandboxes", times=0)
    with daemon.peer() as peer:
        peer.send("sandbox.ensure", {"key": DEFAULT_KEY})
        wait_until(lambda: living(emulator), "it is made")
        daemon.kill()
    emulator.clear_faults()
    made_with_another_key(daemon)
    with daemon.start().peer() as peer:
        ready(peer)
        assert not mismatch(peer)
        assert peer.call("sandbox.get", {"key": DEFAULT_KEY})["sandbox"]["id"] == only_id(emulator)
        assert peer.status()["account"]["active"] == 1


def test_another_hosts_word_changes_nothing(make_daemon: Make, emulator: Emulator, tmp_path: pathlib.Path) -> None:
    """The sandboxes of the first are unknown there, which makes none of them gone."""
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        peer.sh("echo mine >file")
    daemon.stop()
    (tmp_path / "second").mkdir()
    with Emulator(tmp_path / "second", boot_ms=5) as second:
        daemon.environment["DEEPINFRA_BASE_URL"] = second.url
        with daemon.start().peer() as peer:
            ready(peer)
            with pytest.raises(RpcFailure, match="account_mismatch"):
                peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
            assert emulator.url in mismatch(peer)[0]["text"] and second.count(CREATE) == 0
        daemon.stop()
    daemon.environment["DEEPINFRA_BASE_URL"] = emulator.url
    with daemon.start().peer() as peer:
        assert peer.sh("cat file").stdout == b"mine\n"


def test_an_account_that_is_gone_can_be_given_up(make_daemon: Make, emulator: Emulator) -> None:
    """By name, and nothing of it is touched; what is of the account in use is not given up."""
    emulator.config(other_accounts="second-key")
    daemon = make_daemon().start()
    with daemon.peer() as peer:
        peer.sh("true")
        before = peer.call("sandbox.get", {"key": DEFAULT_KEY})["sandbox"]["generation"]
        with pytest.raises(RpcFailure, match="invalid_params"):
            peer.call("sandbox.forget", {"key": DEFAULT_KEY})
    used = only_id(emulator)
    daemon.stop()
    daemon.environment["DEEPINFRA_API_KEY"] = "second-key"
    with daemon.start().peer() as peer:
        ready(peer)
        with pytest.raises(RpcFailure, match="account_mismatch") as refused:
            peer.call("sandbox.ensure", {"key": DEFAULT_KEY})
        assert "--forget" in refused.value.error["data"]["hint"]
        done = daemon.cli("terminate", "--forget", used)
        assert (done.returncode, done.stdout.decode()) == (0, f"forgotten: {used} was not deleted, and is not looked after any more\n")
        assert not mismatch(peer) and peer.sh("true").generation > before
        with pytest.raises(RpcFailure, match="invalid_params"):
            peer.call("sandbox.forget", {"key": DEFAULT_KEY})
        wrong = daemon.cli("terminate", "--forget", "--force", used)
        assert wrong.returncode == 2 and b"nothing to force" in wrong.stderr
    assert emulator.sandbox(used)["state"] == "running" and emulator.count(DELETE) == 0


def made_with_another_key(daemon: Daemon) -> None:
    """What the state of a stopped daemon says."""
    file = daemon.state_dir / "state.json"
    state = json.loads(file.read_text())
    for record in state["sandboxes"]:
        record["fingerprint"] = "0123456789abcdef"
    file.write_text(json.dumps(state))
