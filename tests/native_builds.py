"""The builds of the native package that its tests run: once a checkout, brought up to date where sources changed.

python -m tests.native_builds      (what `make test` does first: a build is no part of any test's time)
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "build" / "native-tests"
EVERY_S = 5.0
VARIANTS = {"checked": ["-DGFX_SANITIZE=address,undefined"], "plain": ["-DCMAKE_CXX_FLAGS_RELEASE=-O1 -DNDEBUG"]}
"""With sanitizers, and as it is shipped but for -O3, which takes a quarter longer to build and shows in no test."""


def sanitizer_library() -> Path:
    """The address sanitizer's library; a bare name that does not exist where the compiler has none."""
    found = subprocess.run(["g++", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    return Path(found.stdout.strip()).resolve()


def missing(variant: str) -> str:
    """What this machine lacks for the build; '' where nothing is."""
    for tool in ("cmake", "g++"):
        if shutil.which(tool) is None:
            return tool
    if variant == "checked" and not sanitizer_library().exists():
        return "the compiler's sanitizer libraries (libasan, libubsan)"
    return ""


def build(variant: str, said: Callable[[str], None] = lambda line: None) -> Path:
    """Bring the build up to date, once at a time, and return its folder.

    Raises:
        RuntimeError: it failed; the text is the compiler's.
    """
    folder = FOLDER / variant
    folder.mkdir(parents=True, exist_ok=True)
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    python = f"-DPython3_EXECUTABLE={sys.executable}"
    with (FOLDER / f"{variant}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for command in (
            ["cmake", "-S", str(ROOT / "native"), "-B", str(folder), python, *generator, *VARIANTS[variant]],
            ["cmake", "--build", str(folder), "--parallel", "2"],
        ):
            status, text = _run(command, said)
            if status != 0:
                raise RuntimeError(f"{' '.join(command)}\n{text}")
    return folder


def _run(command: list[str], said: Callable[[str], None]) -> tuple[int, str]:
    """The command's status and its whole output; its last line every five seconds goes to ``said``."""
    lines: list[str] = []
    last = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            lines.append(line)
            if time.monotonic() - last > EVERY_S and line.strip():
                last = time.monotonic()
                said(line.strip()[:100])
    return running.returncode, "".join(lines)


def main() -> None:
    for variant in VARIANTS:
        lacking = missing(variant)
        if lacking:
            print(f"native tests ({variant}): skipped, this machine lacks {lacking}", flush=True)
            continue
        began = time.monotonic()
        print(f"native tests ({variant}): building", flush=True)
        build(variant, lambda line, began=began: print(f"  {time.monotonic() - began:3.0f} s  {line}", flush=True))
        print(f"native tests ({variant}): up to date after {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
