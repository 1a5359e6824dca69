"""What the daemon keeps: its sandboxes, its instance id and its key, across restarts, crashes and damaged files; and what it
never lets out.
"""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
import stat
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import without_shim

KEY = DEFAULT_KEY
OTHER = {"profile": "default", "task": "other"}
CREATE = "POST /v1/sandboxes"
Make = Callable[..., Daemon]


def fingerprint(api_key: str) -> str:
    return hashlib.sha256(f"deepinfra-sandboxd key v1\n{api_key}".encode()).hexdigest()[:16]


def health(peer: Peer) -> dict[str, list[dict[str, Any]]]:
    """The health items by their code, once it has compared; daemon.status and daemon.health must tell the same."""
    wait_until(lambda: peer.status()["daemon"]["phase"] == "ready", "it has compared with the cloud")
    items: list[dict[str, Any]] = peer.call("daemon.health")["health"]
    assert peer.status()["health"] == items
    by_code: dict[str, list[dict[str, Any]]] = {}
    for item in items:
        by_code.setdefault(item["code"], []).append(item)
    return by_code


def start_refused(daemon: Daemon) -> str:
    """Starts a daemon that must give up by itself; returns what it said."""
    process = daemon.spawn()
    assert process.wait(15) not in (0, None)
    daemon.kill()
    return daemon.log()


def with_sandbox(daemon: Daemon, key: dict[str, str] = KEY) -> str:
    """A sandbox with a file in it; returns its id."""
    with daemon.peer() as peer:
        assert peer.sh("echo kept >/workspace/file", key=key).returncode == 0
        made: str = peer.call("sandbox.get", {"key": key})["sandbox"]["id"]
        return made


# -- restarts


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_sandboxes_outlive_the_daemon(daemon: Daemon, emulator: Emulator, how: str) -> None:
    first = with_sandbox(daemon)
    with daemon.peer() as peer:
        before = peer.call("sandbox.get", {"key": KEY})["sandbox"]
        instance = peer.hello()["instance"]
    getattr(daemon, how)()
    assert emulator.sandbox(first)["state"] == "running"
    daemon.start()
    with daemon.peer() as peer:
        assert peer.hello()["instance"] == instance
        assert peer.sh("cat /workspace/file").stdout == b"kept\n"
        after = peer.call("sandbox.get", {"key": KEY})["sandbox"]
        for field in ("id", "key", "plan", "persistent", "generation", "created_at"):
            assert after[field] == before[field]
        assert health(peer) == {}
    assert emulator.count(CREATE) == 1


def test_a_command_after_a_restart_is_still_one_request(daemon: Daemon, emulator: Emulator) -> None:
    with_sandbox(daemon)
    daemon.stop()
    daemon.start()
    with daemon.peer() as peer:
        wait_until(lambda: peer.status()["daemon"]["phase"] == "ready", "the daemon has looked at its sandboxes")
        emulator.reset_stats()
        assert peer.sh("true").returncode == 0
    assert emulator.count() == 1


def test_a_sandbox_stopped_while_the_daemon_was_away(daemon: Daemon, emulator: Emulator) -> None:
    first = with_sandbox(daemon)
    daemon.stop()
    emulator.stop_sandbox(first)
    daemon.start()
    with daemon.peer() as peer:
        done = peer.sh("cat /workspace/file")
        assert (done.stdout, done.generation) == (b"kept\n", 2)
        assert peer.call("sandbox.get", {"key": KEY})["sandbox"]["id"] == first


def test_a_sandbox_deleted_while_the_daemon_was_away(daemon: Daemon, emulator: Emulator) -> None:
    first = with_sandbox(daemon)
    daemon.stop()
    emulator.delete_sandbox(first)
    daemon.start()
    with daemon.peer() as peer:
        done = peer.sh("cat /workspace/file")
        assert done.returncode == 1 and done.generation == 2
        assert peer.call("sandbox.get", {"key": KEY})["sandbox"]["id"] != first


