"""Whole scripts that use a model: hooks, parametrizations, generation, shapes, Python's own means."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import math
import random
import typing

import torch
import torch.nn.functional as F
from programs.registry import D, program, randn, weights_of
from torch import nn
from torch.nn.utils import parametrizations, parametrize

# -- results, hooks, functions of one's own ------------------------------------------------------------------------


@program
def dataclass_output_with_optional_loss(graphed):
    """A model's output is a dataclass whose loss is None where no labels are given."""

    @dataclasses.dataclass
    class Output:
        logits: torch.Tensor
        loss: torch.Tensor | None = None
        hidden: tuple = ()

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(5, 7), nn.Linear(7, 3)

        def forward(self, x, labels=None, output_hidden=False):
            h = self.body(x).tanh()
            logits = self.head(h)
            loss = F.cross_entropy(logits, labels) if labels is not None else None
            return Output(logits, loss, (x, h) if output_hidden else ())

    model = Model().to(D)
    run = graphed(model)
    seen = []
    for i in range(10):
        labels = torch.randint(3, (4,), device=D) if i % 2 else None
        out = run(randn(4, 5), labels, output_hidden=i > 6)
        if out.loss is not None:
            model.zero_grad()
            out.loss.backward()
            seen.append(model.body.weight.grad.clone())
        seen.append((out.logits.detach(), len(out.hidden), out.loss is None, [h.detach() for h in out.hidden]))
    return seen


@program
def straight_through_with_context(graphed):
    """An autograd function keeps a number and a mask in its context; the number is a setting of the module."""

    class Binarize(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, width):
            ctx.save_for_backward(x.abs() <= width)
            ctx.width = width
            return x.sign()

        @staticmethod
        def backward(ctx, grad):
            (inside,) = ctx.saved_tensors
            return grad * inside / ctx.width, None

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.width = nn.Linear(4, 8), nn.Linear(8, 2), 1.0

        def forward(self, x):
            return self.b(Binarize.apply(self.a(x), self.width))

    net = Net().to(D)
    run = graphed(net)
    grads = []
    for i in range(9):
        net.width = 1.0 if i < 5 else 0.5
        net.zero_grad()
        run(randn(6, 4)).square().sum().backward()
        grads += [net.a.weight.grad.clone(), net.b.bias.grad.clone()]
    return grads


@program
def hooks_on_activations_and_parameters(graphed):
    """Gradient norms of an activation are noted by a hook in the forward; a parameter's hook halves its gradient."""
    norms = []

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x):
            h = self.a(x).relu()
            if h.requires_grad:
                h.register_hook(lambda grad: norms.append(grad.norm().detach()))
            return self.b(h)

    net = Net().to(D)
    handle = net.a.weight.register_hook(lambda grad: grad / 2)
    run = graphed(net)
    grads = []
    for i in range(8):
        if i == 5:
            handle.remove()
        net.zero_grad()
        run(randn(3, 4)).sum().backward()
        grads.append(net.a.weight.grad.clone())
    return grads, norms


@program
def backward_hooks_on_a_module(graphed):
    """A full backward hook gathers statistics; gradients of a frozen layer are absent."""
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).to(D)
    seen = []
    net[2].register_full_backward_hook(lambda module, into, outof: seen.append(outof[0].abs().mean().detach()))
    run = graphed(net)
    for i in range(8):
        net[0].requires_grad_(i < 4)
        net.zero_grad()
        run(randn(3, 4)).square().sum().backward()
        seen.append([None if p.grad is None else p.grad.clone() for p in net.parameters()])
    return seen


