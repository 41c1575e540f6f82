"""The operations as torch sees them, and what they refuse."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from gfxgraph import kernels  # noqa: E402
from gfxgraph.kernels import attention, gates, launching, layers, next_token, norms  # noqa: E402


def made(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def samples():
    x, w, k = made(2, 8), made(8), made(1, 2, 6, 4)
    q, v, cos = made(1, 1, 4, 4), made(1, 1, 2, 4), made(1, 1, 4)
    return {
        "norm": (norms.norm, (x, w, w, 1e-5, 0.0, False)),
        "add_norm": (norms.add_norm, (x, x + 1, w, None, 1e-5, 1.0, True)),
        "norm_backward": (norms.norm_backward, (x, x, w, 1e-5, 0.0, True)),
        "softmax": (norms.softmax_rows, (x,)),
        "gate": (gates.gated, (x, x + 1, "silu")),
        "linear": (layers.fused_linear, (x, made(3, 8), None, None, made(2, 3), "none", w, 1e-5, 0.0, True)),
        "linear_three": (
            layers.fused_three,
            (x, made(3, 8), made(2, 8), made(2, 8), None, None, None, w, 1e-5, 0.0, True, torch.tensor([1])),
        ),
        "rotary_angles": (attention.rotary_angles, (torch.tensor([[3], [4]]), made(4), 0.5, torch.float16)),
        "rotary_attention": (
            attention.rotate_and_attend,
            (q, v, v, cos, cos, k.clone(), k.clone(), torch.tensor([3]), 1, None, 0.5, 0.0),
        ),
        "rotary_to_cache": (
            attention.rotary_to_cache, (q, v, v, cos, cos, k.clone(), k.clone(), torch.tensor([2]))
        ),
        "decode_attention": (
            attention.attend, (q.transpose(1, 2), k, k, None, torch.tensor([3]), 0.5, 0.0)
        ),
        "choose": (next_token.choose, (x, None, 1.0)),
    }  # fmt: skip


@pytest.mark.parametrize("name", samples())
def test_operation_is_what_torch_expects(monkeypatch, name):
    """Schema, fake and aliasing as `torch.library.opcheck` asks for, so that compile, export and recorders see it."""
    monkeypatch.setattr(launching, "has_triton", lambda: False)
    op, args = samples()[name]
    torch.library.opcheck(op, args, test_utils=("test_schema", "test_faketensor", "test_autograd_registration"))


def test_norm_in_a_compiled_function(monkeypatch):
    """Dynamo takes the operations whole: no graph break, one node each."""
    monkeypatch.setattr(launching, "has_triton", lambda: False)
    seen = []

    def backend(module, inputs):
        seen.extend(str(node.target) for node in module.graph.nodes if node.op == "call_function")
        return module.forward

    def step(x, w):
        return kernels.swiglu(kernels.rms_norm(x, w), x)

    x, w = made(2, 8), made(8)
    assert torch.equal(torch.compile(step, backend=backend, fullgraph=True)(x, w), step(x, w))
    assert any("norm" in name for name in seen) and any("gate" in name for name in seen)
    torch._dynamo.reset()


def test_export_holds_the_operation(monkeypatch):
    """torch.export keeps a node of ours."""
    monkeypatch.setattr(launching, "has_triton", lambda: False)

    class Model(torch.nn.Module):
        def forward(self, x):
            return kernels.softmax(x)

    program = torch.export.export(Model(), (made(2, 8),))
    assert "gfxgraph_kernels.softmax" in str(program.graph)


REFUSED = {
    "float64": (TypeError, lambda: kernels.rms_norm(made(2, 4).double())),
    "integers": (TypeError, lambda: kernels.softmax(torch.ones(2, 4, dtype=torch.int64))),
    "two dtypes": (TypeError, lambda: kernels.linear(made(1, 4), made(3, 4).half())),
    "a weight of another length": (ValueError, lambda: kernels.rms_norm(made(2, 4), made(5))),
    "a residual of another shape": (ValueError, lambda: kernels.layer_norm(made(2, 4), residual=made(3, 4))),
    "no dimension": (ValueError, lambda: kernels.rms_norm(torch.tensor(1.0))),
    "halves that differ": (ValueError, lambda: kernels.swiglu(made(2, 4), made(2, 5))),
    "an unknown activation": (ValueError, lambda: kernels.activation(made(2, 4), "relu")),
    "inputs that do not fit": (ValueError, lambda: kernels.linear(made(2, 4), made(3, 5))),
    "a bias too long": (ValueError, lambda: kernels.linear(made(2, 4), made(3, 4), made(4))),
    "some biases": (
        ValueError, lambda: kernels.linear_three(made(1, 4), (made(3, 4),) * 3, (made(3), None, made(3)))
    ),
    "two queries": (
        ValueError, lambda: kernels.decode_attention(made(1, 2, 2, 4), made(1, 2, 5, 4), made(1, 2, 5, 4))
    ),
    "heads that cannot share": (
        ValueError, lambda: kernels.decode_attention(made(1, 3, 1, 4), made(1, 2, 5, 4), made(1, 2, 5, 4))
    ),
    "a mask for each head": (
        ValueError,
        lambda: kernels.decode_attention(
            made(1, 2, 1, 4), made(1, 2, 5, 4), made(1, 2, 5, 4), mask=made(1, 2, 1, 5)
        ),
    ),
    "an odd rotation": (
        ValueError,
        lambda: kernels.rotary_to_cache(
            *(made(1, 1, 2, 4),) * 3, *(made(1, 1, 3),) * 2, *(made(1, 2, 5, 4),) * 2, torch.tensor([0])
        ),
    ),
    "two tokens": (
        ValueError,
        lambda: kernels.rotary_attention(
            *(made(1, 2, 2, 4),) * 3, *(made(1, 2, 4),) * 2, *(made(1, 2, 5, 4),) * 2, torch.tensor([0])
        ),
    ),
    "angles in integers": (
        TypeError, lambda: kernels.rotary_angles(torch.ones(1, 1), made(4), 1.0, torch.int32)
    ),
    "a row of positions": (
        ValueError, lambda: kernels.rotary_angles(torch.ones(3), made(4), 1.0, torch.float32)
    ),
    "a counter of two": (
        ValueError, lambda: kernels.linear_three(made(1, 4), (made(3, 4),) * 3, counter=torch.tensor([1, 2]))
    ),
    "a residual of another dtype": (TypeError, lambda: kernels.rms_norm(made(2, 4), residual=made(2, 4).half())),
    "a norm's weight without a norm": (
        ValueError, lambda: kernels.linear(made(1, 4), made(3, 4), norm_weight=made(4))
    ),
    "a norm's weight of another length": (
        ValueError, lambda: kernels.linear_three(made(1, 4), (made(3, 4),) * 3, norm_weight=made(5), norm_eps=1e-6)
    ),
    "two layers": (ValueError, lambda: kernels.linear_three(made(1, 4), (made(3, 4),) * 2)),
    "keys of another dtype": (
        TypeError,
        lambda: kernels.decode_attention(made(1, 2, 1, 4).half(), made(1, 2, 5, 4), made(1, 2, 5, 4)),
    ),
    "keys of three dimensions": (
        ValueError, lambda: kernels.decode_attention(made(1, 2, 1, 4), made(1, 5, 4), made(1, 5, 4))
    ),
    "two last keys": (
        ValueError,
        lambda: kernels.decode_attention(
            made(1, 2, 1, 4), made(1, 2, 5, 4), made(1, 2, 5, 4), last=torch.tensor([1, 2])
        ),
    ),
    "slots that are no integers": (
        ValueError,
        lambda: kernels.rotary_to_cache(
            *(made(1, 1, 2, 4),) * 3, *(made(1, 1, 4),) * 2, *(made(1, 2, 5, 4),) * 2, torch.tensor([0.0])
        ),
    ),
    "angles of fewer tokens": (
        ValueError,
        lambda: kernels.rotary_to_cache(
            *(made(1, 2, 2, 4),) * 3, *(made(1, 1, 4),) * 2, *(made(1, 2, 5, 4),) * 2, torch.tensor([0, 1])
        ),
    ),
    "a model that is none": (TypeError, lambda: kernels.apply(3)),
    "no scores": (ValueError, lambda: kernels.greedy(made(2, 0))),
    "no temperature": (ValueError, lambda: kernels.sample(made(2, 4), 0.0)),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refused(monkeypatch, what):
    """What does not fit raises before anything runs, and says what it got."""
    monkeypatch.setattr(launching, "has_triton", lambda: False)
    kind, call = REFUSED[what]
    with pytest.raises(kind):
        call()


def test_without_triton_it_is_counted(monkeypatch):
    """A call composed of torch's own operations is in the counts, with its reason."""
    monkeypatch.setattr(launching, "has_triton", lambda: False)
    before = kernels.fallbacks().get(("softmax", "Triton is not installed"), 0)
    kernels.softmax(made(2, 4))
    assert kernels.fallbacks()["softmax", "Triton is not installed"] == before + 1


def test_nothing_is_imported_before_use():
    """Importing gfxgraph.kernels imports neither torch nor Triton."""
    code = "import sys, gfxgraph.kernels; assert not {'torch', 'triton'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names():
    """Every public name can be had, and no other is promised."""
    for name in kernels.__all__:
        assert getattr(kernels, name).__doc__
    with pytest.raises(AttributeError):
        kernels.flash_everything  # noqa: B018