def test_a_daemon_killed_in_the_middle_of_a_create_makes_no_second_sandbox(daemon: Daemon, emulator: Emulator) -> None:
    emulator.fault({"latency_after_ms": 600000}, method="POST", route="/v1/sandboxes")  # made, and the answer never comes
    with daemon.peer() as peer:
        peer.send("sandbox.ensure", {"key": KEY})
        wait_until(lambda: emulator.stats()["sandboxes_created"] == 1, "the sandbox is made")
    daemon.kill()
    daemon.start()
    with daemon.peer() as peer:
        made = peer.call("sandbox.ensure", {"key": KEY})
        assert made["sandbox"]["id"] == emulator.sandboxes()[0]["sandbox_id"]
    assert emulator.stats()["sandboxes_created"] == 1


def test_what_a_crash_left_half_written_is_ignored(daemon: Daemon, emulator: Emulator) -> None:
    first = with_sandbox(daemon)
    daemon.kill()
    for name in ("state.json", "instance", "api-key", "socket"):
        (daemon.state_dir / f"{name}.tmp").write_text("{half")
    daemon.start()
    with daemon.peer() as peer:
        assert peer.sh("cat /workspace/file").stdout == b"kept\n"
        assert peer.call("sandbox.get", {"key": KEY})["sandbox"]["id"] == first
        assert health(peer) == {}


