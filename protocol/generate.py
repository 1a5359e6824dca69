#!/usr/bin/env python3
"""Makes everything that is derived from the protocol's source files.

The sources are errors.json, types.json and one file a method in methods/. From them come the C++ table of errors, the
OpenRPC document that the daemon answers to rpc.discover (embedded as C++), and REFERENCE.md.

  generate.py --out DIR   C++ for the build: DIR/protocol/errors.gen.hpp, DIR/protocol/openrpc.hpp, DIR/openrpc.gen.cpp
  generate.py --openrpc   the OpenRPC document, on standard output
  generate.py --docs      REFERENCE.md, beside this file
  generate.py --check     nothing written; exit 1 if a source is inconsistent or REFERENCE.md is out of date

Exit codes: 0 ok, 1 inconsistent sources or drift, 2 usage. Output depends on the sources alone, so a repeated run
changes no file, and a file whose content would stay the same is not touched. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REFERENCE = HERE / "REFERENCE.md"

PROTOCOL_VERSION = 1
OPENRPC_VERSION = "1.2.6"

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

CPP_NOTICE = "// Made by protocol/generate.py from protocol/*.json and protocol/methods/*.json. Not edited by hand."


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
    result: dict[str, Any] | None  # None for a notification
    errors: tuple[str, ...]
    examples: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Protocol:
    errors: tuple[Error, ...]
    types: dict[str, dict[str, Any]]
    methods: tuple[Method, ...]

    def error(self, name: str) -> Error:
        for error in self.errors:
            if error.name == name:
                return error
        raise SourceError(f"no error is named {name}")


# --- reading and checking the sources -------------------------------------------------------------------------------


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise SourceError(f"{path}: {problem}") from problem


def load(root: Path = HERE) -> Protocol:
    """Reads all sources below `root`; raises SourceError if one is unusable."""
    errors = load_errors(root / "errors.json")
    names = {error.name for error in errors}
    types_path = root / "types.json"
    types = read_json(types_path)["$defs"] if types_path.exists() else {}
    methods = tuple(load_method(path, names) for path in sorted((root / "methods").glob("*.json")))
    for method in methods:
        for reference in references([method.params, method.result]):
            if type_name(reference) not in types:
                raise SourceError(f"methods/{method.name}.json: {reference} does not exist")
    for name, schema in types.items():
        for reference in references(schema):
            if type_name(reference) not in types:
                raise SourceError(f"types.json, {name}: {reference} does not exist")
    return Protocol(errors=errors, types=types, methods=methods)


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
    if (method.result is None) != (method.kind == "notification"):
        raise SourceError(f"{where}: a request has a result, a notification has none")
    for name in method.errors:
        if name not in error_names:
            raise SourceError(f"{where}: no error is named {name}")
        if name in COMMON_ERRORS:
            raise SourceError(f"{where}: {name} is common to all methods; it is not listed")
    return method


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


# --- OpenRPC --------------------------------------------------------------------------------------------------------


def openrpc(protocol: Protocol) -> dict[str, Any]:
    """The OpenRPC 1.2.6 document; notifications and directions, which it has no words for, are x- fields."""
    return {
        "openrpc": OPENRPC_VERSION,
        "info": {
            "title": "deepinfra-sandboxd",
            "version": str(PROTOCOL_VERSION),
            "description": (
                "JSON-RPC 2.0 on a Unix socket, one UTF-8 message a line of at most 1048576 bytes, no batches. "
                "The first call on a connection is hello."
            ),
            "license": {"name": "MIT"},
        },
        "methods": [openrpc_method(protocol, method) for method in protocol.methods],
        "components": {
            "schemas": {name: moved(schema) for name, schema in protocol.types.items()},
            "errors": {error.name: openrpc_error(error) for error in protocol.errors},
        },
    }


def openrpc_method(protocol: Protocol, method: Method) -> dict[str, Any]:
    required = set(method.params.get("required", ()))
    document: dict[str, Any] = {
        "name": method.name,
        "summary": method.summary,
        "description": method.description,
        "paramStructure": "by-name",
        "params": [
            content_descriptor(name, schema, name in required)
            for name, schema in method.params.get("properties", {}).items()
        ],
        "x-kind": method.kind,
        "x-direction": method.direction,
        "x-since": method.since,
        # The whole schema, because rules between fields (one of two, and the like) do not fit into the list.
        "x-params": moved(method.params),
    }
    if method.result is not None:
        document["result"] = {"name": "result", "required": True, "schema": moved(method.result)}
        document["errors"] = [
            {"$ref": f"#/components/errors/{name}"}
            for name in (*method.errors, *COMMON_ERRORS)
        ]
    document["examples"] = [openrpc_example(protocol, number, example) for number, example in enumerate(method.examples)]
    return document


def content_descriptor(name: str, schema: dict[str, Any], required: bool) -> dict[str, Any]:
    descriptor: dict[str, Any] = {"name": name, "required": required, "schema": moved(schema)}
    if "description" in schema:
        descriptor["summary"] = schema["description"]
    return descriptor


def openrpc_example(protocol: Protocol, number: int, example: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": f"example {number + 1}",
        "description": example["description"],
        "params": [{"name": name, "value": value} for name, value in example["params"].items()],
    }
    if "result" in example:
        document["result"] = {"name": "result", "value": example["result"]}
    if "error" in example:
        document["x-error"] = error_object(protocol, example["error"])
    return document


def openrpc_error(error: Error) -> dict[str, Any]:
    return {
        "code": error.code,
        "message": error.summary,
        "data": {"name": error.name, "retryable": error.retryable, "hint": error.hint},
    }


def error_object(protocol: Protocol, example: dict[str, Any]) -> dict[str, Any]:
    """The error a client sees, from the `{name, message, sandbox_id?}` of an example."""
    error = protocol.error(example["name"])
    data: dict[str, Any] = {"name": error.name, "retryable": error.retryable, "hint": error.hint}
    if "sandbox_id" in example:
        data["sandbox_id"] = example["sandbox_id"]
    return {"code": error.code, "message": example["message"], "data": data}


def moved(schema: Any) -> Any:
    """A copy whose references point into the OpenRPC document's components."""
    if isinstance(schema, dict):
        return {
            key: f"#/components/schemas/{type_name(value)}" if key == "$ref" else moved(value)
            for key, value in schema.items()
        }
    if isinstance(schema, list):
        return [moved(value) for value in schema]
    return schema


