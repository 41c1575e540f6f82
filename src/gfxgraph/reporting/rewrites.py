"""Suggested replacements for operations that cannot be captured: by operation, else by the kind of refusal."""

from __future__ import annotations

from gfxgraph.core.unsafe import BY_NAME, Kind

NO_CAPTURE = "no capture covers this line"
NOT_REPLAYED = "this line is in a graph, and ran outside of it: a warm-up, or a call that was not a replay"
INSIDE = "inside a replay"
SPLIT = "the capture was split"
STAND_IN = "a replay was compared with eager, or its launch failed"
FOR_A_CALL = "done for a graphed call: its arguments or results are copied, or a bucket is proved"
_ZH = {
    FOR_A_CALL: "为 graphed 调用而做：复制其参数或结果，或者验证一个桶",
    NO_CAPTURE: "没有捕获覆盖这一行",
    NOT_REPLAYED: "这一行在图中，但这次在图外执行：预热，或者不是重放的调用",
    INSIDE: "在一次重放之内",
    SPLIT: "捕获被切分",
    STAND_IN: "重放与即时执行做了比较，或其启动失败",
    Kind.HOST_READ: "主机读取了一个值",
    Kind.DYNAMIC_SHAPE: "形状取决于数据",
    Kind.HOST_COPY: "与可分页主机内存之间的复制",
    Kind.SYNC: "等待设备",
    Kind.GENERATOR: "未在图中注册的随机数生成器",
    Kind.NOT_RECORDED: "运行时立即执行而不录制的工作",
    "it hands a device value to Python, which a replay does not run":
        "它把设备上的值交给 Python，而重放不执行 Python",
    "it hands the outcome of a comparison to Python, which a replay does not run":
        "它把比较结果交给 Python，而重放不执行 Python",
    "the size of its result depends on values, so the host must wait for them":
        "结果的大小取决于数值，主机必须等待这些数值",
    "a mask is turned into indices on the host, or the index itself comes from the host":
        "掩码在主机上被转换为索引，或者索引本身来自主机",
    "its implementation waits for the device to check arguments or results on the host":
        "其实现会等待设备，以便在主机上检查参数或结果",
    "the host checks that the standard deviations are not negative": "主机会检查标准差是否为负",
    "the copy would be recorded with a host address that is not kept, or has to wait for the device":
        "录制的复制会带有一个不会保留的主机地址，或者必须等待设备",
    "it waits for the device, and nothing recorded has run yet": "它等待设备，而录制的工作尚未执行",
    "the event was recorded outside the capture: CUDA refuses the wait, HIP records no edge for it":
        "事件是在捕获之外记录的：CUDA 拒绝该等待，HIP 不为它录制边",
    "a graph launched on a capturing stream is refused by CUDA and run at once by HIP":
        "在正在捕获的流上启动图：CUDA 拒绝，HIP 立即执行",
    "its random numbers would be the same at every replay": "每次重放的随机数都会相同",
    "it sets or reads the generator's state, which a replay would not do again":
        "它设置或读取生成器的状态，重放不会再次这样做",
    "HIP has runtime calls that return success in a capture and record nothing (peer copies, cooperative launches "
    "before 7.2, stream memory operations before 10.0)":
        "HIP 有一些运行时调用在捕获中返回成功却什么也不录制（设备间复制、7.2 之前的协作启动、10.0 之前的流内存操作）",
    "graph captured at": "捕获于",
    "graph execs": "图执行对象",
    "pools of graphs": "图内存池",
    "tensors without a name": "没有名称的张量",
    "torch's cache, and tensors that Python does not hold": "torch 的缓存，以及不由 Python 持有的张量",
    "the runtime, libraries, other processes": "运行时、库、其他进程",
    " guards on ": " 个守卫，位于 ",
}  # fmt: skip
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
        "gfxgraph.Composition puts one graph into another; or replay them one after the other",
        "用 gfxgraph.Composition 把一个图放入另一个；或依次重放",
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


def in_chinese() -> list[tuple[str, str]]:
    """The page's texts about operations, in both languages; longest first, as one may contain another."""
    known = {**_ZH, **dict(_BY_OP.values()), **dict(_BY_KIND.values())}
    return sorted(((str(en), zh) for en, zh in known.items()), key=lambda pair: -len(pair[0]))


def rewrite(op: str, kind: str = "") -> str:
    """What to write instead of ``op``; "" if nothing is known.

    Args:
        kind: the refusal's kind as ``core.unsafe.Kind`` writes it, for operations that are not in the table.
    """
    found = _BY_OP.get(op)
    if found is None and op in BY_NAME:
        found = _BY_KIND[BY_NAME[op].kind]
    if found is None and kind in set(Kind):
        found = _BY_KIND[Kind(kind)]
    return found[0] if found is not None else ""


def why_unsafe(op: str) -> str:
    """Why ``op`` cannot be captured; "" if the table does not know it."""
    row = BY_NAME.get(op)
    return f"{row.kind.value}: {row.reason}" if row is not None else ""
