"""The operations against float64: by the kernels in Triton's interpreter, and composed of torch's own."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")
import gfxgraph_kernels as kernels  # noqa: E402
from gfxgraph_kernels import eager, launching, shapes  # noqa: E402

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


def test_norms_of_strides(way):
    """Columns of a larger tensor, every second row, a transposed one; the result is contiguous."""
    whole = drawn(8, 96)
    for x in (whole[:, 5:70], whole[::2, :33], whole.t(), whole.reshape(2, 4, 96)[:, 1:3, ::3]):
        made = kernels.layer_norm(x)
        assert made.is_contiguous()
        same(made, norm64(x, None, None, 1e-5, 0.0, False))


@pytest.mark.parametrize("shape", [(0, 8), (3, 0), (0, 0), (2, 0, 4)])
def test_nothing(way, shape):
    """No rows, or rows of nothing, give nothing."""
    x = torch.empty(shape)
    for made in (kernels.rms_norm(x), kernels.layer_norm(x)):
        assert made.shape == x.shape


def test_values_that_are_no_numbers(way):
    """Infinities and NaN stay in their row, where torch has them; a large offset costs a layer norm one digit."""
    x = drawn(4, 40)
    x[1, 3], x[2, 5] = math.nan, math.inf
    same(kernels.rms_norm(x), norm64(x, None, None, 1e-6, 0.0, True))
    same(kernels.layer_norm(x), norm64(x, None, None, 1e-5, 0.0, False))
    far = drawn(2, 64) + 4096.0
    same(kernels.layer_norm(far), norm64(far, None, None, 1e-5, 0.0, False), 30)


# -- linear layers ---------------------------------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize("m", [1, 3, 9, 37])
def test_linear_with_everything(way, dtype, m):
    """Norm, bias, activation, the other half of a gate and residual, for vectors and tiles, over odd sizes."""
    n, k = 21, 75
    x, w, u = drawn(m, k, dtype=dtype), drawn(n, k, dtype=dtype, seed=1), drawn(n, k, dtype=dtype, seed=2)
    b, r, g = drawn(n, dtype=dtype), drawn(m, n, dtype=dtype, seed=3), drawn(k, dtype=dtype)
    given = {"activation": "silu", "up": u, "residual": r, "norm_weight": g, "norm_eps": 1e-6}
    made = kernels.linear(x, w, b, **given)
    assert torch.equal(made, kernels.linear(x, w, b, **given, is_early=True))
    wide = [each.double() for each in (x, w, b, u, r)]
    same(made, eager.linear(*wide, "silu", g.double(), 1e-6, 0.0))
    same(kernels.linear(x, w), x.double() @ w.double().T)


def test_linear_of_divided_inputs(way):
    """Where inputs are divided, the parts are added in their order: the same bits each time."""
    x, w, g = drawn(2, 1000), drawn(3, 1000, seed=1), drawn(1000)
    x9 = drawn(9, 1000)
    for rows in (x, x9):
        made = kernels.linear(rows, w, norm_weight=g, norm_eps=1e-6, activation="gelu")
        assert torch.equal(made, kernels.linear(rows, w, norm_weight=g, norm_eps=1e-6, activation="gelu"))
        wanted = eager.linear(
            rows.double(), w.double(), None, None, None, "gelu", g.double(), 1e-6, 0.0
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
        from gfxgraph_kernels import layers

        monkeypatch.setattr(layers, "target", lambda device: shapes.target_of("gfx1030", 1))
        made = kernels.linear(x, w, activation="gelu_tanh", up=u)
        same(made, eager.linear(*(e.double() for e in (x, w)), None, u.double(), None, "gelu_tanh", None, None, 0))


# -- rotary embedding, attention -------------------------------------------------------------------------


@DTYPES
def test_angles(way, dtype):
    """Of large positions, strided ones, and an odd number of frequencies."""
    positions = torch.tensor([[0, 5, 1, 7], [4000, 5, 131071, 7]])[:, ::2]
    frequencies = 10000.0 ** (-torch.arange(0, 5) / 5)
    angles = (positions[..., None].float() * frequencies).double()
    for made, wanted in zip(kernels.rotary_angles(positions, frequencies, 1.5, dtype), (angles.cos(), angles.sin())):
        assert made.dtype is dtype
        same(made, torch.cat((wanted, wanted), -1) * 1.5)


def apart(q, k, v, cos, sin, keys, values, slot, mask=None, scale=None, softcap=0.0):
    """In float64: the cache with the token in it, and what its queries attend to."""
    q, k, v, cos, sin, keys, values = (each.double() for each in (q, k, v, cos, sin, keys, values))
    mask = mask if mask is None or mask.dtype is torch.bool else mask.double()
    for new, cache in ((eager.rotate(k, cos, sin), keys), (v, values)):
        eager.store(new, cache, slot)
    query = eager.rotate(q, cos, sin).transpose(1, 2)
    return keys, values, eager.attention(query, keys, values, mask, slot, scale or q.shape[-1] ** -0.5, softcap)


@DTYPES
@pytest.mark.parametrize(("heads", "shared", "width", "turned"), [(2, 2, 20, 12), (6, 2, 16, 16), (8, 1, 33, 8)])
def test_rotary_and_attention(way, dtype, heads, shared, width, turned):
    """Part of a head is turned, its slot alone is written, and keys up to it are seen; divided and not."""
    for length, slot in ((20, 0), (20, 19), (600, 400)):
        q, k = drawn(2, 1, heads, width, dtype=dtype), drawn(2, 1, shared, width, dtype=dtype, seed=1)
        v, mask = drawn(2, 1, shared, width - 3, dtype=dtype, seed=2), drawn(1, 1, 1, length, seed=3).to(dtype)
        cos, sin = drawn(2, 1, turned, dtype=dtype, seed=4), drawn(2, 1, turned, dtype=dtype, seed=5)
        mask = mask.repeat(2, 1, 1, 1)
        mask[1, ..., : slot // 2] = -math.inf
        keys, values = (drawn(2, length, shared, w, dtype=dtype, seed=6) for w in (width, width - 3))
        keys[:, slot:], values[:, slot:] = math.nan, math.nan  # never written, never read
        keys, values, at = keys.transpose(1, 2), values.transpose(1, 2), torch.tensor([slot])
        new_keys, new_values, wanted = apart(q, k, v, cos, sin, keys, values, at, mask, 0.7, 2.0)
        made = kernels.rotary_attention(
            q, k, v, cos, sin, keys, values, at + 3, behind=3, mask=mask, scale=0.7, softcap=2.0
        )  # fmt: skip
        same(keys, new_keys)
        assert torch.equal(values.double().nan_to_num(), new_values.nan_to_num())
        assert not keys[:, :, : slot + 1].isnan().any() and keys[:, :, slot + 1 :].isnan().all()
        same(made, wanted, 3)


def test_a_slot_outside_attends_to_what_is_there(way):
    """Behind the cache all of it is seen and nothing written; before it nothing is seen."""
    q, keys, values = drawn(1, 1, 2, 8), drawn(1, 2, 9, 8, seed=1), drawn(1, 2, 9, 8, seed=2)
    cos, sin, before = drawn(1, 1, 8, seed=3), drawn(1, 1, 8, seed=4), keys.clone()
    *_, wanted = apart(q, q, q, cos, sin, keys, values, torch.tensor([9]))
    same(kernels.rotary_attention(q, q, q, cos, sin, keys, values, torch.tensor([9])), wanted)
    assert torch.equal(keys, before)
    assert kernels.rotary_attention(q, q, q, cos, sin, keys, values, torch.tensor([-1])).isnan().all()
    assert torch.equal(keys, before)


def test_attention_that_sees_nothing(way):
    """A row without a key is NaN, as softmax makes it, and no other row."""
    q, keys, cos = drawn(2, 1, 2, 8), drawn(2, 2, 90, 8), torch.ones(1, 1, 8)
    mask = torch.ones(2, 1, 1, 90, dtype=torch.bool)
    mask[0] = False
    made = kernels.rotary_attention(q, q, q, cos, cos, keys, keys.clone(), torch.tensor([80]), mask=mask)
    assert made[0].isnan().all() and made[1].isfinite().all()


def test_the_tokens_own_key_is_masked_as_others(way):
    """By booleans and by numbers: a token that does not see itself."""
    q, keys = drawn(1, 1, 2, 8), drawn(1, 2, 9, 8, seed=1)
    cos, sin = torch.ones(1, 1, 8), torch.zeros(1, 1, 8)
    mask = torch.arange(9).view(1, 1, 1, 9) != 4
    wanted = eager.attention(q.transpose(1, 2), keys, keys, None, torch.tensor([3]), 8**-0.5, 0.0).double()
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
