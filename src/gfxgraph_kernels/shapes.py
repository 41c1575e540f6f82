"""Sizes of workgroups and tiles: derived from the architecture's numbers; on NVIDIA GPUs, measured.

docs/decisions/kernels.md argues for both. A layer uses the sizes of the measured layer that is nearest in outputs and
inputs, with the same number of rows or the next larger.

Enters: sizes, an architecture's name, what architectures.toml says of it.
Stays out: torch, Triton, clocks. What was compiled with these is in benchmarks/results/kernels_code_objects.json.
Source: benchmarks/tune_layers.py and benchmarks/tune_kernels.py on an H200.
"""

from __future__ import annotations

import functools
import math
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

from gfxgraph.hardware.architectures import architecture

LARGEST_ROW = 16384
"""Elements of a row that one workgroup holds in registers."""
MOST_VECTOR_ROWS = 4
"""Up to here each row of a linear layer is multiplied by vector instructions; from there on in tiles."""
MOST_ROWS = 32
MOST_SPLITS = 32
LEAST_KEYS = 256
"""Of a part of the keys: below it the launch that joins the parts costs more than they save."""
INTERPRETER = "interpreter"
"""Name of the target of Triton's interpreter, where a program costs more than what it computes."""


@dataclass(frozen=True, slots=True)
class Target:
    """What sizes depend on.

    Attributes:
        name: ``gfx1030``, or ``sm_90``.
        wavefront: lanes that run together.
        has_matrix: whether there are matrix instructions (MFMA, WMMA, tensor cores).
        has_bf16_dot: whether bf16 goes into them without conversion.
        n_units: compute units, or multiprocessors.
    """

    name: str
    wavefront: int = 32
    has_matrix: bool = True
    has_bf16_dot: bool = True
    n_units: int = 64

    @property
    def is_nvidia(self) -> bool:
        """True where sizes were measured."""
        return not self.name.startswith("gfx") and self.name != INTERPRETER

    @property
    def is_rdna(self) -> bool:
        """True for gfx10 to gfx12."""
        return self.name.startswith(("gfx10", "gfx11", "gfx12"))


