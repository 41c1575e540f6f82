"""The machine: its variables, its torch, its device files."""

from __future__ import annotations

from gfxgraph.port.rule_api import *


def torch_not_rocm(env: Env, ctx: Context | None) -> Iterator[Hit]:
    if env.torch_build != "rocm":
        bare = not env.devices and not env.has_kfd
        yield line_hit(
            1,
            severity=Severity.INFO if bare else None,
            version=env.torch_version or "-",
            build=env.torch_build or "missing",
        )


def visible_devices_conflict(env: Env, ctx: Context | None) -> Iterator[Hit]:
    def ids(name: str) -> list[str]:
        return [p.strip() for p in env.variables.get(name, "").split(",") if p.strip()]

    hip, cuda, rocr = ids("HIP_VISIBLE_DEVICES"), ids("CUDA_VISIBLE_DEVICES"), ids("ROCR_VISIBLE_DEVICES")
    if hip and cuda and hip != cuda:
        yield line_hit(1, names=f"HIP_VISIBLE_DEVICES={','.join(hip)} CUDA_VISIBLE_DEVICES={','.join(cuda)}")
    for name, wanted in (("HIP_VISIBLE_DEVICES", hip), ("CUDA_VISIBLE_DEVICES", cuda)):
        if rocr and any(p.isdigit() and int(p) >= len(rocr) for p in wanted):
            yield line_hit(
                1,
                len(name),
                names=f"ROCR_VISIBLE_DEVICES={','.join(rocr)} leaves {len(rocr)}, {name}={','.join(wanted)}",
            )


def numa_balancing(env: Env, ctx: Context | None) -> Iterator[Hit]:
    if env.numa_balancing not in ("", "0") and any(a in INSTINCT3 for a in env.archs()):
        yield line_hit(1, value=env.numa_balancing)


def kfd_access(env: Env, ctx: Context | None) -> Iterator[Hit]:
    if env.denied:
        yield line_hit(1, paths=", ".join(env.denied))


def hsa_override(env: Env, ctx: Context | None) -> Iterator[Hit]:
    if value := env.variables.get("HSA_OVERRIDE_GFX_VERSION", ""):
        yield line_hit(1, value=value)


_RECOMMENDED = ("HIP_FORCE_DEV_KERNARG", "GPU_MAX_HW_QUEUES", "HSA_NO_SCRATCH_RECLAIM")


def perf_env_missing(env: Env, ctx: Context | None) -> Iterator[Hit]:
    missing = [n for n in _RECOMMENDED if n not in env.variables]
    if missing and any(a in INSTINCT3 for a in env.archs()):
        yield line_hit(1, names=", ".join(missing))


def env_max_autotune(env: Env, ctx: Context | None) -> Iterator[Hit]:
    for name, value in sorted(env.variables.items()):
        if name.startswith("TORCHINDUCTOR_MAX_AUTOTUNE") and value == "1":
            yield line_hit(1, name=name)
