"""Every private name of torch that gfxgraph uses, by the feature that needs it.

Problem: torch renames what it does not promise, with each version, and a name that is gone must not end a program
that runs without us. Idea: the table has them all, and no other file may use one (``tools/check_torch_names.py``).
``torch_names.X`` is torch's object, looked up at its first use and kept; where this torch lacks it, a stand-in that
raises `MissingTorchName` at each use, so that our modules can be imported all the same. A feature asks ``why_off``
when it is first needed. Where it lacks a name it is off, and says so in one warning, in ``explain()`` and in
``gfxgraph doctor --why``; the call runs eagerly, or is captured without that feature.

A line is a name in torch, or ``X = name`` where its last part is taken or says little, and then:

    2.10+  -2.12   the versions that have it, if not all from 2.9 on; ``torch_names.X`` is None in others
    live           replaced by others, the simulator or a capture, or a number that changes: looked up at each use
    loaded         looked up only if the program has imported the module; None before, and where it is gone
    optional       None where it is gone: then there is nothing to do, or torch's public way costs more

Source: torch 2.9.1, 2.10, 2.11, 2.12.1, 2.13, 2.14.1; tests/unit/test_torch_names.py checks each line in the torch
installed.
"""

from __future__ import annotations

import functools
import importlib
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NoReturn

from gfxgraph.errors import MissingTorchName

