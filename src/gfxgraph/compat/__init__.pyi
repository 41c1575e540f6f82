"""The names of ``gfxgraph.compat``, each with the module that it is loaded from when it is first used."""

# A subclass of torch.cuda.CUDAGraph, made for the torch that is there.
from torch.cuda import CUDAGraph as BridgedCUDAGraph

from gfxgraph.compat.devices import DeviceInfo as DeviceInfo
from gfxgraph.compat.devices import RocmTorchError as RocmTorchError
from gfxgraph.compat.devices import detect_accelerators as detect_accelerators
from gfxgraph.compat.devices import detect_engines as detect_engines
from gfxgraph.compat.devices import device_info as device_info
from gfxgraph.compat.devices import require_rocm_torch as require_rocm_torch
from gfxgraph.compat.devices import torch_rocm_status as torch_rocm_status
from gfxgraph.compat.diagnosis import Diagnosis as Diagnosis
from gfxgraph.compat.diagnosis import diag_lang as diag_lang
from gfxgraph.compat.diagnosis import diagnose as diagnose
from gfxgraph.compat.diagnosis import environment_report as environment_report
from gfxgraph.compat.diagnosis import explain as explain
from gfxgraph.compat.diagnosis import install_diagnostics as install_diagnostics
from gfxgraph.compat.diagnosis import report as report
from gfxgraph.compat.enabling import ConditionalGraph as ConditionalGraph
from gfxgraph.compat.enabling import ShapeBucketPool as ShapeBucketPool
from gfxgraph.compat.enabling import disable as disable
from gfxgraph.compat.enabling import enable as enable
from gfxgraph.compat.enabling import health_check as health_check
from gfxgraph.compat.enabling import is_enabled as is_enabled
from gfxgraph.compat.enabling import stats as stats
from gfxgraph.compat.engines import MIGraphXBackend as MIGraphXBackend
from gfxgraph.compat.engines import cross_engine_support as cross_engine_support
from gfxgraph.compat.engines import hipgraph_interposer_status as hipgraph_interposer_status
from gfxgraph.compat.engines import migraphx_available as migraphx_available
from gfxgraph.compat.memory_guard import GfxGraphFault as GfxGraphFault
from gfxgraph.compat.memory_guard import RedZone as RedZone
from gfxgraph.compat.memory_guard import apply_deep_guard_env as apply_deep_guard_env
from gfxgraph.compat.memory_guard import compute_sanitizer_cmd as compute_sanitizer_cmd
from gfxgraph.compat.memory_guard import guard_level as guard_level
from gfxgraph.compat.memory_guard import is_illegal_access as is_illegal_access
from gfxgraph.compat.memory_guard import localize_fault as localize_fault
from gfxgraph.compat.memory_guard import make_capture_safe as make_capture_safe
from gfxgraph.compat.memory_guard import make_safe as make_safe
from gfxgraph.compat.memory_guard import validate_layout as validate_layout
from gfxgraph.compat.waves import detect_wave64 as detect_wave64
from gfxgraph.compat.waves import plan_software_wave as plan_software_wave
from gfxgraph.compat.waves import should_convert as should_convert
from gfxgraph.compat.waves import wave_mode as wave_mode

__version__: str

def __dir__() -> list[str]: ...
