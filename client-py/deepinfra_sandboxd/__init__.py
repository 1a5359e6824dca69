"""Client of deepinfra-sandboxd, and the hermes-agent plugin ``deepinfra-sandbox`` built on it.

Importing this module needs neither hermes nor a running daemon::

    with Client() as client:
        print(client.run(["python3", "-c", "print(1)"]).stdout)

hermes calls :func:`register`; only then is anything of hermes imported.
"""

from __future__ import annotations

from typing import Any

from .aio import AsyncClient, AsyncExec
from .client import Client
from .errors import (
    ConnectionLost,
    DaemonNotRunning,
    DaemonTooOld,
    Incompatible,
    NoAnswer,
    RpcError,
    SandboxdError,
    TooLarge,
)
from .execution import Chunk, CompletedExec, Exec

__version__ = "0.1.0"  # plugin.yaml repeats it, and a test compares the two

__all__ = [
    "AsyncClient",
    "AsyncExec",
    "Chunk",
    "Client",
    "CompletedExec",
    "ConnectionLost",
    "DaemonNotRunning",
    "DaemonTooOld",
    "Exec",
    "Incompatible",
    "NoAnswer",
    "RpcError",
    "SandboxdError",
    "TooLarge",
    "__version__",
    "register",
]


def register(ctx: Any) -> None:
    """Register the terminal backend ``deepinfra`` with hermes; *ctx* is hermes's plugin context."""
    from .provider import register as register_provider

    register_provider(ctx)
