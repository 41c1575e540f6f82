"""What is true of a machine, as one flat mapping: the probe behind ``gfxgraph doctor --json`` and every explanation.

Files are read and nothing else: no command is run, no device opened, nothing imported, nothing written. What a
machine does not say is left out, so that it neither proves nor excludes a cause. Nothing secret is in it: of the
kernel's command line the parameters of GPUs, of variables those that a report may show, of paths no home.
"""

from __future__ import annotations

import mmap
import os
import re
import resource
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from gfxgraph import config
from gfxgraph.hardware import bad_versions, versions
from gfxgraph.hardware.access import container, device_nodes, has_amd_gpu
from gfxgraph.hardware.architectures import architecture, name_of_override
from gfxgraph.hardware.chosen_device import override_for
from gfxgraph.hardware.machine import Machine
from gfxgraph.hardware.software import (
    Rocm,
    Torch,
    built_targets,
    find_rocm,
    find_torch,
    kernel_module,
    migraphx_available,
    other_gfxgraph,
    runtime_version,
    tree_version,
)
from gfxgraph.hardware.topology import Gpu, gpus
from gfxgraph.hardware.versions import Version

PACKAGES = frozenset(
    "torch torchvision torchaudio torchcodec triton triton-rocm pytorch-triton-rocm bitsandbytes amd-aiter aiter"
    " flash-attn xformers vllm sglang transformers numpy onnxruntime onnxruntime-gpu onnxruntime-rocm jax tensorflow"
    " onnxruntime-migraphx rocm rocm-sdk-core tensorflow-rocm ctranslate2 llama-cpp-python amdsmi deepspeed"
    " migraphx torch-migraphx gfxgraph-native".split()
)
"""Packages that break each other."""
_KERNEL = re.compile(
    r"(?:amd|ttm|iommu|intel_iommu|pci|nomodeset|modprobe|module_blacklist|rd\.driver)[\w.]*(?:=\S+)?"
)
_TARGETS = re.compile(rb"amdgcn-amd-amdhsa--(gfx[0-9a-f]{3,4})")
_MOST_NBYTES = 256 << 20
_EXAMINED = {
    "has_amd_gpu": "gpu.present", "amdgpu_loaded": "driver.loaded", "kernel_release": "system.kernel",
    "is_wsl": "system.wsl", "distro_id": "system.distribution", "rocm_version": "rocm.versions",
    "framework_rocm_version": "torch.rocm", "framework_arch_list": "torch.archs",
}  # fmt: skip
"""Names in AMD's ``rocm examine --json``, and ours."""
_Json = Mapping[str, Any]
_DEVICE = "/sys/bus/pci/devices"
_ENGINES = frozenset(
    "vllm sglang transformers onnxruntime onnxruntime-gpu onnxruntime-rocm onnxruntime-migraphx migraphx aiter"
    " torch-migraphx amd-aiter triton triton-rocm pytorch-triton-rocm flash-attn bitsandbytes llama-cpp-python"
    " gfxgraph-native".split()
)
_PROGRAMS = ("llama-cli", "llama-server", "ollama", "candle")
_ROCM_OF_DKMS: dict[Version, Version] = {
    (6, 7): (6, 1), (6, 8): (6, 2), (6, 10): (6, 3), (6, 12): (6, 4), (6, 14): (7, 0), (6, 16): (7, 1),
}  # fmt: skip
"""amdgpu-dkms numbers itself; which ROCm each came with (release notes, 6.1 to 7.1)."""
_RELEASES: tuple[Version, ...] = ((6, 1), (6, 2), (6, 3), (6, 4), (7, 0), (7, 1), (7, 2), (10, 0), (10, 1))
_FAR = 2  # releases: AMD tests neighbours against each other
_FOR_SPEED = ("HIP_FORCE_DEV_KERNARG=1", "GPU_MAX_HW_QUEUES=2", "HSA_NO_SCRATCH_RECLAIM=1")
"""Of AMD's guide to vLLM and PyTorch on Instinct."""
_VISIBLE = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")


@dataclass
class Site:
    """Everything that facts are read from; each part once, when first asked for."""

    machine: Machine = field(default_factory=Machine)
    search: Sequence[str] | None = None

    @cached_property
    def gpus(self) -> list[Gpu]:
        return gpus(self.machine)

    @cached_property
    def rocm(self) -> list[Rocm]:
        return find_rocm(self.machine)

    @cached_property
    def torch(self) -> Torch:
        return find_torch(self.search)