TABLE = {
    "capture": """
        torch.ops._c10d_functional.wait_tensor optional
        torch._C._nn.linear
        torch._C._nn.scaled_dot_product_attention
        torch._C._cuda_synchronize live
        torch._C._accelerator_synchronizeDevice live
        torch._C._cuda_emptyCache live
        torch._C._host_emptyCache live optional
        torch._C._distributed_c10d.ProcessGroup._end_coalescing optional
        torch.cuda._utils._cuda_load_module loaded
        torch.cuda.jiterator._JittedFunction loaded
        torch.utils._python_dispatch._is_in_any_mode_without_ignore_compile_internals live
        torch.utils._python_dispatch._is_in_non_infra_torch_dispatch_mode live
        torch.utils._python_dispatch._is_in_torch_dispatch_mode live
        torch.cuda.graphs._global_replay_end_hooks 2.14+ live
        torch.cuda.graphs._global_replay_start_hooks 2.14+ live
        torch.Tensor._make_subclass
        torch.amp.GradScaler._lazy_init_scale_growth_tracker
        torch.optim.Optimizer._optimizer_step_code
        torch.utils._pytree.tree_map_only
        torch._neg_view
        torch._C._CUDAGraph live optional
        torch._C._DisableAutocast
        torch._C._DisableTorchDispatch
        torch._C._ExcludeDispatchKeyGuard
        torch._C._ForceDispatchKeyGuard
        torch._C._InferenceMode
        torch._C._RestorePythonTLSSnapshot
        torch._C._TorchDispatchModeKey
        torch._C._autograd._top_saved_tensors_default_hooks
        torch._C._construct_CUDA_Tensor_From_Storage_And_Metadata live
        torch._C._construct_storage_from_data_pointer live
        torch._C._cuda_beginAllocateCurrentThreadToPool live
        torch._C._cuda_clearCublasWorkspaces live optional
        torch._C._cuda_endAllocateToPool live
        torch._C._cuda_getCurrentRawStream live
        torch._C._cuda_releasePool live
        torch._C._dispatch_has_kernel
        torch._C._dispatch_has_kernel_for_dispatch_key
        torch._C._dispatch_tls_local_exclude_set
        torch._C._dispatch_tls_local_include_set
        torch._C._dynamo.eval_frame._FrameAction
        torch._C._dynamo.eval_frame._FrameExecStrategy
        torch._C._dynamo.eval_frame._debug_get_cache_entry_list
        torch._C._dynamo.eval_frame.set_code_exec_strategy
        torch._C._functorch.peek_interpreter_stack
        torch._C._get_dispatch_mode
        torch._C._get_function_stack_at
        torch._C._is_fwd_grad_enabled
        torch._C._is_torch_function_mode_enabled
        torch._C._len_torch_dispatch_stack
        torch._C._len_torch_function_stack
        torch._C._pop_torch_function_stack
        torch._C._push_on_torch_function_stack
        torch._C._set_fwd_grad_enabled
        torch._VF
        torch._dynamo.convert_frame.FRAME_COUNTER loaded live
        torch._dynamo.guards.CheckFunctionManager loaded
        torch._dynamo.convert_frame.input_codes loaded
        torch._inductor.output_code.CompiledFxGraph loaded
        torch._inductor.runtime.static_cuda_launcher.StaticallyLaunchedCudaKernel loaded
        torch._inductor.runtime.static_triton_launcher.StaticallyLaunchedTritonKernel loaded
        torch._ops.HigherOrderOperator
        torch._ops.OpOverload
        torch._C._storage_Use_Count
        torch.autograd._unsafe_preserve_version_counter
        torch.autograd.forward_ad._current_level live
        torch.autograd.profiler._is_profiler_enabled live
        torch.cuda.graphs._run_global_hooks 2.14+
        torch.cuda.memory._snapshot
        torch.jit._builtins._find_builtin
        torch.jit._builtins._register_builtin
        torch.utils._device._device_constructors
        torch.utils._python_dispatch.TorchDispatchMode
        torch.utils._python_dispatch._disable_current_modes
        torch.utils._python_dispatch._get_dispatch_stack_at
        torch.utils._python_dispatch._pop_mode
        torch.utils._python_dispatch._push_mode
        torch.utils._python_dispatch.set_is_in_mode_without_ignore_compile_internals 2.10+
        torch.utils._pytree.tree_leaves
    """,
    "torch.compile's graphs": """
        torch._TorchCompileInductorWrapper
    """,
    "graphed": """
        torch.nn.Module._call_impl
        torch._C._cuda_getDevice live
        torch._C._cuda_memoryStats live
        torch._C._dynamo.guards.TensorGuards
        torch._C._tensors_data_ptrs_at_indices_equal optional
        torch._foreach_copy_ live
        torch._ops.OpOverloadPacket
        torch.utils._device.DeviceContext
        torch.utils._pytree.SUPPORTED_NODES optional
    """,
    "fast path": """
        torch._C._dynamo.guards.GlobalStateGuard
        torch._C._dynamo.guards._empty_strided_cuda live optional
        torch._C._dynamo.guards._reinterpret_tensor optional
    """,
    "tracing": """
        torch._dynamo.OptimizedModule
        dynamo_config = torch._dynamo.config
        torch._dynamo.graph_bytecode_inputs.index_to_external_object_weakref loaded
        torch._dynamo.convert_frame.compile_lock loaded
        torch._dynamo.convert_frame.format_error_msg
        torch._dynamo.eval_frame.cached_backends
        torch._dynamo.exc.SkipFrame
        torch._dynamo.exc.Unsupported
        torch._dynamo.guards.GuardBuilder
        dynamo_optimize = torch._dynamo.optimize
        torch._dynamo.side_effects.AttributeMutationExisting
        torch._dynamo.side_effects.AttributeMutationNew
        torch._dynamo.side_effects.ValueMutationExisting
        torch._dynamo.side_effects.ValueMutationNew
        torch._dynamo.source.TempLocalSource 2.10+
        torch._dynamo.symbolic_convert.InstructionTranslator
        torch._dynamo.symbolic_convert.compare_op_handlers
        torch._dynamo.trace_rules
        dynamo_counters = torch._dynamo.utils.counters
        torch._dynamo.variables.ConstDictVariable
        torch._dynamo.variables.ConstantVariable
        torch._dynamo.variables.ListVariable
        torch._dynamo.variables.OptimizerVariable._set_capturable
        torch._dynamo.variables.SetVariable
        torch._dynamo.variables.SymNodeVariable
        torch._dynamo.variables.TensorVariable
        torch._dynamo.variables.TensorVariable._collect_backward_inputs 2.11+
        torch._dynamo.variables.TorchInGraphFunctionVariable._get_handlers
        torch._dynamo.variables.TupleVariable
        torch._dynamo.variables.UnknownVariable
        torch._dynamo.variables.UnspecializedNNModuleVariable
        torch._dynamo.variables.UserDefinedClassVariable
        torch._dynamo.variables.UserDefinedObjectVariable
        torch._dynamo.variables.UserFunctionVariable
        torch._dynamo.variables.base.VariableTracker
        torch._dynamo.variables.base.install_guard
        torch._dynamo.variables.builder.VariableBuilder._type_dispatch
        logger_call_method = torch._dynamo.variables.misc.LoggingLoggerVariable.call_method
        torch._dynamo.variables.misc.ObjectVariable 2.11+
        torch._guards.GuardSource
        torch._library.custom_ops.OPDEFS
        torch.fx._lazy_graph_module._LazyGraphModule
        torch._dynamo.symbolic_convert.InstructionTranslator.replace_tos_if_return_is_generator
        torch._dynamo.symbolic_convert.InstructionTranslatorBase._format_value
        torch._dynamo.symbolic_convert.InstructionTranslatorBase.maybe_has_backedge
        torch._dynamo.side_effects.SideEffects.store_attr
        torch._dynamo.types.ConvertFrameReturn
        torch._dynamo.utils.is_int_specialization_case
        builders_int_specialization = torch._dynamo.variables.builder.is_int_specialization_case
        torch._dynamo.variables.builder.is_from_closure_source
        torch._dynamo.variables.builder.VariableBuilder._wrap_lazy_constant 2.11+
        torch._dynamo.variables.lazy.LazyConstantVariable.supported_types 2.11+
        torch._dynamo.variables.BuiltinVariable.call_isinstance
        torch._dynamo.variables.BuiltinVariable.call_function_handler_cache
        dict_call_method = torch._dynamo.variables.ConstDictVariable.call_method
        ordered_call_method = torch._dynamo.variables.OrderedDictVariable.call_method 2.13+
        torch._dynamo.variables.ConstDictVariable.install_dict_contains_guard
        torch._dynamo.variables.SetVariable.install_set_contains_guard 2.12+
        torch._dynamo.variables.lists.iter_contains
        dict_key_eq = torch._dynamo.variables.ConstDictVariable._HashableTracker.__eq__ -2.11
        key_eq = torch._dynamo.variables.hashable.HashableTracker.__eq__ 2.12+
        torch._dynamo.variables.functions.LocalGeneratorObjectVariable.reconstruct
        torch._dynamo.variables.functions.WrapperUserFunctionVariable.call_function
        torch._dynamo.variables.object_protocol.vt_identity_compare 2.12+
    """,
    "padding": """
        torch._C._AutoDispatchBelowAutograd
        torch._dispatch.python.enable_python_dispatcher
        torch._subclasses.fake_tensor.DataDependentOutputException
        torch._subclasses.fake_tensor.DynamicOutputShapeException
        torch._subclasses.fake_tensor.FakeTensor
        torch._subclasses.fake_tensor.FakeTensorMode
        torch.utils._pytree.tree_flatten
    """,
    "compiled regions": """
        torch._C._current_graph_task_id
        torch._C._functorch.is_batchedtensor
        torch._C._functorch.is_legacy_batchedtensor
    """,
    "torch.compile": """
        torch._dynamo.backends.registry.register_backend
        torch._dynamo.backends.registry._COMPILER_FNS
        torch._inductor.compile_fx.compile_fx live
        torch._inductor.compile_fx.compile_fx_inner live
        torch._inductor.compile_fx.cudagraphify
        inductor_config = torch._inductor.config
        torch._inductor.output_code.cudagraph_partition_post_compile
        torch._inductor.output_code.maybe_handle_backward_generation
    """,
    "torch.compile in the simulator": """
        torch.ops.aten._assert_scalar
        torch._inductor.graph.fallback_node_due_to_unsupported_type
        torch._inductor.scheduler.BaseScheduling
        torch._inductor.scheduler.Scheduler.create_backend
        torch._inductor.utils.sympy_product
        torch.utils._ordered_set.OrderedSet
        torch.utils._triton.triton_hash_with_backend
    """,
    "guard": """
        torch._C._cuda_cudaCachingAllocator_enable live
        torch._C._cuda_isHistoryEnabled live optional
        torch._C._cuda_memorySnapshot live
        torch._C._disabled_torch_dispatch_impl
        torch.cuda._lazy_call live
        torch.cuda.memory._record_memory_history
    """,
    "generate": """
        torch._foreach_zero_
        torch.nn.modules.module._global_forward_hooks
        torch.nn.modules.module._global_forward_pre_hooks
    """,
    "reports": """
        torch._C._demangle optional
    """,
    "simulator": """
        torch._C
        torch._library.opaque_object._OPAQUE_TYPES optional
        torch._C._cuda_CUDAAllocator_AllocatorState optional
        torch._dynamo.trace_rules.get_torch_obj_rule_map loaded
        torch._dynamo.trace_rules.load_object loaded
        torch._dynamo.trace_rules.torch_name_rule_map loaded
        torch._C._accelerator_getStream
        torch._C._accelerator_setStream
        torch._C._dispatch_get_all_op_names
        torch._C._dispatch_get_registrations_for_dispatch_key
        torch._C._distributed_c10d._create_work_from_future
        torch._C._ensureCUDADeviceGuardSet 2.10+
        torch._C._from_dlpack
        torch._C._jit_get_schemas_for_operator
        torch._conj
        torch._decomp.decomposition_table
        torch.autograd.graph._engine_run_backward
        torch.ops.aten._coalesced_
        torch.ops.aten._sparse_compressed_tensor_unsafe
        torch.ops.aten._sparse_coo_tensor_unsafe
        torch.ops.aten._to_copy
    """,
}


