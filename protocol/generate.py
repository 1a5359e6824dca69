#!/usr/bin/env python3
"""Makes everything that is derived from the protocol's source files.

The sources are errors.json, types.json, one file a method in methods/, and preface.md (the part of the reference that
is prose). From them come the C++ table of errors, the OpenRPC document that the daemon answers to rpc.discover
(embedded as C++), and REFERENCE.md.

  generate.py --out DIR   C++ for the build, below DIR: protocol/errors.gen.hpp, protocol/openrpc.hpp, openrpc.gen.cpp
  generate.py --openrpc   the OpenRPC document, on standard output
  generate.py --docs      REFERENCE.md, beside this file
  generate.py --check     nothing written; exit 1 if a source is inconsistent or REFERENCE.md is out of date

Exit codes: 0 ok, 1 inconsistent sources or drift, 2 usage. Output depends on the sources alone, so a repeated run
changes no file, and a file whose content would stay the same is not touched. Standard library only.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from openrpc import OPENRPC_VERSION, openrpc
from reference import reference
from sources import HERE, Protocol, SourceError, load

REFERENCE = HERE / "REFERENCE.md"

CPP_NOTICE = "// Made by protocol/generate.py from protocol/*.json and protocol/methods/*.json. Not edited by hand."


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
    """Leaves an identical file alone, so that a change in a method does not recompile every user of the errors."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Makes C++ and documents from the protocol's source files.")
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--out", type=Path, metavar="DIR", help="write the C++ files below DIR")
    action.add_argument("--openrpc", action="store_true", help="print the OpenRPC document")
    action.add_argument("--docs", action="store_true", help="write REFERENCE.md")
    action.add_argument("--check", action="store_true", help="report inconsistent sources and an old REFERENCE.md")
    chosen = parser.parse_args(arguments)
    try:
        protocol = load()
        if chosen.out:
            write_if_changed(chosen.out / "protocol" / "errors.gen.hpp", errors_header(protocol))
            write_if_changed(chosen.out / "protocol" / "openrpc.hpp", openrpc_header())
            write_if_changed(chosen.out / "openrpc.gen.cpp", openrpc_source(protocol))
        elif chosen.openrpc:
            print(json.dumps(openrpc(protocol), indent=2, ensure_ascii=False))
        elif chosen.docs:
            write_if_changed(REFERENCE, reference(protocol))
        elif not REFERENCE.exists() or REFERENCE.read_text(encoding="utf-8") != reference(protocol):
            raise SourceError(f"{REFERENCE} is out of date: run generate.py --docs")
    except SourceError as problem:
        print(f"generate.py: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
