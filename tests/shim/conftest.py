"""The shim in sandboxes of the emulator. Everything destructive happens in there and nowhere else."""

from __future__ import annotations

import pathlib
import sys
from collections.abc import Iterator

import pytest

HERE = pathlib.Path(__file__).resolve().parent
if str(HERE) not in sys.path:
    sys.path.insert(0, str(HERE))

from shim_box import Box, Emulator  # noqa: E402


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("shim"), boot_ms=0, max_active=100, scratch_mb=256) as made:
        yield made


@pytest.fixture
def box(cloud: Emulator) -> Iterator[Box]:
    made = Box(cloud)
    yield made
    cloud.delete_sandbox(made.id)
    cloud.clear_faults()
    cloud.config(on_disconnect="keep", on_disconnect_output="drain", waits_for_children=False)
