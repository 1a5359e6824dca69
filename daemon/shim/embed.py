"""Writes the C++ source that holds the shim: embed.py BINARY BUILD ARCHITECTURE OUTPUT."""

import hashlib
import pathlib
import sys


def main() -> None:
    binary, build, architecture, output = sys.argv[1:]
    content = pathlib.Path(binary).read_bytes()
    rows = (",".join(str(byte) for byte in content[at : at + 32]) for at in range(0, len(content), 32))
    text = f"""// Generated from the shim's executable; see embed.py.
#include "shim/shim_binary.hpp"

namespace sandboxd::shim {{

namespace {{
constexpr unsigned char content[] = {{
{",".join(chr(10) + row for row in rows)}
}};
}}

std::string_view binary() {{ return {{reinterpret_cast<const char*>(content), sizeof content}}; }}
std::string_view hash() {{ return "{hashlib.sha256(content).hexdigest()}"; }}
std::string_view build() {{ return "{build}"; }}
std::string_view architecture() {{ return "{architecture}"; }}

}} // namespace sandboxd::shim
"""
    pathlib.Path(output).write_text(text)


if __name__ == "__main__":
    main()
