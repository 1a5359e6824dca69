"""How large a daemon becomes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from support.daemon import Daemon

MOST_KIB = 32 << 10  # whatever is transferred


@contextmanager
def bounded(daemon: Daemon, most_kib: int = MOST_KIB) -> Iterator[None]:
    """Fails if the daemon's resident memory is ever that much meanwhile."""
    top = [daemon.rss_kib()]
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.01):
            top[0] = max(top[0], daemon.rss_kib())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
    assert top[0] < most_kib
