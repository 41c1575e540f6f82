"""Servers, and the layers of models that they run."""

from __future__ import annotations

import dataclasses
import math

import torch
import torch.nn.functional as F
from programs.registry import N, program, rand, randn
from torch import nn

# -- servers -------------------------------------------------------------------------------------------------------


@program
def embedding_service():
    table, head = nn.Embedding(64, 16).cuda(), nn.Linear(16, 8).cuda()

    def embed(ids):
        return F.normalize(head(table(ids)).mean(1), dim=-1)

    return embed, [(torch.randint(64, (4, 6), device="cuda"),) for _ in range(N)]


@program
def reranker_with_threshold():
    class Reranker(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 1))
            self.threshold = 0.2

        def forward(self, pairs):
            score = self.net(pairs).squeeze(-1).sigmoid()
            return torch.where(score > self.threshold, score, torch.zeros_like(score))

    return Reranker().cuda().eval(), [(randn(5, 16),) for _ in range(N)]


@program
def decode_with_position():
    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
            self.register_buffer("keys", torch.zeros(2, 32, 8))
            self.register_buffer("values", torch.zeros(2, 32, 8))

        def forward(self, x, position):
            self.keys.index_copy_(1, position, self.k(x).unsqueeze(1))
            self.values.index_copy_(1, position, self.v(x).unsqueeze(1))
            mask = torch.arange(32, device=x.device) <= position
            return F.scaled_dot_product_attention(
                self.q(x).unsqueeze(1), self.keys, self.values, attn_mask=mask.view(1, 1, -1)
            )

    return Decoder().cuda().eval(), [(randn(2, 8), torch.tensor([i], device="cuda")) for i in range(N)]


@program
def decode_with_python_position():
    class Decoder:
        def __init__(self):
            self.cache = torch.zeros(32, 8, device="cuda")
            self.at = 0
            self.w = randn(8, 8)

        def step(self, x):
            self.cache[self.at] = x @ self.w
            self.at += 1
            return self.cache.sum(0)

    decoder = Decoder()
    return decoder.step, [(randn(8),) for _ in range(N)]


@program
def lora_switch():
    base = nn.Linear(8, 8).cuda()
    adapters = {name: (randn(8, 2), randn(2, 8)) for name in ("a", "b")}

    def serve(x, adapter):
        down, up = adapters[adapter]
        return base(x) + x @ down @ up

    return serve, [(randn(3, 8), "ab"[i // 6]) for i in range(N)]


@program
def request_counter():
    class Service:
        def __init__(self):
            self.n_requests = 0
            self.model = nn.Linear(6, 6).cuda()

        def handle(self, x):
            self.n_requests += 1
            return self.model(x).softmax(-1)

    service = Service()
    return service.handle, [(randn(2, 6),) for _ in range(N)]


@program
def repetition_penalty():
    def choose(logits, seen, penalty=1.3):
        score = logits.gather(1, seen)
        score = torch.where(score < 0, score * penalty, score / penalty)
        return logits.scatter(1, seen, score).argmax(-1)

    return choose, [(randn(2, 20), torch.randint(20, (2, 5), device="cuda")) for _ in range(N)]


@program
def moderation_with_flags():
    classifier = nn.Linear(12, 4).cuda()
    names = ["spam", "hate", "self-harm", "ok"]

    def moderate(x):
        p = classifier(x).sigmoid()
        return {name: p[:, i] for i, name in enumerate(names)}, p.max(-1).values

    return moderate, [(randn(4, 12),) for _ in range(N)]


@program
def speculative_verify():
    def verify(draft, target, tokens, u):
        p = target.softmax(-1).gather(-1, tokens[:, None])[:, 0]
        q = draft.softmax(-1).gather(-1, tokens[:, None])[:, 0]
        accepted = (u < p / q).int().cumprod(0)
        return accepted.sum(), accepted * tokens

    return verify, [(randn(5, 9), randn(5, 9), torch.randint(9, (5,), device="cuda"), rand(5)) for _ in range(N)]


@program
def batch_of_any_size():
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).cuda().eval()
    return net, [(randn(n, 8),) for n in (4, 4, 2, 4, 2, 4, 2, 2, 4, 4, 2, 4)]


# -- layers of models ----------------------------------------------------------------------------------------------


@program
def mixture_of_experts():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = nn.Linear(8, 4)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8)) for _ in range(4)
            )

        def forward(self, x):
            weight, chosen = self.gate(x).softmax(-1).topk(2)
            out = torch.zeros_like(x)
            for i, expert in enumerate(self.experts):
                share = (weight * (chosen == i)).sum(-1, keepdim=True)
                out = out + share * expert(x)
            return out

    return Experts().cuda().eval(), [(randn(6, 8),) for _ in range(N)]


