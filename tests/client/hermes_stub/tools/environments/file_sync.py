"""Stub of hermes's file synchronisation: which files it wants in a sandbox, and when it asks for what.

The decisions are hermes's as the facts state them; the comparison is by size and time going out, and by hash
coming back. Failures are swallowed as hermes does, and written down here for the tests.
"""

from __future__ import annotations

import hashlib
import os
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Callable

from hermes_constants import get_hermes_home

Pairs = list[tuple[str, str]]
failures: list[str] = []


def iter_sync_files(container_base: str = "/root/.hermes") -> Pairs:
    home = get_hermes_home()
    found = []
    for directory in ("skills", "cache"):
        for path in sorted((home / directory).rglob("*")):
            if path.is_file():
                found.append((str(path), f"{container_base}/{path.relative_to(home)}"))
    return found


def _digest(path: str | Path) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


class FileSyncManager:
    def __init__(
        self,
        get_files_fn: Callable[[], Pairs],
        upload_fn: Callable[[str, str], None],
        delete_fn: Callable[[list[str]], None],
        sync_interval: float = 5.0,
        bulk_upload_fn: Callable[[Pairs], None] | None = None,
        bulk_download_fn: Callable[[Path], None] | None = None,
    ) -> None:
        self._get_files, self._delete, self._interval = get_files_fn, delete_fn, sync_interval
        self._upload = bulk_upload_fn or (lambda pairs: [upload_fn(*pair) for pair in pairs][:0] and None)
        self._download = bulk_download_fn
        self._known: dict[str, tuple[float, int]] = {}
        self._hashes: dict[str, str] = {}
        self._last = 0.0

    def sync(self, *, force: bool = False) -> None:
        if not force and time.monotonic() - self._last < self._interval:
            return
        self._last = time.monotonic()
        wanted = {remote: (host, os.stat(host)) for host, remote in self._get_files()}
        keys = {remote: (status.st_mtime, status.st_size) for remote, (_, status) in wanted.items()}
        changed = [(wanted[remote][0], remote) for remote in keys if self._known.get(remote) != keys[remote]]
        gone = [remote for remote in self._known if remote not in keys]
        try:
            if changed:
                self._upload(changed)
            if gone:
                self._delete(gone)
            self._hashes |= {remote: _digest(host) for host, remote in changed}
            self._known = keys
        except Exception as error:
            failures.append(f"sync: {error}")

    def sync_back(self) -> None:
        if self._download is None or not self._known:
            return
        try:
            with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
                self._download(Path(archive.name))
                with tarfile.open(archive.name) as tar:
                    members = {f"/{member.name}": member for member in tar.getmembers() if member.isfile()}
                    for host, remote in self._get_files():
                        if "/skills/" in remote or (member := members.get(remote)) is None:
                            continue
                        content = tar.extractfile(member)
                        data = b"" if content is None else content.read()
                        if hashlib.sha256(data).hexdigest() != self._hashes.get(remote):
                            Path(host).write_bytes(data)
        except Exception as error:
            failures.append(f"sync_back: {error}")
