"""What a terminal call costs the agent: hermes's `execute("true")`, end to end, with its wait loop and its session script.

hermes is the checkout that HERMES_AGENT_SRC names, else the stub of the plugin's tests, whose loop sleeps as hermes's does. The bare
request is the very script that hermes makes of `true`, sent directly. The seed's pattern is what a plugin without a daemon does:
ask for the state, send the script, and let hermes's loop find out that it has ended.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import sys
import threading
import time
from typing import Any

from bench import REPOSITORY, DirectExec, Row, Scene, at_most, figure, in_turns, median

sys.path.insert(0, os.environ.get("HERMES_AGENT_SRC") or str(REPOSITORY / "tests" / "client" / "hermes_stub"))


class SeedHandle:
    """A handle that is fed when the request has ended, as by an adapter around a blocking SDK call."""

    def __init__(self, direct: DirectExec) -> None:
        read_fd, self._write_fd = os.pipe()
        self.stdout = open(read_fd, encoding="utf-8", errors="replace")
        self.returncode: int | None = None
        self._done = threading.Event()
        threading.Thread(target=self._work, args=(direct,), daemon=True).start()

    def _work(self, direct: DirectExec) -> None:
        direct.state()
        direct.run()
        os.close(self._write_fd)
        self.returncode = 0
        self._done.set()

    def poll(self) -> int | None:
        return self.returncode if self._done.is_set() else None

    def wait(self, timeout: float | None = None) -> int | None:
        self._done.wait(timeout)
        return self.returncode

    def kill(self) -> None:
        """Nothing of these measurements is killed."""


@figure
def terminal(scene: Scene) -> list[Row]:
    os.environ["HERMES_HOME"] = str(scene.directory / "hermes")
    pathlib.Path(os.environ["HERMES_HOME"]).mkdir()
    from deepinfra_sandboxd.environment import DeepInfraEnvironment
    from tools.environments.base import BaseEnvironment

    class Seed(BaseEnvironment):  # type: ignore[misc]
        def __init__(self, direct: DirectExec) -> None:
            super().__init__(cwd="/workspace", timeout=60)
            self._direct = direct
            self._snapshot_ready = True

        def _run_bash(self, cmd_string: str, **_: Any) -> SeedHandle:
            return SeedHandle(self._direct)

        def cleanup(self) -> None:
            """Nothing is held."""

    rows = []
    with scene.world() as world:
        ours = DeepInfraEnvironment(world.client, ("default", "default"), cwd="/workspace", timeout=60)
        scripts: list[str] = []
        prepare = world.client.prepare

        def spy(*arguments: Any, **options: Any) -> Any:
            scripts.append(options["script"])
            return prepare(*arguments, **options)

        world.client.prepare = spy  # type: ignore[method-assign]
        ours.execute("true")
        world.client.prepare = prepare  # type: ignore[method-assign]
        argv = ("bash", "-c", scripts[-1])
        direct = DirectExec(world.cloud, world.sandbox_id(), *argv)
        seed = Seed(DirectExec(world.cloud, world.sandbox_id(), *argv))
        for latency in (0, 30):
            world.cloud.config(latency_ms=latency)
            actions = (direct.run, lambda: ours.execute("true"), lambda: seed.execute("true"))
            bare, call, pattern = in_turns(scene.turns(100 if latency == 0 else 50), *actions)
            a, b, c = median(call), median(bare), median(pattern)
            detail = f"{a:.1f} ms, bare {b:.1f} ms, the seed's pattern {c:.1f} ms"
            if latency:
                rows.append(at_most('`execute("true")` against the bare request, 30 ms', 1.15, a / b, "x", detail=detail))
            else:
                added = statistics.median(x - y for x, y in zip(call, bare, strict=True))
                rows.append(at_most('`execute("true")` adds to the bare request, no latency', 3, added, " ms", detail=detail))
        world.cloud.config(latency_ms=0)
        rows.append(at_most("a call returns after its command's end, commands under a second", 3, lateness(ours, scene.turns(30)), " ms"))
        rows.append(at_most("an interrupt ends the command, from the user's word to the cancel", 20, interrupts(ours, scene.turns(20)), " ms"))
    return rows


def lateness(environment: Any, turns: int) -> float:
    """Milliseconds from the moment at which the pipe is closed to the return of `execute`, the median."""
    ended: list[float] = []
    spawn = environment._run_bash

    def watched(*arguments: Any, **options: Any) -> Any:
        handle = spawn(*arguments, **options)
        finish = handle._finish

        def noted(*how: Any) -> None:
            ended.append(time.perf_counter())
            finish(*how)

        handle._finish = noted
        return handle

    environment._run_bash = watched
    late = []
    for turn in range(turns):
        environment.execute(f"sleep 0.{turn % 9}")
        late.append((time.perf_counter() - ended[-1]) * 1000)
    del environment._run_bash
    return median(late)


def interrupts(environment: Any, turns: int) -> float:
    """Milliseconds from the interrupt of a call to the kill of its command, the median."""
    from tools import interrupt

    killed: list[float] = []
    spawn = environment._run_bash

    def watched(*arguments: Any, **options: Any) -> Any:
        handle = spawn(*arguments, **options)
        kill = handle.kill

        def noted() -> None:
            killed.append(time.perf_counter())
            kill()

        handle.kill = noted
        return handle

    environment._run_bash = watched
    thread = threading.get_ident()
    taken = []
    for turn in range(turns):
        asked: list[float] = []

        def ask() -> None:
            asked.append(time.perf_counter())
            interrupt.set_interrupt(True, thread)

        threading.Timer(0.15 + turn % 7 / 300, ask).start()
        environment.execute("sleep 5")
        interrupt.set_interrupt(False, thread)
        taken.append((killed[-1] - asked[0]) * 1000)
        killed.clear()
    del environment._run_bash
    return median(taken)
