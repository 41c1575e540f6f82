"""The operations against float64: by the kernels in Triton's interpreter, and composed of torch's own."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
from gfxgraph import kernels  # noqa: E402
from gfxgraph.kernels import eager, launching, shapes  # noqa: E402

HALF, BRAIN, FLOAT = torch.float16, torch.bfloat16, torch.float32
NEAR = {FLOAT: 1e-5, HALF: 2e-3, BRAIN: 1.6e-2}
DTYPES = pytest.mark.parametrize("dtype", [FLOAT, HALF, BRAIN], ids=["fp32", "fp16", "bf16"])


def drawn(*shape, dtype=FLOAT, seed=0):
    """Of the default device; the same numbers on each."""
    generator = torch.Generator("cpu").manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, device="cpu").to(torch.get_default_device(), dtype)


def same(made, wanted, factor=1.0):
    """Within the promised distance of the largest number; infinities and NaN in the same places."""
    made, wanted, near = made.double(), wanted.double(), NEAR[made.dtype] * factor
    assert made.shape == wanted.shape
    assert torch.equal(made.isnan(), wanted.isnan()), (made, wanted)
    rounded = wanted.to(torch.float32)
    assert torch.equal(made.isinf(), rounded.isinf()), (made, wanted)
    finite = wanted.isfinite()
    if finite.any():
        distance = (made - wanted)[finite].abs().max()
        assert distance <= near * wanted[finite].abs().max().clamp_min(1.0), distance


def norm64(x, weight, bias, eps, offset, is_rms):
    return eager.norm(x.double(), weight, bias, eps, offset, is_rms)


# -- norms -----------------------------------------------------------------------------------------------


@DTYPES
def test_norms_of_odd_rows(way, dtype):
    """Rows of 1, 77 and 130 elements, with and without weight, bias and Gemma's offset."""
    for n in (1, 77, 130):
        x, w, b = drawn(3, n, dtype=dtype), drawn(n, dtype=dtype, seed=1), drawn(n, dtype=dtype, seed=2)
        same(kernels.rms_norm(x, w, 1e-6, offset=1.0), norm64(x, w, None, 1e-6, 1.0, True))
        same(kernels.layer_norm(x, w, b), norm64(x, w, b, 1e-5, 0.0, False))
    same(kernels.rms_norm(x), norm64(x, None, None, 1e-6, 0.0, True))


@DTYPES
def test_a_sum_is_rounded_before_it_is_normed(way, dtype):
    """As a model rounds it that adds first; the sum itself is torch's, bit for bit.

    In bfloat16 one step beside: there the interpreter cuts digits off where a GPU rounds.
    """
    x, r, w = drawn(2, 65, dtype=dtype), drawn(2, 65, dtype=dtype, seed=3), drawn(65, dtype=dtype)
    y, total = kernels.rms_norm(x, w, residual=r)
    if dtype is BRAIN and way == "kernels":
        assert ((total - (x + r)).abs() <= (x + r).abs() * 2**-7).all()
    else:
        assert torch.equal(total, x + r)
    same(y, norm64(total, w, None, 1e-6, 0.0, True))


def test_norms_of_strides(way):
    """Columns of a larger tensor, every second row, a transposed one; the result is contiguous."""
    whole = drawn(8, 96)
    for x in (whole[:, 5:70], whole[::2, :33], whole.t(), whole.reshape(2, 4, 96)[:, 1:3, ::3]):
        made = kernels.layer_norm(x)
        assert made.is_contiguous()
        same(made, norm64(x, None, None, 1e-5, 0.0, False))


def test_rows_too_long_for_registers(way):
    """A row of 16,389 elements is read in pieces; so is its backward."""
    n = shapes.LARGEST_ROW + 5
    x, w = drawn(2, n), drawn(n, seed=1)
    same(kernels.layer_norm(x, w), norm64(x, w, None, 1e-5, 0.0, False))
    y, total = kernels.rms_norm(x, w, residual=x)
    same(y, norm64(2 * x, w, None, 1e-6, 0.0, True))
    assert torch.equal(total, 2 * x)
    same(kernels.softmax(x), torch.softmax(x.double(), -1))


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0, 0), (2, 0, 4)])
def test_nothing(way, shape):
    """No rows, or rows of nothing, give nothing."""
    x = torch.empty(shape)
    for made in (kernels.rms_norm(x), kernels.layer_norm(x), kernels.softmax(x), kernels.swiglu(x, x)):
        assert made.shape == x.shape


