"""Reads the protocol's source files and refuses contradictions between them.

Whether schemas and examples fit each other is not looked at here: that needs a validator, which the tests have.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

PROTOCOL_VERSION = 1

# Each of our blocks of codes, by its first code; JSON-RPC's own codes keep their meaning.
CODE_BLOCKS = {
    -32700: "JSON-RPC",
    1000: "Protocol and daemon",
    2000: "Account and cloud",
    3000: "Sandboxes",
    4000: "Commands",
    5000: "Files",
}
JSON_RPC_CODES = {-32700, -32600, -32601, -32602, -32603}

# Errors that any request may be answered with, so that the method files need not repeat them.
COMMON_ERRORS = (
    "parse_error",
    "invalid_request",
    "method_not_found",
    "invalid_params",
    "internal_error",
    "hello_required",
    "line_too_long",
    "shutting_down",
    "too_many_requests",
)


class SourceError(Exception):
    """A source file is missing something or contradicts another; the text names the file."""


@dataclass(frozen=True)
class Error:
    name: str
    code: int
    retryable: bool
    summary: str
    hint: str

    @property
    def block(self) -> int:
        """The first code of the block this error is in."""
        return -32700 if self.code < 0 else self.code // 1000 * 1000


@dataclass(frozen=True)
class Method:
    name: str
    kind: str  # "request" or "notification"
    direction: str  # "client-to-daemon" or "daemon-to-client"
    summary: str
    description: str
    since: int
    params: dict[str, Any]
    result: dict[str, Any] | None  # None for what is never answered
    errors: tuple[str, ...]
    examples: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Protocol:
    errors: tuple[Error, ...]
    types: dict[str, dict[str, Any]]
    methods: tuple[Method, ...]
    preface: str

    def error(self, name: str) -> Error:
        for error in self.errors:
            if error.name == name:
                return error
        raise SourceError(f"no error is named {name}")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise SourceError(f"{path}: {problem}") from problem


def load(root: Path = HERE) -> Protocol:
    """Reads all sources below `root`; raises SourceError if one is unusable."""
    errors = load_errors(root / "errors.json")
    names = {error.name for error in errors}
    protocol = Protocol(
        errors=errors,
        types=read_json(root / "types.json")["$defs"],
        methods=tuple(load_method(path, names) for path in sorted((root / "methods").glob("*.json"))),
        preface=(root / "preface.md").read_text(encoding="utf-8"),
    )
    schemas: dict[str, Any] = {f"types.json, {name}": schema for name, schema in protocol.types.items()}
    schemas |= {f"methods/{method.name}.json": [method.params, method.result] for method in protocol.methods}
    for where, schema in schemas.items():
        for reference in references(schema):
            if type_name(reference) not in protocol.types:
                raise SourceError(f"{where}: {reference} does not exist")
    return protocol


def load_errors(path: Path) -> tuple[Error, ...]:
    errors = []
    for entry in read_json(path):
        try:
            error = Error(**entry)
        except TypeError as problem:
            raise SourceError(f"{path}: {entry.get('name', entry)}: {problem}") from problem
        if not re.fullmatch(r"[a-z][a-z0-9_]*", error.name):
            raise SourceError(f"{path}: {error.name} is no snake_case name")
        if error.code not in JSON_RPC_CODES and (error.code < 0 or error.block not in CODE_BLOCKS):
            raise SourceError(f"{path}: {error.name}: code {error.code} is in no block")
        errors.append(error)
    for what in ("name", "code"):
        values = [getattr(error, what) for error in errors]
        for value in values:
            if values.count(value) > 1:
                raise SourceError(f"{path}: {what} {value} is there twice")
    return tuple(errors)


def load_method(path: Path, error_names: set[str]) -> Method:
    source = dict(read_json(path))
    where = f"methods/{path.name}"
    try:
        method = Method(
            name=source.pop("method"),
            kind=source.pop("kind"),
            direction=source.pop("direction"),
            summary=source.pop("summary"),
            description=source.pop("description"),
            since=source.pop("since"),
            params=source.pop("params"),
            result=source.pop("result", None),
            errors=tuple(source.pop("errors", ())),
            examples=tuple(source.pop("examples")),
        )
    except KeyError as missing:
        raise SourceError(f"{where}: {missing} is missing") from missing
    if source:
        raise SourceError(f"{where}: unknown: {', '.join(source)}")
    if method.name != path.stem:
        raise SourceError(f"{where}: the method in it is called {method.name}")
    if method.kind not in ("request", "notification"):
        raise SourceError(f"{where}: kind is {method.kind}")
    if method.direction not in ("client-to-daemon", "daemon-to-client"):
        raise SourceError(f"{where}: direction is {method.direction}")
    to_client = method.direction == "daemon-to-client"
    if to_client and (method.kind == "request" or method.result is not None):
        raise SourceError(f"{where}: the daemon sends notifications only, and they have no result")
    if method.kind == "request" and method.result is None:
        raise SourceError(f"{where}: a request has a result")
    for name in method.errors:
        if name not in error_names:
            raise SourceError(f"{where}: no error is named {name}")
        if name in COMMON_ERRORS and not to_client:
            raise SourceError(f"{where}: {name} is common to all requests; it is not listed")
    for example in method.examples:
        check_example(where, method, example)
    return method


def check_example(where: str, method: Method, example: dict[str, Any]) -> None:
    """That an example has the right parts; that they fit the schemas is for the tests, which have a validator."""
    if not {"description", "params"} <= example.keys() <= {"description", "params", "result", "error"}:
        raise SourceError(f"{where}: an example has description, params, and result or error")
    if ("result" in example) + ("error" in example) != (method.kind == "request"):
        raise SourceError(f"{where}: examples of requests have a result or an error, those of notifications neither")
    if "error" in example and example["error"]["name"] not in (*method.errors, *COMMON_ERRORS):
        raise SourceError(f"{where}: an example has the error {example['error']['name']}, which is not listed")


def references(schema: Any) -> Iterator[str]:
    """Every $ref in a schema, however deep."""
    if isinstance(schema, dict):
        for key, value in schema.items():
            if key == "$ref" and isinstance(value, str):
                yield value
            else:
                yield from references(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from references(value)


def type_name(reference: str) -> str:
    """The name in types.json that a $ref of a source file means."""
    return reference.removeprefix("types.json").removeprefix("#/$defs/")


def error_object(protocol: Protocol, example: dict[str, Any]) -> dict[str, Any]:
    """The error a client sees, from the `{name, message, sandbox_id?}` of an example."""
    error = protocol.error(example["name"])
    data: dict[str, Any] = {"name": error.name, "retryable": error.retryable, "hint": error.hint}
    if "sandbox_id" in example:
        data["sandbox_id"] = example["sandbox_id"]
    return {"code": error.code, "message": example["message"], "data": data}
