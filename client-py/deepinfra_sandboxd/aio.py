"""The client's twin for asyncio: the same calls, awaited.

Each wait is done by a thread of its own, which ends with it; the event loop never blocks, and a task
that is cancelled takes its command along.
"""

from __future__ import annotations

import asyncio
import threading
from typing import Any, AsyncIterator, Callable, Sequence, TypeVar

from .client import Client, Text
from .execution import Chunk, CompletedExec, Exec
from .rpc import Json

T = TypeVar("T")


async def _in_thread(wait: Callable[[], T]) -> T:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_it: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            set_it(value)

    def work() -> None:
        try:
            outcome = (future.set_result, wait())
        except BaseException as error:
            outcome = (future.set_exception, error)  # type: ignore[assignment]
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *outcome)

    threading.Thread(target=work, name="deepinfra-sandboxd-wait", daemon=True).start()
    return await future


class AsyncExec:
    """A command; see ``Exec``. Iterate over it with ``async for``, leave it as an async context manager."""

    def __init__(self, execution: Exec) -> None:
        self.sync = execution

    async def __aiter__(self) -> AsyncIterator[Chunk]:
        while (chunk := await self._nudged(self.sync.read)) is not None or not self.sync.finished:
            if chunk is not None:
                yield chunk

    async def wait(self) -> CompletedExec:
        return await self._nudged(self.sync.wait)

    async def cancel(self, signal: str = "KILL") -> bool:
        return await _in_thread(lambda: self.sync.cancel(signal))

    async def __aenter__(self) -> AsyncExec:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.sync.end is None:  # leaving it ends the command, for which the daemon may have to be found again
            await _in_thread(self.sync.__exit__)

    async def _nudged(self, wait: Callable[[], T]) -> T:
        try:
            return await _in_thread(wait)
        except asyncio.CancelledError:
            self.sync.kill()
            raise


class AsyncClient:
    """See ``Client``, whose arguments it takes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.sync = Client(*arguments, **options)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.sync.close()

    async def call(self, method: str, params: Json | None = None, timeout: float | None = None) -> Json:
        return await _in_thread(lambda: self.sync.call(method, params, timeout))

    async def start(self, argv: Sequence[Text] | None = None, **options: Any) -> AsyncExec:
        execution = AsyncExec(self.sync.prepare(argv, **options))
        await execution._nudged(lambda: self.sync.begin(execution.sync))
        return execution

    async def run(self, argv: Sequence[Text] | None = None, **options: Any) -> CompletedExec:
        async with await self.start(argv, **options) as execution:
            return await execution.wait()
