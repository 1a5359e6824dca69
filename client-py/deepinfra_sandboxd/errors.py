"""What can go wrong between a program and the daemon.

No text here contains the word that hermes takes for a command's time-out (see ``plain`` in
``environment.py``), and none carries a secret: texts come from the daemon or are made here.
"""

from __future__ import annotations

from typing import Any, Mapping

START_HINT = (
    "start it with: systemctl --user start deepinfra-sandboxd.socket"
    " (or, without systemd: deepinfra-sandboxd serve &)"
)


class SandboxdError(Exception):
    """Base of all errors of this package; ``hint`` is what a person can do about it, or empty."""

    def __init__(self, text: str, *, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class DaemonNotRunning(SandboxdError):
    """Nobody listens on the socket. Nothing was sent."""


class ConnectionLost(SandboxdError):
    """The connection ended before the answer came: what was asked for may or may not be done.

    ``unsent`` is true when the request was certainly not handed to the daemon whole.
    """

    def __init__(self, text: str, *, unsent: bool = False) -> None:
        super().__init__(text, hint="see: deepinfra-sandboxd status")
        self.unsent = unsent


class NoAnswer(SandboxdError):
    """The daemon holds the connection but did not answer within the limit."""


class Incompatible(SandboxdError):
    """The peer speaks no protocol version of ours, or is not the daemon of this user."""


class TooLarge(SandboxdError):
    """The request does not fit in one line of the protocol. Nothing was sent."""


class RpcError(SandboxdError):
    """The daemon's error answer. Programs use ``name``; the text is for people.

    ``code`` is the JSON-RPC number, ``retryable`` the daemon's opinion on asking again.
    """

    def __init__(
        self, text: str, *, name: str, code: int, retryable: bool, hint: str, sandbox_id: str | None
    ) -> None:
        super().__init__(text, hint=hint)
        self.name = name
        self.code = code
        self.retryable = retryable
        self.sandbox_id = sandbox_id

    @classmethod
    def from_wire(cls, error: Mapping[str, Any]) -> RpcError:
        """From the ``error`` member of an answer; members that are missing get neutral values."""
        data = error.get("data")
        data = data if isinstance(data, dict) else {}
        return cls(
            str(error.get("message", "the daemon answered an error without a text")),
            name=str(data.get("name", "internal_error")),
            code=int(error.get("code", -32603)),
            retryable=data.get("retryable") is True,
            hint=str(data.get("hint", "")),
            sandbox_id=data.get("sandbox_id"),
        )