def test_values_that_are_no_numbers(way):
    """Infinities and NaN stay in their row, where torch has them; a large offset costs a layer norm one digit."""
    x = drawn(4, 40)
    x[1, 3], x[2, 5] = math.nan, math.inf
    same(kernels.rms_norm(x), norm64(x, None, None, 1e-6, 0.0, True))
    same(kernels.layer_norm(x), norm64(x, None, None, 1e-5, 0.0, False))
    far = drawn(2, 64) + 4096.0
    same(kernels.layer_norm(far), norm64(far, None, None, 1e-5, 0.0, False), 30)
    x[3] = -math.inf
    same(kernels.softmax(x), torch.softmax(x.double(), -1))
    x[3, 1] = 2.0
    same(kernels.softmax(x)[3:], torch.softmax(x[3:].double(), -1))


@pytest.mark.parametrize("is_rms", [True, False], ids=["rms", "layer"])
def test_gradients_of_norms(way, is_rms):
    """dx, dw, db and the residual's are autograd's in float64."""
    for n in (7, 70):
        leaves = [drawn(5, n), drawn(5, n, seed=1), drawn(n, seed=2), drawn(n, seed=3)]
        single = [leaf.clone().requires_grad_() for leaf in leaves]
        double = [leaf.double().requires_grad_() for leaf in leaves]
        x, r, w, b = single
        if is_rms:
            y, total = kernels.rms_norm(x, w, residual=r)
        else:
            y, total = kernels.layer_norm(x, w, b, residual=r)
        (y.square().sum() + (total * 0.3).sum()).backward()
        x, r, w, b = double
        wanted = norm64(x + r, w, None if is_rms else b, 1e-6 if is_rms else 1e-5, 0.0, is_rms)
        (wanted.square().sum() + ((x + r) * 0.3).sum()).backward()
        for mine, other in zip(single, double):
            if other.grad is not None:
                same(mine.grad, other.grad, 3)


def test_gradients_of_long_rows(way):
    """A backward reads a long row in pieces, and adds up a weight's gradient over all rows."""
    n = shapes.PIECE + 3
    x, w = drawn(3, n).requires_grad_(), drawn(n, seed=1).requires_grad_()
    kernels.rms_norm(x, w).square().sum().backward()
    x2, w2 = x.detach().double().requires_grad_(), w.detach().double().requires_grad_()
    norm64(x2, w2, None, 1e-6, 0.0, True).square().sum().backward()
    same(x.grad, x2.grad, 3)
    same(w.grad, w2.grad, 3)


# -- gates -----------------------------------------------------------------------------------------------


@DTYPES
def test_gates(way, dtype):
    """SwiGLU and both GELU gates, of halves of one tensor."""
    both = drawn(3, 2 * 45, dtype=dtype) * 4
    gate, up = both.chunk(2, -1)
    for kind, made in (("silu", kernels.swiglu(gate, up)), ("gelu_tanh", kernels.geglu(gate, up)),
                       ("gelu", kernels.geglu(gate, up, is_tanh=False))):  # fmt: skip
        same(made, eager.gate(gate.double(), up.double(), kind))


def test_gates_of_large_values(way):
    """Where exp overflows, an activation is 0 or its argument; NaN stays."""
    x = torch.tensor([[-1e4, -90.0, -0.0, 0.0, 90.0, 1e4, math.inf, math.nan]])
    for kind in ("silu", "gelu", "gelu_tanh"):
        if way == "composed":
            x[x == math.inf] = 1e4  # torch's own gelu of infinity is NaN on a CPU with vectors
        same(kernels.activation(x, kind), eager.activate(x.double(), kind))


# -- linear layers ---------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("m", [1, 3, 9, 37])
def test_linear_with_everything(way, dtype, m):
    """Norm, bias, activation, the other half of a gate and residual, for vectors and tiles, over odd sizes."""
    n, k = 21, 75
    x, w, u = drawn(m, k, dtype=dtype), drawn(n, k, dtype=dtype, seed=1), drawn(n, k, dtype=dtype, seed=2)
    b, r, g = drawn(n, dtype=dtype), drawn(m, n, dtype=dtype, seed=3), drawn(k, dtype=dtype)
    made = kernels.linear(x, w, b, activation="silu", up=u, residual=r, norm_weight=g, norm_eps=1e-6)
    wide = [each.double() for each in (x, w, b, u, r)]
    same(made, eager.linear(*wide, "silu", g.double(), 1e-6, 0.0, True))
    same(kernels.linear(x, w), x.double() @ w.double().T)


