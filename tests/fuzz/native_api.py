"""Fuzz target: the C API, called as a C program may call it, under the address and undefined-behaviour sanitizers.

``native/tests/fuzz_c_api.c`` reads four bytes a call. Seeds are programs that build, launch and take apart one object
of each kind, whole and with a runtime that fails its Nth call. Whatever the bytes, nothing is read or written out of
bounds, nothing leaks, and the context closes.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
from tests import native_builds  # noqa: E402

LIMIT_S = 60
MOST_NBYTES = 8_000
"""2,000 calls: what a program builds anew at each call costs the square of what it holds, and sanitizers the rest."""
_RUNTIMES = ("libamdhip64.so.6", "libcudart.so.13")
(CAPTURE, DESTROY, NEST, CONFIGURE, STATS, TEXT, FAIL, HEAL, BRANCHES, BRANCH, RECORD, CHOOSE, READ, TAKEN,
 UNBRANCH, PIPELINE, CHANGE, UPDATE, LAUNCH, UNPIPE, POOL, BUCKET, SIZE, UNPOOL, COMPOSE, ADD, SET,
 UNCOMPOSE) = range(28)  # fmt: skip
_GRAPHS = [(CAPTURE, 1, 0, 3), (CAPTURE, 2, 0, 1), (CAPTURE, 3, 0, 2)]
_PROGRAMS = (
    [(BRANCHES, 1, 0, 3), (BRANCH, 1, 1, 0), (RECORD, 1, 0, 1), (CHOOSE, 1, 0, 1), (READ, 1, 0, 1), (TAKEN, 1, 0, 1)],
    [
        (PIPELINE, 1, 1, 0),
        (CHANGE, 1, 1, 0),
        (LAUNCH, 1, 0, 1),
        (UPDATE, 1, 2, 0),
        (CHANGE, 1, 2, 4),
        (LAUNCH, 1, 0, 3),
    ],
    [(POOL, 1, 3, 5), (BUCKET, 1, 1, 4), (SIZE, 1, 0, 5), (SIZE, 1, 0, 200), (SIZE, 1, 0, 1)],
    [(COMPOSE, 1, 0, 0), (ADD, 1, 1, 0), (ADD, 1, 2, 1), (SET, 1, 3, 1), (SET, 1, 3, 0), (TEXT, 0, 0, 90)],
)


@functools.cache
def built() -> tuple[Path, dict[str, str]]:
    """The folder of the build with sanitizers, and the environment of its programs."""
    if lacking := native_builds.missing("checked"):
        raise RuntimeError(f"this machine lacks {lacking}")
    folder = Path(os.environ.get("GFXGRAPH_FUZZ_BUILD") or native_builds.build("checked"))
    return folder, {**os.environ, "ASAN_OPTIONS": "detect_leaks=1", "UBSAN_OPTIONS": "print_stacktrace=1"}


def seeds() -> Iterator[bytes]:
    """One program for each kind of object, and the same with each of its first calls into the runtime failing."""
    for program in _PROGRAMS:
        whole = [*_GRAPHS, *program]
        yield bytes(byte for call in whole for byte in call)
        for nth in range(1, 12):
            failing = [*_GRAPHS, (FAIL, 0, 1, nth), *program, (HEAL, 0, 0, 0), *program]
            yield bytes(byte for call in failing for byte in call)


def run(data: bytes) -> None:
    """Make the calls that ``data`` stands for, on HIP and on CUDA."""
    folder, environ = built()
    with tempfile.NamedTemporaryFile(suffix=".calls") as file:
        file.write(data)
        file.flush()
        for runtime in _RUNTIMES:
            command = [str(folder / "tests" / "fuzz_c_api"), str(folder / "fake" / runtime), file.name]
            done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            assert done.returncode == 0, f"{runtime}: {done.returncode}\n{done.stderr[-4000:]}"