@dataclass(frozen=True, slots=True)
class Name:
    """One line of the table: its name here, its name in torch, and the feature that needs it."""

    key: str
    path: str
    feature: str
    marks: tuple[str, ...]
    since: tuple[int, ...]
    until: tuple[int, ...]


def entries() -> Iterator[Name]:
    """Every line of the table."""
    for feature, text in TABLE.items():
        for line in filter(None, map(str.strip, text.splitlines())):
            key, _, rest = line.rpartition(" = ")
            path, *marks = rest.split()
            found = [re.fullmatch(r"(-?)(\d+)\.(\d+)\+?", mark) for mark in marks]
            versions = {each[1]: (int(each[2]), int(each[3])) for each in found if each}
            since, until = versions.get("", (2, 9)), versions.get("-", (99, 0))
            yield Name(key or path.rpartition(".")[2], path, feature, tuple(marks), since, until)


OF_OPERATORS = "torch._ops"
OF_FUNCTORCH = "torch._functorch."
OF_C = "torch._C"
OF_FUNCTIONS = "torch._C._VariableFunctions"
DYNAMO = "torch._dynamo"
_PROGRAMS = "_higher_order_ops _tensor autograd distributed distributions func functional nn optim utils.checkpoint"
CALLED_BY_PROGRAMS = tuple(f"torch.{name}" for name in _PROGRAMS.split())
"""Modules of torch's Python whose functions run as part of a program's; the others, we and its compiler call."""
"""How the modules of frames, modes and functions are called that are torch's and not the program's."""
OF_DYNAMO = "torch._dynamo.convert_frame", "torch._dynamo.utils"
"""The modules of which functions call torch's for random states around a trace."""
OF_AOT = ("torch._functorch._aot_autograd.",)
"""Those that seed a compiled region's own generators, at its first call."""
OF_OBJECTS = frozenset(
    """_backward_hooks _base_vt _boxed_call _can_decompose _cdata _compiled_call_impl _destroy _forward_hooks
    _forward_pre_hooks _has_method _indices _init_fn _is_view _last_lr _lineno_map _maybe_opt_step
    _nested_tensor_size _nnz _op _op_dk _orig_mod _overloadpacket _per_optimizer_states _prologue_start
    _qualified_op_name _replay_end_hooks _replay_start_hooks _retained _schema _torchdynamo_disable
    _torchdynamo_orig_backend _torchdynamo_orig_callable _tracker""".split()
)
"""Private attributes that torch gives to single objects: no class tells whether they are there."""
NAMES = {each.key: each for each in entries()}
off: dict[str, str] = {}
"""Features found to be off, each with the reason."""


