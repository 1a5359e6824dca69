"""Operations that are repeated, the daemon dying one step later every time, until they get through; many of these at once.

A `Table` is one operation and one way to die in it. `run()` works on many tables side by side, since most of the time goes into
waiting. Each worker has a `Stage`: a cloud of its own, with strangers' sandboxes in it, and for each point at which it dies another daemon.
"""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import subprocess
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from support.daemon import Daemon
from support.emulator import Emulator, wait_until
from support.rpc import DEFAULT_KEY, Peer, shared_validator
from support.scenes import living

MOST_POINTS = 120  # an operation that takes more steps than this has run away
ACT_LIMIT_S = 60.0
KEYS = {"other_accounts": "second-key", "api_key": "test-key"}
STRANGERS: tuple[dict[str, str], ...] = (
    {"owner": "deepinfra-sandboxd", "sandboxd_instance": "f" * 32, "hermes_task_id": "default"},  # another daemon's
    {"owner": "hermes-agent", "hermes_task_id": "default"},  # the seed plugin's
    {},  # a person's
)
# All that it ever writes in the state directory, but for what belongs to transfers of files. What is not here is in no operation.
FILES = {
    "state", "lock", "socket", "instance", "instance.bad", "api-key", "state.json", "state.json.bad", "state.json.partly-bad",
    "sandbox-keys", "execs.journal",
}  # fmt: skip
AT_EACH_START = ("lock", "socket")  # files that any start may write, whatever it is for; see Operation.every_file


