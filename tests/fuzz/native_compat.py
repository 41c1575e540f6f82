"""Fuzz target: libcudagraph_compat, called as a CUDA program may call it, under the sanitizers.

``native/tests/fuzz_compat.cpp`` reads four bytes a call: graphs of nodes of every kind, edges, execs, updates, each
with parameters left out, and a HIP runtime that fails its Nth call. Nothing is read or written out of bounds, and
nothing leaks.
"""

from __future__ import annotations

import itertools
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from native_api import LIMIT_S, built

MOST_NBYTES = 8_000

(CREATE, FAIL, HEAL, ADD, ADD_12, EDGES, INSTANTIATE, END_EXEC, UPDATE, SET, SET_EXEC, PARAMS, TIE, UNTIE, RUN,
 DESTROY) = range(16)  # fmt: skip
_AFTER = (
    [(EDGES, 1, 0, 0), (INSTANTIATE, 1, 0, 0), (RUN, 1, 0, 0), (UPDATE, 1, 2, 0), (RUN, 1, 0, 0)],
    [(SET, 1, 1, 0), (PARAMS, 1, 0, 0), (PARAMS, 1, 1, 0), (INSTANTIATE, 1, 0, 0), (SET_EXEC, 1, 3, 0)],
    [(TIE, 1, 0, 1), (TIE, 1, 0, 4), (UNTIE, 1, 0, 1), (EDGES, 1, 0, 2), (EDGES, 1, 0, 1), (DESTROY, 1, 0, 0)],
)  # fmt: skip


def seeds() -> Iterator[bytes]:
    """A graph with nodes of every kind, in both forms of the call, used in three ways; with a failing call."""
    for add, after in itertools.product((ADD, ADD_12), _AFTER):
        nodes = [(add, 1, kind, z) for kind in range(7) for z in (0, 2, 7)]
        whole = [(CREATE, 1, 0, 0), (CREATE, 2, 0, 0), (add, 2, 1, 0), *nodes, *after]
        yield bytes(byte for call in whole for byte in call)
        for nth in (1, 2, 3, 5, 8):
            failing = [*whole[:-1], (FAIL, 0, 1, nth), *after, (HEAL, 0, 0, 0), *after]
            yield bytes(byte for call in failing for byte in call)


def run(data: bytes) -> None:
    """Make the calls that ``data`` stands for."""
    folder, environ = built()
    with tempfile.NamedTemporaryFile(suffix=".calls") as file:
        file.write(data)
        file.flush()
        libraries = [str(folder / "libcudagraph_compat.so"), str(folder / "fake" / "libamdhip64.so.6")]
        command = [str(folder / "tests" / "fuzz_compat"), *libraries, file.name]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        assert done.returncode == 0, f"{Path(libraries[0]).name}: {done.returncode}\n{done.stderr[-4000:]}"
