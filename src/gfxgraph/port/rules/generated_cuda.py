"""CUDA code that Python writes out, piece by piece."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX238",
    code="generated-cuda",
    severity=Severity.MEDIUM,
    phase=2,
    confidence="documented",
    en=Text(
        "CUDA code that Python writes out",
        "{text}",
        "What a generator writes is text: no hipify pass translates it, and hipcc or hiprtc gets it as it is.",
        "Write the prefix from a name that each platform sets (cuda or hip), or include one header of aliases in what is written.",
    ),
    zh=Text(
        "由 Python 逐段写出的 CUDA 代码",
        "{text}",
        "生成器写出的只是文本：hipify 不会翻译它，hipcc 或 hiprtc 会原样收到。",
        "前缀由各平台设置的名称（cuda 或 hip）写出，或在写出的代码中包含一个别名头文件。",
    ),
    path="codegen.py",
    bad='def sync(stream):\n    return f"cudaStreamSynchronize({stream});\\n"\n',
    good='def sync(stream, backend):\n    return f"{backend}StreamSynchronize({stream});\\n"\n',
    needs=("cuda", "cublas", "cufft", "curand"),
)
_CODE = re.compile(
    r"(?:\b|(?<=\\n))cu(?:da|blas|blasLt|fft|rand|sparse|solver|dnn)[A-Z]\w*(?:[ \t]*\(|(?<=_t)\b|\{)|"
    r"#[ \t]*include[ \t]*[<\\\"]+(?:cuda|cublas|cufft|curand|cusparse|cub/|nvrtc)[\w/.]*"
)
_AMD = re.compile(r"(?i)\bhip|rocm|_hip\b")


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if not _CODE.search(f.text):
        return
    found = []
    for node in f.nodes(ast.Constant, ast.JoinedStr):
        if isinstance(node, ast.Constant) and (not isinstance(node.value, str) or f.is_docstring(node)):
            continue
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1):
            line = f.lines[number - 1] if number <= len(f.lines) else ""
            inner = line[node.col_offset :] if number == node.lineno else line
            match = _CODE.search(inner)
            if match and not _AMD.search(line) and _is_text(node, match.group()):
                found.append(line_hit(number, text=line.strip()[:90], group="generated"))
    yield from once_a_line(found)


def _is_text(node: ast.AST, text: str) -> bool:
    """Whether the words are the string's, not those of code on the same line."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return any(isinstance(p, ast.Constant) and isinstance(p.value, str) and text in p.value for p in parts)
