"""Which versions of which engines are tested, and which of their modules run as published."""

from __future__ import annotations

_SGLANG = "sglang.srt.model_executor"
REAL = {
    "vllm": (
        "vllm.compilation.counter",
        "vllm.compilation.cudagraph_pool",
        "vllm.compilation.cuda_graph",
        "vllm.compilation.breakable_cudagraph",
        "vllm.compilation.monitor",
    ),
    "sglang": (
        f"{_SGLANG}.cuda_graph_config",
        f"{_SGLANG}.runner.metadata_glue_graph",
        f"{_SGLANG}.runner.shape_key",
        f"{_SGLANG}.runner_backend.base_cuda_graph_backend",
        f"{_SGLANG}.runner_backend.breakable_cuda_graph_backend",
        f"{_SGLANG}.runner_backend.cuda_graph_dedup_mixin",
        f"{_SGLANG}.runner_backend.full_cuda_graph_backend",
        f"{_SGLANG}.runner_backend_utils",
        f"{_SGLANG}.runner_backend_utils.breakable_cuda_graph",
        f"{_SGLANG}.runner_backend_utils.breakable_cuda_graph.breakable_cuda_graph",
        f"{_SGLANG}.runner_backend_utils.breakable_cuda_graph.context",
        f"{_SGLANG}.runner_backend_utils.breakable_cuda_graph.cuda_utils",
        f"{_SGLANG}.runner_backend_utils.weak_ref_tensor",
        f"{_SGLANG}.runner_utils.pool",
        "sglang.srt.compilation.compilation_config",
        "sglang.srt.compilation.compilation_counter",
        "sglang.srt.compilation.compile_phase",
        "sglang.srt.compilation.cuda_piecewise_backend",
    ),
}
"""Modules that are the engine's own."""
VERSIONS = {"vllm": "0.33.0", "sglang": "0.5.23"}
