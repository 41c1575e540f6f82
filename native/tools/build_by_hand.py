"""Build one library with g++ alone, as CMakeLists.txt does it, where there is no cmake.

    python build_by_hand.py preload|bridge FOLDER

prints the path of what it made.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

NATIVE = Path(__file__).resolve().parent.parent
FLAGS = ["-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-semantic-interposition", "-pthread"]
LINKING = ["-static-libstdc++", "-static-libgcc", "-Wl,--exclude-libs,ALL", "-ldl"]


def build(library: str, folder: Path) -> Path:
    """Compile ``library`` into ``folder``; the compiler's words are those of the error."""
    sources = [*sorted((NATIVE / library).glob("*.cpp")), NATIVE / "table.cpp"]
    flags = list(FLAGS)
    if library == "preload":
        diagnostics = NATIVE.parent / "src/gfxgraph/diagnostics"
        statuses = [sys.executable, NATIVE / "tools/make_statuses.py", diagnostics, folder / "statuses.inc"]
        subprocess.run(statuses, check=True)
        sources.append(NATIVE / "cuda.cpp")
        flags += ["-fno-exceptions", "-ftls-model=initial-exec", f"-I{folder}"]
    out = folder / {"preload": "libgfxgraph_preload.so", "bridge": "libhipgraph_bridge.so"}[library]
    subprocess.run(["g++", *flags, *map(str, sources), "-o", str(out), *LINKING], check=True)
    return out


if __name__ == "__main__":
    sys.stdout.write(f"{build(sys.argv[1], Path(sys.argv[2]))}\n")
