"""Holds every message of the tests against the schemas in protocol/.

Validator judges single messages; Conversation follows one connection and also judges what no schema can say: offsets
without gaps, one exec.exit and nothing after it, never more than a window of output unacknowledged. Both raise
SchemaError, whose text names the method and the place in the message.

The daemon is judged more strictly here than a client may judge it: a field of an answer that its schema does not name
is drift between daemon and protocol, although clients have to ignore it. Validator(strict=False) looks as a client
does.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import re
import sys
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import jsonschema
import jsonschema.validators

PROTOCOL_DIR = Path(__file__).resolve().parents[3] / "protocol"
LINE_LIMIT = 1024 * 1024  # bytes, the newline included

Direction = Literal["client-to-daemon", "daemon-to-client"]
Id = str | int
# Unanswered requests of one connection. None stands for one that was wrong on purpose: only an error may answer it.
Pending = MutableMapping[Id, str | None]


class SchemaError(AssertionError):
    """A message does not keep to the protocol."""


def protocol_module(name: str) -> ModuleType:
    """A module of protocol/, under a name that cannot clash with modules of the tests."""
    full_name = f"sandboxd_protocol_{name}"
    if full_name not in sys.modules:
        spec = importlib.util.spec_from_file_location(full_name, PROTOCOL_DIR / f"{name}.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[full_name] = module
        spec.loader.exec_module(module)
    return sys.modules[full_name]


def closed(schema: Any) -> Any:
    """A copy that refuses fields it does not name, in each object that does not say otherwise itself."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    copied = {name: closed(value) for name, value in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        copied.setdefault("additionalProperties", False)
    return copied


def self_contained(schema: dict[str, Any], types: dict[str, Any]) -> dict[str, Any]:
    """A copy with the shared types inside, so that no reference leaves it."""

    def local(part: Any) -> Any:
        if isinstance(part, dict):
            return {
                name: value.removeprefix("types.json") if name == "$ref" else local(value)
                for name, value in part.items()
            }
        return [local(item) for item in part] if isinstance(part, list) else part

    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": types,
        **local(schema),
    }


