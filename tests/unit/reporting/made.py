"""A process's report of any size, made without a device: layers of nodes as a transformer has them."""

from __future__ import annotations

from typing import Any

from gfxgraph.core.counters import Counters
from gfxgraph.reporting.inspection import InspectedCapture, InspectedNode, InspectedStep, Inspection, TensorUse

KERNELS = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::Half>, std::array<char*, 3> >"
    "(int, at::native::CUDAFunctor_add<c10::Half>, std::array<char*, 3ul>)",
    "Cijk_Alik_Bljk_HHS_BH_MT64x64x32_MI16x16x16x1_SN_1LDSB0_AMAS3_BL1_BS1_EPS1_GRVW8",
    "triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_7",
    "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::Half, float, c10::Half>(c10::Half*, int)",
)


def node(index: int, per_layer: int) -> InspectedNode:
    at = index % per_layer
    kernel = KERNELS[at % len(KERNELS)]
    tensors = tuple(
        TensorUse("input", f"layers.{index // per_layer}.w{k}", "[1024, 1024] float16", index * 4096 + k, 1 << 21)
        for k in range(3)
    )
    return InspectedNode(
        index=index,
        kind="kernel",
        kernel=kernel,
        name=kernel.split("<")[0].rsplit("::", 1)[-1],
        op=("aten::add", "aten::mm", "a call outside torch", "aten::_softmax")[at % 4],
        where=f"/models/llama/modeling.py:{100 + at}",
        grid=(index % 64 + 1, 1, 1),
        block=(256, 1, 1),
        shared_nbytes=16384,
        nbytes=6 << 20,
        after=(index - 1,) if index else (),
        tensors=tensors,
    )


def process(n_nodes: int = 100, per_layer: int = 25) -> dict[str, Any]:
    """What one process leaves: a graph of ``n_nodes``, a split, memory."""
    nodes = tuple(node(i, per_layer) for i in range(n_nodes))
    segment = InspectedStep(
        "graph", where=nodes[0].where, n_operations=n_nodes, nodes=nodes, n_nodes=n_nodes, driver_nbytes=4 << 20
    )
    split = InspectedStep(
        "read",
        "Tensor.item",
        "/models/llama/generate.py:88",
        "a value read by the host",
        "keep the value a tensor </script>",
    )
    last = InspectedStep("graph", n_operations=1, nodes=(nodes[0],), n_nodes=1)
    inputs = (TensorUse("", "input_ids", "[1, 1] int64", 4096, 8),)
    capture = InspectedCapture(
        "decode", nodes[0].where, (segment, split, last), inputs, inputs, (0, 1), 64 << 20, 900
    )
    counters = Counters()
    counters.event("split", "a value read by the host", "Tensor.item", "/models/llama/generate.py:88")
    row = {
        "where": nodes[0].where,
        "n_nodes": n_nodes + 1,
        "n_replays": 900,
        "pool": "(0, 1)",
        "driver_bytes": 4 << 20,
    }
    device = {"device": "cuda:0", "cap_bytes": 1 << 30, "graph_bytes": 64 << 20, "captures": []}
    bucket = {"function": "decode", "signature": "batch=8", "input_bytes": 1 << 20, "output_bytes": 1 << 20}
    bucket |= {"pool_bytes": 60 << 20, "n_graphs": 1, "n_calls": 30, "why_eager": ""}
    return {
        "pid": 4711,
        "argv": ["generate.py", "--model", "llama"],
        "cwd": "/models",
        "at": 1_790_000_000.0,
        "platform": "rocm",
        "stats": counters.snapshot() | {"enabled_at": 0.0, "replay_count": 900, "capture_count": 1},
        "memory": {
            "devices": [device], "graphs": [row], "pools": {"(0, 1)": 64 << 20}, "driver_bytes": 4 << 20,
        },
        "inspection": {**Inspection((capture,), (), "hip 7.2.26015").as_dict(), "left_out": 0},
    }  # fmt: skip
