"""A model in our session over ONNX Runtime's ROCm provider: batches of several sizes; prints one line of JSON."""

from __future__ import annotations

import json

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from gfxgraph.adapters.onnxruntime import GraphedSession

INNER, COLUMNS = 16, 8
weight = np.random.default_rng(9).normal(size=(INNER, COLUMNS)).astype(np.float32)
graph = helper.make_graph(
    [helper.make_node("MatMul", ["x", "weight"], ["product"]), helper.make_node("Tanh", ["product"], ["y"])],
    "model",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", INNER])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", COLUMNS])],
    [numpy_helper.from_array(weight, "weight")],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
session = GraphedSession(model.SerializeToString())
worst = 0.0
for seed, n in enumerate((4, 2, 2, 4, 2, 4, 4)):
    x = np.random.default_rng(seed).normal(size=(n, INNER)).astype(np.float32)
    (y,) = session.run(None, {"x": x})
    worst = max(worst, float(np.abs(y - np.tanh(x.astype(np.float64) @ weight)).max()))
print(json.dumps({"worst": worst, **session.stats()}))