# -- damaged files


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "truncated": lambda text: text[: len(text) // 2],
    "no last byte": lambda text: text.rstrip()[:-1],
    "not JSON": lambda _: b"# my sandboxes\n",
    "binary": lambda _: bytes(range(256)) * 16,
    "zeros": lambda text: b"\0" * len(text),
    "a list": lambda _: b"[]",
    "no version": lambda text: json.dumps({"sandboxes": json.loads(text)["sandboxes"]}).encode(),
    "version as text": lambda text: json.dumps({**json.loads(text), "version": "1"}).encode(),
    "version 0": lambda text: json.dumps({**json.loads(text), "version": 0}).encode(),
    "newer": lambda text: json.dumps({**json.loads(text), "version": 2, "more": {}}).encode(),
    "far newer": lambda text: json.dumps({**json.loads(text), "version": 2**62}).encode(),
    "no sandboxes": lambda _: b'{"version":1}',
    "too deep": lambda _: b"[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_state_that_cannot_be_read_is_set_aside_and_said_so(daemon: Daemon, emulator: Emulator, damage: str) -> None:
    with_sandbox(daemon)
    daemon.stop()
    state = daemon.state_dir / "state.json"
    broken = DAMAGE[damage](state.read_bytes())
    state.write_bytes(broken)
    daemon.start()
    kept = daemon.state_dir / "state.json.bad"
    assert kept.read_bytes() == broken
    assert not state.exists() or json.loads(state.read_text())["sandboxes"] == []  # the daemon's own by now
    with daemon.peer() as peer:
        said = health(peer)["state_damaged"]
        assert len(said) == 1 and said[0]["severity"] == "warning" and said[0]["hint"]
        assert "state.json" in said[0]["text"] and str(kept) in said[0]["text"]
        if "newer" in damage:
            assert "newer" in said[0]["text"]
        assert peer.status()["sandboxes"] == []
        assert peer.run("echo", "served").stdout == b"served\n"
    assert re.search(rf" error +state.json .*{re.escape(str(kept))}", daemon.log())
    # The file is not looked at again, and what was made since is kept.
    daemon.stop()
    daemon.start()
    with daemon.peer() as peer:
        assert "state_damaged" not in health(peer)
        assert len(peer.status()["sandboxes"]) == 1
    assert kept.read_bytes() == broken


def test_an_older_file_set_aside_is_never_overwritten(daemon: Daemon) -> None:
    for number in (1, 2, 3):
        daemon.stop()
        (daemon.state_dir / "state.json").parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        (daemon.state_dir / "state.json").write_text(f"broken {number}")
        daemon.start()
    kept = sorted(path.name for path in daemon.state_dir.glob("state.json.bad*"))
    assert kept == ["state.json.bad", "state.json.bad.2", "state.json.bad.3"]
    assert [(daemon.state_dir / name).read_text() for name in kept] == ["broken 1", "broken 2", "broken 3"]


@pytest.mark.parametrize("damage", [
    lambda record: record.pop("sandbox_id"),
    lambda record: record.update(generation="two"),
    lambda record: record.update(generation=-1),
    lambda record: record.update(profile=None),
    lambda record: record.update(persistent=0),
    lambda record: record.update(created_at=1e300),
])
def test_one_bad_record_takes_no_other_with_it(daemon: Daemon, damage: Callable[[dict[str, Any]], Any]) -> None:
    ids = {key["task"]: with_sandbox(daemon, key) for key in (KEY, OTHER)}
    daemon.stop()
    state = daemon.state_dir / "state.json"
    content = json.loads(state.read_text())
    assert [record["task"] for record in content["sandboxes"]] == ["default", "other"]
    damage(content["sandboxes"][0])
    state.write_text(json.dumps(content))
    before = state.read_bytes()
    daemon.start()
    with daemon.peer() as peer:
        assert [each["id"] for each in peer.status()["sandboxes"]] == [ids["other"]]
        assert peer.sh("cat /workspace/file", key=OTHER).stdout == b"kept\n"
        said = health(peer)["state_damaged"]
        assert len(said) == 1 and "record 0" in said[0]["text"]
        kept = daemon.state_dir / "state.json.partly-bad"
        assert str(kept) in said[0]["text"]
        assert kept.read_bytes() == before and stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert "record 0" in daemon.log()
        assert peer.run("echo", "served").stdout == b"served\n"  # the key of the bad record is free


def test_records_that_are_no_objects(daemon: Daemon) -> None:
    first = with_sandbox(daemon)
    daemon.stop()
    state = daemon.state_dir / "state.json"
    content = json.loads(state.read_text())
    content["sandboxes"] = [None, 5, [], *content["sandboxes"], "x", content["sandboxes"][0]]  # the last one comes twice
    state.write_text(json.dumps(content))
    daemon.start()
    with daemon.peer() as peer:
        assert [each["id"] for each in peer.status()["sandboxes"]] == [first]
        assert len(health(peer)["state_damaged"]) == 5


@pytest.mark.parametrize("kind", ["directory", "fifo"])
def test_a_state_that_is_no_file_is_not_guessed_at(make_daemon: Make, emulator: Emulator, kind: str) -> None:
    """Going on would mean to forget what is there."""
    daemon = make_daemon()
    daemon.state_dir.mkdir(mode=0o700)
    path = daemon.state_dir / "state.json"
    path.mkdir() if kind == "directory" else os.mkfifo(path)
    said = start_refused(daemon)
    assert str(path) in said and "regular file" in said
    assert emulator.count() == 0


# -- instance


def instance_of(daemon: Daemon) -> str:
    with daemon.peer() as peer:
        told: str = peer.hello()["instance"]
        return told


def test_the_instance_id_outlives_the_state(daemon: Daemon, emulator: Emulator) -> None:
    first = instance_of(daemon)
    made = with_sandbox(daemon)
    assert emulator.sandbox(made)["tags"]["sandboxd_instance"] == first
    daemon.stop()
    (daemon.state_dir / "state.json").unlink()
    daemon.start()
    assert instance_of(daemon) == first


@pytest.mark.parametrize("damage", ["", "garbage\n", "0123\n", "x" * 100_000])
def test_an_unreadable_instance_id_is_replaced_and_said_so(daemon: Daemon, damage: str) -> None:
    first = instance_of(daemon)
    made = with_sandbox(daemon)
    daemon.stop()
    file = daemon.state_dir / "instance"
    file.write_text(damage)
    daemon.start()
    second = instance_of(daemon)
    assert second != first
    kept = daemon.state_dir / "instance.bad"
    assert kept.read_text() == damage
    with daemon.peer() as peer:
        assert any(str(kept) in each["text"] for each in health(peer)["state_damaged"])
        # The records are of this machine: what they name is still ours.
        assert [each["id"] for each in peer.status()["sandboxes"]] == [made]
    assert str(kept) in daemon.log()


def test_a_home_cloned_to_another_machine_leaves_the_sandboxes_to_the_first(daemon: Daemon, emulator: Emulator) -> None:
    """Two daemons with one state would stop, and delete, each other's sandboxes."""
    first = instance_of(daemon)
    made = with_sandbox(daemon)
    daemon.stop()
    file = daemon.state_dir / "instance"
    cloned = f"{first} {'0' * 32}\n"  # written on a machine of another id
    file.write_text(cloned)
    state = (daemon.state_dir / "state.json").read_bytes()
    daemon.start()
    assert instance_of(daemon) != first
    assert (daemon.state_dir / "instance.bad").read_text() == cloned
    assert (daemon.state_dir / "state.json.bad").read_bytes() == state
    with daemon.peer() as peer:
        assert peer.status()["sandboxes"] == []
        assert any("machine" in each["text"] for each in health(peer)["state_damaged"])
        assert peer.sh("cat /workspace/file").returncode == 1  # it got one of its own
        for method in ("sandbox.stop", "sandbox.terminate"):
            with pytest.raises(RpcFailure) as refused:
                peer.call(method, {"id": made})
            assert refused.value.name == "sandbox_not_found"
    assert emulator.sandbox(made)["state"] == "running"
    assert "machine" in daemon.log()


# -- permissions


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes_below(directory: pathlib.Path) -> dict[str, str]:
    found = {}
    for path in [directory, *sorted(directory.rglob("*"))]:
        found[str(path.relative_to(directory.parent))] = oct(stat.S_IMODE(path.lstat().st_mode))
    return found


def test_nobody_else_can_read_anything(emulator: Emulator, tmp_path: pathlib.Path, open_umask: None) -> None:
    daemon = Daemon(tmp_path, emulator.url, None)
    deep = tmp_path / "a" / "b"
    daemon.state_dir, daemon.socket = deep / "state", tmp_path / "c" / "d" / "rpc.sock"
    daemon.environment["DEEPINFRA_SANDBOXD_STATE_DIR"] = str(daemon.state_dir)
    daemon.environment["DEEPINFRA_SANDBOXD_SOCKET"] = str(daemon.socket)
    with daemon:
        with daemon.peer() as peer:
            peer.call("account.set", {"api_key": "test-key"})
        with_sandbox(daemon)
        daemon.stop()
        (daemon.state_dir / "state.json").write_text("broken")
        (daemon.state_dir / "instance").write_text("broken")
        os.chmod(daemon.state_dir / "state.json", 0o600)
        os.chmod(daemon.state_dir / "instance", 0o600)
        daemon.start()
        with_sandbox(daemon)
        seen = {**modes_below(tmp_path / "a"), **modes_below(tmp_path / "c")}
    names = {pathlib.Path(name).name for name in seen}
    assert names >= {"lock", "socket", "state.json", "state.json.bad", "instance", "instance.bad", "api-key", "rpc.sock"}
    directories = {"a", "a/b", "a/b/state", "c", "c/d"}
    assert {name: mode for name, mode in seen.items() if name in directories} == dict.fromkeys(sorted(directories), "0o700")
    assert {mode for name, mode in seen.items() if name not in directories} == {"0o600"}, seen


def test_the_socket_is_ours_only(daemon: Daemon) -> None:
    assert instance_of(daemon)  # it serves: all its files are there
    status = daemon.socket.lstat()
    assert stat.S_ISSOCK(status.st_mode) and stat.S_IMODE(status.st_mode) == 0o600
    assert stat.S_IMODE(daemon.socket.parent.stat().st_mode) == 0o700
    assert (daemon.state_dir / "socket").read_text() == f"{daemon.socket}\n"


@pytest.mark.parametrize("which", ["state", "run"])
def test_a_directory_open_to_others_is_refused_with_the_remedy(make_daemon: Make, emulator: Emulator, which: str) -> None:
    daemon = make_daemon()
    directory = daemon.state_dir if which == "state" else daemon.socket.parent
    directory.mkdir(parents=True)
    directory.chmod(0o755)
    said = start_refused(daemon)
    assert f"chmod 700 {directory}" in said
    assert oct(directory.stat().st_mode & 0o777) == "0o755"
    directory.chmod(0o700)
    assert instance_of(daemon.start())


# -- a disk that takes nothing


def may_mount() -> bool:
    probe = subprocess.run(["unshare", "-m", "--propagation", "private", "mount", "-t", "tmpfs", "none", "/mnt"],
                           capture_output=True, check=False)
    return probe.returncode == 0


def on_small_disk(make_daemon: Make, prepare: str = "") -> Daemon:
    """A daemon whose state directory is a tmpfs of 64 KiB that only it sees; `prepare` runs in that directory first."""
    if not may_mount():
        pytest.skip("a private mount namespace with a tmpfs takes root")
    daemon = make_daemon()
    daemon.state_dir.mkdir(mode=0o700)
    script = f'mount -t tmpfs -o size=64k,mode=700 small "$0" && cd "$0" && {{ {prepare or "true"}; }} && cd / && exec "$@"'
    daemon.prefix = ("unshare", "-m", "--propagation", "private", "sh", "-c", script, str(daemon.state_dir))
    return daemon


def inside(daemon: Daemon) -> pathlib.Path:
    """The state directory as that daemon sees it."""
    return pathlib.Path(f"/proc/{daemon.pid}/root{daemon.state_dir}")


@pytest.mark.parametrize("prepare, why", [
    ('mount -o remount,ro "$0"', "Read-only file system"),
    ("head -c 1000000 /dev/zero >filler 2>/dev/null || true", "No space left on device"),
])
def test_a_state_directory_that_takes_nothing_is_a_clear_error_at_the_start(make_daemon: Make, emulator: Emulator, prepare: str,
                                                                             why: str) -> None:
    daemon = on_small_disk(make_daemon, prepare)
    said = start_refused(daemon)
    assert why in said and str(daemon.state_dir) in said
    assert not daemon.socket.exists()
    assert emulator.count() == 0


def test_a_disk_that_fills_up_later_stops_new_sandboxes_only(make_daemon: Make, emulator: Emulator) -> None:
    daemon = on_small_disk(make_daemon).start()
    first = with_sandbox(daemon)
    filler = inside(daemon) / "filler"
    with open(filler, "wb") as file, pytest.raises(OSError):
        while True:
            os.write(file.fileno(), b"\0" * 4096)
    with daemon.peer() as peer:
        assert peer.sh("cat /workspace/file").stdout == b"kept\n"  # what is there still works
        with pytest.raises(RpcFailure) as refused:
            peer.call("sandbox.ensure", {"key": OTHER})
        assert "No space left on device" in refused.value.message and "nothing was created" in refused.value.message
        assert "state directory" in refused.value.hint
        failed = peer.run("true", key=OTHER)
        assert (failed.reason, failed.started, failed.returncode) == ("failed", "no", None)
        assert emulator.count(CREATE) == 1
        assert "No space left on device" in health(peer)["state_unwritable"][0]["text"]
        assert [each["id"] for each in peer.status()["sandboxes"]] == [first]
        filler.unlink()
        assert peer.call("sandbox.ensure", {"key": OTHER})["created"] is True
        assert peer.run("true", key=OTHER).returncode == 0
        assert health(peer) == {}
    content = json.loads((inside(daemon) / "state.json").read_text())
    assert [record["task"] for record in content["sandboxes"]] == ["default", "other"]


# -- the key


def test_a_daemon_without_a_key_says_so_and_does_nothing(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(api_key=None).start()
    with daemon.peer(hello=False) as peer:
        assert peer.hello()["account"] == {"configured": False, "fingerprint": None}
        item = health(peer)["not_configured"][0]
        assert item["severity"] == "error" and "DEEPINFRA_API_KEY" in item["hint"]
        for method, params in [("exec.start", {"exec_id": "e", "key": KEY, "argv": ["true"]}), ("sandbox.ensure", {"key": KEY}),
                               ("plan.list", {})]:
            with pytest.raises(RpcFailure) as refused:
                peer.call(method, params)
            assert refused.value.name == "not_configured"
        assert peer.status()["sandboxes"] == [] and peer.call("exec.list") == {"execs": []}
    assert emulator.count() == 0


def test_a_key_handed_over_is_kept_and_used_after_a_restart(make_daemon: Make) -> None:
    daemon = make_daemon(api_key=None).start()
    kept = daemon.state_dir / "api-key"
    with daemon.peer() as peer:
        assert peer.call("account.set", {"api_key": "test-key"}) == {"configured": True, "fingerprint": fingerprint("test-key")}
        assert peer.run("echo", "works").stdout == b"works\n"
        assert health(peer) == {}
    assert kept.read_text() == "test-key\n" and stat.S_IMODE(kept.stat().st_mode) == 0o600
    for how in ("stop", "kill"):
        getattr(daemon, how)()
        daemon.start()
        with daemon.peer(hello=False) as peer:
            assert peer.hello()["account"] == {"configured": True, "fingerprint": fingerprint("test-key")}
            assert peer.run("echo", "still works").stdout == b"still works\n"
            assert len(peer.status()["sandboxes"]) == 1


def test_a_wrong_key_is_refused_and_not_kept(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(api_key=None).start()
    with daemon.peer() as peer:
        with pytest.raises(RpcFailure) as refused:
            peer.call("account.set", {"api_key": "wrong-key"})
        assert refused.value.name == "unauthorized" and "wrong-key" not in str(refused.value.error)
        assert peer.status()["account"]["configured"] is False
        assert not (daemon.state_dir / "api-key").exists()
        peer.call("account.set", {"api_key": "test-key"})


def test_a_key_that_cannot_be_tried_is_refused_and_not_kept(make_daemon: Make, emulator: Emulator) -> None:
    emulator.config(accept_mode="refuse")
    daemon = make_daemon(api_key=None).start()
    with daemon.peer() as peer:
        with pytest.raises(RpcFailure) as refused:
            peer.call("account.set", {"api_key": "test-key"})
        assert refused.value.name == "cloud_unreachable" and refused.value.retryable
        assert not (daemon.state_dir / "api-key").exists()
        emulator.config(accept_mode="normal")
        peer.call("account.set", {"api_key": "test-key"})


@pytest.mark.parametrize("bad", ["", " ", "two words", "line\n", "käse", "x" * 4097, "tab\t"])
def test_a_key_that_cannot_be_one_is_refused_unasked(make_daemon: Make, emulator: Emulator, bad: str) -> None:
    daemon = make_daemon(api_key=None).start()
    with daemon.peer() as peer:
        peer.send_wrong({"jsonrpc": "2.0", "id": "k", "method": "account.set", "params": {"api_key": bad}})
        error = peer.answer("k")["error"]  # type: ignore[arg-type]
        assert error["data"]["name"] == "invalid_params"
        assert len(bad) < 2 or bad not in error["message"]
    assert emulator.count() == 0


def test_what_could_not_be_written_is_written_as_soon_as_that_can_be(daemon: Daemon, emulator: Emulator) -> None:
    """Without anything else happening."""
    with daemon.peer() as peer:
        peer.sh("true")
        in_the_way = daemon.state_dir / "state.json.tmp"
        in_the_way.mkdir()
        peer.call("sandbox.stop", {"key": DEFAULT_KEY})

        def troubles() -> list[str]:
            return [item["code"] for item in peer.call("daemon.health")["health"]]

        assert troubles() == ["state_unwritable"]
        in_the_way.rmdir()
        wait_until(lambda: not troubles(), "it is written")
    (record,) = json.loads((daemon.state_dir / "state.json").read_text())["sandboxes"]
    assert record["state"] == "stopped"


def test_the_key_in_use_is_answered_well_and_a_different_one_refused(daemon: Daemon, emulator: Emulator) -> None:
    emulator.config(other_accounts="second-key")
    with daemon.peer() as peer:
        assert peer.call("account.set", {"api_key": "test-key"})["fingerprint"] == fingerprint("test-key")
        assert emulator.count() == 0
        for different in ("second-key", "wrong-key"):
            with pytest.raises(RpcFailure) as refused:
                peer.call("account.set", {"api_key": different})
            assert refused.value.name == "account_mismatch"
            assert fingerprint("test-key") in refused.value.message and different not in str(refused.value.error)
        assert peer.status()["account"]["fingerprint"] == fingerprint("test-key")
    assert emulator.count("GET /v1/sandboxes") == emulator.count() == 2  # whether the one in use is good, each time


def test_of_two_keys_handed_over_at_once_one_wins(make_daemon: Make, emulator: Emulator) -> None:
    emulator.config(other_accounts="second-key", latency_ms=100)
    daemon = make_daemon(api_key=None).start()
    with daemon.peer() as one, daemon.peer() as two:
        first = one.send("account.set", {"api_key": "test-key"})
        second = two.send("account.set", {"api_key": "second-key"})
        answers = {"test-key": one.answer(first), "second-key": two.answer(second)}
        won = [key for key, answer in answers.items() if "result" in answer]
        lost = [answer["error"]["data"]["name"] for answer in answers.values() if "error" in answer]
        assert len(won) == 1 and lost == ["account_mismatch"]
        assert one.status()["account"]["fingerprint"] == fingerprint(won[0])
        assert (daemon.state_dir / "api-key").read_text() == f"{won[0]}\n"


def test_sandboxes_of_another_account_are_left_alone(make_daemon: Make, emulator: Emulator) -> None:
    emulator.config(other_accounts="second-key")
    daemon = make_daemon().start()
    made = with_sandbox(daemon)
    daemon.stop()
    daemon.environment["DEEPINFRA_API_KEY"] = "second-key"
    daemon.start()
    with daemon.peer() as peer:
        for method in ("sandbox.ensure", "sandbox.start", "sandbox.stop", "sandbox.terminate"):
            with pytest.raises(RpcFailure) as refused:
                peer.call(method, {"key": KEY})
            assert refused.value.name == "account_mismatch"
            assert refused.value.error["data"]["sandbox_id"] == made
        assert peer.run("true", key=OTHER).returncode == 0
    daemon.stop()
    daemon.environment["DEEPINFRA_API_KEY"] = "test-key"
    daemon.start()
    with daemon.peer() as peer:
        assert peer.sh("cat /workspace/file").stdout == b"kept\n"
    assert emulator.sandbox(made)["state"] == "running"


# -- what never gets out


CANARY = "canary-5up3r-53cr3t"


class Ears(Peer):
    """A connection that remembers every byte it received."""

    heard = b""

    def read_line(self) -> bytes:
        line = super().read_line()
        self.heard += line
        return line


@pytest.mark.parametrize("source", ["environment", "account.set", "key file", "credentials"])
def test_the_key_appears_nowhere(tmp_path: pathlib.Path, source: str) -> None:
    """Not in the log at its loudest, the command line, answers, or files but its own; whatever the platform says."""
    with Emulator(tmp_path, api_key=CANARY, boot_ms=5) as emulator:
        daemon = Daemon(tmp_path, emulator.url, CANARY if source == "environment" else None, log_level="trace")
        if source == "key file":
            (tmp_path / "key").write_text(CANARY + "\n")
            (tmp_path / "key").chmod(0o600)
            daemon.options["api-key-file"] = tmp_path / "key"
        if source == "credentials":
            (tmp_path / "deepinfra-api-key").write_text(CANARY)
            daemon.environment["CREDENTIALS_DIRECTORY"] = str(tmp_path)
        with daemon:
            peer = Ears(daemon.socket)
            peer.hello()
            if source == "account.set":
                peer.call("account.set", {"api_key": CANARY})
                with pytest.raises(RpcFailure):
                    peer.call("account.set", {"api_key": CANARY + "-other"})
            assert peer.status()["account"]["fingerprint"] == fingerprint(CANARY)
            assert peer.run("env").returncode == 0  # nor in the sandbox
            echo = f"bad header: Authorization: Bearer {CANARY}"
            bodies = [json.dumps({"error": echo}), json.dumps({"error": {"message": echo}}), json.dumps({"detail": {"error": echo}}),
                      f"<html><body>{echo}</body></html>", echo]
            for status, body in [(code, body) for code in (400, 403, 404, 409, 500, 503, 401) for body in bodies[:: 1 if code == 400 else 3]]:
                emulator.fault({"status": status, "body": body}, method="GET", route="/v1/sandboxes/catalog")
                with pytest.raises(RpcFailure) as failed:
                    peer.call("plan.list")
                assert CANARY not in str(failed.value.error)
            emulator.clear_faults()
            peer.call("account.set", {"api_key": CANARY})  # refused so often, it is not tried again by itself for a while
            without_shim(emulator)  # whose word would count, not the platform's
            assert peer.run("true", key={"profile": "default", "task": "attached"}).returncode == 0
            for action in ({"status": 400, "body": bodies[0]}, {"terminal": json.dumps({"error": echo}) + "\n"},
                           {"terminal": f"{echo}\n"}, {"terminal": json.dumps({"surprise": echo}) + "\n"}):
                emulator.clear_faults()
                emulator.fault_exec(action)
                assert peer.run("true", key={"profile": "default", "task": "attached"}).reason in ("failed", "lost")
                emulator.fault_exec(action)
                peer.run("true")
            emulator.clear_faults()
            peer.status()
            peer.call("exec.list")
            peer.send_wrong({"jsonrpc": "2.0", "id": "x", "method": "account.set", "params": {"api_key": CANARY, "extra": 1}})
            assert "error" in peer.answer("x")  # type: ignore[arg-type]
            for verb in (["status"], ["status", "--json"], ["list"], ["plans"], ["exec", "--", "true"]):
                done = daemon.cli(*verb)
                assert CANARY.encode() not in done.stdout + done.stderr
            assert CANARY.encode() not in peer.heard and len(peer.heard) > 5000
            assert CANARY.encode() not in pathlib.Path(f"/proc/{daemon.pid}/cmdline").read_bytes()
            peer.close()
        assert CANARY not in daemon.log() and "ready" in daemon.log()
        holders = [path.name for path in daemon.directory.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
        assert holders == (["api-key"] if source == "account.set" else [])


@pytest.mark.parametrize("how", ["environment", "key file"])
def test_a_key_that_is_refused_at_the_start_is_not_repeated(tmp_path: pathlib.Path, emulator: Emulator, how: str) -> None:
    daemon = Daemon(tmp_path, emulator.url, f"{CANARY} two" if how == "environment" else None)
    if how == "key file":
        (tmp_path / "key").write_text(f"{CANARY} two")
        (tmp_path / "key").chmod(0o600)
        daemon.options["api-key-file"] = tmp_path / "key"
    said = start_refused(daemon)
    assert "API key" in said and CANARY not in said


@pytest.mark.parametrize("how, said", [("open", "chmod 600"), ("directory", "not a regular file"), ("absent", "there is no file")])
def test_a_key_file_that_is_not_fit_is_refused(tmp_path: pathlib.Path, emulator: Emulator, how: str, said: str) -> None:
    file = tmp_path / "key"
    if how == "directory":
        file.mkdir(mode=0o700)
    elif how == "open":
        file.write_text("test-key")
        file.chmod(0o640)
    daemon = Daemon(tmp_path, emulator.url, None, api_key_file=file)
    told = start_refused(daemon)
    assert said in told and str(file) in told


FULL = 'cp -a "$0" "$0.on" && mount -t tmpfs -o size=1m,mode=700 none "$0" && cp -a "$0.on/." "$0" && ! cat /dev/zero >"$0/fill" && exec "$@"'


def test_a_full_disk_keeps_no_daemon_from_stopping_what_is_idle(make_daemon: Make, emulator: Emulator) -> None:
    daemon = make_daemon(idle_stop=1).start()
    with_sandbox(daemon)
    daemon.kill()
    rights = () if os.geteuid() == 0 else ("-r",)
    probe = subprocess.run(["unshare", *rights, "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False)
    if probe.returncode != 0:
        pytest.skip(f"no private mounts here: {probe.stderr.decode()}")
    daemon.prefix = ("unshare", *rights, "-m", "sh", "-c", FULL, str(daemon.state_dir))
    daemon.start()
    wait_until(lambda: [one["state"] for one in emulator.sandboxes()] == ["stopped"], "the idle sandbox is stopped")
    with daemon.peer() as peer:
        assert peer.status()["daemon"]["pid"] == daemon.pid
        assert "state_unwritable" in health(peer)


def test_a_state_of_an_older_daemon_is_read(daemon: Daemon, emulator: Emulator) -> None:
    """As the first version wrote it: without costs, owners and doubts."""
    first = with_sandbox(daemon)
    daemon.stop()
    file = daemon.state_dir / "state.json"
    fields = ("profile", "task", "persistent", "plan", "base_url", "fingerprint", "creation_id", "attempt", "create_pending", "sandbox_id",
              "state", "generation", "created_at")
    records = json.loads(file.read_text())["sandboxes"]
    file.write_text(json.dumps({"version": 1, "sandboxes": [{name: record[name] for name in fields} for record in records]}))
    daemon.start()
    with daemon.peer() as peer:
        assert health(peer) == {}
        assert peer.sh("cat /workspace/file").stdout == b"kept\n"
        assert peer.call("sandbox.get", {"key": KEY})["sandbox"]["id"] == first
