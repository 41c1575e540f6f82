"""A label such as sm_90 decides, or is put together."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX124",
    code="sm-label-gate",
    severity=Severity.MEDIUM,
    phase=1,
    fix=Fix.SUGGEST,
    confidence="documented",
    en=Text(
        "A label such as sm_90 decides, or is put together",
        "{expr}",
        "On ROCm the device's major and minor give labels of no existing architecture (sm94 for gfx942, sm103 for gfx1030), so no branch fits, or a wrong one.",
        "Give ROCm a branch of its own, and take its label from gcnArchName.",
    ),
    zh=Text(
        "由 sm_90 之类的标签作判断，或拼接出这种标签",
        "{expr}",
        "ROCm 上由 major 与 minor 拼出的标签不对应任何架构（gfx942 得 sm94，gfx1030 得 sm103），于是没有分支匹配，或匹配到错误的分支。",
        "为 ROCm 单设一个分支，标签取自 gcnArchName。",
    ),
    path="dispatch.py",
    bad='def pick(arch: str) -> str:\n    if arch in {"sm80", "sm86"}:\n        return "ampere"\n    return "other"\n',
    good='def pick(arch: str) -> str:\n    if arch in {"small", "smooth"}:\n        return "ampere"\n    return "other"\n',
    needs=("sm{", "sm_", "sm5", "sm6", "sm7", "sm8", "sm9", "sm1", "compute_{"),
)
_SM = re.compile(r"sm_?(?:[5-9]\d|1[0-2]\d)a?")
_FLAG = re.compile(
    r"(?i)_*(?:(?:has|have|is|use|uses|with|enable|build|support|supports|supported|compile|need|needs|any)_*)*"
    r"sm_?(?:[5-9]\d|1[0-2]\d)a?(?:_*(?:enabled|available|plus|or_later|or_higher|supported|and_above|only|flag))*"
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    yield from once_a_line(_all(f))


def _all(f: PyFile) -> Iterator[Hit]:
    for node in f.nodes(ast.Compare):
        for side in (node.left, *node.comparators):
            items = side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]
            if items and all(_SM.fullmatch(text_of(i) or "") for i in items):
                yield hit(node, expr=f.source(node)[:120])
                break
    for joined in f.nodes(ast.JoinedStr):
        first = text_of(joined.values[0]) if joined.values else None
        if first is not None and re.search(r"(?:^|[^A-Za-z])(?:sm|compute)_?$", first):
            yield hit(joined, expr=f.source(joined)[:120])
    for asked in f.nodes(ast.If, ast.IfExp, ast.Assert, ast.While):
        for part in ast.walk(asked.test):
            name = part.id if isinstance(part, ast.Name) else part.attr if isinstance(part, ast.Attribute) else ""
            if name and _FLAG.fullmatch(name):
                yield hit(asked.test, expr=f.source(asked.test)[:120])
                break