class Stage:
    """What one worker has: a cloud, and the daemon of the point that is tried."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._number = itertools.count()
        self.emulator = Emulator(directory, boot_ms=5, start_ms=5, stop_ms=5, other_accounts=KEYS["other_accounts"]).start()
        self._settings = self.emulator.config(max_active=20)
        self.strangers = {self.emulator.create_running(tags=tags) for tags in STRANGERS}
        self._next({})

    def begin(self, options: dict[str, Any]) -> None:
        """Another point, whatever the one before has left."""
        self.emulator.clear_faults()
        self.emulator.config(**self._outcomes())
        for one in living(self.emulator):
            if one["sandbox_id"] not in self.strangers:
                self.emulator.delete_sandbox(one["sandbox_id"])
        self._next(options)

    def _next(self, options: dict[str, Any]) -> None:
        self.daemon = Daemon(self._directory / str(next(self._number)), self.emulator.url, KEYS["api_key"], **options)
        self.cleanup = ExitStack()  # processes of this point
        self.files: dict[str, pathlib.Path] = {}  # by task; made there
        self.theirs = set(self.strangers)  # sandboxes that nobody here may touch
        self.other: subprocess.Popen[bytes] | None = None  # another client's process

    def end(self) -> None:
        self.daemon.kill()
        self.cleanup.close()

    def close(self) -> None:
        self.emulator.stop()

    def platform_is_well(self) -> None:
        self.emulator.clear_faults()
        self.emulator.config(**self._outcomes())

    def _outcomes(self) -> dict[str, Any]:
        return {name: self._settings[name] for name in ("boot_outcome", "start_outcome")}

    def ours(self) -> list[str]:
        return [one["sandbox_id"] for one in living(self.emulator) if one["sandbox_id"] not in self.theirs]

    def our_one(self) -> str:
        (one,) = self.ours()
        return one

    def makes_file(self, peer: Peer, key: dict[str, str] = DEFAULT_KEY) -> None:
        """Something in the key's sandbox that may be lost by no accident."""
        assert peer.sh("echo kept >file", key=key).returncode == 0
        used = peer.call("sandbox.get", {"key": key})["sandbox"]["id"]
        self.files[key["task"]] = pathlib.Path(self.emulator.sandbox(used)["workspace"]) / "file"

    def state(self) -> dict[str, Any]:
        """What the daemon has written down."""
        file = self.daemon.state_dir / "state.json"
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"sandboxes": []}
        return found

    def records(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.state()["sandboxes"]
        return found

    def rewrite(self, change: Callable[[dict[str, Any]], None]) -> None:
        """What a daemon that is dead has written down, to be changed."""
        state = self.state()
        change(state)
        (self.daemon.state_dir / "state.json").write_text(json.dumps(state))


Act = Callable[[Stage, Peer], Iterator[None]]  # makes it happen; yields while it waits for the end


@dataclass(frozen=True)
class Operation:
    before: Callable[[Stage, Peer], None] | None  # what must be there; None: not even a daemon has run
    act: Act
    requests: tuple[str, ...]  # it makes at the least
    files: frozenset[str] = frozenset({"state.json"})  # of the state directory, that it writes at the least
    keeps: tuple[str, ...] = ()  # tasks whose file is there afterwards, whatever happens
    options: dict[str, Any] = field(default_factory=dict)  # of every daemon
    own: dict[str, Any] = field(default_factory=dict)  # of those that do it, and come after
    between: Callable[[Stage], None] = lambda stage: None  # just before; the daemon is dead then if `restarted`
    restarted: bool = False  # it is the work of a daemon that starts
    meanwhile: Callable[[Stage], None] = lambda stage: None  # before the next daemon starts
    after: Callable[[Stage, Peer], None] = lambda stage, peer: None  # what else the next daemon must have come to
    may_leave_orphans: bool = False  # they are listed then
    may_complain: bool = False
    every_file: bool = False
    slow: bool = False  # takes ten seconds and more a point, by waiting


class AtRequest:
    """Stopped by the emulated cloud, before or after it takes effect."""

    within_daemon = True  # that has made what must be there, if it may

    def __init__(self, how: dict[str, Any]) -> None:
        self._how = how

    def arm(self, stage: Stage, operation: Operation, point: int) -> None:
        del operation
        stage.emulator.fault(self._how, skip=point)

    def met(self, stage: Stage) -> bool:
        return bool(stage.emulator.faults()[-1]["used"])

    def check_through(self, stage: Stage, operation: Operation, point: int) -> None:
        made = Counter(stage.emulator.stats()["requests"])
        missing = Counter(operation.requests) - made
        assert not missing, f"it has not made {missing}, but {made}"
        assert point >= len(operation.requests), point


class AtStep:
    """At a step that changes the state directory (kill_at_step.c)."""

    within_daemon = False  # which cannot be told so late

    def __init__(self, preload: pathlib.Path) -> None:
        self._preload = preload

    def arm(self, stage: Stage, operation: Operation, point: int) -> None:
        except_ = "" if operation.every_file else "".join(f":{name}:" for name in AT_EACH_START)
        stage.daemon.environment |= {"LD_PRELOAD": str(self._preload), "KILL_AT_UNDER": str(stage.daemon.state_dir),
                                     "KILL_AT_STEP": str(point + 1), "KILL_AT_EXCEPT": except_,
                                     "KILL_AT_LOG": str(self._log(stage))}  # fmt: skip

    def met(self, stage: Stage) -> bool:
        return not stage.daemon.alive()

    def check_through(self, stage: Stage, operation: Operation, point: int) -> None:
        written = set(self._log(stage).read_text().splitlines())
        assert written <= FILES, f"{written - FILES} is in no operation: is there one missing?"
        assert operation.files <= written, f"it has not written {operation.files - written}, but {written}"
        assert point >= 2 * len(operation.files), point  # a file is made, or written, and put in its place

    def _log(self, stage: Stage) -> pathlib.Path:
        return stage.daemon.directory / "steps"


class Table:
    """One operation and one way to die in it; `result()` once it is known."""

    def __init__(self, name: str, operation: Operation, way: AtRequest | AtStep) -> None:
        self.name, self.operation, self.way = name, operation, way
        self.width = 12 if operation.slow else 3  # points at once
        self.next = 0
        self.under_way = 0
        self.through: int | None = None
        self.failure: str | None = None

    def over(self) -> bool:
        return (self.through is not None or self.failure is not None) and self.under_way == 0

    def may_go_on(self) -> bool:
        return self.through is None and self.failure is None and self.under_way < self.width

    def result(self) -> None:
        assert self.failure is None, self.failure
        assert self.through is not None

    def try_point(self, stage: Stage, point: int) -> None:
        """Thread-safe but for what belongs to run()."""
        where = f"{self.name}, point {point}"
        try:
            assert point < MOST_POINTS, "it never ends"
            stage.begin(self.operation.options)
            through = self._die(stage, point)
            if through:
                self.way.check_through(stage, self.operation, point)
            stage.daemon.kill()
            self._check(stage)
            if through:
                self.through = point if self.through is None else min(point, self.through)
        except BaseException:  # noqa: BLE001 - whatever it is, it is this table's
            self.failure = f"{where}: {traceback.format_exc()}\n--- log of the daemons\n{stage.daemon.log()}"
        finally:
            stage.end()

    def _die(self, stage: Stage, point: int) -> bool:
        """Whether it got through instead; then the daemon lives still."""
        operation, daemon = self.operation, stage.daemon
        if operation.before is not None:
            with daemon.start().peer() as peer:
                operation.before(stage, peer)
        if operation.restarted or not self.way.within_daemon:
            daemon.kill()
            stage.platform_is_well()
        daemon.options |= {name.replace("_", "-"): value for name, value in operation.own.items()}
        operation.between(stage)
        stage.emulator.reset_stats()
        self.way.arm(stage, operation, point)
        if not daemon.alive():
            daemon.spawn()
            wait_until(lambda: daemon.accepts() or self.way.met(stage), "it listens, or is dead")
        try:
            with daemon.peer() as peer:
                deadline = time.monotonic() + ACT_LIMIT_S
                for _ in operation.act(stage, peer):
                    assert time.monotonic() < deadline, "the operation does not end"
                    if self.way.met(stage):
                        return False
                    time.sleep(0.05 if operation.slow else 0.005)
        except OSError:  # the connection is gone, or there was none
            assert isinstance(self.way, AtStep)
            wait_until(lambda: not daemon.alive(), "it is dead")
        # It may have been a request beside the operation (prices) that was stopped meanwhile.
        return not self.way.met(stage)

    def _check(self, stage: Stage) -> None:
        """After the death: the next daemon, and what it makes of it."""
        operation, daemon, emulator = self.operation, stage.daemon, stage.emulator
        stage.platform_is_well()
        for name in ("LD_PRELOAD", "KILL_AT_STEP"):
            daemon.environment.pop(name, None)
        kept = {task: path.exists() for task, path in stage.files.items()}
        assert all(kept[task] for task in operation.keeps), kept
        operation.meanwhile(stage)
        with daemon.start().peer() as peer:
            if not peer.status()["account"]["configured"]:
                peer.call("account.set", {"api_key": KEYS["api_key"]})
            wait_until(lambda: peer.status()["daemon"]["phase"] == "ready", "it has compared", 30)

            def settled() -> bool:
                """Each sandbox has its record, each record its sandbox; or it is said that it has none."""
                shown = peer.status()
                known = [one["id"] for one in shown["sandboxes"] if one["id"] is not None]
                lost = [one["id"] for one in shown["orphans"]]
                assert operation.may_leave_orphans or not lost, lost
                return sorted(known + lost) == sorted(stage.ours())

            wait_until(settled, "all is accounted for", 15)
            errors = [item for item in peer.status()["health"] if item["severity"] == "error"]
            assert operation.may_complain or not errors, errors
            operation.after(stage, peer)
            assert all(stage.files[task].exists() for task in operation.keeps)
            # And it is in hand: nothing is left when nothing is wanted any more.
            for one in peer.status()["sandboxes"]:
                if one["state"] != "absent":
                    peer.call("sandbox.terminate", {"key": one["key"], "force": True})
            for one in peer.status()["orphans"]:
                peer.call("orphan.terminate", {"id": one["id"]})
            assert stage.ours() == []
            assert all(one["state"] == "absent" for one in peer.status()["sandboxes"])
        daemon.kill()
        for foreign in stage.theirs:
            assert emulator.sandbox(foreign)["state"] == "running"
        assert not stage.strangers & set(emulator.stats()["by_sandbox"])


def run(tables: list[Table], directory: pathlib.Path) -> None:
    """Until all are over. Those that mostly wait have workers of their own, many; the others work about as many at once as helps."""
    shared_validator()  # made once, before there is more than one thread
    changed = threading.Condition()

    def work(number: int, mine: list[Table]) -> None:
        stage: Stage | None = None
        try:
            while True:
                with changed:
                    while not (ready := [table for table in mine if table.may_go_on()]):
                        if all(table.over() for table in mine):
                            return
                        changed.wait()
                    table = ready[0]
                    point, table.next = table.next, table.next + 1
                    table.under_way += 1
                try:
                    stage = stage or Stage(directory / str(number))
                    table.try_point(stage, point)
                except BaseException:  # noqa: BLE001 - no worker leaves others waiting
                    table.failure = traceback.format_exc()
                finally:
                    with changed:
                        table.under_way -= 1
                        changed.notify_all()
        finally:
            if stage is not None:
                stage.close()

    slow = [table for table in tables if table.operation.slow]
    quick = [table for table in tables if not table.operation.slow]
    crews = [mine for mine, workers in ((slow, 28), (quick, 3 * (os.cpu_count() or 1))) if mine for _ in range(workers)]
    with ThreadPoolExecutor(len(crews)) as pool:
        try:
            for done in [pool.submit(work, number, mine) for number, mine in enumerate(crews)]:
                done.result()
        except BaseException:  # Ctrl-C, too: what is under way ends, and that is all
            for table in tables:
                table.failure = table.failure or "interrupted"
            raise
