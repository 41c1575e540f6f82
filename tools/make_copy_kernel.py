"""Write src/gfxgraph/driver/copies.ptx from the source in copies.py; needs nvcc.

python tools/make_copy_kernel.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "src"))

from gfxgraph.driver.small_copies import SOURCE  # noqa: E402

ARCH = "compute_75"  # the oldest that CUDA 13 compiles for; drivers compile it for what they have
ISA = "6.4"  # what CUDA 10.1 understood; the compiler writes its own, and the kernel needs nothing of it


def made() -> str:
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "copies.cu"), Path(folder, "copies.ptx")
        source.write_text(SOURCE)
        subprocess.run(["nvcc", "-ptx", f"-arch={ARCH}", str(source), "-o", str(out)], check=True)
        lines = out.read_text().splitlines()
    begun = next(i for i, line in enumerate(lines) if line.startswith(".version"))
    return "\n".join([f".version {ISA}", *(line.rstrip() for line in lines[begun + 1 :])]).rstrip() + "\n"


if __name__ == "__main__":
    (ROOT / "src/gfxgraph/driver/copies.ptx").write_text(made())
