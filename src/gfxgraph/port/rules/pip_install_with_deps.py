"""A project is installed with its dependencies."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX007",
    code="pip-install-with-deps",
    severity=Severity.MEDIUM,
    phase=0,
    fix=Fix.SUGGEST,
    confidence="documented",
    en=Text(
        "A project is installed with its dependencies",
        "{command} resolves dependencies",
        "The resolver may bring the CUDA torch that the project's metadata names.",
        "Add --no-deps on ROCm (and --ignore-requires-python if only a floor stands in the way), then install what is missing; or constrain torch with -c.",
    ),
    zh=Text(
        "安装项目时连带解析依赖",
        "{command} 会解析依赖",
        "解析器可能拉取项目元数据所指的 CUDA 版 torch。",
        "ROCm 上加 --no-deps（若只因 Python 下限受阻，再加 --ignore-requires-python），然后补装缺少的包；或用 -c 约束 torch。",
    ),
    path="install.sh",
    bad="pip install -e .\n",
    good="pip install --no-deps -e .\n",
    needs=("pip",),
)
_INSTALL = re.compile(r"\bpip3?\s+install\b(?P<rest>.*)")


def _scan(f: TextFile, ctx: Context) -> Iterator[Hit]:
    if ctx.project.requires == frozenset({"other"}):
        return  # nothing of what it installs comes from a CUDA index
    cuda_image = any(e.keyword == "FROM" and re.search(r"nvidia/cuda|nvcr\.io|-cuda", e.text) for e in f.entries)
    for entry in f.entries:
        match = _INSTALL.search(entry.text)
        if not match or cuda_image:
            continue
        rest = match["rest"]
        if re.search(r"--no-deps|(?:^|\s)-c\s|--constraint|--dry-run", rest):
            continue
        if re.search(
            r"(?:^|\s)(?:-e\s+|--editable[ =])?[\"']?\.{1,2}(?:/\S*)?(?:\[[^\]]*\])?[\"']?(?:\s|$)|git\+https?://",
            rest,
        ):
            yield entry_hit(f, entry, command=match.group().strip()[:80])


check_docker = check_shell = check_make = _scan
