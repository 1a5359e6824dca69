"""The program that runs inside sandboxes for transfers, where what matters cannot be arranged from outside."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "daemon" / "sync"


@pytest.fixture
def helper(tmp_path: pathlib.Path) -> dict[str, Any]:
    """Its names; its /workspace is the directory of the test."""
    text = "\n".join((SOURCES / f"{name}.py").read_text() for name in ("helper", "helper_remove"))
    names: dict[str, Any] = {}
    exec(compile(text, "helper", "exec"), names)
    names["WORKSPACE"] = names["SYNC"] = os.fsencode(tmp_path)
    return names


@pytest.mark.parametrize("verb", ["sweep", "drop"])
def test_an_operation_that_is_still_at_work_is_swept_all_the_same(helper: dict[str, Any], tmp_path: pathlib.Path, verb: str,
                                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / "dead"
    left.mkdir()
    (left / "part-000000").write_text("x")
    seen = os.listdir
    refused = []

    def listdir(path: bytes) -> list[bytes]:
        """Whatever has been seen of its directory, it makes one more file there, as it does for each that it puts in place."""
        names = seen(path)
        try:
            (left / "new-1").write_text("stale")
        except FileNotFoundError:
            refused.append(path)
        return names

    monkeypatch.setattr(helper["os"], "listdir", listdir)
    operation = {"sweep": "alive", "drop": "dead"}[verb]
    helper[verb]({"op": operation, "live": []})
    monkeypatch.undo()
    assert refused and list(tmp_path.iterdir()) == []