def test_linear_of_divided_inputs(way):
    """Where inputs are divided, the parts are added in their order: the same bits each time."""
    x, w, g = drawn(2, 1000), drawn(3, 1000, seed=1), drawn(1000)
    x9 = drawn(9, 1000)
    for rows in (x, x9):
        made = kernels.linear(rows, w, norm_weight=g, norm_eps=1e-6, activation="gelu")
        assert torch.equal(made, kernels.linear(rows, w, norm_weight=g, norm_eps=1e-6, activation="gelu"))
        wanted = eager.linear(
            rows.double(), w.double(), None, None, None, "gelu", g.double(), 1e-6, 0.0, True
        )  # fmt: skip
        same(made, wanted)


def test_linear_of_strides_and_nothing(way):
    """Rows of a larger weight, inputs of more dimensions, no outputs, no inputs."""
    whole, x = drawn(40, 64), drawn(2, 1, 32)
    same(kernels.linear(x, whole[3:20, 5:37]), x.double() @ whole[3:20, 5:37].double().T)
    same(kernels.linear(x[..., ::2], whole[:6, :16]), x[..., ::2].double() @ whole[:6, :16].double().T)
    assert kernels.linear(x, whole[:0, :32]).shape == (2, 1, 0)
    assert kernels.linear(x[:0], whole[:5, :32]).shape == (0, 1, 5)
    bias = drawn(5)
    same(kernels.linear(x[..., :0], whole[:5, :0], bias), bias.double().expand(2, 1, 5))


def test_three_layers_at_once(way):
    """Query, key and value of 1 and of 6 rows, with biases, behind one norm."""
    for m in (1, 6):
        x, g = drawn(m, 50), drawn(50)
        weights = (drawn(70, 50), drawn(9, 50, seed=1), drawn(9, 50, seed=2))
        biases = (drawn(70), drawn(9), drawn(9, seed=4))
        made = kernels.linear_three(x, weights, biases, norm_weight=g, norm_eps=1e-5, norm_offset=1.0)
        v = norm64(x, g, None, 1e-5, 1.0, True)
        for each, w, b in zip(made, weights, biases):
            same(each, v @ w.double().T + b.double())


def test_a_row_that_is_no_number_stays_alone(way):
    """NaN in a row is in its results only."""
    x, w = drawn(3, 40), drawn(10, 40)
    x[1, 7] = math.nan
    same(kernels.linear(x, w, norm_eps=1e-6), norm64(x, None, None, 1e-6, 0.0, True) @ w.double().T)


def test_tiles_as_gfx1030_has_them(triton_interpreter, monkeypatch):
    """The sizes of workgroups that a GPU gets are right as well."""
    monkeypatch.setattr(launching, "target", lambda device: shapes.target_of("gfx1030", 1))
    for m in (2, 5):
        x, w, u = drawn(m, 70, dtype=BRAIN), drawn(6, 70, dtype=BRAIN, seed=1), drawn(6, 70, dtype=BRAIN, seed=2)
        from gfxgraph.kernels import layers

        monkeypatch.setattr(layers, "target", lambda device: shapes.target_of("gfx1030", 1))
        made = kernels.linear(x, w, activation="gelu_tanh", up=u)
        same(
            made, eager.linear(*(e.double() for e in (x, w)), None, u.double(), None, "gelu_tanh", None, 0, 0, False)
        )


# -- rotary embedding, attention -------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("most_heads", [16, 1])
def test_rotary_with_the_cache(way, dtype, most_heads, monkeypatch):
    """Part of a head is turned; keys and values are in their slots, and nothing else is written.

    By a workgroup for each head, and by one for all of a token.
    """
    monkeypatch.setattr("gfxgraph.kernels.attention.MOST_HEADS", most_heads)
    q, k, v = drawn(2, 2, 3, 20, dtype=dtype), drawn(2, 2, 1, 20, dtype=dtype, seed=1), drawn(2, 2, 1, 6, dtype=dtype)
    cos, sin = drawn(1, 2, 12, dtype=dtype), drawn(1, 2, 12, dtype=dtype, seed=5)
    keys, values = torch.full((2, 1, 5, 20), 7.0, dtype=dtype), torch.full((2, 1, 5, 6), 8.0, dtype=dtype)
    made = kernels.rotary_to_cache(q, k, v, cos, sin, keys, values, torch.tensor([3, 1]))
    wide = [each.double() for each in (q, k, cos, sin)]
    same(made, eager.rotate(wide[0], *wide[2:]).transpose(1, 2))
    same(keys[:, :, [3, 1]], eager.rotate(wide[1], *wide[2:]).transpose(1, 2))
    assert torch.equal(values[:, :, [3, 1]], v.transpose(1, 2))
    assert (keys[:, :, [0, 2, 4]] == 7).all() and (values[:, :, [0, 2, 4]] == 8).all()


