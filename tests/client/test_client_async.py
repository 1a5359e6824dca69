"""The asyncio twin, on commands that really run."""

from __future__ import annotations

import asyncio
import time

import pytest
from fake_daemon import ShellDaemon, eventually

from deepinfra_sandboxd import AsyncClient, RpcError


def test_runs_calls_and_streams_beside_each_other(shell: ShellDaemon) -> None:
    async def scene() -> None:
        async with AsyncClient(str(shell.path)) as client:
            assert await client.call("daemon.ping") == {}
            runs = (client.run(script=f"sleep 0.2; echo {number}") for number in range(50))
            done = await asyncio.gather(*runs)
            assert [one.stdout for one in done] == [f"{number}\n".encode() for number in range(50)]
            pieces = []
            async with await client.start(script="echo one; sleep 0.2; echo two; exit 4") as command:
                async for chunk in command:
                    pieces.append(chunk.data)
            assert pieces == [b"one\n", b"two\n"] and command.sync.end is not None and command.sync.end.returncode == 4
            with pytest.raises(TypeError):
                await client.run()

    begun = time.monotonic()
    asyncio.run(scene())
    assert time.monotonic() - begun < 8  # one after another would take 10 s


def test_a_cancelled_task_takes_its_command_along_and_the_loop_is_never_blocked(shell: ShellDaemon) -> None:
    async def scene() -> None:
        async with AsyncClient(str(shell.path)) as client:
            task = asyncio.create_task(client.run(script="sleep 60"))
            ticks = 0
            while not shell.commands:
                await asyncio.sleep(0.005)
                ticks += 1
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(task, 0.1)
            await asyncio.to_thread(shell.wait_for, "exec.cancel")
            left = await client.start(script="echo x; sleep 60")
            async with left:
                async for chunk in left:
                    assert chunk.data == b"x\n"
                    break
            assert await left.cancel() is True

    asyncio.run(scene())
    eventually(lambda: all(command.end is not None for command in shell.commands.values()), "both have ended")


def test_leaving_a_command_blocks_nothing_though_the_daemon_is_gone(shell: ShellDaemon) -> None:
    async def scene() -> float:
        async with AsyncClient(str(shell.path), patience=2) as client:
            worst, last = 0.0, time.monotonic()

            async def tick() -> None:
                nonlocal worst, last
                while True:
                    await asyncio.sleep(0.01)
                    worst, last = max(worst, time.monotonic() - last), time.monotonic()

            ticking = asyncio.create_task(tick())
            async with await client.start(script="sleep 60"):
                shell.crash()
            ticking.cancel()
            return max(worst, time.monotonic() - last)

    assert asyncio.run(scene()) < 1  # the daemon is looked for for two seconds


def test_an_error_arrives_as_one(shell: ShellDaemon) -> None:
    async def scene() -> None:
        async with AsyncClient(str(shell.path)) as client:
            with pytest.raises(RpcError):
                await client.start(["x"], exec_id=(await client.start(["true"])).sync.exec_id)

    asyncio.run(scene())
