"""CUDA source held in Python strings: RawKernel, load_inline, SourceModule and their like.

These strings miss every hipify pass. Lines of the string map to lines of the file where the literal is
written out; where it is escaped, every line maps to the literal's first.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gfxgraph.port import bounded as re
from gfxgraph.port.readers.python import PyFile

_CUDA = re.compile(
    r"__global__\s+\w|__device__\s+\w|__shfl\w*\s*\(|\bthreadIdx\s*\.\s*[xyz]|__syncthreads\s*\(\s*\)|asm\s+volatile\s*\("
)


def embedded_sources(file: PyFile) -> Iterator[tuple[ast.AST, str, int]]:
    """String constants that hold CUDA code, as (node, text, first line in the file)."""
    for node in file.nodes(ast.Constant):
        if isinstance(node.value, str) and is_cuda_source(node.value) and not file.is_docstring(node):
            if isinstance(file.parent(node), ast.JoinedStr):
                continue
            yield node, *_mapped(node, node.value)
    for joined in file.nodes(ast.JoinedStr):
        text = "".join(
            v.value if isinstance(v, ast.Constant) and isinstance(v.value, str) else "0" for v in joined.values
        )
        if is_cuda_source(text) and not file.is_docstring(joined):
            yield joined, *_mapped(joined, text)


def is_cuda_source(text: str) -> bool:
    """Whether a string is device code: it needs a line break or a body, so a word in a message is not."""
    return len(text) > 24 and ("\n" in text or "{" in text) and bool(_CUDA.search(text))


def _mapped(node: ast.expr, text: str) -> tuple[str, int]:
    span = (node.end_lineno or node.lineno) - node.lineno
    if text.count("\n") == span:
        return text, node.lineno
    return text.replace("\n", " "), node.lineno
