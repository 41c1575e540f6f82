"""Random programs as data: what a fuzzed program is made of, and the Python source it stands for.

A program is a flat list of genes (a kind of statement and one number that settles all its choices).
An ``Emitter`` turns genes into source while it keeps track of every variable's shape, dtype and
memory; each choice is taken modulo what is possible there, so *any* list of genes is a valid program.
That is what makes failures shrink: taking a gene out, or its number down, leaves a valid program.

What the grammar keeps out, because eager and replay may rightly differ there: memory that was never
written, values that Python computes with, unsynchronized streams, sums whose order is not fixed
(products and scattered sums get small whole numbers, which are exact in any order).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

FLOATS = ("float32", "float16", "bfloat16", "float64")
INTS = ("int64", "int32")
DTYPES = (*FLOATS, *INTS, "bool")
SIZES = (3, 4, 2, 1, 5, 8, 0)
N_STREAMS = 4


@dataclass(frozen=True)
class Gene:
    """One statement to be: its kind, and the number that all its choices are taken from."""

    kind: str
    number: int


@dataclass(frozen=True)
class External:
    """A tensor that exists before the capture. ``layout`` 1 is transposed, 2 strided; ``place`` where it lies."""

    shape: tuple[int, ...]
    dtype: str
    layout: int = 0
    place: str = "cuda"  # "cuda", "cpu", "pinned", "param"
    view_of: int | None = None  # a view of an earlier external: overlapping memory


@dataclass(frozen=True)
class Program:
    """A whole fuzzed program.

    Args:
        bodies: one list of genes per captured function; a later one reads the earlier ones' results.
        mode: "", "no_grad" or "inference_mode", around captures and eager calls.
        shares_pool: later captures use the first one's pool.
        results: bit i decides whether the i-th variable of a body is among its results.
        dies_after: raise an error of the user's own after that many lines, in a first attempt.
    """

    externals: tuple[External, ...]
    bodies: tuple[tuple[Gene, ...], ...]
    mode: str = ""
    shares_pool: bool = True
    results: int = -1
    dies_after: int | None = None

    def emit(self, has_opaque: bool = True) -> Emitted:
        return _emit(self, has_opaque)

    def source(self, settings: str = 'simulate="cuda"') -> str:
        """The program as a script that checks itself; ``settings`` are the arguments of ``enable``."""
        return self.emit().script(self, settings)


@dataclass
class Emitted:
    """Source of a program, in the parts in which a harness runs it."""

    setup: str
    bodies: list[str]
    tags: set[str]

    def script(self, program: Program, settings: str) -> str:
        from fuzz_check import HEAD

        call = (
            f"check(globals(), [{', '.join(f'body{i}' for i in range(len(self.bodies)))}], {sorted(self.tags)}, "
            f"{program.mode!r}, {program.shares_pool}, dies={program.dies_after is not None})"
        )
        return "\n".join([HEAD.format(settings=settings), self.setup, *self.bodies, call])


@dataclass
class Var:
    """A tensor variable: what is known of it, and ``root``, the memory it lies in."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    root: int
    writable: bool = True
    contiguous: bool = False
    host: bool = False

    @property
    def numel(self) -> int:
        n = 1
        for size in self.shape:
            n *= size
        return n

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS


class Picks:
    """Choices out of one number, most significant last: 0 is always the plainest choice."""

    def __init__(self, number: int) -> None:
        self.rest = number

    def __call__(self, n: int) -> int:
        if n <= 1:
            return 0
        self.rest, choice = divmod(self.rest, n)
        return choice

    def of(self, items: Sequence) -> object:
        return items[self(len(items))]


KINDS: dict[str, Callable[[Emitter, Picks], None]] = {}
WEIGHTS: dict[str, int] = {}


def kind(weight: int = 4) -> Callable:
    """Make the function a kind of statement; heavier ones are drawn more often."""

    def register(function: Callable) -> Callable:
        KINDS[function.__name__] = function
        WEIGHTS[function.__name__] = weight
        return function

    return register


