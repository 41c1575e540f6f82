"""Forty more programs in users' manner through ``graphed``, each against eager, judged as fresh_programs.py does.

    python benchmarks/fresh_programs_later.py [--out FILE] [--only NAME] [--platform hip|cuda]

Written on 2026-11-27 before any of them was run, without a look at ``callables/``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import sys
from typing import NamedTuple

import fresh_programs
import torch
import torch.nn.functional as F
from fresh_programs import N, rand, randn
from torch import nn

PROGRAMS = {}


def program(make):
    PROGRAMS[make.__name__] = make
    return make


# -- layers of models -------------------------------------------------------------------------------------------


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


# -- decoding ---------------------------------------------------------------------------------------------------


@program
def beam_step():
    class Beams(NamedTuple):
        score: torch.Tensor
        last: torch.Tensor

    table, head = nn.Embedding(12, 8).cuda(), nn.Linear(8, 12).cuda()

    def step(beams, width=3):
        log = head(table(beams.last)).log_softmax(-1) + beams.score[:, None]
        score, at = log.flatten().topk(width)
        return Beams(score, at % 12)

    return step, [(Beams(randn(3), torch.randint(12, (3,), device="cuda")),) for _ in range(N)]


@program
def stop_when_all_are_done():
    head = nn.Linear(6, 6).cuda()
    done = torch.zeros(3, dtype=torch.bool, device="cuda")

    def step(x):
        token = head(x).argmax(-1)
        done.logical_or_(token == 2)
        if done.all():
            return token, True
        return token, False

    return step, [(randn(3, 6),) for _ in range(N)]


@program
def top_p_sampling():
    def sample(logits, p=0.8):
        ordered, at = logits.softmax(-1).sort(descending=True)
        ordered = torch.where(ordered.cumsum(-1) - ordered > p, 0.0, ordered)
        return at.gather(-1, torch.multinomial(ordered, 1))

    return sample, [(randn(2, 9),) for _ in range(N)]


@program
def constrained_by_a_set():
    allowed = {1, 4, 7}
    bias = torch.full((9,), -math.inf, device="cuda")
    bias[sorted(allowed)] = 0.0

    def choose(logits):
        return (logits + bias).argmax(-1) if allowed else logits.argmax(-1)

    return choose, [(randn(2, 9),) for _ in range(N)]


@program
def paged_cache():
    pages = torch.zeros(8, 4, 6, device="cuda")
    table = torch.arange(8, device="cuda").flip(0)

    def append(value, at):
        page, offset = table[at // 4], at % 4
        pages[page, offset] = value
        return pages[table].flatten(0, 1)[: 4 * 3].mean(0)

    return append, [(randn(6), torch.tensor(i, device="cuda")) for i in range(N)]


@program
def watermark_by_hash():
    def bias(logits, last):
        seed = (last * 2654435761) % 1024
        green = ((torch.arange(logits.shape[-1], device=logits.device) * 31 + seed[:, None]) % 2) == 0
        return logits + 2.0 * green

    return bias, [(randn(2, 10), torch.randint(50, (2,), device="cuda")) for _ in range(N)]


# -- training ---------------------------------------------------------------------------------------------------


@program
def checkpointed_blocks():
    from torch.utils.checkpoint import checkpoint

    blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)).cuda()

    def loss(x):
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        value = x.square().mean()
        return value.detach(), torch.autograd.grad(value, list(blocks.parameters()))

    return loss, [(randn(4, 6),) for _ in range(N)]


@program
def straight_through_quantizer():
    class Round(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.round()

        @staticmethod
        def backward(ctx, grad):
            return grad

    net = nn.Linear(4, 4).cuda()

    def step(x):
        loss = Round.apply(net(x) * 4).div(4).square().sum()
        return torch.autograd.grad(loss, [net.weight, net.bias])

    return step, [(randn(3, 4),) for _ in range(N)]


@program
def contrastive_with_learned_temperature():
    class Clip(nn.Module):
        def __init__(self):
            super().__init__()
            self.image, self.text = nn.Linear(6, 4), nn.Linear(5, 4)
            self.log_scale = nn.Parameter(torch.tensor(1.0))

        def forward(self, image, text):
            logits = (
                self.log_scale.exp().clamp(max=100) * F.normalize(self.image(image)) @ F.normalize(self.text(text)).T
            )
            labels = torch.arange(len(logits), device=logits.device)
            return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2

    return Clip().cuda(), [(randn(4, 6), randn(4, 5)) for _ in range(N)]


@program
def per_sample_gradients():
    net = nn.Linear(4, 2).cuda()
    held = {name: value.detach() for name, value in net.named_parameters()}

    def loss(parameters, x, y):
        return F.mse_loss(torch.func.functional_call(net, parameters, (x[None],)), y[None])

    each = torch.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))
    return lambda x, y: each(held, x, y), [(randn(5, 4), randn(5, 2)) for _ in range(N)]


@program
def spectral_norm_discriminator():
    net = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)), nn.LeakyReLU(0.2), nn.Linear(6, 1))
    return net.cuda().eval(), [(randn(4, 6),) for _ in range(N)]


@program
def warm_up_of_beta():
    class Vae:
        def __init__(self):
            self.encoder, self.decoder = nn.Linear(6, 4).cuda(), nn.Linear(2, 6).cuda()
            self.step_no = 0

        def loss(self, x):
            self.step_no += 1
            beta = min(1.0, self.step_no / 4)
            mean, log_var = self.encoder(x).chunk(2, -1)
            z = mean + torch.randn_like(mean) * (log_var / 2).exp()
            kl = -0.5 * (1 + log_var - mean.square() - log_var.exp()).sum(-1).mean()
            return F.mse_loss(self.decoder(z), x) + beta * kl

    return Vae().loss, [(randn(4, 6),) for _ in range(N)]


@program
def mean_of_losses_seen():
    class Meter:
        def __init__(self):
            self.total, self.count = torch.zeros((), device="cuda"), 0

        def add(self, loss):
            self.total = self.total + loss
            self.count += 1
            return self.total / self.count

    meter, net = Meter(), nn.Linear(4, 1).cuda()
    return lambda x: meter.add(net(x).square().mean()), [(randn(3, 4),) for _ in range(N)]


@program
def dropout_that_grows():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.p = nn.Linear(8, 8), 0.0

        def forward(self, x):
            self.p = min(0.5, self.p + 0.1)
            return F.dropout(self.layer(x), self.p, training=True)

    return Net().cuda(), [(randn(2, 8),) for _ in range(N)]


# -- reinforcement learning, bandits ----------------------------------------------------------------------------


@program
def sac_actor():
    net, low, high = nn.Linear(4, 4).cuda(), -2.0, 1.0

    def act(state, deterministic=False):
        mean, log_std = net(state).chunk(2, -1)
        noise = torch.zeros_like(mean) if deterministic else torch.randn_like(mean)
        raw = mean + log_std.clamp(low, high).exp() * noise
        return raw.tanh(), (-noise.square() / 2 - log_std - (1 - raw.tanh().square() + 1e-6).log()).sum(-1)

    return act, [(randn(3, 4), i % 4 == 3) for i in range(N)]


@program
def n_step_buffer():
    class Buffer:
        def __init__(self):
            self.rewards, self.gamma = [], 0.9

        def push(self, reward):
            self.rewards.append(reward)
            if len(self.rewards) > 3:
                self.rewards.pop(0)
            return sum(r * self.gamma**i for i, r in enumerate(self.rewards))

    buffer = Buffer()
    return buffer.push, [(rand(2),) for _ in range(N)]


@program
def ucb_by_numpy_clock():
    class Ucb:
        def __init__(self):
            self.counts, self.sums, self.t = torch.ones(4, device="cuda"), rand(4), 1

        def choose(self, reward):
            self.t += 1
            score = self.sums / self.counts + (2 * math.log(self.t) / self.counts).sqrt()
            arm = score.argmax()
            self.counts[arm] += 1
            self.sums[arm] += reward
            return arm

    return Ucb().choose, [(rand(()),) for _ in range(N)]


@program
def tree_backup():
    values, parents = torch.zeros(9, device="cuda"), [0, 0, 0, 1, 1, 2, 2, 3, 4]

    def backup(leaf, value):
        at = leaf
        while at != 0:
            values[at] += value
            at = parents[at]
        return values.clone()

    return backup, [(3 + i % 6, rand(())) for i in range(N)]


# -- signals, science, data -------------------------------------------------------------------------------------


@program
def overlap_add():
    tail, window = torch.zeros(8, device="cuda"), torch.hann_window(16, device="cuda")

    def block(x):
        y = torch.fft.irfft(torch.fft.rfft(torch.cat([x, x]) * window) * 0.5, n=16)
        out = y[:8] + tail
        tail.copy_(y[8:])
        return out

    return block, [(randn(8),) for _ in range(N)]


@program
def mel_features():
    bank = rand(9, 5)

    def features(wave):
        spectrum = torch.stft(wave, 16, 8, window=torch.hann_window(16, device=wave.device), return_complex=True)
        return (spectrum.abs().square().transpose(-1, -2) @ bank).clamp(min=1e-5).log10()

    return features, [(randn(64),) for _ in range(N)]


@program
def non_maximum_suppression():
    def keep(boxes, scores, limit=0.5):
        order = scores.argsort(descending=True)
        boxes = boxes[order]
        low, high = torch.maximum(boxes[:, None, :2], boxes[:, :2]), torch.minimum(boxes[:, None, 2:], boxes[:, 2:])
        shared = (high - low).clamp(min=0).prod(-1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
        overlap = shared / (area[:, None] + area - shared)
        kept = torch.ones(len(boxes), dtype=torch.bool, device=boxes.device)
        for i in range(len(boxes)):
            kept &= ~((overlap[i] > limit) & kept[i] & (torch.arange(len(boxes), device=boxes.device) > i))
        return order[kept]

    def boxes():
        corner = rand(6, 2)
        return torch.cat([corner, corner + 0.2 + rand(6, 2)], -1)

    return keep, [(boxes(), rand(6)) for _ in range(N)]


@program
def molecular_forces():
    def energy(positions):
        apart = positions[:, None] - positions
        squared = apart.square().sum(-1) + torch.eye(len(positions), device=positions.device)
        return ((1 / squared**6 - 1 / squared**3) * (1 - torch.eye(len(positions), device=positions.device))).sum()

    return torch.func.grad(energy), [(randn(5, 3) * 2,) for _ in range(N)]


@program
def verlet_with_history():
    state = {"positions": randn(4, 2), "before": randn(4, 2), "time": 0.0}

    def step(force):
        dt = 0.1
        new = 2 * state["positions"] - state["before"] + force * dt**2
        state["before"], state["positions"] = state["positions"], new
        state["time"] += dt
        return new, state["time"]

    return step, [(randn(4, 2),) for _ in range(N)]


@program
def shallow_water():
    @functools.lru_cache
    def stencil(device):
        return torch.tensor([[[[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]]]], device=device)

    height, speed = rand(1, 1, 8, 8), torch.zeros(1, 1, 8, 8, device="cuda")

    def step(rain):
        speed.add_(F.conv2d(F.pad(height, (1, 1, 1, 1), mode="circular"), stencil(height.device)), alpha=0.1)
        height.add_(speed * 0.1 + rain)
        return height.mean(), height.amax()

    return step, [(rand(1, 1, 8, 8) / 100,) for _ in range(N)]


@program
def newton_square_root():
    def root(matrix, n_steps=6):
        y, z = matrix / matrix.norm(), torch.eye(len(matrix), device=matrix.device)
        identity = torch.eye(len(matrix), device=matrix.device)
        for _ in range(n_steps):
            t = (3 * identity - z @ y) / 2
            y, z = y @ t, t @ z
        return y * matrix.norm().sqrt()

    def positive():
        a = randn(4, 4)
        return a @ a.T + torch.eye(4, device="cuda")

    return root, [(positive(),) for _ in range(N)]


@program
def histogram_equalisation():
    def equalise(image):
        counts = torch.bincount(image.flatten(), minlength=16)
        table = (counts.cumsum(0) * 15 // image.numel()).to(image.dtype)
        return table[image]

    return equalise, [(torch.randint(16, (6, 6), device="cuda"),) for _ in range(N)]


@program
def scaler_of_columns():
    class Scaler:
        def __init__(self):
            self.mean = self.std = None

        def fit(self, x):
            self.mean, self.std = x.mean(0), x.std(0)
            return self

        def __call__(self, x):
            if self.mean is None:
                self.fit(x)
            return (x - self.mean) / (self.std + 1e-6)

    return Scaler(), [(randn(5, 3),) for _ in range(N)]


@program
def particle_filter():
    particles = randn(32)

    def update(measured):
        particles.add_(torch.randn_like(particles) * 0.1)
        weight = (-(particles - measured).square()).softmax(0)
        chosen = torch.searchsorted(
            weight.cumsum(0), (torch.arange(32, device="cuda") + torch.rand(1, device="cuda")) / 32
        )
        particles.copy_(particles[chosen.clamp(max=31)])
        return particles.mean(), particles.var()

    return update, [(randn(()),) for _ in range(N)]


@program
def images_of_two_layouts():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    net = net.cuda().eval().to(memory_format=torch.channels_last)
    layouts = [torch.channels_last, torch.contiguous_format]
    return net, [(randn(2, 3, 6, 6).contiguous(memory_format=layouts[i // 6]),) for i in range(N)]


@program
def retry_with_a_smaller_step():
    def descend(x, gradient):
        try:
            if not math.isfinite(float(gradient.shape[0])):
                raise ArithmeticError
            step = 0.1
        except ArithmeticError:
            step = 0.01
        x = x - step * gradient
        assert x.shape == gradient.shape, "shapes"
        return x

    return descend, [(randn(4), randn(4)) for _ in range(N)]


if __name__ == "__main__":
    fresh_programs.PROGRAMS, fresh_programs.__doc__ = PROGRAMS, __doc__
    sys.exit(fresh_programs.main())
