"""Stub: interrupts are bits of threads."""

from __future__ import annotations

import threading

_interrupted: set[int] = set()
_to_yield: set[int] = set()


def set_interrupt(active: bool, thread_id: int | None = None) -> None:
    thread = threading.get_ident() if thread_id is None else thread_id
    (_interrupted.add if active else _interrupted.discard)(thread)


def is_thread_interrupted(thread_id: int | None) -> bool:
    return thread_id in _interrupted


def is_interrupted() -> bool:
    return is_thread_interrupted(threading.get_ident())


def request_yield(thread_id: int) -> None:
    _to_yield.add(thread_id)


def is_thread_yield_requested(thread_id: int | None) -> bool:
    return thread_id in _to_yield


def consume_yield(thread_id: int | None) -> bool:
    asked = thread_id in _to_yield
    if thread_id is not None:
        _to_yield.discard(thread_id)
    return asked
