"""Cuts, re-attaching, bounded output, stdin: every byte once, whatever happens to the connections."""

from __future__ import annotations

import concurrent.futures
import hashlib
import os
import random
import re
import time

import pytest
from shim_box import HOME, PATH, Box, b64, read_text, wait_until
from shim_frames import Transcript, parse

MODES = ["keep", "kill_group", "kill_tree"]


def put_data(box: Box, size: int, seed: int) -> bytes:
    """Random bytes with stretches of text, in /workspace/data."""
    chance = random.Random(seed)
    parts: list[bytes] = []
    while sum(map(len, parts)) < size:
        n = chance.randint(1, 60000)
        parts.append(chance.randbytes(n) if chance.random() < 0.5 else (b"plain text, line %d\n" % n) * (n // 20))
    data = b"".join(parts)[:size]
    assert box.emulator.put(box.id, "/workspace/data", data).status == 200
    return data


class Collector:
    """Follows one command through cuts, as the daemon would."""

    def __init__(self, box: Box, id: str) -> None:
        self.box, self.id = box, id
        self.parts: list[bytes] = []
        self.pos = 0
        self.calls = 0
        self.last: Transcript | None = None

    def take(self, text: str, cut: bool) -> Transcript | None:
        """What was received of one call; None where not even the first frame came."""
        self.calls += 1
        if "\n" not in text:
            return None
        made = parse(text, cut=cut)
        if made.start != self.pos:
            assert not made.merged
        self.parts.append(made.merged)
        self.pos += len(made.merged)
        self.last = made
        return made

    def finish(self) -> Transcript:
        while True:
            made = self.take("".join(line.get("stdout", "") for line in self.box.open("follow", self.id, str(self.pos))), cut=False)
            if made.last.name != "more":
                return made

    @property
    def data(self) -> bytes:
        return b"".join(self.parts)


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


# -- identity

def test_another_digest_is_refused(box: Box) -> None:
    box.run("echo", "one", id="x", options=("--digest", "aa"))
    for words in (("run", "x", "--digest", "bb", "--", "touch", "/workspace/ran"), ("follow", "x", "0", "--digest", "bb"), ("kill", "x", "--digest", "bb")):
        last = box.call(*words).last
        assert (last.name, last["name"]) == ("error", "id_in_use")
    assert box.run("echo", "one", id="x", options=("--digest", "aa")).hello["state"] == "attached"
    box.plain("pkill -9 -x deepinfrad")
    last = box.call("run", "x", "--digest", "bb", "--", "touch", "/workspace/ran").last
    assert (last.name, last["name"]) == ("error", "id_in_use")
    assert box.plain("ls /workspace") == ""


def test_one_id_many_times_at_once_runs_once(box: Box) -> None:
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda _: box.emulator.exec(box.id, PATH, "run", "x", "--", "sh", "-c", "echo x >>/workspace/n; sleep 0.3; exit 6"), range(12)))
    assert box.plain("cat /workspace/n") == "x\n"
    lasts = [parse(answer.text()).last for answer in answers]
    assert {frame.name for frame in lasts} <= {"exit", "more"} and any(frame.name == "exit" for frame in lasts)
    assert all(frame.fields.get("code", "6") == "6" for frame in lasts)


def test_200_at_once(box: Box) -> None:
    with concurrent.futures.ThreadPoolExecutor(200) as pool:
        made = list(pool.map(lambda number: box.run("sh", "-c", f"echo {number}; sleep 0.2; echo end; exit {number % 250}", id=f"many-{number}"), range(200)))
    for number, one in enumerate(made):
        assert one.out == b"%d\nend\n" % number and one.exit.number("code") == number % 250
    options = [word for number in range(200) for word in ("--ack", f"many-{number}")]
    box.run("true", id="last", options=tuple(options))
    assert box.ps().keys() == {"last"}


