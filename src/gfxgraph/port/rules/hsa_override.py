"""HSA_OVERRIDE_GFX_VERSION is set."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX016",
    code="hsa-override",
    severity=Severity.MEDIUM,
    phase=0,
    tier="extended",
    confidence="documented",
    en=Text(
        "HSA_OVERRIDE_GFX_VERSION is set",
        "the device is reported as {value}",
        "It makes one gfx target answer as another: every decision taken from the name, on wavefronts, LDS or FP8, is then about the wrong chip. It is right only for close relatives, as gfx1031 run as gfx1030.",
        "Unset it where the torch wheel lists the real architecture; otherwise report both names in bug reports.",
    ),
    zh=Text(
        "设置了 HSA_OVERRIDE_GFX_VERSION",
        "设备被报告为 {value}",
        "它让一个 gfx 目标冒充另一个：凡按名称作出的判断（wavefront、LDS、FP8）都针对了错误的芯片。仅对近亲合适，例如把 gfx1031 当作 gfx1030。",
        "若 torch wheel 已列出真实架构就取消；否则报告问题时写明两个名称。",
    ),
    path="run.sh",
    bad="export HSA_OVERRIDE_GFX_VERSION=10.3.0\n",
    good="unset HSA_OVERRIDE_GFX_VERSION\n",
    needs=("hsa_override_gfx_version",),
)


def _scan(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(r"\bHSA_OVERRIDE_GFX_VERSION\s*[=: ]\s*[\"']?([\d.]+)"):
        yield entry_hit(f, entry, value=match.group(1))


check_docker = check_shell = check_yaml = _scan


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, key, value in env_writes(f):
        if key == "HSA_OVERRIDE_GFX_VERSION":
            yield hit(node, value=text_of(value) or "?")


def check_env(env: Env, ctx: Context | None) -> Iterator[Hit]:
    value = env.variables.get("HSA_OVERRIDE_GFX_VERSION", "")
    if value:
        yield line_hit(1, value=value)
