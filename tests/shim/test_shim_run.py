"""Commands behave as in a terminal's pipe, and afterwards nothing is reported wrongly or forgotten."""

from __future__ import annotations

import hashlib

import pytest
from shim_box import HOME, PATH, Box, b64, read_text
from shim_frames import parse


def test_probe_finds_a_usable_platform(box: Box) -> None:
    probe = box.call("probe").last
    assert probe["ok"] == "1"
    assert {key: value for key, value in probe.fields.items() if value != "0"}.keys() == {"ok", "kernel", "pidns"}
    assert box.plain(f"stat -c %a {HOME}/claims").strip() == "1777"


def test_a_probe_that_was_cut_off_stands_in_no_others_way(box: Box) -> None:
    left = 500  # beginning with the number of a process that has just been
    first = int(box.plain(f"u=$(id -u); i=$$; while [ $i -lt $(($$ + {left})) ]; do : > {HOME}/claims/probe-$u-$i; i=$((i + 1)); done; echo $$"))
    probe = box.call("probe").last
    assert (probe["ok"], probe["claims"]) == ("1", "0")
    there = {int(name.split("-")[2]) for name in box.plain(f"ls {HOME}/claims").split() if name.startswith("probe-")}
    assert len(set(range(first, first + left)) - there) == 1


@pytest.mark.parametrize("script, code, out, err", [
    ("echo hello", 0, b"hello\n", b""),
    ("echo x > /dev/stdout; echo y > /dev/stdout", 0, b"x\ny\n", b""),
    ("echo x | tee /dev/stderr", 0, b"x\n", b"x\n"),
    ("echo a; exec > /tmp/file; echo b; cat /tmp/file >&2", 0, b"a\n", b"b\n"),
    ("exec >&- 2>&- <&-; exit 5", 5, b"", b""),
    ("exec 1>&-; echo still >&2; sleep 0.05; echo more >&2", 0, b"", b"still\nmore\n"),
    ("exit 3", 3, b"", b""),
    ("exec true", 0, b"", b""),
    ("true # c", 0, b"", b""),
    ("set -euo pipefail; true", 0, b"", b""),
    ("printf '\\203\\377'; exit 4", 4, b"\203\377", b""),
    ("printf 'no newline'", 0, b"no newline", b""),
    ("cat <<'E'\n$x\nE\ntrue # E", 0, b"$x\n", b""),
    ("printf 'a\\0b\\r\\n'", 0, b"a\0b\r\n", b""),
    ("cat; echo after", 0, b"after\n", b""),
    ("umask; ulimit -n >/dev/null; trap", 0, b"0022\n", b""),
])
def test_scripts(box: Box, script: str, code: int, out: bytes, err: bytes | None) -> None:
    made = box.sh(script)
    assert made.hello["state"] == "new"
    assert (made.exit["reason"], made.exit["started"], made.exit.number("code")) == ("exited", "yes", code)
    assert made.out == out
    assert err is None or made.err == err
    assert made.exit.number("pos") == len(made.out) + len(made.err)
    assert box.ps().keys() == {"exec-1"}


def test_a_signal_is_not_a_code(box: Box) -> None:
    made = box.sh("kill -SEGV $$")
    assert (made.exit["code"], made.exit["signal"]) == ("-", "11")


def test_kill_0_ends_the_command_and_nothing_else(box: Box) -> None:
    made = box.sh("echo before; kill -TERM 0; sleep 5; echo after")
    assert made.out == b"before\n" and made.exit["signal"] == "15"


def test_default_dispositions_and_no_inherited_descriptors(box: Box) -> None:
    script = "cat /proc/self/status | grep -E '^Sig(Blk|Ign)'; ls /proc/self/fd | tr '\\n' ' '; ps -o pid=,sid=,pgid= -p $$"
    made = box.run("sh", "-c", script)
    lines = made.out.decode().splitlines()
    assert [line.split()[1] for line in lines[:2]] == ["0" * 16] * 2
    rest = lines[2].split()
    assert rest[:4] == ["0", "1", "2", "3"]  # 3 is ls's own
    assert rest[4] == rest[5] == rest[6]  # a session and a group of its own


def test_merged_output_is_one_stream_in_order(box: Box) -> None:
    made = box.sh("for i in 1 2 3 4 5; do echo o$i; echo e$i >&2; done", options=("--merge",))
    assert made.out == b"".join(b"o%d\ne%d\n" % (i, i) for i in range(1, 6)) and made.err == b""


