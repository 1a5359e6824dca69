"""unpack's parts: the archive as one stream, and how far it was taken. Follows helper.py, whose names it uses.

unpack may begin while parts still come. The call that says how many there are ("parts", else null) then waits for the one
that is at work, and has its answer, or goes on where that was cut off. Parts that nobody needs for that are removed.
"""

POPULATE = getattr(mmap, "MAP_POPULATE", 0)  # Python has it from 3.10 on
PATIENCE = 60  # seconds without a new part; of a slow line nobody begins so early


class Progress:
    """Where to go on, should this be cut off: kept beside the parts, of which those before are not needed any more."""

    def __init__(self, operation):
        for name in os.listdir(operation.directory):
            if name.startswith((b"new-", b"progress-")):
                os.unlink(operation.directory + b"/" + name)  # of who was cut off
        self.kept = operation.directory + b"/progress"
        self.part, self.offset, self.member, self.failed, self.into = 0, 0, 0, [], False
        if os.path.exists(self.kept):
            with open(self.kept, "rb") as file:
                self.part, self.offset, self.member, failed, self.into = json.load(file)
            self.failed = [each for each in failed if each[0] < self.member]

    def keep(self, part, offset, member):
        text = json.dumps([part, offset, member, self.failed, self.into]).encode()
        write_whole(self.kept, text, self.kept + b"-%d" % os.getpid())
        self.part, self.offset, self.member = part, offset, member


def part_name(operation, i):
    return operation.directory + b"/part-%06d" % i


def last_name(operation, i):
    """Of the last part, once it is known to be that: until then nobody knows whether it is there as a whole."""
    return operation.directory + b"/last-%06d" % i


def mapped(path):
    """So that what goes from file to file is copied once; at once, as all of it is wanted."""
    try:
        with open(path, "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, mmap.MAP_SHARED | POPULATE, mmap.PROT_READ))
    except ValueError:  # it is empty
        raise Refused("archive_cut") from None
    except FileNotFoundError:
        raise Refused("parts_missing") from None


class Parts:
    """The archive's parts as one stream; each is gzip or not. One is whole when the next has begun."""

    def __init__(self, operation, progress, patience):
        self.operation, self.progress = operation, progress
        self.patience = patience  # seconds without a new part
        self.next = progress.part
        self.packed = None  # of a gzip part: what is still to be unpacked
        self.inflate = None
        self.buffer = memoryview(b"")
        self.plain = 0  # bytes of this part, as far as they were in the buffer
        self.torn = set()  # members that are not to be put in place: each is told of before its last part comes
        self.heard = 0  # of how many parts that was read
        self.begun = None  # the part, the place in it and the number of the member at hand
        skip = progress.offset
        while skip:
            skip -= len(self.some(min(skip, PIECE)))

    def begin(self, member):
        self.begun = (self.next - 1, self.plain - len(self.buffer), member)

    def fill(self):
        while not self.buffer:
            if self.packed:
                try:
                    self.buffer = memoryview(self.inflate.decompress(self.packed[:PIECE >> 2]))
                except zlib.error:
                    raise Refused("archive_cut") from None
                self.packed = self.packed[PIECE >> 2:]
                self.plain += len(self.buffer)
            else:
                self.open(self.next)

    def open(self, i):
        path = self.whole(i)
        if self.begun and self.begun[0] > self.progress.part:
            self.keep_progress()
        part = mapped(path)
        while self.heard <= i:
            told = self.operation.directory + b"/torn-%06d" % self.heard
            self.heard += 1
            if os.path.exists(told):
                with open(told, "rb") as file:
                    self.torn.update(json.load(file))
        self.next = i + 1
        if part[:2] == b"\x1f\x8b":
            self.packed, self.inflate, self.plain = part, zlib.decompressobj(31), 0
        else:
            self.buffer, self.plain = part, len(part)

    def whole(self, i):
        """The path of part i, once nothing is added to it any more."""
        since = time.monotonic()
        while True:
            if any(os.path.exists(name(self.operation, i + 1)) for name in (part_name, last_name)):
                return part_name(self.operation, i)
            if os.path.exists(last_name(self.operation, i)):
                return last_name(self.operation, i)
            if os.path.exists(last_name(self.operation, i - 1)):
                raise Refused("archive_cut")
            if not self.operation.stands() or time.monotonic() - since >= self.patience:
                raise Refused("parts_missing")
            time.sleep(GLANCE)

    def keep_progress(self):
        done = range(self.progress.part, self.begun[0])
        try:
            self.progress.keep(*self.begun)
        except OSError as problem:
            if problem.errno not in FULL:
                raise
            return  # there may be room for what is left
        for i in done:
            remove(part_name(self.operation, i))

    def some(self, most):
        """Between one byte and `most`."""
        if not self.buffer:
            self.fill()
        data = self.buffer[:most]
        self.buffer = self.buffer[most:]
        return data

    def exactly(self, size):
        data = bytes(self.some(size)) if size else b""
        while len(data) < size:
            data += self.some(size - len(data))
        return data
