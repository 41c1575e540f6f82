"""Torch.compile is replaced by a wrapper that sets mode."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX607",
    code="compile-monkeypatch",
    severity=Severity.MEDIUM,
    phase=6,
    fix=Fix.SUGGEST,
    tier="extended",
    en=Text(
        "torch.compile is replaced by a wrapper that sets mode",
        "{expr}",
        'Calls that pass options= then fail with "Either mode or options can be specified", and names imported earlier escape the wrapper.',
        'Change the call sites; or set mode only where it was "reduce-overhead" and options is absent.',
    ),
    zh=Text(
        "torch.compile 被一个总会设置 mode 的包装替换",
        "{expr}",
        '传入 options= 的调用会报 "Either mode or options can be specified"，而更早导入的名称绕过了包装。',
        '修改各调用点；或仅在 mode 为 "reduce-overhead" 且没有 options 时才设置。',
    ),
    bad='import torch\n\n_real = torch.compile\n\n\ndef patched(*args, **kwargs):\n    kwargs["mode"] = "default"\n    return _real(*args, **kwargs)\n\n\ntorch.compile = patched\n',
    good="import torch\n\n\ndef build(f):\n    return torch.compile(f)\n",
    needs=("torch.compile",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, name, value in assigned(f):
        if name != "torch.compile":
            continue
        bodies = f.lookup(value.id, value) if isinstance(value, ast.Name) else [value]
        for body in bodies:
            text = f.source(body)
            if re.search(r"mode[\"']?\]?\s*=|setdefault\(\s*[\"']mode", text) and "options" not in text:
                yield hit(node, expr=f.source(node))
