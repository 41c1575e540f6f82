"""The names of ``gfxgraph``, each with the module that it is loaded from when it is first used.

Type checkers read this, and so does ``__init__.py``.
"""

from gfxgraph.startup.activation import enable as enable
from gfxgraph.startup.activation import disable as disable
from gfxgraph.process.bridge import is_enabled as is_enabled
from gfxgraph.startup.activation import activate_from_environment as activate_from_environment
from gfxgraph.process.health import stats as stats
from gfxgraph.process.health import reset_stats as reset_stats
from gfxgraph.process.health import health_check as health_check
from torch.cuda import CUDAGraph as BridgedCUDAGraph  # a subclass of it, for the torch that is there
from gfxgraph.callables.api import graphed as graphed
from gfxgraph.callables.graphed import Graphed as Graphed
from gfxgraph.reporting.read_capture import memory_report as memory_report
from gfxgraph.reporting.page import write_report as write_report
from gfxgraph.reporting.read_capture import inspect as inspect
from gfxgraph.reporting.profile import profile as profile
from gfxgraph.reporting.dump import dump as dump
from gfxgraph.callables.control.conditional import Conditional as Conditional
from gfxgraph.callables.control.loops import WhileLoop as WhileLoop
from gfxgraph.callables.training.training_step import TrainingStep as TrainingStep
from gfxgraph.callables.training.make_graphed_callables import make_graphed_callables as make_graphed_callables
from gfxgraph.callables.agreed import Agreed as Agreed
from gfxgraph.compat.graph_classes import ShapeBucketPool as ShapeBucketPool
from gfxgraph.compat.graph_classes import ConditionalGraph as ConditionalGraph
from gfxgraph.errors import GfxGraphError as GfxGraphError
from gfxgraph.errors import ActivationError as ActivationError
from gfxgraph.errors import ConfigError as ConfigError
from gfxgraph.errors import ArgumentError as ArgumentError
from gfxgraph.errors import CaptureError as CaptureError
from gfxgraph.errors import ReplayError as ReplayError
from gfxgraph.errors import GuardMismatch as GuardMismatch
from gfxgraph.errors import ValidationMismatch as ValidationMismatch
from gfxgraph.errors import GfxGraphFault as GfxGraphFault
from gfxgraph.errors import DriverError as DriverError
from gfxgraph.errors import SimulatorError as SimulatorError
from gfxgraph.types import OnUnsafe as OnUnsafe
from gfxgraph.guard.level import guard_level as guard_level
from gfxgraph.types import GuardTier as GuardTier
from gfxgraph.guard.layout import validate_layout as validate_layout
from gfxgraph.guard.layout import make_safe as make_safe
from gfxgraph.guard.layout import make_capture_safe as make_capture_safe
from gfxgraph.guard.localize import localize_fault as localize_fault
from gfxgraph.guard.redzones import RedZone as RedZone
from gfxgraph.startup.sanitizer import compute_sanitizer_cmd as compute_sanitizer_cmd
from gfxgraph.hardware.advice import explain as explain
from gfxgraph.hardware.advice import install_diagnostics as install_diagnostics
from gfxgraph.hardware.advice import diagnose as diagnose
from gfxgraph.hardware.advice import report as report
from gfxgraph.hardware.advice import environment_report as environment_report
from gfxgraph.hardware.chosen_device import device_info as device_info
from gfxgraph.hardware.chosen_device import DeviceInfo as DeviceInfo
from gfxgraph.hardware.chosen_device import torch_rocm_status as torch_rocm_status
from gfxgraph.hardware.software import migraphx_available as migraphx_available
from gfxgraph.compat.waves import should_convert as should_convert
from gfxgraph.guard.localize import is_illegal_access as is_illegal_access
from gfxgraph.compat.memory_guard import apply_deep_guard_env as apply_deep_guard_env
from gfxgraph.compat.diagnosis import Diagnosis as Diagnosis
from gfxgraph.compat.diagnosis import diag_lang as diag_lang
from gfxgraph.compat.waves import detect_wave64 as detect_wave64
from gfxgraph.compat.waves import plan_software_wave as plan_software_wave
from gfxgraph.compat.waves import wave_mode as wave_mode
from gfxgraph.compat.devices import require_rocm_torch as require_rocm_torch
from gfxgraph.compat.devices import RocmTorchError as RocmTorchError
from gfxgraph.compat.devices import detect_accelerators as detect_accelerators
from gfxgraph.compat.devices import detect_engines as detect_engines
from gfxgraph.compat.engines import MIGraphXBackend as MIGraphXBackend
from gfxgraph.compat.engines import hipgraph_interposer_status as hipgraph_interposer_status
from gfxgraph.compat.engines import cross_engine_support as cross_engine_support

__version__: str

def names_in(stub: str) -> dict[str, str]: ...
def exports() -> dict[str, str]: ...
def __dir__() -> list[str]: ...