@dataclass
class Emitter:
    """Source lines in the making, and the variables in reach."""

    queue: Iterator[Gene]
    scope: list[Var]
    has_opaque: bool = True
    inference: bool = False
    params: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    tags: set[str] = field(default_factory=set)
    depth: int = 0
    nesting: int = 0
    streams_used: int = 0
    read_only: frozenset[int] = frozenset()
    deletable: list[Var] = field(default_factory=list)
    made: list[Var] = field(default_factory=list)
    n_names: int = 0
    n_roots: int = 1000
    prefix: str = "v"

    # -- lines and names

    def line(self, text: str) -> None:
        self.lines.append("    " * (self.depth + 1) + text)

    def name(self) -> str:
        self.n_names += 1
        return f"{self.prefix}{self.n_names}"

    def new(
        self,
        expression: str,
        shape: Sequence[int],
        dtype: str,
        base: Var | None = None,
        writable: bool = True,
        contiguous: bool = False,
        host: bool = False,
    ) -> Var:
        """Assign ``expression`` to a new variable; ``base`` is the variable whose memory it may share."""
        name = self.name()
        self.line(f"{name} = {expression}")
        return self.add(Var(name, tuple(shape), dtype, self.root_of(base), writable, contiguous, host), base)

    def root_of(self, base: Var | None) -> int:
        if base is not None:
            return base.root
        self.n_roots += 1
        return self.n_roots

    def add(self, var: Var, base: Var | None = None) -> Var:
        if base is not None and not base.writable:
            var = replace(var, writable=False)
        self.scope.append(var)
        self.deletable.append(var)
        self.made.append(var)
        return var

    # -- picking

    def pick(self, p: Picks, want: Callable[[Var], bool] = lambda v: True) -> Var | None:
        """A variable in reach that ``want`` accepts; the most recent ones come first."""
        found = [v for v in reversed(self.scope) if want(v)]
        return found[p(len(found))] if found else None

    def device(self, p: Picks, want: Callable[[Var], bool] = lambda v: True) -> Var:
        """A device tensor that ``want`` accepts, made if there is none."""
        found = self.pick(p, lambda v: not v.host and want(v))
        return found if found is not None else self._plain(want)

    def _plain(self, want: Callable[[Var], bool]) -> Var:
        for dtype in DTYPES:
            for shape in ((3, 4), (4,), ()):
                trial = Var("", shape, dtype, -1, contiguous=True)
                if want(trial):
                    return self.new(
                        f"torch.ones({shape}, dtype=torch.{dtype}, device='cuda')", shape, dtype, contiguous=True
                    )
        raise LookupError("no plain tensor satisfies the condition")

    def can_write(self, var: Var) -> bool:
        return var.writable and var.root not in self.read_only

    def target(self, p: Picks, want: Callable[[Var], bool] = lambda v: True) -> Var:
        return self.device(p, lambda v: self.can_write(v) and want(v))

    def source_for(self, p: Picks, target: Var) -> str:
        """An expression of the target's dtype that broadcasts to its shape and does not overlap it."""
        other = self.device(p)
        cast = "" if other.dtype == target.dtype else f".to(torch.{target.dtype})"
        if other.is_float and target.dtype in INTS:
            cast = f".nan_to_num(1.0, 2.0, -2.0).clamp(-9, 9).to(torch.{target.dtype})"
        text = fitted(other, target.shape) + cast
        return text + ".clone()" if other.root == target.root and not cast else text

    # -- blocks

    def statements(self, n: int) -> None:
        """The next ``n`` genes as statements; a line of ``pass`` where there are none."""
        before = len(self.lines)
        for _ in range(n):
            gene = next(self.queue, None)
            if gene is None:
                break
            KINDS[gene.kind](self, Picks(gene.number))
        if len(self.lines) == before:
            self.line("pass")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        self.line(head)
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1


def fitted(var: Var, shape: Sequence[int]) -> str:
    """An expression of ``var`` that broadcasts to ``shape``."""
    if broadcasts(var.shape, shape):
        return var.name
    if var.numel == 0:
        return f"{var.name}.sum().to({var.name}.dtype)"
    return f"{var.name}.reshape(-1)[{var.numel - 1}]"


def broadcasts(small: Sequence[int], large: Sequence[int]) -> bool:
    if len(small) > len(large):
        return False
    return all(a == b or a == 1 for a, b in zip(reversed(small), reversed(large)))