# -- the spool

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
    with box.open("run", "x", "--spool-cap", "131072", "--", "yes") as stream:
        text = read_text(stream, 131072)
        wait_until(lambda: box.ps()["x"]["pos"] == "131072", "full")
        time.sleep(0.2)
        assert box.ps()["x"]["pos"] == "131072"
        assert box.call("kill", "x").last["confirmed"] == "yes"
        made = parse(text + read_text(stream))
    assert made.exit["reason"] == "cancelled"
    assert made.out == (b"y\n" * (len(made.out) // 2 + 1))[: len(made.out)]


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
        text = read_text(stream, 4 << 20)
        wait_until(lambda: box.ps()["x"]["pos"] == str(4 << 20), "full")
        for _ in range(3):
            box.call("ack", "x", "0")
        box.call("ack", "x", str(4 << 20))
        box.call("kill", "x")
        made = parse(text + read_text(stream))
    full = [int(one["pos"]) for one in made.named("full")]
    assert all(int(one["end"]) - int(one["start"]) > 1966080 for one in made.named("full")[:1]) and 1 <= full.count(4 << 20) <= 1 + 1 + 3
    before = [pos for pos in full if pos < 4 << 20]
    assert all(b - a >= 1 << 20 for a, b in zip(before, before[1:], strict=False)) and full == sorted(full)


@pytest.mark.parametrize("fill", ["/tmp", "/tmp /var/tmp"])
def test_a_full_disk_is_survived_in_memory(box: Box, fill: str) -> None:
    data = put_data(box, 9_000_000, 8)
    for place in fill.split():
        box.plain(f"cat /dev/zero >{place}/fill 2>/dev/null; sync; df {place} | tail -1")
    with box.open("run", "x", "--", "cat", "/workspace/data") as stream:
        text, acknowledged = "", 0
        for line in stream:
            text += line.get("stdout", "")
            for pos in re.findall(r"^full pos=(\d+) ", line.get("stdout", ""), re.M):
                if int(pos) > acknowledged:
                    acknowledged = int(pos)
                    box.call("ack", "x", pos)
    made = parse(text)
    assert made.out == data and made.exit.number("dropped") == 0
    assert len(made.named("full")) >= 2


def test_spool_files_are_not_seen_and_leave_with_the_runner(box: Box) -> None:
    put_data(box, 3_000_000, 9)
    before = box.plain("df --output=used /tmp | tail -1; ls -A /tmp")
    box.run("cat", "/workspace/data", id="x")
    assert box.plain("ls -A /tmp") == ""
    box.call("ack", "x", "0", "--done")
    wait_until(lambda: box.plain("df --output=used /tmp | tail -1; ls -A /tmp") == before, "the space is back")


@pytest.mark.parametrize("limit", ["space", "inodes"])
def test_no_claim_no_start(box: Box, limit: str) -> None:
    """A full /workspace, made of a small file system over the claims directory."""
    size = "size=4k" if limit == "space" else "nr_inodes=1"
    made = box.plain(f"unshare -rm true 2>&1; mount -t tmpfs -o {size},mode=1777 none {HOME}/claims 2>&1 && echo mounted")
    if "mounted" not in made:
        # No mounting in a sandbox: a user namespace of one call has a mount table of its own.
        script = f'mount -t tmpfs -o {size},mode=1777 none {HOME}/claims && echo f >{HOME}/claims/f; exec {PATH} run x -- touch /workspace/ran'
        answer = box.emulator.exec(box.id, "unshare", "-rm", "sh", "-c", script)
        if "deepinfra-shim/1" not in answer.text():
            pytest.skip(f"no private mounts here: {answer}")
        last = parse(answer.text()).last
    else:
        box.plain(f"echo f >{HOME}/claims/f")
        last = box.run("touch", "/workspace/ran", id="x").last
    assert (last.name, last["name"], last["errno"], last["started"]) == ("error", "claim_failed", "28", "no")
    assert box.plain("ls /workspace") == ""


def test_an_unwritable_workspace_is_told_by_its_first_errno(box: Box) -> None:
    box.plain(f"chmod 755 {HOME}/claims")
    answer = box.emulator.exec(box.id, "setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups", PATH, "run", "x", "--", "true")
    last = parse(answer.text()).last
    assert (last["name"], last["errno"], last["started"]) == ("claim_failed", "13", "no")


def test_several_users_in_one_sandbox(box: Box) -> None:
    answer = box.emulator.exec(box.id, "setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups", PATH, "run", "x", "--", "id", "-u")
    assert parse(answer.text()).out == b"1234\n"
    for words in (("follow", "x", "0"), ("kill", "x")):  # a socket that another user may have made is not trusted, not by root either
        last = box.call(*words).last
        assert (last.name, last["name"]) == ("error", "socket_foreign")
    box.run("echo", "secret", id="y")
    answer = box.emulator.exec(box.id, "setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups", PATH, "follow", "y", "0")
    last = parse(answer.text()).last
    assert (last.name, last["name"]) == ("error", "socket_foreign")


# -- stdin

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


def test_streams_that_alternate_byte_by_byte(box: Box) -> None:
    """The index of streams is bounded as well: it fills long before the spool does, and an `ack` relieves it."""
    writer = "import os\nfor i in range(300000):\n os.write(1, b'%c' % (33 + i % 90)); os.write(2, b'%c' % (33 + i % 89))"
    with box.open("run", "x", "--raw", "--", "python3", "-c", writer) as stream:
        text, acknowledged = "", 0
        for line in stream:
            text += line.get("stdout", "")
            for pos in re.findall(r"^full pos=(\d+) ", line.get("stdout", ""), re.M):
                if int(pos) > acknowledged:
                    acknowledged = int(pos)
                    box.call("ack", "x", pos)
    made = parse(text)
    assert made.out == bytes(33 + i % 90 for i in range(300000)) and made.err == bytes(33 + i % 89 for i in range(300000))
    assert box.follow("x", made.pos - 1000).merged == made.merged[-1000:]


@pytest.mark.parametrize("processes", ["1", "2"])
def test_no_process_to_be_had(box: Box, processes: str) -> None:
    words = ("setpriv", "--reuid", "1234", "--regid", "1234", "--clear-groups", "--inh-caps=-all", "prlimit", "--nproc=" + processes, PATH, "run", "x", "--", "touch", "/tmp/ran")
    last = parse(box.emulator.exec(box.id, *words).text()).last
    assert (last.name, last["name"], last["errno"], last["started"]) == ("error", "spawn_failed", "11", "no")
    assert box.plain("ls /tmp") == "" and box.ps() == {}
