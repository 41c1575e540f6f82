"""Sizes of workgroups and tiles, by the numbers of the architecture; docs/decisions/kernels.md argues for them.

For AMD's GPUs and the interpreter, and where measured_shapes.py says nothing else.

Enters: sizes, an architecture's name, what architectures.toml says of it.
Stays out: torch, Triton, clocks. What was compiled with these is in benchmarks/results/kernels_code_objects.json.
"""

from __future__ import annotations

from dataclasses import dataclass

from gfxgraph.hardware.architectures import architecture

LARGEST_ROW = 16384
"""Elements of a row that one workgroup holds in registers; longer rows are read in pieces."""
PIECE = 4096
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


@dataclass(frozen=True, slots=True)
class Rows:
    """How rows are worked on, one workgroup a row: norms, softmax."""

    block: int
    is_one: bool
    """The whole row fits in a block: it is read once."""
    num_warps: int


def rows(n: int, target: Target) -> Rows:
    """For rows of ``n`` elements: eight elements a lane where there are enough, at most 512 lanes."""
    is_one = n <= LARGEST_ROW
    block = max(power_of_two(n) if is_one else PIECE, target.wavefront)
    lanes = min(512, max(target.wavefront, block // 8))
    return Rows(block, is_one, lanes // target.wavefront)


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


def linear(m: int, n: int, k: int, target: Target, *, is_pair: bool = False, is_half: bool = True) -> Linear:
    """For ``m`` rows, ``n`` outputs, ``k`` inputs.

    Weights are read once, so what matters is enough loads underway: 16 bytes a lane, every unit busy. Inputs are
    split where outputs alone give fewer than two workgroups a unit.

    Args:
        is_pair: two weights are read by one workgroup (a gate).
        is_half: 16-bit elements, which matrix instructions take.
    """
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


def _splits(n: int, k: int, block_n: int, block_k: int, wanted: int) -> int:
    """A power of two; each split has a whole block of inputs at least."""
    splits = 1
    while splits < MOST_SPLITS and -(-n // block_n) * splits < wanted and splits * 2 * block_k <= k:
        splits *= 2
    return splits


@dataclass(frozen=True, slots=True)
class Attention:
    """How one query a head attends: workgroups for each shared head and each part of the keys."""

    group: int
    width: int
    block: int
    splits: int
    num_warps: int
    is_dot: bool


def attention(
    batch: int, heads: int, shared: int, length: int, width: int, target: Target, *, is_half: bool = True
) -> Attention:
    """For a cache of ``length`` keys: heads that share keys are one workgroup's, which reads those once.

    Args:
        is_half: 16-bit elements, which matrix instructions take.
    """
    group, width = power_of_two(heads // shared), power_of_two(width)
    # WMMA tiles of 16 queries, most of them empty, take more registers than RDNA has: it spilled on gfx1100.
    is_dot = is_half and target.has_matrix and not target.is_rdna and width >= 16 and group >= 4
    is_interpreter = target.name == INTERPRETER
    wanted, least = (4, 64) if is_interpreter else (2 * target.n_units, LEAST_KEYS)
    # A mask of each element takes one scalar register of a wave32, two of a wave64: more elements a lane spill those.
    block = 32 if is_dot else max(4, min(128, 4096 // (group * width)))
    splits = 1
    while splits < MOST_SPLITS and batch * shared * splits < wanted and splits * 2 * least <= length:
        splits *= 2
    return Attention(max(group, 16) if is_dot else group, width, block, splits, 4 if is_dot else 8, is_dot)


def choice_block(target: Target) -> tuple[int, int]:
    """Scores that one workgroup compares, and its number of warps."""
    return 2048, 256 // target.wavefront