class Validator:
    """Judges single messages. Reads protocol/ once; has no state of a connection."""

    def __init__(self, *, strict: bool = True) -> None:
        sources = protocol_module("sources")
        self.protocol = sources.load(PROTOCOL_DIR)
        self.common_errors = frozenset(sources.COMMON_ERRORS)
        self.methods = {method.name: method for method in self.protocol.methods}
        self.errors = {error.name: error for error in self.protocol.errors}

        def outgoing(schema: Any) -> Any:
            return closed(schema) if strict else schema

        types, outgoing_types = self.protocol.types, outgoing(self.protocol.types)
        self._params: dict[str, Any] = {}
        self._results: dict[str, Any] = {}
        for name, method in self.methods.items():
            if method.direction == "client-to-daemon":
                self._params[name] = compiled(self_contained(method.params, types))
            else:
                self._params[name] = compiled(self_contained(outgoing(method.params), outgoing_types))
            if method.result is not None:
                self._results[name] = compiled(self_contained(outgoing(method.result), outgoing_types))
        self._error = compiled(self_contained(outgoing_types["error"], outgoing_types))

    def request(self, method: str, params: Any) -> None:
        """Params of a message from client to daemon, with or without an id."""
        self._check_direction(method, "client-to-daemon")
        check(self._params[method], params, f"{method} params")

    def result(self, method: str, result: Any) -> None:
        if method not in self._results:
            raise SchemaError(f"{method} has no result")
        check(self._results[method], result, f"{method} result")

    def notification(self, method: str, params: Any) -> None:
        """Params of a notification from the daemon."""
        self._check_direction(method, "daemon-to-client")
        check(self._params[method], params, method)
        if method == "exec.exit" and "error" in params:
            self._check_error_entry(params["error"], params["error"]["code"], set(self.methods[method].errors), method)

    def error(self, obj: Any, method: str | None = None) -> None:
        """The `error` of an answer; with `method`, also that this method may answer with it."""
        where = f"{method or 'unknown method'} error"
        check(self._error, obj, where)
        allowed = self.common_errors | set(self.methods[method].errors) if method else self.errors.keys()
        self._check_error_entry(obj["data"], obj["code"], allowed, where)

    def message(self, direction: Direction, obj: Any, pending: Pending) -> None:
        """One whole message. Requests are added to `pending`, answers taken out of it."""
        if not isinstance(obj, dict) or obj.get("jsonrpc") != "2.0":
            raise SchemaError(f"not a JSON-RPC 2.0 message: {shortened(obj)}")
        if "method" in obj:
            self._call(direction, obj, pending)
        elif direction == "daemon-to-client":
            self._answer(obj, pending)
        else:
            raise SchemaError(f"a client does not answer: {shortened(obj)}")

    def line(self, direction: Direction, line: bytes, pending: Pending) -> dict[str, Any]:
        """One line as it came off the socket, with its newline; returns the message."""
        if not line.endswith(b"\n") or line.count(b"\n") != 1 or len(line) > LINE_LIMIT:
            raise SchemaError(f"not one line of at most {LINE_LIMIT} bytes: {len(line)} bytes, {shortened(line)}")
        try:
            obj = json.loads(line.decode("utf-8"), object_pairs_hook=without_duplicates)
        except ValueError as problem:
            raise SchemaError(f"not JSON in UTF-8: {problem}: {shortened(line)}") from problem
        self.message(direction, obj, pending)
        assert isinstance(obj, dict)
        return obj

    def _call(self, direction: Direction, obj: dict[str, Any], pending: Pending) -> None:
        only(obj, {"jsonrpc", "id", "method", "params"})
        method, params = obj["method"], obj.get("params", {})
        if direction == "daemon-to-client":
            if "id" in obj:
                raise SchemaError(f"the daemon sends no requests: {shortened(obj)}")
            self.notification(method, params)
            return
        self.request(method, params)
        if "id" in obj:
            if not is_id(obj["id"]) or obj["id"] in pending:
                raise SchemaError(f"id is no string or integer, or is in use: {shortened(obj)}")
            pending[obj["id"]] = method

    def _answer(self, obj: dict[str, Any], pending: Pending) -> None:
        only(obj, {"jsonrpc", "id", "result", "error"})
        if "id" not in obj or ("result" in obj) == ("error" in obj):
            raise SchemaError(f"an answer has an id, and either result or error: {shortened(obj)}")
        if obj["id"] is None:  # the answer to a line whose id could not be read
            if "error" not in obj:
                raise SchemaError(f"a result for nobody: {shortened(obj)}")
            self.error(obj["error"])
            return
        if not is_id(obj["id"]) or obj["id"] not in pending:
            raise SchemaError(f"nobody asked for this answer: {shortened(obj)}")
        method = pending.pop(obj["id"])
        if "error" in obj:
            self.error(obj["error"], method)
        elif method is None:
            raise SchemaError(f"a wrong request was answered with a result: {shortened(obj)}")
        else:
            self.result(method, obj["result"])

    def _check_direction(self, method: str, direction: Direction) -> None:
        if method not in self.methods or self.methods[method].direction != direction:
            raise SchemaError(f"protocol/methods has no {method} from {direction.replace('-', ' ')}")

    def _check_error_entry(self, data: dict[str, Any], code: int, allowed: Any, where: str) -> None:
        """That name, code and retryable are those of errors.json, and that the name may come here."""
        name = data["name"]
        if name not in self.errors:
            raise SchemaError(f"{where}: errors.json has no {name}")
        known = self.errors[name]
        if (code, data["retryable"]) != (known.code, known.retryable):
            raise SchemaError(f"{where}: code or retryable of {name} is not that of errors.json: {code}, {data}")
        if name not in allowed:
            raise SchemaError(f"{where}: {name} is not among the errors in protocol/methods")


@dataclass
class _Exec:
    """What one command has shown of itself on this connection since it was attached there."""

    window: int
    start: int = 0  # position asked for
    pos: int = 0  # of the next byte
    received: int = 0  # bytes
    offsets: dict[str, int] = field(default_factory=dict)  # of the next byte of each stream, where that is known
    acknowledged: int = 0
    dropped: int = 0
    over: bool = False


