"""What files cost on their way into a sandbox: requests, time, memory; against `tar | curl`, and against one in-memory tar or one PUT a file."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

from bench import Row, Scene, World, at_least, at_most, figure, median, milliseconds

KEY = {"profile": "default", "task": "default"}
IN_MEMORY = 80 << 20  # what the pattern without a daemon still packs into one tar


def push(world: World, pairs: list[tuple[pathlib.Path, str]], **more: Any) -> dict[str, Any]:
    files = [{"host": str(host), "remote": remote} for host, remote in pairs]
    result: dict[str, Any] = world.client.call("fs.push", {"key": KEY, "files": files, **more})
    if result["skipped"]:
        raise RuntimeError(f"not everything was sent: {result['skipped']}")
    return result


def make_files(root: pathlib.Path, count: int, size: int) -> list[pathlib.Path]:
    made = []
    for i in range(count):
        directory = root / f"{i % 50}"
        directory.mkdir(parents=True, exist_ok=True)
        made.append(directory / f"file {i}")
        made[-1].write_bytes(os.urandom(size))
    return made


def counted(world: World, action: Callable[[], object]) -> tuple[int, float]:
    """HTTP requests and milliseconds of an action."""
    world.cloud.reset_stats()
    taken = milliseconds(action)
    return world.cloud.count(), taken


@figure
def small_files(scene: Scene) -> list[Row]:
    """600 of them: all, none and one to send; and the same as one in-memory tar."""
    with scene.world() as world:
        world.client.call("sandbox.ensure", {"key": KEY})
        root = scene.directory / "files"
        pairs = [(file, f"/workspace/.hermes/{file.relative_to(root)}") for file in make_files(root, 600, 2000)]
        first, first_ms = counted(world, lambda: push(world, pairs))
        time.sleep(0.1)  # younger files are looked at once more
        unchanged, _ = counted(world, lambda: push(world, pairs))
        times = [milliseconds(lambda: push(world, pairs)) for _ in range(scene.turns(30))]
        pairs[0][0].write_bytes(b"changed")
        one, one_ms = counted(world, lambda: push(world, pairs))
        whole, whole_ms = counted(world, lambda: in_memory_tar(world, root))
    return [
        at_most("requests to push 600 small files, first", 4, first, detail=f"{first_ms:.0f} ms; as an in-memory tar {whole}, {whole_ms:.0f} ms"),
        at_most("... unchanged", 0, unchanged),
        at_most("... time unchanged", 10, median(times), " ms"),
        at_most("... one changed", 3, one, detail=f"{one_ms:.0f} ms"),
    ]


def in_memory_tar(world: World, root: pathlib.Path) -> None:
    """How an agent's process without a daemon does it, every time it starts."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        archive.add(root, arcname="workspace/seed")
    sandbox = world.sandbox_id()
    world.cloud.put(sandbox, "/workspace/.seed.tar", packed.getvalue())
    world.cloud.exec(sandbox, "tar", "xf", "/workspace/.seed.tar", "-C", "/")
    world.cloud.exec(sandbox, "rm", "/workspace/.seed.tar")


def tar_and_curl(world: World, root: pathlib.Path) -> None:
    """The bytes of an uncompressed tar, and nothing else: they are not unpacked."""
    where = world.cloud.url + world.cloud.path(world.sandbox_id(), "/fs/content?path=" + urllib.parse.quote("/workspace/curl.tar"))
    with subprocess.Popen(["tar", "-C", str(root), "-cf", "-", "."], stdout=subprocess.PIPE) as tar:
        trust = ["--cacert", str(world.cloud.ca_file)] if world.cloud.ca_file else []
        subprocess.run(["curl", "-sf", *trust, "-T", "-", "-H", f"Authorization: Bearer {world.cloud.api_key}", where], stdin=tar.stdout,
                       stdout=subprocess.DEVNULL, check=True)


def one_put_a_file(world: World, root: pathlib.Path, files: list[pathlib.Path]) -> None:
    sandbox, connection = world.sandbox_id(), world.cloud.connect()
    for file in files:
        path = world.cloud.path(sandbox, "/fs/content?path=" + urllib.parse.quote(f"/workspace/seed/{file.relative_to(root)}"))
        world.cloud.request("PUT", path, file.read_bytes(), connection=connection)


