"""rocm: the runtime half of a port; small things a ported program calls.

    from gfxgraph_port.rocm import attention, fp8_dtype, set_visible_devices

Enters: tensors; torch is imported inside the functions that need it, and by golden.py, which the commands load.
Stays out: capture and replay; see ``capture``. Nothing asks the device when this is imported.

    attend.py   attention: a library made for the device, torch's own, plain PyTorch
    visible_devices.py  keeps HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES in agreement
    fp8.py      the FP8 kind of an architecture
    golden.py   golden vectors: recorded on one machine, compared on another
"""

from __future__ import annotations

from gfxgraph_port.rocm.attend import attention, attention_tiers
from gfxgraph_port.rocm.fp8 import arch_name, fp8_dtype, fp8_max, to_fnuz
from gfxgraph_port.rocm.visible_devices import set_visible_devices, visible_devices

__all__ = [
    "arch_name",
    "attention",
    "attention_tiers",
    "fp8_dtype",
    "fp8_max",
    "set_visible_devices",
    "to_fnuz",
    "visible_devices",
]
