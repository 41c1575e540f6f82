"""Kernels that Triton compiles, loaded and captured as a program without torch would: through libamdhip64 itself.

A product by tl.dot and a softmax behind it, in one captured graph; prints one line of JSON.
"""

from __future__ import annotations

import ctypes
import json
from ctypes import byref, c_int, c_size_t, c_void_p

import numpy as np
import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

ROWS, COLUMNS, INNER, WARPS, REPLAYS = 16, 32, 48, 4, 3


@triton.jit
def product(a, b, c, n_inner, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr):
    row, column, step = tl.arange(0, ROWS)[:, None], tl.arange(0, COLUMNS)[None, :], tl.arange(0, STEP)
    added = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, n_inner, STEP):
        left = tl.load(a + row * n_inner + start + step[None, :])
        right = tl.load(b + (start + step[:, None]) * COLUMNS + column)
        added += tl.dot(left, right)
    tl.store(c + row * COLUMNS + column, added)


@triton.jit
def softmax(x, y, COLUMNS: tl.constexpr):
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    v = tl.load(x + at)
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + at, e / tl.sum(e, axis=0))


def opened():
    for name in ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"):
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            missing = error
    raise missing


hip = opened()


def call(name, *args):
    status = getattr(hip, name)(*args)
    assert status == 0, (name, status)


def compiled(kernel, signature, constants):
    source = ASTSource(kernel, {**signature, **dict.fromkeys(constants, "constexpr")}, constants)
    made = triton.compile(source, target=GPUTarget("hip", "gfx1030", 32), options={"num_warps": WARPS})
    module, function = c_void_p(), c_void_p()
    call("hipModuleLoadData", byref(module), made.asm["hsaco"])
    call("hipModuleGetFunction", byref(function), module, made.metadata.name.encode())
    return function, made.metadata.shared


def launch(kernel, blocks, stream, *args):
    function, shared = kernel
    given = [*args, c_void_p(), c_void_p()]  # Triton's own two
    slots = (c_void_p * len(given))(*(ctypes.addressof(each) for each in given))
    call("hipModuleLaunchKernel", function, blocks, 1, 1, 32 * WARPS, 1, 1, shared, stream, slots, None)


def buffer(nbytes):
    made = c_void_p()
    call("hipMalloc", byref(made), c_size_t(nbytes))
    return made


half, single = 2, 4
product_kernel = compiled(
    product,
    {"a": "*fp16", "b": "*fp16", "c": "*fp32", "n_inner": "i32"},
    {"ROWS": ROWS, "COLUMNS": COLUMNS, "STEP": 16},
)
softmax_kernel = compiled(softmax, {"x": "*fp32", "y": "*fp32"}, {"COLUMNS": COLUMNS})
a, b = buffer(ROWS * INNER * half), buffer(INNER * COLUMNS * half)
c, y = buffer(ROWS * COLUMNS * single), buffer(ROWS * COLUMNS * single)
stream, graph, graph_exec = c_void_p(), c_void_p(), c_void_p()
call("hipStreamCreateWithFlags", byref(stream), 1)
call("hipStreamBeginCapture", stream, 0)
launch(product_kernel, 1, stream, a, b, c, c_int(INNER))
launch(softmax_kernel, ROWS, stream, c, y)
call("hipStreamEndCapture", stream, byref(graph))
call("hipGraphInstantiate", byref(graph_exec), graph, None, None, c_size_t(0))
values = []
for seed in range(REPLAYS):
    draw = np.random.default_rng(seed)
    left, right = (
        draw.normal(size=(ROWS, INNER)).astype(np.float16),
        draw.normal(size=(INNER, COLUMNS)).astype(np.float16),
    )
    for place, array in ((a, left), (b, right)):
        call("hipMemcpy", place, array.ctypes.data_as(c_void_p), c_size_t(array.nbytes), 1)
    call("hipGraphLaunch", graph_exec, stream)
    call("hipStreamSynchronize", stream)
    made = np.empty((ROWS, COLUMNS), np.float32)
    call("hipMemcpy", made.ctypes.data_as(c_void_p), y, c_size_t(made.nbytes), 2)
    wanted = left.astype(np.float64) @ right.astype(np.float64)
    wanted = np.exp(wanted - wanted.max(-1, keepdims=True))
    assert np.abs(made - wanted / wanted.sum(-1, keepdims=True)).max() < 1e-5
    values.append(made.tobytes().hex())
print(json.dumps({"client": triton.__version__, "values": values}))
