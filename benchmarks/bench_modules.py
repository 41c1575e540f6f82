"""Ordinary modules: CPU of the process for one call, through ``graphed`` and through what people use today.

    python benchmarks/bench_modules.py [--write FILE] [--modules A,B] [--peers A,B] [--modes eval,train]
                                       [--reps N] [--seconds S] [--simulate cuda|hip]

In ``eval`` a call is the module without gradients; in ``train`` it is the forward, the backward with a given
gradient of the results, and the parameters' gradients set to None before. Each peer has a module of its own from the
same seed, gets four sets of inputs in turn, and must give eager's results and gradients. Time is
``time.process_time`` over calls that the device's queue can hold, with a synchronisation before and after that is not
counted; peers alternate; the best sample counts; a ``~`` marks a median that lies a quarter or more above it, a ``!``
a peer whose values are wrong.

Peers: eager; ``graphed``; by hand, which is one ``copy_`` for each input and a replay; the bare replay of such a
graph; ``torch.cuda.make_graphed_callables``; ``torch.compile`` with ``reduce-overhead``, which is measured last and
left out, by name, once the run has taken ``--seconds``. With gradients also one launch each way: an autograd function
over all parameters that replays a graph of the forward and one of the backward, and copies nothing. On a GPU the
drop-in is off, so that the peers are torch's own.

The verdict: whether ``graphed`` is above eager (its best sample above eager's best and median), and how far it is
over the bare replay, with gradients over one launch each way.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from measuring import provenance
from torch import nn
from torch.utils._pytree import tree_leaves

sys.path.insert(0, str(Path(__file__).parent))
from bench_callables import by_hand
from bench_core import environment

import gfxgraph

N_SETS = 4
SAMPLE_S = 0.003
LEAST_CALLS, MOST_CALLS = 24, 50
"""Few enough that the device's queue never makes the CPU wait; of 8 backwards, whose thread sleeps before, samples
differed twofold."""
N_WARM = 24
OVER_BARE_US, OVER_EACH_WAY_US = 15.0, 60.0
RTOL, ATOL = 1e-3, 1e-4

MODULES: dict[str, Callable[[], tuple[Any, ...]]] = {}
"""Each makes what is called and the arguments of a call; a third value names parameters that no module holds."""


class NotHere(Exception):
    """What a module or a peer needs is not installed."""


def ordinary(make: Callable[[], tuple[Any, ...]]) -> Callable[[], tuple[Any, ...]]:
    MODULES[make.__name__] = make
    return make


def randn(*size: int) -> torch.Tensor:
    return torch.randn(*size, device="cuda")


# -- the modules ------------------------------------------------------------------------------------------------


@ordinary
def linear():
    return nn.Linear(64, 64), (randn(8, 64),)


@ordinary
def sequential():
    return nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)), (randn(8, 64),)


@ordinary
def module_list():
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x).relu()
            return x

    return Layers(), (randn(8, 64),)


@ordinary
def module_dict():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Linear(64, 64)
            self.heads = nn.ModuleDict({"topic": nn.Linear(64, 8), "mood": nn.Linear(64, 3)})

        def forward(self, x):
            x = self.trunk(x).relu()
            return {name: head(x) for name, head in self.heads.items()}

    return Heads(), (randn(8, 64),)


@ordinary
def mlp():
    class Mlp(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

        def forward(self, x):
            return x + self.down(F.gelu(self.up(self.norm(x))))

    return Mlp(), (randn(8, 64),)


@ordinary
def resnet_block():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = (nn.Conv2d(16, 16, 3, padding=1, bias=False) for _ in range(2))
            self.norm_one, self.norm_two = nn.BatchNorm2d(16), nn.BatchNorm2d(16)
            self.relu = nn.ReLU(inplace=True)

        def forward(self, x):
            y = self.relu(self.norm_one(self.one(x)))
            return self.relu(self.norm_two(self.two(y)) + x)

    return Block(), (randn(2, 16, 16, 16),)


@ordinary
def batch_norm():
    return nn.BatchNorm1d(64), (randn(8, 64),)


@ordinary
def group_norm():
    return nn.GroupNorm(4, 64), (randn(8, 64, 8),)


@ordinary
def lstm():
    return nn.LSTM(32, 32, batch_first=True), (randn(4, 8, 32),)


@ordinary
def gru():
    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(32, 32, num_layers=2, batch_first=True)
            self.head = nn.Linear(32, 5)

        def forward(self, x):
            y, _ = self.gru(x)
            return self.head(y[:, -1])

    return Tagger(), (randn(4, 8, 32),)


@ordinary
def embedding():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(100, 32), nn.Linear(32, 8)

        def forward(self, ids):
            return self.head(self.table(ids).mean(1))

    return Bag(), (torch.randint(100, (4, 12), device="cuda"),)


@ordinary
def multihead_attention():
    x = randn(2, 16, 64)
    return nn.MultiheadAttention(64, 4, batch_first=True), (x, x, x)


@ordinary
def transformer_encoder_layer():
    return nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True), (randn(2, 16, 64),)


@ordinary
def unet_block():
    class Unet(nn.Module):
        def __init__(self):
            super().__init__()
            self.enter, self.down = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
            self.norm = nn.GroupNorm(4, 16)
            self.up, self.out = nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 4, 3, padding=1)

        def forward(self, x):
            skip = F.silu(self.enter(x))
            y = F.silu(self.norm(self.down(skip)))
            return self.out(torch.cat([self.up(y), skip], 1))

    return Unet(), (randn(2, 4, 16, 16),)


@ordinary
def vit_block():
    class Block(nn.Module):
        def __init__(self, d=64, n_heads=4):
            super().__init__()
            self.n_heads = n_heads
            self.norm_one, self.norm_two = nn.LayerNorm(d), nn.LayerNorm(d)
            self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(), nn.Linear(4 * d, d))

        def forward(self, x):
            b, n, d = x.shape
            q, k, v = self.qkv(self.norm_one(x)).view(b, n, 3, self.n_heads, d // self.n_heads).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
            x = x + self.proj(y)
            return x + self.mlp(self.norm_two(x))

    return Block(), (randn(2, 17, 64),)


@ordinary
def conv1d_stack():
    layers = [nn.Sequential(nn.Conv1d(16, 16, 3, padding=2**i, dilation=2**i), nn.ReLU()) for i in range(3)]
    return nn.Sequential(*layers, nn.Conv1d(16, 4, 1)), (randn(2, 16, 32),)


def _transformers(what: str) -> Any:
    try:
        import transformers
    except ImportError:
        raise NotHere(f"transformers is not installed: no {what}") from None
    transformers.logging.set_verbosity_error()
    return transformers


@ordinary
def hf_llama_block():
    config = _transformers("Llama block").LlamaConfig(
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_hidden_layers=1,
        vocab_size=32,
        attn_implementation="sdpa",
    )
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.rotary, self.layer = LlamaRotaryEmbedding(config), LlamaDecoderLayer(config, 0)
            self.register_buffer("positions", torch.arange(16)[None], persistent=False)

        def forward(self, x):
            found = self.layer(x, position_embeddings=self.rotary(x, self.positions))
            return found[0] if isinstance(found, tuple) else found

    return Block(), (randn(2, 16, 64),)


@ordinary
def hf_bert_block():
    config = _transformers("BERT block").BertConfig(
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=4,
        num_hidden_layers=1,
        vocab_size=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )
    from transformers.models.bert.modeling_bert import BertLayer

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = BertLayer(config)

        def forward(self, x):
            found = self.layer(x)
            return found[0] if isinstance(found, tuple) else found

    return Block(), (randn(2, 16, 64),)


@ordinary
def dataclass_of_weights():
    @dataclasses.dataclass
    class Weights:
        up: torch.Tensor
        down: torch.Tensor
        scale: float = 0.5

    weights = Weights((randn(64, 128) / 8).requires_grad_(), (randn(128, 64) / 8).requires_grad_())

    def apply(x):
        return weights.scale * (F.gelu(x @ weights.up) @ weights.down)

    return apply, (randn(8, 64),), [weights.up, weights.down]


@ordinary
def class_with_call():
    class Filter:
        def __init__(self):
            self.net, self.gain = nn.Linear(64, 64).cuda(), 2.0

        def __call__(self, x):
            return (self.gain * self.net(x)).tanh()

    made = Filter()
    return made, (randn(8, 64),), list(made.net.parameters())


@ordinary
def dropout_in_eval():
    class Classifier(nn.Module):
        """As in fine-tuning with the dropout off."""

        def __init__(self):
            super().__init__()
            self.up, self.drop, self.down = nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 8)

        def forward(self, x):
            return self.down(self.drop(self.up(x).relu()))

        def train(self, mode=True):
            return super().train(False)

    return Classifier(), (randn(8, 64),)


# -- one case: a module of its own, its inputs, its step -----------------------------------------------------------


@dataclasses.dataclass
class Case:
    """What one peer runs."""

    fn: Any
    parameters: list[torch.Tensor]
    sets: list[tuple[torch.Tensor, ...]]
    trains: bool
    gradients: list[torch.Tensor] = dataclasses.field(default_factory=list)
    """Of the results, one for each that requires gradients."""
    marks: list[float] | None = None
    """CPU seconds of the process before a step, after its gradients are None, its call, its backward; if noted."""

    def step(self, call: Callable[..., Any]) -> Callable[[tuple[torch.Tensor, ...]], Any]:
        """One call as a program would make it."""
        if not self.trains:
            return lambda given: call(*given)
        parameters, gradients = self.parameters, self.gradients

        def trained(given):
            for each in parameters:
                each.grad = None
            out = call(*given)
            torch.autograd.backward(needing_gradients(out), gradients)
            return out

        def marked(given):
            now, marks = time.process_time, self.marks
            if marks is None:
                return trained(given)
            marks.append(now())
            for each in parameters:
                each.grad = None
            marks.append(now())
            out = call(*given)
            marks.append(now())
            torch.autograd.backward(needing_gradients(out), gradients)
            marks.append(now())
            return out

        return marked

    def seen(self, out: Any) -> list[torch.Tensor]:
        """What a program could look at after a call."""
        found = [each.detach().clone() for each in tree_leaves(out) if isinstance(each, torch.Tensor)]
        if self.trains:
            found += [torch.zeros(()) if p.grad is None else p.grad.detach().clone() for p in self.parameters]
        return found


def needing_gradients(out: Any) -> list[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        return [out]
    return [each for each in tree_leaves(out) if isinstance(each, torch.Tensor) and each.requires_grad]


def made(name: str, mode: str) -> Case:
    torch.manual_seed(0)
    fn, args, *rest = MODULES[name]()
    if isinstance(fn, nn.Module):
        fn = fn.cuda().train(mode == "train")
    parameters = rest[0] if rest else list(fn.parameters())
    sets = [args]
    for _ in range(N_SETS - 1):
        fresh = {
            id(a): torch.randint_like(a, 100) if not a.is_floating_point() else torch.randn_like(a) for a in args
        }
        sets.append(tuple(fresh[id(a)] for a in args))
    case = Case(fn, parameters, sets, mode == "train")
    if case.trains:
        spare = copy.deepcopy(fn) if isinstance(fn, nn.Module) else fn  # the statistics of a batch norm stay
        case.gradients = [torch.randn_like(each) for each in needing_gradients(spare(*args))]
    return case


# -- the peers --------------------------------------------------------------------------------------------------

Step = Callable[[tuple[torch.Tensor, ...]], Any]


def eager(case: Case) -> Step:
    return case.step(case.fn)


def graphed(case: Case) -> Step:
    call = gfxgraph.graphed(case.fn)
    step = case.step(call)
    step.graphed = call  # type: ignore[attr-defined]
    return step


def copies_by_hand(case: Case) -> Step:
    statics = _static(case)
    step = case.step(case.fn)
    graph, out = by_hand(lambda *args: step(args), statics)

    def call(given):
        for static, each in zip(statics, given):
            static.copy_(each)
        graph.replay()
        return out

    call.held = statics  # type: ignore[attr-defined]
    return call


def bare_replay(case: Case) -> Step:
    step = case.step(case.fn)
    args = case.sets[0]
    graph, out = by_hand(lambda *given: step(given), args)
    replay = graph.replay

    def call(given):
        replay()

    call.held = (graph, out, args)  # type: ignore[attr-defined]
    return call


def _static(case: Case) -> tuple[torch.Tensor, ...]:
    return tuple(each.clone() for each in case.sets[0])


class EachWay(torch.autograd.Function):
    @staticmethod
    def forward(ctx, state, *parameters):
        ctx.state = state
        state["forward"].replay()
        return tuple(each.detach() for each in state["out"])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *gradients):
        ctx.state["backward"].replay()
        return None, *(each if each is None else each.detach() for each in ctx.state["gradients"])


def launch_each_way(case: Case) -> Step:
    if not case.trains:
        raise NotHere("it is for gradients")
    case.step(case.fn)(case.sets[0])
    pool, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            case.step(case.fn)(case.sets[0])
    torch.cuda.current_stream().wait_stream(stream)
    there, back = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(there, pool=pool, stream=stream):
        out = needing_gradients(case.fn(*case.sets[0]))
    with torch.cuda.graph(back, pool=pool, stream=stream):
        gradients = torch.autograd.grad(out, case.parameters, case.gradients, allow_unused=True)
    state = {"forward": there, "backward": back, "out": out, "gradients": gradients}
    return case.step(lambda *given: EachWay.apply(state, *case.parameters))


def make_graphed_callables(case: Case) -> Step:
    fn = case.fn
    if not isinstance(fn, nn.Module) and case.trains:
        raise NotHere("it gives no gradients to weights that no module holds")
    if not isinstance(fn, nn.Module):
        fn = lambda *args: case.fn(*args)  # noqa: E731  it asks for a function
    if case.trains:
        call = torch.cuda.make_graphed_callables(fn, _static(case), allow_unused_input=True)
    else:
        held = case.parameters, [each.requires_grad for each in case.parameters]
        for each in held[0]:
            each.requires_grad_(False)
        call = torch.cuda.make_graphed_callables(fn, _static(case), allow_unused_input=True)
    return case.step(call)


def reduce_overhead(case: Case) -> Step:
    call = torch.compile(case.fn, mode="reduce-overhead")
    step = case.step(call)

    def marked(given):
        torch.compiler.cudagraph_mark_step_begin()
        return step(given)

    return marked


PEERS: dict[str, Callable[[Case], Step]] = {
    "eager": eager,
    "graphed": graphed,
    "by hand": copies_by_hand,
    "bare": bare_replay,
    "each way": launch_each_way,
    "make_graphed": make_graphed_callables,
    "reduce-overhead": reduce_overhead,
}
COMPILED = ("reduce-overhead",)
NOT_COMPARED = ("bare", "each way")
"""They compute the first set's results only."""


