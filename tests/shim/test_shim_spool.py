"""Output that nobody takes: bounded, kept in order, and given up only where nobody attends. And disks that are full."""

from __future__ import annotations

import re
import time

import pytest
from shim_box import HOME, PATH, Box, Collector, put_data, read_acknowledging, read_text, wait_until
from shim_frames import Transcript, parse


def test_a_full_spool_blocks_until_it_is_acknowledged(box: Box) -> None:
    data = put_data(box, 2_000_000, 5)
    got = Collector(box, "x")
    with box.open("run", "x", "--spool-cap", "262144", "--", "cat", "/workspace/data") as stream:
        text = ""
        acknowledged = 0
        for line in stream:
            text += line.get("stdout", "")
            for pos in re.findall(r"^full pos=(\d+) ", text, re.M):
                if int(pos) > acknowledged:
                    acknowledged = int(pos)
                    assert box.call("ack", "x", pos).last["state"] == "running"
    made = got.take(text, cut=False)
    assert got.data == data and made.exit.number("code") == 0 and made.exit.number("dropped") == 0
    assert len(made.named("full")) >= 4
    assert made.exit.number("pos") - int(box.ps()["x"]["start"]) <= 262144 + 4 * 65536
    # What was acknowledged is gone, and that is said.
    (gap,) = box.follow("x", 10).named("gap")
    assert int(gap["pos"]) == 10 and int(gap["n"]) == int(box.ps()["x"]["start"]) - 10


def test_a_blocked_command_waits_and_can_be_killed(box: Box) -> None:
    data = put_data(box, 1_000_000, 13)
    with box.open("run", "x", "--spool-cap", "131072", "--", "cat", "/workspace/data") as stream:
        text = read_text(stream, 131072)
        wait_until(lambda: box.ps()["x"]["pos"] == "131072", "full")
        time.sleep(0.2)
        assert box.ps()["x"]["pos"] == "131072"
        assert box.call("kill", "x").last["confirmed"] == "yes"
        made = parse(text + read_text(stream))
    assert made.exit["reason"] == "cancelled"
    assert made.out == data[: len(made.out)]


def test_only_an_unattended_command_drops_and_counts(box: Box) -> None:
    data = put_data(box, 3_000_000, 6)
    with box.open("run", "x", "--spool-cap", "262144", "--spool-grace-ms", "400", "--", "sh", "-c", "cat /workspace/data; echo finished >/workspace/proof") as stream:
        read_text(stream, 10_000)
        for _ in range(6):
            time.sleep(0.15)
            box.call("ack", "x", "0")  # somebody cares: blocked, not dropped
        assert box.plain("cat /workspace/proof 2>/dev/null") == "" and box.ps()["x"]["start"] == "0"
    wait_until(lambda: box.plain("cat /workspace/proof 2>/dev/null") == "finished\n", "unattended: it gets through")
    made = box.follow("x", 0)
    (gap,) = made.named("gap")
    n = int(gap["n"])
    assert gap["pos"] == "0" and made.out == data[n:] and n > 2_000_000 and made.exit.number("dropped") == n


@pytest.mark.parametrize("how", ["run", "follow"])
def test_one_who_only_waits_for_the_end_does_not_count_as_attendance(box: Box, how: str) -> None:
    """Asked again and again within the grace, as a daemon does whose connections are cut: the command gets through all the same."""
    data = put_data(box, 3_000_000, 6)
    words = ("--spool-cap", "262144", "--spool-grace-ms", "1500", "--", "sh", "-c", "cat /workspace/data; echo finished >/workspace/proof")
    with box.open("run", "x", "--unattended", *words) as stream:
        read_text(stream, 10_000)
    again = ("run", "x", "--unattended", *words) if how == "run" else ("follow", "x", "0", "--unattended")
    begin = time.monotonic()
    while box.ps()["x"]["state"] == "running":
        assert time.monotonic() - begin < 30
        with box.open(*again) as stream:
            read_text(stream, 1000)
        time.sleep(0.1)
    assert box.plain("cat /workspace/proof") == "finished\n"
    made = box.follow("x", 0)
    (gap,) = made.named("gap")
    n = int(gap["n"])
    assert gap["pos"] == "0" and made.out == data[n:] and made.exit.number("dropped") == n > 2_000_000


def test_one_who_stays_and_waits_for_the_end_sees_it(box: Box) -> None:
    data = put_data(box, 3_000_000, 6)
    made = box.call("run", "x", "--unattended", "--spool-cap", "262144", "--spool-grace-ms", "400", "--", "cat", "/workspace/data")
    got, gaps, calls = len(made.out), 0, 1
    while made.last.name == "more" and calls < 30:  # it was overtaken by the dropping
        assert made.last["why"] == "superseded"
        made = box.follow("x", made.pos, "--unattended")
        got, gaps, calls = got + len(made.out), gaps + sum(int(gap["n"]) for gap in made.named("gap")), calls + 1
    assert got + gaps == len(data) and made.exit.number("code") == 0 and made.exit.number("dropped") > 2_000_000


