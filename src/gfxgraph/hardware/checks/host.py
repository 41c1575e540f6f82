"""The machine below ROCm: GPUs, kernel driver, permissions, containers, PCIe."""

from __future__ import annotations

import os

from gfxgraph.hardware import versions
from gfxgraph.hardware.access import container, device_nodes, has_amd_gpu
from gfxgraph.hardware.checks.check import Check, CheckResult, Site, finding
from gfxgraph.hardware.software import kernel_module
from gfxgraph.hardware.versions import Version

# amdgpu-dkms numbers itself; which ROCm each came with (release notes, 6.1 to 7.1).
_ROCM_OF_DKMS: dict[Version, Version] = {
    (6, 7): (6, 1),
    (6, 8): (6, 2),
    (6, 10): (6, 3),
    (6, 12): (6, 4),
    (6, 14): (7, 0),
    (6, 16): (7, 1),
}
_DOCKER = "docker run --device=/dev/kfd --device=/dev/dri --group-add video --group-add render"
_SHM_LEAST = 1 << 30
_FOR_SPEED = {"HIP_FORCE_DEV_KERNARG": "1", "GPU_MAX_HW_QUEUES": "2", "HSA_NO_SCRATCH_RECLAIM": "1"}
"""Of AMD's guide to vLLM and PyTorch on Instinct."""


def gpu(site: Site) -> list[CheckResult]:
    """Which GPUs the kernel driver knows."""
    if not site.gpus:
        if has_amd_gpu(site.machine):
            return [finding("gpu_not_offered")]
        return [finding("gpu_none")]
    return [_describe(site, number) for number in range(len(site.gpus))]


def _describe(site: Site, number: int) -> CheckResult:
    card = site.gpus[number]
    known = card.architecture
    memory = f"{card.vram_bytes / 2**30:.0f} GiB" if card.vram_bytes >= 1 << 30 else "shared memory"
    title = f"{card.name or 'AMD GPU'} ({card.arch}, {card.cu} CU, {memory})"
    if known is None:
        return finding("gpu_unknown", number=number, title=title)
    facts = {"title": title, "family": known.family, "wavefront": card.wavefront, "support": known.support()}
    return finding("gpu", number=number, **facts)


def kernel_driver(site: Site) -> list[CheckResult]:
    """amdgpu is loaded, and near enough to ROCm's release."""
    module = kernel_module(site.machine)
    if module["loaded"] == "no":
        if not has_amd_gpu(site.machine):
            return []
        return [finding("driver_not_loaded")]
    shown = f"amdgpu {module['version'] or 'in-tree'}, Linux {module['kernel'] or '?'}"
    driver = _ROCM_OF_DKMS.get(versions.parse(module["version"])[:2])
    rocm = versions.parse(site.rocm[0].version) if site.rocm else ()
    if driver and rocm and abs(_release(driver) - _release(rocm[:2])) > 2:
        theirs, ours = versions.show(driver), versions.show(rocm)
        return [finding("driver_of_other_rocm", shown=shown, theirs=theirs, ours=ours)]
    return [finding("driver", shown=shown)]


def _release(version: Version) -> int:
    """Place in the row of releases: AMD tests neighbours against each other, by release, not by number."""
    row = [(6, 1), (6, 2), (6, 3), (6, 4), (7, 0), (7, 1), (7, 2), (10, 0), (10, 1)]
    return sum(version >= release for release in row)


def permissions(site: Site) -> list[CheckResult]:
    """/dev/kfd and the render nodes exist and this user may open them."""
    kfd, *renders = device_nodes(site.machine)
    inside = container(site.machine)
    if not kfd.exists:
        # sysfs shows the host's cards in a container too, so its silence means there is none.
        if not has_amd_gpu(site.machine):
            return []
        if inside and inside != "wsl":
            return [finding("kfd_not_in_container", inside=inside, docker=_DOCKER)]
        return [finding("kfd_missing")]
    refused = [node for node in (kfd, *renders) if not node.may_open]
    if refused:
        groups = sorted({node.group for node in refused})
        paths = ", ".join(node.path for node in refused)
        fix = f"sudo usermod -aG {','.join(groups)} $USER   # then log in again"
        if inside:
            fix = f"{_DOCKER} --group-add {' --group-add '.join(str(n.gid) for n in refused[:1])} ..."
        return [finding("files_refused", paths=paths, groups=", ".join(groups), fix=fix)]
    if not renders:
        return [finding("render_missing", fix=_DOCKER + " ..." if inside else "ls -l /dev/dri")]
    shown = f"/dev/kfd and {len(renders)} render node(s)"
    where = f" in {inside}" if inside else ""
    return [finding("files", shown=f"{shown}{where}")]


def pcie_atomics(site: Site) -> list[CheckResult]:
    """Every card's link to the CPU carries atomics."""
    without = [card for card in site.gpus if card.has_pcie_atomics is False]
    if not without:
        return []
    shown = ", ".join(f"{card.arch} at {card.pci}" for card in without)
    return [finding("pcie_atomics", shown=shown)]


def iommu(site: Site) -> list[CheckResult]:
    """With several GPUs, the IOMMU is in pass-through."""
    discrete = [card for card in site.gpus if not card.is_integrated]
    active = bool(site.machine.names("/sys/class/iommu"))
    if len(discrete) < 2 or not active or "iommu=pt" in site.machine.text("/proc/cmdline"):
        return []
    return [finding("iommu")]


def shared_memory(site: Site) -> list[CheckResult]:
    """A container has enough /dev/shm for RCCL and data loaders."""
    inside = container(site.machine)
    if inside in ("", "wsl") or not site.gpus:
        return []
    try:
        state = os.statvfs(site.machine.path("/dev/shm"))
    except OSError:
        return []
    nbytes = state.f_blocks * state.f_frsize
    if nbytes >= _SHM_LEAST:
        return []
    return [finding("shared_memory", shown=f"{nbytes >> 20} MiB")]


def instinct_speed(site: Site) -> list[CheckResult]:
    """What AMD's tuning guide for MI300 asks of the host; hints for speed, to be measured."""
    if not any(card.arch.startswith(("gfx94", "gfx95")) for card in site.gpus):
        return []
    found = []
    if site.machine.text("/proc/sys/kernel/numa_balancing").strip() not in ("", "0"):
        found.append(finding("numa_balancing"))
    lacking = [f"{name}={value}" for name, value in _FOR_SPEED.items() if name not in site.machine.environ]
    if lacking:
        found.append(finding("speed_variables", shown=" ".join(lacking)))
    return found


CHECKS: tuple[Check, ...] = (gpu, kernel_driver, permissions, pcie_atomics, iommu, shared_memory, instinct_speed)