def test_slots_outside_are_not_written(way):
    """A slot before or behind the cache changes nothing."""
    q = drawn(1, 2, 1, 4)
    keys, values = torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 3, 4)
    cos = torch.ones(1, 2, 4)
    kernels.rotary_to_cache(q, q, q, cos, cos, keys, values, torch.tensor([-1, 3]))
    assert not keys.any() and not values.any()


@DTYPES
def test_attention_of_shared_heads(way, dtype):
    """Groups of 1, 3 and 8 heads, odd widths, a mask to add, keys up to the last only."""
    for heads, shared, width in ((2, 2, 20), (3, 1, 16), (8, 1, 33)):
        q, k = drawn(2, heads, 1, width, dtype=dtype), drawn(2, shared, 150, width, dtype=dtype, seed=1)
        v = drawn(2, shared, 150, width, dtype=dtype, seed=2)
        mask = torch.zeros(2, 1, 1, 150, dtype=dtype)
        mask[1, ..., :60] = -math.inf
        k[:, :, 130:], v[:, :, 130:] = math.nan, math.nan  # never written, never read
        made = kernels.decode_attention(q, k, v, mask=mask, last=torch.tensor([129]))
        wide = [each.double() for each in (q, k[:, :, :130], v[:, :, :130], mask[..., :130])]
        same(made, eager.attention(*wide, None, width**-0.5, 0.0), 2)


def test_attention_by_booleans_and_softcap(way):
    """A mask of booleans for all rows, Gemma's softcap, a scale, strided keys, another width of values."""
    q, k, v = drawn(2, 4, 1, 16), drawn(2, 70, 2, 16).transpose(1, 2), drawn(2, 2, 70, 5)
    mask = drawn(1, 1, 1, 70) > 0
    made = kernels.decode_attention(q, k, v, mask=mask, scale=0.7, softcap=3.0)
    same(made, eager.attention(q.double(), k.double(), v.double(), mask, None, 0.7, 3.0))


def test_attention_that_sees_nothing(way):
    """A row without a key is NaN, as softmax makes it, and no other row."""
    q, k = drawn(2, 2, 1, 8), drawn(2, 2, 90, 8)
    mask = torch.ones(2, 1, 1, 90, dtype=torch.bool)
    mask[0] = False
    made = kernels.decode_attention(q, k, k, mask=mask)
    assert made[0].isnan().all()
    same(made[1:], eager.attention(q[1:].double(), k[1:].double(), k[1:].double(), None, None, 8**-0.5, 0.0))


@DTYPES
def test_angles(way, dtype):
    """Of large positions, strided ones, and an odd number of frequencies."""
    positions = torch.tensor([[0, 5, 1, 7], [4000, 5, 131071, 7]])[:, ::2]
    frequencies = 10000.0 ** (-torch.arange(0, 5) / 5)
    angles = (positions[..., None].float() * frequencies).double()
    for made, wanted in zip(kernels.rotary_angles(positions, frequencies, 1.5, dtype), (angles.cos(), angles.sin())):
        assert made.dtype is dtype
        same(made, torch.cat((wanted, wanted), -1) * 1.5)


