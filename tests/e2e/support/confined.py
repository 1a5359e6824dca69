"""Daemons that are forbidden what some containers forbid."""

from __future__ import annotations

import platform
import sys

import pytest

# Makes unshare(2) fail in what it then becomes.
_FILTER = """
import ctypes, os, struct, sys
number = {"x86_64": 272, "aarch64": 97}[os.uname().machine]
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7fff0000)]
rules = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(rules)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
assert libc.unshare(0x200) == -1 and ctypes.get_errno() == 1
os.execvp(sys.argv[1], sys.argv[1:])
"""
WITHOUT_UNSHARE = (sys.executable, "-c", _FILTER)  # in front of a command line
needs_a_filter = pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the number of the system call is not known")
