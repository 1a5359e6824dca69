"""Records what the real shim prints, as the beginnings of fuzzing: python3 tests/fuzz/record_seeds.py

Writes tests/fuzz/seeds/*.txt. To be run again when the shim says something new.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "shim"))

from shim_box import PATH, Box, Emulator, read_text, wait_until  # noqa: E402


def record(box: Box) -> dict[str, str]:
    """One text a seed: the stdout of one call."""

    def said(*words: str) -> str:
        return box.emulator.exec(box.id, PATH, *words, timeout_seconds=60).text()

    def sh(script: str, id: str, *options: str) -> str:
        return said("run", id, *options, "--", "bash", "-c", script)

    seeds = {
        "exit": sh("echo out; echo err >&2; exit 3", "a", "--mark", "/proc/sys/kernel/ostype"),
        "bytes": sh(r"printf '\203\377\000x\n'; printf 'plain' >&2; head -c 300 /bin/sh", "b"),
        "packed": sh("yes 'a line that repeats' | head -c 50000", "m"),
        "signal": sh("kill -9 $$", "c"),
        "timed_out": sh("echo partial; sleep 60", "d", "--timeout-ms", "50"),
        "failed": said("run", "e", "--", "/no/such/program"),
        "cwd": sh("pwd", "f", "--cwd", "/nowhere"),
        "acked": sh("true", "g", "--ack", "a", "--ack", "nothing"),
        "background": sh("sleep 60 & echo ok", "h"),
        "id_in_use": said("run", "f", "--digest", "00", "--", "true") + said("follow", "f", "0", "--digest", "11"),
        "more": said("follow", "b", "4", "--max-bytes", "100"),
        "lost_none": said("follow", "nobody", "0"),
        "kill": said("kill", "h"),
        "cancelled": said("kill", "i") + sh("true", "i"),
        "bad_offset": said("follow", "b", "99999999"),
        "usage": said("run"),
        "probe": said("probe"),
        "ps": said("ps"),
    }
    with box.open("run", "j", "--spool-cap", "65536", "--spool-grace-ms", "100", "--", "sh", "-c", "seq 1 30000; sleep 0.1") as stream:
        read_text(stream, 1000)
    wait_until(lambda: box.ps()["j"]["state"] in ("ended", "background"), "it has dropped")
    seeds["gap"] = said("follow", "j", "10")[:3000]
    with box.open("run", "k", "--", "sh", "-c", "echo begun; sleep 60") as stream:
        read_text(stream, until="begun")
        box.plain("pkill -9 -x deepinfrad")
    seeds["lost_started"] = said("follow", "k", "6")
    with box.open("run", "l", "--keepalive-ms", "20", "--", "sleep", "0.1") as stream:
        seeds["alive"] = read_text(stream)
    return seeds


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, Emulator(pathlib.Path(directory), boot_ms=0) as emulator:
        for name, text in record(Box(emulator)).items():
            (HERE / "seeds" / f"{name}.txt").write_text(text)


if __name__ == "__main__":
    main()
