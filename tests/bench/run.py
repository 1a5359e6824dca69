"""Measures what the daemon promises and prints a table: python3 tests/bench/run.py [--quick] [FIGURE...]

Builds nothing. The binaries are $DEEPINFRA_SANDBOXD and $DEEP_SANDS_EMULATOR, else the build tree's. Exit status: 0 when every
target was met, 1 when one was missed. Standard library, and for one figure tar and curl.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
import time
import traceback

import bench_client  # noqa: F401
import calls  # noqa: F401
import residence  # noqa: F401
import streams  # noqa: F401
import transfers  # noqa: F401
from bench import FIGURES, Row, Scene

HEADINGS = ("what", "target", "measured", "")


def table(rows: list[Row]) -> str:
    """Markdown, aligned for people."""
    verdict = {True: "met", False: "MISSED", None: ""}
    lines = [HEADINGS, *((row.what, row.target, row.measured, verdict[row.ok]) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    text = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines]
    text.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(text)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures what the daemon promises, side by side with what it is compared to.")
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="one or more of: " + ", ".join(FIGURES) + "; default: all")
    parser.add_argument("--quick", action="store_true", help="few turns: shows that measuring works")
    options = parser.parse_args()
    unknown = [name for name in options.figures if name not in FIGURES]
    if unknown:
        parser.error(f"no such figure: {', '.join(unknown)}")
    rows: list[Row] = []
    for name in options.figures or FIGURES:
        begin = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix="bench-") as directory:
                rows += FIGURES[name](Scene(pathlib.Path(directory), options.quick))
        except Exception as error:  # the others are told all the same
            traceback.print_exc()
            rows.append(Row(name, "-", f"not measured: {type(error).__name__}", False))
        print(f"{name}: {time.monotonic() - begin:.1f} s", file=sys.stderr)
    print(table(rows))
    print(f"\n{os.cpu_count()} processors, load average {os.getloadavg()[0]:.1f}", file=sys.stderr)
    return 1 if any(row.ok is False for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
