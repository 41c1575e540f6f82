"""TORCHINDUCTOR_MAX_AUTOTUNE is set."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX012",
    code="env-max-autotune",
    severity=Severity.MEDIUM,
    phase=0,
    fix=Fix.SUGGEST,
    en=Text(
        "TORCHINDUCTOR_MAX_AUTOTUNE is set",
        "{name}={value}",
        'Inductor takes it as the default of config.max_autotune, so mode="default" autotunes as well and a first compile can take very long. AMD\'s tuning guide recommends it: a choice, not an error.',
        "Unset it while bringing a port up, or assign torch._inductor.config.max_autotune in code: the assignment wins.",
    ),
    zh=Text(
        "设置了 TORCHINDUCTOR_MAX_AUTOTUNE",
        "{name}={value}",
        'inductor 把它当作 config.max_autotune 的默认值，因此 mode="default" 也会自动调优，首次编译可能极慢。AMD 的调优指南推荐它：这是取舍，不是错误。',
        "移植初期先取消；或在代码中给 torch._inductor.config.max_autotune 赋值，赋值优先。",
    ),
    path="run.sh",
    bad="export TORCHINDUCTOR_MAX_AUTOTUNE=1\n",
    good="export TORCHINDUCTOR_MAX_AUTOTUNE=0\n",
    needs=("torchinductor_max_autotune",),
)
_SET = r"\b(TORCHINDUCTOR_MAX_AUTOTUNE(?:_POINTWISE|_GEMM)?)\s*[=:]?\s*[\"']?(1|true|True)\b"


def _scan(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(_SET):
        yield entry_hit(f, entry, match.group(1), name=match.group(1), value=match.group(2))


check_docker = check_shell = check_yaml = check_make = _scan


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, key, value in env_writes(f):
        if key.startswith("TORCHINDUCTOR_MAX_AUTOTUNE") and text_of(value) == "1":
            yield hit(node, name=key, value="1")


def check_env(env: Env, ctx: Context | None) -> Iterator[Hit]:
    for name, value in sorted(env.variables.items()):
        if re.fullmatch(r"TORCHINDUCTOR_MAX_AUTOTUNE(_POINTWISE|_GEMM)?", name) and value == "1":
            yield line_hit(1, name=name, value=value)