def test_environment_cwd_and_arguments_arrive_as_they_are(box: Box) -> None:
    box.plain("mkdir -p '/workspace/a \"b'")
    made = box.call("run", "x", "--cwd", '/workspace/a "b', "--env", "V=it's \"q\"\n%25 %FF=", "--env", "HOME", "--", "python3", "-c",
                    "import os, sys; print(os.getcwd(), ascii(os.environb[b'V']), 'HOME' in os.environ, [os.fsencode(a) for a in sys.argv[1:]])",
                    "a", "", "%C3%28\xe9", "100%25", "-", "\n")
    assert made.out.decode() == "/workspace/a \"b b'it\\'s \"q\"\\n% \\xff=' False [b'a', b'', b'\\xc3(\\xc3\\xa9', b'100%', b'-', b'\\n']\n"


def test_a_missing_cwd_falls_back_with_a_notice(box: Box) -> None:
    made = box.run("pwd", options=("--cwd", "/gone"))
    assert made.out == b"/workspace\n"
    (note,) = made.named("note")
    assert (note["name"], note["errno"], note.text("cwd")) == ("cwd", "2", "/workspace")


@pytest.mark.parametrize("argv, errno", [(("/nowhere",), 2), (("no-such-program",), 2), (("/etc/passwd",), 13), (("/tmp",), 13), (("",), 2)])
def test_what_cannot_be_executed_is_said_and_stays_so(box: Box, argv: tuple[str, ...], errno: int) -> None:
    for _ in range(2):
        made = box.run(*argv, id="x")
        assert (made.exit["reason"], made.exit["started"], made.exit.number("errno"), made.exit["at"]) == ("failed", "no", errno, "execve")


def test_an_environment_that_the_kernel_refuses_runs_nothing(box: Box) -> None:
    big = "A" * 65536  # twice as long where it is joined with itself below
    made = box.call("run", "x", "--raw", "--env", "V=" + big, "--", "sh", "-c", "echo fits")
    assert made.out == b"fits\n"
    options = [word for i in range(60) for word in ("--env", f"V{i}=" + "%41" * 40000)]  # 7.2 MB as sent is refused by the platform already
    answer = box.emulator.exec(box.id, PATH, "run", "y", *options, "--", "true")
    assert answer.terminal.get("returncode") != 0
    assert "y" not in box.ps()


def test_long_arguments_up_to_the_kernels_limit(box: Box) -> None:
    word = "x \n" * 43690 + "y"  # 131071 bytes
    made = box.run("sh", "-c", 'printf %s "$1" | sha256sum', "sh", word)
    assert made.out.split()[0].decode() == hashlib.sha256(word.encode()).hexdigest()


def test_pkill_of_its_own_words_ends_only_itself(box: Box) -> None:
    made = box.sh("echo before; pkill -f 'UNIQUE-WORD'; sleep 0.1; echo after")
    assert made.out.startswith(b"before\n") and made.exit["reason"] == "exited"
    assert made.exit["signal"] == "15"


@pytest.mark.parametrize("pattern", ["exec-1", "shim", "workspace", "sh", "run", "bash"])
def test_pkill_of_common_words_spares_the_runner(box: Box, pattern: str) -> None:
    made = box.sh(f"trap '' TERM; pkill -9 -f {pattern} & pkill -9 {pattern} & sleep 0.2")
    assert made.exit["reason"] == "exited"  # whatever became of the command, its end is known


def test_the_command_line_of_runner_and_follower_says_nothing(box: Box) -> None:
    script = "import glob; print([name for name in glob.glob('/proc/[0-9]*/cmdline') if b'SECRET-WORD' in open(name, 'rb').read()] == [f'/proc/{__import__(\"os\").getpid()}/cmdline'])"
    assert box.run("python3", "-c", script).out == b"True\n"


