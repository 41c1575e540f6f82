"""Device string that PyTorch does not use on ROCm."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX118",
    code="invented-device-string",
    severity=Severity.HIGH,
    phase=1,
    fix=Fix.SUGGEST,
    en=Text(
        "Device string that PyTorch does not use on ROCm",
        "{text}",
        "'rocm' does not parse; 'hip' parses, but ROCm tensors live on 'cuda'.",
        "Write 'cuda'.",
    ),
    zh=Text(
        "PyTorch 在 ROCm 上并不使用的设备字符串",
        "{text}",
        "'rocm' 无法解析；'hip' 能解析，但 ROCm 张量在 'cuda' 上。",
        "写作 'cuda'。",
    ),
    bad='import torch\n\nx = torch.zeros(3, device="hip")\n',
    good='import torch\n\nx = torch.zeros(3, device="cuda")\n',
    needs=("hip", "rocm"),
)
_DEVICE = re.compile(r"(hip|rocm)(:\d+)?")


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for call in f.nodes(ast.Call):
        name = f.call_name(call)
        last = name.rpartition(".")[2] or (call.func.attr if isinstance(call.func, ast.Attribute) else "")
        values: list[ast.expr | None] = []
        if name in ("torch.device", "torch.autocast", "torch.amp.autocast") or last in (
            "to",
            "set_default_device",
        ):
            values.append(call.args[0] if call.args else None)
        for kw in call.keywords:
            torchy = name.startswith("torch.") or last in ("to", "autocast", "load")
            if kw.arg in ("device", "map_location", "device_type") and (torchy or kw.arg == "map_location"):
                values.append(kw.value)
        for value in values:
            text = text_of(value)
            if text and _DEVICE.fullmatch(text) and value is not None:
                yield hit(value, text=repr(text))