def version() -> tuple[int, int]:
    """torch's, without the last part."""
    major, minor = re.findall(r"\d+", str(sys.modules["torch"].__version__))[:2]
    return int(major), int(minor)


_live: dict[str, Any] = {}
"""Owners of the names that are looked up at each use."""


def __getattr__(key: str) -> Any:
    owner = _live.get(key)
    if owner is not None and hasattr(owner, key):
        return getattr(owner, key)
    name = NAMES.get(key)
    if name is None:
        raise AttributeError(f"{key} is not in the table of torch_names.py")
    found = _find(name)
    if found is None or isinstance(found, _Missing):
        return found  # it may come with a module, or with the simulator
    if "live" in name.marks:
        _live[key] = _owner(name)
    else:
        globals()[key] = found
    return found


def _find(name: Name) -> Any:
    """torch's object, None, or a stand-in."""
    try:
        torch = importlib.import_module("torch")
        if not name.since <= version() <= name.until:
            return None
        if "loaded" in name.marks and name.path.rpartition(".")[0] not in sys.modules:
            return None
        return _below(torch, name.path.split(".")[1:])
    except (AttributeError, ImportError):
        return None if {"optional", "loaded"} & set(name.marks) else _Missing(name)


def _below(value: object, parts: list[str]) -> Any:
    for part in parts:
        if isinstance(value, ModuleType) and not hasattr(value, part):
            value = importlib.import_module(f"{value.__name__}.{part}")
        else:
            value = getattr(value, part)
    return value


