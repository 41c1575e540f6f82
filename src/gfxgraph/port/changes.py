"""Which lines of the working tree differ from a git revision, without letting the repository run anything.

Problem: ``git diff`` runs what the repository's own configuration names: a file-system monitor, text converters,
clean filters, external differs. Idea: ask git only for what is stored (``rev-parse``, ``ls-tree``, ``cat-file``,
none of which touches the index, the attributes or a filter) and compare here.

Invariants:
1. The revision is resolved to an object name first; nothing else of it reaches a command line.
2. No object is fetched: a partial clone's missing blob is an error, not a connection.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import subprocess
from dataclasses import dataclass

from gfxgraph.port.files import read_inside
from gfxgraph.port.project import MAX_READ, Project

_MAX_LINES = 20_000  # of the part that differs; beyond, all of it counts as changed
_WAIT_S = (60, 10)  # the first call reads every setting, one of which may name a pipe that nobody writes
_GIT = ("-c", "core.fsmonitor=false", "-c", "protocol.allow=never", "-c", "core.alternateRefsCommand=false")


class RevisionError(Exception):
    """The revision cannot be compared with; the message says why."""


@dataclass(frozen=True, slots=True)
class _Blob:
    name: str
    nbytes: int


def changed_lines(project: Project, revision: str) -> dict[str, frozenset[int]]:
    """Lines added or changed since a revision, by path; every line of a file that the revision lacks.

    Raises:
        RevisionError: git is missing, this is no repository, or the revision is not known.
    """
    root = project.root
    commit = _resolve(root, revision)
    blobs = _blobs(_git(root, "ls-tree", "-r", "-z", "-l", commit))
    found: dict[str, frozenset[int]] = {}
    differing: dict[str, tuple[list[bytes], _Blob]] = {}
    for source in project.sources:
        try:
            data = read_inside(root, source.path, MAX_READ)
        except OSError:
            continue  # the audit of the file itself reports it
        blob = blobs.get(source.path)
        if blob is not None and blob.name == _name(data, len(blob.name)):
            continue
        lines = _lines(data)
        if blob is None or blob.nbytes > MAX_READ:
            found[source.path] = frozenset(range(1, len(lines) + 1))
        else:
            differing[source.path] = (lines, blob)
    stored = _contents(root, {blob.name for _, blob in differing.values()})
    for path, (lines, blob) in differing.items():
        found[path] = _added(_lines(stored[blob.name]), lines)
    return {path: numbers for path, numbers in found.items() if numbers}


def _resolve(root: str, revision: str) -> str:
    """The object name of a commit; an option or a path is no revision."""
    if revision.startswith("-") or not revision.isprintable():
        raise RevisionError(f"--diff {revision!r}: not a revision")
    try:
        name = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}")
    except RevisionError as error:
        detail = f": {error}" if str(error) else ""
        raise RevisionError(f"--diff {revision}: no such revision in this repository{detail}") from error
    resolved = name.decode("ascii", "replace").strip()
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", resolved):
        raise RevisionError(f"--diff {revision}: not a revision")
    return resolved


def _git(root: str, *arguments: str, given: bytes = b"") -> bytes:
    command = ["git", "-C", root, *_GIT, *arguments]
    try:
        # An empty list of allowed protocols, for versions that do not know GIT_NO_LAZY_FETCH.
        done = subprocess.run(
            ["env", "GIT_ALLOW_PROTOCOL=none", "GIT_NO_LAZY_FETCH=1", "GIT_OPTIONAL_LOCKS=0", *command],
            input=given, capture_output=True, timeout=_WAIT_S[arguments[0] == "rev-parse"], check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RevisionError(f"--diff needs git: {error}") from error
    if done.returncode:
        raise RevisionError(done.stderr.decode(errors="replace").strip())
    return done.stdout


def _blobs(listed: bytes) -> dict[str, _Blob]:
    found = {}
    for row in listed.split(b"\0"):
        fields, tab, path = row.partition(b"\t")
        parts = fields.split()
        if tab and len(parts) == 4 and parts[1] == b"blob" and parts[0] != b"120000":
            found[os.fsdecode(path)] = _Blob(parts[2].decode(), int(parts[3]))
    return found


def _name(data: bytes, length: int) -> str:
    """Git's name of a content: SHA-1 or SHA-256 by the length of the names in this repository."""
    made = hashlib.sha256() if length == 64 else hashlib.sha1(usedforsecurity=False)
    made.update(b"blob %d\0" % len(data))
    made.update(data)
    return made.hexdigest()


def _contents(root: str, names: set[str]) -> dict[str, bytes]:
    if not names:
        return {}
    ordered = sorted(names)
    out = _git(root, "cat-file", "--batch", given="".join(f"{n}\n" for n in ordered).encode())
    found, at = {}, 0
    for name in ordered:
        end = out.index(b"\n", at)
        head = out[at:end].split()
        if len(head) != 3:
            raise RevisionError(f"object {name} is not in this repository (a partial clone?)")
        size = int(head[2])
        found[name] = out[end + 1 : end + 1 + size]
        at = end + 2 + size
    return found


def _lines(data: bytes) -> list[bytes]:
    """Lines without their ends: a checkout may turn them into CRLF."""
    return [line.rstrip(b"\r") for line in data.split(b"\n")]


def _added(old: list[bytes], new: list[bytes]) -> frozenset[int]:
    """Numbers of the lines of ``new`` that ``old`` lacks in its place."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    left, right = old[start : len(old) - end], new[start : len(new) - end]
    if max(len(left), len(right)) > _MAX_LINES:
        return frozenset(range(start + 1, start + len(right) + 1))
    changes = difflib.SequenceMatcher(None, left, right).get_opcodes()
    return frozenset(start + n + 1 for tag, _, _, a, b in changes if tag != "equal" for n in range(a, b))
