"""Generated HIP copies would be committed."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX411",
    code="generated-hip-not-ignored",
    severity=Severity.INFO,
    phase=4,
    fix=Fix.SAFE,
    tier="extended",
    en=Text(
        "Generated HIP copies would be committed",
        "no pattern for *.hip or *_hip.* in .gitignore",
        "torch's hipify writes its copies beside the sources.",
        "Add *.hip, *_hip.* and hip/ patterns to .gitignore, unless hand-written .hip sources are kept there.",
    ),
    zh=Text(
        "生成的 HIP 副本会被提交",
        ".gitignore 中没有 *.hip 或 *_hip.* 模式",
        "torch 的 hipify 会在源文件旁写出副本。",
        "在 .gitignore 中加入 *.hip、*_hip.* 与 hip/，除非其中保存着手写的 .hip 源码。",
    ),
    bad={
        "setup.py": "from setuptools import setup\nfrom torch.utils.cpp_extension import CUDAExtension\n\nsetup(ext_modules=[CUDAExtension('x', ['x.cu'])])\n"
    },
    good={
        "setup.py": "from setuptools import setup\nfrom torch.utils.cpp_extension import CUDAExtension\n\nsetup(ext_modules=[CUDAExtension('x', ['x.cu'])])\n",
        ".gitignore": "*.hip\n*_hip.*\n",
    },
)


def check_repo(project: Project, ctx: Context) -> Iterator[tuple[str, Hit]]:
    if not project.has_torch_extension or not any(
        p.endswith((".cu", ".cuh")) or "setup.py" in p for p in project.paths()
    ):
        return
    if re.search(r"\.hip\b|_hip\b|^hip/", project.gitignore, re.M) or project.diff is not None:
        return
    if not any("CUDAExtension" in _read(project, p) for p in project.paths("python") if p.endswith("setup.py")):
        return
    yield ".gitignore", line_hit(1)


def _read(project: Project, path: str) -> str:
    try:
        return project.read(path)[0]
    except (OSError, UnreadableError):
        return ""
