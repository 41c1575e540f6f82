"""Machines as file trees, in the form that the kernel writes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from gfxgraph.hardware.machine import Machine

USER = 1000


@dataclass
class Card:
    """What KFD, PCI and DRM say about one GPU."""

    target: int
    simds: int
    vram: int
    bus: int
    device_id: int
    product: str = ""
    wave: int = 32
    lds: int = 64
    links: list[tuple[int, int]] = field(default_factory=lambda: [(2, 1)])  # type, flags
    simd_per_cu: int = 2
    domain: int = 0


LAPTOP = [
    Card(110001, 64, 8 << 30, 0x03, 0x7480, "AMD Radeon RX 7700S"),
    Card(110003, 24, 64 << 20, 0xC4, 0x15BF),
]
MI300X = [
    Card(90402, 1216, 192 << 30, 0x0C + 0x10 * i, 0x74A1, "AMD Instinct MI300X OAM", wave=64, simd_per_cu=4,
         links=[(2, 1), *[(11, 1)] * 7])
    for i in range(8)
]  # fmt: skip


def write(root: Path, name: str, text: str = "") -> None:
    path = root / name.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def build(root: Path, cards: list[Card], *, devices: bool = True, kernel: str = "6.8.0-45-generic") -> None:
    """Write sysfs, procfs and /dev for a machine with ``cards``."""
    write(root, "/proc/sys/kernel/osrelease", kernel)
    write(root, "/etc/group", "root:x:0:\nvideo:x:44:\nrender:x:992:")
    nodes = "/sys/class/kfd/kfd/topology/nodes"
    write(root, f"{nodes}/0/properties", "cpu_cores_count 16\nsimd_count 0\ngfx_target_version 0")
    for number, card in enumerate(cards, 1):
        pci = f"{card.domain:04x}:{card.bus:02x}:00.0"
        write(root, f"/sys/bus/pci/devices/{pci}/vendor", "0x1002")
        write(root, f"/sys/bus/pci/devices/{pci}/class", "0x030000")
        write(root, f"/sys/bus/pci/devices/{pci}/revision", "0xc1")
        if card.product:
            write(root, f"/sys/bus/pci/devices/{pci}/product_name", card.product)
        write(root, f"/sys/bus/pci/devices/{pci}/fw_version/mec_fw_version", "0x0000001f")
        write(root, f"/sys/bus/pci/devices/{pci}/fw_version/uvd_fw_version", "0x00000000")
        folder = f"{nodes}/{number}"
        write(
            root,
            f"{folder}/properties",
            f"cpu_cores_count 0\nsimd_count {card.simds}\nsimd_per_cu {card.simd_per_cu}\n"
            f"wave_front_size {card.wave}\nlds_size_in_kb {card.lds}\nmax_waves_per_simd 16\n"
            f"gfx_target_version {card.target}\nvendor_id 4098\ndevice_id {card.device_id}\n"
            f"location_id {card.bus << 8}\ndomain {card.domain}\ndrm_render_minor {127 + number}\n"
            f"unique_id 18446744073709551615",
        )
        write(root, f"{folder}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {card.vram}\nflags 0")
        for link, (kind, flags) in enumerate(card.links):
            write(root, f"{folder}/io_links/{link}/properties", f"type {kind}\nflags {flags}\nweight 20")
        if devices:
            write(root, f"/dev/dri/renderD{127 + number}")
    write(root, "/sys/module/amdgpu/initstate", "live")
    if devices:
        write(root, "/dev/kfd")


def machine(root: Path, *, groups: frozenset[int] = frozenset(), **environ: str) -> Machine:
    """The tree seen by a plain user."""
    return Machine(root, USER, groups, environ)
