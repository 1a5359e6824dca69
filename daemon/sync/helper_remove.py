"""delete, and removing trees for all verbs. Follows helper.py, whose names it uses."""

LONGEST = 3000  # bytes of a path below which names are added; the kernel takes 4096


def remove(path, insist=lambda: None):
    """Whatever it is, of any depth; False if there is nothing. `insist` is called before each step, and may end it."""
    try:
        mode = os.lstat(path).st_mode
    except GONE:
        return False
    if not stat.S_ISDIR(mode):
        insist()
        os.unlink(path)
        return True
    pending = [path]
    while pending:
        directory = pending[-1]
        insist()
        unlock(directory)
        inner = []
        for name in os.listdir(directory):
            entry = os.path.join(directory, name)
            insist()
            if os.path.islink(entry) or not os.path.isdir(entry):
                os.unlink(entry)
            else:
                inner.append(entry if len(entry) < LONGEST else moved_up(entry, path))
        if inner:
            pending += inner
        else:
            insist()
            os.rmdir(directory)
            pending.pop()
    return True


def unlock(directory):
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        os.chmod(directory, 0o700)


def moved_up(directory, top):
    unlock(directory)  # as its ".." changes
    name = os.path.join(top, b".removing-" + os.urandom(8).hex().encode())
    os.rename(directory, name)
    return name


def delete(asked, operation):
    deleted = missing = 0
    failed = []
    by_link = False
    try:
        gone, again = gone_before(operation, asked["paths"], operation.directory + b"/new-%d" % os.getpid())
    except OSError:  # without room nothing can be kept for a second try
        gone, again = (), False
    gone = set(gone)
    for i, path in enumerate(raw(each) for each in asked["paths"]):
        try:
            directory = os.path.dirname(path)
            if not inside(directory):
                raise Refused("a link leads out of /workspace")
            by_link = by_link or os.path.realpath(directory) != os.path.realpath(WORKSPACE) + directory[len(WORKSPACE):]
            if remove(path, operation.insist) or (again and i not in gone):
                deleted += 1
            else:
                missing += 1
        except Swept:
            raise
        except (OSError, Refused) as problem:
            failed.append([i, "failed", why(problem) if len(failed) < NAMED else ""])
    return {"deleted": deleted, "missing": missing, "failed": failed, "by_link": by_link}


VERBS["delete"] = once(delete, without_room=True)
