"""More kinds of state, of gradients and of memory, for the wider grammar of ``state_programs.py``.

Each is a feature as in ``state_features.py``. ``WIDER`` is a table of its own, so that seeds from before it still
stand for the programs that they stood for.
"""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.conformance.state_features import FEATURES, VALUES, WIDTH, constant, feature

_BEFORE = set(FEATURES)


def weight() -> nn.Parameter:
    return nn.Parameter(constant(0.75))


def grads_of(*weights: nn.Parameter) -> Any:
    return lambda: [None if w.grad is None else w.grad.clone() for w in weights]


@feature
def weight_trained() -> Any:
    held = weight()

    def change(i: int) -> None:
        held.requires_grad_(i != 1)
        held.fill_(VALUES[i])

    return lambda x: x * held, change, grads_of(held)


@feature
def weights_gradient() -> Any:
    held = weight()

    def change(i: int) -> None:
        held.grad = None if i == 0 else constant(VALUES[i]) if i == 1 else held.grad

    return lambda x: x * held, change, grads_of(held)


@feature
def weights_hook() -> Any:
    held, handles = weight(), []

    def change(i: int) -> None:
        while handles:
            handles.pop().remove()
        if i:
            handles.append(held.register_hook(lambda grad: grad * VALUES[i]))

    return lambda x: x * held, change, grads_of(held)


@feature
def hook_after_accumulation() -> Any:
    held, scale = weight(), [1.0]

    def scaled(parameter: Any) -> None:
        parameter.grad.mul_(scale[0])

    held.register_post_accumulate_grad_hook(scaled)
    return lambda x: x * held, lambda i: scale.__setitem__(0, VALUES[i]), grads_of(held)


@feature
def hook_of_backward() -> Any:
    net, scale = nn.Linear(WIDTH, WIDTH, bias=False).to("cuda"), [1.0]
    with torch.no_grad():
        net.weight.copy_(torch.eye(WIDTH))
    net.register_full_backward_hook(lambda module, grads, outs: (None if grads[0] is None else grads[0] * scale[0],))
    return lambda x: net(x), lambda i: scale.__setitem__(0, VALUES[i]), grads_of(net.weight)


@feature
def tied() -> Any:
    net = nn.Module()
    net.a, net.b, other = weight(), weight(), weight()

    def change(i: int) -> None:
        net.b = (other, net.a, nn.Parameter(constant(VALUES[i])))[i]

    return lambda x: x * net.a + net.b, change, lambda: grads_of(net.a, net.b)()


@feature
def island_without_gradients() -> Any:
    held, is_island = weight(), [False]

    def read(x: Any) -> Any:
        with torch.set_grad_enabled(torch.is_grad_enabled() and not is_island[0]):
            y = x * held
        return y + x

    return read, lambda i: is_island.__setitem__(0, i == 1), grads_of(held)


@feature
def detached() -> Any:
    held, where = weight(), types.SimpleNamespace(cut=0)

    def read(x: Any) -> Any:
        y = x * held
        return y if where.cut == 0 else y.detach() + x if where.cut == 1 else y * held.detach()

    return read, lambda i: setattr(where, "cut", i), grads_of(held)


@feature
def checkpointed() -> Any:
    held, scale = weight(), [1.0]
    part = lambda x: (x * held * scale[0]).tanh()  # noqa: E731
    read = lambda x: checkpoint(part, x, use_reentrant=False)  # noqa: E731
    return read, lambda i: scale.__setitem__(0, VALUES[i]), grads_of(held)


class _Scaled(torch.autograd.Function):
    """Reads a class attribute forward and another one backward."""

    forth, back = 1.0, 1.0

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * _Scaled.forth

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * _Scaled.back


@feature
def function_of_autograd() -> Any:
    held = weight()

    def change(i: int) -> None:
        _Scaled.forth, _Scaled.back = (1.0, VALUES[i]) if i != 2 else (VALUES[i], 1.0)

    return lambda x: _Scaled.apply(x * held), change, grads_of(held)


@feature
def autocast_inside() -> Any:
    net, kinds = nn.Linear(WIDTH, WIDTH).to("cuda"), [None, torch.bfloat16, torch.float16]
    with torch.no_grad():
        net.weight.copy_(torch.eye(WIDTH) * 2)
        net.bias.fill_(0.5)
    held = [0]

    def read(x: Any) -> Any:
        with torch.autocast("cuda", kinds[held[0]] or torch.bfloat16, enabled=held[0] > 0):
            return net(x).to(x.dtype)

    return read, lambda i: held.__setitem__(0, i)


@feature
def view_of_a_buffer() -> Any:
    base = torch.ones(3 * WIDTH, device="cuda")
    held = types.SimpleNamespace(view=base[:WIDTH])

    def change(i: int) -> None:
        base.fill_(VALUES[i])
        held.view = base[i * WIDTH :][:WIDTH]

    return lambda x: x * held.view, change, lambda: base.clone()


@feature
def strides_of_a_tensor() -> Any:
    held = types.SimpleNamespace(t=torch.arange(1.0, 1 + WIDTH * WIDTH, device="cuda").view(WIDTH, WIDTH))
    return lambda x: x @ held.t / 9, lambda i: setattr(held, "t", held.t.t() if i else held.t.contiguous())


@feature
def written_through_a_view() -> Any:
    net = nn.Module()
    net.register_buffer("seen", torch.zeros(2, WIDTH, device="cuda"))
    at = [0]

    def read(x: Any) -> Any:
        net.seen[at[0]].copy_(x.detach()[0])
        return x + net.seen[0]

    return read, lambda i: at.__setitem__(0, i % 2), lambda: net.seen.clone()


@feature
def result_stored() -> Any:
    held = types.SimpleNamespace(last=constant(1.0), keeps=True)

    def read(x: Any) -> Any:
        y = x * held.last.mean()
        if held.keeps:
            held.last = y.detach() / 4
        return y

    return read, lambda i: setattr(held, "keeps", i == 0), lambda: held.last.clone()


@feature
def order_of_modules() -> Any:
    net = nn.ModuleDict({"a": nn.Tanh(), "b": nn.Softplus()})

    def change(i: int) -> None:
        first = net.pop("ab"[i % 2])
        net["ab"[i % 2]] = first

    def read(x: Any) -> Any:
        for each in net.values():
            x = each(x)
        return x

    return read, change


@feature
def classes_setting_of_a_module() -> Any:
    class Act(nn.Module):
        slope = 1.0

        def forward(self, x: Any) -> Any:
            return x * self.slope

    nets = [Act(), Act()]

    def change(i: int) -> None:
        if i == 2:
            nets[0].slope = VALUES[i]
        else:
            vars(nets[0]).pop("slope", None)
            Act.slope = VALUES[i]

    return lambda x: nets[1](nets[0](x)), change


WIDER: dict[str, Any] = {name: FEATURES.pop(name) for name in list(FEATURES) if name not in _BEFORE}