def probe(site: Site | None = None, library: str = "") -> dict[str, object]:
    """The facts of this machine, or of the one that ``site`` stands for; and of ``library``, a path, if given."""
    site = site or Site()
    found: dict[str, object] = {}
    for part in PARTS:
        found |= part(site)
    if library:
        found |= {f"library.{key}": value for key, value in library_facts(site.machine, library).items()}
    found["bad"] = [row.id for row in bad_versions.matching(found)]
    return {name: value for name, value in sorted(found.items()) if value not in (None, "")}


def gpu_facts(site: Site) -> dict[str, object]:
    machine = site.machine
    found: dict[str, object] = {
        "gpu.present": has_amd_gpu(machine) or bool(site.gpus),
        "gpu.n": len(site.gpus),
        "driver.loaded": kernel_module(machine)["loaded"] == "yes",
        "driver.version": kernel_module(machine)["version"],
        "driver.cwsr": machine.text("/sys/module/amdgpu/parameters/cwsr_enable"),
        "driver.shown": "amdgpu {0[version]}, Linux {0[kernel]}".format(kernel_module(machine)).replace(
            " ,", " in-tree,"
        ),
    }
    driver = _ROCM_OF_DKMS.get(versions.parse(kernel_module(machine)["version"])[:2])
    rocm = versions.parse(site.rocm[0].version)[:2] if site.rocm else ()
    if driver and rocm:
        found["driver.rocm"] = versions.show(driver)
        found["driver.rocm_apart"] = (
            abs(sum(driver >= one for one in _RELEASES) - sum(rocm >= one for one in _RELEASES)) > _FAR
        )
    if not site.gpus:
        return found
    found |= {
        "gpu.arch": [gpu.arch for gpu in site.gpus],
        "gpu.seen_as": [override_for(gpu, machine) or gpu.arch for gpu in site.gpus],
        "gpu.name": [gpu.name for gpu in site.gpus],
        "gpu.vram_mib": [gpu.vram_bytes >> 20 for gpu in site.gpus],
        "gpu.integrated": [gpu.is_integrated for gpu in site.gpus],
        "gpu.discrete": sum(not gpu.is_integrated for gpu in site.gpus),
        "gpu.shown": [_shown(gpu) for gpu in site.gpus],
        "gpu.unknown": [gpu.arch for gpu in site.gpus if gpu.architecture is None],
        "gpu.without_xnack": sorted(
            {gpu.arch for gpu in site.gpus if gpu.architecture and not gpu.architecture.xnack}
        ),
        "gpu.without_atomics": [f"{gpu.arch} at {gpu.pci}" for gpu in site.gpus if gpu.has_pcie_atomics is False],
    }
    atomics = [gpu.has_pcie_atomics for gpu in site.gpus if gpu.has_pcie_atomics is not None]
    found["gpu.atomics"] = all(atomics) if atomics else None
    for kind in ("mes", "smc", "mec", "sdma", "vbios"):
        files = (f"{_DEVICE}/{gpu.pci}/fw_version/{kind}_fw_version" for gpu in site.gpus)
        found[f"firmware.{kind}"] = next((text for file in files if (text := machine.text(file))), "")
    return found


def _shown(gpu: Gpu) -> str:
    memory = f"{gpu.vram_bytes / 2**30:.0f} GiB" if gpu.vram_bytes >= 1 << 30 else "shared memory"
    title = f"{gpu.name or 'AMD GPU'} ({gpu.arch}, {gpu.cu} CU, {memory})"
    known = gpu.architecture
    return f"{title}, {known.family}, wave{gpu.wavefront}, {known.support()}" if known else title


def system_facts(site: Site) -> dict[str, object]:
    machine = site.machine
    release = dict(line.split("=", 1) for line in machine.text("/etc/os-release").splitlines() if "=" in line)
    memory = re.search(r"MemTotal:\s+(\d+)", machine.text("/proc/meminfo"))
    pages = machine.text("/sys/module/ttm/parameters/pages_limit")
    inside = container(machine)
    found: dict[str, object] = {
        "system.distribution": f"{release.get('ID', '')} {release.get('VERSION_ID', '')}".replace('"', "").strip(),
        "system.kernel": machine.text("/proc/sys/kernel/osrelease"),
        "system.cmdline": _KERNEL.findall(machine.text("/proc/cmdline")),
        "system.container": inside if inside not in ("", "wsl") else "none",
        "system.wsl": inside == "wsl",
        "system.user_namespaces": machine.text("/proc/sys/user/max_user_namespaces"),
        "memory.ram_mib": int(memory[1]) >> 10 if memory else None,
        "memory.ttm_mib": int(pages) >> 8 if pages.isdigit() else None,
        "memory.gtt_mib": machine.text("/sys/module/amdgpu/parameters/gttsize"),
        "system.iommu": bool(machine.names("/sys/class/iommu")),
        "system.numa_balancing": machine.text("/proc/sys/kernel/numa_balancing"),
        "environ.advised": [one for one in _FOR_SPEED if one.partition("=")[0] not in machine.environ],
        **_overrides(site),
    }
    visible = {name: machine.environ[name].strip() for name in _VISIBLE if name in machine.environ}
    found["environ.hides_all"] = not {"", "-1"}.isdisjoint(visible.values())
    found["environ.hides_twice"] = _VISIBLE[0] in visible and len(set(visible.values())) > 1
    found |= {f"environ.{name}": value for name, value in config.reported(machine.environ).items()}
    if pages.isdigit() and memory:
        found["memory.ttm_percent"] = 400 * int(pages) // int(memory[1])
    if machine.root == Path("/"):
        soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
        found["memory.locked_mib"] = -1 if soft == resource.RLIM_INFINITY else soft >> 20
    with suppress(OSError):
        state = os.statvfs(machine.path("/dev/shm"))
        found["memory.shm_mib"] = state.f_blocks * state.f_frsize >> 20
    return found


