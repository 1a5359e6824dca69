"""pack: what is fetched, as an archive in parts. Follows helper.py, whose names it uses.

Each member's header is written before its content, so what it promises is written whatever becomes of the file meanwhile,
and the answer names the members that the host has to drop.
"""

STRETCHES = 1000  # of one sparse file that is packed; the host takes no map that is much longer


def walk(root, name, found, skipped):
    """(path, name in the archive, stat) of everything at and below `root`, parents first."""
    pending = [(root, name)]
    while pending:
        path, name = pending.pop()
        try:
            status = os.lstat(path)
            kind = stat.S_IFMT(status.st_mode)
            if kind not in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK):
                skipped.append((name, "special", "neither a file, a directory nor a link"))
                continue
            if kind == stat.S_IFREG and not os.access(path, os.R_OK):
                raise PermissionError(errno.EACCES, "")
            if kind == stat.S_IFDIR:
                below_it = sorted(os.listdir(path), reverse=True)
                pending += [(path + b"/" + each, name + b"/" + each) for each in below_it
                            if path + b"/" + each != HOME]
            found.append((path, name, status))
        except OSError as problem:
            skipped.append((name, "unreadable", why(problem)))


def is_known(path, name, status, known):
    """Whether a file is what the host has sent: by a digest of its size and content. One with holes there has another."""
    digest = known.get(plain(b"/" + name))
    if digest is None or not stat.S_ISREG(status.st_mode):
        return False
    import hashlib  # takes its time
    check = hashlib.sha256(b"%d\n" % status.st_size)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            for data in iter(lambda: file.read(PIECE), b""):
                check.update(data)
    except OSError:
        return False
    return check.hexdigest() == digest


class PartWriter:
    """Cuts a stream into part files."""

    def __init__(self, directory, limit, compress):
        self.directory, self.limit, self.compress = directory, limit, compress
        self.sizes = []
        self.file = None

    def write(self, data):
        view = memoryview(data)
        while view:
            if self.file is None:
                name = self.directory + b"/part-%06d" % len(self.sizes)
                self.file = open(name, "wb")
                self.size = 0
                self.deflate = zlib.compressobj(1, zlib.DEFLATED, 31) if self.compress else None
            take = view[:min(len(view), 1 << 18, self.limit - self.size)]
            view = view[len(take):]
            self.put(self.deflate.compress(take) if self.deflate else take)
            if self.size >= self.limit - ((1 << 19) if self.deflate else 0):
                self.close()

    def put(self, data):
        self.file.write(data)
        self.size += len(data)

    def close(self):
        if self.file is not None:
            if self.deflate:
                self.put(self.deflate.flush())
            self.file.close()
            self.file = None
            self.sizes.append(self.size)


def record(key, value):
    body = b" " + key + b"=" + value + b"\n"
    length = len(body)
    while length != len(body) + len(b"%d" % length):
        length = len(body) + len(b"%d" % length)
    return b"%d" % length + body


def header(name, kind, size, status, link=b"", more=()):
    """A ustar header, after a pax one where something does not fit."""
    extra = b"".join(record(key, value) for key, value in more)
    if len(name) > 100:
        extra += record(b"path", name)
    if len(link) > 100:
        extra += record(b"linkpath", link)
    if size >= 8 ** 11:
        extra += record(b"size", b"%d" % size)
    mtime = status.st_mtime_ns // 10 ** 9
    if not 0 <= mtime < 8 ** 11:
        extra += record(b"mtime", b"%d" % mtime)
        mtime = 0
    out = b""
    if extra:
        extra = record(b"hdrcharset", b"BINARY") + extra
        out = ustar(b"pax", b"x", len(extra), 0o644, 0, b"") + extra + b"\0" * padding(len(extra))
    return out + ustar(name, kind, size if size < 8 ** 11 else 0, stat.S_IMODE(status.st_mode) & 0o777, mtime, link)


def ustar(name, kind, size, mode, mtime, link):
    head = b"%-100b%07o\0%07o\0%07o\0%011o\0%011o\0        %b%-100bustar\x0000%-32b%-32b%07o\0%07o\0" % (
        name[:100].ljust(100, b"\0"), mode, 0, 0, size, mtime, kind, link[:100].ljust(100, b"\0"), b"\0" * 32, b"\0" * 32, 0, 0)
    head = head.ljust(BLOCK, b"\0")
    return head[:148] + b"%06o\0 " % sum(head) + head[156:]


def stretches_of(fd, size):
    """Where the first `size` bytes of a file have data."""
    found, at = [], 0
    while at < size:
        try:
            start = os.lseek(fd, at, os.SEEK_DATA)
        except OSError as problem:
            if problem.errno == errno.ENXIO:
                break
            return [(0, size)]
        if start >= size:
            break  # it has grown since
        at = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        found.append((start, at - start))
    return found


def in_fewer(stretches):
    """No more than the host takes of one file: the smallest holes are filled."""
    def hole(i):
        return stretches[i][0] - sum(stretches[i - 1])
    widest = sorted(sorted(range(1, len(stretches)), key=hole, reverse=True)[:STRETCHES - 1])
    starts, ends = [0] + widest, widest + [len(stretches)]
    return [(stretches[i][0], sum(stretches[j - 1]) - stretches[i][0]) for i, j in zip(starts, ends)] if stretches else []


def state(fd):
    status = os.fstat(fd)
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


