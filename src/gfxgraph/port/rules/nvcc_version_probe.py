"""The build asks nvcc for its version."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX410",
    code="nvcc-version-probe",
    severity=Severity.HIGH,
    phase=4,
    fix=Fix.SUGGEST,
    en=Text(
        "The build asks nvcc for its version",
        "{expr}",
        'On ROCm the path is None + "/bin/nvcc", or the tool is missing.',
        "Skip it on ROCm; use torch.version.hip or hipcc --version.",
    ),
    zh=Text(
        "构建时询问 nvcc 版本",
        "{expr}",
        'ROCm 上路径成了 None + "/bin/nvcc"，或根本没有该工具。',
        "ROCm 上跳过；使用 torch.version.hip 或 hipcc --version。",
    ),
    path="setup.py",
    bad='import subprocess\n\nout = subprocess.check_output([HOME + "/bin/nvcc", "-V"])\n',
    good='import subprocess\n\nimport torch\n\nif torch.version.hip is None:\n    out = subprocess.check_output([HOME + "/bin/nvcc", "-V"])\n',
    needs=("nvcc", "bare_metal"),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    yield from once_a_line(_all(f))


def _all(f: PyFile) -> Iterator[Hit]:
    for call in f.calls(
        "subprocess.run",
        "subprocess.check_output",
        "subprocess.check_call",
        "subprocess.Popen",
        "os.popen",
        "os.system",
        "subprocess.getoutput",
    ):
        text = f.source(call)
        if re.search(r"bin/nvcc|[\"']nvcc[\"' ]", text) and re.search(r"-V\b|--version", text):
            tried = f.caught(call, "FileNotFoundError", "OSError", "CalledProcessError")
            yield hit(call, guarded_by=f"line {tried.lineno}: try" if tried else "", expr=text[:100])
    for call in f.nodes(ast.Call):
        name = f.call_name(call).rpartition(".")[2]
        if re.fullmatch(
            r"get_cuda_bare_metal_version|get_nvcc_(cuda_)?version|check_cuda_torch_binary_vs_bare_metal|_?get_cuda_version_from_nvcc",
            name,
        ):
            yield hit(call, expr=f.source(call)[:100])
    for node in f.nodes(ast.Compare):
        if re.search(r"bare_metal_(version|major|minor)|nvcc_(cuda_)?version", f.source(node)):
            yield hit(node, severity=Severity.MEDIUM, expr=f.source(node)[:100])
