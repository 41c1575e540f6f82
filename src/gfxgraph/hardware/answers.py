"""What this machine says about a failure: doctor's checks, asked about the causes that the failure may have.

A check that finds something wrong names a cause, with the command that mends it; one that finds nothing removes it.
Only asked if the failure happened here, as far as the text shows: an AMD GPU is here, and the text names no other.
"""

from __future__ import annotations

import resource
from dataclasses import replace

from gfxgraph.diagnostics.explanation import Explanation, MachineAnswer
from gfxgraph.hardware.access import container, device_nodes, has_amd_gpu
from gfxgraph.hardware.checks import Check, CheckState, Site, host, installed, settings
from gfxgraph.hardware.software import kernel_module

_NO_GPU = "no_device no_gpu no_cuda_gpu kfd_permission docker_device_missing hsa_init_failed not_in_catalogue"
_NO_CODE = "no_kernel_image rocblas_missing_tensile hip_module_load blas_error gpu_unsupported"
_FAULTS = "illegal_address gpu_hang hsa_queue_abort memory_fault launch_failure"
_CHECKS: tuple[tuple[Check, frozenset[str]], ...] = tuple(
    (check, frozenset(codes.split()))
    for check, codes in (
        (host.permissions, _NO_GPU),
        (host.kernel_driver, f"{_NO_GPU} driver_version_mismatch"),
        (host.pcie_atomics, f"{_NO_GPU} {_FAULTS} pcie_atomics"),
        (host.iommu, f"{_FAULTS} peer_access_iommu rccl_error wrong_results"),
        (host.shared_memory, "rccl_error process_killed process_crashed"),
        (settings.override, f"{_NO_CODE} {_FAULTS} wrong_arch_override"),
        (settings.harmful_variables, f"{_NO_GPU} alloc_conf_rejected xnack_required"),
        (installed.pytorch, f"{_NO_GPU} {_NO_CODE} framework_not_rocm not_rocm_cuda_torch not_rocm_cpu_torch"),
        (installed.kernels_for_card, _NO_CODE),
    )
)
"""Each check with the failures that it may explain."""
_MUCH_LOCKED = 64 << 20


def with_answers(found: Explanation, arch: str, site: Site | None = None) -> Explanation:
    """Add what this machine shows about the root cause, and the facts that choose among causes.

    Args:
        found: what was recognised.
        arch: the GPU that the text names; '' if none.
        site: the machine; this one by default.
    """
    site = site or Site()
    if not has_amd_gpu(site.machine) or (arch and arch not in {gpu.arch for gpu in site.gpus}):
        return found
    code = found.matches[0].code
    wrong = [
        result
        for check, codes in _CHECKS
        if code in codes
        for result in check(site)
        if result.state is CheckState.RED or (result.state is CheckState.AMBER and code not in _NO_GPU.split())
    ]
    findings = tuple(MachineAnswer(result.en, result.zh, result.fix) for result in wrong)
    return replace(found, findings=findings[:1], situation=found.situation._replace(facts=facts(site)))


def facts(site: Site) -> dict[str, bool]:
    """What is true of the machine, of ``diagnostics.situation.FACTS``; what cannot be known here is left out."""
    machine = site.machine
    kfd, *renders = device_nodes(machine)
    inside = container(machine)
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    found = {
        "not_in_render": any(node.exists and not node.may_open for node in (kfd, *renders)),
        "no_kfd": not kfd.exists,
        "no_dri": not renders,
        "in_container": inside not in ("", "wsl"),
        "in_wsl": inside == "wsl",
        "override_set": bool(machine.environ.get("HSA_OVERRIDE_GFX_VERSION")),
        "visible_empty": any(one.state is CheckState.RED for one in settings.harmful_variables(site)),
        "amdgpu_not_loaded": kernel_module(machine)["loaded"] == "no",
        "iommu_on": bool(host.iommu(site)),
        "low_memlock": soft != resource.RLIM_INFINITY and soft < _MUCH_LOCKED,
        "small_shm": bool(host.shared_memory(site)),
    }
    if site.torch.kind != "none":
        found |= {"cuda_torch": site.torch.kind == "cuda", "cpu_torch": site.torch.kind == "cpu"}
    if site.torch.kind == "rocm":
        found["arch_not_in_torch"] = bool(installed.kernels_for_card(site))
    return found
