"""NVML is used without a guard."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX113",
    code="nvml-import",
    severity=Severity.HIGH,
    phase=1,
    fix=Fix.SUGGEST,
    en=Text(
        "NVML is used without a guard",
        "{name}",
        "On AMD the package is absent (ImportError), or libnvidia-ml is (NVMLError).",
        "Ask torch.cuda first, wrap the import and nvmlInit in try, and take AMD's values from amdsmi.",
    ),
    zh=Text(
        "无保护地使用 NVML",
        "{name}",
        "AMD 上要么没有该包（ImportError），要么没有 libnvidia-ml（NVMLError）。",
        "先问 torch.cuda；import 与 nvmlInit 放进 try；AMD 的数值取自 amdsmi。",
    ),
    bad="import pynvml\n\npynvml.nvmlInit()\n",
    good="try:\n    import pynvml\n\n    pynvml.nvmlInit()\nexcept Exception:\n    pynvml = None\n",
    needs=("nvml", "nvidia_smi", "nvitop", "gpustat", "gputil", "nvgpu"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    yield from once_a_line(_all(f))


def _all(f: PyFile) -> Iterator[Hit]:
    yield from import_hits(
        f, r"pynvml|nvidia_smi|py3nvml|nvitop|gpustat|GPUtil|nvgpu", Severity.HIGH, Severity.MEDIUM
    )
    for call in f.calls("pynvml.nvmlInit", "nvidia_smi.nvmlInit", "py3nvml.nvmlInit", "py3nvml.py3nvml.nvmlInit"):
        tried = f.caught(call, "NVMLError", "NVMLError_LibraryNotFound", "ImportError", "RuntimeError")
        guarded = f"line {tried.lineno}: try" if tried else ""
        yield hit(call, severity=Severity.MEDIUM, guarded_by=guarded, name=f.source(call))
    for used in f.nodes(ast.Call, ast.ExceptHandler):
        named = used.func if isinstance(used, ast.Call) else used.type
        name = f.dotted(named) if named is not None else ""
        if re.match(r"(pynvml|nvidia_smi|py3nvml|nvitop|gpustat|GPUtil|nvgpu)\.", name) and not name.endswith(
            "nvmlInit"
        ):
            tried = f.caught(used, "NVMLError", "NVMLError_LibraryNotFound", "ImportError", "ModuleNotFoundError")
            # Caught it does not stop the program, but what it asked is then unknown on AMD.
            expected = tried is not None and any("NVML" in f.source(h.type) for h in tried.handlers if h.type)
            handled = expected or bool(re.search(r"(?i)amd_?smi|pyrsmi|rocm|\bhip\b", f.text))
            guarded = f"line {tried.lineno}: try" if tried is not None and handled else ""
            where = named or used
            made = hit(where, severity=Severity.LOW, guarded_by=guarded, name=name)
            yield replace(made, group="calls")
    for node in f.nodes(ast.If, ast.IfExp):
        text = f.source(node.test)
        if re.search(r"(?i)nvml|nvidia_?smi", text) and not re.search(r"(?i)rocm|amd_?smi|pyrsmi|\bhip", text):
            if not re.search(
                r"(?i)amd_?smi|pyrsmi|rocm",
                "".join(f.source(x) for x in node.orelse) if isinstance(node, ast.If) else "",
            ):
                yield hit(
                    node.test, severity=Severity.LOW, group="calls", name=text[:80]
                )  # what AMD gets then is the else


def fix_python(node: ast.AST, f: PyFile, ctx: Context) -> Edit | EditRefusal | None:
    return optional_import(node, f)