@figure
def many_files(scene: Scene) -> list[Row]:
    """10,000 files and 500 MB, unpacked and remembered, against the bare bytes on their way and against the same with unpacking.

    Over TLS, as the platform is reached, and without, where little is left but what unpacking costs. Each begins with nothing there,
    as what a file system lately wrote or removed makes the next one cheaper or dearer; how much is the disk's affair, so it is kept
    out where there is memory enough.
    """
    count, size = (1000, 50_000) if scene.quick else (10_000, 50_000)
    secure, plain = (many(scene, count, size, tls=tls) for tls in (True, False))
    what = f"speed of pushing {count} files, {count * size >> 20} MiB, against `tar | curl`"
    return [
        at_least(f"{what} over TLS", 0.5, secure.bare / secure.ours, "x",
                 detail=f"{secure.ours:.2f} s, unpacked; tar | curl {secure.bare:.2f} s, not unpacked"),
        Row("... against `tar | curl` and unpacking that", "", f"{secure.unpacked / secure.ours:.2f}x ({secure.unpacked:.2f} s)", None),
        Row("... against the pattern without a daemon", "", f"{secure.seed / secure.ours:.1f}x ({secure.seed:.2f} s)", None),
        Row(f"{what}, without TLS", "", f"{plain.bare / plain.ours:.2f}x ({plain.ours:.2f} s; tar | curl {plain.bare:.2f} s)", None),
        Row("... against `tar | curl` and unpacking that", "", f"{plain.unpacked / plain.ours:.2f}x ({plain.unpacked:.2f} s)", None),
    ]


@dataclasses.dataclass
class Times:
    """Seconds."""

    bare: float
    unpacked: float
    ours: float
    seed: float


def many(scene: Scene, count: int, size: int, *, tls: bool) -> Times:
    bare, unpacked, ours = [], [], []
    with in_memory(scene, 8 * count * size) as scene, scene.world(tls=tls, file_limit_bytes=1 << 40) as world:
        world.client.call("sandbox.ensure", {"key": KEY})
        sandbox = world.sandbox_id()
        root = scene.directory / "files"
        files = make_files(root, count, size)
        for _ in range(scene.turns(5)):
            bare.append(milliseconds(lambda: tar_and_curl(world, root)) / 1000)
            unpack = ("tar", "-xf", "/workspace/curl.tar", "--one-top-level=/workspace/tar")
            unpacked.append(bare[-1] + milliseconds(lambda: world.cloud.exec(sandbox, *unpack)) / 1000)
            world.cloud.exec(sandbox, "rm", "-rf", "/workspace/curl.tar", "/workspace/tar")
            ours.append(milliseconds(lambda: push(world, [(root, "/workspace/many")])) / 1000)
            world.client.call("fs.delete", {"key": KEY, "remotes": ["/workspace/many"]})
        seed = milliseconds(lambda: one_put_a_file(world, root, files) if count * size > IN_MEMORY else in_memory_tar(world, root)) / 1000
    return Times(median(bare), median(unpacked), median(ours), seed)


@contextlib.contextmanager
def in_memory(scene: Scene, room: int) -> Iterator[Scene]:
    """A scene in memory, if that has so many bytes of room; else the one given."""
    memory = pathlib.Path("/dev/shm")
    if not os.access(memory, os.W_OK) or shutil.disk_usage(memory).free < room:
        yield scene
        return
    with tempfile.TemporaryDirectory(prefix="bench-", dir=memory) as directory:
        yield Scene(pathlib.Path(directory), scene.quick)


@figure
def memory_of_a_push(scene: Scene) -> list[Row]:
    """The daemon's memory while 2 GiB go through it."""
    with scene.world() as world:
        world.client.call("sandbox.ensure", {"key": KEY})
        source = scene.directory / "large"
        block = os.urandom(1 << 20)
        with open(source, "wb") as file:
            for _ in range(200 if scene.quick else 2048):
                file.write(block)
        highest, done = 0, threading.Event()

        def watch() -> None:
            nonlocal highest
            while not done.wait(0.02):
                highest = max(highest, world.daemon.rss_kib())

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            taken = milliseconds(lambda: push(world, [(source, "/workspace/large")]))
        finally:
            done.set()
            watcher.join()
    return [at_most(f"resident memory while pushing {source.stat().st_size >> 20} MiB", 32, highest / 1024, " MiB",
                    detail=f"{taken / 1000:.1f} s")]