@DTYPES
@pytest.mark.parametrize(("heads", "shared", "width", "turned"), [(2, 2, 20, 12), (6, 2, 16, 16), (8, 1, 33, 8)])
def test_rotary_and_attention_in_one(way, dtype, heads, shared, width, turned):
    """The same cache, bit for bit, and the same rows as the two operations one after the other, divided and not."""
    for length, slot in ((20, 0), (20, 19), (600, 400)):
        q, k = drawn(2, 1, heads, width, dtype=dtype), drawn(2, 1, shared, width, dtype=dtype, seed=1)
        v, mask = drawn(2, 1, shared, width - 3, dtype=dtype, seed=2), drawn(1, 1, 1, length, seed=3).to(dtype)
        cos, sin = drawn(2, 1, turned, dtype=dtype, seed=4), drawn(2, 1, turned, dtype=dtype, seed=5)
        caches = []
        for _ in range(2):
            keys, values = (drawn(2, length, shared, w, dtype=dtype, seed=6) for w in (width, width - 3))
            keys[:, slot:], values[:, slot:] = math.nan, math.nan  # never written, never read
            caches.append((keys.transpose(1, 2), values.transpose(1, 2)))
        at = torch.tensor([slot])
        query = kernels.rotary_to_cache(q, k, v, cos, sin, *caches[0], at)
        apart = kernels.decode_attention(query, *caches[0], mask=mask, last=at, softcap=2.0)
        made = kernels.rotary_attention(q, k, v, cos, sin, *caches[1], at + 3, behind=3, mask=mask, softcap=2.0)
        for one, other in zip(*caches):
            assert torch.equal(one.nan_to_num(), other.nan_to_num())
            assert not one[:, :, : slot + 1].isnan().any() and one[:, :, slot + 1 :].isnan().all()
        same(made, apart.double(), 2)


def test_a_slot_outside_attends_to_what_is_there(way):
    """Behind the cache all of it is seen and nothing written; before it nothing is seen."""
    q, keys, values = drawn(1, 1, 2, 8), drawn(1, 2, 9, 8, seed=1), drawn(1, 2, 9, 8, seed=2)
    cos, sin, before = drawn(1, 1, 8, seed=3), drawn(1, 1, 8, seed=4), keys.clone()
    made = kernels.rotary_attention(q, q, q, cos, sin, keys, values, torch.tensor([9]))
    wide = [each.double() for each in (eager.rotate(q, cos, sin).transpose(1, 2), keys, values)]
    same(made, eager.attention(*wide, None, None, 8**-0.5, 0.0))
    assert torch.equal(keys, before)
    assert kernels.rotary_attention(q, q, q, cos, sin, keys, values, torch.tensor([-1])).isnan().all()


def test_the_tokens_own_key_is_masked_as_others(way):
    """By booleans and by numbers: a token that does not see itself."""
    q, keys = drawn(1, 1, 2, 8), drawn(1, 2, 9, 8, seed=1)
    cos, sin = torch.ones(1, 1, 8), torch.zeros(1, 1, 8)
    mask = torch.arange(9).view(1, 1, 1, 9) != 4
    wanted = eager.attention(q.transpose(1, 2), keys[:, :, :4], keys[:, :, :4], None, None, 8**-0.5, 0.0).double()
    for given in (mask, torch.where(mask, 0.0, -torch.inf)):
        made = kernels.rotary_attention(
            q, q, q, cos, sin, keys.clone(), keys.clone(), torch.tensor([4]), mask=given
        )  # fmt: skip
        same(made, wanted)


@pytest.mark.parametrize("m", [1, 3, 6])
def test_the_counter_of_three_layers(way, m):
    """Is one more after the call, for rows in one launch and for more."""
    x, w, counter = drawn(m, 40), drawn(12, 40, seed=1), torch.tensor([41])
    kernels.linear_three(x, (w, w[:7], w[:3]), counter=counter)
    assert counter.item() == 42


# -- the choice ------------------------------------------------------------------------------------------


@DTYPES
def test_greedy_as_argmax(way, dtype):
    """The first of the highest: over several blocks, equal ones, both zeros, infinities and NaN."""
    scores = drawn(7, 5000, dtype=dtype)
    scores[1] = -math.inf
    scores[2, 17], scores[2, 4700] = math.inf, math.inf
    scores[3, 4100], scores[3, 40] = math.nan, math.inf
    scores[4], scores[4, 2100] = -0.0, 0.0
    scores[5] = 3.0
    assert torch.equal(kernels.greedy(scores), scores.float().argmax(-1))


def test_sample_as_multinomial(way):
    """With the same generator the same places; what is minus infinity never."""
    scores = drawn(16, 2500)
    scores[:, ::2] = -math.inf
    mine, other = (torch.Generator(torch.get_default_device()).manual_seed(11) for _ in range(2))
    made = kernels.sample(scores, 0.8, generator=mine)
    wanted = torch.multinomial(torch.softmax(scores / 0.8, -1), 1, generator=other)[:, 0]
    assert torch.equal(made, wanted)
    assert (made % 2 == 1).all()
