"""What Triton makes of the kernels for GPUs that are not present: registers, LDS and spills, read from the code
objects.

The operations run as usual, on tensors without memory, and their launches are recorded; each is then compiled for
every target with the constants and alignments of a real launch. Nothing runs.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from gfxgraph.hardware.architectures import architecture
from gfxgraph_kernels import attention, launching, layers, next_token, norms
from gfxgraph_kernels.shapes import Target, target_of

TARGETS = {
    "gfx906": 60, "gfx90a": 104, "gfx942": 304, "gfx950": 256,
    "gfx1030": 40, "gfx1100": 48, "gfx1151": 20, "gfx1201": 32,
}  # fmt: skip
"""Architectures, each with the compute units of a common device, on which sizes depend."""
LDS_KIB = 64
"""Per workgroup, unless the architecture's table says otherwise."""
DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
_NAMES = {
    torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16", torch.int64: "i64", torch.int32: "i32",
    torch.uint8: "u8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CompiledCase:
    """One operation at one size."""

    name: str
    run: Callable[[torch.dtype], Any]


def _made(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch that was recorded and not made: tensors may be on the meta device."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    flags: dict[str, Any]
    num_warps: int


@contextlib.contextmanager
def recorded(target: Target) -> Iterator[list[Launch]]:
    """In this block operations choose sizes for a target, and their launches are only recorded."""
    made: list[Launch] = []

    def launch(kernel: Any, grid: tuple[int, ...], *args: Any, num_warps: int, **flags: Any) -> None:
        made.append(Launch(kernel, grid, args, {**flags, "OVERLAP": False}, num_warps))

    names = {"launch": launch, "target": lambda device: target, "why_not": lambda *tensors, **reason: ""}
    with contextlib.ExitStack() as patches:
        for module in (attention, layers, next_token, norms):
            for name, stand_in in names.items():
                patches.enter_context(mock.patch.object(module, name, stand_in))
        yield made


def _norm(n: int, is_rms: bool) -> Callable[[torch.dtype], Any]:
    def run(dtype: torch.dtype) -> Any:
        x, w = _made(32, n, dtype=dtype), _made(n, dtype=dtype)
        return _inside(norms.norm)(x, w, None if is_rms else w, 1e-6, 0.0, is_rms)

    return run


def _linear(m: int, k: int, n: int, **fused: object) -> Callable[[torch.dtype], Any]:
    def run(dtype: torch.dtype) -> Any:
        x, w = _made(m, k, dtype=dtype), _made(n, k, dtype=dtype)
        up = w if fused.get("gate") else None
        residual = _made(m, n, dtype=dtype) if fused.get("residual") else None
        norm = _made(k, dtype=dtype) if fused.get("norm") else None
        kind = fused.get("kind", "silu" if up is not None else "none")
        return _inside(layers.linear)(
            x, w, activation=kind, up=up, residual=residual, norm_weight=norm,
            norm_eps=None if norm is None else 1e-6,
        )  # fmt: skip

    return run


def _three(m: int, k: int, n: int, shared: int) -> Callable[[torch.dtype], Any]:
    def run(dtype: torch.dtype) -> Any:
        x, norm = _made(m, k, dtype=dtype), _made(k, dtype=dtype)
        weights = [_made(size, k, dtype=dtype) for size in (n, shared, shared)]
        counter = _made(1, dtype=torch.int64)
        return _inside(layers.fused_three)(x, *weights, None, None, None, norm, 1e-6, 0.0, True, counter)

    return run


def _rotary_attention(
    heads: int, shared: int, length: int, width: int, batch: int = 1
) -> Callable[[torch.dtype], Any]:
    def run(dtype: torch.dtype) -> Any:
        q, k, cos = (_made(batch, 1, *shape, dtype=dtype) for shape in ((heads, width), (shared, width), (width,)))
        keys, position = _made(batch, shared, length, width, dtype=dtype), _made(1, dtype=torch.int64)
        mask = _made(1, 1, 1, length, dtype=torch.bool)
        op = _inside(attention.rotary_attention)
        return op(q, k, k, cos, cos, keys, keys.clone(), position, behind=1, mask=mask)

    return run


def _angles(dtype: torch.dtype) -> Any:
    positions, frequencies = _made(1, 1, dtype=torch.int64), _made(32, dtype=torch.float32)
    return _inside(attention.rotary_angles)(positions, frequencies, 1.0, dtype)


def _choose(has_noise: bool) -> Callable[[torch.dtype], Any]:
    def run(dtype: torch.dtype) -> Any:
        scores = _made(1, 128256, dtype=dtype)
        return _inside(next_token.choose)(scores, _made(1, 128256, dtype=torch.float32) if has_noise else None, 0.8)

    return run


def _inside(op: Any) -> Callable[..., Any]:
    """The function of an operation: for tensors without memory torch would call its fake implementation."""
    return op._init_fn  # type: ignore[no-any-return]


CASES = (
    *(CompiledCase(f"rms norm, {n}", _norm(n, True)) for n in (1024, 8192)),
    *(CompiledCase(f"layer norm, {n}", _norm(n, False)) for n in (1024, 8192)),
    *(CompiledCase(f"norm, q, k and v, {m} x 2048 to 2048 and 2 x 512", _three(m, 2048, 2048, 512))
      for m in (1, 4, 32)),
    *(CompiledCase(f"norm and gate, {m} x 2048 to 8192", _linear(m, 2048, 8192, gate=True, norm=True))
      for m in (1, 4)),
    *(CompiledCase(f"gate, {m} x 2048 to 8192", _linear(m, 2048, 8192, gate=True)) for m in (8, 32)),
    *(CompiledCase(f"linear and residual, {m} x 8192 to 2048", _linear(m, 8192, 2048, residual=True))
      for m in (1, 4, 8, 32)),
    *(CompiledCase(f"linear and residual, {m} x 1024 to 1024", _linear(m, 1024, 1024, residual=True))
      for m in (1, 32)),
    CompiledCase("norm and linear, 1 x 2048 to 128256", _linear(1, 2048, 128256, norm=True)),
    CompiledCase("tiled linear and gelu, 128 x 2048 to 8192", _linear(128, 2048, 8192, kind="gelu")),
    CompiledCase("angles, 64", _angles),
    CompiledCase("rotary and attention, 32 heads on 8, 256 x 64", _rotary_attention(32, 8, 256, 64)),
    CompiledCase("rotary and attention, 16 heads on 16, 256 x 64", _rotary_attention(16, 16, 256, 64)),
    CompiledCase("rotary and attention, 32 heads on 8, 4096 x 128", _rotary_attention(32, 8, 4096, 128)),
    CompiledCase("rotary and attention, 8 x 32 heads on 8, 4096 x 128", _rotary_attention(32, 8, 4096, 128, 8)),
    CompiledCase("greedy, 128256", _choose(False)),
    CompiledCase("sample, 128256", _choose(True)),
)  # fmt: skip


def launches(case: CompiledCase, dtype: torch.dtype, target: Target) -> list[Launch]:
    """The launches of an operation for a target."""
    with recorded(target) as made:
        case.run(dtype)
    return made


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled launch.

    Attributes:
        lds_nbytes: LDS that the launch requests.
        arguments: type and value of each; followed by Triton's own two pointers.
        assembly: the code as text.
    """

    code: bytes
    name: str
    lds_nbytes: int
    arguments: tuple[tuple[str, object], ...]
    assembly: str


def built(launch: Launch, target: Target) -> Built:
    """Compile one launch as it would be compiled on the target.

    Raises:
        RuntimeError: this Triton does not compile for the target.
    """
    # lazily: Triton need not be there
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, make_backend

    where = GPUTarget("hip", target.name, target.wavefront)
    backend = make_backend(where)
    names = launch.kernel.arg_names
    signature: dict[str, str] = {}
    constants: dict[Any, Any] = dict(launch.flags)
    attributes: dict[Any, Any] = {}
    for index, (name, value) in enumerate(zip(names, launch.args)):
        if isinstance(value, torch.Tensor):
            signature[name] = f"*{_NAMES[value.dtype]}"
            attributes[(index,)] = backend.parse_attr("D")
        elif isinstance(value, float):
            signature[name] = "fp32"
        elif value == 1:
            signature[name], constants[name] = "constexpr", 1
        else:
            signature[name] = "i32"
            if value % 16 == 0:
                attributes[(index,)] = backend.parse_attr("D")
    signature |= dict.fromkeys(launch.flags, "constexpr")
    source = ASTSource(launch.kernel, signature, constants, attributes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Triton's warnings about its own defaults
        made = triton.compile(source, target=where, options={"num_warps": launch.num_warps})
    taken = ((signature[name], value) for name, value in zip(names, launch.args) if name not in constants)
    return Built(made.asm["hsaco"], made.metadata.name, made.metadata.shared, tuple(taken), made.asm["amdgcn"])


def compiled(launch: Launch, target: Target) -> dict[str, Any]:
    """Compile one launch and read the table at the end of its assembly.

    Returns:
        ``kernel``, ``num_warps``, ``vgprs``, ``agprs``, ``sgprs``, ``vgpr_spills``, ``sgpr_spills``,
        ``scratch_nbytes``, ``lds_nbytes``, ``wavefront``, ``code_nbytes``.

    Raises:
        RuntimeError: this Triton does not compile for the target.
    """
    made = built(launch, target)
    text = made.assembly.partition(".amdgpu_metadata")[2]
    found = {name: int(number) for name, number in re.findall(r"^  [ -] \.(\w+): +(\d+)$", text, re.MULTILINE)}
    return {
        "kernel": launch.kernel.__name__,
        "num_warps": launch.num_warps,
        "vgprs": found["vgpr_count"],
        "agprs": found.get("agpr_count", 0),
        "sgprs": found["sgpr_count"],
        "vgpr_spills": found["vgpr_spill_count"],
        "sgpr_spills": found["sgpr_spill_count"],
        "scratch_nbytes": found["private_segment_fixed_size"],
        "lds_nbytes": max(made.lds_nbytes, found["group_segment_fixed_size"]),
        "wavefront": found["wavefront_size"],
        "code_nbytes": len(made.code),
    }


def rows(
    targets: dict[str, int], dtypes: dict[str, torch.dtype], cases: tuple[CompiledCase, ...] = CASES
) -> Iterator[dict]:
    """Compile every case for every target; one row per launch."""
    for name, n_units in targets.items():
        target = target_of(name, n_units)
        for case in cases:
            for word, dtype in dtypes.items():
                for launch in launches(case, dtype, target):
                    yield {"target": name, "case": case.name, "dtype": word, **compiled(launch, target)}


def lds_limit(name: str) -> int:
    """Bytes of LDS per workgroup: 64 KiB, or more if the architecture has more."""
    known = architecture(name)
    return (known.lds_kib if known is not None and known.is_cdna else LDS_KIB) * 1024


def source_digest() -> str:
    """Digest of everything that the table depends on besides Triton and where our modules lie."""
    digest = hashlib.sha256()
    for path in sorted(Path(launching.__file__).parent.glob("*.py")):
        if path.name.endswith("_kernels.py") or path.name == "shapes.py":
            lines = path.read_bytes().splitlines(keepends=True)
            digest.update(b"".join(line for line in lines if not line.startswith(b"from gfxgraph")))
    return digest.hexdigest()


def table(found: list[dict[str, Any]]) -> str:
    """Readable rows: the largest numbers of each kernel for each target."""
    lines = [f"{'target':<9} {'kernel':<20} {'wavefront':>9} {'VGPRs':>6} {'SGPRs':>6} {'LDS':>7} {'spills':>7}"]
    for target in dict.fromkeys(row["target"] for row in found):
        for kernel in dict.fromkeys(row["kernel"] for row in found if row["target"] == target):
            mine = [row for row in found if row["target"] == target and row["kernel"] == kernel]
            vgprs, sgprs, lds = (max(row[key] for row in mine) for key in ("vgprs", "sgprs", "lds_nbytes"))
            spills = sum(row["vgpr_spills"] + row["sgpr_spills"] for row in mine)
            lines.append(
                f"{target:<9} {kernel:<20} {mine[0]['wavefront']:>9} {vgprs:>6} {sgprs:>6} {lds:>7} {spills:>7}"
            )
    return "\n".join(lines)
