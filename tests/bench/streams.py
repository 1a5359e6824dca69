"""Much output, and many commands at once."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import subprocess
import threading
import time
from collections.abc import Iterator

from bench import DirectExec, Emulator, Row, Scene, World, at_least, at_most, figure, in_turns, median
from deepinfra_sandboxd import CompletedExec
from support.daemon import find_binary
from support.emulator import wait_until

GIB = 1 << 30
MEMORY_MIB = 32
CROWD = 200
PRINT = "yes 'The quick brown fox jumps over the lazy dog, again and again and again.' | head -c {}"
PRINT_NOISE = "while cat noise; do :; done | head -c {}"  # lines of base64: text that does not shrink
MAKE_NOISE = "head -c 30000000 /dev/urandom | base64 >noise"


def curl_rate(world: World, command: str, size: int) -> float:
    """MiB/s of the same command's stream read by curl, framed by the platform alone."""
    body = json.dumps({"command": ["sh", "-c", "cd /workspace; " + command.format(size)], "timeout_seconds": 600})
    url = world.cloud.url + Emulator.path(world.sandbox_id(), "/exec")
    begin = time.monotonic()
    subprocess.run(["curl", "-sSfN", "-o", "/dev/null", "-H", f"Authorization: Bearer {world.cloud.api_key}", "-d", body, url], check=True)
    return size / (time.monotonic() - begin) / (1 << 20)


def client_rate(world: World, command: str, size: int) -> float:
    begin = time.monotonic()
    execution = world.client.start(["sh", "-c", command.format(size)])
    received = sum(len(chunk.data) for chunk in execution)
    assert received == size and execution.end is not None and execution.end.returncode == 0, (received, execution.end)
    return size / (time.monotonic() - begin) / (1 << 20)


def cli_rate(world: World, command: str, size: int) -> float:
    """MiB/s of the same command run by `deepinfra-sandboxd exec`."""
    begin = time.monotonic()
    arguments = [str(find_binary()), "exec", "--socket", str(world.daemon.socket), "--", "sh", "-c", command.format(size)]
    subprocess.run(arguments, check=True, stdout=subprocess.DEVNULL)
    return size / (time.monotonic() - begin) / (1 << 20)


def peak_mib(world: World) -> float:
    text = pathlib.Path(f"/proc/{world.daemon.pid}/status").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("VmHWM:")).split()[1]) / 1024


@figure
def output(scene: Scene) -> list[Row]:
    """In turns of a quarter, so that all meet the same machine."""
    size = GIB // (64 if scene.quick else 4)
    rows = []
    with scene.world() as world:
        world.client.run(script=MAKE_NOISE)
        for text, command in (("lines", PRINT), ("noise", PRINT_NOISE)):
            curl, client, cli = [], [], []
            for _ in range(4):
                curl.append(curl_rate(world, command, size))
                client.append(client_rate(world, command, size))
                cli.append(cli_rate(world, command, size))
            plain = median(curl)
            for who, rates in (("Python client", client), ("CLI", cli)):
                what = f"{4 * size / GIB:g} GiB of {text} through daemon and {who}, of curl's speed"
                rate = median(rates)
                rows.append(at_least(what, 0.5, rate / plain, "x", detail=f"{rate:.0f} MiB/s, curl {plain:.0f} MiB/s"))
        rows.append(at_most("the daemon's peak RSS meanwhile", MEMORY_MIB, peak_mib(world), " MiB"))
    return rows


@figure
def stalled_reader(scene: Scene) -> list[Row]:
    """A reader that has stopped, of a command that prints for ever, holds up nobody else: calls beside it and calls without it."""
    turns = scene.turns(100)
    with scene.world() as world:
        world.client.run(["true"])
        direct = DirectExec(world.cloud, world.sandbox_id(), "true")
        plain_before, before = in_turns(turns, direct.run, lambda: world.client.run(["true"]))
        flood = world.client.start(["yes"])
        assert flood.read(10) is not None
        time.sleep(0.5)  # every buffer on the way fills
        plain_beside, beside = in_turns(turns, direct.run, lambda: world.client.run(["true"]))
        flood.cancel()
        direct.close()
    # The direct call tells how much of it is the machine's doing.
    ratio = median(beside) / median(before) / (median(plain_beside) / median(plain_before))
    return [at_most("a call beside a flooding command that nobody reads, against one without it", 1.25, ratio, "x", detail=f"{median(beside):.1f} ms, {median(before):.1f} ms")]


@figure
def crowd(scene: Scene) -> list[Row]:
    """All are running before any may end: one that waited for another would wait for ever."""
    with scene.world() as world:
        world.client.run(script="mkdir here; mkfifo gate")
        workspace = pathlib.Path(world.cloud.sandbox(world.sandbox_id())["workspace"])
        ends: list[CompletedExec] = []
        begin = time.monotonic()
        running = [world.client.start(script=f"touch here/{n}; read -r < gate; echo {n}") for n in range(CROWD)]
        readers = [threading.Thread(target=lambda one=one: ends.append(one.wait())) for one in running]
        for reader in readers:
            reader.start()
        wait_until(lambda: len(list((workspace / "here").iterdir())) == CROWD, "all of them run", limit_s=120)
        all_run = time.monotonic() - begin
        with open_gate(workspace / "gate"):
            for reader in readers:
                reader.join(120)
        took = time.monotonic() - begin
        failed = CROWD - sum(one.returncode == 0 and one.stdout.strip().isdigit() for one in ends)
        peak = peak_mib(world)
    return [
        Row(f"{CROWD} commands at once: failed", "0", str(failed), failed == 0),
        Row(f"{CROWD} commands at once: running at the same time", str(CROWD), f"{CROWD} ({all_run:.1f} s; all ended after {took:.1f} s)", True),
        Row(f"{CROWD} commands at once: the daemon's peak RSS", "-", f"{peak:.1f} MiB", None),
    ]


@contextlib.contextmanager
def open_gate(gate: pathlib.Path) -> Iterator[None]:
    """A line for everybody. It stays open meanwhile: who opens it only then, and finds nobody writing, would wait for ever."""
    to = os.open(gate, os.O_RDWR)
    try:
        os.write(to, b"go\n" * CROWD)
        yield
    finally:
        os.close(to)
