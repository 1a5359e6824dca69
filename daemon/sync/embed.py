"""Writes the C++ source that holds the helper, whose files are joined in the order given: embed.py OUTPUT FILE..."""

import pathlib
import sys


def main() -> None:
    output, *files = sys.argv[1:]
    text = "\n\n".join(pathlib.Path(each).read_text(encoding="ascii") for each in files)
    # Several literals, as a compiler need not take one of more than 64 KiB; the delimiter cannot be part of Python.
    pieces = "\n".join(f'R"PY!({text[at : at + 8192]})PY!"' for at in range(0, len(text), 8192))
    pathlib.Path(output).write_text(
        f"""// Generated from helper.py and its like; see embed.py.
#include "sync/helper.hpp"

namespace sandboxd::sync {{

std::string_view helper_source() {{
    static constexpr std::string_view text =
{pieces};
    return text;
}}

}} // namespace sandboxd::sync
"""
    )


if __name__ == "__main__":
    main()
