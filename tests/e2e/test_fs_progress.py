"""fs.progress: how a transfer gets on, from its beginning to its end and in that order."""

from __future__ import annotations

import os
import pathlib
from itertools import groupby, pairwise
from typing import Any

import pytest

from support.emulator import Emulator
from support.rpc import DEFAULT_KEY, Peer

CONTENT = "/v1/sandboxes/{id}/fs/content"
SIZE = 20_000_000  # more than one part
PHASES = {"push": ["preparing", "sending", "unpacking"], "put": ["preparing", "sending", "unpacking"],
          "get": ["packing", "receiving"], "pull": ["packing", "receiving"]}
NAME = "mine"


def followed(peer: Peer, method: str, **params: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The answer, and what was told before it; nothing may come after it."""
    asked = peer.send("fs." + method, {"key": DEFAULT_KEY, **params})
    told = []
    while (message := peer.read()).get("id") != asked:
        if message["method"] == "fs.progress":
            told.append(message["params"])
    asked_again = peer.send("daemon.ping")
    assert peer.read().get("id") == asked_again
    return message["result"], told


def of(method: str, here: pathlib.Path) -> dict[str, Any]:
    if method == "push":
        return {"files": [{"host": str(here / "f"), "remote": "d/f"}, {"host": str(here / "g"), "remote": "d/g"}]}
    return {"host": str(here), "remote": "d"} if method == "put" else {"host": str(here / "back"), "remote": "d"}


@pytest.fixture
def here(peer: Peer, emulator: Emulator, tmp_path: pathlib.Path) -> pathlib.Path:
    """Files on both sides, and a line on which a part takes a while on its way."""
    made = tmp_path / "here"
    made.mkdir()
    for name in ("f", "g"):
        (made / name).write_bytes(os.urandom(SIZE // 2))
    peer.sh(f"mkdir d; cd d; for i in f g; do head -c {SIZE // 2} /dev/urandom > $i; done")
    emulator.fault({"stall_after_bytes": 1_000_000, "stall_ms": 400}, method="GET", route=CONTENT)
    emulator.fault({"latency_after_ms": 400}, method="PUT", route=CONTENT)
    return made


@pytest.mark.parametrize("method", PHASES)
def test_all_of_it_is_told_in_order(peer: Peer, here: pathlib.Path, method: str) -> None:
    result, told = followed(peer, method, transfer=NAME, **of(method, here))
    assert {(each["transfer"], each["key"]["task"]) for each in told} == {(NAME, "default")}
    assert [phase for phase, _ in groupby(told, lambda each: each["phase"])] == PHASES[method]
    beginning, *moving = told
    assert (beginning["done_bytes"], beginning["total_bytes"]) == (0, None)
    assert {each["total_bytes"] for each in moving} == {result["wire_bytes" if "packing" in PHASES[method] else "bytes"]}
    assert all(one["done_bytes"] <= two["done_bytes"] for one, two in pairwise(moving))
    assert any(0 < each["done_bytes"] < each["total_bytes"] for each in moving)
    for phase in PHASES[method][1:]:
        last = [each for each in moving if each["phase"] == phase][-1]
        assert last["done_bytes"] == last["total_bytes"], phase


def test_a_part_that_has_to_come_again_is_not_told_as_more(peer: Peer, emulator: Emulator, here: pathlib.Path) -> None:
    """A connection that breaks amid a part: its beginning comes a second time."""
    emulator.clear_faults()
    for stalls_at in (5_000_000, 1_000_000):  # so that something is told of each try
        emulator.fault({"stall_after_bytes": stalls_at, "stall_ms": 600, "cut_after_bytes": 6_000_000}, method="GET", route=CONTENT)
    result, told = followed(peer, "get", transfer=NAME, **of("get", here))
    assert [fault["used"] for fault in emulator.faults()] == [1, 1]
    receiving = [each["done_bytes"] for each in told if each["phase"] == "receiving"]
    assert receiving == sorted(receiving)
    assert max(each["done_bytes"] for each in told) == result["wire_bytes"] == told[-1]["total_bytes"] == told[-1]["done_bytes"]


@pytest.mark.parametrize("method", ["push", "get"])
def test_who_has_given_no_name_is_told_nothing(peer: Peer, here: pathlib.Path, method: str) -> None:
    _, told = followed(peer, method, **of(method, here))
    assert told == []
