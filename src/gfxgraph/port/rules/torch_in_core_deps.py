"""Torch, or a package that pins it, is a core dependency."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX001",
    code="torch-in-core-deps",
    severity=Severity.HIGH,
    phase=0,
    fix=Fix.SUGGEST,
    en=Text(
        "torch, or a package that pins it, is a core dependency",
        "{name} {spec} is installed with the project",
        "pip and uv resolve the name from PyPI, which serves the CUDA build, and put it over an installed ROCm torch; torchvision, torchaudio and triton pull a matching torch in turn.",
        "Leave the NVIDIA line alone. Add a requirements-rocm.txt or an extra, install the project with --no-deps on ROCm, then check torch.version.hip.",
    ),
    zh=Text(
        "torch 或会固定 torch 版本的包位于核心依赖中",
        "{name} {spec} 会随项目一起安装",
        "pip 与 uv 从 PyPI 解析该名称，得到的是 CUDA 版本，会覆盖已安装的 ROCm torch；torchvision、torchaudio、triton 也会连带拉取对应的 torch。",
        "保留 NVIDIA 的写法，另加 requirements-rocm.txt 或 extra；在 ROCm 上用 --no-deps 安装项目，再检查 torch.version.hip。",
    ),
    path="pyproject.toml",
    bad='[project]\nname = "x"\ndependencies = ["torch==2.6.0", "numpy"]\n',
    good='[project]\nname = "x"\ndependencies = ["numpy", "torchmetrics"]\n[project.optional-dependencies]\ncuda = ["torch==2.6.0"]\n',
    needs=("torch", "triton"),
)
NAMES = frozenset({"torch", "torchvision", "torchaudio", "triton", "pytorch-triton", "pytorch"})


def _severity(spec: str) -> Severity:
    return Severity.HIGH if spec.lstrip("= ").strip() and spec.strip().startswith("==") else Severity.MEDIUM


def check_requirements(f: RequirementFile, ctx: Context) -> Iterator[Hit]:
    if re.search(r"(^|/)(examples?|docs?|tutorials?|benchmarks?|tests?)/", f.path):
        return  # advice to readers, not metadata
    for need in f.core():
        if need.name in NAMES and "rocm" not in need.spec and need.group == "":
            yield line_hit(need.line, severity=_severity(need.spec), name=need.name, spec=need.spec, group="torch")


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if not f.path.endswith("setup.py"):
        return
    for call in f.calls("setuptools.setup", "setup", "distutils.core.setup"):
        value = keyword(call, "install_requires")
        lists = f.lookup(value.id, value) if isinstance(value, ast.Name) else [value]
        for item in lists:
            if isinstance(item, ast.List):
                for element in item.elts:
                    text = text_of(element) or ""
                    match = re.match(r"([A-Za-z][\w.-]*)\s*(.*)", text)
                    if match and match.group(1).lower() in NAMES and "rocm" not in text:
                        yield hit(
                            element,
                            severity=_severity(match.group(2)),
                            name=match.group(1),
                            spec=match.group(2),
                        )
