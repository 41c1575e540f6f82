"""The operations as torch sees them, and what they refuse."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
import gfxgraph_kernels as kernels  # noqa: E402
from gfxgraph_kernels import attention, launching, layers, next_token, norms, shapes  # noqa: E402


def made(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def samples():
    x, w, k = made(2, 8), made(8), made(1, 2, 6, 4)
    q, v, cos = made(1, 1, 4, 4), made(1, 1, 2, 4), made(1, 1, 4)
    return {
        "norm": (norms.norm, (x, w, w, 1e-5, 0.0, False)),
        "linear": (layers.linear, (x, made(3, 8), None, "none", None, made(2, 3), w, 1e-5)),
        "linear_three": (
            layers.fused_three,
            (x, made(3, 8), made(2, 8), made(2, 8), None, None, None, w, 1e-5, 0.0, True, torch.tensor([1])),
        ),
        "rotary_angles": (attention.rotary_angles, (torch.tensor([[3], [4]]), made(4), 0.5, torch.float16)),
        "rotary_attention": (
            attention.rotary_attention,
            (q, v, v, cos, cos, k.clone(), k.clone(), torch.tensor([3]), 1, None, 0.5),
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
        return kernels.linear(kernels.rms_norm(x, w), x)

    x, w = made(2, 8), made(8)
    assert torch.equal(torch.compile(step, backend=backend, fullgraph=True)(x, w), step(x, w))
    assert any("norm" in name for name in seen) and any("linear" in name for name in seen)
    torch._dynamo.reset()


def test_export_holds_the_operation(monkeypatch):
    """torch.export keeps a node of ours."""
    monkeypatch.setattr(launching, "has_triton", lambda: False)

    class Model(torch.nn.Module):
        def forward(self, x):
            return kernels.rms_norm(x)

    program = torch.export.export(Model(), (made(2, 8),))
    assert "gfxgraph_kernels.norm" in str(program.graph)


def attended(**other):
    """A call of `rotary_attention` that fits, but for ``other``."""
    k, angles, cache = made(1, 1, 2, 4), made(1, 1, 4), made(1, 2, 5, 4)
    given = {"q": made(1, 1, 4, 4), "k": k, "v": k, "cos": angles, "sin": angles, "keys": cache,
             "values": cache.clone(), "position": torch.tensor([2])}  # fmt: skip
    return kernels.rotary_attention(**{**given, **other})


REFUSED = {
    "float64": (TypeError, lambda: kernels.rms_norm(made(2, 4).double())),
    "integers": (TypeError, lambda: kernels.rms_norm(torch.ones(2, 4, dtype=torch.int64))),
    "two dtypes": (TypeError, lambda: kernels.linear(made(1, 4), made(3, 4).half())),
    "a weight of another length": (ValueError, lambda: kernels.rms_norm(made(2, 4), made(5))),
    "no dimension": (ValueError, lambda: kernels.rms_norm(torch.tensor(1.0))),
    "halves that differ": (ValueError, lambda: kernels.linear(made(2, 4), made(3, 4), up=made(2, 4))),
    "an unknown activation": (ValueError, lambda: kernels.linear(made(2, 4), made(3, 4), activation="relu")),
    "inputs that do not fit": (ValueError, lambda: kernels.linear(made(2, 4), made(3, 5))),
    "a bias too long": (ValueError, lambda: kernels.linear(made(2, 4), made(3, 4), made(4))),
    "some biases": (
        ValueError, lambda: kernels.linear_three(made(1, 4), (made(3, 4),) * 3, (made(3), None, made(3)))
    ),
    "heads that cannot share": (ValueError, lambda: attended(q=made(1, 1, 3, 4))),
    "a mask for each head": (ValueError, lambda: attended(mask=made(1, 2, 1, 5))),
    "an odd rotation": (ValueError, lambda: attended(cos=made(1, 1, 3), sin=made(1, 1, 3))),
    "two tokens": (ValueError, lambda: attended(q=made(1, 2, 4, 4))),
    "angles in integers": (
        TypeError, lambda: kernels.rotary_angles(torch.ones(1, 1), made(4), 1.0, torch.int32)
    ),
    "a row of positions": (
        ValueError, lambda: kernels.rotary_angles(torch.ones(3), made(4), 1.0, torch.float32)
    ),
    "a counter of two": (
        ValueError, lambda: kernels.linear_three(made(1, 4), (made(3, 4),) * 3, counter=torch.tensor([1, 2]))
    ),
    "a norm's weight without a norm": (
        ValueError, lambda: kernels.linear(made(1, 4), made(3, 4), norm_weight=made(4))
    ),
    "a norm's weight of another length": (
        ValueError, lambda: kernels.linear_three(made(1, 4), (made(3, 4),) * 3, norm_weight=made(5), norm_eps=1e-6)
    ),
    "two layers": (ValueError, lambda: kernels.linear_three(made(1, 4), (made(3, 4),) * 2)),
    "keys of another dtype": (TypeError, lambda: attended(keys=made(1, 2, 5, 4).half())),
    "keys of three dimensions": (ValueError, lambda: attended(keys=made(1, 5, 4))),
    "an empty cache": (ValueError, lambda: attended(keys=made(1, 2, 0, 4), values=made(1, 2, 0, 4))),
    "values of another length": (ValueError, lambda: attended(values=made(1, 2, 6, 4))),
    "two positions": (ValueError, lambda: attended(position=torch.tensor([1, 2]))),
    "a position that is no integer": (ValueError, lambda: attended(position=torch.tensor([0.0]))),
    "angles of two tokens": (ValueError, lambda: attended(cos=made(1, 2, 4), sin=made(1, 2, 4))),
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
    before = kernels.fallbacks().get(("norm", "Triton is not installed"), 0)
    kernels.rms_norm(made(2, 4))
    assert kernels.fallbacks()["norm", "Triton is not installed"] == before + 1


def test_a_row_too_long_for_registers_is_counted():
    """It is composed of torch's own operations, whatever device it is on."""
    n = shapes.LARGEST_ROW + 1
    before = kernels.fallbacks().get(("norm", "a row of more than 16384"), 0)
    torch.testing.assert_close(kernels.rms_norm(torch.ones(1, n)), torch.ones(1, n))
    assert kernels.fallbacks()["norm", "a row of more than 16384"] == before + 1


@pytest.mark.parametrize("op", [kernels.rms_norm, lambda x: kernels.linear(x, torch.ones(3, 4))])
def test_a_backward_is_refused(monkeypatch, op):
    """No gradient is silently missing."""
    monkeypatch.setattr(launching, "has_triton", lambda: False)
    with pytest.raises(RuntimeError, match="autograd"):
        op(made(2, 4).requires_grad_()).sum().backward()


def test_nothing_is_imported_before_use():
    """Importing gfxgraph_kernels imports neither torch nor Triton."""
    code = "import sys, gfxgraph_kernels; assert not {'torch', 'triton'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names():
    """Every public name can be had, and no other is promised."""
    for name in kernels.__all__:
        assert getattr(kernels, name).__doc__
    with pytest.raises(AttributeError):
        kernels.flash_everything  # noqa: B018
