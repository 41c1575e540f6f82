"""The plan: how to port this repository, and a list of work that a person or a coding agent takes item by item.

Enters: a repository and its audit.
Stays out: stdout, edits.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from gfxgraph.port.audit import Audit
from gfxgraph.port.impact import impact_of, rank
from gfxgraph.port.model import Finding, fill
from gfxgraph.port.project import Project, kind_of
from gfxgraph.port.registry import find
from gfxgraph.port.strategy import choose, stages

SCHEMA = "gfxgraph-port-plan/2"
Pair = tuple[str, str]
_BY_HAND: dict[str, Pair] = {
    "inline-ptx": ("Rewrite inline PTX as builtins or C++, and check the result", "把内联 PTX 改写为内建函数或 C++，并核对结果"),
    "cutlass": ("Replace CUTLASS by Composable Kernel, hipBLASLt, Triton or aiter", "以 Composable Kernel、hipBLASLt、Triton 或 aiter 取代 CUTLASS"),
    "wmma": ("Rewrite matrix-unit code for rocWMMA", "把矩阵单元代码改写为 rocWMMA"),
    "libcudacxx-cg": ("Replace cooperative-group reductions, async copies and clusters", "替换 cooperative groups 的归约、异步复制与 cluster"),
    "cudnn-cpp": ("Port cuDNN calls to MIOpen", "把 cuDNN 调用移植到 MIOpen"),
    "nvidia-only-library": ("Choose counterparts for libraries without ROCm support", "为没有 ROCm 支持的库选择替代"),
    "sync-in-capture": ("Move host reads out of captured regions", "把主机读取移出捕获区域"),
}  # fmt: skip
_ALWAYS: tuple[Pair, ...] = (
    ("Run the port on a machine with the GPU: nothing here proves speed or numerics", "在有该 GPU 的机器上运行：此处无法证明速度与数值"),
    ("Tune tile sizes, warps and stages for the architecture", "针对架构调优 tile、warp 与 stage"),
    ("Judge tolerances with someone who knows the model", "由了解模型的人判断容差"),
)  # fmt: skip
_COMPILED = ("cpp", "cmake", "make", "recipe")


def made_of(report: Audit, project: Project, lang: str) -> dict[str, Any]:
    """The plan of a repository and its findings."""
    i = 1 if lang == "zh" else 0
    chosen = choose(report, project)
    ordered = sorted(report.findings, key=rank)
    codes = Counter(f.code for f in ordered)
    order = stages(ordered)
    stage_of = {id(f): s.name[i] for s in order for f in s.findings}
    rows = [f for s in order for f in s.findings]
    targets = [a.name for a in report.archs]
    return {
        "schema": SCHEMA,
        "targets": targets,
        "strategy": {
            "way": chosen.way.value,
            "reasons": [r[i] for r in chosen.reasons],
        },
        "start": ["gfxgraph port fix . --loop --apply", "gfxgraph port build . --json"],
        "order": [{"stage": s.name[i], "rules": list(s.codes), "findings": s.count} for s in order],
        "work": [{"item": n, "stage": stage_of[id(f)], **item(f, lang, targets)} for n, f in enumerate(rows, 1)],
        "by_hand": [{"rule": c, "what": text[i], "count": codes[c]} for c, text in _BY_HAND.items() if codes[c]]
        + [{"rule": "", "what": text[i], "count": 0} for text in _ALWAYS],
        "skipped": [{"path": s.path, "reason": s.reason, "detail": s.detail} for s in report.skipped],
    }


def item(f: Finding, lang: str, targets: list[str]) -> dict[str, object]:
    """One piece of work: what, where, why, what to do, and the command that proves it done."""
    loaded = find(f.rule)
    assert loaded is not None
    text = loaded.rule.text(lang)
    proofs = [f"gfxgraph port audit . --rule {f.rule} --json"]
    place = f.as_json()
    if place["archs"] == targets:
        del place["archs"]  # all that the plan names
    if kind_of(f.path) in _COMPILED:
        proofs.insert(0, "gfxgraph port build . --json")
    return {
        "impact": impact_of(f.code).label,
        **place,
        "title": text.title,
        "what": fill(text.what, f.values),
        "why": text.why,
        "do": text.do,
        "check": f"no finding {f.fingerprint} is left, and no new unit fails",
        "prove": proofs,
    }


def as_markdown(plan: dict[str, Any], *, lang: str) -> str:
    """The plan as Markdown, which reads well in a terminal too."""
    zh = lang == "zh"
    way, because, first = ("## 选择的方式", "因为", "先处理") if zh else ("## Which way", "because", "start with")
    out = ["# 移植计划" if zh else "# Port plan", "", way, "", f"- {plan['strategy']['way']}"]
    out += [f"- {because}: {reason}" for reason in plan["strategy"]["reasons"]]
    out += ["", "## 开始" if zh else "## Begin", "", *(f"- `{line}`" for line in plan["start"])]
    out += ["", "## 编辑顺序" if zh else "## The edits in order", ""]
    for n, stage in enumerate(plan["order"], 1):
        out.append(f"{n}. {stage['stage']} ({stage['findings']})")
        mine = [w for w in plan["work"] if w["stage"] == stage["stage"]]
        counts = Counter(w["rule"] for w in mine)
        places = {w["rule"]: w for w in reversed(mine)}
        for rule in list(dict.fromkeys(w["rule"] for w in mine))[:4]:
            place = places[rule]
            out.append(f"   - {first} {rule} {place['title']} ({counts[rule]}): {place['path']}:{place['line']}")
    out += ["", "## 工具无法代劳的部分" if zh else "## What no tool does for you", ""]
    out += [
        f"- {row['what']}" + (f" ({row['count']}, {row['rule']})" if row["count"] else "") for row in plan["by_hand"]
    ]
    return "\n".join(out) + "\n"
