"""Cuts and re-attaching: every byte once, whatever happens to the connections."""

from __future__ import annotations

import hashlib
import random
import re
import time

import pytest
from shim_box import PATH, Box, Collector, put_data, read_text, wait_until
from shim_frames import parse

MODES = ["keep", "kill_group", "kill_tree"]


@pytest.mark.parametrize("mode", MODES[:2])
def test_cuts_at_random_places_lose_and_double_nothing(box: Box, mode: str) -> None:
    box.emulator.config(on_disconnect=mode)
    chance = random.Random(7)
    data = put_data(box, 5_000_000, 1)
    for round in range(6):
        id = f"cut-{round}"
        got = Collector(box, id)
        words: tuple[str, ...] = ("run", id, "--", "sh", "-c", f"echo x >>/workspace/n{round}; cat /workspace/data")
        while True:
            with box.open(*words) as stream:
                text = read_text(stream, chance.choice([1, 100, 5000, 100_000, 900_000, 3_000_000]))
                done = re.search(r"^exit ", text, re.M) and text.endswith("\n") and "\nexit reason" in text[-400:]
            if got.take(text, cut=True) is not None:
                words = ("follow", id, str(got.pos))
            if done or got.calls > 12:
                break
            words = words if words[0] == "run" else ("follow", id, str(got.pos))
        end = got.finish()
        assert hashlib.sha256(got.data).digest() == hashlib.sha256(data).digest()
        assert end.exit.number("code") == 0 and end.exit.number("dropped") == 0
        assert box.plain(f"cat /workspace/n{round}") == "x\n"
        box.call("ack", id, str(got.pos), "--done")
    assert box.ps() == {}


@pytest.mark.parametrize("mode", MODES[:2])
def test_cuts_in_the_first_milliseconds(box: Box, mode: str) -> None:
    """The same request again until it is answered: the command runs once."""
    box.emulator.config(on_disconnect=mode)
    chance = random.Random(3)
    for number in range(40):
        id = f"early-{number}"
        words = ("run", id, "--", "sh", "-c", f"echo {id} >>/workspace/ran; echo out; echo err >&2; exit 9")
        for _ in range(3):
            connection = box.emulator.connect()
            box.emulator.send(connection, "POST", box.emulator.path(box.id, "/exec"), {"command": [PATH, *words], "timeout_seconds": 60})
            time.sleep(chance.random() * 0.012)
            connection.close()
        made = box.call(*words)
        assert made.merged == b"out\nerr\n" and made.exit.number("code") == 9
    assert sorted(box.plain("cat /workspace/ran").split()) == sorted(f"early-{number}" for number in range(40))


def test_where_the_whole_tree_is_killed_that_is_found_out(box: Box) -> None:
    box.emulator.config(on_disconnect="kill_tree")
    with box.open("run", "x", "--", "sh", "-c", "echo begun; sleep 300; echo x >/workspace/proof") as stream:
        assert "begun" in read_text(stream, until="begun")
    box.until_processes(0)
    last = box.follow("x").last
    assert (last.name, last["claim"], last["started"]) == ("lost", "started", "unknown")


def test_a_dropped_connection_does_not_end_the_command(box: Box) -> None:
    with box.open("run", "x", "--", "sh", "-c", "echo one; sleep 0.5; echo two") as stream:
        read_text(stream, until="one")
    made = box.follow("x")
    assert made.out == b"one\ntwo\n" and made.exit.number("code") == 0


def test_several_followers_get_the_same(box: Box) -> None:
    data = put_data(box, 700_000, 12)
    with box.open("run", "x", "--", "sh", "-c", "cat /workspace/data; sleep 0.3; echo end") as first, box.open("follow", "x", "0") as second:
        texts = [read_text(first), read_text(second)]
    assert [parse(text).out for text in texts] == [data + b"end\n"] * 2


def test_a_follower_that_was_overtaken_and_obstructs_is_ended(box: Box) -> None:
    """A connection that nobody reads, but that nobody has ended either, must not hold the spool."""
    box.emulator.config(on_disconnect_output="block")
    put_data(box, 6_000_000, 13)
    with box.open("run", "x", "--spool-cap", "8000000", "--", "sh", "-c", "cat /workspace/data; sleep 300") as stream:
        read_text(stream, 1000)
    wait_until(lambda: box.ps()["x"]["pos"] == "6000000", "the output is there")
    assert box.ps()["x"]["followed"] == "1"
    box.call("ack", "x", "6000000")
    wait_until(lambda: box.ps()["x"]["start"] == "6000000", "released")
    assert box.ps()["x"]["followed"] == "0"


def test_following_from_anywhere(box: Box) -> None:
    data = put_data(box, 400_000, 2)
    box.run("cat", "/workspace/data", id="x")
    for start in (0, 1, 65535, 65536, 65537, 131072, 399_999, 400_000):
        made = box.follow("x", start)
        assert made.out == data[start:] and made.start == start and made.exit.number("pos") == 400_000
    last = box.follow("x", 400_001).last
    assert (last.name, last["name"]) == ("error", "bad_offset")


def test_positions_are_the_same_in_every_transmission(box: Box) -> None:
    script = "for i in $(seq 3000); do echo out$i; echo error$i >&2; done"
    first = box.sh(script, id="x")
    assert first.out.count(b"\n") == first.err.count(b"\n") == 3000
    for start in [0, 7, 1000, len(first.merged) // 2, len(first.merged) - 3]:
        made = box.follow("x", start)
        assert made.merged == first.merged[start:]
        assert (made.exit["out"], made.exit["err"]) == (first.exit["out"], first.exit["err"])


def test_it_leaves_by_itself_before_a_limit(box: Box) -> None:
    data = put_data(box, 3_000_000, 4)
    got = Collector(box, "x")
    made = got.take(box.emulator.exec(box.id, PATH, "run", "x", "--max-bytes", "500000", "--", "cat", "/workspace/data").text(), cut=False)
    while made.last.name == "more":
        assert made.last["why"] == "bytes"
        made = got.take(box.emulator.exec(box.id, PATH, "follow", "x", str(got.pos), "--max-bytes", "500000").text(), cut=False)
    assert got.data == data and got.calls >= 5
    begin = time.monotonic()
    made = box.call("run", "y", "--max-seconds", "1", "--", "sleep", "300")
    assert made.last["why"] == "seconds" and 1 <= time.monotonic() - begin < 2
    box.call("kill", "y")


def test_keepalives(box: Box) -> None:
    made = box.run("sleep", "0.5", options=("--keepalive-ms", "100"))
    assert 2 <= len(made.named("alive")) <= 5


def test_lines_arrive_live(box: Box) -> None:
    with box.open("run", "x", "--raw", "--", "sh", "-c", "for i in 1 2 3; do date +%s%N; sleep 0.3; done") as stream:
        delays = []
        for line in stream:
            for stamp in re.findall(r"^(\d{19})$", line.get("stdout", ""), re.M):
                delays.append(time.time() - int(stamp) / 1e9)
    assert len(delays) == 3 and sorted(delays)[1] < 0.1
