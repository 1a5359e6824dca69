"""Assembles the OpenRPC document that the daemon answers to rpc.discover.

OpenRPC 1.2.6 has no words for notifications, for the direction of a message, or for rules between params: x- fields
hold them (x-kind, x-direction, x-params), and the result of what is never answered is null.
"""

from __future__ import annotations

from typing import Any

from sources import COMMON_ERRORS, PROTOCOL_VERSION, Error, Method, Protocol, error_object, type_name

OPENRPC_VERSION = "1.2.6"


def openrpc(protocol: Protocol) -> dict[str, Any]:
    """The whole document; its order is that of the sources, so that equal sources make equal text."""
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
    result = {"type": "null"} if method.result is None else moved(method.result)
    document["result"] = {"name": "result", "schema": result}
    errors = method.errors if method.result is None else (*method.errors, *COMMON_ERRORS)
    document["errors"] = [{"$ref": f"#/components/errors/{name}"} for name in errors]
    examples = [
        (f"example {number}", example) for number, example in enumerate(method.examples, start=1)
    ]
    document["examples"] = [
        openrpc_example(name, example) | {"result": {"name": "result", "value": example.get("result")}}
        for name, example in examples
        if "error" not in example
    ]
    # OpenRPC's examples have a result; those that end in an error have a place of their own.
    failures = [
        openrpc_example(name, example) | {"error": error_object(protocol, example["error"])}
        for name, example in examples
        if "error" in example
    ]
    if failures:
        document["x-error-examples"] = failures
    return document


def content_descriptor(name: str, schema: dict[str, Any], required: bool) -> dict[str, Any]:
    descriptor: dict[str, Any] = {"name": name, "required": required, "schema": moved(schema)}
    if "description" in schema:
        descriptor["summary"] = schema["description"]
    return descriptor


def openrpc_example(name: str, example: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "description": example["description"],
        "params": [{"name": field, "value": value} for field, value in example["params"].items()],
    }


def openrpc_error(error: Error) -> dict[str, Any]:
    return {
        "code": error.code,
        "message": error.summary,
        "data": {"name": error.name, "retryable": error.retryable, "hint": error.hint},
    }


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
