"""What to write in place of an operation that no graph records: by operation, else by the kind of the refusal."""

from __future__ import annotations

from gfxgraph.core.unsafe import BY_NAME, Kind

NO_CAPTURE = "no capture covers this line"
NOT_REPLAYED = "this line is in a graph, and ran outside of it: a warm-up, or a call that was not a replay"
WHY_ZH = {
    NO_CAPTURE: "没有捕获覆盖这一行",
    NOT_REPLAYED: "这一行在图中，但这次在图外执行：预热，或者不是重放的调用",
}
_BY_OP: dict[str, tuple[str, str]] = {
    "aten::_local_scalar_dense": (
        "keep the value a tensor: torch.where in place of `if`, a tensor index in place of an int, .item() after the "
        "graph",
        "让该值保持为张量：用 torch.where 代替 `if`，用张量索引代替整数，把 .item() 移到图之后",
    ),
    "aten::nonzero": (
        "keep the full size and a mask: torch.where(mask, x, 0), or torch.nonzero_static(x, size=n)",
        "保持完整大小并使用掩码：torch.where(mask, x, 0)，或 torch.nonzero_static(x, size=n)",
    ),
    "aten::masked_select": (
        "keep the full size: torch.where(mask, x, 0), and sum or index with the mask later",
        "保持完整大小：torch.where(mask, x, 0)，之后再用掩码求和或索引",
    ),
    "aten::index": (
        "an index tensor on the device, not a mask or host list: x.index_select(0, ids), torch.where(mask, x, 0)",
        "使用设备上的索引张量，而不是掩码或主机列表：x.index_select(0, ids)、torch.where(mask, x, 0)",
    ),
    "aten::index_put_": (
        "x.masked_fill_(mask, value), or torch.where(mask, value, x); make index tensors on the device",
        "x.masked_fill_(mask, value)，或 torch.where(mask, value, x)；在设备上创建索引张量",
    ),
    "aten::repeat_interleave": (
        "pass output_size=: torch.repeat_interleave(x, repeats, output_size=n)",
        "传入 output_size=：torch.repeat_interleave(x, repeats, output_size=n)",
    ),
    "aten::bincount": (
        "torch.zeros(n, device=...).scatter_add_(0, x, ones): its size is known beforehand",
        "torch.zeros(n, device=...).scatter_add_(0, x, ones)：其大小事先已知",
    ),
    "aten::equal": (
        "(a == b).all() stays on the device; read it after the graph", "(a == b).all() 留在设备上；图之后再读取"),
    "torch.cuda.CUDAGraph.replay": (
        "gfxgraph.compose puts one graph into another; or replay them one after the other",
        "用 gfxgraph.compose 把一个图放入另一个；或依次重放",
    ),
    "torch.cuda.Stream.wait_event": (
        "record the event inside the capture, or wait before it begins",
        "在捕获内记录事件，或在捕获开始前等待",
    ),
}  # fmt: skip
_BY_KIND: dict[Kind, tuple[str, str]] = {
    Kind.HOST_READ: _BY_OP["aten::_local_scalar_dense"],
    Kind.DYNAMIC_SHAPE: _BY_OP["aten::nonzero"],
    Kind.HOST_COPY: (
        "make the tensor on the device (device=x.device), or pin it and copy with non_blocking=True; read results "
        "after the graph",
        "直接在设备上创建张量（device=x.device），或使用页锁定内存并以 non_blocking=True 复制；图之后再读取结果",
    ),
    Kind.SYNC: (
        "move it before or after the captured function; where it is the operation's own check, use a variant without "
        "it (linalg.*_ex with check_errors=False)",
        "移到被捕获函数之前或之后；若为操作自身的检查，请使用不带检查的变体（linalg.*_ex，check_errors=False）",
    ),
    Kind.GENERATOR: (
        "graph.register_generator_state(generator) before the capture; seed outside of it",
        "捕获之前调用 graph.register_generator_state(generator)；在捕获之外设定种子",
    ),
    Kind.NOT_RECORDED: (
        "do it before or after the captured function",
        "在被捕获函数之前或之后执行",
    ),
}


def rewrite(op: str, lang: str = "en", kind: str = "") -> str:
    """What to write instead of ``op``; "" where nothing is known.

    Args:
        kind: the refusal's kind as ``core.unsafe.Kind`` writes it, for operations that the table does not name.
    """
    found = _BY_OP.get(op)
    if found is None and op in BY_NAME:
        found = _BY_KIND[BY_NAME[op].kind]
    if found is None and kind in set(Kind):
        found = _BY_KIND[Kind(kind)]
    return found[lang == "zh"] if found is not None else ""


def why_unsafe(op: str) -> str:
    """Why no graph records ``op``; "" where the table does not know it."""
    row = BY_NAME.get(op)
    return f"{row.kind.value}: {row.reason}" if row is not None else ""
