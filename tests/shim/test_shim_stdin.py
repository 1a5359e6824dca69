"""Input in chunks at offsets: nothing is fed twice, nothing out of order."""

from __future__ import annotations

import hashlib
import os
import random

import pytest
from shim_box import Box, b64, read_text, wait_until
from shim_frames import parse


def feed(box: Box, id: str, data: bytes, at: int, *options: str) -> dict[str, str]:
    return box.call("stdin", id, str(at), "--data", b64(data), *options).last.fields


def test_stdin_in_chunks_none_fed_twice(box: Box) -> None:
    data = os.urandom(300_000)
    with box.open("run", "x", "--stdin", "open", "--", "sh", "-c", "sha256sum; echo end") as stream:
        box.until_started("x")
        at = 0
        for size in (1, 70_000, 80_000, 80_000, 69_999):
            chunk = data[at : at + size]
            for _ in range(2):  # the answer was lost: again
                told = feed(box, "x", chunk, at)
                assert (told["state"], told["accepted"], told["written"]) == ("open", str(at + size), str(at + size))
            at += size
        assert box.call("stdin", "x", str(at), "--eof").last["state"] == "eof"
        assert box.call("stdin", "x", str(at), "--eof").last["state"] in ("eof", "ended")
        made = parse(read_text(stream))
    assert made.out.decode().split() == [hashlib.sha256(data).hexdigest(), "-", "end"]
    assert box.call("stdin", "x", "0", "--data", "YQ==").last["state"] == "ended"


def test_stdin_back_pressure_and_order(box: Box) -> None:
    with box.open("run", "x", "--stdin", "open", "--", "sh", "-c", "sleep 300") as stream:
        box.until_started("x")
        assert feed(box, "x", b"a" * 90_000, 0, "--wait-ms", "100")["written"] == "65536"
        assert feed(box, "x", b"b", 90_000, "--wait-ms", "100") == {"state": "busy", "accepted": "90000", "written": "65536"}
        assert feed(box, "x", b"b", 100_000)["state"] == "early"
        box.call("kill", "x")
        read_text(stream)


def test_stdin_that_the_command_does_not_want(box: Box) -> None:
    with box.open("run", "x", "--stdin", "open", "--", "sh", "-c", "head -c 5; exec <&-; sleep 300") as stream:
        box.until_started("x")
        feed(box, "x", b"12345", 0)
        wait_until(lambda: feed(box, "x", b"", 5)["state"] == "closed", "the command has closed it")
        assert feed(box, "x", b"more", 5)["state"] == "closed"
        box.call("kill", "x")
        assert parse(read_text(stream)).out == b"12345"
    box.run("true", id="y")
    assert feed(box, "nothing", b"x", 0)["state"] == "lost"


@pytest.mark.parametrize("size", [0, 1, 131_073, 5_000_000])
def test_stdin_from_a_file(box: Box, size: int) -> None:
    data = random.Random(size).randbytes(size)
    box.emulator.put(box.id, "/workspace/in %", data)
    made = box.run("sha256sum", options=("--stdin", "file:/workspace/in %25", "--unlink-stdin"))
    assert made.out.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert box.plain("ls /workspace") == ""
    last = box.run("touch", "/workspace/ran", id="z", options=("--stdin", "file:/workspace/gone")).last
    assert (last["name"], last["errno"], last["started"]) == ("stdin_failed", "2", "no") and "z" not in box.ps()


def test_stdin_chunks_from_files(box: Box) -> None:
    data = os.urandom(2_000_000)
    with box.open("run", "x", "--stdin", "open", "--", "sha256sum") as stream:
        box.until_started("x")
        for at in (0, 1_000_000):
            box.emulator.put(box.id, "/workspace/chunk", data[at : at + 1_000_000])
            told = box.call("stdin", "x", str(at), "--file", "/workspace/chunk", "--unlink", *(("--eof",) if at else ())).last
            assert told["written"] == str(at + 1_000_000)
        assert parse(read_text(stream)).out.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert box.plain("ls /workspace") == ""
