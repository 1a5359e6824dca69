"""Writes the C++ source that holds the helper's files: embed.py OUTPUT FILE..."""

import pathlib
import sys


def main() -> None:
    output, *files = sys.argv[1:]
    branches = "".join(branch(pathlib.Path(each)) for each in files)
    pathlib.Path(output).write_text(
        f"""// Generated from helper.py and its like; see embed.py.
#include "sync/helper.hpp"

namespace sandboxd::sync {{

std::string_view helper_file(std::string_view name) {{
{branches}    return {{}};
}}

}} // namespace sandboxd::sync
"""
    )


def branch(file: pathlib.Path) -> str:
    text = file.read_text(encoding="ascii")
    # Several literals, as a compiler need not take one of more than 64 KiB; the delimiter cannot be part of Python.
    pieces = "\n".join(f'R"PY!({text[at : at + 8192]})PY!"' for at in range(0, len(text), 8192))
    return f'    if (name == "{file.stem}") {{\n        return {pieces};\n    }}\n'


if __name__ == "__main__":
    main()
