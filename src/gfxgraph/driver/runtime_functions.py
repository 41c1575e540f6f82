"""The one list of runtime functions that the driver room calls, with their signatures.

A name on the left is ours; the symbols are the runtime's. A function without ``serves`` must be
there; one with it is optional, and where it is absent the methods named there are in the driver's
``missing``. Presence is asked of the library, never concluded from its version.

From libcuda only symbols whose signature is fixed are taken: its plain names keep their first
signature for ever, and ``_v2`` names theirs, unlike those of libcudart.
"""

from __future__ import annotations

from ctypes import c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from dataclasses import dataclass
from typing import Any

# One letter each, so that a signature fits on its line.
H = c_void_p  # a handle, or an address inside it
P = c_void_p  # a pointer to something we own
I = c_int  # noqa: E741
U = c_uint
L = c_ulonglong
N = c_size_t


@dataclass(frozen=True, slots=True)
class Function:
    name: str
    hip: str | None
    cuda: str | None
    args: tuple[Any, ...]
    serves: tuple[str, ...] = ()
    result: Any = c_int


F = Function

FUNCTIONS = (
    F("version", "hipRuntimeGetVersion", "cuDriverGetVersion", (P,)),
    F("error_name", "hipGetErrorName", None, (I,), result=c_char_p),
    F("error_name", None, "cuGetErrorName", (I, P)),
    F("last_error", "hipGetLastError", None, ()),
    # streams and captures
    F("begin_capture", "hipStreamBeginCapture", "cuStreamBeginCapture_v2", (H, I)),
    F("end_capture", "hipStreamEndCapture", "cuStreamEndCapture", (H, P)),
    F("capture_info", "hipStreamGetCaptureInfo_v2", "cuStreamGetCaptureInfo_v2", (H, P, P, P, P, P)),
    F(
        "update_dependencies",
        "hipStreamUpdateCaptureDependencies",
        "cuStreamUpdateCaptureDependencies",
        (H, P, N, U),
        ("wait_for",),
    ),
    F("synchronize", "hipStreamSynchronize", "cuStreamSynchronize", (H,)),
    F("exchange_mode", "hipThreadExchangeStreamCaptureMode", "cuThreadExchangeStreamCaptureMode", (P,), ("relaxed",)),
    # kernels of ours
    F("load_module", "hipModuleLoadData", "cuModuleLoadData", (P, P), ("copy_kernel",)),
    F("module_function", "hipModuleGetFunction", "cuModuleGetFunction", (P, H, P), ("copy_kernel",)),
    F(
        "launch_kernel",
        "hipModuleLaunchKernel",
        "cuLaunchKernel",
        (H, U, U, U, U, U, U, U, H, P, P),
        ("copy_kernel",),
    ),
    F("launch_kernel_ex", None, "cuLaunchKernelEx", (P, H, P, P), ("launch_attributes",)),
    # graphs
    F("graph_create", "hipGraphCreate", "cuGraphCreate", (P, U)),
    F("graph_destroy", "hipGraphDestroy", "cuGraphDestroy", (H,)),
    F("graph_nodes", "hipGraphGetNodes", "cuGraphGetNodes", (H, P, P)),
    F("graph_edges", "hipGraphGetEdges", "cuGraphGetEdges", (H, P, P, P)),
    F("graph_edges_v2", None, "cuGraphGetEdges_v2", (H, P, P, P, P), ("edge_data",)),
    F("add_empty", "hipGraphAddEmptyNode", "cuGraphAddEmptyNode", (P, H, P, N)),
    F("add_kernel", "hipGraphAddKernelNode", "cuGraphAddKernelNode_v2", (P, H, P, N, P)),
    F("child_graph", "hipGraphChildGraphNodeGetGraph", "cuGraphChildGraphNodeGetGraph", (H, P)),
    F("add_child", "hipGraphAddChildGraphNode", "cuGraphAddChildGraphNode", (P, H, P, N, H), ("add_child",)),
    F("context", None, "cuCtxGetCurrent", (P,), ("while_loop",)),
    F("condition", None, "cuGraphConditionalHandleCreate", (P, H, H, U, U), ("while_loop",)),
    F("add_node", None, "cuGraphAddNode", (P, H, P, N, P), ("while_loop",)),
    # nodes
    F("node_type", "hipGraphNodeGetType", "cuGraphNodeGetType", (H, P)),
    F("kernel_params", "hipGraphKernelNodeGetParams", "cuGraphKernelNodeGetParams_v2", (H, P)),
    # graph execs
    F("instantiate", "hipGraphInstantiateWithFlags", "cuGraphInstantiateWithFlags", (P, H, L)),
    F("exec_destroy", "hipGraphExecDestroy", "cuGraphExecDestroy", (H,)),
    F("launch", "hipGraphLaunch", "cuGraphLaunch", (H, H)),
    F("set_enabled", "hipGraphNodeSetEnabled", "cuGraphNodeSetEnabled", (H, H, U), ("set_node_enabled",)),
    F("get_enabled", "hipGraphNodeGetEnabled", "cuGraphNodeGetEnabled", (H, H, P), ("node_enabled",)),
    F(
        "exec_kernel_params",
        "hipGraphExecKernelNodeSetParams",
        "cuGraphExecKernelNodeSetParams_v2",
        (H, H, P),
        ("joined",),
    ),
    # kernels: names and parameter layouts
    F("stub_name", "hipKernelNameRefByPtr", None, (H, H), ("kernel_name",), result=c_char_p),
    F("func_name", "hipKernelNameRef", None, (H,), ("kernel_name",), result=c_char_p),
    F("func_name", None, "cuFuncGetName", (P, H), ("kernel_name",)),
    F("kern_name", None, "cuKernelGetName", (P, H), ("kernel_name",)),
    F("func_of_stub", "hipGetFuncBySymbol", None, (P, H), ("param_layout",)),
    F("func_param", "hipKernelGetParamInfo", "cuFuncGetParamInfo", (H, N, P, P), ("param_layout",)),
    F("kern_param", None, "cuKernelGetParamInfo", (H, N, P, P), ("param_layout",)),
)
