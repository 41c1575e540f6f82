"""The package that holds a missing file: from libraries.toml, by system."""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Any

from gfxgraph.diagnostics import kinds

_FILE = Path(__file__).parent / "libraries.toml"
_FILES = re.compile(
    r"[\w.+-]{1,80}\.(?:so(?:\.\d{1,4}){0,4}|dll)\b|-l[\w+-]{3,60}|[\w+/-]{2,80}\.(?:h|hpp|cuh)\b"
    r"|[\w+-]{3,40}?(?:-config|Config)\.cmake",
    re.IGNORECASE,
)
_LONGEST = 2000  # characters of a line
_INSTALL = {"apt": "sudo apt install", "dnf": "sudo dnf install", "pacman": "sudo pacman -S"}
_SYSTEMS = {"fedora": "dnf", "archlinux": "pacman"}
_CUDA = (
    "pip install --force-reinstall torch torchvision torchaudio --index-url https://download.pytorch.org/whl/rocm7.2"
)
_OF_AN_EXTENSION = {
    "en": "reinstall the package that asks for {file} (see the traceback), built for ROCm, which torch is",
    "zh": "把请求 {file} 的包（见 traceback）换成 ROCm 构建：torch 已是 ROCm 版，该包不是",
}
_WORDS = {
    "en": ("{command} ({file} is in it)", "{command} ({file} is NVIDIA's: a build for CUDA is installed)"),
    "zh": ("{command}（其中包含 {file}）", "{command}（{file} 属于 NVIDIA：安装的是 CUDA 构建）"),
}


@lru_cache(maxsize=1)
def _tables() -> dict[str, Any]:
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


def advice(line: str, systems: frozenset[str], lang: str, torch: str = "") -> str:
    """The command that installs the file that ``line`` says is missing; '' if it names none or none of ours, or the
    file may be there in another version."""
    if not line or "missing" not in kinds.of(line):
        return ""
    plain, of_cuda = _WORDS[lang]
    for file in _FILES.findall(line[:_LONGEST]):
        name = f"lib{file[2:]}" if file.startswith("-l") else re.sub(r"(?i)(-config|config)\.cmake$", "", file)
        if any(name.lower().startswith(start.lower()) for start in _tables()["cuda"]):
            if torch == "rocm":
                return _OF_AN_EXTENSION[lang].format(file=file)
            return of_cuda.format(command=_CUDA, file=file) if "windows" not in systems else ""
        if ".so." in name and name.startswith(tuple(_tables()["numbered"])):
            return ""
        if "windows" in systems:
            if row := _row("windows", name) or _row("windows", name.removeprefix("lib")):
                return plain.format(command=row[1], file=file)
            continue
        manager = next((_SYSTEMS[system] for system in sorted(systems) if system in _SYSTEMS), "apt")
        package = [*_row("packages", name), "", "", ""][1 + list(_INSTALL).index(manager)]
        # A torch from pip brings ROCm's libraries itself.
        if package and not ("pip" in systems and torch == "rocm" and not package.startswith("lib")):
            return plain.format(command=f"{_INSTALL[manager]} {package}", file=file)
    return ""


def stem(line: str) -> str:
    """The name of the first library in ``line``, up to ``.so``."""
    return next((file.partition(".so")[0] for file in _FILES.findall(line[:_LONGEST]) if ".so" in file), "lib")


def _row(table: str, name: str) -> list[str]:
    rows = [row for row in _tables()[table] if name.lower().startswith(row[0].lower())]
    return max(rows, key=lambda row: len(row[0]), default=[])
