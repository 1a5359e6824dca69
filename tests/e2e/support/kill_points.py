"""Where a daemon is killed: at a request of an operation, or at a write of it."""

from __future__ import annotations

import pathlib
import subprocess

from support.emulator import Emulator, wait_until
from support.rpc import Peer


def build_preload(directory: pathlib.Path, name: str = "kill_at_write") -> pathlib.Path:
    """The library of that name in this directory, to be preloaded into the daemon. By default one that ends its process at a write
    that the environment names."""
    source = pathlib.Path(__file__).resolve().parent / f"{name}.c"
    made = directory / f"{name}.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(made), str(source), "-ldl"], check=True)
    return made


def gets_through(peer: Peer, emulator: Emulator, asked: int | None) -> bool:
    """Waits for the one fault there is to be met, or for the answer that comes without it; True: without it."""
    peer.socket.settimeout(0.02)

    def over() -> str | None:
        if emulator.faults()[0]["used"]:
            return "met"
        try:
            peer.answer(asked)
        except TimeoutError:
            return None
        # It may have been a request beside the operation (prices) that was stopped meanwhile.
        return "met" if emulator.faults()[0]["used"] else "through"

    return wait_until(over, "the request is reached, or there is none", 60) == "through"
