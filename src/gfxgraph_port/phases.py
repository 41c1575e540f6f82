"""The phases of a port, as users of the porting guide know them, in both languages."""

from __future__ import annotations

PHASES: dict[int, tuple[str, str]] = {
    0: ("Environment and dependencies", "环境与依赖"),
    1: ("ROCm detection and flags", "ROCm 检测与开关"),
    2: ("Source translation", "源码转换"),
    3: ("Architecture adaptation", "架构适配"),
    4: ("Build system", "构建系统"),
    5: ("Library replacement", "库替换"),
    6: ("torch.compile", "torch.compile"),
    7: ("GPU graphs", "GPU 图"),
    8: ("Verification", "验证"),
}


def phase_title(phase: int, lang: str = "en") -> str:
    return PHASES[phase][1 if lang == "zh" else 0]


WORDS: dict[str, tuple[str, str]] = {
    "breaks": ("stops it", "无法运行"),
    "silent": ("silently wrong", "悄然出错"),
    "slow": ("slow", "变慢"),
    "phase": ("Phase", "阶段"),
    "findings": ("findings", "处发现"),
    "finding": ("finding", "处发现"),
    "severity": ("severity", "严重度"),
    "why": ("why", "原因"),
    "do": ("do", "处理"),
    "also": ("also on lines", "另见行"),
    "also_one": ("also on line", "另见行"),
    "affects": ("affects", "影响"),
    "all": ("all targets", "全部目标架构"),
    "files": ("files", "个文件"),
    "lines": ("lines", "行"),
    "clean": ("Nothing to report.", "没有发现问题。"),
    "guarded": ("Already guarded (not counted)", "已有保护（不计入）"),
    "skipped": ("Passed over", "未审计"),
    "more": ("more", "更多"),
    "low": ("low", "低"),
    "medium": ("medium", "中"),
    "high": ("high", "高"),
    "critical": ("critical", "致命"),
    "info": ("info", "提示"),
    "fix": ("fix", "修复"),
    "safe": ("safe", "安全"),
    "suggest": ("suggested", "建议"),
    "none": ("by hand", "人工"),
    "hidden_guarded": ("findings under a guard that excludes AMD; --show-guarded lists them",
                       "处位于已排除 AMD 的保护之内；--show-guarded 可列出"),
    "milder": ("milder findings left out; --severity info lists them", "处更轻的发现未列出；--severity info 可列出"),
    "suppressed": ("suppressed by inline ignores", "处被行内忽略"),
    "safe_hint": ("can be fixed safely: gfxgraph port fix", "处可安全修复：gfxgraph port fix"),
    "targets": ("targets", "目标架构"),
}  # fmt: skip


def word(key: str, lang: str) -> str:
    """One word of the reports, in English or Chinese."""
    return WORDS[key][1 if lang == "zh" else 0]
