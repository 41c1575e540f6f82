"""Captures in Python: waiting, reading and compiling in them, and a patch that changes nothing."""

from __future__ import annotations

from gfxgraph_port.rule_api import *

_WAITS = re.compile(
    r"print|torch\.(?:cuda\.(?:synchronize|empty_cache|initial_seed)|initial_seed|(?:cuda\.)?(?:random\.)?"
    r"(?:get_rng_state(?:_all)?|set_rng_state|fork_rng))"
)
_METHODS = frozenset({"item", "cpu", "numpy", "tolist", "synchronize", "nonzero", "wait"})


def captured_calls(f: PyFile) -> Iterator[tuple[ast.With, ast.Call]]:
    """Calls that run in ``with torch.cuda.graph(...)``: not those of functions defined there."""
    for block in f.nodes(ast.With):
        if any(f.call_name(i.context_expr) in ("torch.cuda.graph", "torch.cuda.graphs.graph") for i in block.items):
            yield from ((block, n) for n in inside(f, block) if isinstance(n, ast.Call))


def sync_in_capture(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for _, call in captured_calls(f):
        name = f.call_name(call)
        method = isinstance(call.func, ast.Attribute) and call.func.attr in _METHODS
        if _WAITS.fullmatch(name) or (method and not name.startswith(("os.", "np."))):
            yield hit(call, expr=f.source(call)[:80])


def capture_before_warmup(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for block, call in captured_calls(f):
        name, scope = f.call_name(call), f.scope(block)
        made = [v for v in f.bindings(scope).get(name, ()) if isinstance(v, ast.Call)]
        compiled = [v.lineno for v in made if f.call_name(v) == "torch.compile"]
        if compiled and not any(
            max(compiled) < c.lineno < block.lineno and f.scope(c) is scope for c in f.calls(name)
        ):
            yield hit(call, name=name)


def ineffective_rng_patch(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, name, _ in assigned(f):
        if name.endswith(".preserve_global_state") and re.match(
            r"torch\._dynamo\.|convert_frame\.|dynamo_utils\.", name
        ):
            yield hit(node, name=name)
    for call in f.calls("setattr"):
        if len(call.args) >= 2 and text_of(call.args[1]) == "preserve_global_state":
            yield hit(call, name="setattr(..., 'preserve_global_state')")
