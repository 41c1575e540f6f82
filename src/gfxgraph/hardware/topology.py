"""GPUs as the kernel driver describes them: KFD's topology in sysfs, with the DRM node beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gfxgraph.hardware.architectures import Architecture, architecture, name_of_target
from gfxgraph.hardware.machine import Machine

NODES = "/sys/class/kfd/kfd/topology/nodes"
# Heap types of a KFD memory bank: 1 is VRAM the CPU can see whole, 2 the rest.
_VRAM_HEAPS = (1, 2)
# Link types and flags of the CRAT table (Linux, drivers/gpu/drm/amd/amdkfd/kfd_crat.h).
_LINK_PCIE = 2
_NO_ATOMICS = 0b1100  # no 32-bit, no 64-bit atomics over this link


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. Numbers are 0 and texts '' where the kernel does not say."""

    node: int
    arch: str
    name: str
    device_id: int = 0
    cu: int = 0
    wavefront: int = 0
    lds_kib: int = 0
    vram_bytes: int = 0
    pci: str = ""
    has_pcie_atomics: bool | None = None

    @property
    def architecture(self) -> Architecture | None:
        """What the table knows of this target."""
        return architecture(self.arch)

    @property
    def is_integrated(self) -> bool:
        """True for a GPU that shares the CPU's memory: KFD gives it (almost) no VRAM of its own."""
        return self.vram_bytes < 256 << 20 or "iGPU" in self.name or "APU" in self.name


def gpus(machine: Machine) -> list[Gpu]:
    """Return every GPU of the KFD topology, in node order, which is HIP's order too."""
    return [gpu for entry in machine.names(NODES) if (gpu := _gpu(machine, entry)) is not None]


def _gpu(machine: Machine, entry: str) -> Gpu | None:
    folder = f"{NODES}/{entry}"
    values = machine.properties(f"{folder}/properties")
    arch = name_of_target(values.get("gfx_target_version", 0))
    if not arch and values.get("simd_count", 0) == 0:
        return None  # a CPU
    pci = _pci(values)
    simds = values.get("simd_count", 0)
    known = architecture(arch)
    return Gpu(
        node=int(entry) if entry.isdigit() else -1,
        arch=arch,
        name=_marketing_name(machine, pci, values, known),
        device_id=values.get("device_id", 0),
        cu=simds // max(values.get("simd_per_cu", 2), 1),
        wavefront=values.get("wave_front_size", 0) or (known.wavefront if known else 0),
        lds_kib=values.get("lds_size_in_kb", 0) or (known.lds_kib if known else 0),
        vram_bytes=_vram(machine, folder, pci),
        pci=pci,
        has_pcie_atomics=_atomics(machine, folder),
    )


def _pci(values: Mapping[str, int]) -> str:
    location = values.get("location_id", 0)
    if not location:
        return ""
    bus, device, function = location >> 8 & 0xFF, location >> 3 & 0x1F, location & 0x7
    return f"{values.get('domain', 0):04x}:{bus:02x}:{device:02x}.{function}"


def _vram(machine: Machine, folder: str, pci: str) -> int:
    total = 0
    for bank in machine.names(f"{folder}/mem_banks"):
        values = machine.properties(f"{folder}/mem_banks/{bank}/properties")
        if values.get("heap_type") in _VRAM_HEAPS:
            total += values.get("size_in_bytes", 0)
    return total or _number(machine.text(f"/sys/bus/pci/devices/{pci}/mem_info_vram_total"), 0)


def _atomics(machine: Machine, folder: str) -> bool | None:
    """Whether the PCIe link carries atomics; None where there is no PCIe link to judge."""
    for link in machine.names(f"{folder}/io_links"):
        values = machine.properties(f"{folder}/io_links/{link}/properties")
        if values.get("type") == _LINK_PCIE:
            return values.get("flags", 0) & _NO_ATOMICS == 0
    return None


def _marketing_name(machine: Machine, pci: str, values: Mapping[str, int], known: Architecture | None) -> str:
    product = machine.text(f"/sys/bus/pci/devices/{pci}/product_name") if pci else ""
    if product:
        return product
    listed = _amdgpu_ids(machine).get(
        (values.get("device_id", 0), _number(machine.text(f"/sys/bus/pci/devices/{pci}/revision"), 0))
    )
    if listed:
        return listed
    return " / ".join(known.names) if known else ""


def _amdgpu_ids(machine: Machine) -> dict[tuple[int, int], str]:
    """libdrm's list of names by device and revision."""
    found = {}
    for line in machine.text("/usr/share/libdrm/amdgpu.ids").splitlines():
        parts = [part.strip() for part in line.split(",", 2)]
        if len(parts) == 3 and not line.startswith("#"):
            found[int(parts[0], 16), int(parts[1], 16)] = parts[2]
    return found


def _number(text: str, default: int) -> int:
    try:
        return int(text, 0)
    except ValueError:
        return default
