"""unpack: what was pushed, put in place. Follows helper.py and helper_parts.py, whose names it uses.

Members are taken one after the other from the archive's parts. What goes wrong with one of them is told with its number,
and the rest goes on; an archive that is broken, or a disk that is full, ends it all.
"""

LATEST = 1 << 40  # seconds; every file system's own limits are below, and the kernel keeps to those
MOST_STRETCHES = 1 << 20  # of one file; the daemon sends far fewer


class Content:
    """What one member has, padding behind it."""

    def __init__(self, parts, size):
        self.parts, self.left, self.padding = parts, size, padding(size)

    def some(self, most):
        if not self.left:
            raise Refused("archive_cut")
        data = self.parts.some(min(most, self.left))
        self.left -= len(data)
        return data

    def exactly(self, size):
        if size > self.left:
            raise Refused("archive_cut")
        self.left -= size
        return self.parts.exactly(size)

    def pass_over(self):
        """What nobody took."""
        self.left += self.padding
        self.padding = 0
        while self.left:
            self.some(PIECE)


class Member:
    def __init__(self, head, attributes, size, parts):
        prefix = field(head[345:500])
        self.name = (prefix + b"/" if prefix else b"") + field(head[:100])
        self.name = attributes.get(b"GNU.sparse.name", attributes.get(b"path", self.name)).rstrip(b"/")
        self.path = b"/" + self.name
        self.kind = head[156:157]
        self.mode = number(head[100:108]) & 0o777
        mtime = int(attributes[b"mtime"].split(b".")[0]) if b"mtime" in attributes else number(head[136:148])
        self.mtime = max(-LATEST, min(mtime, LATEST))
        self.link = attributes.get(b"linkpath", field(head[157:257]))
        self.real_size = int(attributes[b"GNU.sparse.realsize"]) if attributes.get(b"GNU.sparse.major") == b"1" else None
        self.content = Content(parts, size)

    def write_to(self, fd):
        if self.real_size is None:
            stretches = [(0, self.content.left)]
        else:
            stretches = sparse_map(self.content)
            os.ftruncate(fd, self.real_size)
        for offset, length in stretches:
            if offset:
                os.lseek(fd, offset, os.SEEK_SET)
            while length:
                data = self.content.some(min(length, PIECE))
                length -= len(data)
                write_all(fd, data)
        if self.content.left:
            raise Refused("archive_cut")


def field(text):
    return text.split(b"\0", 1)[0]


def members(parts, number_of_first):
    """(number, Member) of each; what it leaves of its content is passed over."""
    attributes = {}
    i = number_of_first
    while True:
        if not attributes:
            parts.begin(i)
        head = parts.exactly(BLOCK)
        if head[:1] == b"\0":
            return
        size = int(attributes[b"size"]) if b"size" in attributes else number(head[124:136])
        if head[156:157] in b"xg":
            text = parts.exactly(size + padding(size))[:size]
            if head[156:157] == b"x":
                attributes = dict(records(text))
            continue
        member = Member(head, attributes, size, parts)
        yield i, member
        member.content.pass_over()
        attributes = {}
        i += 1


def number(text):
    if text[0] & 0x80:  # base 256, two's complement below the first bit
        value = int.from_bytes(text, "big") & ~(0x80 << 8 * (len(text) - 1))
        return value - (0x80 << 8 * (len(text) - 1)) if text[0] & 0x40 else value
    return int(text.strip(b" \0") or b"0", 8)


def records(text):
    while text:
        length = int(text[:text.index(b" ")])
        key, _, value = text[text.index(b" ") + 1:length - 1].partition(b"=")
        yield key, value
        text = text[length:]


def sparse_map(content):
    """GNU sparse 1.0: how many stretches, and where each begins and how long it is; a number a line, in whole blocks."""
    numbers, rest, wanted = [], b"", 1
    while len(numbers) < wanted:
        *lines, rest = (rest + content.exactly(BLOCK)).split(b"\n")
        numbers += map(int, lines)
        if numbers:
            wanted = 1 + 2 * numbers[0]
        if wanted > 2 * MOST_STRETCHES:
            raise Refused("archive_cut")
    return list(zip(numbers[1:wanted:2], numbers[2:wanted:2]))