class Source:
    """A file as it is packed: what its header promises, whatever becomes of it, is written."""

    def __init__(self, path, name):
        self.fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            self.look(name)
        except BaseException:
            self.close()
            raise

    def look(self, name):
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "")
        self.content = self.small_content(status)
        self.size = status.st_size if self.content is None else len(self.content)
        self.before = state(self.fd)
        self.sparse = self.content is None and status.st_blocks * 512 < self.size
        if not self.sparse:
            self.stretches = [(0, self.size)]
            self.head = header(name, b"0", self.size, status)
            self.total = self.size
            return
        self.stretches = in_fewer(stretches_of(self.fd, self.size))
        table = b"%d\n" % len(self.stretches) + b"".join(b"%d\n%d\n" % each for each in self.stretches)
        table += b"\0" * padding(len(table))
        self.total = len(table) + sum(length for _, length in self.stretches)
        self.head = header(b"GNUSparseFile.0/x", b"0", self.total, status, more=(
            (b"GNU.sparse.major", b"1"), (b"GNU.sparse.minor", b"0"), (b"GNU.sparse.name", name),
            (b"GNU.sparse.realsize", b"%d" % self.size))) + table

    def small_content(self, status):
        """All of a small file that was not changed meanwhile; None if it always was, or is not small."""
        for _ in range(3):
            before = state(self.fd)
            if before[0] > PIECE or status.st_blocks * 512 < before[0]:
                return None
            data = os.pread(self.fd, before[0] + 1, 0)
            if len(data) == before[0] and state(self.fd) == before:
                return data
        return None

    def pieces(self):
        for offset, length in self.stretches:
            while length:
                data = os.pread(self.fd, min(length, PIECE), offset)
                if not data:
                    return  # it is shorter now
                yield data
                offset += len(data)
                length -= len(data)

    def copy(self, out):
        """None, or why what was written is none of the file's states: the host drops it then."""
        if self.content is not None:
            out.write(self.content + b"\0" * padding(self.size))
            return None
        trouble = None
        left, check = sum(length for _, length in self.stretches), 0
        pieces = self.pieces()
        while left:
            try:
                data = next(pieces, None)
            except OSError as problem:
                trouble, data = ("unreadable", why(problem)), None
            if data is None:
                break
            out.write(data)
            left -= len(data)
            check = zlib.crc32(data, check)
        missing = left
        while left:
            out.write(b"\0" * min(left, PIECE))
            left -= min(left, PIECE)
        out.write(b"\0" * padding(self.total))
        if trouble is None and (missing or not self.stands(check)):
            trouble = ("changing", "it changed while it was read")
        return trouble

    def stands(self, check):
        """Whether the file is, or at least begins with, what was read: one that is appended to always has changed since."""
        if state(self.fd) == self.before:
            return True
        if os.fstat(self.fd).st_size < self.size:
            return False
        try:
            if self.sparse and in_fewer(stretches_of(self.fd, self.size)) != self.stretches:
                return False
            again = 0
            for data in self.pieces():
                again = zlib.crc32(data, again)
            return again == check
        except OSError:
            return False

    def close(self):
        os.close(self.fd)


def pack(asked):
    operation = Operation(asked)
    before = operation.begin(stays=True)
    if before is not None:
        return before
    try:
        return operation.finish(pack_into(operation.directory, asked), stays=True)
    except BaseException:
        remove(operation.directory)  # what is left of it would keep a full disk full
        raise
    finally:
        operation.release()


def pack_into(directory, asked):
    remote = raw(asked["remote"])
    root = os.path.realpath(remote)
    if not below(root, os.path.realpath(WORKSPACE)) or below(root, os.path.realpath(HOME)):
        raise Refused("outside")
    if not os.path.lexists(root):
        raise Refused("missing")
    found, skipped = [], []
    walk(root, remote[1:], found, skipped)
    if not found:
        raise Refused("unreadable: " + skipped[0][2] if skipped else "missing")
    found = [each for each in found if not is_known(*each, asked["known"])]
    content = sum(status.st_size for _, _, status in found if stat.S_ISREG(status.st_mode))
    stored = sum(min(status.st_size, status.st_blocks * 512) for _, _, status in found if stat.S_ISREG(status.st_mode))
    most = asked["max_bytes"]
    if most is not None and content > most:
        raise Refused("too_large: %d" % content)
    space = os.statvfs(SYNC)
    if stored + 1536 * len(found) > space.f_bavail * space.f_frsize:
        raise Refused("no_space: %d" % stored)
    out = PartWriter(directory, asked["part_bytes"], asked["compress"])
    torn, members_written, content, unpacked = [], 0, 0, 0
    for path, name, status in found:
        kind = stat.S_IFMT(status.st_mode)
        file = None
        try:
            if kind == stat.S_IFDIR:
                head = header(name + b"/", b"5", 0, status)
            elif kind == stat.S_IFLNK:
                head = header(name, b"2", 0, status, os.readlink(path))
            else:
                file = Source(path, name)
                head = file.head
        except FileNotFoundError:
            continue  # gone since: as if it had never been
        except OSError as problem:
            skipped.append((name, "unreadable", why(problem)))
            continue
        if file is not None:
            content += file.size
            unpacked += sum(length for _, length in file.stretches)
            if most is not None and content > most:
                raise Refused("too_large: %d" % content)  # it has grown since
        out.write(head)
        trouble = None
        if file is not None:
            trouble = file.copy(out)
            file.close()
        if trouble is not None:
            torn.append(members_written)
            skipped.append((name,) + trouble)
        members_written += 1
    out.write(b"\0" * 1024)
    out.close()
    return {
        "kind": "directory" if stat.S_ISDIR(found[0][2].st_mode) else "file",
        "bytes": content,
        "unpacked": unpacked,  # bytes without holes
        "members": members_written,
        "sizes": out.sizes,
        "drop": torn,
        "skipped": [[plain(b"/" + name), reason, text] for name, reason, text in skipped[:NAMED]],
        "skipped_more": max(0, len(skipped) - NAMED),
    }


VERBS["pack"] = pack
