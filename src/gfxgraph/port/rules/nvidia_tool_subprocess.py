"""A tool of NVIDIA's is run."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX114",
    code="nvidia-tool-subprocess",
    severity=Severity.MEDIUM,
    phase=1,
    fix=Fix.SUGGEST,
    en=Text(
        "A tool of NVIDIA's is run",
        "{tool}",
        "It is missing on ROCm: FileNotFoundError, or a wrong answer that there is no GPU.",
        "torch.cuda or amd-smi for devices, hipcc --version for the compiler; catch FileNotFoundError.",
    ),
    zh=Text(
        "运行了 NVIDIA 的工具",
        "{tool}",
        "ROCm 上没有它：要么 FileNotFoundError，要么误判为没有 GPU。",
        "设备信息用 torch.cuda 或 amd-smi，编译器用 hipcc --version；并捕获 FileNotFoundError。",
    ),
    bad='import subprocess\n\nout = subprocess.check_output(["nvidia-smi", "-L"])\n',
    good='import subprocess\n\ntry:\n    out = subprocess.check_output(["nvidia-smi", "-L"])\nexcept FileNotFoundError:\n    out = b""\n',
    needs=("nvidia-smi", "nvcc", "cuobjdump", "nvdisasm", "ptxas", "nsys", "ncu"),
)
TOOL = re.compile(r"(?:^|[\s/\"'`(|;&])(nvidia-smi|nvcc|cuobjdump|nvdisasm|ptxas|nsys|ncu)(?=$|[\s\"'`)|;&.])")
_RUNNERS = (
    "subprocess.run", "subprocess.Popen", "subprocess.check_output", "subprocess.check_call", "subprocess.call",
    "subprocess.getoutput", "subprocess.getstatusoutput", "os.popen", "os.system", "shutil.which", "distutils.spawn.find_executable",
)  # fmt: skip
_COMMAND = re.compile(r"(nvidia-smi|nvcc|cuobjdump|nvdisasm|ptxas|nsys|ncu)(?:\.exe)?(?:$|\s+-)")
_AMD_TOOL = re.compile(r"rocm[-_]smi|amd-smi|rocminfo|hipcc|rocm_agent")


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for call in f.calls(*_RUNNERS):
        parts = [*call.args[:1], *[k.value for k in call.keywords if k.arg in ("args", "cmd")]]
        texts: list[str] = []
        for part in parts:
            bound = f.lookup(part.id, part) if isinstance(part, ast.Name) else [part]
            for item in bound:
                texts += [n.value for n in ast.walk(item) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        found = next((m.group(1) for t in texts if (m := TOOL.search(t))), "")
        if not found or (found == "nvcc" and re.search(r"-V\b|--version", " ".join(texts))):
            continue  # the version probe has a rule of its own
        tried = f.caught(call, "FileNotFoundError", "OSError", "CalledProcessError", "SubprocessError")
        guarded = f"line {tried.lineno}: try" if tried else ""
        scope = f.function(call)
        if not guarded and scope is not None and _AMD_TOOL.search(f.source(scope)):
            guarded = "an AMD tool is tried in the same function"
        if not guarded and f.call_name(call).endswith(("which", "find_executable")):
            if not _AMD_TOOL.search(f.text):  # a choice between NVIDIA and none
                yield hit(call, severity=Severity.LOW, group="asked", tool=found)
            continue  # asking whether a tool is there is the guard
        yield hit(call, guarded_by=guarded, tool=found)
    if _AMD_TOOL.search(f.text):
        return
    for node in f.nodes(ast.Constant):  # a command kept in a name, or handed to a helper of the project's own
        match = _COMMAND.match(node.value) if isinstance(node.value, str) and len(node.value) < 300 else None
        up = f.parent(node)
        if isinstance(up, ast.Dict) and node in up.keys:
            continue  # {"nvcc": flags} names a compiler to torch's build, on ROCm too
        if match and match.group() in ("nsys", "ncu", "ptxas") and not isinstance(up, ast.List):
            continue  # a key or an option of the project's own
        if (
            match
            and not isinstance(up, ast.Compare | ast.Expr | ast.JoinedStr | ast.Subscript)
            and not _runs(f, node)
        ):
            if not (isinstance(up, ast.Call) and f.call_name(up).endswith(("which", "find_executable"))):
                yield hit(node, severity=Severity.LOW, tool=match.group(1))


def _runs(f: PyFile, node: ast.AST) -> bool:
    """Whether a call that runs a command holds the text: that one is judged above."""
    return any(isinstance(up, ast.Call) and f.call_name(up) in _RUNNERS for up in f.ancestors(node))


def check_shell(f: TextFile, ctx: Context) -> Iterator[Hit]:
    if _AMD_TOOL.search(f.text):
        return
    for entry, match in f.matching(TOOL.pattern):
        if re.match(r"@?\s*(echo|printf|print)\b", entry.text.strip()):
            continue  # said, not run
        yield entry_hit(f, entry, re.escape(match.group(1)), severity=Severity.LOW, tool=match.group(1))


check_make = check_shell
