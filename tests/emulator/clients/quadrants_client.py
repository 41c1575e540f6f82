"""A kernel of quadrants whose loops become a graph, which it builds node by node; prints one line of JSON.

It opens its library with RTLD_DEEPBIND.
"""

from __future__ import annotations

import json

import numpy as np
import quadrants as qd

N, REPLAYS = 500, 3
qd.init(arch=qd.amdgpu, offline_cache=False)


@qd.kernel(graph=True)
def work(x: qd.types.ndarray(qd.f32, ndim=1), y: qd.types.ndarray(qd.f32, ndim=1)):
    for i in range(x.shape[0]):
        y[i] = x[i] * 2.0
    for i in range(x.shape[0]):
        y[i] = y[i] + 1.0
    for i in range(x.shape[0]):
        y[i] = y[i] * x[i]


x, y = qd.ndarray(qd.f32, (N,)), qd.ndarray(qd.f32, (N,))
values = []
for seed in range(REPLAYS):
    given = np.random.default_rng(seed).normal(size=N).astype(np.float32)
    x.from_numpy(given)
    work(x, y)
    qd.sync()
    made = y.to_numpy()
    wanted = given.astype(np.float64)
    assert np.abs(made - (2 * wanted + 1) * wanted).max() < 1e-4
    values.append(made.astype(np.float32).tobytes().hex())
print(json.dumps({"client": ".".join(map(str, qd.__version__)), "values": values}))
