"""A model in ONNX Runtime's ROCm provider with its own graph, ``enable_hip_graph``; prints one line of JSON.

A product, a bias, tanh and a softmax: kernels of the provider and of rocBLAS, from buffers that stay in place. Its
reductions over a wavefront (layer norm, means) are wrong on the emulated gfx1030, without a graph too.
"""

from __future__ import annotations

import ctypes
import json

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

ROWS, INNER, COLUMNS, REPLAYS = 4, 16, 8, 3
hip = ctypes.CDLL("libamdhip64.so.7")


def call(name, *args):
    status = getattr(hip, name)(*args)
    assert status == 0, (name, status)


def allocated(array):
    place = ctypes.c_void_p()
    call("hipMalloc", ctypes.byref(place), ctypes.c_size_t(array.nbytes))
    return place


def copied(to, source, n_bytes, kind):
    call("hipMemcpy", to, source, ctypes.c_size_t(n_bytes), kind)


weight = np.random.default_rng(9).normal(size=(INNER, COLUMNS)).astype(np.float32)
bias = np.linspace(-1, 1, COLUMNS, dtype=np.float32)
graph = helper.make_graph(
    [
        helper.make_node("MatMul", ["x", "weight"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["bounded"]),
        helper.make_node("Softmax", ["bounded"], ["y"]),
    ],
    "model",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [ROWS, INNER])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [ROWS, COLUMNS])],
    [numpy_helper.from_array(value, name) for name, value in (("weight", weight), ("bias", bias))],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(
    model.SerializeToString(), options, providers=[("ROCMExecutionProvider", {"enable_hip_graph": "1"})]
)
x, y = np.zeros((ROWS, INNER), np.float32), np.zeros((ROWS, COLUMNS), np.float32)
x_place, y_place = allocated(x), allocated(y)
binding = session.io_binding()
binding.bind_input("x", "cuda", 0, np.float32, x.shape, x_place.value)
binding.bind_output("y", "cuda", 0, np.float32, y.shape, y_place.value)
values = []
for seed in range(REPLAYS):
    x[:] = np.random.default_rng(seed).normal(size=x.shape)
    copied(x_place, x.ctypes.data_as(ctypes.c_void_p), x.nbytes, 1)
    session.run_with_iobinding(binding)
    call("hipDeviceSynchronize")
    copied(y.ctypes.data_as(ctypes.c_void_p), y_place, y.nbytes, 2)
    bounded = np.tanh(x.astype(np.float64) @ weight + bias)
    want = np.exp(bounded) / np.exp(bounded).sum(1, keepdims=True)
    assert np.abs(y - want).max() < 1e-5, np.abs(y - want).max()
    values.append(y.tobytes().hex())
print(json.dumps({"client": onnxruntime.__version__, "values": values}))
