"""Streams cut at random places: no byte is missing, none comes twice, no command runs twice.

$DEEPINFRA_CUTS says how many commands (default 1000), $DEEPINFRA_SEED repeats one run.
"""

from __future__ import annotations

import os
import random

import pytest

from support.daemon import Daemon
from support.emulator import Emulator
from support.rpc import Peer
from support.scenes import workspace

COMMANDS = int(os.environ.get("DEEPINFRA_CUTS", "1000"))
AT_ONCE = 50
FAULTS_IN_A_ROW = (0, 1, 1, 1, 2, 2, 3, 6)  # that one command may meet


@pytest.mark.parametrize("on_disconnect", ["keep", "kill_group"])
def test_short_commands_whose_streams_are_cut(daemon: Daemon, emulator: Emulator, on_disconnect: str) -> None:
    seed = int(os.environ.get("DEEPINFRA_SEED", random.randrange(1 << 30)))
    print(f"DEEPINFRA_SEED={seed}")
    dice = random.Random(seed)
    emulator.config(on_disconnect=on_disconnect)
    script = 'echo x >>"ran/$1"; seq 1 "$2"; seq 1 "$3" >&2; printf "\\377\\0€"; exit "$4"'
    with daemon.peer(limit_s=120) as peer:
        peer.sh("mkdir ran")
        for first in range(0, COMMANDS // 2, AT_ONCE):
            emulator.clear_faults()
            expected = {}
            for n in range(first, first + AT_ONCE):
                out, err, code = dice.choice([0, 1, 100, 1000, 5000]), dice.choice([0, 3, 300]), dice.randrange(256)
                name = f"cut-{seed}-{n}-"
                for _ in range(dice.choice(FAULTS_IN_A_ROW)):
                    place = dice.choice([{"cut_after_bytes": dice.randrange(0, 3000)}, {"cut_after_bytes": dice.randrange(0, 300)},
                                         {"cut_after_lines": dice.randrange(0, 4)}, {"omit_terminal": True}, {"act_then_drop": "started"},
                                         {"act_then_drop": "done"}, {"drop_before": True}, {"status": 502, "body": ""}, {"piece_bytes": 1}])
                    emulator.fault_exec({**place, "how": dice.choice(["fin", "rst"])}, body=name)
                peer.start("/bin/sh", "-c", script, "sh", str(n), str(out), str(err), str(code), exec_id=name)
                expected[name] = (code, "".join(f"{i}\n" for i in range(1, out + 1)).encode() + b"\xff\0\xe2\x82\xac",
                                  "".join(f"{i}\n" for i in range(1, err + 1)).encode())
            for name, (code, out_bytes, err_bytes) in expected.items():
                ended = peer.finish(name)
                assert (ended.reason, ended.returncode, ended.dropped_bytes) == ("exited", code, 0), ended.params
                assert (ended.stdout, ended.stderr) == (out_bytes, err_bytes)
    emulator.clear_faults()
    ran = list((workspace(emulator) / "ran").iterdir())
    assert len(ran) == (COMMANDS // 2 + AT_ONCE - 1) // AT_ONCE * AT_ONCE
    assert all(each.read_text() == "x\n" for each in ran)
