"""A change for AMD stands outside a ROCm guard."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX804",
    code="ungated-rocm-change",
    severity=Severity.MEDIUM,
    phase=8,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="documented",
    en=Text(
        "A change for AMD stands outside a ROCm guard",
        "{expr}",
        "It changes NVIDIA's path too. Reported for lines added since the revision given with --diff.",
        "Put it under torch.version.hip.",
    ),
    zh=Text(
        "针对 AMD 的改动没有放在 ROCm 保护之内",
        "{expr}",
        "它同时改变了 NVIDIA 的路径。仅对 --diff 所给修订以来新增的行报告。",
        "放到 torch.version.hip 之下。",
    ),
    bad='import os\n\nos.environ["HSA_NO_SCRATCH_RECLAIM"] = "1"\n',
    good='import os\nimport torch\n\nif torch.version.hip:\n    os.environ["HSA_NO_SCRATCH_RECLAIM"] = "1"\n',
    needs=(
        "fnuz",
        "hip_",
        "hsa_",
        "rocr_",
        "rocm",
        "rccl_",
        "amd_",
        "torchinductor",
        "pytorch_",
        "gpu_max",
        "aiter",
        "miopen_",
        "waves_per_eu",
        "matrix_instr_nonkdim",
    ),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if ctx.added is None or ctx.vendor == "amd":
        return
    yield from (h for h in _all(f) if h.line in ctx.added and _also_nvidia(ctx, h))


def _also_nvidia(ctx: Context, h: Hit) -> bool:
    return ctx.guards is None or ctx.guards.exclusion(h.node, NVIDIA) is None


def _all(f: PyFile) -> Iterator[Hit]:
    for node in f.nodes(ast.Attribute):
        if re.fullmatch(r"float8_e[45]m[32]fnuz", node.attr) and not isinstance(
            f.parent(node), ast.Compare | ast.Dict | ast.Tuple | ast.Set
        ):
            yield hit(node, expr=f.source(node))
    for write, key, _ in env_writes(f):
        if (
            re.match(
                r"(HIP|HSA|ROCR|MIOPEN|AMD|ROCM|RCCL|GPU_MAX|TORCHINDUCTOR|PYTORCH_\w*ALLOC|PYTORCH_TUNABLEOP|FLASH_ATTENTION_TRITON_AMD|TRITON_HIP|VLLM_ROCM)_?",
                key,
            )
            and key != "HIP_VISIBLE_DEVICES"
        ):
            yield hit(write, expr=f.source(write)[:80])
    for site, name in imports_of(f, r"aiter"):
        yield hit(site, guarded_by=import_guard(f, site), expr=name)
    for kw in f.nodes(ast.keyword):
        if kw.arg in ("waves_per_eu", "matrix_instr_nonkdim", "kpack"):
            yield hit(kw.value, expr=f"{kw.arg}={f.source(kw.value)}")
