"""The emulated deep_sands cloud as a Python object.

`with Emulator(tmp_path) as emu:` starts one `deep-sands-emulator` process (from $DEEP_SANDS_EMULATOR, else the build tree), waits
until it listens and ends it afterwards, only ever by its own pid. Keyword arguments are settings of the emulator
(`deep-sands-emulator --help` lists them). With `tls=True` it serves HTTPS with a fresh certificate; `emu.ca_file` is then the root to trust.

What a client of the cloud would do is in `emu.request(...)`; everything else talks to the control port. Standard library only.
"""

from __future__ import annotations

import http.client
import json
import os
import pathlib
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

REPOSITORY = pathlib.Path(__file__).resolve().parents[3]
START_LIMIT_S = 15.0
STOP_LIMIT_S = 15.0
CALL_LIMIT_S = 60.0


def find_binary() -> pathlib.Path:
    """The emulator to run; raises FileNotFoundError naming both places it was looked for."""
    named = os.environ.get("DEEP_SANDS_EMULATOR")
    found = pathlib.Path(named) if named else REPOSITORY / "build" / "tests" / "emulator" / "deep-sands-emulator"
    if not found.exists():
        raise FileNotFoundError(f"no emulator at {found}: build it, or name one with DEEP_SANDS_EMULATOR")
    return found


def make_certificates(directory: pathlib.Path, names: tuple[str, ...] = ("DNS:localhost", "IP:127.0.0.1")) -> dict[str, pathlib.Path]:
    """A certificate authority and a server certificate for `names`, made with the openssl command.

    Returns the files `ca`, `cert` (chain of the server) and `key`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths = {name: directory / f"{name}.pem" for name in ("ca", "ca_key", "cert", "key")}
    request, extensions = directory / "request.pem", directory / "extensions.cnf"
    extensions.write_text(f"subjectAltName={','.join(names)}\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n")

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    openssl("req", "-x509", *curve, "-keyout", str(paths["ca_key"]), "-out", str(paths["ca"]), "-days", "30", "-subj", "/CN=test authority",
            "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    openssl("req", *curve, "-keyout", str(paths["key"]), "-out", str(request), "-subj", "/CN=emulated deep_sands")
    openssl("x509", "-req", "-in", str(request), "-CA", str(paths["ca"]), "-CAkey", str(paths["ca_key"]), "-CAcreateserial",
            "-days", "30", "-extfile", str(extensions), "-out", str(paths["cert"]))
    return paths


def wait_until(condition: Callable[[], Any], what: str, limit_s: float = 10.0) -> Any:
    """Polls until `condition()` is true and returns its value; AssertionError naming `what` after `limit_s`."""
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {limit_s} s: {what}")
        time.sleep(0.005)


class Answer:
    """A whole HTTP answer: `status`, `headers` (lower-case names), `body`."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The objects of an exec stream."""
        return [json.loads(line) for line in self.body.splitlines()]

    def text(self, stream: str = "stdout") -> str:
        """All of one stream of an exec."""
        return "".join(line.get(stream, "") for line in self.lines)

    @property
    def terminal(self) -> dict[str, Any]:
        """The last line of an exec stream."""
        return self.lines[-1]

    def __repr__(self) -> str:
        return f"<Answer {self.status} {self.body[:300]!r}>"


