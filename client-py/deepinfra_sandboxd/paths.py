"""Where the daemon's socket is. Pure look-ups: nothing here connects or creates anything."""

from __future__ import annotations

import os
import pwd
import stat

SOCKET_VARIABLE = "DEEPINFRA_SANDBOXD_SOCKET"
STATE_VARIABLE = "DEEPINFRA_SANDBOXD_STATE_DIR"


def home_dir() -> str:
    """The user's home from the password database: hermes may pin ``HOME`` to a place of its own."""
    return pwd.getpwuid(os.getuid()).pw_dir


def state_dir() -> str:
    """The daemon's state directory, which names the running daemon's socket."""
    if explicit := os.environ.get(STATE_VARIABLE):
        return explicit
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(home_dir(), ".local", "state")
    return os.path.join(base, "deepinfra-sandboxd")


def socket_candidates(explicit: str | None = None) -> list[str]:
    """Paths to try in this order. One that was asked for by name is never replaced by another."""
    if named := explicit or os.environ.get(SOCKET_VARIABLE):
        return [named]
    found = []
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        found.append(os.path.join(runtime, "deepinfra-sandboxd", "rpc.sock"))
    try:
        with open(os.path.join(state_dir(), "socket"), encoding="utf-8") as file:
            found.append(file.read().strip())
    except (OSError, UnicodeDecodeError):
        pass
    found.append(os.path.join(state_dir(), "rpc.sock"))
    return list(dict.fromkeys(path for path in found if path))


def socket_present(explicit: str | None = None) -> bool:
    """True when a socket lies where the daemon's would. Stats only: connecting starts a daemon
    that systemd holds the socket for."""
    for path in socket_candidates(explicit):
        try:
            if stat.S_ISSOCK(os.stat(path).st_mode):
                return True
        except (OSError, ValueError):
            continue
    return False
