"""The plan: which phases this repository needs, in what order, with what is counted and what is left to people.

Enters: an audit.
Stays out: stdout.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from gfxgraph.port.audit import Audit
from gfxgraph.port.impact import rank
from gfxgraph.port.model import Effort, Finding, Fix
from gfxgraph.port.phases import phase_title
from gfxgraph.port.project import Project
from gfxgraph.port.registry import find
from gfxgraph.port.strategy import Stage, Strategy, choose, stages

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class PlanPhase:
    """One phase of the plan; ``first`` is one place of each of its worst rules."""

    phase: int
    needed: bool
    reason: Pair
    n_findings: int
    n_auto: int
    n_suggest: int
    n_manual: int
    efforts: dict[str, int]
    first: tuple[Finding, ...]
    by_rule: dict[str, int]


@dataclass(frozen=True, slots=True)
class PortPlan:
    """Answers of the decision tree, the phases in order, and what no tool can do."""

    answers: tuple[tuple[Pair, bool], ...]
    steps: tuple[PlanPhase, ...]
    by_hand: tuple[tuple[str, Pair, int], ...]
    strategy: Strategy
    stages: tuple[Stage, ...]


_BY_HAND: tuple[tuple[str, Pair], ...] = (
    ("inline-ptx", ("Rewrite inline PTX as builtins or C++, and check the result", "把内联 PTX 改写为内建函数或 C++，并核对结果")),
    ("cutlass", ("Replace CUTLASS by Composable Kernel, hipBLASLt, Triton or aiter", "以 Composable Kernel、hipBLASLt、Triton 或 aiter 取代 CUTLASS")),
    ("wmma", ("Rewrite matrix-unit code for rocWMMA", "把矩阵单元代码改写为 rocWMMA")),
    ("libcudacxx-cg", ("Replace cooperative-group reductions, async copies and clusters", "替换 cooperative groups 的归约、异步复制与 cluster")),
    ("unmapped-runtime-api", ("Decide feature by feature what replaces calls HIP lacks", "逐项决定如何替代 HIP 没有的调用")),
    ("dynamic-parallelism", ("Restructure launches from device code", "重构设备端启动")),
    ("texture-surface", ("Replace textures where the target has none", "在没有纹理的目标上替换纹理")),
    ("cudnn-cpp", ("Port cuDNN calls to MIOpen", "把 cuDNN 调用移植到 MIOpen")),
    ("cuda-arch-guard", ("Decide for each __CUDA_ARCH__ test on which side AMD belongs", "逐个决定 __CUDA_ARCH__ 判断中 AMD 属于哪一侧")),
    ("nvidia-only-library", ("Choose counterparts for libraries without ROCm support", "为没有 ROCm 支持的库选择替代")),
    ("triton-hopper-features", ("Keep a pointer path beside tensor descriptors", "在张量描述符之外保留指针路径")),
    ("sync-in-capture", ("Move host reads out of captured regions", "把主机读取移出捕获区域")),
)  # fmt: skip
_ALWAYS: tuple[Pair, ...] = (
    ("Run the port on a machine with the GPU: nothing here proves speed or numerics", "在有该 GPU 的机器上运行：此处无法证明速度与数值"),
    ("Tune tile sizes, warps and stages for the architecture", "针对架构调优 tile、warp 与 stage"),
    ("Judge tolerances with someone who knows the model", "由了解模型的人判断容差"),
)  # fmt: skip


def make_plan(audit: Audit, project: Project) -> PortPlan:
    """Apply the decision tree to a repository and its findings.

    Args:
        project: the same repository, for the kinds of its files.
    """
    codes = Counter(f.code for f in audit.findings)
    kernels = any(s.kind == "cpp" and s.path.endswith((".cu", ".cuh")) for s in project.sources)
    native = kernels or any(codes[c] for c in ("untranslated-cuda", "inline-ptx", "cutlass", "embedded-cuda-source"))
    attention = any(codes[c] for c in ("flash-attn-import", "fa3-fa4-import", "hf-attn-hardcoded"))
    cutlass = bool(codes["cutlass"])
    compiled = any(f.phase == 6 for f in audit.findings)
    graphs = any(f.phase == 7 for f in audit.findings)
    answers = (
        (("C++ or CUDA kernels in the repository", "仓库含 C++ 或 CUDA 核函数"), native),
        (("flash-attn in use", "使用 flash-attn"), attention),
        (("CUTLASS in use", "使用 CUTLASS"), cutlass),
        (("torch extension built by torch's own hipify", "由 torch 自带 hipify 构建的扩展"), project.has_torch_extension),
        (("a HIP build exists already", "已有 HIP 构建"), project.has_hip_build),
        (("torch.compile settings to gate", "torch.compile 设置需要加条件"), compiled),
        (("graphs captured by hand", "手工捕获图"), graphs),
    )  # fmt: skip
    no_kernels = ("no kernels to translate", "没有需要转换的核函数")
    reasons: dict[int, tuple[bool, Pair]] = {
        0: (True, ("always: the environment decides whether anything runs", "总是需要：环境决定一切能否运行")),
        1: (True, ("always: gates that open or close the wrong way on AMD", "总是需要：在 AMD 上误开或误关的判断")),
        2: (native, ("kernels or CUDA calls are here", "存在核函数或 CUDA 调用") if native else no_kernels),
        3: (
            native or any(f.phase == 3 for f in audit.findings),
            ("wavefront, LDS and Triton settings differ", "wavefront、LDS 与 Triton 设置不同") if native else no_kernels,
        ),
        4: (native or any(f.phase == 4 for f in audit.findings), ("sources are built here", "此处构建源码") if native else no_kernels),
        5: (attention or cutlass, ("libraries and attention", "库与注意力") if attention or cutlass else ("nothing found", "没有发现")),
        6: (compiled, ("settings found", "发现相关设置") if compiled else ("nothing found", "没有发现")),
        7: (graphs, ("capture found", "发现捕获") if graphs else ("optional: only where launches dominate", "可选：仅当启动开销占主导")),
        8: (True, ("always: golden vectors, static and build checks", "总是需要：黄金向量、静态与构建检查")),
    }  # fmt: skip
    steps = []
    for phase, (needed, reason) in reasons.items():
        found = [f for f in audit.findings if f.phase == phase]
        auto = sum(f.fix is Fix.SAFE for f in found)
        suggest = sum(f.fix is Fix.SUGGEST for f in found)
        efforts = Counter(f.effort for f in found)
        ordered = sorted(found, key=lambda f: (-f.severity, f.effort, f.rule, f.path, f.line))
        first = tuple(
            {f.rule: f for f in reversed(ordered)}[r] for r in list(dict.fromkeys(f.rule for f in ordered))[:3]
        )
        steps.append(
            PlanPhase(
                phase, needed or bool(found), reason, len(found), auto, suggest, len(found) - auto - suggest,
                {e.label: efforts[e] for e in Effort if efforts[e]}, first, dict(Counter(f.rule for f in found)),
            )
        )  # fmt: skip
    by_hand = [(code, text, codes[code]) for code, text in _BY_HAND if codes[code]]
    by_hand += [("", text, 0) for text in _ALWAYS]
    order = tuple(stages(sorted(audit.findings, key=rank)))
    return PortPlan(answers, tuple(steps), tuple(by_hand), choose(audit, project), order)


def as_markdown(plan: PortPlan, *, lang: str) -> str:
    """The plan as Markdown, which reads well in a terminal too."""
    i = 1 if lang == "zh" else 0
    say = {
        "title": ("# Port plan", "# 移植计划")[i],
        "tree": ("## What this repository is", "## 仓库概况")[i],
        "way": ("## Which way", "## 选择的方式")[i],
        "because": ("because", "因为")[i],
        "edits": ("## The edits in order", "## 编辑顺序")[i],
        "order": ("## Phases in order", "## 按序各阶段")[i],
        "hand": ("## What no tool does for you", "## 工具无法代劳的部分")[i],
        "counts": (
            "{n} findings: {a} automatic, {s} suggested, {m} by hand",
            "{n} 处发现：{a} 自动，{s} 建议，{m} 人工",
        )[i],
        "skip": ("not needed", "不需要")[i],
        "start": ("start with", "先处理")[i],
        "yes": ("yes", "是")[i],
        "no": ("no", "否")[i],
        "effort": ("effort", "工作量")[i],
    }
    out = [say["title"], "", say["way"], "", f"- {plan.strategy.way.value}"]
    out += [f"- {say['because']}: {reason[i]}" for reason in (*plan.strategy.reasons, *plan.strategy.also)]
    out += ["", say["edits"], ""]
    for n, stage in enumerate(plan.stages, 1):
        shown = ", ".join(stage.codes[:6]) + (", …" if len(stage.codes) > 6 else "")
        out.append(f"{n}. {stage.name[i]} ({stage.count}: {shown})")
    out += ["", say["tree"], ""]
    out += [f"- {text[i]}: {say['yes'] if value else say['no']}" for text, value in plan.answers]
    out += ["", say["order"], ""]
    for step in plan.steps:
        head = f"### {step.phase}. {phase_title(step.phase, lang)}"
        if not step.needed:
            out += [f"{head}: {say['skip']} ({step.reason[i]})", ""]
            continue
        out += [head, "", f"- {step.reason[i]}"]
        if step.n_findings:
            counts = say["counts"].format(n=step.n_findings, a=step.n_auto, s=step.n_suggest, m=step.n_manual)
            efforts = ", ".join(f"{k} {v}" for k, v in step.efforts.items())
            out.append(f"- {counts} ({say['effort']}: {efforts})")
        for f in step.first:
            rule = find(f.rule)
            title = rule.rule.text(lang).title if rule else f.code
            count = step.by_rule[f.rule]
            out.append(f"- {say['start']} {f.rule} {title} ({count}): {f.path}:{f.line}")
        out.append("")
    out += [say["hand"], ""]
    for code, text, count in plan.by_hand:
        out.append(f"- {text[i]}" + (f" ({count}, {code})" if count else ""))
    return "\n".join(out) + "\n"


def as_json(plan: PortPlan, *, lang: str) -> dict[str, Any]:
    i = 1 if lang == "zh" else 0
    return {
        "schema": "gfxgraph-port-plan/1",
        "strategy": {
            "way": plan.strategy.way.value,
            "reasons": [r[i] for r in plan.strategy.reasons],
            "also": [r[i] for r in plan.strategy.also],
        },
        "order": [{"stage": s.name[i], "rules": list(s.codes), "findings": s.count} for s in plan.stages],
        "answers": [{"question": text[i], "answer": value} for text, value in plan.answers],
        "phases": [
            {
                "phase": s.phase,
                "title": phase_title(s.phase, lang),
                "needed": s.needed,
                "reason": s.reason[i],
                "findings": s.n_findings,
                "auto": s.n_auto,
                "suggest": s.n_suggest,
                "manual": s.n_manual,
                "effort": s.efforts,
            }
            for s in plan.steps
        ],
        "by_hand": [{"rule": code, "what": text[i], "count": n} for code, text, n in plan.by_hand],
    }
