"""The Python floor is above what some ROCm images carry."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX008",
    code="requires-python-conservative",
    severity=Severity.LOW,
    phase=0,
    tier="extended",
    confidence="seed-only",
    en=Text(
        "The Python floor is above what some ROCm images carry",
        "requires-python is {spec}",
        "Such a floor is often set with care rather than need, and pip refuses to install below it.",
        "Leave the field; install with --ignore-requires-python where the sources do not use newer syntax.",
    ),
    zh=Text(
        "Python 下限高于部分 ROCm 镜像自带的版本",
        "requires-python 为 {spec}",
        "这类下限往往只是谨慎而非必需，低于它时 pip 会拒绝安装。",
        "不要改该字段；若源码未用更新的语法，安装时加 --ignore-requires-python。",
    ),
    path="pyproject.toml",
    bad='[project]\nname = "x"\nrequires-python = ">=3.13"\n',
    good='[project]\nname = "x"\nrequires-python = ">=3.10"\n',
    needs=("python",),
)


def check_requirements(f: RequirementFile, ctx: Context) -> Iterator[Hit]:
    match = re.search(r"(?:>=|\^|~=)\s*3\.(\d+)", f.requires_python)
    if match and int(match.group(1)) > 10:
        line = next((n for n, t in enumerate(f.lines, 1) if f.requires_python in t), 1)
        yield line_hit(line, spec=f.requires_python)
