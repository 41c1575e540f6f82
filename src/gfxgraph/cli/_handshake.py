"""Whether gfxgraph reaches the Python that ``gfxgraph run -- COMMAND`` starts, asked before the program runs.

An interpreter that ignores its environment (``-I``, ``-E``, ``-S``; a wrapper that clears it) never hears of
gfxgraph: the program would run, look as if its graphs were safe, and have nothing. So the same command, with the
same options, is started on one line that says whether our hook is there.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import PurePath

from gfxgraph.errors import ActivationError

_PYTHON = re.compile(r"python[\d.]*[a-z]*(\.exe)?", re.IGNORECASE)
_WRAPPERS = frozenset({"env", "nice", "ionice", "nohup", "numactl", "taskset", "stdbuf", "setsid"})
_TAKES_A_WORD = frozenset({"-W", "-X", "--check-hash-based-pycs"})
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
    at = next((i for i, word in enumerate(argv) if _PYTHON.fullmatch(PurePath(word).name)), None)
    if at is None or (at > 0 and PurePath(argv[0]).name not in _WRAPPERS):
        return None
    end = at + 1
    while end < len(argv) and argv[end].startswith("-") and argv[end] not in ("-", "-c", "-m"):
        end += 2 if argv[end] in _TAKES_A_WORD else 1
    return [*argv[:end], "-c", _ASK]
