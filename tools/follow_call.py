"""Follow a cold ``graphed(f)(x)`` call by call to its first launch, and count the files that a reader has to open.

    python tools/follow_call.py                the counts, and each file in the order it is read
    python tools/follow_call.py --json FILE    the counts, committed under benchmarks/results/
    python tools/follow_call.py --pure         with assume_pure=True: the way of adapters, without Dynamo

What is followed: every function of ``callables/`` that runs, at its first call only, as a reader does; a
comprehension or a lambda is part of the function it stands in. A call into another room (capture, process ...) is
seen, for its file is opened to read what was called; what that function calls in turn is not followed. The calls are
those of a function of one operation, in the simulator, up to the first launch of its graph: warm-up, capture, copies.

``returns``: how often the reader comes back to a file that had been left for another one.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
ROOM = "callables/"
LOWER = "driver/"
"""As with the simulator, a package of its own, nobody reads on into it."""


@dataclass
class Walk:
    """The functions that ran, in the order of their first calls."""

    package: str
    """Where the files of the package are, with a slash at the end."""
    seen: set[CodeType] = field(default_factory=set)
    functions: list[tuple[str, str]] = field(default_factory=list)
    """File and name."""
    is_over: bool = False

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        """As ``sys.setprofile`` calls it."""
        code = frame.f_code
        if event != "call" or self.is_over or code in self.seen or code.co_name.startswith("<"):
            return
        self.is_over = code.co_name == "_checked_replay"  # a graph's first replay, which launches it
        file = self._file(code)
        if not file or file.startswith(LOWER):
            return
        if not file.startswith(ROOM) and not self._is_called_from_the_room(frame):
            return
        self.seen.add(code)
        self.functions.append((file, code.co_name))

    def _file(self, code: CodeType) -> str:
        return code.co_filename[len(self.package) :] if code.co_filename.startswith(self.package) else ""

    def _is_called_from_the_room(self, frame: FrameType) -> bool:
        above = frame.f_back
        while above is not None and above.f_code.co_name.startswith("<"):
            above = above.f_back
        return above is not None and self._file(above.f_code).startswith(ROOM)

    @property
    def files(self) -> list[str]:
        """Files in the order they are read, each as often as it is come to."""
        found: list[str] = []
        for file, _ in self.functions:
            if not found or found[-1] != file:
                found.append(file)
        return found


def counted(files: list[str]) -> dict[str, int]:
    """How many files, and how often one that had been left is come back to."""
    return {"files": len(set(files)), "returns": len(files) - len(set(files))}


def followed(**options: Any) -> Walk:
    """Follow the calls of a new graphed function up to the first launch."""
    # lazily: the counts can be asked about without torch
    import torch

    import gfxgraph

    walk = Walk(str(Path(gfxgraph.__file__).parent) + "/")
    call: Callable[..., Any] = gfxgraph.graphed(lambda x: x + 1, **options)
    x = torch.ones(4, device="cuda")
    sys.setprofile(walk)
    try:
        while not walk.is_over:
            call(x)
    finally:
        sys.setprofile(None)
    return walk


def main() -> int:
    parser = argparse.ArgumentParser(description="count the files of a cold graphed call")
    parser.add_argument("--pure", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # lazily: --help needs no torch
    import torch

    import gfxgraph

    gfxgraph.enable(simulate=True, validate=False)
    walk = followed(assume_pure=True) if options.pure else followed()
    for each in walk.files:
        print(each)
    found = counted(walk.files)
    print(f"{found['files']} files, {found['returns']} returns, {len(walk.functions)} functions")
    if options.json is not None:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT).stdout.strip()
        about = {"commit": commit, "torch": torch.__version__, "python": platform.python_version()}
        text = json.dumps(about | {"device": "simulator"} | found | {"functions": len(walk.functions)}, indent=1)
        options.json.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