def _emit(program: Program, has_opaque: bool) -> Emitted:
    setup, scope, params = _setup(program.externals)
    bodies: list[str] = []
    tags: set[str] = set()
    inputs: list[Var] = []
    for number, genes in enumerate(program.bodies):
        emitter = Emitter(
            iter(genes),
            list(scope),
            has_opaque=has_opaque,
            inference=program.mode == "inference_mode",
            params=[] if program.mode else params,
            prefix="v" if number == 0 else "w",
            n_roots=1000 * (number + 1),
        )
        emitter.statements(len(genes))
        if number == 0 and program.dies_after is not None and emitter.lines:
            _insert_error(emitter.lines, program.dies_after % len(emitter.lines))
        results = [v for i, v in enumerate(emitter.scope[len(scope) :]) if program.results >> (i % 60) & 1]
        text = [f"def body{number}(trace):", *emitter.lines]
        if number:
            text.insert(
                1, "    " + "; ".join(f"{v.name} = RESULTS[{v.name!r}]" for v in inputs) if inputs else "    pass"
            )
        text.append("    return {" + ", ".join(f"{v.name!r}: {v.name}" for v in results) + "}")
        bodies.append("\n".join(text))
        tags |= emitter.tags
        inputs = [v for v in results if not v.host]
        scope = [*scope, *inputs]
    return Emitted("\n".join(setup), bodies, tags)


def _insert_error(lines: list[str], at: int) -> None:
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    lines.insert(at, f"{indent}if DIES: raise Boom()")


def _setup(externals: Sequence[External]) -> tuple[list[str], list[Var], list[str]]:
    """Lines that make the externals (names x0, x1, ...), their variables, and the parameters' names."""
    lines: list[str] = []
    scope: list[Var] = []
    params: list[str] = []
    for i, external in enumerate(externals):
        base = scope[external.view_of] if external.view_of is not None and external.view_of < len(scope) else None
        name = f"x{i}"
        if base is not None and base.shape and base.numel and not base.host:
            lines.append(f"{name} = {base.name}[{base.shape[0] // 2}:]")
            shape = (base.shape[0] - base.shape[0] // 2, *base.shape[1:])
            scope.append(Var(name, shape, base.dtype, base.root))
            continue
        dtype = external.dtype
        if external.place == "param":
            dtype = dtype if dtype in FLOATS else "float32"
            params.append(name)
        lines.append(
            f"{name} = external({i}, {external.shape}, torch.{dtype}, {external.layout}, {external.place!r})"
        )
        host = external.place in ("cpu", "pinned")
        if external.place != "param":  # parameters are reached by autograd statements only
            scope.append(Var(name, external.shape, dtype, i, contiguous=external.layout == 0, host=host))
        else:
            scope.append(Var(f"{name}.detach()", external.shape, dtype, i, writable=False))
    return lines, scope, params


def random_program(seed: int, longest: int = 22) -> Program:
    """The program of ``seed``, for runs that record seeds."""
    rng = random.Random(seed)
    kinds = list(WEIGHTS)
    weights = [WEIGHTS[k] for k in kinds]

    def genes(n: int) -> tuple[Gene, ...]:
        return tuple(Gene(k, rng.getrandbits(62)) for k in rng.choices(kinds, weights, k=n))

    bodies = [genes(rng.randint(2, longest))]
    if rng.random() < 0.2:
        bodies.append(genes(rng.randint(2, longest // 2)))
    return Program(
        externals=tuple(random_external(rng, i) for i in range(rng.randint(1, 5))),
        bodies=tuple(bodies),
        mode=rng.choice(("", "", "no_grad", "inference_mode")),
        shares_pool=rng.random() < 0.7,
        results=rng.getrandbits(60) if rng.random() < 0.8 else -1,
        dies_after=rng.randint(1, 12) if rng.random() < 0.1 else None,
    )


PLACES = ("cuda",) * 8 + ("param", "param", "cpu", "pinned")


def random_external(rng: random.Random, index: int) -> External:
    shape = tuple(rng.choice(SIZES) for _ in range(rng.randint(0, 3)))
    view_of = rng.randrange(index) if index and rng.random() < 0.15 else None
    return External(shape, rng.choice(DTYPES), rng.randrange(3), rng.choice(PLACES), view_of)