# --- C++ ------------------------------------------------------------------------------------------------------------


def cpp_string(text: str) -> str:
    """A C++ string literal; text outside ASCII goes out as octal escapes, which cannot swallow what follows."""
    out = []
    for byte in text.encode("utf-8"):
        char = chr(byte)
        if char in '"\\':
            out.append("\\" + char)
        elif 0x20 <= byte < 0x7F:
            out.append(char)
        else:
            out.append(f"\\{byte:03o}")
    return '"' + "".join(out) + '"'


def errors_header(protocol: Protocol) -> str:
    names = "\n".join(f"    {error.name}," for error in protocol.errors)
    rows = "\n".join(
        f"    error_info{{error_name::{error.name}, {cpp_string(error.name)}, {error.code}, "
        f"{'true' if error.retryable else 'false'},\n"
        f"               {cpp_string(error.summary)},\n"
        f"               {cpp_string(error.hint)}}},"
        for error in protocol.errors
    )
    return f"""\
{CPP_NOTICE}
// The errors of the protocol. Programs act on the name, people read the text.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

namespace sandboxd {{

enum class error_name {{
{names}
}};

struct error_info {{
    error_name name;
    std::string_view text;    // the name on the wire, data.name
    int code;                 // JSON-RPC's own, or in a block of ours
    bool retryable;           // the same request, sent again unchanged, may succeed and does nothing twice
    std::string_view summary; // what it means, and whether something was done
    std::string_view hint;    // what a person can do about it
}};

namespace protocol::detail {{

// In the order of error_name.
inline constexpr std::array errors{{
{rows}
}};

}} // namespace protocol::detail

constexpr std::span<const error_info> error_table() noexcept {{ return protocol::detail::errors; }}

constexpr const error_info& info(error_name name) noexcept {{
    return protocol::detail::errors[static_cast<std::size_t>(name)];
}}

}} // namespace sandboxd
"""


def openrpc_header() -> str:
    return f"""\
{CPP_NOTICE}
#pragma once

#include <span>
#include <string_view>

namespace sandboxd::protocol {{

// The answer of rpc.discover: an OpenRPC {OPENRPC_VERSION} document, compact JSON on one line.
std::string_view openrpc_json();

// Every method and notification, both directions, in alphabetical order.
std::span<const std::string_view> method_names();

}} // namespace sandboxd::protocol
"""


def openrpc_source(protocol: Protocol) -> str:
    document = json.dumps(openrpc(protocol), ensure_ascii=False, separators=(",", ":"))
    # Short pieces, joined by the compiler, keep the file readable in a debugger and in a diff.
    pieces = "\n".join(f"    {cpp_string(document[at:at + 100])}" for at in range(0, len(document), 100))
    names = "\n".join(f"    {cpp_string(method.name)}," for method in protocol.methods)
    return f"""\
{CPP_NOTICE}
#include "protocol/openrpc.hpp"

#include <array>

namespace sandboxd::protocol {{

namespace {{

constexpr std::string_view document =
{pieces};

constexpr std::array<std::string_view, {len(protocol.methods)}> names{{
{names}
}};

}} // namespace

std::string_view openrpc_json() {{ return document; }}

std::span<const std::string_view> method_names() {{ return names; }}

}} // namespace sandboxd::protocol
"""


def write_if_changed(path: Path, text: str) -> None:
    """Leaves an identical file alone, so that a change of wording in a method does not recompile every user of errors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


# --- the command ----------------------------------------------------------------------------------------------------


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Makes C++ and documents from the protocol's source files.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, metavar="DIR", help="write the C++ files below DIR")
    action.add_argument("--openrpc", action="store_true", help="print the OpenRPC document")
    chosen = parser.parse_args(arguments)
    try:
        protocol = load()
        if chosen.out:
            write_if_changed(chosen.out / "protocol" / "errors.gen.hpp", errors_header(protocol))
            write_if_changed(chosen.out / "protocol" / "openrpc.hpp", openrpc_header())
            write_if_changed(chosen.out / "openrpc.gen.cpp", openrpc_source(protocol))
        else:
            json.dump(openrpc(protocol), sys.stdout, indent=2, ensure_ascii=False)
            print()
    except SourceError as problem:
        print(f"generate.py: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