def _owner(name: Name) -> Any:
    return _below(sys.modules["torch"], name.path.split(".")[1:-1])


def place(key: str) -> tuple[Any, str]:
    """Owner and name, to put something else there, or to see whether there is something to replace."""
    name = NAMES[key]
    module, _, attribute = name.path.rpartition(".")
    if "loaded" in name.marks:
        return sys.modules.get(module), attribute
    try:
        return _owner(name), attribute
    except (AttributeError, ImportError):
        return _Missing(name), attribute


def put(key: str, value: object) -> None:
    """Have ``value`` in the place of torch's own."""
    setattr(*place(key), value)


def missing(feature: str) -> list[str]:
    """What this torch lacks of what a feature needs; without a GPU, what builds for one have is not asked for."""
    torch = importlib.import_module("torch")
    asked = [name for name in NAMES.values() if name.feature == feature]
    if not torch.cuda.is_available():
        asked = [name for name in asked if "live" not in name.marks]
    return [name.path for name in asked if isinstance(_find(name), _Missing)]


def all_missing() -> dict[str, list[str]]:
    """By feature, what this torch lacks; features that lack nothing are left out. Imports Inductor: seconds."""
    return {feature: gone for feature in TABLE if (gone := missing(feature))}


def have_dynamo(action: str, *codes: object) -> None:
    """Have Dynamo "SKIP" frames of this code, and what they call, or treat them as by "DEFAULT"."""
    if why_off("capture"):
        return
    names: Any = sys.modules[__name__]
    wanted = getattr(names._FrameAction, action)
    for code in codes:
        names.set_code_exec_strategy(code, names._FrameExecStrategy(wanted, wanted))


@functools.cache
def why_off(feature: str) -> str:
    """Why a feature cannot be used with this torch; "" if it can. Looks and warns once."""
    gone = missing(feature)
    if gone:
        off[feature] = f"{feature} is off: torch {sys.modules['torch'].__version__} has no {', '.join(gone)}"
        logging.getLogger("gfxgraph").warning("%s; what needs it runs without it, or eagerly", off[feature])
    return off.get(feature, "")


class _Missing:
    """Stands for a name that this torch lacks: each use raises. A class made of it has no instances."""

    def __init__(self, name: Name) -> None:
        self._name = name

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        name = self._name
        raise MissingTorchName("torch_name_missing", name=name.path, feature=name.feature, torch=version())

    __enter__ = __instancecheck__ = __subclasscheck__ = __getitem__ = __iter__ = __or__ = __ror__ = __call__

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):  # Python itself asks
            raise AttributeError(attribute)
        return self  # modules of ours look at it as they are imported

    def __mro_entries__(self, bases: object) -> tuple[type]:
        return (type("Missing", (), {"__init__": lambda made, *args, **kwargs: self()}),)
