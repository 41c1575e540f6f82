"""Fuzz target: a file of a repository that `gfxgraph port` reads.

The first line of an input names the file, which decides who reads it; the rest is its text. Seeds are the rules'
examples and inputs that once cost time or memory without bound. Whatever the bytes, one file's answer comes within
the budget for a file, and no rule fails on it.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gfxgraph_port.archs import select
from gfxgraph_port.budget import FILE_SECONDS
from gfxgraph_port.engine import audit_file
from gfxgraph_port.facts import gather
from gfxgraph_port.project import discover, kind_of
from gfxgraph_port.registry import load

_NAMES = ("a.cu", "a.py", "pyproject.toml", "requirements.txt", "environment.yml", "Dockerfile", "a.sh", "Makefile",
          "CMakeLists.txt", "meson.build", "setup.cfg", "uv.lock")  # fmt: skip
_ONCE = {
    "pyproject.toml": ("a" + ".a" * 9000 + " = 1", "a = " + "[" * 9000, "a = " + "{a=" * 9000),
    "requirements.txt": ("torch" + "[a," * 5000, "torch;" + "(" * 5000, "torch==" + "1." * 9000),
    "CMakeLists.txt": ("if(" * 9000, "${" * 9000, "set(A " + "x;" * 9000 + ")", "if(CUDA)\n" * 5000),
    "Makefile": ("ifdef A\n" * 9000 + "\tnvcc x.cu\n" * 9000,),
    "Dockerfile": ("RUN a \\\n" * 9000 + "nvcc", "RUN <<E\n" * 5000),
    "a.sh": ("if nvidia-smi; then\n" * 5000, "case a in " * 5000, "nvcc " + "'" * 9000),
    "a.cu": ("#if " + "(" * 5000, "#if 1\n" * 5000, "#elif X\n" * 5000, "{" * 9000, "asm(" + '"a"\n' * 9000),
    "a.py": ("f(" * 5000, "x = a" + ".a" * 9000, "import torch\n" + "if torch.version.cuda:\n " * 900),
    "environment.yml": ("a: " + "[" * 9000, "a: &a [x]\n" + "b: [*a,*a]\n" * 5000),
}  # fmt: skip


def seeds() -> Iterator[bytes]:
    """Each example of each rule, and each input that once had no bound."""
    for item in load():
        for example in (item.rule.bad, item.rule.good):
            for name, text in example.items():
                if kind_of(name):
                    yield f"{name}\n{text}".encode()
    for name, texts in _ONCE.items():
        yield from (f"{name}\n{text}".encode() for text in texts)


def run(data: bytes) -> None:
    """Audit one file, as a repository of its own."""
    first, _, text = data.partition(b"\n")
    name = first.decode("utf-8", "replace").rpartition("/")[2]
    if not kind_of(name) or not name.isascii() or not name.isprintable() or len(name) > 100:
        name = _NAMES[len(data) % len(_NAMES)]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, name).write_bytes(text)
        project = discover(folder)
        started = time.process_time()
        gather(project)
        result = audit_file(project, name, kind_of(name), select(None))
        took = time.process_time() - started
    failed = [each.detail for each in result.skipped if each.reason == "rule failed"]
    assert not failed, failed
    assert took <= 2 * FILE_SECONDS, f"{took:.1f} s for {len(data)} bytes of {name}"
