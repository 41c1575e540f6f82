"""The kinds of statements that fuzzed programs are made of; each function writes one statement.

The order matters for shrinking: kinds that stand earlier are the plainer ones.
"""

from __future__ import annotations

from dataclasses import replace

from fuzz_grammar import DTYPES, FLOATS, INTS, N_STREAMS, SIZES, Emitter, Picks, Var, fitted, kind

# -- nothing, creation, host copies of nothing -----------------------------------------------------


@kind(1)
def nothing(e: Emitter, p: Picks) -> None:
    """No statement: what others shrink to."""


def _shape(p: Picks) -> tuple[int, ...]:
    return tuple(SIZES[p(len(SIZES))] for _ in range((2, 1, 0, 3)[p(4)]))


@kind(5)
def create(e: Emitter, p: Picks) -> None:
    shape, dtype = _shape(p), DTYPES[p(len(DTYPES))]
    made = f"dtype=torch.{dtype}, device='cuda')"
    n = shape[0] if shape else 3
    what = p(8)
    if what == 0:
        e.new(f"torch.zeros({shape}, {made}", shape, dtype, contiguous=True)
    elif what == 1:
        e.new(f"torch.full({shape}, {('1.5', '2', 'True')[_kind_of(dtype)]}, {made}", shape, dtype, contiguous=True)
    elif what == 2:
        dtype = dtype if dtype != "bool" else "int64"
        e.new(f"torch.arange({n}, dtype=torch.{dtype}, device='cuda')", (n,), dtype, contiguous=True)
    elif what == 3:
        e.new(f"torch.eye({n}, 3, {made}", (n, 3), dtype, contiguous=True)
    elif what == 4:
        e.new(f"torch.empty({shape}, {made}.fill_(1)", shape, dtype, contiguous=True)
    elif what == 5:
        like = e.device(p)
        e.new(f"torch.ones_like({like.name})", like.shape, like.dtype)
    elif what == 6:
        like = e.device(p)
        e.new(f"torch.empty_like({like.name}).copy_({like.name})", like.shape, like.dtype)
    else:
        like = e.device(p)
        e.new(f"{like.name}.new_zeros({shape})", shape, like.dtype, contiguous=True)


def _kind_of(dtype: str) -> int:
    return 0 if dtype in FLOATS else (1 if dtype in INTS else 2)


# -- operations without side effects ------------------------------------------------------------------

_FLOAT_UNARY = (
    "{} * 2", "{} + 1", "{}.relu()", "-{}", "{}.abs()", "{}.sin()", "{}.tanh()", "{}.sigmoid()", "{}.square()",
    "{}.floor()", "{}.clamp(-1, 1)", "{}.nan_to_num(0.5)", "({}.abs() + 1).rsqrt()", "{}.clamp(-4, 4).exp()",
    "F.gelu({})", "F.silu({})", "{} / 3", "2 - {}", "{}.clone()", "torch.where({} > 0, {}, -1)", "{}.erf()",
)  # fmt: skip
_INT_UNARY = ("{} + 1", "{} * 3", "-{}", "{}.abs()", "{} % 7", "~{}", "{}.clamp(-5, 5)", "{} >> 1", "{}.clone()")
_BOOL_UNARY = ("~{}", "{}.clone()", "{} ^ True")


@kind(14)
def unary(e: Emitter, p: Picks) -> None:
    x = e.device(p)
    forms = (_FLOAT_UNARY, _INT_UNARY, _BOOL_UNARY)[_kind_of(x.dtype)]
    e.new(str(p.of(forms)).replace("{}", x.name), x.shape, x.dtype)


@kind(4)
def cast(e: Emitter, p: Picks) -> None:
    x, dtype = e.device(p), DTYPES[p(len(DTYPES))]
    text = f"{x.name}.nan_to_num(0, 1, -1).clamp(-99, 99)" if x.is_float and dtype in INTS else x.name
    shared = x if dtype == x.dtype else None
    e.new(f"{text}.to(torch.{dtype})", x.shape, dtype, base=shared)