class Modes:
    """Of directories, set last, as one may forbid writing to it; and written down first, for who goes on after a kill."""

    def __init__(self, operation):
        self.operation = operation
        self.fd = os.open(operation.directory + b"/modes", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        with open(self.fd, "rb", closefd=False) as file:
            *records, cut = file.read().split(b"\0")
        os.ftruncate(self.fd, sum(len(each) + 1 for each in records))
        self.of = {path: int(mode, 8) for mode, path in (each.split(b" ", 1) for each in records)}

    def note(self, path, mode):
        write_all(self.fd, b"%o %b\0" % (mode, path))
        self.of[path] = mode

    def settle(self):
        for path in sorted(self.of, key=len, reverse=True):
            if not self.operation.is_waited_for():
                return  # others may have set them by now
            try:
                os.chmod(path, self.of[path])
            except OSError:
                pass


class Target:
    """Where members go: directories made as needed, each checked once."""

    def __init__(self, operation, ours, modes):
        self.operation = operation
        self.ours = ours  # files and links that an earlier push has put where there is a directory now
        self.known = {WORKSPACE: None}
        self.modes = modes

    def directory(self, path, member=False):
        """None, or why nothing can be put there. A `member` is itself of the push, and not only where something of it goes."""
        missing = []
        above = path
        while above not in self.known:
            missing.append(above)
            above = os.path.dirname(above)
        trouble = self.known[above]
        for each in reversed(missing):
            trouble = trouble or self.make(each, member and each == path)
            self.known[each] = trouble
        return trouble

    def make(self, path, member):
        self.operation.insist()
        try:
            try:
                os.mkdir(path, 0o755)
                return None
            except FileExistsError:
                return self.take_over(path, os.lstat(path).st_mode, member)
        except OSError as problem:
            if problem.errno in FULL:
                raise
            return ("failed", why(problem))

    def take_over(self, path, mode, member):
        if not stat.S_ISDIR(mode) and path in self.ours:
            os.unlink(path)
            os.mkdir(path, 0o755)
        elif stat.S_ISLNK(mode):
            # Followed on the way to a file that was named so, as any program would; but a tree consists of directories.
            if member or not os.path.isdir(path):
                return ("in_the_way", "there is a link of that name")
            if not inside(path):
                return ("failed", "a link leads out of /workspace")
        elif not stat.S_ISDIR(mode):
            return ("in_the_way", "there is a file of that name")
        if not os.access(path, os.W_OK | os.X_OK):
            if path not in self.modes.of:
                self.modes.note(path, stat.S_IMODE(os.stat(path).st_mode))
            os.chmod(path, 0o700)
        return None


def place(member, target, aside, is_torn):
    """None, or why it is not there. Whether it is torn is known once all of it has been read."""
    if not below(member.path, WORKSPACE) or b".." in member.name.split(b"/"):
        return ("failed", "not below /workspace")
    if member.kind == b"5":
        trouble = target.directory(member.path, member=True)
        if not trouble:
            target.modes.note(member.path, member.mode)
        return trouble
    trouble = target.directory(os.path.dirname(member.path))
    if trouble:
        return trouble
    if member.kind == b"2":
        os.symlink(member.link, aside)
    else:
        fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, member.mode)
        try:
            member.write_to(fd)
            if member.mode & UMASK:
                os.fchmod(fd, member.mode)
            os.utime(fd, (member.mtime, member.mtime))
        finally:
            os.close(fd)
        if is_torn():
            os.unlink(aside)
            return None
    return rename_to(aside, member.path, target.operation)


def rename_to(aside, path, operation):
    try:
        os.rename(aside, path)
    except IsADirectoryError:
        operation.insist()
        try:
            os.rmdir(path)  # an empty one is no loss
            os.rename(aside, path)
        except OSError:
            return ("in_the_way", "there is a directory of that name")
    return None


def unpack(asked, operation):
    progress = Progress(operation)
    for i in range(progress.part, asked["parts"] or 0):
        if not any(os.path.exists(name(operation, i)) for name in (part_name, last_name)):
            raise Refused("parts_missing")
    into = raw(asked["into"])
    aside = operation.directory + b"/new-%d" % os.getpid()
    gone, _ = gone_before(operation, asked["claims"], aside)
    modes = Modes(operation)
    target = Target(operation, {raw(each) for each in asked["ours"]}, modes)
    parts = Parts(operation, progress, PATIENCE if asked["parts"] is None else 0)
    try:
        for i, member in members(parts, progress.member):
            operation.insist()
            trouble = None
            try:
                if into and os.path.isdir(member.path):
                    member.path += b"/" + into
                    progress.into = True
                trouble = place(member, target, aside, lambda: i in parts.torn)
            except Refused:
                raise
            except Exception as problem:
                if isinstance(problem, OSError) and problem.errno in FULL:
                    raise
                trouble = ("failed", why(problem))
            if trouble:
                progress.failed.append([i, trouble[0], trouble[1] if len(progress.failed) < NAMED else ""])
                remove(aside)
    except OSError:
        if operation.stands():
            raise
        raise Refused("parts_missing") from None
    finally:
        modes.settle()
    if progress.failed and not operation.stands():
        raise Refused("parts_missing")  # what was swept had no chance
    return {"failed": progress.failed, "gone": gone, "into": progress.into}


def unpack_all(asked):
    """Of a first call that is at work nothing is known here: it is told that all parts are there by the name of the last."""
    if asked["parts"]:
        operation, last = Operation(asked), asked["parts"] - 1
        try:
            if not os.path.exists(last_name(operation, last)):
                os.rename(part_name(operation, last), last_name(operation, last))
        except FileNotFoundError:
            pass  # it has done all that by now, or it will turn out to be missing
    return once(unpack)(asked)


VERBS["unpack"] = unpack_all