@pytest.mark.parametrize("script", [
    "rm -rf /workspace/* /workspace/.[!.]*; echo done",
    "cd /workspace && git init -q . && git clean -fdxq; echo done",
    "rm -rf /tmp/*; rm -rf /tmp/.[!.]*; seq 1 100000 >/tmp/x; cat /tmp/x; rm -rf /tmp/* ; echo done",
])
def test_what_removes_our_files_changes_nothing(box: Box, script: str) -> None:
    made = box.sh(script, id="x")
    assert made.exit.number("code") == 0 and made.out.endswith(b"done\n")
    if "workspace" in script:
        box.install()
    assert box.ps()["x"]["state"] == "ended"
    again = box.sh(script, id="x")
    assert again.hello["state"] == "attached" and again.merged == made.merged
    box.call("ack", "x", "0", "--done")
    assert box.ps() == {}
    assert box.sh("echo next").out == b"next\n"


def test_a_removed_claim_is_made_again_at_the_end(box: Box) -> None:
    box.sh("rm -rf /workspace/.deepinfra-sandboxd/claims; exit 7", id="x")
    pid = box.plain("pgrep -x deepinfrad").split()[0]
    box.plain(f"kill -9 {pid}")
    made = box.follow("x")
    assert made.exit.number("code") == 7


def test_kill_9_of_everything(box: Box) -> None:
    """The runner dies with the rest; that is found out and said, and nothing runs again."""
    made = box.emulator.exec(box.id, PATH, "run", "x", "--", "bash", "-c", "echo x >>/workspace/n; kill -9 -1")
    assert made.terminal["returncode"] != 0 or "lost claim=started" in made.text()
    for verb in (("follow", "x", "0"), ("run", "x", "--", "bash", "-c", "echo again >>/workspace/n")):
        last = box.call(*verb).last
        assert (last.name, last["claim"], last["started"], last["boot"]) == ("lost", "started", "unknown", "same")
    assert box.plain("cat /workspace/n") == "x\n"
    assert box.ps()["x"]["state"] == "started"
    assert box.call("ack", "x", "0", "--done").last["state"] == "gone"
    assert box.ps() == {}


def test_zombies_are_reaped_and_runners_leave(box: Box) -> None:
    made = box.sh("for i in $(seq 50); do (sleep 0.01 &) ; done; sleep 0.2; ps -eo stat= | grep -c ^Z", id="x")
    assert made.out == b"0\n"
    box.call("ack", "x", "0", "--done")
    assert box.plain("pgrep -c deepinfrad").strip() == "0"


def test_acknowledgements_ride_on_the_next_run(box: Box) -> None:
    box.run("true", id="a")
    box.run("false", id="b")
    made = box.run("true", id="c", options=("--ack", "a", "--ack", "b", "--ack", "never"))
    assert [(frame["id"], frame["state"]) for frame in made.named("acked")] == [("a", "gone"), ("b", "gone"), ("never", "gone")]
    assert box.ps().keys() == {"c"}


def test_marks_are_told_as_they_were_before(box: Box) -> None:
    box.plain("printf 'one 1' >/workspace/m")
    made = box.sh("rm /workspace/m", options=("--mark", "/workspace/m", "--mark", "/workspace/none"))
    assert made.hello["mark"] == "one%201 -"


def test_a_mark_need_not_be_a_file_that_can_be_read(box: Box) -> None:
    box.plain("mkdir /workspace/d; ln -s nowhere /workspace/l; mkfifo /workspace/p")
    made = box.sh("true", options=("--mark", "/workspace/d", "--mark", "/workspace/l", "--mark", "/workspace/d/none", "--mark", "/workspace/p"))
    assert made.hello["mark"] == "  - "


def test_files_for_cleanup_go_at_the_end(box: Box) -> None:
    box.plain("touch /workspace/script")
    assert box.sh("ls /workspace", options=("--cleanup", "/workspace/script")).out == b"script\n"
    assert box.plain("ls /workspace") == ""


@pytest.mark.parametrize("words", [("run",), ("run", "../x", "--", "true"), ("run", "x"), ("run", "x", "--"), ("run", "x", "--", "%zz"), ("run", "x", "--", "%00"),
                                   ("run", "x", "--wrong", "--", "true"), ("run", "x", "--timeout-ms", "-1", "--", "true"), ("follow", "x"), ("follow", "x", "y"),
                                   ("run", "x" * 129, "--", "true"), ("kill",), ("stdin", "x", "0", "--data", "a"), ("ack", "x"), ("what",), ()])
def test_misuse_is_an_error_and_runs_nothing(box: Box, words: tuple[str, ...]) -> None:
    last = box.call(*words).last
    assert (last.name, last["name"], last["started"]) == ("error", "usage", "no")
    assert box.ps() == {}


