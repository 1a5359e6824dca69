"""Stub: where the profile lives; a gateway of several profiles has the one it serves in a context variable."""

from __future__ import annotations

import os
from contextvars import ContextVar, Token
from pathlib import Path

_override: ContextVar[str | None] = ContextVar("override", default=None)


def set_hermes_home_override(path: str | Path | None) -> Token[str | None]:
    return _override.set(None if path is None else str(path))


def reset_hermes_home_override(token: Token[str | None]) -> None:
    _override.reset(token)


def get_hermes_home() -> Path:
    return Path(_override.get() or os.environ.get("HERMES_HOME") or Path.home() / ".hermes")