class Emulator:
    """One emulated cloud. See the module's text."""

    def __init__(self, tmp_path: pathlib.Path, *, tls: bool = False, api_key: str = "test-key", binary: pathlib.Path | None = None,
                 command_prefix: tuple[str, ...] = (), certificates: dict[str, pathlib.Path] | None = None, **config: Any) -> None:
        """`command_prefix` goes in front of the command line (as for `setpriv`); `config` are settings."""
        self._binary = binary
        self.directory = pathlib.Path(tmp_path) / "emulator"
        self.api_key = api_key
        self.url = ""
        self.control_url = ""
        self.ca_file: pathlib.Path | None = None
        self._tls = tls
        self._certificates = certificates
        self._prefix = command_prefix
        self._settings = config
        self._process: subprocess.Popen[bytes] | None = None
        self._control: http.client.HTTPConnection | None = None

    # -- process

    def start(self) -> Emulator:
        """One that runs already goes on."""
        if self._process is not None and self._process.poll() is None:
            return self
        self.directory.mkdir(parents=True, exist_ok=True)
        arguments = [*self._prefix, str(self._binary or find_binary()), "--api-key", self.api_key, "--data-dir", str(self.directory / "data"),
                     "--ready-file", str(self.directory / "ready")]
        if self._tls:
            made = self._certificates or make_certificates(self.directory / "tls")
            self.ca_file = made["ca"]
            arguments += ["--tls-cert", str(made["cert"]), "--tls-key", str(made["key"])]
        for name, value in self._settings.items():
            arguments += ["--set", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
        ready = self.directory / "ready"
        ready.unlink(missing_ok=True)
        with open(self.log_file, "ab") as log:
            self._process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + START_LIMIT_S
        while not ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the emulator did not start:\n{self.log()}")
            time.sleep(0.005)
        addresses = dict(re.findall(r"(listening|control) (\S+)", ready.read_text()))
        self.url, self.control_url = addresses["listening"], addresses["control"]
        return self

    def stop(self) -> None:
        """SIGTERM, then SIGKILL if that does not help. What it had inside dies either way."""
        if self._process is None:
            return
        self._close_control()
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        self._process = None

    def kill(self) -> None:
        """SIGKILL."""
        self._close_control()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "the emulator is not running"
        return self._process.pid

    @property
    def log_file(self) -> pathlib.Path:
        return self.directory / "log"

    def log(self) -> str:
        return self.log_file.read_text(errors="replace") if self.log_file.exists() else ""

    def __enter__(self) -> Emulator:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            print(f"--- log of the emulator\n{self.log()}", file=sys.stderr)
            if self._process is not None and self._process.poll() is not None:
                print(f"--- the emulator has ended with {self._process.returncode}", file=sys.stderr)
        self.stop()

    # -- control

    def control(self, method: str, path: str, body: Any = None) -> Any:
        """One control request; AssertionError unless it is answered with 200."""
        address = urllib.parse.urlsplit(self.control_url)
        if self._control is None:
            self._control = http.client.HTTPConnection(address.hostname, address.port, timeout=CALL_LIMIT_S)
        self._control.request(method, "/_control/" + path, body=None if body is None else json.dumps(body))
        answer = self._control.getresponse()
        text = answer.read()
        assert answer.status == 200, f"{method} /_control/{path}: {answer.status} {text!r}"
        return json.loads(text)

    def _close_control(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None

    def config(self, **settings: Any) -> dict[str, Any]:
        """Changes settings of the running emulator; returns all of them."""
        return self.control("POST", "config", settings) if settings else self.control("GET", "config")

    def stats(self) -> dict[str, Any]:
        return self.control("GET", "stats")

    def reset_stats(self) -> None:
        self.control("POST", "reset-stats")

    def count(self, route: str | None = None) -> int:
        """How many API requests were made, in all or of one "METHOD /route/{id}"."""
        stats = self.stats()
        return stats["total"] if route is None else stats["requests"].get(route, 0)

    def fault(self, action: dict[str, Any], *, method: str | None = None, route: str | None = None, sandbox_id: str | None = None,
              body: str | None = None, times: int = 1, skip: int = 0) -> int:
        """Orders a fault for the next `times` matching requests (0 = all) after `skip` of them; returns its number.

        `body`: a text that the beginning of the request's body contains, such as a command's id.
        """
        wanted = {"method": method, "route": route, "sandbox_id": sandbox_id, "body": body}
        match = {name: value for name, value in wanted.items() if value is not None}
        return self.control("POST", "fault", {"match": match, "times": times, "skip": skip, "action": action})["fault"]

    def fault_exec(self, action: dict[str, Any], **match: Any) -> int:
        """The same for POST exec."""
        return self.fault(action, method="POST", route="/v1/sandboxes/{id}/exec", **match)

    def clear_faults(self) -> None:
        self.control("DELETE", "faults")

    def faults(self) -> list[dict[str, Any]]:
        return self.control("GET", "faults")

    def sandboxes(self) -> list[dict[str, Any]]:
        """All sandboxes of all accounts, deleted ones too, with their live processes."""
        return self.control("GET", "sandboxes")

    def sandbox(self, sandbox_id: str) -> dict[str, Any]:
        return next(one for one in self.sandboxes() if one["sandbox_id"] == sandbox_id)

    def processes(self, sandbox_id: str) -> list[dict[str, Any]]:
        return self.sandbox(sandbox_id)["processes"]

    def requests(self, last: int = 1000000) -> list[dict[str, Any]]:
        return self.control("GET", f"requests?last={last}")

    def commands(self, sandbox_id: str = "") -> list[dict[str, Any]]:
        """What was really executed."""
        return self.control("GET", "commands?sandbox_id=" + urllib.parse.quote(sandbox_id, safe=""))

    def stop_sandbox(self, sandbox_id: str) -> dict[str, Any]:
        """Behind the client's back, at once."""
        return self._force(sandbox_id, "stop")

    def delete_sandbox(self, sandbox_id: str) -> dict[str, Any]:
        return self._force(sandbox_id, "delete")

    def fail_sandbox(self, sandbox_id: str) -> dict[str, Any]:
        return self._force(sandbox_id, "fail")

    def _force(self, sandbox_id: str, verb: str) -> dict[str, Any]:
        return self.control("POST", f"sandboxes/{urllib.parse.quote(sandbox_id, safe='')}/{verb}")

    def drop_connections(self, how: str = "rst", idle_only: bool = False) -> int:
        """Ends the API connections of all clients; returns how many."""
        return self.control("POST", "drop-connections", {"how": how, "idle_only": idle_only})["dropped"]

    # -- the API, as a client of the cloud

    def connect(self, timeout: float = CALL_LIMIT_S) -> http.client.HTTPConnection:
        address = urllib.parse.urlsplit(self.url)
        if not self._tls:
            return http.client.HTTPConnection(address.hostname, address.port, timeout=timeout)
        context = ssl.create_default_context(cafile=str(self.ca_file))
        return http.client.HTTPSConnection(address.hostname, address.port, timeout=timeout, context=context)

    def send(self, connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, *, key: str | None = None,
             headers: dict[str, str] | None = None) -> None:
        """Sends one request; a body that is not bytes goes as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {self.api_key if key is None else key}", **(headers or {})}
        connection.request(method, path, body=data, headers=sent)

    def request(self, method: str, path: str, body: Any = None, *, connection: http.client.HTTPConnection | None = None,
                key: str | None = None, headers: dict[str, str] | None = None) -> Answer:
        """One whole request and its answer, on a connection of its own unless one is given."""
        used = connection or self.connect()
        try:
            self.send(used, method, path, body, key=key, headers=headers)
            answer = used.getresponse()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            if connection is None:
                used.close()

    @staticmethod
    def path(sandbox_id: str, rest: str = "") -> str:
        return f"/v1/sandboxes/{urllib.parse.quote(sandbox_id, safe='')}{rest}"

    def state(self, sandbox_id: str) -> str:
        return self.request("GET", self.path(sandbox_id)).json["state"]

    def wait_state(self, sandbox_id: str, state: str, limit_s: float = 10.0) -> None:
        wait_until(lambda: self.sandbox(sandbox_id)["state"] == state, f"{sandbox_id} is {state}", limit_s)

    def create(self, **body: Any) -> str:
        """A new sandbox; returns its id at once."""
        answer = self.request("POST", "/v1/sandboxes", body)
        assert answer.status == 200, answer
        return answer.json["sandbox_id"]

    def create_running(self, **body: Any) -> str:
        made = self.create(**body)
        self.wait_state(made, "running")
        return made

    def exec(self, sandbox_id: str, *argv: str, timeout_seconds: float = 0, connection: http.client.HTTPConnection | None = None) -> Answer:
        body = {"command": list(argv), "timeout_seconds": timeout_seconds}
        return self.request("POST", self.path(sandbox_id, "/exec"), body, connection=connection)

    def sh(self, sandbox_id: str, script: str, timeout_seconds: float = 0) -> Answer:
        return self.exec(sandbox_id, "bash", "-c", script, timeout_seconds=timeout_seconds)

    def open_exec(self, sandbox_id: str, *argv: str, timeout_seconds: float = 0) -> Stream:
        """Starts a command and returns when its answer has begun."""
        return Stream(self, sandbox_id, {"command": list(argv), "timeout_seconds": timeout_seconds})

    def put(self, sandbox_id: str, path: str, content: bytes) -> Answer:
        return self.request("PUT", self._file(sandbox_id, path), content, headers={"Content-Type": "application/octet-stream"})

    def get(self, sandbox_id: str, path: str) -> Answer:
        return self.request("GET", self._file(sandbox_id, path))

    def _file(self, sandbox_id: str, path: str) -> str:
        return self.path(sandbox_id, "/fs/content?path=" + urllib.parse.quote(path, safe=""))


class Stream:
    """An exec stream that is being read line by line. `close()` drops the connection.

    Takes the chunks apart itself: http.client mistakes a connection that breaks between two chunks for the end of the body.
    """

    def __init__(self, emulator: Emulator, sandbox_id: str, body: dict[str, Any]) -> None:
        self._connection = emulator.connect()
        emulator.send(self._connection, "POST", emulator.path(sandbox_id, "/exec"), body)
        self._answer = self._connection.getresponse()
        self.status = self._answer.status
        self._text = b""
        self._ended = False

    def line(self) -> dict[str, Any] | None:
        """The next line; None at the proper end. http.client.IncompleteRead, or an OSError, where the connection breaks."""
        while b"\n" not in self._text and not self._ended:
            self._read_chunk()
        text, newline, self._text = self._text.partition(b"\n")
        if text and not newline:
            raise http.client.IncompleteRead(text)
        return json.loads(text) if text else None

    def _read_chunk(self) -> None:
        head = self._answer.fp.readline()
        if not head.endswith(b"\n"):
            raise http.client.IncompleteRead(self._text)
        size = int(head, 16)
        chunk = self._answer.fp.read(size + 2)
        if len(chunk) != size + 2:
            raise http.client.IncompleteRead(self._text + chunk)
        self._text += chunk[:-2]
        self._ended = size == 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while (line := self.line()) is not None:
            yield line

    def close(self) -> None:
        # The socket is closed when both the answer and the connection have let go of it.
        self._answer.close()
        self._connection.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
