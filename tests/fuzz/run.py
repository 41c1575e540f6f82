"""Run fuzz targets: `python tests/fuzz/run.py [TARGET ...] [--seconds 60] [--seed N]`.

A target is a module of this folder with ``seeds()``, the corpus it starts from, and ``run(data)``, which raises where
``data`` is handled wrongly. ``MOST_NBYTES``, if it has that, is how long its inputs may become. Every seed is run as
it stands; then inputs are made from them by cutting, repeating, joining and changing bytes until the time is over. An
input that fails is written beside its message; add it to the target's seeds together with the mend.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).parent
_MOST_NBYTES = 100_000


def change(data: bytes, other: bytes, chance: random.Random, most: int) -> bytes:
    """One to four changes of a piece of ``data``: cut, repeated, replaced by one of ``other``, or some bytes."""
    for _ in range(chance.randint(1, 4)):
        a, b = sorted(chance.randint(0, len(data)) for _ in range(2))
        kind = chance.randrange(5)
        if kind == 0:
            data = data[:a] + data[b:]
        elif kind == 1:
            piece = data[a : min(b, a + 200)]
            data = data[:a] + piece * chance.choice((2, 8, 64, 1024)) + data[b:]
        elif kind == 2:
            c, d = sorted(chance.randint(0, len(other)) for _ in range(2))
            data = data[:a] + other[c:d] + data[b:]
        elif kind == 3:
            data = data[:a] + bytes(chance.randrange(256) for _ in range(chance.randint(1, 4))) + data[a:]
        else:
            data = (
                data[:a]
                + chance.choice((b"\0", b"\n", b"\\\n", b'"', b"'", b"(", b")", b"{", b"#", b"\xff"))
                + data[a:]
            )
    return data[:most]


def fuzz(name: str, seconds: float, seed: int) -> int:
    """Run one target; the number of inputs that failed."""
    target = importlib.import_module(name)
    most = getattr(target, "MOST_NBYTES", _MOST_NBYTES)
    corpus, chance, failed, n = list(target.seeds()), random.Random(seed), 0, 0
    started = time.monotonic()
    while n < len(corpus) or time.monotonic() - started < seconds:
        data = corpus[n] if n < len(corpus) else change(chance.choice(corpus), chance.choice(corpus), chance, most)
        n += 1
        try:
            target.run(data)
        except Exception:  # noqa: BLE001 - whatever it is, it is what is looked for
            failed += 1
            place = Path(tempfile.mkdtemp(prefix=f"fuzz-{name}-"), "input")
            place.write_bytes(data)
            print(f"{name}: {place}\n{traceback.format_exc(limit=-3)}", file=sys.stderr)  # noqa: T201
            if failed == 5:
                break
    print(f"{name}: {n} inputs ({len(corpus)} seeds), {failed} failed, seed {seed}")  # noqa: T201
    return failed


def main() -> None:
    names = sorted(p.stem for p in HERE.glob("*.py") if p.stem not in ("run", "__init__"))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(names)}; all without one")
    parser.add_argument("--seconds", type=float, default=60, help="for each target, beside its seeds")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    if unknown := set(options.targets) - set(names):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    sys.exit(sum(fuzz(name, options.seconds, options.seed) for name in options.targets or names) > 0)


if __name__ == "__main__":
    main()