@kind(10)
def binary(e: Emitter, p: Picks) -> None:
    x = e.device(p)
    y = e.device(p, lambda v: v.dtype == x.dtype)
    other = fitted(y, x.shape)
    if x.dtype == "bool":
        e.new(f"{x.name} {('&', '|', '^')[p(3)]} {other}", x.shape, "bool")
        return
    what = p(8)
    if what < 3:
        e.new(f"{x.name} {'+-*'[what]} {other}", x.shape, x.dtype)
    elif what < 5:
        e.new(f"torch.{('maximum', 'minimum')[what - 3]}({x.name}, {other})", x.shape, x.dtype)
    elif what == 5:
        e.new(f"{x.name} {('<', '==', '>=')[p(3)]} {other}", x.shape, "bool")
    elif what == 6 and x.is_float:
        e.new(f"{x.name} / ({other}.abs() + 1)", x.shape, x.dtype)
    else:
        mask = e.device(p, lambda v: v.dtype == "bool")
        e.new(f"torch.where({fitted(mask, x.shape)}, {x.name}, {other})", x.shape, x.dtype)


@kind(6)
def reduce(e: Emitter, p: Picks) -> None:
    x = e.device(p, lambda v: v.numel > 0)
    dim = p(len(x.shape)) if x.shape else None
    rest = x.shape[:dim] + x.shape[dim + 1 :] if dim is not None else ()
    at = "" if dim is None else str(dim)
    what = p(6)
    if x.dtype == "bool":
        e.new(f"{x.name}.{('any', 'all')[what % 2]}({at})", rest, "bool")
    elif what == 0:
        e.new(f"{x.name}.sum({at})", rest, x.dtype if x.is_float else "int64")
    elif what == 1:
        e.new(f"{x.name}.amax({at})", rest, x.dtype)
    elif what == 2:
        e.new(f"{x.name}.argmax({at})", rest, "int64")
    elif what == 3 and x.is_float:
        e.new(f"{x.name}.mean({at})", rest, x.dtype)
    elif what == 4 and x.is_float and dim is not None:
        e.new(f"{x.name}.softmax({at})", x.shape, x.dtype)
    elif what == 5 and dim is not None:
        e.new(f"q({x.name}).cumsum({at})", x.shape, x.dtype if x.is_float else "int64")
    else:
        e.new(f"{x.name}.sum()", (), x.dtype if x.is_float else "int64")


@kind(5)
def product(e: Emitter, p: Picks) -> None:
    """Matrix products of small whole numbers: exact in any order."""
    x = e.device(p, lambda v: v.dtype in FLOATS[:3] and v.numel > 0)
    k = x.shape[-1] if x.shape else 1
    flat = f"q({x.name}).reshape(-1, {k})"
    rows = x.numel // k
    what = p(4)
    if what == 0:
        e.new(f"{flat} @ {flat}.t()", (rows, rows), x.dtype)
    elif what == 1:
        e.new(
            f"torch.addmm(torch.ones({k}, dtype=torch.{x.dtype}, device='cuda'), {flat}.t(), {flat})", (k, k), x.dtype
        )
    elif what == 2:
        e.new(f"torch.bmm({flat}.unsqueeze(0), {flat}.t().unsqueeze(0))", (1, rows, rows), x.dtype)
    else:
        e.new(f"F.linear({flat}, torch.eye(2, {k}, dtype=torch.{x.dtype}, device='cuda'))", (rows, 2), x.dtype)


@kind(5)
def shuffle(e: Emitter, p: Picks) -> None:
    """Operations that move elements."""
    x = e.device(p, lambda v: len(v.shape) > 0 and v.numel > 0)
    n = x.shape[-1]
    what = p(10)
    if what == 0:
        e.new(f"torch.cat([{x.name}, {x.name}], -1)", (*x.shape[:-1], 2 * n), x.dtype)
    elif what == 1:
        e.new(f"torch.stack([{x.name}, {x.name}])", (2, *x.shape), x.dtype)
    elif what == 2:
        e.new(f"{x.name}.flip(-1)", x.shape, x.dtype)
    elif what == 3:
        e.new(f"{x.name}.roll(1, -1)", x.shape, x.dtype)
    elif what == 4 and x.dtype != "bool":
        e.new(f"{x.name}.sort(dim=-1, stable=True).values", x.shape, x.dtype)
    elif what == 5:
        index = e.device(p, lambda v: v.dtype == "int64" and len(v.shape) == 1 and v.numel > 0)
        e.new(f"{x.name}.index_select(-1, {index.name} % {n})", (*x.shape[:-1], index.numel), x.dtype)
    elif what == 6:
        index = e.device(p, lambda v: v.dtype == "int64" and len(v.shape) > 0 and v.numel > 0)
        e.new(f"{x.name}[..., {index.name} % {n}]", (*x.shape[:-1], *index.shape), x.dtype)
    elif what == 7:
        e.new(f"{x.name}.repeat_interleave(2, dim=-1)", (*x.shape[:-1], 2 * n), x.dtype)
    elif what == 8:
        e.new(f"{x.name}.take_along_dim({x.name}.argsort(dim=-1, stable=True), -1)", x.shape, x.dtype)
    else:
        e.new(f"F.pad({x.name}, (1, 0))", (*x.shape[:-1], n + 1), x.dtype)


