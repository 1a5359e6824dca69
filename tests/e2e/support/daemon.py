"""The real daemon as a Python object, and its command line.

`Daemon(tmp_path, emulator.url, "test-key", idle_stop=0.5)` keeps everything below `tmp_path`; keyword arguments are options
of `serve`. It is ended only ever by its own pid. The binary is $DEEPINFRA_SANDBOXD, else the one in the build tree.
"""

from __future__ import annotations

import os
import pathlib
import signal
import socket
import subprocess
import time
from typing import Any

from support.rpc import Peer

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
START_LIMIT_S = 15.0
STOP_LIMIT_S = 15.0
COMMAND_LIMIT_S = 60.0


def find_binary() -> pathlib.Path:
    """The daemon to run; raises FileNotFoundError naming both places it was looked for."""
    named = os.environ.get("DEEPINFRA_SANDBOXD")
    found = pathlib.Path(named) if named else REPOSITORY / "build" / "daemon" / "deepinfra-sandboxd"
    if not found.exists():
        raise FileNotFoundError(f"no daemon at {found}: build it, or name one with DEEPINFRA_SANDBOXD")
    return found


class Daemon:
    """One daemon, started and ended as often as a test likes on the same state directory."""

    def __init__(self, tmp_path: pathlib.Path, base_url: str, api_key: str | None = "test-key", *, ca_file: pathlib.Path | None = None,
                 environment: dict[str, str] | None = None, prefix: tuple[str, ...] = (), **options: Any) -> None:
        """`ca_file`: roots to trust for HTTPS. `environment`: more variables, over the bare ones a test gets. `prefix` goes in front
        of the command line and must end in an exec of it, so that its pid is the daemon's."""
        self.directory = pathlib.Path(tmp_path) / "daemon"
        self.directory.mkdir(parents=True, exist_ok=True)
        self.state_dir = self.directory / "state"
        self.socket = self.directory / "run" / "rpc.sock"
        self.log_file = self.directory / "log"
        self.options = {name.replace("_", "-"): value for name, value in options.items()}
        # Nothing of the machine's own configuration reaches a test.
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "XDG_CONFIG_HOME": str(self.directory / "config"),
            "DEEPINFRA_SANDBOXD_STATE_DIR": str(self.state_dir),
            "DEEPINFRA_SANDBOXD_SOCKET": str(self.socket),
            "DEEPINFRA_BASE_URL": base_url,
        }
        for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS"):
            if name in os.environ:
                self.environment[name] = os.environ[name]
        if api_key is not None:
            self.environment["DEEPINFRA_API_KEY"] = api_key
        if ca_file is not None:
            self.environment["SSL_CERT_FILE"] = str(ca_file)
        self.environment.update(environment or {})
        self.prefix = prefix
        self._process: subprocess.Popen[bytes] | None = None

    # -- process

    def spawn(self) -> subprocess.Popen[bytes]:
        """Starts it without waiting for it to answer."""
        arguments = [*self.prefix, str(find_binary()), "serve"]
        for name, value in self.options.items():
            arguments += [f"--{name}", str(value)]
        with open(self.log_file, "ab") as log:
            self._process = subprocess.Popen(arguments, env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return self._process

    def start(self) -> Daemon:
        process = self.spawn()
        deadline = time.monotonic() + START_LIMIT_S
        while not self.accepts():
            if process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the daemon did not start:\n{self.log()}")
            time.sleep(0.002)
        return self

    def accepts(self) -> bool:
        """Whether somebody listens on its socket."""
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError:
                return False
            return True

    def stop(self) -> int:
        """SIGTERM; returns the exit code. Nothing happens to one that has ended."""
        if self._process is None:
            return 0
        process, self._process = self._process, None
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            return process.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the daemon did not stop:\n{self.log()}") from None

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def rss_kib(self) -> int:
        """Resident memory now."""
        for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        raise AssertionError("no VmRSS")

    def __enter__(self) -> Daemon:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            print(f"--- log of the daemon\n{self.log()}")
        self.stop()

    # -- its users

    def peer(self, *, hello: bool = True, **how: Any) -> Peer:
        """A connection whose every message is held against the schemas."""
        peer = Peer(self.socket, **how)
        if hello:
            peer.hello()
        return peer

    def command(self, *arguments: str) -> list[str]:
        """The command line of a verb."""
        return [str(find_binary()), *arguments]

    def cli(self, *arguments: str, input: bytes | None = None, environment: dict[str, str] | None = None,
            timeout: float = COMMAND_LIMIT_S) -> subprocess.CompletedProcess[bytes]:
        """Runs a verb to its end, without a terminal."""
        return subprocess.run(self.command(*arguments), env={**self.environment, **(environment or {})}, input=input,
                              stdin=subprocess.DEVNULL if input is None else None, capture_output=True, timeout=timeout, check=False)