def test_plain_text_goes_raw_and_the_rest_encoded(box: Box) -> None:
    text = box.run("seq", "1", "20000")
    assert text.encoded_bytes == 0 and text.raw_bytes == len(text.out) == 108894
    data = bytes(range(256)) * 300
    box.emulator.put(box.id, "/workspace/d", data)
    made = box.run("cat", "/workspace/d")
    assert made.out == data and made.raw_bytes == 0


def test_stdin_of_every_kind(box: Box) -> None:
    assert box.sh("readlink /proc/self/fd/0").out == b"/dev/null\n"
    assert box.sh("cat | wc -c; readlink /proc/self/fd/0 | cut -c1-5", options=("--stdin", "empty")).out == b"0\npipe:\n"
    for data in (b"x", b"a\0b\r\n\xff", bytes(range(256)) * 350):
        made = box.run("sha256sum", options=("--stdin", "data:" + b64(data)))
        assert made.out.split()[0].decode() == hashlib.sha256(data).hexdigest()
    assert box.run("true", options=("--stdin", "data:" + b64(b"x" * 90000))).exit.number("code") == 0


def test_what_the_platform_ignores_is_not_inherited(box: Box) -> None:
    """A platform that ignores SIGCHLD and others, blocks some, and leaves descriptors open."""
    script = ("import os, signal, sys; [signal.signal(n, signal.SIG_IGN) for n in (1, 2, 13, 15, 17)]; signal.pthread_sigmask(signal.SIG_BLOCK, [10, 15]);"
              "[os.dup2(1, n, True) for n in (3, 7, 50)]; os.execv(sys.argv[1], sys.argv[1:])")
    answer = box.emulator.exec(box.id, "python3", "-c", script, PATH, "run", "x", "--", "sh", "-c", "cat /proc/self/status | grep -E '^Sig(Blk|Ign)'; echo $(ls /proc/self/fd); exit 7")
    made = parse(answer.text())
    assert made.out.decode().split() == ["SigBlk:", "0" * 16, "SigIgn:", "0" * 16, "0", "1", "2", "3"]
    assert made.exit.number("code") == 7
    assert box.plain("ls /proc/$(pgrep -x deepinfrad)/fd | wc -l").strip() <= "6"


def test_nonsense_on_the_socket_disturbs_nothing(box: Box) -> None:
    """Processes of the sandbox can reach the socket: garbage, huge numbers, other ids, many connections."""
    script = r"""
import random, re, socket, struct, time
name = [line.split("@")[1].strip() for line in open("/proc/net/unix") if "@deepinfra-shim/1/" in line][0]
chance = random.Random(1)
held = []
for number in range(400):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.connect("\0" + name)
    for _ in range(chance.randint(0, 3)):
        kind = chance.choice([1, 2, 3, 5, 6, 7, 32, 35, 65535])
        values = [chance.choice([0, 1, 7, 2**31, 2**63, 2**64 - 1, chance.getrandbits(64)]) for _ in range(8)]
        head = struct.pack("=IHHiI8Q", 0x78736453, chance.choice([1, 1, 1, 2]), kind, 0, 0, *values)
        rest = chance.choice([b"", b"x\0\0", b"y\0\0", b"x", chance.randbytes(chance.randint(0, 600))])
        try:
            one.send(chance.choice([head + rest] * 4 + [head[:chance.randint(1, 79)], chance.randbytes(100)]))
        except OSError:
            break
    held.append(one)
    if len(held) > 50: held.pop(0).close()
"""
    with box.open("run", "x", "--", "sh", "-c", "echo begun; while ! test -e /workspace/go; do sleep 0.05; done; seq 1 1000") as stream:
        assert "begun" in read_text(stream, until="begun")
        box.emulator.put(box.id, "/workspace/nonsense.py", script.encode())
        assert box.plain("python3 /workspace/nonsense.py 2>&1; echo ok") == "ok\n"
        assert box.ps()["x"]["state"] == "running"
        box.plain("touch /workspace/go")
        read_text(stream)
    made = box.follow("x")
    assert made.exit["reason"] == "exited" and made.exit.number("code") == 0
    assert made.named("gap") or made.out.endswith(b"\n1000\n")
