"""What can go wrong between a program and the daemon.

No text here contains the word that hermes takes for a command's time-out (see ``plain`` in
``environment.py``), and none carries a secret: texts come from the daemon or are made here.
"""

from __future__ import annotations

from typing import Any, Mapping

START_HINT = (
    "start it with: systemctl --user start deepinfra-sandboxd.socket (or, without systemd: deepinfra-sandboxd serve &)"
)
UPGRADE_HINT = (
    "install versions of the daemon and of this package that belong together (one checkout: sudo cmake --install build;"
    " pip install ./client-py), then: systemctl --user restart deepinfra-sandboxd (or, without systemd, end the old"
    " daemon and: deepinfra-sandboxd serve &)"
)


class SandboxdError(Exception):
    """Base of all errors of this package; ``hint`` is what a person can do about it, or empty."""

    def __init__(self, text: str, *, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class DaemonNotRunning(SandboxdError):
    """Nobody listens on the socket. Nothing was sent."""


class ConnectionLost(SandboxdError):
    """The connection ended before the answer came: what was asked for may or may not be done."""


class NoAnswer(SandboxdError):
    """The daemon holds the connection but did not answer within the limit."""


class Incompatible(SandboxdError):
    """The peer speaks no protocol version of ours, or is not the daemon of this user."""


class DaemonTooOld(Incompatible):
    """The daemon lacks something that this package needs."""


class TooLarge(SandboxdError):
    """The request does not fit in one line of the protocol. Nothing was sent."""


class RpcError(SandboxdError):
    """The daemon's error answer. Programs use ``name``; the text is for people.

    ``code`` is the JSON-RPC number, ``retryable`` the daemon's opinion on asking again.
    """

    def __init__(self, error: Mapping[str, Any]) -> None:
        data = error.get("data") or {}
        super().__init__(str(error.get("message", "an error without a text")), hint=str(data.get("hint", "")))
        self.name = str(data.get("name", "internal_error"))
        self.code = int(error.get("code", -32603))
        self.retryable = data.get("retryable") is True
        self.sandbox_id = data.get("sandbox_id")
