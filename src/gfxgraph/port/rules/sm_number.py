"""The number of the multiprocessor is an index."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX331",
    code="sm-number",
    severity=Severity.HIGH,
    phase=3,
    tier="extended",
    confidence="verified",
    en=Text(
        "The number of the multiprocessor is an index",
        "{name}",
        "On AMD it is packed from engine and unit, with gaps: it goes beyond multiProcessorCount, so a pool of that many slots is written past its end, silently.",
        "Size the pool by the largest number that a probe kernel sees, or index by the block.",
    ),
    zh=Text(
        "用多处理器编号作索引",
        "{name}",
        "AMD 上该编号由引擎号与单元号拼成，中间有空缺，会超过 multiProcessorCount；按该数量分配的缓冲池会被悄悄越界写入。",
        "按探测核函数见到的最大编号分配，或改用块编号作索引。",
    ),
    path="smid.cu",
    bad="__global__ void k(float* pool) { pool[__smid() * 64] = 0; }\n",
    good="__global__ void k(float* pool) { pool[blockIdx.x * 64] = 0; }\n",
    needs=("smid",),
)


check_cpp = lines_matching(r"\b(?:__smid|get_?smid|__nvvm_read_ptx_sreg_smid)\s*\(|%%?smid\b")
