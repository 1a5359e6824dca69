"""The measurements work, and what they count is right on any machine; how fast it is, is for a quiet one to say."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

RUN = pathlib.Path(__file__).with_name("run.py")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(RUN), *arguments], capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", ["requests", "crowd"])
def test_counts_are_met(name: str) -> None:
    done = run("--quick", name)
    assert done.returncode == 0 and "MISSED" not in done.stdout and "| met" in done.stdout, done


def test_ratios_can_be_measured() -> None:
    done = run("--quick", "ping", "call", "terminal", "ensure", "start", "stalled_reader", "small_files")
    assert done.returncode in (0, 1) and done.stdout.count("| met") + done.stdout.count("| MISSED") == 17, done


def test_an_unknown_figure_is_refused() -> None:
    done = run("nonsense")
    assert done.returncode == 2 and "no such figure: nonsense" in done.stderr
