"""What runs inside a sandbox for file transfers: python3 -I -S -c THIS VERB ARGUMENTS.

ARGUMENTS is JSON (or "@" and the path of a file that holds it). Paths travel in it, and in the answer, as strings of one
character a byte. The answer is one line of JSON on stdout; `error` in it names what went wrong as a whole. Nothing else
is printed there, and no shell is involved.

Every verb may be run again after a lost answer: two of the same operation take turns at its directory's lock, and what
the first one answered is kept until another operation begins. Files are written aside and renamed, so each is there
whole or not at all. Only names below /workspace are touched, also where links lead elsewhere.
"""
import errno, fcntl, json, mmap, os, stat, sys, zlib

WORKSPACE = b"/workspace"
HOME = WORKSPACE + b"/.deepinfra-sandboxd"
SYNC = HOME + b"/sync"
PIECE = 1 << 20
BLOCK = 512
NAMED = 100  # failures told with their text
STRETCHES = 1000  # of one sparse file that is packed; the host takes no map that is much longer
GONE = (FileNotFoundError, NotADirectoryError)
FULL = (errno.ENOSPC, errno.EDQUOT)


class Refused(Exception):
    """Told as the answer's `error`, or as why one path failed."""


def plain(path):
    return path.decode("latin-1")


def raw(text):
    return text.encode("latin-1")


def below(path, root):
    return path == root or path.startswith(root + b"/")


def inside(directory):
    """Whether a directory, links resolved, is /workspace or below it."""
    return below(os.path.realpath(directory), os.path.realpath(WORKSPACE))


def why(problem):
    return os.strerror(problem.errno) if isinstance(problem, OSError) and problem.errno else str(problem) or type(problem).__name__


def write_all(fd, data):
    while data:
        data = data[os.write(fd, data):]


def write_whole(path, content, aside):
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o644)
    try:
        write_all(fd, content)
    finally:
        os.close(fd)
    os.rename(aside, path)


def padding(size):
    return -size % BLOCK


class Operation:
    """One transfer's directory, locked; answers are kept beside it."""

    def __init__(self, asked):
        self.name = raw(asked["op"])
        self.directory = SYNC + b"/" + self.name
        self.done = self.directory + b".done"
        self.live = {raw(each) for each in asked.get("live", [])} | {self.name}

    def begin(self):
        """The answer given before, if there is one."""
        self.sweep()  # before anything is made, as that may take room
        os.makedirs(SYNC, 0o755, exist_ok=True)
        while True:
            if os.path.exists(self.done):
                with open(self.done, "rb") as file:
                    return file.read()
            os.makedirs(self.directory, 0o755, exist_ok=True)
            self.lock = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self.lock, fcntl.LOCK_EX)
            try:
                if os.fstat(self.lock).st_ino == os.stat(self.directory).st_ino:
                    if not os.path.exists(self.done):
                        return None
            except FileNotFoundError:
                pass  # a twin has finished meanwhile
            os.close(self.lock)

    def sweep(self):
        """What operations that nobody waits for any more have left behind."""
        for name in os.listdir(SYNC) if os.path.isdir(SYNC) else ():
            if name.split(b".")[0] not in self.live:
                try:
                    remove(SYNC + b"/" + name)
                except OSError:
                    pass

    def finish(self, answer, keep=False):
        text = json.dumps(answer).encode()
        self.keep(text)
        if not keep:
            remove(self.directory)
        return text

    def give_up(self, text):
        """The answer to what failed for want of room: first, what it has taken is given back."""
        remove(self.directory)
        self.keep(error(text))
        return error(text)

    def keep(self, text):
        try:
            write_whole(self.done, text, self.directory + b".answer-%d" % os.getpid())
        except OSError:  # it is given all the same, and without room cannot be given twice
            pass


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
    out = b""
    if extra:
        extra = record(b"hdrcharset", b"BINARY") + extra
        out = ustar(b"pax", b"x", len(extra), 0o644, 0, b"") + extra + b"\0" * padding(len(extra))
    mtime = min(max(int(status.st_mtime), 0), 8 ** 11 - 1)
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
    before = operation.begin()
    if before is not None:
        return before
    try:
        return operation.finish(pack_into(operation.directory, asked), keep=True)
    except BaseException:
        remove(operation.directory)  # what is left of it would keep a full disk full
        raise


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
    content = sum(status.st_size for _, _, status in found if stat.S_ISREG(status.st_mode))
    stored = sum(min(status.st_size, status.st_blocks * 512) for _, _, status in found if stat.S_ISREG(status.st_mode))
    most = asked["max_bytes"]
    if most is not None and content > most:
        raise Refused("too_large: %d" % content)
    space = os.statvfs(SYNC)
    if stored + 1536 * len(found) > space.f_bavail * space.f_frsize:
        raise Refused("no_space: %d" % stored)
    out = PartWriter(directory, asked["part_bytes"], asked["compress"])
    torn, members_written, content = [], 0, 0
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
        "members": members_written,
        "sizes": out.sizes,
        "drop": torn,
        "skipped": [[plain(b"/" + name), reason, text] for name, reason, text in skipped[:NAMED]],
        "skipped_more": max(0, len(skipped) - NAMED),
    }


def drop(asked):
    operation = Operation(asked)
    for name in (operation.directory, operation.done):
        remove(name)
    return b"{}"


def sweep(asked):
    Operation(asked).sweep()
    space = os.statvfs(WORKSPACE)
    return json.dumps({"free": space.f_bavail * space.f_frsize}).encode()


def look(asked, operation):
    return {"gone": gone_of(asked["paths"])}


def once(work, without_room=False):
    """A verb whose answer is kept for whoever asks again. `without_room`: it is done even where nothing can be kept."""
    def verb(asked):
        operation = Operation(asked)
        try:
            before = operation.begin()
        except OSError as problem:
            if problem.errno not in FULL or not without_room:
                raise
            before = None
        return operation.finish(work(asked, operation)) if before is None else before
    return verb


def answer(verb, text):
    try:
        if text.startswith("@"):
            kept = os.path.dirname(text[1:]) + ".done"
            if os.path.exists(kept):  # and the arguments are gone with the rest
                with open(kept, "rb") as file:
                    return file.read()
            with open(text[1:], "rb") as file:
                asked = json.load(file)
        else:
            asked = json.loads(text)
    except (OSError, ValueError) as problem:
        return error("failed: " + why(problem))
    try:
        return {"unpack": once(unpack), "delete": once(delete, without_room=True), "look": once(look),
                "pack": pack, "drop": drop, "sweep": sweep}[verb](asked)
    except Refused as problem:
        return error(str(problem))
    except Exception as problem:
        if isinstance(problem, OSError) and problem.errno in FULL:
            return Operation(asked).give_up("no_space: " + why(problem))
        return error("failed: " + why(problem))


def error(text):
    return json.dumps({"error": text}).encode()


def main():
    os.umask(0o022)
    sys.stdout.buffer.write(answer(*sys.argv[1:]) + b"\n")


main()
