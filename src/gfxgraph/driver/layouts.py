"""Structs of the graph API as the runtimes lay them out on x86-64.

HIP's and CUDA's kernel-node structs have the same members in a different order and size, so they
must never be interchanged. HIP sorts members by name and has kept that from 5.2 to 7.15.

Source: compiled sizes and offsets in decision 0040; tests/unit/driver/test_driver_calls.py.
"""

from __future__ import annotations

from ctypes import Structure, c_int, c_size_t, c_uint, c_ulonglong, c_void_p

from gfxgraph.types import NodeKind

Dim3 = c_uint * 3


class HipKernelNodeParams(Structure):
    """hipKernelNodeParams: 64 bytes."""

    _fields_ = [
        ("block", Dim3),
        ("extra", c_void_p),
        ("func", c_void_p),
        ("grid", Dim3),
        ("params", c_void_p),
        ("shared_nbytes", c_uint),
    ]


class CudaKernelNodeParams(Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2: 72 bytes. ``kern`` is used where ``func`` is null."""

    _fields_ = [
        ("func", c_void_p),
        ("grid", Dim3),
        ("block", Dim3),
        ("shared_nbytes", c_uint),
        ("params", c_void_p),
        ("extra", c_void_p),
        ("kern", c_void_p),
        ("ctx", c_void_p),
    ]


class CudaConditionalNodeParams(Structure):
    """CUgraphNodeParams, 256 bytes, with the members of CUDA_CONDITIONAL_NODE_PARAMS."""

    _fields_ = [
        ("type", c_int),
        ("reserved0", c_int * 3),
        ("handle", c_ulonglong),
        ("kind", c_int),
        ("n_bodies", c_uint),
        ("bodies", c_void_p),
        ("ctx", c_void_p),
        ("reserved1", c_ulonglong * 26),
    ]


CONDITIONAL_NODE = 13
CONDITION_IF, CONDITION_WHILE = 0, 1


# Markers in the ``extra`` array of a launch whose arguments are one packed buffer.
LAUNCH_BUFFER_POINTER = 1
LAUNCH_BUFFER_SIZE = 2

_COMMON = (
    NodeKind.KERNEL,
    NodeKind.MEMCPY,
    NodeKind.MEMSET,
    NodeKind.HOST,
    NodeKind.CHILD_GRAPH,
    NodeKind.EMPTY,
    NodeKind.WAIT_EVENT,
    NodeKind.EVENT_RECORD,
)
_SEMAPHORES = (NodeKind.OTHER, NodeKind.OTHER)
_MEMORY = (NodeKind.MEM_ALLOC, NodeKind.MEM_FREE)

# 12 batch memory operation, 13 conditional.
CUDA_NODE_KINDS = dict(enumerate(_COMMON + _SEMAPHORES + _MEMORY))
# 12 and 13 are copies from and to a symbol, 14 a batch memory operation (6.4): as numbered since HIP 5.5.
HIP_NODE_KINDS = dict(enumerate(_COMMON + _SEMAPHORES + _MEMORY + (NodeKind.MEMCPY, NodeKind.MEMCPY)))

assert c_size_t(-1).value == 2**64 - 1, "the layouts here are those of 64-bit systems"