def _overrides(site: Site) -> dict[str, object]:
    """Whether HSA_OVERRIDE_GFX_VERSION names code that a GPU can run: that of its family."""
    value = site.machine.environ.get("HSA_OVERRIDE_GFX_VERSION", "")
    wanted = architecture(name_of_override(value))
    families = {gpu.architecture.family.split(".")[0] for gpu in site.gpus if gpu.architecture}
    found: dict[str, object] = {"environ.override_form": bool(name_of_override(value))} if value else {}
    found["environ.override_of_other_family"] = bool(wanted and families) and not (
        wanted is None or wanted.family.split(".")[0] in families
    )
    return found


def access_facts(site: Site) -> dict[str, object]:
    kfd, *renders = device_nodes(site.machine)
    states = {(False, False): "missing", (True, False): "refused", (True, True): "allowed"}
    render = [states[node.exists, node.may_open] for node in renders] or ["missing"]
    return {
        "access.kfd": states[kfd.exists, kfd.may_open],
        "access.render": render,
        "access.groups": sorted({node.group for node in (kfd, *renders) if node.exists and not node.may_open}),
    }


def _engines(site: Site, installed: Mapping[str, str]) -> list[str]:
    engines = [f"{name} {installed[name]}" for name in sorted(_ENGINES & installed.keys())]
    engines += [name for name in _PROGRAMS if shutil.which(name)]
    if migraphx_available(site.machine, site.rocm) and not {"migraphx", "torch-migraphx"} & installed.keys():
        engines.append("MIGraphX (library)")
    if library := config.load().lib:
        engines.append("native library" if Path(library).exists() else "native library (missing)")
    return engines


def software_facts(site: Site) -> dict[str, object]:
    torch, trees = site.torch, site.rocm
    listed = [tree_version(site.machine, tree) for tree in trees]
    found: dict[str, object] = {
        "rocm.n": len(trees),
        "rocm.versions": listed,
        "rocm.paths": [tree.path for tree in trees],
        "torch.kind": torch.kind,
        "torch.version": torch.version,
        "torch.cuda": torch.cuda,
        "torch.hip": torch.hip,
    }
    theirs = versions.parse(torch.rocm) or versions.rocm_of_hip(versions.parse(torch.hip))
    if theirs:
        found["torch.rocm"] = versions.show(theirs)
    if theirs and any(listed):
        found["torch.rocm_major_differs"] = theirs[0] != (versions.parse(listed[0]) or theirs)[0]
    found["torch.archs"] = built_targets(torch) or None
    found["torch.nightly"] = next(iter(re.findall(r"20\d{6}", torch.version)), None)
    installed: dict[str, str] = {}
    for one in distributions(path=list(sys.path if site.search is None else site.search)):
        name = re.sub(r"[-_.]+", "-", one.metadata["Name"] or "").lower()
        if name in PACKAGES:
            installed.setdefault(name, one.version)
    found |= {f"package.{name}": version for name, version in installed.items()}
    others = [name for name in installed if name.startswith("onnxruntime")]
    found["package.onnx_hidden"] = len(others) > 1 or "onnxruntime-gpu" in others
    found["package.namesake"] = " in ".join(filter(None, other_gfxgraph(site.search)))
    engines = _engines(site, installed)
    found |= {"engines": engines, "engines.n": len(engines)}
    if trees:
        path = config.variables(["LD_LIBRARY_PATH"]).get("LD_LIBRARY_PATH", "")
        found["rocm.hip"] = runtime_version(site.machine, path)
        found["rocm.by_path"] = found["rocm.hip"] != runtime_version(site.machine)
        found["rocm.shown"] = [f"{version or '?'} in {tree.path}" for version, tree in zip(listed, trees)]
    found["package.tritons"] = sum(name in installed for name in ("triton", "triton-rocm", "pytorch-triton-rocm"))
    companions = [installed.get(name, "") for name in ("torchvision", "torchaudio")]
    found["torch.other_platform"] = torch.kind == "rocm" and any("+cu" in one or "+cpu" in one for one in companions)
    for folder in _library_folders(site):
        for file in folder.glob("lib*.so.[0-9]*"):
            if match := re.fullmatch(r"lib(amd_comgr|hipblaslt|amdhip64)\.so\.(\d+\.[\d.]+)", file.name):
                found.setdefault(f"lib.{match[1]}", match[2])
    return found


