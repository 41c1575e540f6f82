"""The machine below ROCm: GPUs, kernel driver, permissions, containers, PCIe."""

from __future__ import annotations

import os

from gfxgraph.hardware import versions
from gfxgraph.hardware.access import container, device_nodes, has_amd_gpu
from gfxgraph.hardware.checks.check import Check, CheckResult, CheckState, Site
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
            return [
                CheckResult(
                    "GPU",
                    CheckState.RED,
                    "an AMD GPU is on the PCI bus, but the compute driver (KFD) does not offer it",
                    "PCI 总线上有 AMD GPU，但计算驱动（KFD）没有提供它",
                    "sudo modprobe amdgpu && sudo dmesg | grep -iE 'amdgpu|kfd' | tail",
                )
            ]
        return [CheckResult("GPU", CheckState.AMBER, "no AMD GPU found", "没有找到 AMD GPU")]
    return [_describe(site, number) for number in range(len(site.gpus))]


def _describe(site: Site, number: int) -> CheckResult:
    card = site.gpus[number]
    known = card.architecture
    memory = f"{card.vram_bytes / 2**30:.0f} GiB" if card.vram_bytes >= 1 << 30 else "shared memory"
    title = f"{card.name or 'AMD GPU'} ({card.arch}, {card.cu} CU, {memory})"
    name = f"GPU {number}"
    if known is None:
        text = f"{title}: not in the architecture table", f"{title}：架构表中没有"
        return CheckResult(name, CheckState.AMBER, *text, "pip install --upgrade gfxgraph")
    return CheckResult(
        name,
        CheckState.GREEN,
        f"{title}, {known.family}, wave{card.wavefront}, {known.support()}",
        f"{title}，{known.family}，wave{card.wavefront}，官方支持：{known.support()}",
    )


def kernel_driver(site: Site) -> list[CheckResult]:
    """amdgpu is loaded, and near enough to ROCm's release."""
    module = kernel_module(site.machine)
    if module["loaded"] == "no":
        if not has_amd_gpu(site.machine):
            return []
        text = "the amdgpu kernel module is not loaded", "没有加载 amdgpu 内核模块"
        return [CheckResult("kernel driver", CheckState.RED, *text, "sudo modprobe amdgpu")]
    shown = f"amdgpu {module['version'] or 'in-tree'}, Linux {module['kernel'] or '?'}"
    driver = _ROCM_OF_DKMS.get(versions.parse(module["version"])[:2])
    rocm = versions.parse(site.rocm[0].version) if site.rocm else ()
    if driver and rocm and abs(_release(driver) - _release(rocm[:2])) > 2:
        return [
            CheckResult(
                "kernel driver",
                CheckState.AMBER,
                f"{shown} came with ROCm {versions.show(driver)}; installed is {versions.show(rocm)}",
                f"{shown} 对应 ROCm {versions.show(driver)}，而已安装的是 {versions.show(rocm)}",
                "sudo amdgpu-install --usecase=dkms,rocm",
            )
        ]
    return [CheckResult("kernel driver", CheckState.GREEN, shown, shown)]


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
            text = f"/dev/kfd is missing in this {inside} container", f"{inside} 容器中没有 /dev/kfd"
            return [CheckResult("device files", CheckState.RED, *text, _DOCKER + " ...")]
        text = "/dev/kfd does not exist", "/dev/kfd 不存在"
        return [CheckResult("device files", CheckState.RED, *text, "sudo modprobe amdgpu")]
    refused = [node for node in (kfd, *renders) if not node.may_open]
    if refused:
        groups = sorted({node.group for node in refused})
        paths = ", ".join(node.path for node in refused)
        fix = f"sudo usermod -aG {','.join(groups)} $USER   # then log in again"
        if inside:
            fix = f"{_DOCKER} --group-add {' --group-add '.join(str(n.gid) for n in refused[:1])} ..."
        return [
            CheckResult(
                "device files",
                CheckState.RED,
                f"this user may not open {paths} (group {', '.join(groups)})",
                f"当前用户无权打开 {paths}（所属组 {', '.join(groups)}）",
                fix,
            )
        ]
    if not renders:
        text = "/dev/kfd is there, but no /dev/dri/renderD*", "有 /dev/kfd，但没有 /dev/dri/renderD*"
        return [CheckResult("device files", CheckState.RED, *text, _DOCKER + " ..." if inside else "ls -l /dev/dri")]
    shown = f"/dev/kfd and {len(renders)} render node(s)"
    where = f" in {inside}" if inside else ""
    return [CheckResult("device files", CheckState.GREEN, f"may open {shown}{where}", f"可以打开 {shown}{where}")]


def pcie_atomics(site: Site) -> list[CheckResult]:
    """Every card's link to the CPU carries atomics."""
    without = [card for card in site.gpus if card.has_pcie_atomics is False]
    if not without:
        return []
    shown = ", ".join(f"{card.arch} at {card.pci}" for card in without)
    return [
        CheckResult(
            "PCIe atomics",
            CheckState.AMBER,
            f"no atomics on the PCIe path of {shown}: some kernels hang or the card is skipped",
            f"{shown} 的 PCIe 通路不支持原子操作：部分核函数会挂死，或该卡被跳过",
            "move the card to a slot wired to the CPU; check: sudo lspci -vvv | grep -i AtomicOps",
        )
    ]


def iommu(site: Site) -> list[CheckResult]:
    """With several GPUs, the IOMMU is in pass-through."""
    discrete = [card for card in site.gpus if not card.is_integrated]
    active = bool(site.machine.names("/sys/class/iommu"))
    if len(discrete) < 2 or not active or "iommu=pt" in site.machine.text("/proc/cmdline"):
        return []
    return [
        CheckResult(
            "IOMMU",
            CheckState.AMBER,
            "the IOMMU translates GPU-to-GPU traffic: collectives can hang",
            "IOMMU 会转换 GPU 之间的访问：集合通信可能挂死",
            "sudo grubby --update-kernel=ALL --args=iommu=pt   # Ubuntu: GRUB_CMDLINE_LINUX, update-grub",
        )
    ]


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
    shown = f"{nbytes >> 20} MiB"
    text = (
        f"/dev/shm has {shown}: RCCL and data loaders fail",
        f"/dev/shm 只有 {shown}：RCCL 和数据加载会失败",
    )
    return [CheckResult("shared memory", CheckState.AMBER, *text, "docker run --ipc=host ...   # or --shm-size=8g")]


def instinct_speed(site: Site) -> list[CheckResult]:
    """What AMD's tuning guide for MI300 asks of the host; hints for speed, to be measured."""
    if not any(card.arch.startswith(("gfx94", "gfx95")) for card in site.gpus):
        return []
    found = []
    if site.machine.text("/proc/sys/kernel/numa_balancing").strip() not in ("", "0"):
        text = "NUMA balancing is on; AMD advises against it", "NUMA balancing 处于开启状态，AMD 建议关闭"
        fix = "sudo sh -c 'echo 0 > /proc/sys/kernel/numa_balancing'"
        found.append(CheckResult("speed", CheckState.AMBER, *text, fix))
    lacking = [f"{name}={value}" for name, value in _FOR_SPEED.items() if name not in site.machine.environ]
    if lacking:
        text = f"AMD recommends {' '.join(lacking)}", f"AMD 建议设置 {' '.join(lacking)}"
        found.append(CheckResult("speed", CheckState.GREEN, *text))
    return found


CHECKS: tuple[Check, ...] = (gpu, kernel_driver, permissions, pcie_atomics, iommu, shared_memory, instinct_speed)
