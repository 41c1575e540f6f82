"""The host waits or reads inside a capture."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX702",
    code="sync-in-capture",
    severity=Severity.HIGH,
    phase=7,
    confidence="documented",
    en=Text(
        "The host waits or reads inside a capture",
        "{expr}",
        "No graph can record it; HIP does not always raise, and then replays a stale value.",
        "Move it out of the captured block.",
    ),
    zh=Text(
        "捕获期间主机等待或读取",
        "{expr}",
        "图无法记录它；HIP 不一定报错，随后重放的就是旧值。",
        "移出捕获块。",
    ),
    bad="import gfxgraph\nimport torch\n\ng = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(g):\n    n = x.sum().item()\n",
    good="import gfxgraph\nimport torch\n\ng = torch.cuda.CUDAGraph()\nwith torch.cuda.graph(g):\n    n = x.sum()\n",
    needs=("cuda.graph", "graph("),
)
_RNG = tuple(
    f"torch.{name}"
    for name in (
        "get_rng_state", "random.get_rng_state", "cuda.get_rng_state", "cuda.get_rng_state_all", "initial_seed",
        "cuda.initial_seed", "cuda.random.get_rng_state", "random.fork_rng", "cuda.set_rng_state", "set_rng_state",
    )
)  # fmt: skip
_METHODS = frozenset({"item", "cpu", "numpy", "tolist", "synchronize", "nonzero", "wait"})


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for block in captured_blocks(f):
        for node in inside(f, block):
            if isinstance(node, ast.Call):
                name = f.call_name(node)
                attr = node.func.attr if isinstance(node.func, ast.Attribute) else ""
                if name in ("torch.cuda.synchronize", "torch.cuda.empty_cache", "print", *_RNG) or (
                    attr in _METHODS and not name.startswith(("os.", "np."))
                ):
                    yield hit(node, expr=f.source(node)[:80])
