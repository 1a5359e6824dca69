"""Every operation of a sandbox's life, as something that a daemon can die in. Why these are all of them: test_kill_points.py."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from support.emulator import wait_until
from support.kill_table import KEYS, Act, Operation, Stage
from support.rpc import DEFAULT_KEY, Peer, RpcFailure
from support.scenes import CATALOG, CREATE, DELETE, EXEC, GET, LIST, START, STOP, holder

KEY = {"key": DEFAULT_KEY}
SESSIONS_CALL: dict[str, Any] = {**KEY, "persistent": False}
OTHER = {"profile": "p", "task": "other"}
ODD_KEY = {"profile": "/srv/agents/ada", "task": "build"}  # that no tag holds
ANOTHERS = "0123456789abcdef"  # fingerprint of a key that is not used any more
RETENTION_GAP_S = 10.3  # between two listings that say so (core/retention.hpp), the first as soon as it starts
MOST_KEYS = 4096  # in the key book (store/key_book.hpp)


# -- how it is made to happen


def call(method: str, params: dict[str, Any], *, fails: str | None = None) -> Act:
    """A request, and its answer, which `fails` names if it is an error."""

    def act(stage: Stage, peer: Peer) -> Iterator[None]:
        del stage
        asked = peer.send(method, params)
        while (answer := _next(peer, lambda: peer.answer(asked))) is None:
            yield
        if "error" in answer and answer["error"]["data"]["name"] != fails:
            raise RpcFailure(answer["error"])

    return act


def _next(peer: Peer, read: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """What is there to be read, if it comes at once."""
    limit = peer.socket.gettimeout()
    peer.socket.settimeout(0.02)
    try:
        return read()
    except TimeoutError:
        return None
    finally:
        peer.socket.settimeout(limit)


def by_itself(over: Callable[[Stage, Peer], bool]) -> Act:
    """Nobody asks for it."""

    def act(stage: Stage, peer: Peer) -> Iterator[None]:
        while not over(stage, peer):
            yield

    return act


def in_turn(*acts: Act) -> Act:
    def act(stage: Stage, peer: Peer) -> Iterator[None]:
        for each in acts:
            yield from each(stage, peer)

    return act


def is_ready(stage: Stage, peer: Peer) -> bool:
    del stage
    return bool(peer.status()["daemon"]["phase"] == "ready")


def orphan_is_known(stage: Stage, peer: Peer) -> bool:
    return stage.our_one() in [one["id"] for one in peer.status()["orphans"]]


def written(state: str, task: str = "default") -> Callable[[Stage, Peer], bool]:
    """The record of that task says so, on disk."""

    def over(stage: Stage, peer: Peer) -> bool:
        peer.call("daemon.ping")  # as nobody else notices that it is dead
        return state in [one["state"] for one in stage.records() if one["task"] == task]

    return over


def on_disk(holds: Callable[[Stage], bool]) -> Callable[[Stage, Peer], bool]:
    def over(stage: Stage, peer: Peer) -> bool:
        peer.call("daemon.ping")
        return holds(stage)

    return over


def nobody_but_the_other_holds_it(stage: Stage) -> bool:
    assert stage.other is not None
    return [one["pid"] for one in stage.records()[0]["holders"]] == [stage.other.pid]


def prices_are_known(stage: Stage) -> bool:
    return bool(stage.state()["prices"]["usd_per_hour"])


def looks_again_until(over: Callable[[Stage, Peer], bool]) -> Act:
    """The daemon is told to compare once more when it may act upon that, which by itself it would do a minute later."""

    def act(stage: Stage, peer: Peer) -> Iterator[None]:
        due = time.monotonic() + RETENTION_GAP_S
        while not over(stage, peer):
            if time.monotonic() >= due:
                due += 1
                peer.call("account.set", {"api_key": KEYS["api_key"]})
            yield

    return act


def runs_a_command(stage: Stage, peer: Peer) -> Iterator[None]:
    """One that has its sandbox made."""
    params = {"exec_id": "command", "key": DEFAULT_KEY, "argv": ["true"]}
    yield from call("exec.start", params)(stage, peer)
    while (ended := _next(peer, lambda: peer.notification("exec.exit", exec_id="command"))) is None:
        yield
    assert ended["returncode"] == 0, ended


def adopts(stage: Stage, peer: Peer) -> Iterator[None]:
    yield from call("orphan.adopt", {"id": stage.our_one(), "key": DEFAULT_KEY})(stage, peer)


def deletes_the_orphan(stage: Stage, peer: Peer) -> Iterator[None]:
    yield from call("orphan.terminate", {"id": stage.our_one()})(stage, peer)


# -- what must be there


def nothing(stage: Stage, peer: Peer) -> None:
    del stage, peer


def running(stage: Stage, peer: Peer) -> None:
    stage.makes_file(peer)


def stopped(stage: Stage, peer: Peer) -> None:
    running(stage, peer)
    peer.call("sandbox.stop", KEY)


def deleted_elsewhere(stage: Stage, peer: Peer) -> None:
    stopped(stage, peer)
    stage.emulator.delete_sandbox(peer.call("sandbox.get", KEY)["sandbox"]["id"])


def for_one_session(stage: Stage, peer: Peer) -> None:
    del stage
    peer.call("sandbox.ensure", SESSIONS_CALL)


def used_by_one_session(stage: Stage, peer: Peer) -> None:
    for_one_session(stage, peer)
    stage.makes_file(peer)


def of_one_session_and_stopped(stage: Stage, peer: Peer) -> None:
    for_one_session(stage, peer)
    peer.call("sandbox.stop", KEY)


def held_by_another(stage: Stage, peer: Peer) -> None:
    running(stage, peer)
    other = stage.other = stage.cleanup.enter_context(holder(stage.daemon, persistent=True))
    wait_until(lambda: other.pid in [one["pid"] for one in stage.records()[0]["holders"]], "it is written down")


def of_another_session(stage: Stage, peer: Peer) -> None:
    del peer
    stage.other = stage.cleanup.enter_context(holder(stage.daemon, persistent=False))


def of_a_session_that_is_over(stage: Stage, peer: Peer) -> None:
    of_another_session(stage, peer)
    session_ends(stage)


def session_ends(stage: Stage) -> None:
    assert stage.other is not None
    stage.other.kill()
    stage.other.wait()


def old_and_new(stage: Stage, peer: Peer) -> None:
    stopped(stage, peer)
    stage.makes_file(peer, OTHER)
    peer.call("sandbox.stop", {"key": OTHER})


def odd(stage: Stage, peer: Peer) -> None:
    stage.makes_file(peer, ODD_KEY)


def create_in_doubt(action: dict[str, Any], made: int) -> Callable[[Stage, Peer], None]:
    """The daemon does not live to see the answer."""

    def before(stage: Stage, peer: Peer) -> None:
        stage.emulator.fault(action, method="POST", route="/v1/sandboxes")
        peer.send("sandbox.ensure", KEY)
        wait_until(lambda: stage.emulator.faults()[-1]["used"] and len(stage.ours()) == made, "the create was sent")

    return before


# -- what happens just before


def boots_fail(stage: Stage) -> None:
    stage.emulator.config(boot_outcome="fail")


def starts_fail(stage: Stage) -> None:
    stage.emulator.config(start_outcome="fail")


def create_gets_lost(stage: Stage) -> None:
    stage.emulator.fault({"drop_before": True}, method="POST", route="/v1/sandboxes")


def first_listing_fails(stage: Stage) -> None:
    """So that what asks comes before the daemon has compared."""
    stage.emulator.fault({"status": 503, "body": "{}"}, method="GET", route="/v1/sandboxes")


def is_deleted_unseen(stage: Stage) -> None:
    stage.emulator.delete_sandbox(stage.our_one())
    first_listing_fails(stage)


def is_old(stage: Stage) -> None:
    def change(state: dict[str, Any]) -> None:
        (old,) = [one for one in state["sandboxes"] if one["task"] == "default"]
        old["stopped_since"] -= 4 * 86400

    stage.rewrite(change)


def one_turns_up_late(stage: Stage, attempt: int = 7) -> None:
    """Another attempt of the creation that made the one in use."""
    tags: dict[str, str] = dict(stage.emulator.sandbox(stage.our_one())["tags"])
    creation, made_by = creation_and_attempt(tags)
    assert made_by != attempt
    tags["sandboxd_creation"] = f"{creation}.{attempt}"
    stage.emulator.create_running(tags=tags)


def creation_and_attempt(tags: dict[str, str]) -> tuple[str, int]:
    creation, _, attempt = tags["sandboxd_creation"].rpartition(".")
    return creation, int(attempt)


def first_attempt_turns_up(stage: Stage) -> None:
    """Once there is a second one: one of the two must go. If the daemon died while the first was under way, that may have come
    through, as the platform that is well again reads it only then."""
    if stage.ours() and creation_and_attempt(stage.emulator.sandbox(stage.our_one())["tags"])[1] != 1:
        one_turns_up_late(stage, 1)


def state_is_lost(stage: Stage) -> None:
    for name in ("state.json", "sandbox-keys"):
        (stage.daemon.state_dir / name).unlink()


def state_is_torn(stage: Stage) -> None:
    """And the key book has grown."""
    (stage.daemon.state_dir / "state.json").write_text("{ torn")
    book = stage.daemon.state_dir / "sandbox-keys"
    book.write_text("no key\n" * (2 * MOST_KEYS + 1) + book.read_text())


def one_record_is_bad(stage: Stage) -> None:
    def change(state: dict[str, Any]) -> None:
        state["sandboxes"].append({"profile": 5})

    stage.rewrite(change)


def home_is_cloned(stage: Stage) -> None:
    """From a machine whose daemon goes on."""
    stage.theirs.add(stage.our_one())
    file = stage.daemon.state_dir / "instance"
    file.write_text(f"{file.read_text().split()[0]} {'f' * 32}\n")


def id_is_unreadable(stage: Stage) -> None:
    (stage.daemon.state_dir / "instance").write_text("nonsense")


def machine_had_no_id(stage: Stage) -> None:
    """When the state was made."""
    file = stage.daemon.state_dir / "instance"
    file.write_text(f"{file.read_text().split()[0]}\n")


def key_is_rotated(stage: Stage) -> None:
    def change(state: dict[str, Any]) -> None:
        for record in state["sandboxes"]:
            record["fingerprint"] = ANOTHERS

    stage.rewrite(change)


def key_comes_later(stage: Stage) -> None:
    del stage.daemon.environment["DEEPINFRA_API_KEY"]


def key_of_another_account(stage: Stage) -> None:
    stage.daemon.environment["DEEPINFRA_API_KEY"] = KEYS["other_accounts"]


def first_key_again(stage: Stage) -> None:
    stage.daemon.environment["DEEPINFRA_API_KEY"] = KEYS["api_key"]


def stops_elsewhere(stage: Stage) -> None:
    stage.emulator.stop_sandbox(stage.our_one())


def starts_elsewhere(stage: Stage) -> None:
    used = stage.our_one()
    assert stage.emulator.request("POST", stage.emulator.path(used, "/start")).status == 200
    stage.emulator.wait_state(used, "running")


def is_deleted_elsewhere(stage: Stage) -> None:
    stage.emulator.delete_sandbox(stage.our_one())


# -- what the next daemon comes to


def it_stops_all(stage: Stage, peer: Peer) -> None:
    wait_until(lambda: [one["state"] for one in peer.status()["sandboxes"]] == ["stopped"], "it is stopped")
    assert [stage.emulator.sandbox(one)["state"] for one in stage.ours()] == ["stopped"]


def it_deletes_all(stage: Stage, peer: Peer) -> None:
    wait_until(lambda: not stage.ours(), "it is deleted")
    wait_until(lambda: all(one["state"] == "absent" for one in peer.status()["sandboxes"]), "it is known")


def the_new_one_stays(stage: Stage, peer: Peer) -> None:
    assert "stopped" in [one["state"] for one in peer.status()["sandboxes"] if one["key"] == OTHER]


def it_runs_on(stage: Stage, peer: Peer) -> None:
    # One that was only just made may still have been booting when it was found.
    wait_until(lambda: peer.call("sandbox.get", KEY)["sandbox"]["state"] == "running", "it is known to run")
    assert stage.emulator.sandbox(stage.our_one())["state"] == "running"


def it_is_of_the_key_in_use(stage: Stage, peer: Peer) -> None:
    assert peer.sh("cat file").stdout == b"kept\n"
    assert ANOTHERS not in [one["fingerprint"] for one in stage.records()]


def its_loss_is_told(stage: Stage, peer: Peer) -> None:
    ended = peer.sh("true")
    assert ended.recreated and "gone" in ended.message


def its_key_is_known(stage: Stage, peer: Peer) -> None:
    (lost,) = peer.status()["orphans"]
    assert lost["key"] == ODD_KEY
    del stage


STATE_AND_KEYS = frozenset({"state.json", "sandbox-keys"})
LOSES_ANSWER = {"latency_after_ms": 600_000}

OPERATIONS = {
    # what somebody asks for
    "create": Operation(
        nothing, in_turn(call("sandbox.ensure", KEY), by_itself(on_disk(prices_are_known))), (CREATE, GET, CATALOG), STATE_AND_KEYS),
    "start": Operation(stopped, call("sandbox.ensure", KEY), (GET, START, GET), keeps=("default",)),
    "stop": Operation(running, call("sandbox.stop", KEY), (STOP, GET), keeps=("default",)),
    "terminate": Operation(running, call("sandbox.terminate", KEY), (DELETE,)),
    "terminate what a create in doubt has made": Operation(
        create_in_doubt(LOSES_ANSWER, 1), call("sandbox.terminate", KEY), (LIST, DELETE), between=first_listing_fails, restarted=True),
    "terminate one that was deleted": Operation(
        running, call("sandbox.terminate", KEY), (DELETE, LIST), between=is_deleted_unseen, restarted=True),
    "replace one that was deleted": Operation(deleted_elsewhere, call("sandbox.ensure", KEY), (GET, CREATE, GET)),
    "release a session's": Operation(for_one_session, call("sandbox.release", {**KEY, "mode": "terminate"}), (DELETE,)),
    "replace a session's that was stopped": Operation(
        of_one_session_and_stopped, call("sandbox.ensure", SESSIONS_CALL), (GET, DELETE, CREATE, GET)),
    "replace that of a session that is over": Operation(
        of_a_session_that_is_over, call("sandbox.ensure", SESSIONS_CALL), (DELETE, CREATE, GET)),
    "release and stop": Operation(running, call("sandbox.release", {**KEY, "mode": "stop"}), (STOP, GET), keeps=("default",)),
    "let go of another's": Operation(
        held_by_another, in_turn(call("sandbox.release", {**KEY, "mode": "terminate"}), by_itself(on_disk(nobody_but_the_other_holds_it))), (),
        keeps=("default",), after=it_runs_on),
    "boots that fail, twice": Operation(
        nothing, call("sandbox.ensure", KEY, fails="boot_failed"), (CREATE, GET, DELETE, CREATE, GET, DELETE), between=boots_fail),
    "starts that fail, twice": Operation(
        stopped, call("sandbox.ensure", KEY, fails="boot_failed"), (GET, START, GET, START, GET), between=starts_fail, keeps=("default",)),
    "second attempt": Operation(
        nothing, call("sandbox.ensure", KEY), (LIST, LIST, CREATE, GET), STATE_AND_KEYS, between=create_gets_lost,
        meanwhile=first_attempt_turns_up, slow=True),
    "make room": Operation(
        running, call("sandbox.ensure", {"key": OTHER}), (EXEC, STOP, GET, CREATE, GET), keeps=("default",),
        options={"max_active": 1, "evict_min_idle": 0.01}),
    "a command that needs one": Operation(nothing, runs_a_command, (CREATE, GET, EXEC), frozenset({"state.json", "execs.journal"})),
    "adopt an orphan": Operation(
        running, in_turn(by_itself(orphan_is_known), adopts), (LIST,), STATE_AND_KEYS, keeps=("default",), between=state_is_lost,
        restarted=True, may_leave_orphans=True),
    "terminate an orphan": Operation(
        running, in_turn(by_itself(orphan_is_known), deletes_the_orphan), (LIST, DELETE), between=state_is_lost, restarted=True,
        may_leave_orphans=True),
    "forget": Operation(
        running, in_turn(by_itself(is_ready), call("sandbox.forget", KEY)), (LIST,), keeps=("default",), between=key_of_another_account,
        restarted=True, meanwhile=first_key_again, may_leave_orphans=True),
    "take a key": Operation(
        running, in_turn(call("account.set", {"api_key": KEYS["api_key"]}), by_itself(is_ready)), (LIST, LIST), frozenset({"api-key"}),
        keeps=("default",), between=key_comes_later, restarted=True),
    # what happens by itself
    "idle stop": Operation(
        running, by_itself(written("stopped")), (LIST, EXEC, STOP, GET), keeps=("default",), own={"idle_stop": 0.05}, restarted=True,
        after=it_stops_all),
    "idle stop of a session's": Operation(
        used_by_one_session, by_itself(written("absent")), (LIST, EXEC, DELETE), own={"idle_stop": 0.05}, restarted=True,
        after=it_deletes_all),
    "owner gone": Operation(
        of_another_session, by_itself(written("absent")), (LIST, DELETE), own={"orphan_grace": 0.05}, between=session_ends, restarted=True,
        after=it_deletes_all),
    "retention": Operation(
        old_and_new, looks_again_until(written("absent")), (LIST, LIST, DELETE), keeps=("other",), own={"retention": "3d"}, between=is_old,
        restarted=True, after=the_new_one_stays, slow=True),
    "delete a late one": Operation(
        running, by_itself(lambda stage, peer: is_ready(stage, peer) and len(stage.ours()) == 1), (LIST, DELETE), keeps=("default",),
        between=one_turns_up_late, restarted=True),
    # what a start finds
    "the first start": Operation(
        None, call("sandbox.ensure", KEY), (CREATE, GET), STATE_AND_KEYS | {"state", "instance", "lock", "socket"}, every_file=True),
    "start over what runs": Operation(
        running, by_itself(is_ready), (LIST,), frozenset({"state.json", "lock"}), keeps=("default",), restarted=True,
        every_file=True, after=it_runs_on),
    "find what a create has made": Operation(
        create_in_doubt(LOSES_ANSWER, 1), by_itself(written("running")), (LIST,), restarted=True, after=it_runs_on),
    "find that a create has made nothing": Operation(
        create_in_doubt({"stall_before": True}, 0), by_itself(written("absent")), (LIST, LIST), restarted=True, slow=True),
    "find it stopped": Operation(
        running, by_itself(written("stopped")), (LIST,), keeps=("default",), between=stops_elsewhere, restarted=True, after=it_stops_all),
    "find it started": Operation(
        stopped, by_itself(written("running")), (LIST,), keeps=("default",), between=starts_elsewhere, restarted=True, after=it_runs_on),
    "find it deleted": Operation(
        running, by_itself(written("absent")), (LIST, GET), between=is_deleted_elsewhere, restarted=True, after=its_loss_is_told),
    "rotated key": Operation(
        running, by_itself(on_disk(lambda stage: bool(stage.records()[0]["fingerprint"] != ANOTHERS))), (LIST,), keeps=("default",),
        between=key_is_rotated, restarted=True, after=it_is_of_the_key_in_use),
    "unreadable state": Operation(
        odd, by_itself(orphan_is_known), (LIST,), frozenset({"state.json.bad", "sandbox-keys"}), keeps=("build",), between=state_is_torn,
        restarted=True, may_leave_orphans=True, may_complain=True, after=its_key_is_known),
    "one bad record": Operation(
        running, by_itself(on_disk(lambda stage: len(stage.records()) == 1)), (LIST,), frozenset({"state.json", "state.json.partly-bad"}),
        keeps=("default",), between=one_record_is_bad, restarted=True, may_complain=True, after=it_runs_on),
    "unreadable instance": Operation(
        running, by_itself(is_ready), (LIST,), frozenset({"instance.bad", "instance", "state.json"}), keeps=("default",),
        between=id_is_unreadable, restarted=True, may_complain=True, after=it_runs_on),
    "a machine that has its id now": Operation(
        running, by_itself(is_ready), (LIST,), frozenset({"instance", "state.json"}), keeps=("default",), between=machine_had_no_id,
        restarted=True, after=it_runs_on),
    "cloned home": Operation(
        running, in_turn(by_itself(is_ready), call("sandbox.ensure", KEY)), (CREATE, GET),
        frozenset({"state.json.bad", "instance.bad", "instance", "state.json"}), keeps=("default",), between=home_is_cloned,
        restarted=True, may_complain=True),
}  # fmt: skip
