"""The GPU is asked before visibility is set, or the vendor is read from its name."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX121",
    code="device-query-before-visibility",
    severity=Severity.MEDIUM,
    phase=1,
    fix=Fix.SUGGEST,
    en=Text(
        "The GPU is asked before visibility is set, or the vendor is read from its name",
        "{expr}",
        "The first question starts the runtime and fixes the list of devices, so a visibility variable set later is ignored. A name test fails with no device present, and market names differ by driver.",
        "torch.version.hip for the vendor; set visibility first; amdsmi where the architecture is needed without starting the runtime.",
    ),
    zh=Text(
        "在设置可见设备之前询问 GPU，或根据名称判断厂商",
        "{expr}",
        "首次询问会启动运行时并固定设备列表，之后设置的可见变量无效。没有设备时名称判断会失败，且市场名称随驱动而变。",
        "厂商看 torch.version.hip；先设置可见设备；需要在不启动运行时的情况下得知架构时用 amdsmi。",
    ),
    bad='import os\nimport torch\n\nname = torch.cuda.get_device_name()\nos.environ["HIP_VISIBLE_DEVICES"] = "0"\n',
    good='import os\n\nos.environ["HIP_VISIBLE_DEVICES"] = "0"\nimport torch\n\nname = torch.cuda.get_device_name()\n',
    needs=("visible_devices", "amd", "radeon", "instinct", "get_device"),
)
_QUERIES = tuple(
    f"torch.cuda.{n}" for n in ("get_device_name", "get_device_properties", "get_device_capability", "current_device")
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    writes = [
        (f.scope(node), getattr(node, "lineno", 0))
        for node, key, _ in env_writes(f)
        if key in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    ]
    for call in f.calls(*_QUERIES):
        if any(scope is f.scope(call) and line > call.lineno for scope, line in writes):
            yield hit(call, expr=f.source(call)[:100])
    for node in f.nodes(ast.Compare):
        if any(
            text_of(s) and re.search(r"\bAMD\b|Radeon|Instinct", text_of(s) or "")
            for s in [node.left, *node.comparators]
        ):
            if "get_device_name" in f.source(node):
                yield hit(node, expr=f.source(node)[:100])
