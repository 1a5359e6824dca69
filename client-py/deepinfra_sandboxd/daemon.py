"""Where the daemon's socket is, and how a daemon that is not running gets started.

The look-ups connect to nothing. ``start`` goes to systemd's socket where a user manager has one, and
else spawns ``deepinfra-sandboxd serve``: of several at once the daemon's own lock leaves one.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import stat
import subprocess

from .errors import START_HINT, DaemonNotRunning

PROGRAM = "deepinfra-sandboxd"
KEY_VARIABLE = "DEEPINFRA_API_KEY"
SOCKET_VARIABLE = "DEEPINFRA_SANDBOXD_SOCKET"
STATE_VARIABLE = "DEEPINFRA_SANDBOXD_STATE_DIR"
CONFIG_VARIABLE = "DEEPINFRA_SANDBOXD_CONFIG"
USUAL_DIRECTORIES = "/usr/local/bin:/usr/bin"  # the PATH of a service may lack where the daemon was installed
SYSTEMCTL_LIMIT = 5.0  # seconds
# What a spawned daemon gets of our environment; an agent's other secrets are none of its business.
_PASSED_ON = ("DEEPINFRA_", "XDG_", "SSL_CERT_", "PATH", "HOME", "LANG", "TZ")


def home_dir() -> str:
    """The user's home from the password database: hermes may pin ``HOME`` to a place of its own."""
    return pwd.getpwuid(os.getuid()).pw_dir


def _configured(name: str) -> str:
    """The path that the daemon's configuration file gives the option *name*, or an empty text."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(home_dir(), ".config")
    for line in _text_of(os.environ.get(CONFIG_VARIABLE) or os.path.join(base, PROGRAM, "config.ini")).splitlines():
        option, _, value = line.partition("#")[0].partition("=")
        if option.strip() == name:
            value = value.strip()
            return os.path.join(home_dir(), value[2:]) if value.startswith("~/") else value
    return ""


def _text_of(path: str) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError, ValueError), open(path, encoding="utf-8") as file:
        return file.read(1 << 20)
    return ""


def _named_state_dir() -> str:
    return os.environ.get(STATE_VARIABLE) or _configured("state-dir")


def state_dir() -> str:
    """The daemon's state directory, which names the running daemon's socket."""
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(home_dir(), ".local", "state")
    return _named_state_dir() or os.path.join(base, PROGRAM)


def socket_candidates(explicit: str | None = None) -> list[str]:
    """Paths to try in this order. One that was asked for by name is never replaced by another."""
    if named := explicit or os.environ.get(SOCKET_VARIABLE):
        return [named]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    usual = [os.path.join(runtime, PROGRAM, "rpc.sock")] if runtime else []
    own = [_text_of(os.path.join(state_dir(), "socket")).strip(), os.path.join(state_dir(), "rpc.sock")]
    # systemd's socket of a daemon with that state directory that never ran is at the usual place as well
    usual = [_configured("socket"), *usual]
    return list(dict.fromkeys(filter(None, own + usual if _named_state_dir() else usual + own)))


def is_another(instance: str, explicit: str | None = None) -> bool:
    """Whether the daemon with this id, as its hello tells it, is none of the state directory that was named."""
    if explicit or os.environ.get(SOCKET_VARIABLE) or not _named_state_dir():
        return False
    return _text_of(os.path.join(state_dir(), "instance")).split()[:1] != [instance]


def socket_present(explicit: str | None = None) -> bool:
    """True when a socket lies where the daemon's would. Stats only: connecting starts a daemon
    that systemd holds the socket for."""
    for path in socket_candidates(explicit):
        with contextlib.suppress(OSError, ValueError):  # ValueError: a NUL byte in the path
            if stat.S_ISSOCK(os.stat(path).st_mode):
                return True
    return False


def installed(name: str = PROGRAM) -> str | None:
    """The path of a program, by default of the daemon; None when there is none."""
    return shutil.which(name) or shutil.which(name, path=USUAL_DIRECTORIES)


def start(explicit: str | None = None, *, enable: bool = False) -> str:
    """Have a daemon started; where to look if it does not come up, and an empty text when there is no
    way to start one.

    Returns before it listens. *enable*: systemd is to start it at later logins as well. A socket at a
    place of its own (*explicit*) is none of systemd's, nor is a daemon whose state directory our
    environment names. Raises ``DaemonNotRunning`` when the machine does not let us.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    named = explicit or os.environ.get(SOCKET_VARIABLE) or os.environ.get(STATE_VARIABLE)
    try:
        if not named and os.path.exists(os.path.join(runtime, "systemd", "private")):
            verb, units = ["start"], [f"{PROGRAM}.socket"]
            if enable:  # the service too: what runs across a reboot is stopped when idle without any client
                verb, units = ["enable", "--now"], [*units, f"{PROGRAM}.service"]
            if _ends_well([installed("systemctl") or "systemctl", "--user", *verb, *units]):
                return f"journalctl --user -u {PROGRAM}"
        if (program := installed()) is None:
            return ""
        os.makedirs(state_dir(), mode=0o700, exist_ok=True)
        options = ["--socket", explicit] if explicit else []
        # A shell in between: the daemon is nobody's child, so that no agent takes it along when it ends.
        subprocess.run(
            ["/bin/sh", "-c", 'umask 077; "$@" >>"$0" 2>&1 &', log_file(), program, "serve", *options],
            env={name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)},
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            cwd="/", start_new_session=True, check=False,
        )  # fmt: skip
        return f"tail {log_file()}"
    except OSError as error:
        raise DaemonNotRunning(f"the daemon {PROGRAM} cannot be started: {error}", hint=START_HINT) from error


def _ends_well(command: list[str]) -> bool:
    """Whether a command that does not exist on every machine, and may hang, succeeds in time."""
    quiet = subprocess.DEVNULL
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        return subprocess.run(command, stdin=quiet, stdout=quiet, stderr=quiet, timeout=SYSTEMCTL_LIMIT).returncode == 0
    return False


def log_file() -> str:
    """Where a daemon that was spawned here writes its log."""
    return os.path.join(state_dir(), "spawned.log")
