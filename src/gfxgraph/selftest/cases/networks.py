"""What networks are made of: a decode loop, training steps, and the libraries behind their operations."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from gfxgraph.selftest.bench import RTOL, Bench, case, expect, same, skip

# -- decoding ----------------------------------------------------------------------------------------------------


@case()
def kv_cache_decode(bench: Bench) -> None:
    """A greedy decode loop with a key-value cache writes the same tokens as eager."""
    n_tokens, width, n_heads, vocabulary = 24, 64, 4, 97
    embedding, head = bench.randn(vocabulary, width), bench.randn(width, vocabulary)
    project = bench.randn(width, 3 * width) / math.sqrt(width)
    keys, values = (torch.zeros(1, n_heads, n_tokens, width // n_heads, device="cuda") for _ in range(2))
    token, position = (torch.zeros(1, dtype=torch.long, device="cuda") for _ in range(2))
    places = torch.arange(n_tokens, device="cuda")

    def step() -> Tensor:
        hidden = embedding.index_select(0, token)
        query, key, value = (hidden @ project).view(1, 3, n_heads, width // n_heads).unbind(1)
        keys.index_copy_(2, position, key.unsqueeze(2))
        values.index_copy_(2, position, value.unsqueeze(2))
        scores = (query.unsqueeze(2) @ keys.transpose(2, 3)) / math.sqrt(width // n_heads)
        seen = (places <= position).view(1, 1, 1, n_tokens)
        attended = scores.masked_fill(~seen, -math.inf).softmax(-1) @ values
        logits = (hidden + attended.reshape(1, width)) @ head
        token.copy_(logits.argmax(-1))
        position.add_(1)
        return logits

    def decode(run: Callable[[], object]) -> list[int]:
        for tensor in (keys, values, token, position):
            tensor.zero_()
        written = []
        for _ in range(n_tokens):
            run()
            written.append(int(token))
        return written

    bench.warm_up(step)
    wanted = decode(step)
    position.zero_()
    graph, _ = bench.capture(step)
    for n in range(2):
        got = decode(graph.replay)
        expect(got == wanted, f"loop {n + 1} wrote {got} instead of {wanted}")


# -- training ----------------------------------------------------------------------------------------------------


@case()
def training_step(bench: Bench) -> None:
    """A captured step of forward, backward and Adam(capturable=True) trains as eager does."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)).to("cuda")
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2, capturable=True)
    x, target = bench.randn(64, 16), bench.randn(64, 1)

    def step() -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = functional.mse_loss(network(x), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for _ in range(3):
        bench.warm_up(step)
    learnt = [p.data for p in network.parameters()]
    learnt += [value for each in optimizer.state.values() for value in each.values() if isinstance(value, Tensor)]
    bench.follows_eager(step, [], learnt, times=5, rtol=1e-3)


# -- libraries ---------------------------------------------------------------------------------------------------


@case()
def matmul(bench: Bench) -> None:
    """Chains of fp32, fp16 and bf16 matrix products replay like eager and are near the exact result."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x, layers = bench.randn(64, 256, dtype=dtype), [bench.randn(256, 256, dtype=dtype) / 16 for _ in range(6)]

        def body(x: Tensor = x, layers: list[Tensor] = layers) -> Tensor:
            for layer in layers:
                x = functional.gelu(x @ layer) + x
            return x

        _eagerly(body)
        _, y = bench.follows_eager(body, [x], rtol=RTOL[dtype])
        exact = body(x.double().cpu(), [layer.double().cpu() for layer in layers])
        same([y], [exact], f"the {dtype} graph and double precision on the host", 5 * RTOL[dtype])


def _eagerly(body: Callable[[], Tensor]) -> None:
    try:
        body()
    except RuntimeError as error:
        skip(f"eager execution cannot do it either: {str(error).splitlines()[0]}")


@case(limit_s=300)  # a first convolution may search for its algorithm, or compile it
def convolution(bench: Bench) -> None:
    """A convolution with batch normalisation in evaluation replays like eager."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Conv2d(8, 16, 3, padding=1), torch.nn.BatchNorm2d(16)).to("cuda").eval()
    x = bench.randn(2, 8, 16, 16)
    with torch.no_grad():
        bench.follows_eager(lambda: network(x).relu(), [x], rtol=RTOL[torch.float32])


@case(limit_s=300)
def attention(bench: Bench) -> None:
    """scaled_dot_product_attention in fp16 replays like eager, by whichever kernel torch picks here."""
    q, k, v = (bench.randn(2, 4, 64, 32, dtype=torch.float16) for _ in range(3))

    def body() -> Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    _eagerly(body)
    bench.follows_eager(body, [q, k, v], rtol=RTOL[torch.float16])