PARTS: tuple[Callable[[Site], dict[str, object]], ...] = (gpu_facts, system_facts, access_facts, software_facts)


def _library_folders(site: Site) -> list[Path]:
    folders = [f"{tree.path}/lib" for tree in site.rocm] + ["/usr/lib/x86_64-linux-gnu", "/usr/lib64"]
    return [site.machine.path(folder) for folder in folders]


def library_facts(machine: Machine, library: str) -> dict[str, object]:
    """Who owns a library that a log names, and the architectures of the code objects in it."""
    path = machine.path(library)
    found: dict[str, object] = {"name": path.name, "exists": path.exists(), "owner": owner(machine, library)}
    with suppress(OSError, ValueError), path.open("rb") as file:
        # What is too large to read, or compressed, may hold more than can be seen: nothing is said of it.
        is_small = os.fstat(file.fileno()).st_size <= _MOST_NBYTES
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if is_small and data.find(b"CCOB") < 0:
                found["archs"] = sorted({match[1].decode() for match in _TARGETS.finditer(data)}) or None
    return {name: value for name, value in found.items() if value is not None}


def owner(machine: Machine, library: str) -> str:
    """The package manager and package that a file came with: "pip torch", "apt libamdhip64-5", "rpm"; or ''."""
    if match := re.search(r"/(?:site|dist)-packages/([\w-]+)", library):
        return f"pip {match[1]}"
    if match := re.match(r"(.*/(?:mini|ana|mamba)\w*(?:/envs/[\w.-]+)?)/lib/", library):
        files = machine.glob(f"{match[1]}/conda-meta/*.json")
        name = next((file.stem for file in files if f'"{library[len(match[1]) + 1 :]}"' in file.read_text()), "")
        return f"conda {name}".strip()
    lists = machine.path("/var/lib/dpkg/info")
    wanted = {f"{library}\n", f"/usr{library}\n", f"{os.path.realpath(library)}\n"}
    with suppress(OSError):
        for file in lists.glob("*.list"):
            with suppress(OSError), file.open() as lines:
                if not wanted.isdisjoint(lines):
                    return f"apt {file.stem}"
    return "rpm" if machine.exists("/var/lib/rpm") and library.startswith("/usr/") else ""


def of_report(data: object) -> dict[str, object]:
    """The facts in a file of ``gfxgraph doctor --json``, of ``--bundle``, or of AMD's ``rocm examine --json``.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(data, dict) and "facts" in data:
        data = data["facts"]
    if not isinstance(data, dict):
        raise ValueError("no facts in it: take the file of gfxgraph doctor --json")
    is_examined = "os_family" in data and isinstance(data.get("gpus"), list)
    return _of_examine(data) if is_examined else dict(data)


def _of_examine(data: _Json) -> dict[str, object]:
    archs = [gpu["gfx_target"] for gpu in data["gpus"] if isinstance(gpu, dict) and gpu.get("gfx_target")]
    found: dict[str, object] = {ours: data.get(theirs) for theirs, ours in _EXAMINED.items()}
    found |= {"gpu.arch": archs, "gpu.seen_as": archs, "access.kfd": _examined(data.get("kfd"))}
    found["system.container"] = data.get("container_kind") if data.get("in_container") else "none"
    found["system.cmdline"] = _KERNEL.findall(str(data.get("kernel_cmdline") or ""))
    if data.get("framework") == "pytorch":
        version = str(data.get("framework_version") or "")
        kind = "rocm" if data.get("framework_rocm_version") else "cuda" if "+cu" in version else "cpu"
        found |= {"torch.kind": kind, "torch.version": version}
    environ = data.get("env")
    found |= {f"environ.{name}": value for name, value in environ.items()} if isinstance(environ, dict) else {}
    return {name: value for name, value in found.items() if value not in (None, "", [])}


def _examined(node: object) -> str | None:
    if not isinstance(node, dict):
        return None
    if not node.get("exists"):
        return "missing"
    return "allowed" if node.get("user_can_read") and node.get("user_can_write") else "refused"