class Conversation:
    """Follows one connection. Give it every message in the order in which it was sent or received.

    Commands that are not attached to this connection are judged by the schemas alone.
    """

    def __init__(self, validator: Validator) -> None:
        self.validator = validator
        self.pending: dict[Id, str | None] = {}
        self._attaching: dict[Id, dict[str, Any]] = {}
        self._execs: dict[str, _Exec] = {}

    def sent(self, obj: dict[str, Any]) -> None:
        """A message of the client, which the validator must find right."""
        self.validator.message("client-to-daemon", obj, self.pending)
        params = obj.get("params", {})
        if obj["method"] in ("exec.start", "exec.attach") and "id" in obj:
            self._attaching[obj["id"]] = params
        elif obj["method"] == "exec.ack" and params["exec_id"] in self._execs:
            command = self._execs[params["exec_id"]]
            command.acknowledged = max(command.acknowledged, params["offset"])

    def sent_wrong(self, request_id: Id) -> None:
        """A request that is wrong on purpose was sent under this id; an error must answer it."""
        self.pending[request_id] = None

    def received(self, line: bytes) -> dict[str, Any]:
        """A line of the daemon; returns its message."""
        obj = self.validator.line("daemon-to-client", line, self.pending)
        method, params = obj.get("method"), obj.get("params", {})
        asked = None if method else self._attaching.pop(obj["id"], None)
        if asked is not None and "result" in obj:
            start = asked.get("offset", 0) if obj["result"]["attached"] else 0
            self._execs[asked["exec_id"]] = _Exec(asked.get("window", 1048576), start, start, acknowledged=start,
                                                  offsets={} if start else {"stdout": 0, "stderr": 0})
        command = self._execs.get(params.get("exec_id"))
        if command is not None and method == "exec.output":
            self._output(command, params)
        elif command is not None and method == "exec.exit":
            self._exit(command, params)
        return obj

    def _output(self, command: _Exec, params: dict[str, Any]) -> None:
        name, stream = params["exec_id"], params["stream"]
        size = params.get("raw") or len(output_bytes(params))
        if command.over:
            raise SchemaError(f"{name}: output after exec.exit")
        gap = params["pos"] - command.pos
        expected = command.offsets.get(stream, params["offset"])
        if gap < 0 or (gap == 0 and params["offset"] != expected) or (gap > 0 and params["offset"] < expected):
            raise SchemaError(f"{name}: {stream} goes on at {params['pos']}, {params['offset']}; expected {command.pos}, {expected}")
        if gap:
            command.offsets.clear()  # of whose bytes they were is not told
            command.dropped += gap
            command.acknowledged += gap
        command.pos = params["pos"] + size
        command.received += size
        command.offsets[stream] = params["offset"] + size
        ahead = command.pos - command.acknowledged
        if ahead > command.window:
            raise SchemaError(f"{name}: {ahead} bytes are not acknowledged, the window is {command.window}")

    def _exit(self, command: _Exec, params: dict[str, Any]) -> None:
        name = params["exec_id"]
        if command.over:
            raise SchemaError(f"{name}: a second exec.exit")
        command.over = True
        if params["output_bytes"] != command.start + command.received + params["dropped_bytes"]:
            raise SchemaError(f"{name}: exec.exit counts {params['output_bytes']} bytes, {params['dropped_bytes']} of them dropped; "
                              f"came: {command.received} from {command.start} on")
        if params["dropped_bytes"] < command.dropped:
            raise SchemaError(f"{name}: exec.exit counts {params['dropped_bytes']} dropped bytes, {command.dropped} were seen missing")


def raw_size(message: dict[str, Any]) -> int:
    """Bytes that follow the line of a message."""
    size: int = message["params"].get("raw", 0) if message.get("method") == "exec.output" else 0
    return size


def output_bytes(params: dict[str, Any]) -> bytes:
    """The bytes of an exec.output; of one with `raw`, those that the reader has put beside it."""
    if "raw" in params:
        raw: bytes = params["raw_bytes"]
        return raw
    if "data" in params:
        data: str = params["data"]
        return data.encode("utf-8")
    return base64.b64decode(params["data_b64"], validate=True)


def matches(_validator: Any, pattern: str, value: Any, _schema: Any) -> Iterator[jsonschema.ValidationError]:
    """The keyword `pattern` as JSON Schema means it: `$` is the very end, not (as in Python) also before a newline."""
    if isinstance(value, str) and not re.search(re.sub(r"(?<!\\)\$$", r"\\Z", pattern), value):
        yield jsonschema.ValidationError(f"{value!r} does not match {pattern!r}")


SchemaValidator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": matches})


def compiled(schema: dict[str, Any]) -> Any:
    SchemaValidator.check_schema(schema)
    return SchemaValidator(schema)


def check(validator: Any, value: Any, where: str) -> None:
    problems = sorted(validator.iter_errors(value), key=lambda problem: list(map(str, problem.absolute_path)))
    if problems:
        texts = "; ".join(f"{problem.json_path}: {told(problem)}" for problem in problems)
        raise SchemaError(f"{where}: {texts}; in {shortened(value)}")


def told(problem: jsonschema.ValidationError) -> str:
    """The problem's text; where no choice of a oneOf fits, with what is wrong with each."""
    inner = [shortened(choice.message) for choice in problem.context or ()]
    return shortened(problem.message) + (f" ({' | '.join(inner)})" if inner else "")


def shortened(value: Any, limit: int = 500) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= limit else f"{text[:limit]}... ({len(text)} characters)"


def is_id(value: Any) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def only(obj: dict[str, Any], names: set[str]) -> None:
    if not obj.keys() <= names:
        raise SchemaError(f"unknown members {sorted(obj.keys() - names)}: {shortened(obj)}")


def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        raise ValueError(f"a member comes twice among {[name for name, _ in pairs]}")
    return made