@program
def experts_by_index():
    experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3)).cuda()
    gate = nn.Linear(8, 3).cuda()

    def route(x):
        chosen = gate(x).argmax(-1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(experts):
            rows = (chosen == i).nonzero().squeeze(1)
            if len(rows):
                out[rows] = expert(x[rows])
        return out

    return route, [(randn(6, 8),) for _ in range(N)]


@program
def selective_scan():
    a, b, c = -rand(4, 3), randn(4, 3), randn(4, 3)

    def scan(x):
        state, out = torch.zeros(x.shape[0], 4, 3, device=x.device), []
        for t in range(x.shape[1]):
            state = state * a.exp() + x[:, t, :, None] * b
            out.append((state * c).sum(-1))
        return torch.stack(out, 1)

    return scan, [(randn(2, 5, 4),) for _ in range(N)]


@program
def gru_with_kept_state():
    class Tracker(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.state = nn.GRUCell(4, 6), None

        def forward(self, x):
            if self.state is None:
                self.state = x.new_zeros(x.shape[0], 6)
            self.state = self.cell(x, self.state)
            return self.state

    return Tracker().cuda().eval(), [(randn(2, 4),) for _ in range(N)]


@program
def rotary_with_cached_tables():
    tables = {}

    def rotate(x):
        key = (x.shape[1], x.dtype)
        if key not in tables:
            angle = torch.arange(x.shape[1], device=x.device)[:, None] / 10 ** torch.arange(4, device=x.device)
            tables[key] = angle.cos(), angle.sin()
        cos, sin = tables[key]
        even, odd = x[..., ::2], x[..., 1::2]
        return torch.cat([even * cos - odd * sin, even * sin + odd * cos], -1)

    return rotate, [(randn(2, 5, 8),) for _ in range(N)]


@program
def sliding_window_attention():
    @dataclasses.dataclass
    class Config:
        window: int = 3
        n_heads: int = 2

    config, qkv = Config(), nn.Linear(8, 24).cuda()

    def attend(x):
        q, k, v = (t.unflatten(-1, (config.n_heads, -1)).transpose(1, 2) for t in qkv(x).chunk(3, -1))
        far = (torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])).abs() >= config.window
        mask = torch.zeros(far.shape).masked_fill(far, -math.inf).to(x.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)

    return attend, [(randn(1, 6, 8),) for _ in range(N)]


@program
def weight_only_int8():
    class Int8Linear(nn.Module):
        def __init__(self, n_in, n_out):
            super().__init__()
            self.register_buffer("weight", torch.randint(-127, 127, (n_out, n_in), dtype=torch.int8))
            self.register_buffer("scale", torch.rand(n_out) / 100)

        def forward(self, x):
            return x @ (self.weight.to(x.dtype) * self.scale[:, None]).T

    return nn.Sequential(Int8Linear(8, 8), nn.ReLU(), Int8Linear(8, 4)).cuda(), [(randn(3, 8),) for _ in range(N)]


