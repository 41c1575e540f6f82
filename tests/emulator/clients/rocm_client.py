"""AMD's own Python bindings: a fill, a copy and a kernel that hiprtc compiles, captured; prints one line of JSON."""

from __future__ import annotations

import ctypes
import json
from importlib.metadata import version

import numpy as np
from rocm.bindings import hip, hiprtc

N, REPLAYS = 600, 3
SOURCE = b"""
extern "C" __global__ void mix(const float* x, const float* y, float* out, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) out[i] = 2.0f * x[i] + y[i];
}"""


def checked(answer):
    status, *rest = answer if isinstance(answer, tuple) else (answer,)
    assert int(status) == 0, status
    return rest[0] if len(rest) == 1 else rest


program = checked(hiprtc.hiprtcCreateProgram(SOURCE, b"mix", 0, None, None))
checked(hiprtc.hiprtcCompileProgram(program, 1, [b"--offload-arch=gfx1030"]))
code = bytearray(checked(hiprtc.hiprtcGetCodeSize(program)))
checked(hiprtc.hiprtcGetCode(program, code))
module = checked(hip.hipModuleLoadData(code))
kernel = checked(hip.hipModuleGetFunction(module, b"mix"))
x, y, out = (checked(hip.hipMalloc(4 * N)) for _ in range(3))
stream = checked(hip.hipStreamCreateWithFlags(1))
checked(hip.hipStreamBeginCapture(stream, hip.hipStreamCaptureMode.hipStreamCaptureModeGlobal))
checked(hip.hipMemsetAsync(out, 0, 4 * N, stream))
checked(hip.hipMemcpyAsync(y, x, 4 * N, hip.hipMemcpyKind.hipMemcpyDeviceToDevice, stream))
checked(
    hip.hipModuleLaunchKernel(
        kernel,
        gridDimX=(N + 63) // 64,
        gridDimY=1,
        gridDimZ=1,
        blockDimX=64,
        blockDimY=1,
        blockDimZ=1,
        sharedMemBytes=0,
        stream=stream,
        kernelParams=None,
        extra=(x, y, out, ctypes.c_int(N)),
    )
)
graph = checked(hip.hipStreamEndCapture(stream))
graph_exec = checked(hip.hipGraphInstantiateWithFlags(graph, 0))
values = []
for seed in range(REPLAYS):
    given = np.random.default_rng(seed).normal(size=N).astype(np.float32)
    checked(hip.hipMemcpy(x, given, given.nbytes, hip.hipMemcpyKind.hipMemcpyHostToDevice))
    checked(hip.hipGraphLaunch(graph_exec, stream))
    checked(hip.hipStreamSynchronize(stream))
    made = np.zeros(N, np.float32)
    checked(hip.hipMemcpy(made, out, made.nbytes, hip.hipMemcpyKind.hipMemcpyDeviceToHost))
    assert np.abs(made - 3 * given.astype(np.float64)).max() < 1e-5
    values.append(made.tobytes().hex())
print(json.dumps({"client": version("rocm-bindings-hip"), "values": values}))
