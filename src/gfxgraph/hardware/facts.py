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
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from gfxgraph import config
from gfxgraph.hardware import bad_versions, versions
from gfxgraph.hardware.access import container, device_nodes, has_amd_gpu
from gfxgraph.hardware.checks import CheckState, Site, settings
from gfxgraph.hardware.device import override_for
from gfxgraph.hardware.machine import Machine
from gfxgraph.hardware.software import built_targets, kernel_module, tree_version

PACKAGES = frozenset(
    "torch torchvision torchaudio torchcodec triton triton-rocm pytorch-triton-rocm bitsandbytes amd-aiter aiter"
    " flash-attn xformers vllm sglang transformers numpy onnxruntime onnxruntime-gpu onnxruntime-rocm jax tensorflow"
    " onnxruntime-migraphx rocm rocm-sdk-core tensorflow-rocm ctranslate2 llama-cpp-python amdsmi deepspeed".split()
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


def probe(site: Site | None = None, library: str = "") -> dict[str, object]:
    """The facts of this machine, or of the one that ``site`` stands for; and of ``library``, a path, if given."""
    site = site or Site()
    found = {**_gpus(site), **_system(site), **_access(site.machine), **_software(site)}
    if library:
        found |= {f"library.{key}": value for key, value in library_facts(site.machine, library).items()}
    found["bad"] = [row.id for row in bad_versions.matching(found)]
    return {name: value for name, value in sorted(found.items()) if value not in (None, "")}


def _gpus(site: Site) -> dict[str, object]:
    machine = site.machine
    found: dict[str, object] = {
        "gpu.present": has_amd_gpu(machine) or bool(site.gpus),
        "gpu.n": len(site.gpus),
        "driver.loaded": kernel_module(machine)["loaded"] == "yes",
        "driver.version": kernel_module(machine)["version"],
        "driver.cwsr": machine.text("/sys/module/amdgpu/parameters/cwsr_enable"),
    }
    if not site.gpus:
        return found
    found |= {
        "gpu.arch": [gpu.arch for gpu in site.gpus],
        "gpu.seen_as": [override_for(gpu, machine) or gpu.arch for gpu in site.gpus],
        "gpu.name": [gpu.name for gpu in site.gpus],
        "gpu.vram_mib": [gpu.vram_bytes >> 20 for gpu in site.gpus],
        "gpu.integrated": [gpu.is_integrated for gpu in site.gpus],
    }
    atomics = [gpu.has_pcie_atomics for gpu in site.gpus if gpu.has_pcie_atomics is not None]
    found["gpu.atomics"] = all(atomics) if atomics else None
    for kind in ("mes", "smc", "mec", "sdma", "vbios"):
        files = (f"{_DEVICE}/{gpu.pci}/fw_version/{kind}_fw_version" for gpu in site.gpus)
        found[f"firmware.{kind}"] = next((text for file in files if (text := machine.text(file))), "")
    return found


def _system(site: Site) -> dict[str, object]:
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
        "environ.hides_all": any(one.state is CheckState.RED for one in settings.harmful_variables(site)),
        "environ.override_of_other_family": any(one.state is CheckState.RED for one in settings.override(site)),
    }
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


def _access(machine: Machine) -> dict[str, object]:
    kfd, *renders = device_nodes(machine)
    states = {(False, False): "missing", (True, False): "refused", (True, True): "allowed"}
    render = [states[node.exists, node.may_open] for node in renders] or ["missing"]
    return {
        "access.kfd": states[kfd.exists, kfd.may_open],
        "access.render": render,
        "access.groups": sorted({node.group for node in (kfd, *renders) if node.exists and not node.may_open}),
    }


def _software(site: Site) -> dict[str, object]:
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
    found["package.tritons"] = sum(name in installed for name in ("triton", "triton-rocm", "pytorch-triton-rocm"))
    companions = [installed.get(name, "") for name in ("torchvision", "torchaudio")]
    found["torch.other_platform"] = torch.kind == "rocm" and any(
        "+cu" in one or "+cpu" in one for one in companions
    )
    for folder in _library_folders(site):
        for file in folder.glob("lib*.so.[0-9]*"):
            if match := re.fullmatch(r"lib(amd_comgr|hipblaslt|amdhip64)\.so\.(\d+\.[\d.]+)", file.name):
                found.setdefault(f"lib.{match[1]}", match[2])
    return found


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
