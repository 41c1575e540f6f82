"""Max_split_size_mb together with expandable_segments."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX107",
    code="alloc-conf-combo",
    severity=Severity.HIGH,
    phase=1,
    fix=Fix.SAFE,
    confidence="reported",
    versions="torch >= 2.12 on ROCm; without effect before",
    en=Text(
        "max_split_size_mb together with expandable_segments",
        "{name} = {value}",
        "The ROCm allocator takes both, but together reserved memory grows until the card is full, and one report shows a live allocation reading back as zeros on gfx1201. Each alone is fine.",
        "On ROCm keep expandable_segments:True alone; set it before torch starts its allocator.",
    ),
    zh=Text(
        "同时使用 max_split_size_mb 与 expandable_segments",
        "{name} = {value}",
        "ROCm 分配器两者都接受，但同时使用时保留内存会一直增长直至占满；另有报告称在 gfx1201 上仍在使用的内存读回为零。单独使用都没问题。",
        "ROCm 上只保留 expandable_segments:True，且须在 torch 启动分配器之前设置。",
    ),
    bad='import os\n\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:128,expandable_segments:True"\n',
    good='import os\nimport torch\n\nif torch.version.hip is None:\n    os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "max_split_size_mb:128,expandable_segments:True"\n',
    needs=("max_split_size_mb",),
)
VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def stores(f: PyFile) -> Iterator[tuple[ast.AST, str, str]]:
    """Allocator settings that are stored, not only read, as (node, variable, text)."""
    for node, key, value in env_writes(f):
        text = text_of(value)
        if key in VARIABLES and text:
            yield value or node, key, text
    for call in f.calls(
        "torch.cuda.memory._set_allocator_settings",
        "torch._C._accelerator_setAllocatorSettings",
        "torch.cuda.memory.set_allocator_settings",
    ):
        text = text_of(argument(call, 0, "env"))
        if text:
            yield call.args[0], "allocator", text


def is_both(text: str) -> bool:
    return "max_split_size_mb" in text and bool(re.search(r"expandable_segments\s*:\s*True", text))


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, name, text in stores(f):
        if is_both(text):
            yield hit(node, name=name, value=text)


def _scan(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(r"\b(PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF)\s*[=: ]\s*[\"']?([^\s\"']+)"):
        if is_both(match.group(2)):
            yield entry_hit(f, entry, match.group(1), name=match.group(1), value=match.group(2))


check_docker = check_shell = check_yaml = check_make = _scan


def fix_python(node: ast.expr, f: PyFile, ctx: Context) -> Edit | EditRefusal:
    if not torch_is_bound(f.tree, node, at_import=f.at_import(node)):
        return EditRefusal(node.lineno, "torch is not imported before this line, and the setting must come first")
    return Edit(node.lineno, node.col_offset, f'("expandable_segments:True" if {ROCM} else {{old}})')
