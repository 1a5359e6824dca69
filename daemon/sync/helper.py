"""What runs inside a sandbox for file transfers: python3 -I -S -c THIS VERB ARGUMENTS.

ARGUMENTS is JSON (or "@" and the path of a file that holds it). Paths travel in it, and in the answer, as strings of one
character a byte. The answer is one line of JSON on stdout; `error` in it names what went wrong as a whole. Nothing else
is printed there, and no shell is involved.

Every verb may be run again after a lost answer: two of the same operation take turns at its directory's lock, and what
the first one answered is kept until another operation begins. Files are written aside and renamed, so each is there
whole or not at all. Only names below /workspace are touched, also where links lead elsewhere.

This comes first in what runs. What the verb needs, and adds to VERBS, and the call of main() follow: the interpreter reads
no more than that, as it takes longer over it than over most of the work.
"""
import errno, fcntl, json, mmap, os, stat, sys, time, zlib

WORKSPACE = b"/workspace"
HOME = WORKSPACE + b"/.deepinfra-sandboxd"
SYNC = HOME + b"/sync"
PIECE = 1 << 20
UMASK = 0o022
BLOCK = 512
RUN = 12  # characters of an operation's name that are those of its daemon's run; the rest is its number, always as long
NAMED = 100  # failures told with their text
OWN = (b"arguments", b"gone", b"last", b"modes", b"new", b"part", b"progress", b"torn")  # what an operation's files are called first
COURTESY = 1  # seconds
GLANCE = 0.004  # seconds from one look for a change to the next
GONE = (FileNotFoundError, NotADirectoryError)
FULL = (errno.ENOSPC, errno.EDQUOT)


class Refused(Exception):
    """Told as the answer's `error`, or as why one path failed."""


class Swept(Refused):
    """Others have begun since, who think that nobody is at work here any more."""


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


def why_and_where(problem):
    path = getattr(problem, "filename", None)
    return why(problem) + (": " + os.fsencode(path).decode("utf-8", "replace") if isinstance(path, (bytes, str)) else "")


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


def discard(paths):
    """What somebody may still be at work in, who changes nothing any more once he has seen that it has another name. He is
    waited for, lest his last step undoes the first of those who come now; but not for long, as he may hang."""
    aside = []
    for path in paths:
        try:
            if b".gone-" not in os.path.basename(path):
                other = path + b".gone-%d" % os.getpid()
                os.rename(path, other)
                path = other
            aside.append(path)
        except OSError:
            pass  # others sweep, too
    until = time.monotonic() + COURTESY
    for path in aside:
        try:
            await_end(path, until)
            remove(path)
        except OSError:
            pass


def await_end(path, until):
    """Of whoever works in a directory."""
    try:
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return  # nobody can
    try:
        locked(directory, fcntl.LOCK_SH, until)
    finally:
        os.close(directory)


def locked(fd, how, until):
    """Whether that came to be."""
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(GLANCE)


