"""A strict reader of what the shim prints, written from daemon/shim/frames.h alone.

`parse(text)` checks everything the format promises, continuity of positions above all, and returns a Transcript. Text that ends
inside a frame (a cut) is accepted up to the last whole frame only with `cut=True`. Raises FormatError.
"""

from __future__ import annotations

import base64
import dataclasses
import re
import urllib.parse

import lz4.block

LINE_MAX = 2048
DATA_MAX = 65536
PACK_MIN = 4096
LAST = {"exit", "more", "lost", "error", "killed", "stdin", "done", "probe"}
VALUE = re.compile(r"[A-Za-z0-9._~:/,+%-]+")


class FormatError(Exception):
    pass


@dataclasses.dataclass
class Frame:
    name: str
    fields: dict[str, str]

    def number(self, key: str) -> int | None:
        return None if self.fields[key] == "-" else int(self.fields[key])

    def text(self, key: str) -> str:
        return urllib.parse.unquote(self.fields[key])

    def __getitem__(self, key: str) -> str:
        return self.fields[key]


@dataclasses.dataclass
class Transcript:
    verb: str = ""
    hello: Frame | None = None
    frames: list[Frame] = dataclasses.field(default_factory=list)
    out: bytes = b""
    err: bytes = b""
    merged: bytes = b""  # both, in order
    pos: int = 0
    start: int = 0
    raw_bytes: int = 0
    encoded_bytes: int = 0
    packed_bytes: int = 0
    payload_bytes: int = 0  # as they came

    @property
    def last(self) -> Frame:
        return self.frames[-1]

    def named(self, name: str) -> list[Frame]:
        return [one for one in self.frames if one.name == name]

    @property
    def exit(self) -> Frame:
        assert self.frames and self.last.name == "exit", self.frames[-3:]
        return self.last


def _line(line: bytes) -> Frame:
    text = line.decode("ascii")
    if not all(0x20 <= byte <= 0x7E for byte in line):
        raise FormatError(f"not printable: {line!r}")
    name, *words = text.split(" ")
    fields: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        known = VALUE.fullmatch(value) or (key == "mark" and not value)
        if not equals or not known or not re.fullmatch("[a-z_]+", key):
            raise FormatError(f"field {word!r} in {text!r}")
        fields[key] = value if key != "mark" or key not in fields else fields[key] + " " + value
    return Frame(name, fields)


def parse(data: bytes | str, *, cut: bool = False) -> Transcript:
    content = data.encode("ascii") if isinstance(data, str) else data
    made = Transcript()
    offsets = [0, 0]
    parts: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
    at = 0
    ended = False
    while at < len(content):
        end = content.find(b"\n", at)
        if end < 0:
            if cut:
                break
            raise FormatError(f"unfinished line {content[at:at + 80]!r}")
        line = content[at:end]
        if len(line) >= LINE_MAX:
            raise FormatError("line too long")
        if ended:
            raise FormatError(f"after the last frame: {line[:80]!r}")
        following = end + 1
        if made.hello is None:
            match = re.fullmatch(rb"deepinfra-shim/1 ([a-z]+)( .*)?", line)
            if not match:
                raise FormatError(f"first frame {line[:200]!r}")
            made.verb = match[1].decode()
            made.hello = _line(b"hello" + (match[2] or b""))
            if "pos" in made.hello.fields:
                made.pos = made.start = int(made.hello["pos"])
                offsets = [int(made.hello["out"]), int(made.hello["err"])]
        elif line[:2] in (b"o ", b"e "):
            stream = 0 if line[:1] == b"o" else 1
            match = re.fullmatch(rb"[oe] (\d+) (\d+) ([rbz]) (\d+)(?: (\d+))?", line)
            if not match or (match[3] == b"z") != (match[5] is not None):
                raise FormatError(f"data line {line!r}")
            pos, off, size = int(match[1]), int(match[2]), int(match[4])
            if not 1 <= size <= DATA_MAX:
                raise FormatError(f"size {size}")
            if pos != made.pos or off != offsets[stream]:
                raise FormatError(f"{line!r} where position {made.pos} and offset {offsets[stream]} were due")
            length = int(match[5]) if match[5] else size if match[3] == b"r" else (size + 2) // 3 * 4
            if match[5] and not (length < size and size >= PACK_MIN):
                raise FormatError(f"packed for nothing: {line!r}")
            if following + length + 1 > len(content):
                if cut:
                    break
                raise FormatError("unfinished payload")
            payload = content[following : following + length]
            if content[following + length : following + length + 1] != b"\n":
                raise FormatError("no line feed after a payload")
            following += length + 1
            made.payload_bytes += length
            if match[3] == b"z":
                payload = lz4.block.decompress(base64.b64decode(payload, validate=True), uncompressed_size=size)
                made.packed_bytes += size
            elif match[3] == b"b":
                payload = base64.b64decode(payload, validate=True)
                made.encoded_bytes += size
            else:
                made.raw_bytes += size
                if re.search(rb"[^\x20-\x7e\n\t]", payload):
                    raise FormatError("unsafe byte in a raw payload")
            if len(payload) != size:
                raise FormatError("size of a payload")
            parts[stream].append(payload)
            parts[2].append(payload)
            made.pos += size
            offsets[stream] += size
        else:
            frame = _line(line)
            if frame.name == "gap":
                if int(frame["pos"]) != made.pos or int(frame["n"]) < 1:
                    raise FormatError(f"gap {frame} at {made.pos}")
                made.pos += int(frame["n"])
                offsets = [int(frame["out"]), int(frame["err"])]
                if sum(offsets) != made.pos:
                    raise FormatError(f"gap {frame}")
            elif "pos" in frame.fields and frame.name in ("alive", "more", "full", "exit") and int(frame["pos"]) != made.pos:
                raise FormatError(f"{frame} at {made.pos}")
            made.frames.append(frame)
            ended = frame.name in LAST or (frame.name == "acked" and made.verb == "ack")
        at = following
    if not ended and not cut:
        raise FormatError(f"no last frame: {content[-200:]!r}")
    made.out, made.err, made.merged = (b"".join(part) for part in parts)
    return made
