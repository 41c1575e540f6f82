"""The installed torch is not a ROCm build."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX011",
    code="torch-not-rocm",
    severity=Severity.CRITICAL,
    phase=0,
    en=Text(
        "The installed torch is not a ROCm build",
        "torch {version} is a {build} build",
        "Nothing else matters until it is; usually an install or a lock file put the PyPI build over it.",
        "Install torch from PyTorch's rocm index, then run gfxgraph port env again.",
    ),
    zh=Text(
        "已安装的 torch 不是 ROCm 构建",
        "torch {version} 是 {build} 构建",
        "在此之前其他一切都无意义；通常是某次安装或锁文件用 PyPI 版覆盖了它。",
        "从 PyTorch 的 rocm 索引重新安装 torch，再运行 gfxgraph port env。",
    ),
    path="env.json",
    bad='{"torch": {"version": "2.6.0+cu124", "build": "cuda"}, "devices": ["gfx1030"]}',
    good='{"torch": {"version": "2.6.0+rocm6.2.4", "build": "rocm"}, "devices": ["gfx1030"]}',
)


def check_env(env: Env, ctx: Context | None) -> Iterator[Hit]:
    if env.torch_build != "rocm":
        bare = not env.devices and not env.has_kfd
        yield line_hit(
            1,
            severity=Severity.INFO if bare else None,
            version=env.torch_version or "-",
            build=env.torch_build or "missing",
        )
