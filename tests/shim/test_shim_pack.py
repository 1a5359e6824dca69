"""Output that shrinks travels packed, and comes out as it was: `shim_frames` unpacks it with the LZ4 library."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from shim_box import Box
from shim_frames import Transcript

LINE = b"The quick brown fox jumps over the lazy dog, again and again and again.\n"


def cat(box: Box, data: bytes, id: str = "x") -> Transcript:
    assert box.emulator.put(box.id, "/workspace/data", data).status == 200
    made = box.call("run", id, "--", "cat", "/workspace/data")
    assert made.merged == data and made.exit.number("code") == 0
    return made


def test_text_that_repeats_takes_a_fraction_of_its_size(box: Box) -> None:
    data = LINE * 20_000
    made = cat(box, data)
    assert made.packed_bytes > len(data) * 9 // 10
    assert made.payload_bytes < len(data) // 20


def test_bytes_that_are_no_text_are_packed_as_well(box: Box) -> None:
    made = cat(box, bytes(range(256)) * 1000)
    assert made.packed_bytes > 200_000


def test_what_does_not_shrink_is_left_as_it_is(box: Box) -> None:
    chance = random.Random(1)
    noise = bytes(chance.choices(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", k=600_000))
    made = cat(box, noise)
    assert made.packed_bytes == 0 and made.raw_bytes == len(noise)


def test_after_noise_what_repeats_is_found_again(box: Box) -> None:
    noise = random.Random(2).randbytes(300_000)
    made = cat(box, noise + LINE * 60_000)
    assert made.encoded_bytes > 200_000 and made.packed_bytes > 2_000_000


def test_a_few_lines_are_not_worth_it(box: Box) -> None:
    assert cat(box, LINE * 40).packed_bytes == 0


def periods(chance: random.Random) -> bytes:
    """Repeats at every distance a block has room for."""
    return b"".join((chance.randbytes(period) * 9)[: chance.randrange(period, 9 * period)] for period in chance.sample(range(1, 32_768), 60))


def runs(chance: random.Random) -> bytes:
    """Long runs of literals and of matches, around what fits a token and a byte."""
    near = [0, 1, 3, 4, 5, 14, 15, 16, 18, 19, 20, 254, 255, 256, 269, 270, 271, 273, 274, 275, 529, 530, 5000]
    return b"".join(chance.randbytes(chance.choice(near)) + b"\0" * chance.choice(near) for _ in range(6000))


def few_letters(chance: random.Random) -> bytes:
    return bytes(chance.choices(b"ab", weights=[9, 1], k=1_000_000))


def mixed(chance: random.Random) -> bytes:
    """Pieces of what came before and new bytes, in sizes of every kind."""
    made = bytearray(chance.randbytes(100))
    while len(made) < 2_000_000:
        if chance.random() < 0.7:
            begin = chance.randrange(max(0, len(made) - 70_000), len(made))
            made += made[begin : begin + chance.choice([3, 4, 5, 8, 60, 400, 20_000])]
        else:
            made += chance.randbytes(chance.choice([1, 2, 7, 30, 3000]))
    return bytes(made)


@pytest.mark.parametrize("made_of", [periods, runs, few_letters, mixed], ids=lambda made_of: made_of.__name__)
def test_whatever_it_is_made_of(box: Box, made_of: Callable[[random.Random], bytes]) -> None:
    for seed in range(4):
        made = cat(box, made_of(random.Random(seed)), f"x{seed}")
        assert made.packed_bytes > 0


def test_every_size_around_the_smallest_and_the_greatest(box: Box) -> None:
    """One write a size, each taken as one portion; what the pipe splits is packed in its parts."""
    sizes = [*range(4090, 4102), *range(65_530, 65_542)]
    assert box.emulator.put(box.id, "/workspace/data", LINE * 1000).status == 200
    made = box.call("run", "x", "--", "sh", "-c", "".join(f"head -c {size} /workspace/data; sleep 0.02; " for size in sizes))
    assert made.merged == b"".join((LINE * 1000)[:size] for size in sizes) and made.packed_bytes > 0
