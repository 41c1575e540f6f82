"""Whether gfxgraph reaches the Python that ``gfxgraph run -- COMMAND`` starts, asked before the program runs.

An interpreter that ignores its environment (``-I``, ``-E``, ``-S``; a wrapper that clears it) never hears of
gfxgraph: the program would run, look as if its graphs were safe, and have nothing. So the same command, with the
same options, is started on one line that says whether our hook is there.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from gfxgraph.errors import ActivationError

_PYTHON = re.compile(r"python[\d.]*[dtw]*(\.exe)?", re.IGNORECASE)
_OPTION = re.compile(r"-([A-Za-z?]*?)([cmWX])(.*)", re.DOTALL)
"""Options of Python's up to one that takes a word: ``-c``, ``-Im``, ``-Icprint()``, ``-Wignore``, ``-X``."""
_WRAPPERS = frozenset(
    {"chrt", "env", "ionice", "nice", "nohup", "numactl", "prlimit", "setsid", "stdbuf", "taskset", "timeout"}
)
_ASK = "import sys; sys.exit(0 if 'gfxgraph.startup.hook' in sys.modules else 86)"
_NOT_THERE = 86


def refuse_deaf(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Refuse a command whose Python would not hear of gfxgraph; commands that are not Python's pass.

    Raises:
        ActivationError: `nothing_active`.
    """
    asking = question(argv)
    if asking is None:
        return
    answer = subprocess.run(
        asking, env=dict(environment), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    if answer.returncode == _NOT_THERE:
        raise ActivationError("nothing_active", command=" ".join(asking[:-2]))


def question(argv: Sequence[str]) -> list[str] | None:
    """The command up to its program, and the question in that one's place; None where it starts no Python."""
    line = [part for word in [*_interpreter(argv[0]), *argv] for part in _split(word)]
    at = next((i for i, word in enumerate(line) if _PYTHON.fullmatch(PurePath(word).name)), None)
    if at is None or (at > 0 and PurePath(line[0]).name not in _WRAPPERS):
        return None
    end = at + 1
    while end < len(line) and line[end].startswith("-") and line[end] != "-":
        word = line[end]
        takes = _OPTION.fullmatch(word) if word[:2] != "--" else None
        if takes is not None and takes[2] in "cm":  # -Im is -I, and then the program
            return [*line[:end], *([f"-{takes[1]}"] if takes[1] else []), "-c", _ASK]
        end += 2 if word == "--check-hash-based-pycs" or (takes is not None and not takes[3]) else 1
    return [*line[:end], "-c", _ASK]


def _interpreter(command: str) -> list[str]:
    """What the first line of a script names, as the kernel splits it; nothing for another kind of file."""
    try:
        with open(command, "rb") as file:
            first = os.fsdecode(file.readline(256))
    except OSError:
        return []
    return first[2:].strip().split(maxsplit=1) if first.startswith("#!") else []


def _split(word: str) -> list[str]:
    """The words in what follows env's ``-S``; for Python's own ``-S`` no difference."""
    return shlex.split(word[2:]) if word.startswith("-S") and " " in word else [word]