@kind(3)
def several(e: Emitter, p: Picks) -> None:
    """Operations with several results, some of them dropped."""
    x = e.device(p, lambda v: v.dtype != "bool" and len(v.shape) > 0 and v.numel > 0)
    what = p(4)
    a, b = e.name(), e.name()
    rest = x.shape[:-1]
    if what == 0:
        e.line(f"{a}, {b} = {x.name}.max(-1)")
        e.add(Var(a, rest, x.dtype, e.root_of(None)))
        e.add(Var(b, rest, "int64", e.root_of(None)))
    elif what == 1:
        e.line(f"{a}, {b} = {x.name}.aminmax()")
        e.add(Var(a, (), x.dtype, e.root_of(None)))
        e.add(Var(b, (), x.dtype, e.root_of(None)))
    elif what == 2 and x.is_float:
        e.line(f"{a}, {b} = torch._foreach_mul([{x.name}, {x.name}], 2.0)")
        e.add(Var(a, x.shape, x.dtype, e.root_of(None)))
        e.add(Var(b, x.shape, x.dtype, e.root_of(None)))
    else:
        e.line(f"_, {b} = {x.name}.sort(dim=-1, stable=True)")
        e.add(Var(b, x.shape, "int64", e.root_of(None)))


# -- views ------------------------------------------------------------------------------------------------