def target_of(arch: str, n_units: int = 64) -> Target:
    """The target of a gfx name; for others (``sm_90``) 32 lanes and matrix instructions."""
    name = arch.split(":")[0]
    known = architecture(name)
    if known is None:
        return Target(name, n_units=n_units)
    # Triton compiles RDNA for wave32 and GCN and CDNA for wave64; MFMA of gfx908 and later, WMMA of gfx11 and later.
    has_matrix = known.matrix not in ("none", "")
    return Target(name, known.wavefront, has_matrix, has_matrix and known.bf16 == "matrix", n_units)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least ``n``, and at least 1."""
    return 1 << max(0, n - 1).bit_length()


def rows(n: int, target: Target) -> tuple[int, int]:
    """Elements and warps of a row's workgroup: eight elements a lane if there are enough, 512 lanes at most."""
    block = max(power_of_two(n), target.wavefront)
    return block, min(512, max(target.wavefront, block // 8)) // target.wavefront


@dataclass(frozen=True, slots=True)
class Linear:
    """How a linear layer of few rows is worked on.

    Attributes:
        is_vector: rows times weights by vector instructions, the sum over k taken once, at the end.
        block_m, block_n, block_k: rows, outputs and inputs of a tile.
        splits: workgroups that share the inputs of one tile; above 1 a second kernel adds up.
        num_stages: loads underway of a tile; 0, as many as the compiler has for the target.
        ahead: workgroups that have the cache fetch their weights before it is their turn.
    """

    is_vector: bool
    block_m: int
    block_n: int
    block_k: int
    splits: int
    num_warps: int
    num_stages: int = 0
    ahead: int = 0


AHEAD_NBYTES = 12 << 20
"""Smaller weights are prefetched, for one row. In a step with larger weights that took more time than it saved."""
ROOMY = ("sm_90", "sm_100", "sm_103")
"""Targets with 227 KiB of shared memory per workgroup; others have 99 or more."""
LEAST_INPUTS = 256
"""Layers with fewer inputs use derived sizes."""
ROWS = (1, 2, 4, 8, 32)


@functools.cache
def measured() -> dict[str, list[list[int]]]:
    """``measured_sizes.toml``: by rows, with " gate" where it is one."""
    text = Path(__file__).with_name("measured_sizes.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def linear(m: int, n: int, k: int, target: Target, *, is_pair: bool = False, is_half: bool = True) -> Linear:
    """For ``m`` rows, ``n`` outputs, ``k`` inputs.

    Weights are read once, so what matters is enough loads underway: 16 bytes a lane, every unit busy. Inputs are
    split where outputs alone give fewer than two workgroups a unit.

    Args:
        is_pair: two weights are read by one workgroup (a gate).
        is_half: 16-bit elements, which matrix instructions take.
    """
    # Rows by vector instructions need hardly any shared memory, tiles up to 220 KiB.
    if target.is_nvidia and is_half and k >= LEAST_INPUTS and (m == 1 or target.name in ROOMY):
        how = _nearest(m, n, k, is_pair)
    else:
        how = _derived(m, n, k, target, is_pair, is_half)
    return fetching_ahead(how, n, k, is_pair=is_pair, is_half=is_half) if target.is_nvidia else how


def _derived(m: int, n: int, k: int, target: Target, is_pair: bool, is_half: bool) -> Linear:
    wanted = 2 * target.n_units
    if target.name == INTERPRETER:
        block_k = min(power_of_two(k), 64 if m > MOST_VECTOR_ROWS else 128)
        splits = _splits(n, k, 64, block_k, 2)
        return Linear(m <= MOST_VECTOR_ROWS, power_of_two(min(max(m, 1), MOST_ROWS)), 64, block_k, splits, 4)
    if m <= MOST_VECTOR_ROWS:
        warps = 4 if target.wavefront == 32 else 2
        block_m = power_of_two(m)
        block_k = min(max(power_of_two(k), target.wavefront), 1024 if block_m == 1 else 512)
        block_n = 4 if block_m == 1 and not is_pair else 2
        if block_m * block_n * block_k >= 1024 * 4 and is_pair:
            block_n = 2 if block_m < 4 else 1
        while block_n > 1 and -(-n // block_n) < wanted:
            block_n //= 2
        return Linear(True, block_m, block_n, block_k, _splits(n, k, block_n, block_k, wanted), warps)
    block_m = 16 if m <= 16 else 32
    has_matrix = is_half and target.has_matrix
    block_n = 32 if is_pair or not has_matrix else 64
    while block_n > 16 and -(-n // block_n) < wanted:
        block_n //= 2
    # Tiles without matrix instructions are held in registers: half as deep, two weights of fp32 a quarter.
    block_k = min(max(power_of_two(k), 16), 64 if has_matrix else 32 if is_half or not is_pair else 16)
    splits = _splits(n * -(-m // block_m), k, block_n, block_k * 4, wanted)
    return Linear(False, block_m, block_n, block_k, splits, 4)


def _nearest(m: int, n: int, k: int, is_pair: bool) -> Linear:
    rows = next((rows for rows in ROWS if m <= rows), ROWS[-1])
    points = measured()[f"{rows} gate" if is_pair else f"{rows}"]
    at = min(points, key=lambda at: abs(math.log(n / at[0])) + abs(math.log(k / at[1])))
    is_vector, block_n, block_k, splits, warps, stages = bool(at[2]), *at[3:]
    block_m = power_of_two(m) if is_vector else min(max(16, power_of_two(m)), MOST_ROWS)
    return Linear(is_vector, block_m, block_n, min(block_k, power_of_two(k)), splits, warps, stages)


def fetching_ahead(how: Linear, n: int, k: int, *, is_pair: bool = False, is_half: bool = True) -> Linear:
    """The same sizes, with weights prefetched if they are smaller than `AHEAD_NBYTES`."""
    nbytes = n * k * (2 if is_half else 4) * (1 + is_pair)
    is_ahead = how.block_m == 1 and nbytes < AHEAD_NBYTES
    return replace(how, ahead=-(-n // how.block_n) if is_ahead else 0)


def _splits(n: int, k: int, block_n: int, block_k: int, wanted: int) -> int:
    """A power of two; each split has a whole block of inputs at least."""
    splits = 1
    while splits < MOST_SPLITS and -(-n // block_n) * splits < wanted and splits * 2 * block_k <= k:
        splits *= 2
    return splits


@dataclass(frozen=True, slots=True)
class Attention:
    """How one query a head attends: workgroups for each part of the keys, and each head or those that share keys.

    Attributes:
        group: at least the heads of a workgroup; 1, of one alone.
    """

    group: int
    width: int
    block: int
    splits: int
    num_warps: int
    is_dot: bool


def attention(
    batch: int, heads: int, shared: int, length: int, width: int, target: Target, *, is_half: bool = True
) -> Attention:
    """For a cache of ``length`` keys: by matrix instructions heads that share keys are one workgroup's, else each is.

    Args:
        is_half: 16-bit elements, which matrix instructions take.
    """
    group, width = power_of_two(heads // shared), power_of_two(width)
    if target.is_nvidia and is_half and width >= 16:
        return _measured_attention(batch * shared, group, width, length, target)
    # WMMA tiles of 16 queries, most of them empty, take more registers than RDNA has: it spilled on gfx1100.
    is_dot = is_half and target.has_matrix and not target.is_rdna and width >= 16 and group >= 4
    is_interpreter = target.name == INTERPRETER
    wanted, least = (4, 64) if is_interpreter else (2 * target.n_units, LEAST_KEYS)
    # A mask of each element takes one scalar register of a wave32, two of a wave64: more elements a lane spill those.
    block = 32 if is_dot else max(4, min(128, (8192 if target.is_nvidia else 4096) // width))
    splits = 1
    n = batch * (shared if is_dot else heads)
    while splits < MOST_SPLITS and n * splits < wanted and splits * 2 * least <= length:
        splits *= 2
    return Attention(max(group, 16) if is_dot else 1, width, block, splits, 4 if is_dot else 8, is_dot)


def _measured_attention(n: int, group: int, width: int, length: int, target: Target) -> Attention:
    splits, is_alone, block, warps = 1, 0, 64, 4
    if length < 2 * LEAST_KEYS:
        rows = measured()["attention"]
        is_alone, block, warps = next(r[3:] for r in rows if n >= r[0] and group <= r[1] and width <= r[2])
    else:
        while splits < 16 and n * splits < 3 * target.n_units and splits * 128 <= length:
            splits *= 2
    # Two blocks of keys and of values are in flight: 10.4 bytes of shared memory per element.
    block = max(16, min(block, (16384 if target.name in ROOMY else 8192) // width))
    return Attention(1 if is_alone else max(group, 16), width, block, splits, warps, not is_alone)