class Operation:
    """One transfer's directory, locked; answers are kept beside it."""

    def __init__(self, asked):
        self.name = raw(asked["op"])
        self.directory = SYNC + b"/" + self.name
        self.done = self.directory + b".done"
        self.live = {raw(each) for each in asked.get("live", [])} | {self.name}
        self.lock = None  # where there is no room for a directory

    def begin(self, stays=False):
        """The answer given before, if there is one. `stays`: so does the directory after it."""
        self.sweep()  # before anything is made, as that may take room
        os.makedirs(SYNC, 0o755, exist_ok=True)
        while not os.path.exists(self.done):
            os.makedirs(self.directory, 0o755, exist_ok=True)
            try:
                self.lock = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                continue  # a twin has finished meanwhile
            fcntl.flock(self.lock, fcntl.LOCK_EX)
            if self.stands() and not os.path.exists(self.done):
                return None
            self.release()
        self.await_twin(stays)
        with open(self.done, "rb") as file:
            return file.read()

    def await_twin(self, stays):
        """Whoever has given the answer may still be clearing up, and would be cut off by those who have what they want."""
        try:
            self.lock = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        except GONE:
            return
        if locked(self.lock, fcntl.LOCK_EX, time.monotonic() + COURTESY) and not stays:
            self.clear()  # it was cut off amid that
        self.release()

    def release(self):
        """Others must not have to wait for this process, which may find nobody to give its answer to."""
        os.close(self.lock)

    def stands(self):
        """Whether what was locked is still the operation's directory."""
        try:
            return os.fstat(self.lock).st_ino == os.stat(self.directory).st_ino
        except FileNotFoundError:
            return False

    def insist(self):
        """Before each step that changes what is in place."""
        if self.lock is not None and not self.stands():
            raise Swept("parts_missing")

    def is_waited_for(self):
        """Whether those who have swept it have not begun with their own yet, see discard()."""
        return os.fstat(self.lock).st_nlink > 0

    def sweep(self):
        """What operations that nobody waits for any more have left behind. Who was live was told at some time: those that
        have begun since are not among them."""
        stale = []
        for name in os.listdir(SYNC) if os.path.isdir(SYNC) else ():
            operation = name.split(b".")[0]
            younger = operation[:RUN] == self.name[:RUN] and operation > self.name
            if operation not in self.live and not younger:
                stale.append(SYNC + b"/" + name)
        discard(stale)

    def finish(self, answer, stays=False):
        text = json.dumps(answer).encode()
        kept = self.keep(text)
        if not stays:
            self.clear()
        if not kept:
            self.keep(text)  # there may be room now
        return text

    def give_up(self, text):
        """The answer to what failed for want of room: first, what it has taken is given back. More may be on its way here,
        which finds the directory as it was."""
        for name in os.listdir(self.directory) if os.path.isdir(self.directory) else ():
            if name.split(b"-")[0] in OWN:
                remove(self.directory + b"/" + name)
        try:
            os.rmdir(self.directory)
        except OSError:
            pass
        self.keep(error(text))
        return error(text)

    def clear(self):
        try:
            remove(self.directory)
        except OSError:
            pass  # something has come meanwhile: it is swept

    def keep(self, text):
        """Whether it can be given to whoever asks again."""
        try:
            write_whole(self.done, text, self.directory + b".answer-%d" % os.getpid())
            return True
        except OSError:
            return False


def drop(asked):
    operation = Operation(asked)
    discard([operation.directory, operation.done])
    return b"{}"


def sweep(asked):
    Operation(asked).sweep()
    space = os.statvfs(WORKSPACE)
    return json.dumps({"free": space.f_bavail * space.f_frsize}).encode()


def look(asked, operation):
    return {"gone": gone_of(asked["paths"])}


def gone_of(paths):
    """Which of them are not there, whatever it is that is there."""
    gone = []
    for i, path in enumerate(paths):
        try:
            os.lstat(raw(path))
        except GONE:
            gone.append(i)
        except OSError:
            pass
    return gone


def gone_before(operation, paths, aside):
    """Those that were gone before the operation's first try, which may have ended amid what it does about them. And whether
    this is another one."""
    kept = operation.directory + b"/gone"
    if os.path.exists(kept):
        with open(kept, "rb") as file:
            return json.load(file), True
    gone = gone_of(paths)
    write_whole(kept, json.dumps(gone).encode(), aside)
    return gone, False


def once(work, without_room=False):
    """A verb whose answer is kept for whoever asks again. `without_room`: it is done even where nothing can be kept."""
    def verb(asked):
        operation = Operation(asked)
        try:
            before = operation.begin()
        except OSError as problem:
            if problem.errno not in FULL or not without_room:
                raise
            return operation.finish(work(asked, operation))
        if before is not None:
            return before
        try:
            return operation.finish(work(asked, operation))
        except OSError as problem:
            if problem.errno not in FULL:
                raise
            return operation.give_up("no_space: " + why(problem))
        finally:
            operation.release()
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
        return VERBS[verb](asked)
    except Refused as problem:
        return error(str(problem))
    except Exception as problem:
        if isinstance(problem, OSError) and problem.errno in FULL:
            return Operation(asked).give_up("no_space: " + why(problem))
        return error("failed: " + why_and_where(problem))


def error(text):
    return json.dumps({"error": text}).encode()


def main():
    os.umask(UMASK)
    sys.stdout.buffer.write(answer(*sys.argv[1:]) + b"\n")


VERBS = {"look": once(look), "drop": drop, "sweep": sweep}