@kind(12)
def view(e: Emitter, p: Picks) -> None:
    x = e.device(p, lambda v: len(v.shape) > 0)
    s = x.shape
    d = p(len(s))
    what = p(16)
    if what == 0:
        e.new(f"{x.name}.transpose({d}, -1)", _swapped(s, d, len(s) - 1), x.dtype, base=x)
    elif what == 1:
        keep = s[d] - s[d] // 3
        e.new(f"{x.name}.narrow({d}, {s[d] // 3}, {keep})", (*s[:d], keep, *s[d + 1 :]), x.dtype, base=x)
    elif what == 2:
        e.new(f"{x.name}[..., ::2]", (*s[:-1], (s[-1] + 1) // 2), x.dtype, base=x)
    elif what == 3 and s[d]:
        e.new(f"{x.name}.select({d}, {s[d] - 1})", s[:d] + s[d + 1 :], x.dtype, base=x)
    elif what == 4:
        e.new(f"{x.name}.unsqueeze({d})", (*s[:d], 1, *s[d:]), x.dtype, base=x)
    elif what == 5:
        big = e.new(f"{x.name}.unsqueeze(0).expand(2, {', '.join(['-1'] * len(s))})", (2, *s), x.dtype, base=x)
        e.scope[-1] = e.deletable[-1] = e.made[-1] = replace(big, writable=False)
    elif what == 6 and x.contiguous:
        e.new(f"{x.name}.view(-1)", (x.numel,), x.dtype, base=x, contiguous=True)
    elif what == 7:
        e.new(f"{x.name}.reshape({x.numel})", (x.numel,), x.dtype, base=x)
    elif what == 8 and s[d] and s[d] <= 4:
        names = [e.name() for _ in range(s[d])]
        e.line(f"{', '.join(names)}, = {x.name}.unbind({d})")
        for name in names[:3]:
            e.add(Var(name, s[:d] + s[d + 1 :], x.dtype, x.root), x)
    elif what == 9 and len(s) >= 2:
        n = min(s[0], s[1])
        e.new(f"{x.name}.diagonal()", (*s[2:], n), x.dtype, base=x)
    elif what == 10 and x.contiguous and x.dtype == "float32":
        e.new(f"{x.name}.view(torch.int32)", s, "int32", base=x, contiguous=True)
    elif what == 11 and x.contiguous and x.numel >= 4:
        made = e.new(f"{x.name}.as_strided((2, 2), (2, 1), {x.numel - 4})", (2, 2), x.dtype, base=x)
        assert made.root == x.root
    elif what == 12 and s[d] >= 2:
        half = s[d] // 2
        first, second = e.name(), e.name()
        e.line(f"{first}, {second} = {x.name}.split([{half}, {s[d] - half}], {d})")
        e.add(Var(first, (*s[:d], half, *s[d + 1 :]), x.dtype, x.root), x)
        e.add(Var(second, (*s[:d], s[d] - half, *s[d + 1 :]), x.dtype, x.root), x)
    elif what == 13 and s[-1] >= 2:
        made = e.new(f"{x.name}.unfold(-1, 2, 1)", (*s[:-1], s[-1] - 1, 2), x.dtype, base=x)
        e.scope[-1] = e.deletable[-1] = e.made[-1] = replace(made, writable=False)
    elif what == 14:
        e.new(f"{x.name}.view_as({x.name})", s, x.dtype, base=x)
    elif what == 15 and len(s) >= 2:
        e.new(f"{x.name}.flatten(0, 1)", (s[0] * s[1], *s[2:]), x.dtype, base=x)
    else:
        e.new(f"{x.name}.movedim({d}, 0)", (s[d], *s[:d], *s[d + 1 :]), x.dtype, base=x)


def _swapped(shape: tuple[int, ...], a: int, b: int) -> tuple[int, ...]:
    out = list(shape)
    out[a], out[b] = out[b], out[a]
    return tuple(out)


# -- changes in place: of fresh tensors, of views, of what lies outside -------------------------------------


@kind(12)
def in_place(e: Emitter, p: Picks) -> None:
    x = e.target(p)
    what = p(10)
    if x.dtype == "bool":
        e.line((f"{x.name}.logical_not_()", f"{x.name}.copy_({e.source_for(p, x)})")[what % 2])
    elif what == 0:
        e.line(f"{x.name}.add_(1)")
    elif what == 1:
        e.line(f"{x.name}.mul_(2)")
    elif what == 2:
        e.line(f"{x.name}.copy_({e.source_for(p, x)})")
    elif what == 3:
        e.line(f"{x.name}.add_({e.source_for(p, x)})")
    elif what == 4:
        e.line(f"{x.name}.clamp_(-8, 8)")
    elif what == 5:
        e.line(f"{x.name}.zero_()")
    elif what == 6:
        mask = e.device(p, lambda v: v.dtype == "bool")
        e.line(f"{x.name}.masked_fill_({fitted(mask, x.shape)}, 1)")
    elif what == 7 and x.is_float:
        e.line(f"torch._foreach_add_([{x.name}], 1.0)")
    elif what == 8:
        e.line(f"torch.add({x.name}, 1, out={x.name})")
    else:
        name = e.name()
        e.line(f"{name} = {x.name}; {name} += 1; del {name}")


@kind(6)
def assign(e: Emitter, p: Picks) -> None:
    """Assignment through an index."""
    x = e.target(p, lambda v: len(v.shape) > 0 and v.numel > 0)
    n = x.shape[0]
    row = replace(x, shape=x.shape[1:])
    what = p(4)
    if what == 0:
        e.line(f"{x.name}[{n - 1}] = {e.source_for(p, row)}")
    elif what == 1:
        e.line(f"{x.name}[{n // 2}:] = {e.source_for(p, row)}")
    elif what == 2:
        e.line(f"{x.name}[..., ::2] = 1")
    else:
        e.line(f"{x.name}[{x.name} == 1] = 0")


@kind(8)
def cache(e: Emitter, p: Picks) -> None:
    """What a KV cache and a step counter do: a row chosen by a tensor is written, the counter advances."""
    x = e.target(p, lambda v: len(v.shape) > 0 and v.numel > 0)
    n = x.shape[0]
    index = e.device(p, lambda v: v.dtype == "int64" and v.root != x.root and v.numel > 0)
    at = f"({index.name}.reshape(-1)[:1] % {n})"
    row = replace(x, shape=(1, *x.shape[1:]))
    source = f"{e.source_for(p, row)}.expand({row.shape})"
    what = p(4)
    if what == 0:
        e.line(f"{x.name}.index_copy_(0, {at}, {source})")
    elif what == 1 and x.dtype != "bool":
        e.line(f"{x.name}.index_add_(0, {at}, {source})")
    elif what == 2:
        e.line(f"{x.name}.index_fill_(0, {at}, 1)")
    else:
        e.line(f"{x.name}.index_put_(({at},), {source})")
    if e.can_write(index) and index.writable:
        e.line(f"{index.name}.add_(1)")


@kind(4)
def drop(e: Emitter, p: Picks) -> None:
    """Forget a variable: its memory may be used again while the rest of the program runs."""
    found = [v for v in e.deletable if v in e.scope]
    if found:
        victim = found[p(len(found))]
        e.line(f"del {victim.name}")
        e.scope.remove(victim)
        e.deletable.remove(victim)


@kind(3)
def temporaries(e: Emitter, p: Picks) -> None:
    """Many short-lived tensors of one size: memory is used again and again."""
    x = e.device(p, lambda v: v.is_float)
    y = e.name()
    e.line(f"{y} = {x.name}")
    with e.block(f"for k in range({3 + p(6)}):"):
        e.line(f"{y} = ({y} * 0.5 + k).sin()")
    e.add(Var(y, x.shape, x.dtype, e.root_of(None)))


# -- random numbers -----------------------------------------------------------------------------------------


def _generator(e: Emitter, p: Picks) -> str:
    choice = p(5)
    if choice == 3:
        e.tags.add("registered")
        return ", generator=REGISTERED"
    if choice == 4:
        e.tags.add("split")
        return ", generator=FOREIGN"
    return ""


@kind(7)
def rng(e: Emitter, p: Picks) -> None:
    what = p(13)
    generator = _generator(e, p)
    x = e.device(p, lambda v: v.is_float)
    if what == 0:
        shape = _shape(p)
        e.new(f"torch.rand({shape}, device='cuda'{generator})", shape, "float32", contiguous=True)
    elif what == 1:
        e.new(f"torch.rand_like({x.name})", x.shape, x.dtype)
    elif what == 2:
        e.new(f"F.dropout({x.name}, 0.5)", x.shape, x.dtype)
    elif what == 3:
        shape = _shape(p)
        e.new(f"torch.randint(0, 9, {shape}, device='cuda'{generator})", shape, "int64", contiguous=True)
    elif what == 4:
        e.new(f"torch.bernoulli(torch.full_like({x.name}, 0.5){generator})", x.shape, x.dtype)
    elif what == 5:
        shape = _shape(p)
        e.new(f"torch.randn({shape}, device='cuda'{generator})", shape, "float32", contiguous=True)
    elif what == 6:
        _randperm(e, p)
    elif what == 7:
        e.new(f"torch.empty_like({x.name}).exponential_({generator[2:]})", x.shape, x.dtype)
    elif what == 8:
        e.new(f"torch.multinomial(torch.ones(4, device='cuda'), 2{generator})", (2,), "int64")
    else:
        y = e.target(p, lambda v: v.is_float)
        form = ("normal_(0, 1{})", "uniform_(0, 1{})", "bernoulli_(0.5{})", "random_(0, 9{})")[what - 9]
        e.line(f"{y.name}.{form.format(generator)}")


def _randperm(e: Emitter, p: Picks) -> None:
    n = 3 + p(4)
    e.new(f"torch.randperm({n}, device='cuda')", (n,), "int64")


@kind(1)
def reseed(e: Emitter, p: Picks) -> None:
    """Generator states set or read inside the capture."""
    e.tags.add("split")
    what = p(4)
    seed = p(9)
    if what == 0:
        e.line(f"torch.cuda.manual_seed({seed})")
    elif what == 1:
        e.line(f"torch.manual_seed({seed})")
    elif what == 2:
        state = e.name()
        e.line(f"{state} = torch.cuda.get_rng_state()")
        e.new("torch.rand(4, device='cuda')", (4,), "float32")
        e.line(f"torch.cuda.set_rng_state({state})")
    else:
        with e.block("with torch.random.fork_rng(devices=[0]):"):
            e.new("torch.rand(4, device='cuda')", (4,), "float32")


# -- what no graph can hold ---------------------------------------------------------------------------------


@kind(6)
def host_read(e: Emitter, p: Picks) -> None:
    """Values that Python reads and only computes with or compares; the outcome cannot change."""
    e.tags.add("split")
    x = e.device(p)
    what = p(10)
    if what == 0:
        e.line(f"assert {x.name}.isnan().sum().item() >= 0")
    elif what == 1:
        e.line(f"assert not ({x.name} != {x.name}).all().logical_and(torch.zeros_like({x.name}.any())).item()")
    elif what == 2:
        e.line(f"total = {x.name}.float().sum().item() * 2")  # ints are pinned once Dynamo has compiled
    elif what == 3:
        e.line(f"total = {x.name}.float().sum().item()")
        e.line("rest = abs(total - 1)")
    elif what == 4:
        e.line(f"numbers = {x.name}.float().tolist()")
    elif what == 5:
        with e.block(f"if bool({x.name}.isnan().any() & {x.name}.isfinite().all()):"):
            e.line("raise AssertionError('never')")
    elif what == 6:
        e.line(f"assert not torch.equal({x.name}.isnan(), ~{x.name}.isnan()) or {x.numel == 0}")
    elif what == 7:
        e.line(f"assert len({x.name}.isnan().sum().reshape(1).tolist()) == 1")
    elif what == 8:
        e.line(f"assert torch.allclose({x.name}.isnan(), {x.name}.isnan().clone())")
    else:
        e.line(f"count = {x.name}.isnan().float().sum().item() + 1")


@kind(2)
def branch(e: Emitter, p: Picks) -> None:
    """A branch on a value that may change: the guard must notice exactly when it does."""
    x = e.device(p, lambda v: v.numel > 0 and v.is_float)
    e.tags |= {"split", "branch"}
    taken = e.name()
    e.line(f"{taken} = bool({x.name}.nan_to_num(0.0).amax().item() > {('2.2', '0.5', '-9', '30')[p(4)]})")
    e.line(f"trace.append({taken})")
    e.new(f"{x.name} + 1 if {taken} else {x.name} - 1", x.shape, x.dtype)


@kind(4)
def dynamic_shape(e: Emitter, p: Picks) -> None:
    """Sizes that depend on data; the data is such that they stay."""
    e.tags.add("split")
    what = p(7)
    x = e.device(p, lambda v: len(v.shape) > 0 and v.numel > 0)
    n = x.numel
    mask = f"(torch.arange({n}, device='cuda') % 2 == 0)"
    kept = (n + 1) // 2
    if what == 0:
        e.new(f"{mask}.nonzero()", (kept, 1), "int64")
    elif what == 1:
        e.new(f"{x.name}.reshape(-1)[{mask}]", (kept,), x.dtype)
    elif what == 2:
        e.new(f"{x.name}.reshape(-1).masked_select({mask})", (kept,), x.dtype)
    elif what == 3:
        e.new(f"torch.unique(torch.arange({n}, device='cuda') % 2)", (min(n, 2),), "int64")
    elif what == 4:
        twice = f"torch.full(({n},), 2, device='cuda')"
        e.new(f"torch.arange({n}, device='cuda').repeat_interleave({twice})", (2 * n,), "int64")
    elif what == 5:
        e.new(f"torch.bincount(torch.arange({n}, device='cuda'))", (n,), "int64")
    else:
        (first,) = (e.name(),)
        e.line(f"({first},) = {mask}.nonzero(as_tuple=True)")
        e.add(Var(first, (kept,), "int64", e.root_of(None)))


@kind(6)
def host_copy(e: Emitter, p: Picks) -> None:
    """Copies between host and device, there and back, and lists as indices and as data."""
    what = p(10)
    if what == 8:
        pinned = e.pick(p, lambda v: v.host and v.name.startswith("x"))
        if pinned is not None:
            e.new(f"{pinned.name}.to('cuda', non_blocking=True)", pinned.shape, pinned.dtype)
            e.tags.add("split")
            return
    if what == 9:
        host = e.pick(p, lambda v: v.host and e.can_write(v))
        if host is not None:
            e.tags.add("split")
            x = e.device(p)
            source = fitted(x, host.shape)
            cast = (
                f".nan_to_num(0, 1, -1).clamp(-9, 9).to(torch.{host.dtype})"
                if x.is_float
                else f".to(torch.{host.dtype})"
            )
            e.line(f"{host.name}.copy_({source}{cast})")
            return
    e.tags.add("split")
    x = e.device(p)
    if what == 0:
        e.new(f"{x.name}.cpu().to('cuda')", x.shape, x.dtype)
    elif what == 1:
        e.new(f"{x.name}.to('cpu')", x.shape, x.dtype, host=True)
    elif what == 2:
        e.new(f"({x.name}.cpu() == 1).cuda()", x.shape, "bool")
    elif what == 3:
        e.new("torch.tensor([1.0, 2.0, 3.0], device='cuda')", (3,), "float32")
    elif what == 4:
        e.new(f"{x.name}.new_tensor([1, 0])", (2,), x.dtype)
    elif what == 5:
        y = e.device(p, lambda v: len(v.shape) > 0 and v.shape[0] > 0)
        e.new(f"{y.name}[[0, {y.shape[0] - 1}]]", (2, *y.shape[1:]), y.dtype)
    elif what == 6:
        y = e.target(p, lambda v: len(v.shape) > 0 and v.shape[0] > 0)
        e.line(f"{y.name}[[{y.shape[0] - 1}]] = 1")
    elif what == 7:
        # Host work on host data alone happens once, at the capture; what came from the device is repeated.
        host = e.pick(p, lambda v: v.host and not v.name.startswith("x"))
        if host is None:
            host = e.new(f"{x.name}.cpu()", x.shape, x.dtype, host=True)
        e.new(f"{host.name}.clone().to('cuda')", host.shape, host.dtype)
    else:
        e.new("torch.as_tensor([True, False], device='cuda')", (2,), "bool")


@kind(3)
def wait(e: Emitter, p: Picks) -> None:
    """Waits for the device or for events, inside and outside of the capture."""
    e.tags.add("split")
    what = p(7)
    if what == 0:
        e.line("torch.cuda.synchronize()")
    elif what == 1:
        e.line("torch.cuda.current_stream().synchronize()")
    elif what == 2:
        event = e.name()
        e.line(f"{event} = torch.cuda.Event(); {event}.record(); {event}.synchronize()")
    elif what == 3:
        e.line("assert torch.cuda.current_stream().query() in (True, False)")
    elif what == 4:
        e.line("torch.cuda.current_stream().wait_event(OUTSIDE)")
    elif what == 5:
        e.line("OUTSIDE.synchronize()")
    else:
        e.line("torch.cuda.empty_cache()")


# -- blocks: streams, autograd, autocast, graphs inside graphs ------------------------------------------------


@kind(5)
def fork(e: Emitter, p: Picks) -> None:
    """Side streams that fork from here and join again; each branch writes only what is its own."""
    n_side = min(1 + p(2), N_STREAMS - e.streams_used)
    if n_side < 1 or e.nesting >= 2:
        return
    outer, read_only = list(e.scope), e.read_only
    deletable, e.deletable = e.deletable, []
    made, e.made = e.made, []
    streams = [f"S{e.streams_used + i}" for i in range(n_side)]
    e.streams_used += n_side
    e.nesting += 1
    owner = {root: p(n_side + 2) - 1 for root in dict.fromkeys(v.root for v in outer)}
    by_event = p(2)
    for stream in streams:
        e.line(f"{stream}.wait_stream(torch.cuda.current_stream())")
    for number in range(n_side + 1):
        e.scope = [v for v in outer if owner[v.root] in (-1, number)]
        e.read_only = read_only | {root for root, own in owner.items() if own != number}
        size = 1 + p(3)
        e.deletable = []
        if number < n_side:
            with e.block(f"with torch.cuda.stream({streams[number]}):"):
                e.statements(size)
        else:
            e.statements(size)
    for stream in streams:
        if by_event:
            event = e.name()
            e.line(f"{event} = torch.cuda.Event(); {event}.record({stream}); {event}.wait()")
        else:
            e.line(f"torch.cuda.current_stream().wait_stream({stream})")
    e.streams_used -= n_side
    e.nesting -= 1
    alive = [v for v in e.made if v.name not in _deleted(e)]
    e.scope = outer + alive
    e.read_only = read_only
    e.deletable = deletable + alive
    e.made = made + alive


def _deleted(e: Emitter) -> set[str]:
    return {line.strip()[4:] for line in e.lines if line.strip().startswith("del ")}


_CHAIN = (
    "{} * 2", "{}.sin()", "{}.tanh()", "{}.relu()", "{} * {}", "{}.square()", "({} + 1) / 2", "{}.softmax(-1)",
    "{}.sigmoid()", "F.dropout({}, 0.5)", "{}.clone()", "F.layer_norm({}, {}.shape[-1:])", "q({}) @ q({}).mT @ q({})",
    "checkpoint(lambda t: F.dropout(t.sin(), 0.3), {}, use_reentrant=False)", "F.gelu({})",
    "{}.transpose(0, 1).contiguous().mT",
)  # fmt: skip


def _chain(e: Emitter, p: Picks, start: str) -> str:
    name = e.name()
    e.line(f"{name} = {start}")
    for _ in range(1 + p(4)):
        form = str(p.of(_CHAIN))
        if "checkpoint" in form:
            e.tags.add("split")
        e.line(f"{name} = {form.replace('{}', name)}")
    return name


@kind(4)
def gradient(e: Emitter, p: Picks) -> None:
    """Autograd inside the body: gradients as results, or accumulated into a parameter's ``.grad``."""
    if e.inference:
        return
    x = e.device(p, lambda v: v.is_float and v.numel > 0)
    k = x.shape[-1] if x.shape else 1
    rows = x.numel // k
    param = e.params[p(len(e.params))] if e.params and p(2) else None
    leaf = e.name()
    with e.block("with torch.enable_grad():"):
        e.line(f"{leaf} = {x.name}.detach().float().reshape({rows}, {k}).clone().requires_grad_()")
        start = leaf if param is None else f"{leaf} * ({param}.float().sum() * 0.1)"
        out = _chain(e, p, start)
        if param is None or e.read_only:
            e.line(f"{out}g = torch.autograd.grad({out}.sum(), [{leaf}])[0].clone()")
        else:
            e.line(f"{out}.sum().backward()")
            e.line(f"{out}g = {leaf}.grad.clone()")
    e.add(Var(f"{out}g", (rows, k), "float32", e.root_of(None)))
    e.line(f"{out} = {out}.detach()")
    e.add(Var(out, (rows, k), "float32", e.root_of(None), writable=False))
    e.line(f"del {leaf}")


@kind(3)
def autocast(e: Emitter, p: Picks) -> None:
    x = e.device(p, lambda v: v.is_float and v.numel > 0)
    k = x.shape[-1] if x.shape else 1
    rows = x.numel // k
    dtype = ("bfloat16", "float16")[p(2)]
    cached = ("", ", cache_enabled=False")[p(2)]
    with e.block(f"with torch.autocast('cuda', dtype=torch.{dtype}{cached}):"):
        out = _chain(e, p, f"{x.name}.reshape({rows}, {k})")
        e.line(f"{out} = q({out}) @ q({out}).mT")
    e.line(f"{out} = {out}.float()")
    e.add(Var(out, (rows, rows), "float32", e.root_of(None), writable=False))


@kind(2)
def inference(e: Emitter, p: Picks) -> None:
    """A stretch under inference mode; its results leave as ordinary tensors."""
    if e.inference or e.nesting >= 2:
        return
    outer = list(e.scope)
    deletable, e.deletable = e.deletable, []
    made, e.made = e.made, []
    e.inference = True
    e.nesting += 1
    with e.block("with torch.inference_mode():"):
        e.statements(1 + p(3))
    e.nesting -= 1
    e.inference = False
    alive = [v for v in e.made if v in e.scope]
    e.scope = [v for v in outer if v in e.scope]
    e.made = made
    e.deletable = [v for v in deletable if v in e.scope]
    for var in alive:
        e.line(f"{var.name} = {var.name}.clone()")
        e.add(Var(var.name, var.shape, var.dtype, e.root_of(None), host=var.host))


@kind(1)
def nested_capture(e: Emitter, p: Picks) -> None:
    """A graph captured inside the body, and replayed there."""
    if e.nesting >= 1:
        return
    e.tags.add("split")
    graph = e.name()
    deletable, e.deletable = e.deletable, []
    e.nesting += 1
    e.line(f"{graph} = torch.cuda.CUDAGraph()")
    with e.block(f"with torch.cuda.graph({graph}):"):
        e.line("NESTED.append(torch.zeros(1, device='cuda'))")  # never an empty graph
        e.statements(1 + p(3))
    e.nesting -= 1
    e.deletable = [v for v in deletable if v in e.scope] + [v for v in e.deletable if v in e.scope]
    e.line(f"KEPT.append({graph}); {graph}.replay()")


@kind(2)
def inner_replay(e: Emitter, p: Picks) -> None:
    """A graph captured beforehand, which changes state of its own, replayed inside the body."""
    e.tags |= {"split", "inner"}
    if e.nesting and e.read_only:
        return
    e.line("INNER.replay()")
    e.new("INNER_OUT * 2", (4,), "float32")


@kind(2)
def opaque(e: Emitter, p: Picks) -> None:
    """A launch that torch's dispatcher does not see, on a tensor made in the body."""
    if not e.has_opaque:
        return
    x = e.device(p, lambda v: v.is_float)
    e.tags.add("opaque")
    name = e.name()
    e.line(f"{name} = {x.name}.float().clone(memory_format=torch.contiguous_format)")
    e.line(f"opaque({name})")
    e.add(Var(name, x.shape, "float32", e.root_of(None), contiguous=True))


@kind(1)
def large(e: Emitter, p: Picks) -> None:
    """A tensor of several megabytes, used and dropped: another size class of the allocator."""
    x = e.device(p, lambda v: v.is_float)
    text = fitted(x, ())
    e.new(f"(torch.ones(300, 1000, device='cuda') * {text}).amax(1)[:4].to(torch.float32)", (4,), "float32")
