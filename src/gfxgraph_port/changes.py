"""Which lines of the working tree differ from a git revision, without letting the repository run anything.

Problem: ``git diff`` runs what the repository's own configuration names: a file-system monitor, text converters,
clean filters, external differs. Idea: the repository is asked for the name of the revision alone (``rev-parse``); the
comparison is made in an empty repository of ours that borrows its objects, where no such thing has a name.

Invariants:
1. The revision is resolved to an object name first; nothing else of it reaches a command line.
2. No object is fetched: a partial clone's missing blob is an error, not a connection.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile

from gfxgraph_port.project import Project, UnreadableError, own_git

_WAIT_S = 10  # the first call reads every setting, one of which may name a pipe that nobody writes
_DIFF_S = 60
_SAFE = ("-c", "core.fsmonitor=false", "-c", "protocol.allow=never", "-c", "core.alternateRefsCommand=false")
_HUNK = re.compile(rb"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class RevisionError(Exception):
    """The revision cannot be compared with; the message says why."""


def changed_lines(project: Project, revision: str) -> dict[str, frozenset[int]]:
    """Lines added or changed since a revision, by path; every line of a file that the revision lacks.

    Raises:
        RevisionError: git is missing, this is no repository, or the revision is not known.
    """
    root = project.root
    if revision.startswith("-") or not revision.isprintable():
        raise RevisionError(f"--diff {revision!r}: not a revision")
    try:
        commit = _rev_parse(root, "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except RevisionError as error:
        detail = f": {error}" if str(error) else ""
        raise RevisionError(f"--diff {revision}: no such revision in this repository{detail}") from error
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", commit):
        raise RevisionError(f"--diff {revision}: not a revision")
    tree = f"{commit}:{_rev_parse(root, '--show-prefix')}"
    objects = _rev_parse(root, "--path-format=absolute", "--git-path", "objects")
    with tempfile.TemporaryDirectory(prefix="gfxgraph-port-") as own:
        borrowed = {"GIT_ALTERNATE_OBJECT_DIRECTORIES": objects, "GIT_INDEX_FILE": os.path.join(own, "index")}
        kind = "sha256" if len(commit) == 64 else "sha1"
        diff = ("-c", "core.quotePath=false", "diff", "-U0", "--no-ext-diff", "--no-textconv", "--ignore-cr-at-eol",
                "--no-renames", "--no-color", "--no-prefix")  # fmt: skip
        try:
            own_git(own, root, {}, "init", "-q", "--bare", "--template=", f"--object-format={kind}", own)
            own_git(own, root, borrowed, "read-tree", tree)
            stored = set(own_git(own, root, borrowed, "ls-files", "-z").split(b"\0"))
            said = own_git(own, root, borrowed, *diff, timeout_s=_DIFF_S)
        except subprocess.CalledProcessError as error:
            raise RevisionError(error.stderr.decode(errors="replace").strip()) from error
        except (OSError, subprocess.TimeoutExpired) as error:
            raise RevisionError(f"--diff needs git: {error}") from error
    found = _added(said)
    for source in project.sources:
        if os.fsencode(source.path) not in stored:
            try:
                found[source.path] = frozenset(range(1, project.read(source.path)[0].count("\n") + 2))
            except (OSError, UnreadableError):
                continue  # the audit of the file itself reports it
    return {path: numbers for path, numbers in found.items() if numbers}


def _rev_parse(root: str, *arguments: str) -> str:
    try:
        # An empty list of allowed protocols, for versions that do not know GIT_NO_LAZY_FETCH.
        done = subprocess.run(
            ["env", "GIT_ALLOW_PROTOCOL=none", "GIT_NO_LAZY_FETCH=1", "GIT_OPTIONAL_LOCKS=0",
             "git", "-C", root, *_SAFE, "rev-parse", *arguments],
            capture_output=True, timeout=_WAIT_S, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RevisionError(f"--diff needs git: {error}") from error
    if done.returncode:
        raise RevisionError(done.stderr.decode(errors="replace").strip())
    return done.stdout.decode("utf-8", "replace").strip("\n")


def _added(patch: bytes) -> dict[str, frozenset[int]]:
    """Numbers of the new lines of a diff without context, by path."""
    found: dict[str, frozenset[int]] = {}
    path, left = "", 0
    for row in patch.split(b"\n"):
        if left:
            left -= not row.startswith(b"\\")
        elif row.startswith(b"+++ "):
            path = os.fsdecode(row[4:].rstrip(b"\t"))
        elif match := _HUNK.match(row):
            gone, start, came = (1 if n is None else int(n) for n in match.groups())
            left = gone + came
            found[path] = found.get(path, frozenset()) | frozenset(range(start, start + came))
    return found
