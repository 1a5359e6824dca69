"""Client of deepinfra-sandboxd, and the hermes-agent plugin ``deepinfra-sandbox`` built on it.

Importing this module needs neither hermes nor a running daemon::

    with Client() as client:
        print(client.run(["python3", "-c", "print(1)"]).stdout)

hermes calls :func:`register`; only then is anything of hermes imported.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from .aio import AsyncClient as AsyncClient, AsyncExec as AsyncExec
from .client import Client as Client

from .errors import (
    ConnectionLost as ConnectionLost, DaemonNotRunning as DaemonNotRunning, DaemonTooOld as DaemonTooOld,
    Incompatible as Incompatible, NoAnswer as NoAnswer, RpcError as RpcError, SandboxdError as SandboxdError,
    TooLarge as TooLarge,
)  # fmt: skip
from .execution import Chunk as Chunk, CompletedExec as CompletedExec, Exec as Exec

# hermes reads it in the manifest of a plugin that was copied, pip here: the manifest is the one place.
_manifest = Path(__file__).with_name("plugin.yaml").read_text(encoding="utf-8")
__version__ = re.findall(r"^version: (\S+)$", _manifest, re.MULTILINE)[0]


def register(ctx: Any) -> None:
    """Register the terminal backend ``deepinfra`` with hermes; *ctx* is hermes's plugin context."""
    from .provider import register as register_provider

    register_provider(ctx)
