"""The daemon dies as by `kill -9` at every single write and every request of every operation of a sandbox's life; the next one finds
all of it again.

Requests are stopped by the emulated cloud, before or after they took effect; writes by a library that is preloaded into the daemon,
after every step that changes anything in the state directory and, so that it is torn, in the middle of each write. Each operation is
repeated, dying one step later every time, until it gets through.

Why support/life_cycle.py has every operation:
- a sandbox is made, started, stopped or deleted by manager::run_bring_up and run_shut_down, and without a record by delete_late and
  terminate_orphan; nothing else in the daemon sends such a request. The first two begin where manager::begin is called: for whoever asks
  (ensure, stop, terminate, release, a command), when a session is over and another one comes (clear_the_way), when its client is gone
  (mind_owners), when idle or when room is wanted (stop_idle), and by age (retire_old). Each is here, and each kind of request that the
  two machines make: for one that is there, was deleted elsewhere, or may come of a create in doubt.
- the state is written by these, by reconcile (once for each thing that it may find), by adopt_orphan and forget, by those who come and go
  (hold, let_go) and when prices come, which "create" has in it. The other files of the state directory are written at a start (lock,
  socket, instance, what is set aside as unreadable or of another machine, the key book), with a key that a client brings, and with a
  command. The manifests and stages of fs.push and fs.get have tables of their own: test_fs_kill_points.py, test_fs_fetch_faults.py.
That a method or a file is added without being here shows in the tests below.
"""

from __future__ import annotations

import pathlib

import pytest

from support.kill_points import build_preload
from support.kill_table import AT_EACH_START, AtRequest, AtStep, Table, run
from support.life_cycle import OPERATIONS
from support.schema import Validator

WAYS = {
    "request, before it takes effect": AtRequest({"stall_before": True}),
    "request, after it took effect": AtRequest({"latency_after_ms": 600_000}),
    "write": None,  # needs what is built only for it
}
# Methods of the life cycle: what they do is an operation; or they only tell.
DO = {
    "sandbox.ensure": "create", "sandbox.start": "start", "sandbox.stop": "stop", "sandbox.terminate": "terminate",
    "sandbox.release": "release and stop", "sandbox.forget": "forget", "orphan.adopt": "adopt an orphan",
    "orphan.terminate": "terminate an orphan", "account.set": "take a key",
}  # fmt: skip
TELL = {"sandbox.get", "sandbox.list", "sandbox.progress", "orphan.inspect"}


@pytest.fixture(scope="module")
def tables(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Table]:
    """All that are asked for, once they are over: side by side they take as long as the longest of them."""
    directory = tmp_path_factory.mktemp("kill")
    made: dict[tuple[str, str], Table] = {}
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.function is test_killed:
            way, operation = str(item.callspec.params["way"]), str(item.callspec.params["operation"])
            how = WAYS[way] or AtStep(build_preload(directory, "kill_at_step"))
            made[way, operation] = Table(f"{operation}, at a {way}", OPERATIONS[operation], how)
    run(list(made.values()), directory)
    return made


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("way", WAYS)
def test_killed(tables: dict[tuple[str, str], Table], way: str, operation: str) -> None:
    tables[way, operation].result()


def test_every_method_is_an_operation() -> None:
    methods = {name for name in Validator().methods if name.split(".")[0] in ("sandbox", "orphan", "account")}
    assert methods == set(DO) | TELL and set(DO.values()) <= set(OPERATIONS)
