"""Stub: secrets of the profile in scope; with several profiles a read outside a scope is refused."""

from __future__ import annotations

import os
from contextvars import ContextVar

multiplex_active = False
scope: ContextVar[dict[str, str] | None] = ContextVar("scope", default=None)


class UnscopedSecretError(RuntimeError):
    pass


def get_secret(name: str, default: str | None = None) -> str | None:
    current = scope.get()
    if current is not None and (name in current or multiplex_active):
        return current.get(name, default)
    if multiplex_active:
        raise UnscopedSecretError(name)
    return os.environ.get(name, default)