@program
def unet_with_skips():
    class Unet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.ModuleList(nn.Conv2d(c, c * 2, 3, 2, 1) for c in (2, 4))
            self.up = nn.ModuleList(nn.ConvTranspose2d(c, c // 2, 2, 2) for c in (8, 4))
            self.time = nn.Linear(4, 8)

        def forward(self, x, t):
            phase = t[:, None] * torch.tensor([1.0, 2.0], device=x.device)
            skips = []
            for layer in self.down:
                skips.append(x)
                x = F.silu(layer(x))
            x = x + self.time(torch.cat([phase.sin(), phase.cos()], -1))[:, :, None, None]
            for layer in self.up:
                x = layer(x) + skips.pop()
            return x

    return Unet().cuda().eval(), [(randn(1, 2, 8, 8), torch.full((1,), float(i), device="cuda")) for i in range(N)]


@program
def graph_network_layer():
    net = nn.Linear(6, 6).cuda()

    def layer(nodes, edges):
        source, target = edges
        sums = torch.zeros_like(nodes).index_add_(0, target, net(nodes[source]))
        degree = torch.zeros(len(nodes), device=nodes.device).scatter_add_(
            0, target, torch.ones_like(target, dtype=torch.float)
        )
        return F.relu(sums / degree.clamp(min=1)[:, None])

    return layer, [(randn(5, 6), torch.randint(5, (2, 9), device="cuda")) for _ in range(N)]


@program
def deep_and_cross():
    class Ranker(nn.Module):
        def __init__(self):
            super().__init__()
            self.tables = nn.ModuleDict({name: nn.Embedding(10, 4) for name in ("user", "item", "place")})
            self.cross, self.head = nn.Linear(12, 12), nn.Linear(12, 1)

        def forward(self, features):
            x = torch.cat([self.tables[name](ids) for name, ids in features.items()], -1)
            return {"score": self.head(x * self.cross(x) + x).squeeze(-1), "norm": x.norm(dim=-1)}

    features = [
        {name: torch.randint(10, (4,), device="cuda") for name in ("user", "item", "place")} for _ in range(N)
    ]
    return Ranker().cuda().eval(), [(each,) for each in features]


# -- serving -------------------------------------------------------------------------------------------------------


@program
def two_towers_with_a_cache():
    class Ranker:
        def __init__(self):
            self.user, self.item = nn.Linear(8, 4).cuda(), nn.Linear(6, 4).cuda()
            self.known = {}

        def score(self, name, user, items):
            if name not in self.known:
                self.known[name] = self.user(user).detach()
            return (self.item(items) @ self.known[name]).topk(2).indices

    return Ranker().score, [(("ann", "bo", "cy")[i % 3], randn(8), randn(5, 6)) for i in range(N)]


@program
def adapter_swapped_by_assignment():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.base, self.delta = nn.Linear(6, 6), nn.Parameter(torch.zeros(6, 6))

        def forward(self, x):
            return self.base(x) + x @ self.delta

    model = Model().cuda().eval()
    deltas = [nn.Parameter(randn(6, 6)) for _ in range(2)]

    def serve(x, which):
        model.delta = deltas[which]
        return model(x)

    return serve, [(randn(3, 6), i // 4 % 2) for i in range(N)]


@program
def speculative_rollback():
    class Cache:
        def __init__(self):
            self.keys, self.length = torch.zeros(40, 4, device="cuda"), 0

        def extend(self, new, accepted):
            self.keys[self.length : self.length + new.shape[0]] = new
            self.length += accepted
            return self.keys[: self.length].sum(0)

    cache = Cache()
    return cache.extend, [(randn(3, 4), 1 + i % 3) for i in range(N)], lambda: [cache.keys, cache.length]


@program
def int8_cache_with_scales():
    store = torch.zeros(16, 8, dtype=torch.int8, device="cuda")
    scales = torch.zeros(16, device="cuda")

    def write_and_attend(q, k, slot):
        scale = k.abs().amax(-1) / 127
        store.index_copy_(0, slot, (k / scale[:, None]).round().to(torch.int8))
        scales.index_copy_(0, slot, scale)
        return (q @ (store.float() * scales[:, None]).t()).softmax(-1)

    calls = [(randn(2, 8), randn(1, 8), torch.tensor([i], device="cuda")) for i in range(N)]
    return write_and_attend, calls, lambda: [store, scales]


@program
def requests_with_options():
    @dataclasses.dataclass
    class Options:
        temperature: float = 1.0
        bias: float = 0.0
        greedy: bool = False

    head = nn.Linear(8, 12).cuda()

    def sample(x, options):
        scores = head(x) / options.temperature + options.bias
        return scores.argmax(-1) if options.greedy else scores.softmax(-1)

    kinds = [Options(), Options(0.7), Options(greedy=True)]
    return sample, [(randn(2, 8), kinds[i % 3]) for i in range(N)]


@program
def features_by_hooks():
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)).cuda().eval()
    seen = {}
    net[1].register_forward_hook(lambda module, given, out: seen.__setitem__("relu", out))

    def extract(x):
        out = net(x)
        return out, seen["relu"].mean(-1)

    return extract, [(randn(3, 6),) for _ in range(N)]


@program
def outputs_as_nested_dicts():
    net = nn.ModuleDict({"class": nn.Linear(6, 3), "box": nn.Linear(6, 4)}).cuda()

    def detect(x):
        return {"heads": {name: layer(x) for name, layer in net.items()}, "n": x.shape[0], "tag": ("v1", None)}

    return detect, [(randn(2 + i % 2, 6),) for i in range(N)]


@program
def batch_that_shrinks():
    net = nn.GRUCell(4, 6).cuda()

    def step(x, h):
        return net(x, h)

    sizes = [6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1]
    return step, [(randn(n, 4), randn(n, 6)) for n in sizes]