# -- the measurement --------------------------------------------------------------------------------------------


def difference(mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> str:
    if len(mine) != len(theirs):
        return f"{len(mine)} values instead of {len(theirs)}"
    for i, (a, b) in enumerate(zip(mine, theirs)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"value {i} is {a.dtype} {list(a.shape)}, not {b.dtype} {list(b.shape)}"
        scale = float(b.abs().max()) if b.numel() and b.is_floating_point() else 1.0
        if not torch.allclose(a, b, rtol=RTOL, atol=ATOL * max(1.0, scale), equal_nan=True):
            return f"value {i} differs by {(a.double() - b.double()).abs().max().item():.3g} of {scale:.3g}"
    return ""


def cpu_us(step: Step, sets: list[tuple[torch.Tensor, ...]], n: int) -> float:
    torch.cuda.synchronize()
    begun = time.process_time()
    for i in range(n):
        kept = step(sets[i % N_SETS])
    took = time.process_time() - begun
    torch.cuda.synchronize()
    del kept
    return took / n * 1e6


@dataclasses.dataclass
class Measured:
    """One peer of one module in one mode."""

    peer: str
    samples_us: list[float] = dataclasses.field(default_factory=list)
    is_right: bool | None = None
    error: str = ""
    how: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def best(self) -> float | None:
        return min(self.samples_us) if self.samples_us else None

    def as_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"is_right": self.is_right}
        if self.best is not None:
            median = statistics.median(self.samples_us)
            found |= {"best_us": round(self.best, 2), "median_us": round(median, 2)}
            found |= {"spread": round(median / self.best - 1, 3) if self.best else None}
            found |= {"samples_us": [round(each, 2) for each in self.samples_us]}
        return found | ({"error": self.error} if self.error else {}) | ({"calls": self.how} if self.how else {})


def how_they_ran(before: dict[str, Any], after: dict[str, Any], n: int) -> dict[str, Any]:
    """Of the timed calls alone."""
    eager_by, pieces_by = (
        {why[:200]: m - before[part].get(why, 0) for why, m in after[part].items() if m != before[part].get(why, 0)}
        for part in ("eager", "pieces")
    )
    return {
        "calls": n,
        "replays": after["replays"] - before["replays"],
        "eager": eager_by,
        "pieces": pieces_by,
        "captures": after["captures"],
        "signatures": after["signatures"],
    }


def measure(name: str, mode: str, peers: list[str], reps: int, by_phase: bool = False) -> dict[str, Measured]:
    """Every peer on one module; what fails is in the result with its reason."""
    torch._dynamo.reset()
    found = {peer: Measured(peer) for peer in peers}
    ready: list[tuple[Measured, Step, Case, int]] = []
    with torch.set_grad_enabled(mode == "train"):
        case = made(name, mode)
        step = eager(case)
        expected = [case.seen(step(given)) for given in case.sets]
        state = _buffers(case)
        for peer in peers:
            row = found[peer]
            try:
                case = made(name, mode)
                step = PEERS[peer](case)
                if peer not in NOT_COMPARED:
                    why = _wrong(case, step, expected, state if peer == "graphed" else None)
                    row.is_right, row.error = not why, why
                for i in range(N_WARM):
                    step(case.sets[i % N_SETS])
                once = min(cpu_us(step, case.sets, 4) for _ in range(3))
                n = int(max(LEAST_CALLS, min(MOST_CALLS, SAMPLE_S * 1e6 / max(once, 1.0))))
                ready.append((row, step, case, n))
            except NotHere as why_not:
                row.error = f"left out: {why_not}"
            except Exception as error:  # noqa: BLE001  a peer that cannot run this is a finding
                torch.cuda.synchronize()
                row.error = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
        stats = {row.peer: step.graphed.stats() for row, step, _, _ in ready if hasattr(step, "graphed")}
        for rep in range(reps):
            for row, step, case, n in ready if rep % 2 else ready[::-1]:
                row.samples_us.append(cpu_us(step, case.sets, n))
        for row, step, _, n in ready:
            if row.peer in stats:
                row.how = how_they_ran(stats[row.peer], step.graphed.stats(), n * reps)
        if by_phase and mode == "train":
            phases(ready)
    return found


def phases(ready: list[tuple[Measured, Step, Case, int]]) -> None:
    """Print the median CPU of the phases of a step, for each peer."""
    for row, step, case, n in ready:
        found: list[list[float]] = []
        for _ in range(20):
            case.marks = []
            cpu_us(step, case.sets, n)
            steps = [case.marks[i : i + 4] for i in range(0, len(case.marks), 4)]
            found += [[1e6 * (b - a) for a, b in zip(each, each[1:])] for each in steps]
            case.marks = None
        if not found:  # a graph of the whole step
            continue
        shown = ", ".join(f"{statistics.median(each):.1f}" for each in zip(*found))
        print(f"    {row.peer:16} gradients to None, call, backward: {shown}", flush=True)


def _buffers(case: Case) -> list[torch.Tensor]:
    return [each.clone() for each in case.fn.buffers()] if isinstance(case.fn, nn.Module) else []


def _wrong(case: Case, step: Step, expected: list[list[torch.Tensor]], state: list[torch.Tensor] | None) -> str:
    """How the results differ from eager's, over enough calls that graphs are captured and replayed."""
    for i in range(2 * N_SETS):
        seen = case.seen(step(case.sets[i % N_SETS]))
        why = difference(seen, expected[i % N_SETS])
        if why:
            return f"WRONG at call {i}: {why}"
        if state is not None and i == N_SETS - 1 and difference(_buffers(case), state):
            return f"WRONG buffers after call {i}: {difference(_buffers(case), state)}"
    return ""


def verdict(rows: dict[str, Measured], mode: str) -> dict[str, Any]:
    mine = rows.get("graphed")
    if mine is None or mine.best is None or rows["eager"].best is None:
        return {"text": mine.error if mine is not None else ""}
    floor = rows.get("each way" if mode == "train" else "bare")
    limit = OVER_EACH_WAY_US if mode == "train" else OVER_BARE_US
    over_eager = mine.best - rows["eager"].best
    is_above = over_eager > 0 and mine.best > statistics.median(rows["eager"].samples_us)
    found: dict[str, Any] = {"over_eager_us": round(over_eager, 1), "is_above_eager": is_above}
    said = [f"ABOVE EAGER by {over_eager:.0f}"] if is_above else []
    if floor is not None and floor.best is not None:
        over = mine.best - floor.best
        found |= {"over_floor_us": round(over, 1), "is_over_limit": over > limit}
        said.append(f"{over:+.0f} over {floor.peer}{f', limit {limit:.0f}' if over > limit else ''}")
    if mine.is_right is False:
        said.insert(0, mine.error)
    if mine.how:
        said.append(f"{mine.how['replays']} replays in {mine.how['calls']} calls")
        said += [f"{part}: {why} ({n})" for part in ("eager", "pieces") for why, n in mine.how[part].items()]
    return found | {"text": "; ".join(said) or "ok"}


def line(name: str, mode: str, rows: dict[str, Measured], peers: list[str], said: str) -> str:
    cells = []
    for peer in peers:
        row = rows.get(peer)
        if row is None or row.best is None:
            cells.append(f"{'-':>9}")
            continue
        mark = "!" if row.is_right is False else " "
        spread = statistics.median(row.samples_us) / row.best - 1 if row.best else 0.0
        cells.append(f"{row.best:>8.1f}{mark}" if spread < 0.25 else f"{row.best:>7.1f}~{mark}")
    return f"{name:<26}{mode:<6}{''.join(cells)}  {said}".rstrip()


def _head(what: str, peers: list[str]) -> str:
    return f"{what:<32}" + "".join(f"{each[:8]:>8} " for each in peers)


def counted(found: dict[str, dict[str, Measured]], mode: str) -> dict[str, int]:
    verdicts = [verdict(rows, mode) for rows in found.values()]
    mine = [rows["graphed"] for rows in found.values() if "graphed" in rows]
    return {
        "modules": len(found),
        "above eager": sum(each.get("is_above_eager", False) for each in verdicts),
        "over limit": sum(each.get("is_over_limit", False) for each in verdicts),
        "wrong": sum(each.is_right is False for each in mine),
        "raised": sum(each.best is None for each in mine),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="where to write the figures as JSON")
    parser.add_argument("--modules", default=",".join(MODULES))
    parser.add_argument("--peers", default="")
    parser.add_argument("--modes", default="eval,train")
    parser.add_argument("--reps", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=200.0)
    parser.add_argument("--phases", action="store_true", help="print what the phases of a step cost")
    parser.add_argument("--simulate", nargs="?", const="cuda", choices=("cuda", "hip"))
    asked = parser.parse_args()
    begun = time.monotonic()
    warnings.filterwarnings("ignore", category=UserWarning)
    if asked.simulate:
        gfxgraph.enable(simulate=asked.simulate, validate=False)
        torch.set_num_threads(1)
    elif not torch.cuda.is_available():
        parser.error("there is no GPU here: --simulate")
    left_out = ("make_graphed", "reduce-overhead") if asked.simulate else ()
    peers = asked.peers.split(",") if asked.peers else [each for each in PEERS if each not in left_out]
    peers = ["eager", *(each for each in peers if each != "eager")]
    modes = asked.modes.split(",")
    unknown = [each for each in peers if each not in PEERS] + [
        n for n in asked.modules.split(",") if n not in MODULES
    ]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; modules: {', '.join(MODULES)}; peers: {', '.join(PEERS)}")
    cases = [(name, mode) for name in asked.modules.split(",") for mode in modes]
    results: dict[tuple[str, str], dict[str, Measured]] = {}
    skipped: dict[str, str] = {}
    first = [each for each in peers if each not in COMPILED]
    print(_head("CPU us a call, best", first), flush=True)
    for name, mode in cases:
        try:
            results[name, mode] = measure(name, mode, first, asked.reps, asked.phases)
        except NotHere as why:
            skipped[name] = str(why)
            continue
        print(line(name, mode, results[name, mode], first, verdict(results[name, mode], mode)["text"]), flush=True)
    compiled = [each for each in peers if each in COMPILED]
    if compiled:
        print(_head(f"against {', '.join(compiled)}", beside := ["eager", "graphed", *compiled]), flush=True)
    for name, mode in results if compiled else ():
        for peer in compiled:
            if time.monotonic() - begun > asked.seconds:
                results[name, mode][peer] = Measured(peer, error=f"left out: the run has taken {asked.seconds:.0f} s")
                continue
            results[name, mode][peer] = measure(name, mode, [peer], asked.reps)[peer]
        print(line(name, mode, results[name, mode], beside, results[name, mode][compiled[-1]].error), flush=True)
    for name, why in skipped.items():
        print(f"{name}: skipped: {why}")
    count = {mode: counted({name: rows for (name, m), rows in results.items() if m == mode}, mode) for mode in modes}
    taken = round(time.monotonic() - begun, 1)
    print(f"{json.dumps(count)}; {taken:.0f} s")
    if asked.write:
        command = " ".join(["python", "benchmarks/bench_modules.py", *_without_paths(sys.argv[1:])])
        about = provenance() | environment()
        if asked.simulate:
            about["device"] = f"simulator ({asked.simulate}): times are of the CPU that computes"
        written = {
            "what": __doc__.splitlines()[0],
            "environment": about,
            "command": command,
            "seconds": taken,
            "limits_us": {"eval, over bare": OVER_BARE_US, "train, over one launch each way": OVER_EACH_WAY_US},
            "counted": count,
            "skipped": skipped,
            "figures": [
                {
                    "module": name,
                    "mode": mode,
                    "verdict": verdict(rows, mode),
                    "peers": {peer: row.as_dict() for peer, row in rows.items()},
                }
                for (name, mode), rows in results.items()
            ],
        }
        asked.write.parent.mkdir(parents=True, exist_ok=True)
        asked.write.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    return 0


def _without_paths(given: list[str]) -> list[str]:
    return [Path(each).name if each.startswith("/") else each for each in given]


if __name__ == "__main__":
    sys.exit(main())
