"""Writes the reference for people, REFERENCE.md, from the protocol's sources."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

from sources import CODE_BLOCKS, COMMON_ERRORS, Method, Protocol, error_object, type_name

NOTICE = "<!-- Made by protocol/generate.py from protocol/. Change the sources and run `generate.py --docs`. -->"


def reference(protocol: Protocol) -> str:
    parts = [NOTICE, protocol.preface.strip(), *error_tables(protocol), *method_index(protocol)]
    for method in protocol.methods:
        parts += method_section(protocol, method)
    parts += ["## Types"]
    for name, schema in protocol.types.items():
        parts += type_section(protocol, name, schema)
    return "\n\n".join(parts) + "\n"


def error_tables(protocol: Protocol) -> Iterator[str]:
    common = ", ".join(f"`{name}`" for name in COMMON_ERRORS)
    yield f"Any request may be answered with {common}; each method lists what else it may be."
    for block, title in CODE_BLOCKS.items():
        rows = [
            (str(error.code), f"`{error.name}`", "yes" if error.retryable else "no", error.summary, error.hint)
            for error in protocol.errors
            if error.block == block
        ]
        yield f"### {title}"
        yield table(("code", "name", "retryable", "meaning", "what to do"), rows)


def method_index(protocol: Protocol) -> Iterator[str]:
    yield "## Methods"
    rows = [
        (f"[`{method.name}`](#{anchor(method.name)})", sender(method), method.summary)
        for method in protocol.methods
    ]
    yield table(("method", "what it is", "purpose"), rows)


def sender(method: Method) -> str:
    if method.direction == "daemon-to-client":
        return "notification from the daemon"
    return "request" if method.kind == "request" else "notification to the daemon"


def method_section(protocol: Protocol, method: Method) -> Iterator[str]:
    yield f"### {method.name}"
    yield f"*{sender(method).capitalize()}, since protocol {method.since}.* {method.summary}"
    yield method.description
    yield from fields_part(protocol, "Params", method.params)
    if method.kind == "request" and method.result is not None:
        yield from fields_part(protocol, "Result", method.result)
    if method.errors:
        yield "**Errors:** " + ", ".join(f"`{name}`" for name in method.errors)
    for example in method.examples:
        yield example_part(protocol, method, example)


def fields_part(protocol: Protocol, title: str, schema: dict[str, Any]) -> Iterator[str]:
    rows = list(field_rows(protocol, schema, ""))
    rules = presence_rules(schema)
    if not rows:
        yield f"**{title}:** none (an empty object)"
        return
    yield f"**{title}**" + (f" ({rules})" if rules else "")
    yield table(("field", "type", "presence", "meaning"), rows)


def presence_rules(schema: dict[str, Any]) -> str:
    """In words, the oneOf of a schema that lets one of several fields be given."""
    choices = [choice for choice in schema.get("oneOf", ()) if "properties" not in choice]
    names = [name for choice in choices for name in choice["required"]]
    return "exactly one of " + " and ".join(f"`{name}`" for name in names) if names else ""


def field_rows(protocol: Protocol, schema: dict[str, Any], prefix: str) -> Iterator[tuple[str, ...]]:
    """One row a field; the fields of an object described in place follow it, with a dotted name."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        if name in required:
            presence = "required"
        elif "default" in field:
            presence = f"default `{json.dumps(field['default'])}`"
        else:
            presence = "optional"
        meaning = field.get("description", "")
        if not meaning and "$ref" in field:
            meaning = first_sentence(protocol.types[type_name(field["$ref"])]["description"])
        yield f"`{prefix}{name}`", type_text(field), presence, meaning
        for inner in (field, *field.get("oneOf", ())):
            yield from field_rows(protocol, inner, f"{prefix}{name}.")


def first_sentence(text: str) -> str:
    return re.split(r"(?<=[.;]) ", text, maxsplit=1)[0].rstrip(";")


def type_text(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = type_name(schema["$ref"])
        return f"[{name}](#{anchor(name)})"
    if "oneOf" in schema and "properties" not in schema:
        return " or ".join(type_text(choice) for choice in schema["oneOf"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if schema.get("type") == "array":
        least = f", at least {schema['minItems']}" if "minItems" in schema else ""
        return f"array of {type_text(schema['items'])}{least}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {type_text(schema['additionalProperties'])}"
    kinds: str | list[str] = schema["type"]
    return (" or ".join(kinds) if isinstance(kinds, list) else kinds) + limits_text(schema)


def limits_text(schema: dict[str, Any]) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return f", {low} to {high}"
    if low is not None:
        return f" >= {low}"
    if "exclusiveMinimum" in schema:
        return f" > {schema['exclusiveMinimum']}"
    if "maxLength" in schema:
        return f", {schema.get('minLength', 0)} to {schema['maxLength']} characters"
    return ", not empty" if schema.get("minLength") else ""


def example_part(protocol: Protocol, method: Method, example: dict[str, Any]) -> str:
    to_daemon = method.direction == "client-to-daemon"
    message: dict[str, Any] = {"jsonrpc": "2.0"}
    if method.kind == "request":
        message["id"] = 1
    message |= {"method": method.name, "params": example["params"]}
    lines = [f"{'-->' if to_daemon else '<--'} {pretty(message, 4)}"]
    if "result" in example:
        lines.append(f"<-- {pretty({'jsonrpc': '2.0', 'id': 1, 'result': example['result']}, 4)}")
    if "error" in example:
        answer = {"jsonrpc": "2.0", "id": 1, "error": error_object(protocol, example["error"])}
        lines.append(f"<-- {pretty(answer, 4)}")
    return "\n".join([example["description"], "", "```", *lines, "```"])


def pretty(value: Any, indent: int, width: int = 116) -> str:
    """JSON on one line if it fits, else one member a line; on the wire it is always one line."""
    line = json.dumps(value, ensure_ascii=False)
    if indent + len(line) <= width or not isinstance(value, (dict, list)) or not value:
        return line
    inner = " " * (indent + 2)
    if isinstance(value, dict):
        members = []
        for name, member in value.items():
            label = f"{json.dumps(name, ensure_ascii=False)}: "
            members.append(label + pretty(member, indent + 2, width - len(label)))
        return "{\n" + ",\n".join(inner + member for member in members) + "\n" + " " * indent + "}"
    return "[\n" + ",\n".join(inner + pretty(item, indent + 2, width) for item in value) + "\n" + " " * indent + "]"


def type_section(protocol: Protocol, name: str, schema: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}"
    yield schema["description"]
    if "properties" in schema:
        yield table(("field", "type", "presence", "meaning"), field_rows(protocol, schema, ""))
    else:
        pattern = f" matching `{schema['pattern']}`" if "pattern" in schema else ""
        yield f"Type: {type_text(schema)}{pattern}"


def anchor(title: str) -> str:
    """The anchor that common Markdown renderers give to a heading."""
    return title.lower().replace(".", "")


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
