"""Many connections to one runner, and followers that nobody reads: left behind by a platform that does not end what it dropped."""

from __future__ import annotations

import time

from shim_box import PATH, Box, Collector, put_data, read_text, wait_until

FOLLOWERS = 112  # at once, and 16 other connections
WAITING = "echo hi; read line; echo $line; until [ -e /workspace/go ]; do sleep 0.01; done; echo bye; exit 3"


def crowd(box: Box, id: str, count: int) -> None:
    """So many followers with nobody behind them; returns when each has said where it stands."""
    box.plain(f"mkdir -p /workspace/f; for i in $(seq {count}); do {PATH} follow {id} 0 >/workspace/f/$i 2>/dev/null </dev/null & done")
    greeted = "cat /workspace/f/* | grep -c '^deepinfra-shim/1'"
    wait_until(lambda: int(box.plain(greeted)) == count, f"{count} followers: {box.plain(greeted)}", 60)


def test_leftover_followers_take_no_place_from_others(box: Box) -> None:
    with box.open("run", "x", "--stdin", "open", "--", "sh", "-c", WAITING) as first:
        read_text(first, until="hi\n")
        crowd(box, "x", FOLLOWERS + 20)
        # Those who came too late were told so, and not that the runner is gone.
        endings = box.plain("cat /workspace/f/* | grep -E '^(lost|error|exit) ' | sed 's/ at=.*//' | sort | uniq -c").split("\n")
        assert all("error name=busy errno=16" in line for line in endings if line), endings
        # Whoever has a word to say is heard.
        assert box.ps()["x"]["state"] == "running"
        assert box.call("stdin", "x", "0", "--data", "eW91Cg==", "--eof").last["state"] in ("open", "eof")
        assert box.call("ack", "x", "0").last["state"] == "running"
        # And whoever comes later takes the place of one that has been silent.
        wait_until(lambda: box.plain(f"timeout 0.2 {PATH} follow x 0 | head -1").find("state=attached") > 0, "a place becomes free")
        with box.open("follow", "x", "0") as later:
            text = read_text(later, until="you\n")
            box.plain("touch /workspace/go")
            text += read_text(later)
        first_text = read_text(first)
    got = Collector(box, "x")
    assert got.take(text, cut=False) is not None and got.data == b"hi\nyou\nbye\n"
    assert got.last is not None and got.last.exit["code"] == "3"
    assert "superseded" in box.plain("grep -h ^more /workspace/f/*") + first_text


def test_a_kill_gets_through_a_crowd(box: Box) -> None:
    with box.open("run", "x", "--", "sleep", "600") as stream:
        read_text(stream, until="state=new")
        crowd(box, "x", FOLLOWERS + 20)
        assert box.call("kill", "x").last.fields | {"errno": "-"} == {"confirmed": "yes", "was": "running", "left": "0", "errno": "-"}
    box.until_processes(0, "sleep")


def test_a_follower_leaves_when_nobody_reads_it(box: Box) -> None:
    """Long before the platform would choose what to end. What of it was not received comes again: nothing is lost, nothing doubled."""
    data = put_data(box, 40_000_000, 12)
    got = Collector(box, "x")
    stream = box.open("run", "x", "--max-seconds", "1", "--", "cat", "/workspace/data")
    text = read_text(stream, 1000)
    begin = time.monotonic()
    wait_until(lambda: sum(line["cmdline"].startswith("deepinfrad") for line in box.emulator.processes(box.id)) == 1, "only the runner is left")
    assert time.monotonic() - begin < 6
    text += read_text(stream)
    made = got.take(text, cut=True)
    assert made is not None and not any(frame.name == "exit" for frame in made.frames) and 0 < got.pos < len(data)
    assert got.finish().exit["code"] == "0" and got.data == data


def test_a_slow_reader_loses_nothing(box: Box) -> None:
    data = put_data(box, 40_000_000, 13)
    got = Collector(box, "x")
    text = ""
    with box.open("run", "x", "--max-seconds", "1", "--", "cat", "/workspace/data") as stream:
        until = time.monotonic() + 2
        for line in stream:
            text += line.get("stdout", "")
            if time.monotonic() < until:
                time.sleep(0.05)
    made = got.take(text, cut=True)
    assert made is not None and not any(frame.name == "exit" for frame in made.frames) and 0 < got.pos < len(data)
    assert got.finish().exit["code"] == "0" and got.data == data


def test_the_hello_tells_what_is_kept(box: Box) -> None:
    assert box.run("true", id="x", options=("--spool-cap", "1048576")).hello["spool"] == "1048576"
    assert box.follow("x", 0).hello["spool"] == "1048576"
    assert "spool" not in box.follow("never", 0).hello.fields