@program
def partial_whose_keyword_changes(graphed):
    """A partial's keywords are rewritten between calls, as a sweep does."""

    def shrink(x, *, threshold, power=1):
        return x.sign() * F.relu(x.abs() - threshold) ** power

    each = functools.partial(shrink, threshold=0.1)
    run = graphed(each)
    out = []
    for i in range(10):
        if i in (4, 8):
            each.keywords["threshold"] = 0.1 * i
        out.append(run(randn(5), power=1 + i // 6))
    return out


@program
def callable_with_memo_by_shape(graphed):
    """Position tables are made once for each length and kept in a dict of the object."""

    class Positions:
        def __init__(self, d):
            self.d, self.tables, self.n_made = d, {}, 0

        def __call__(self, x):
            n = x.shape[-2]
            if n not in self.tables:
                self.n_made += 1
                rate = torch.exp(torch.arange(0, self.d, 2, device=x.device) * (-math.log(10000.0) / self.d))
                angle = torch.arange(n, device=x.device)[:, None] * rate
                self.tables[n] = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)
            return x + self.tables[n]

    positions = Positions(6)
    run = graphed(positions)
    out = [run(randn(2, n, 6)) for n in (3, 3, 5, 3, 5, 5, 3, 5, 3, 3)]
    return out, positions.n_made, sorted(positions.tables)


# -- parametrizations, shared and added weights --------------------------------------------------------------------


@program
def symmetric_by_parametrization(graphed):
    """A weight computed from another; removed after training."""

    class Symmetric(nn.Module):
        def forward(self, w):
            return w.triu() + w.triu(1).t()

    layer = nn.Linear(5, 5).to(D)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    net = nn.Sequential(layer, nn.Tanh(), nn.Linear(5, 1).to(D))
    run = graphed(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for i in range(10):
        if i == 7:
            parametrize.remove_parametrizations(layer, "weight")
        loss = run(randn(4, 5)).square().mean()
        net.zero_grad()
        loss.backward()
        if i < 7:
            opt.step()
        losses.append(loss.item())
    return losses, layer.weight.detach()


@program
def weight_norm_vocoder(graphed):
    """A vocoder's block: weight norm in training, removed for synthesis."""
    convs = [parametrizations.weight_norm(nn.Conv1d(4, 4, 3, padding=1)) for _ in range(2)]
    net = nn.Sequential(convs[0], nn.LeakyReLU(0.1), convs[1]).to(D)
    run = graphed(net)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-2, betas=(0.8, 0.99))
    seen = []
    for _ in range(6):
        opt.zero_grad()
        loss = run(randn(2, 4, 10)).abs().mean()
        loss.backward()
        opt.step()
        seen.append(loss.item())
    for conv in convs:
        parametrize.remove_parametrizations(conv, "weight")
    net.eval()
    with torch.no_grad():
        seen += [run(randn(2, 4, 10)) for _ in range(5)]
    return seen


@program
def tied_language_model(graphed):
    """The head's weight is the embedding's; vocabulary is enlarged once, and tied again."""

    class Lm(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.emb = nn.Embedding(n, 8)
            self.mix = nn.Linear(8, 8)
            self.head = nn.Linear(8, n, bias=False)
            self.head.weight = self.emb.weight

        def forward(self, ids):
            return self.head(self.mix(self.emb(ids)).tanh())

    model = Lm(11).to(D)
    run = graphed(model)
    losses = []
    for i in range(10):
        if i == 5:
            old = model.emb
            model.emb = nn.Embedding(13, 8).to(D)
            with torch.no_grad():
                model.emb.weight[:11] = old.weight
            model.head = nn.Linear(8, 13, bias=False).to(D)
            model.head.weight = model.emb.weight
        ids = torch.randint(11, (2, 6), device=D)
        logits = run(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.5 * p.grad
        losses.append(loss.item())
    return losses, len(list(model.parameters())), weights_of(model)


@program
def lora_merged_for_serving(graphed):
    """Trained as two small factors, merged into the weight for some requests, then unmerged and trained on."""

    class Lora(nn.Module):
        def __init__(self, base, r=2):
            super().__init__()
            self.base = base.requires_grad_(False)
            self.down = nn.Parameter(torch.randn(r, base.in_features) * 0.1)
            self.up = nn.Parameter(torch.randn(base.out_features, r) * 0.1)
            self.scaling, self.merged = 2.0, False

        def merge(self, merged):
            if merged != self.merged:
                delta = self.scaling * (self.up @ self.down).detach()
                self.base.weight.data += delta if merged else -delta
                self.merged = merged

        def forward(self, x):
            y = self.base(x)
            return y if self.merged else y + self.scaling * F.linear(F.linear(x, self.down), self.up)

    net = nn.Sequential(Lora(nn.Linear(6, 6)), nn.GELU(), Lora(nn.Linear(6, 2))).to(D)
    run = graphed(net)
    opt = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    seen = []
    for i in range(12):
        serving = 4 <= i < 8
        net[0].merge(serving)
        net[2].merge(serving)
        with torch.set_grad_enabled(not serving):
            y = run(randn(3, 6))
        if not serving:
            opt.zero_grad()
            y.square().mean().backward()
            opt.step()
        seen.append(y.detach())
    return seen, weights_of(net)


@program
def experts_over_routed_tokens(graphed):
    """Each expert takes the tokens routed to it; an expert without tokens is passed over; loads are counted."""

    class Moe(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(6, 4)
            self.experts = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
            self.load = collections.Counter()

        def forward(self, x):
            weight, chosen = self.gate(x).softmax(-1).topk(2, -1)
            weight = weight / weight.sum(-1, keepdim=True)
            out = torch.zeros_like(x)
            for i, expert in enumerate(self.experts):
                token, slot = torch.where(chosen == i)
                if token.numel() == 0:
                    continue
                self.load[i] += token.numel()
                out.index_add_(0, token, expert(x[token]) * weight[token, slot, None])
            return out

    moe = Moe().to(D)
    run = graphed(moe)
    with torch.no_grad():
        out = [run(randn(5, 6)) for _ in range(8)]
    return out, dict(moe.load)


@program
def diffusion_training_step(graphed):
    """Noise and timesteps are drawn inside; a tenth of the conditions are dropped; an average follows."""
    net = nn.Sequential(nn.Linear(4 + 2 + 1, 16), nn.SiLU(), nn.Linear(16, 4)).to(D)
    average = copy.deepcopy(net).requires_grad_(False)
    alphas = torch.cos(torch.linspace(0, 1.4, 20, device=D)) ** 2

    @graphed
    def loss_of(x, cond):
        t = torch.randint(20, (len(x),), device=x.device)
        noise = torch.randn_like(x)
        a = alphas[t, None]
        keep = (torch.rand(len(x), 1, device=x.device) > 0.1).float()
        noisy = a.sqrt() * x + (1 - a).sqrt() * noise
        said = net(torch.cat([noisy, cond * keep, t[:, None] / 20], -1))
        return F.mse_loss(said, noise)

    opt = torch.optim.AdamW(net.parameters(), lr=1e-2)
    losses = []
    for _ in range(9):
        loss = loss_of(randn(6, 4), randn(6, 2))
        opt.zero_grad()
        loss.backward()
        opt.step()
        torch._foreach_lerp_(list(average.parameters()), list(net.parameters()), 0.1)
        losses.append(loss.item())
    return losses, weights_of(net, average)


# -- generation ----------------------------------------------------------------------------------------------------


@program
def decode_with_growing_cache(graphed):
    """The cache is a tuple of pairs that each step returns longer."""
    layers = nn.ModuleList(nn.Linear(8, 24) for _ in range(2)).to(D)
    emb, head = nn.Embedding(20, 8).to(D), nn.Linear(8, 20).to(D)

    @graphed
    @torch.no_grad()
    def step(ids, past):
        x, new = emb(ids), []
        for layer, (k, v) in zip(layers, past):
            q, k_new, v_new = layer(x).chunk(3, -1)
            k, v = torch.cat([k, k_new], 1), torch.cat([v, v_new], 1)
            x = x + F.scaled_dot_product_attention(q, k, v)
            new.append((k, v))
        return head(x[:, -1]).argmax(-1, keepdim=True), tuple(new)

    said = []
    for prompt in ([3, 1, 4], [2, 7, 1]):
        empty = torch.empty(1, 0, 8, device=D)
        ids, past = torch.tensor([prompt], device=D), ((empty, empty), (empty, empty))
        for _ in range(6):
            ids, past = step(ids, past)
            said.append(ids.item())
    return said, past


@program
def beam_search_with_python_beams(graphed):
    """Beams are lists of tokens; scores go to Python at each step, finished beams leave."""
    emb, rnn, head = nn.Embedding(9, 8).to(D), nn.GRUCell(8, 8).to(D), nn.Linear(8, 9).to(D)

    @graphed
    @torch.no_grad()
    def advance(tokens, h):
        h = rnn(emb(tokens), h)
        return F.log_softmax(head(h), -1), h

    finished, beams = [], [([1], 0.0)]
    h = torch.zeros(1, 8, device=D)
    for _ in range(7):
        logp, h = advance(torch.tensor([b[0][-1] for b in beams], device=D), h)
        score = logp + torch.tensor([b[1] for b in beams], device=D)[:, None]
        values, flat = score.flatten().topk(3)
        grown, rows = [], []
        for value, index in zip(values.tolist(), flat.tolist()):
            row, token = divmod(index, 9)
            tokens = [*beams[row][0], token]
            if token == 0:
                finished.append((tokens, round(value, 4)))
            else:
                grown.append((tokens, value))
                rows.append(row)
        if not grown:
            break
        beams, h = grown, h[torch.tensor(rows, device=D)]
    return finished, [b[0] for b in beams], [b[1] for b in beams]


@program
def sampler_with_warpers_and_generator(graphed):
    """Top-k then top-p from settings that the user turns; draws from a generator of its own."""

    @dataclasses.dataclass
    class Settings:
        temperature: float = 1.0
        top_k: int = 5
        top_p: float = 0.9

    settings = Settings()
    generator = torch.Generator(device=D).manual_seed(7)

    def sample(logits):
        logits = logits / settings.temperature
        kth = logits.topk(settings.top_k).values[..., -1:]
        logits = logits.masked_fill(logits < kth, -math.inf)
        ordered, index = logits.sort(descending=True)
        p = ordered.softmax(-1)
        ordered = ordered.masked_fill(p.cumsum(-1) - p > settings.top_p, -math.inf)
        drawn = torch.multinomial(ordered.softmax(-1), 1, generator=generator)
        return index.gather(-1, drawn)

    sample = graphed(sample)
    out = []
    for i in range(12):
        settings.temperature = 1.0 if i < 6 else 0.7
        settings.top_k = 5 if i < 9 else 3
        out.append(sample(randn(3, 10)))
    return out


# -- shapes, kinds of tensors, devices -----------------------------------------------------------------------------


@program
def lengths_in_buckets(graphed):
    """Sentences are grouped by length, padded to the bucket, masked; the answers go back in order."""
    emb, net = nn.Embedding(30, 8, padding_idx=0).to(D), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).to(D)
    net.eval()

    @graphed
    def encode(ids, lengths):
        pad = torch.arange(ids.shape[1], device=ids.device)[None] >= lengths[:, None]
        h = net(emb(ids), src_key_padding_mask=pad).masked_fill(pad[..., None], 0.0)
        return h.sum(1) / lengths[:, None]

    rng = random.Random(1)
    sentences = [[rng.randrange(1, 30) for _ in range(rng.choice([2, 3, 4, 6, 7, 8]))] for _ in range(20)]
    found = {}
    with torch.no_grad():
        for size in (4, 8):
            group = [i for i, s in enumerate(sentences) if size // 2 < len(s) <= size or (size == 4 and len(s) <= 4)]
            for at in range(0, len(group), 3):
                part = group[at : at + 3]
                ids = torch.zeros(len(part), size, dtype=torch.long)
                for row, i in enumerate(part):
                    ids[row, : len(sentences[i])] = torch.tensor(sentences[i])
                lengths = torch.tensor([len(sentences[i]) for i in part])
                for i, vector in zip(part, encode(ids.to(D), lengths.to(D))):
                    found[i] = vector.clone()
    return [found[i] for i in sorted(found)]


@program
def complex_rotary_and_spectrum(graphed):
    """Rotations by complex numbers, a filter in frequency; phases advance with a position on the object."""

    class Rotary:
        def __init__(self):
            rate = 1.0 / 100 ** (torch.arange(4, device=D) / 4)
            self.table = torch.polar(torch.ones(16, 4, device=D), torch.arange(16, device=D)[:, None] * rate)
            self.at = 0

        def __call__(self, x):
            n = x.shape[1]
            z = torch.view_as_complex(x.reshape(*x.shape[:-1], 4, 2)) * self.table[self.at : self.at + n]
            self.at += n
            spectrum = torch.fft.rfft(x, dim=-1)
            spectrum[..., 3:] = 0
            return torch.view_as_real(z).flatten(-2), torch.fft.irfft(spectrum, n=8, dim=-1), spectrum.abs()

    rotary = Rotary()
    run = graphed(rotary)
    out = [run(randn(1, n, 8)) for n in (3, 1, 1, 1, 1, 1, 1)]
    rotary.at = 0
    return out, [run(randn(1, 1, 8)) for _ in range(4)], rotary.at


@program
def sparse_graph_convolution(graphed):
    """A sparse adjacency times features, two layers; edges are added between epochs."""
    one, two = nn.Linear(5, 8).to(D), nn.Linear(8, 2).to(D)

    def adjacency(edges):
        index = torch.tensor(edges, device=D).t()
        index = torch.cat([index, index.flip(0), torch.arange(6, device=D).repeat(2, 1)], 1)
        return torch.sparse_coo_tensor(index, torch.ones(index.shape[1], device=D) / 3, (6, 6)).coalesce()

    graph = {"a": adjacency([(0, 1), (1, 2), (3, 4)])}

    @graphed
    def forward(x):
        h = torch.sparse.mm(graph["a"], one(x)).relu()
        return torch.sparse.mm(graph["a"], two(h))

    out, modules = [], nn.ModuleList([one, two])
    for i in range(9):
        if i == 5:
            graph["a"] = adjacency([(0, 1), (1, 2), (3, 4), (4, 5), (2, 5)])
        modules.zero_grad()
        y = forward(randn(6, 5))
        y.square().mean().backward()
        out += [y.detach(), one.weight.grad.clone()]
    return out


@program
def patterns_rearranged_by_string(graphed):
    """An einops of one's own: patterns parsed once and cached; another pattern for some calls."""

    @functools.cache
    def parse(pattern):
        left, right = (side.split() for side in pattern.split("->"))
        return tuple(left.index(name) for name in right if name != "1"), tuple(name == "1" for name in right)

    def rearrange(x, pattern):
        order, ones = parse(pattern)
        x = x.permute(order)
        for i, is_new in enumerate(ones):
            if is_new:
                x = x.unsqueeze(i)
        return x

    @graphed
    def attend(q, k, pattern="b n h d -> b h n d"):
        q, k = rearrange(q, pattern), rearrange(k, pattern)
        return (q @ k.transpose(-1, -2)).softmax(-1)

    patterns = ["b n h d -> b h n d"] * 5 + ["b n h d -> h b n d"] * 4 + ["b n h d -> b 1 h n d"] * 3
    return [attend(randn(2, 3, 2, 4), randn(2, 3, 2, 4), pattern) for pattern in patterns]


@program
def embedding_on_the_host(graphed):
    """A large table stays on the CPU; rows are sent to the GPU; a running norm stays on the CPU."""

    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(40, 6)
            self.net = nn.Linear(6, 3)
            self.register_buffer("norm", torch.zeros(()))

        def forward(self, ids):
            rows = self.table(ids)
            self.norm.mul_(0.9).add_(0.1 * rows.norm())
            return self.net(rows.to(self.net.weight.device).mean(1))

    net = Mixed()
    net.net.to(D)
    run = graphed(net)
    out = []
    with torch.no_grad():
        for i in range(9):
            if i == 5:
                net.table.weight.mul_(2)
            out.append(run(torch.randint(40, (3, 4))))
    return out, net.norm


@program
def channels_last_from_some_call(graphed):
    """A convolutional net is moved to channels_last, and its inputs too; strides of results are looked at."""
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)).to(D).eval()
    run = graphed(net)
    out, strides = [], []
    with torch.no_grad():
        for i in range(10):
            if i == 5:
                net.to(memory_format=torch.channels_last)
            x = randn(2, 3, 6, 6)
            y = run(x.to(memory_format=torch.channels_last) if i >= 5 else x)
            out.append(y)
            strides.append(y.is_contiguous(memory_format=torch.channels_last))
    return out, strides


# -- Python's own means --------------------------------------------------------------------------------------------


@program
def state_in_dicts_and_deques(graphed):
    """A tracker: tracks in a dict by name, each with a deque of positions; tracks come and go."""
    tracks: dict[str, dict] = {}

    @graphed
    def update(name, position):
        track = tracks.setdefault(name, {"seen": collections.deque(maxlen=3), "age": 0})
        track["seen"].append(position)
        track["age"] += 1
        stacked = torch.stack(tuple(track["seen"]))
        return stacked.mean(0), stacked[-1] - stacked[0]

    out = []
    for i in range(14):
        if i == 9:
            del tracks["b"]
        out.append(update("abc"[i % (2 if i < 6 else 3)], randn(2)))
    return out, {name: track["age"] for name, track in tracks.items()}


@program
def prefetch_on_a_side_stream(graphed):
    """The next batch is normalised on another stream; an event says when it is there."""
    net = nn.Linear(6, 3).to(D)
    side = torch.cuda.Stream()

    @graphed
    @torch.no_grad()
    def step(now, following):
        ready = torch.cuda.Event()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            prepared = (following - following.mean(0)) / (following.std(0) + 1e-5)
            ready.record(side)
        said = net(now).softmax(-1)
        torch.cuda.current_stream().wait_event(ready)
        return said, prepared

    out, now = [], randn(4, 6)
    for _ in range(9):
        said, now = step(now, randn(4, 6))
        out.append(said)
    torch.cuda.synchronize()
    return out, now


@program
def steps_timed_by_events(graphed):
    """A profiler's habit: events round the layers, the times kept in a list on the model."""

    class Timed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.times = nn.Linear(4, 4), nn.Linear(4, 4), []

        def forward(self, x):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            x = self.a(x).relu()
            end.record()
            self.times.append((start, end))
            return self.b(x)

    net = Timed().to(D)
    run = graphed(net)
    with torch.no_grad():
        out = [run(randn(2, 4)) for _ in range(8)]
    torch.cuda.synchronize()
    return out, len(net.times), all(a.elapsed_time(b) >= 0 for a, b in net.times)


@program
def nested_tuples_both_ways(graphed):
    """Carries of a scan: tuples in named tuples in dicts, given back in the same form."""

    class Carry(typing.NamedTuple):
        step: int
        moments: tuple
        extra: dict

    @graphed
    def scan(carry, xs):
        (mean, (low, high)), bias = carry.moments, carry.extra["bias"]
        for x in xs:
            mean = 0.5 * mean + 0.5 * x + bias
            low, high = torch.minimum(low, x), torch.maximum(high, x)
        return Carry(carry.step + 1, (mean, (low, high)), {"bias": bias, "range": high - low}), [mean, (low,)]

    zero = torch.zeros(3, device=D)
    carry, seen = Carry(0, (zero, (zero, zero)), {"bias": zero + 0.1}), []
    for i in range(10):
        carry, out = scan(carry, [randn(3) for _ in range(2 + i // 6)])
        seen.append(out)
    return seen, tuple(carry)


@program
def keywords_only(graphed):
    """A kernel's wrapper that takes keywords alone, some optional, in any order."""

    @graphed
    def attention(*, query, key, value, mask=None, scale=None, **options):
        scale = query.shape[-1] ** -0.5 if scale is None else scale
        score = query @ key.transpose(-1, -2) * scale
        if options.get("soft_cap"):
            score = options["soft_cap"] * torch.tanh(score / options["soft_cap"])
        if mask is not None:
            score = score.masked_fill(~mask, -math.inf)
        return score.softmax(-1) @ value

    out = []
    for i in range(12):
        q, k, v = randn(2, 3, 4), randn(2, 3, 4), randn(2, 3, 4)
        given = {"value": v, "key": k, "query": q} if i % 2 else {"query": q, "key": k, "value": v}
        if i >= 4:
            given["mask"] = torch.ones(3, 3, dtype=torch.bool, device=D).tril()
        if i >= 8:
            given |= {"scale": 0.3, "soft_cap": 5.0}
        out.append(attention(**given))
    return out


@program
def generator_that_yields_steps(graphed):
    """A sampler written as a generator; the user sends a guidance back into it."""
    net = nn.Linear(4, 4).to(D)

    @graphed
    @torch.no_grad()
    def denoise(x, sigma, guidance):
        return x - sigma * guidance * (x - net(x))

    def steps(x):
        guidance = 1.0
        for sigma in (0.5, 0.4, 0.3, 0.25, 0.2, 0.15, 0.1, 0.05):
            x = denoise(x, sigma, guidance)
            given = yield x
            guidance = guidance if given is None else given

    run = steps(randn(2, 4))
    out = [next(run)]
    for i in range(7):
        out.append(run.send(1.5 if i == 3 else None))
    return out


@program
def class_methods_and_registries(graphed):
    """A class keeps its settings and a registry of activations on itself; a subclass overrides one."""

    class Base:
        gain = 1.0
        acts: dict = {"relu": torch.relu, "tanh": torch.tanh}
        n_calls = 0

        @classmethod
        def apply(cls, x, act):
            cls.n_calls += 1
            return cls.acts[act](x) * cls.gain

        @staticmethod
        def shift(x):
            return x + 1

    class Loud(Base):
        gain = 3.0

    base, loud, shift = graphed(Base.apply), graphed(Loud.apply), graphed(Base.shift)
    out = []
    for i in range(10):
        if i == 4:
            Base.gain = 0.5
        if i == 7:
            Base.acts["tanh"] = torch.sigmoid
        act = ("relu", "tanh")[i % 2]
        out += [base(randn(3), act), loud(randn(3), act), shift(randn(3))]
    return out, Base.n_calls, Loud.n_calls


@program
def history_in_a_default_argument(graphed):
    """A smoothing function that keeps what it saw in a default list, as quick scripts do."""

    def smooth(x, history=[], weights={"new": 0.7}):  # noqa: B006
        history.append(x)
        if len(history) > 4:
            history.pop(0)
        y = weights["new"] * x + (1 - weights["new"]) * sum(history) / len(history)
        return y

    run = graphed(smooth)
    out = []
    for i in range(10):
        if i == 6:
            smooth.__defaults__[1]["new"] = 0.2
        out.append(run(randn(3)))
    return out, len(smooth.__defaults__[0])