def test_full_is_said_once_a_step(box: Box) -> None:
    """Once for each MiB sent, and once when the command is blocked; after an ack again."""
    put_data(box, 8_000_000, 6)
    with box.open("run", "x", "--spool-cap", str(4 << 20), "--", "cat", "/workspace/data") as stream:
        text = read_text(stream, until=f"full pos={4 << 20} ")
        for _ in range(3):
            box.call("ack", "x", "0")
        box.call("ack", "x", str(4 << 20))
        box.call("kill", "x")
        made = parse(text + read_text(stream))
    full = [int(one["pos"]) for one in made.named("full")]
    assert all(int(one["end"]) - int(one["start"]) > 1966080 for one in made.named("full")[:1])
    assert 1 <= full.count(4 << 20) <= 1 + 1 + 3
    before = [pos for pos in full if pos < 4 << 20]
    assert all(b - a >= 1 << 20 for a, b in zip(before, before[1:], strict=False)) and full == sorted(full)


@pytest.mark.parametrize("fill", ["/tmp", "/tmp /var/tmp"])
def test_a_full_disk_is_survived_in_memory(box: Box, fill: str) -> None:
    data = put_data(box, 9_000_000, 8)
    for place in fill.split():
        box.plain(f"cat /dev/zero >{place}/fill 2>/dev/null; sync; df {place} | tail -1")
    with box.open("run", "x", "--", "cat", "/workspace/data") as stream:
        made = parse(read_acknowledging(box, stream))
    assert made.out == data and made.exit.number("dropped") == 0
    assert len(made.named("full")) >= 2


def test_spool_files_are_not_seen_and_leave_with_the_runner(box: Box) -> None:
    put_data(box, 3_000_000, 9)
    before = box.plain("df --output=used /tmp | tail -1; ls -A /tmp")
    box.run("cat", "/workspace/data", id="x")
    assert box.plain("ls -A /tmp") == ""
    box.call("ack", "x", "0", "--done")
    wait_until(lambda: box.plain("df --output=used /tmp | tail -1; ls -A /tmp") == before, "the space is back")


FILL = {"size=40k": "{ cat /dev/zero >$D/fill; true; }", "nr_inodes=8": "{ touch $D/fill1 $D/fill2 $D/fill3 $D/fill4 $D/fill5 $D/fill6 $D/fill7 $D/fill8; true; }"}


def on_full_disk(box: Box, limit: str, prepare: str, script: str) -> list[Transcript]:
    """What `script` prints in a mount table of its own, where the claims are on a small full file system: $S is the shim. `prepare`
    comes before the filling."""
    begin = f"export D={HOME}/claims S={PATH}; mount -t tmpfs -o {limit},mode=1777 none $D && {{ {prepare}; }} && {{ {FILL[limit]}; }} 2>/dev/null; "
    answer = box.emulator.exec(box.id, "unshare", "-rm", "sh", "-c", begin + script)
    if "deepinfra-shim/1" not in answer.text():
        pytest.skip(f"no private mounts here: {answer}")
    return [parse("deepinfra-shim/1 " + one) for one in answer.text().split("deepinfra-shim/1 ")[1:]]


@pytest.mark.parametrize("limit", FILL)
def test_no_claim_no_start(box: Box, limit: str) -> None:
    (made,) = on_full_disk(box, limit, ":", "$S run x -- touch /workspace/ran")
    assert (made.last.name, made.last["name"], made.last["errno"], made.last["started"]) == ("error", "claim_failed", "28", "no")
    assert box.plain("ls /workspace") == ""


@pytest.mark.parametrize("limit", FILL)
def test_on_a_full_disk_the_commands_can_run_that_make_room(box: Box, limit: str) -> None:
    """By claims kept in reserve: a few at once, and any number one after another when they are acknowledged."""
    chain = "$S run a0 -- echo 0; for i in 1 2 3 4 5 6 7 8 9; do $S run a$i --ack a$((i-1)) -- echo $i; done; "
    script = "$S run b1 -- echo b; $S run b2 -- echo b; $S run b3 -- touch ran; $S run b1 -- touch ran; $S run b3 --ack b1 --ack b2 -- echo acked; rm $D/fill*; $S run b4 -- echo room"
    made = on_full_disk(box, limit, "$S probe >/dev/null", chain + "$S ack a8 0 --done >/dev/null; $S run c -- echo c; " + script)
    chain_made, (c, b1, b2, full, again, acked, room) = made[:10], made[10:]
    assert [one.out for one in chain_made] == [b"%d\n" % i for i in range(10)] and all(one.exit["code"] == "0" for one in chain_made)
    assert [(one.hello["state"], one.out) for one in (c, b1, b2)] == [("new", b"c\n"), ("new", b"b\n"), ("new", b"b\n")]
    assert (full.last["name"], full.last["errno"]) == ("claim_failed", "28")
    assert again.hello["state"] == "attached" and again.out == b"b\n"
    assert (acked.out, room.out) == (b"acked\n", b"room\n") and box.plain("ls /workspace") == ""


def test_streams_that_alternate_byte_by_byte(box: Box) -> None:
    """The index of streams is bounded as well: it fills long before the spool does, and an `ack` relieves it."""
    writer = "import os\nfor i in range(300000):\n os.write(1, b'%c' % (33 + i % 90)); os.write(2, b'%c' % (33 + i % 89))"
    with box.open("run", "x", "--raw", "--", "python3", "-c", writer) as stream:
        made = parse(read_acknowledging(box, stream))
    assert made.out == bytes(33 + i % 90 for i in range(300000)) and made.err == bytes(33 + i % 89 for i in range(300000))
    assert box.follow("x", made.pos - 1000).merged == made.merged[-1000:]
