"""Forty more programs in users' manner through ``graphed``, each against eager, judged as fresh_programs.py does.

    python benchmarks/fresh_programs_third.py [--out FILE] [--only NAME] [--platform hip|cuda]

Written on 2026-11-27 before any of them was run, while ``callables/`` was being cut.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import random
import sys

import fresh_programs
import torch
import torch.nn.functional as F
from fresh_programs import N, rand, randn
from torch import nn

PROGRAMS = {}


def program(make):
    PROGRAMS[make.__name__] = make
    return make


# -- serving ----------------------------------------------------------------------------------------------------


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


# -- sampling ---------------------------------------------------------------------------------------------------


@program
def rectified_flow():
    net = nn.Sequential(nn.Linear(5, 16), nn.SiLU(), nn.Linear(16, 4)).cuda()

    class Flow:
        def __init__(self):
            self.i, self.n = 0, N

        def step(self, x):
            t = self.i / self.n
            self.i += 1
            time = torch.full((x.shape[0], 1), t, device=x.device)
            return x + net(torch.cat((x, time), -1)) / self.n

    return Flow().step, [(randn(3, 4),) for _ in range(N)]


@program
def simulated_annealing():
    class Annealer:
        def __init__(self):
            self.x, self.temperature = randn(6), 2.0

        def __call__(self):
            proposal = self.x + 0.1 * torch.randn_like(self.x)
            change = proposal.square().sum() - self.x.square().sum()
            accept = torch.rand((), device="cuda") < (-change / self.temperature).exp()
            self.x = torch.where(accept, proposal, self.x)
            self.temperature *= 0.9
            return self.x

    annealer = Annealer()
    return annealer, [() for _ in range(N)], lambda: [annealer.x, annealer.temperature]


@program
def reservoir():
    class Reservoir:
        def __init__(self):
            self.kept, self.seen = torch.zeros(4, device="cuda"), 0

        def offer(self, value):
            self.seen += 1
            at = self.seen - 1 if self.seen <= 4 else random.Random(self.seen).randrange(self.seen)
            if at < 4:
                self.kept[at] = value
            return self.kept.mean()

    reservoir = Reservoir()
    return reservoir.offer, [(randn(()),) for _ in range(N)], lambda: [reservoir.kept]


@program
def option_price_by_generator():
    generator = torch.Generator(device="cuda")
    generator.manual_seed(7)

    def price(spot, strike):
        draws = torch.randn(64, device="cuda", generator=generator)
        end = spot * (0.02 + 0.2 * draws).exp()
        return (end - strike).clamp(min=0).mean()

    return price, [(rand(()) + 1, rand(()) + 1) for _ in range(N)]


@program
def augmentation_by_python_random():
    def augment(image):
        if random.random() < 0.5:
            image = image.flip(-1)
        shift = random.choice((0, 1, 2))
        return image.roll(shift, -1)

    return augment, [(randn(1, 4, 6),) for _ in range(N)]


@program
def greedy_transducer():
    join, step = nn.Linear(8, 5).cuda(), nn.GRUCell(5, 8).cuda()

    def decode(frames):
        h, out = torch.zeros(1, 8, device="cuda"), []
        for frame in frames:
            scores = join(h + frame)
            out.append(scores.argmax(-1))
            h = step(scores.softmax(-1), h)
        return torch.cat(out)

    return decode, [(randn(4, 1, 8),) for _ in range(N)]


# -- training ---------------------------------------------------------------------------------------------------


@program
def loss_scaler_by_hand():
    class Scaler:
        def __init__(self):
            self.scale, self.good = 1024.0, 0
            self.w = nn.Parameter(randn(4, 2))

        def step(self, x, y):
            loss = F.mse_loss(x @ self.w, y)
            (g,) = torch.autograd.grad(loss * self.scale, self.w)
            finite = torch.isfinite(g).all()
            with torch.no_grad():
                self.w -= torch.where(finite, 0.1 * g / self.scale, torch.zeros_like(g))
            self.good += 1
            if self.good % 5 == 0:
                self.scale *= 2
            return loss.detach()

    scaler = Scaler()
    return scaler.step, [(randn(3, 4), randn(3, 2)) for _ in range(N)], lambda: [scaler.w, scaler.scale]


@program
def ema_with_warm_decay():
    class Average:
        def __init__(self):
            self.model, self.mean, self.n = nn.Linear(4, 4).cuda(), nn.Linear(4, 4).cuda(), 0

        @torch.no_grad()
        def update(self, x):
            self.n += 1
            decay = min(0.99, (1 + self.n) / (10 + self.n))
            for a, b in zip(self.mean.parameters(), self.model.parameters(), strict=True):
                a.lerp_(b, 1 - decay)
            return self.mean(x)

    average = Average()
    return average.update, [(randn(2, 4),) for _ in range(N)], lambda: list(average.mean.parameters())


@program
def curriculum():
    @dataclasses.dataclass
    class Stage:
        upto: int
        weight: float

    stages, state = [Stage(4, 0.1), Stage(8, 0.5), Stage(99, 1.0)], {"i": 0}
    net = nn.Linear(4, 1).cuda()

    def loss(x, y):
        state["i"] += 1
        weight = next(s.weight for s in stages if state["i"] <= s.upto)
        return weight * F.binary_cross_entropy_with_logits(net(x), y)

    return loss, [(randn(3, 4), rand(3, 1).round()) for _ in range(N)]


@program
def frozen_then_open():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).cuda()

    def gradients(x, frozen):
        net[0].requires_grad_(not frozen)
        net.zero_grad()
        net(x).square().sum().backward()
        return [p.grad for p in net.parameters() if p.grad is not None]

    return gradients, [(randn(3, 4), i < 6) for i in range(N)]


@program
def momentum_in_a_dict():
    class Optimizer:
        def __init__(self):
            self.params = [nn.Parameter(randn(3, 3)), nn.Parameter(randn(3))]
            self.state = {}

        @torch.no_grad()
        def step(self, *gradients):
            for p, g in zip(self.params, gradients, strict=True):
                if p not in self.state:
                    self.state[p] = torch.zeros_like(p)
                buffer = self.state[p]
                buffer.mul_(0.9).add_(g)
                p.sub_(buffer, alpha=0.1)
            return [p.clone() for p in self.params]

    return Optimizer().step, [(randn(3, 3), randn(3)) for _ in range(N)]


@program
def distillation():
    teacher, student = nn.Linear(6, 4).cuda(), nn.Linear(6, 4).cuda()

    def loss(x, temperature):
        with torch.no_grad():
            wanted = (teacher(x) / temperature).softmax(-1)
        return F.kl_div((student(x) / temperature).log_softmax(-1), wanted, reduction="batchmean") * temperature**2

    return loss, [(randn(3, 6), (1.0, 2.0)[i // 6]) for i in range(N)]


@program
def hessian_vector_product():
    w = randn(5)

    def hvp(x, v):
        return torch.func.jvp(torch.func.grad(lambda p: ((p * x).sin()).sum()), (w,), (v,))[1]

    return hvp, [(randn(5), randn(5)) for _ in range(N)]


@program
def ensemble_by_functional_call():
    nets = [nn.Linear(4, 3).cuda() for _ in range(3)]
    params, buffers = torch.func.stack_module_state(nets)

    def predict(x):
        def one(p, b):
            return torch.func.functional_call(nets[0], (p, b), (x,))

        return torch.vmap(one)(params, buffers).mean(0)

    return predict, [(randn(2, 4),) for _ in range(N)]


@program
def mixed_precision_block():
    net = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2)).cuda()

    def run(x, low):
        context = torch.autocast("cuda", torch.bfloat16) if low else contextlib.nullcontext()
        with context:
            return net(x).float()

    return run, [(randn(3, 8), i % 2 == 0) for i in range(N)]


# -- reinforcement learning -------------------------------------------------------------------------------------


@program
def recurrent_policy_with_resets():
    class Policy:
        def __init__(self):
            self.cell, self.h = nn.GRUCell(4, 6).cuda(), torch.zeros(2, 6, device="cuda")

        @torch.no_grad()
        def act(self, seen, done):
            if done:
                self.h = torch.zeros_like(self.h)
            self.h = self.cell(seen, self.h)
            return self.h.argmax(-1)

    policy = Policy()
    return policy.act, [(randn(2, 4), i % 5 == 4) for i in range(N)], lambda: [policy.h]


@program
def tree_statistics():
    visits, values = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")

    def choose_and_back_up(priors, reward):
        score = values / (visits + 1) + priors * (visits.sum() + 1).sqrt() / (1 + visits)
        best = score.argmax()
        visits[best] += 1
        values[best] += reward
        return best

    return choose_and_back_up, [(rand(8), randn(())) for _ in range(N)], lambda: [visits, values]


@program
def league_of_ratings():
    ratings = [1000.0, 1000.0, 1000.0]

    def play(strength, a, b):
        expected = 1 / (1 + 10 ** ((ratings[b] - ratings[a]) / 400))
        won = 1.0 if (a + b) % 2 else 0.0
        ratings[a] += 32 * (won - expected)
        ratings[b] -= 32 * (won - expected)
        return strength * (ratings[a] / 1000)

    return play, [(randn(3), i % 3, (i + 1) % 3) for i in range(N)], lambda: [list(ratings)]


@program
def frame_stack():
    frames = collections.deque(maxlen=3)

    def observe(frame):
        frames.append(frame)
        while len(frames) < 3:
            frames.append(frame)
        return torch.stack(tuple(frames)).mean(0)

    return observe, [(randn(4),) for _ in range(N)]


@program
def exploration_schedule():
    class Agent:
        def __init__(self):
            self.steps, self.net = 0, nn.Linear(4, 3).cuda()

        def act(self, x):
            self.steps += 1
            epsilon = max(0.05, 1.0 - self.steps / 8)
            q = self.net(x)
            random_action = torch.randint(3, (x.shape[0],), device="cuda")
            return torch.where(torch.rand(x.shape[0], device="cuda") < epsilon, random_action, q.argmax(-1))

    return Agent().act, [(randn(4, 4),) for _ in range(N)]


# -- signals, pictures, geometry --------------------------------------------------------------------------------


@program
def pid_controller():
    class Controller:
        def __init__(self):
            self.integral, self.last = 0.0, torch.zeros((), device="cuda")

        def __call__(self, error, dt):
            self.integral = self.integral + error * dt
            slope = (error - self.last) / dt
            self.last = error
            return 1.2 * error + 0.5 * self.integral + 0.1 * slope

    return Controller(), [(randn(()), 0.1) for _ in range(N)]


@program
def warp_by_flow():
    def warp(image, flow):
        h, w = image.shape[-2:]
        y, x = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
        grid = torch.stack((x, y), -1).to(image.device)[None] + flow
        return F.grid_sample(image, grid, align_corners=True)

    return warp, [(randn(1, 2, 5, 6), 0.1 * randn(1, 5, 6, 2)) for _ in range(N)]


@program
def stereo_cost_volume():
    def disparity(left, right):
        costs = [(left - right.roll(d, -1)).abs().mean(1) for d in range(4)]
        weight = (-torch.stack(costs, 1)).softmax(1)
        return (weight * torch.arange(4, device=left.device)[:, None, None]).sum(1)

    return disparity, [(randn(1, 2, 4, 6), randn(1, 2, 4, 6)) for _ in range(N)]


@program
def ray_marching():
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4)).cuda()

    def render(origin, direction):
        t = torch.linspace(0, 1, 8, device=origin.device)
        out = net(origin[:, None] + direction[:, None] * t[:, None])
        alpha = 1 - (-F.relu(out[..., 3]) / 8).exp()
        through = torch.cumprod(torch.cat((torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-6), 1), 1)[:, :-1]
        return ((through * alpha)[..., None] * out[..., :3].sigmoid()).sum(1)

    return render, [(randn(4, 3), randn(4, 3)) for _ in range(N)]


@program
def haar_wavelet():
    def transform(x):
        parts = []
        while x.shape[-1] > 1:
            a, b = x[..., ::2], x[..., 1::2]
            parts.append((a - b) / math.sqrt(2))
            x = (a + b) / math.sqrt(2)
        return torch.cat((x, *reversed(parts)), -1)

    return transform, [(randn(2, (8, 16)[i % 2]),) for i in range(N)]


@program
def streaming_quantile():
    class Quantile:
        def __init__(self):
            self.estimate, self.n = None, 0

        def update(self, x):
            self.n += 1
            if self.estimate is None:
                self.estimate = x.median()
            rate = 1 / math.sqrt(self.n)
            self.estimate = self.estimate + rate * (0.9 - (x < self.estimate).float().mean())
            return self.estimate

    return Quantile().update, [(randn(9),) for _ in range(N)]


# -- science ----------------------------------------------------------------------------------------------------


@program
def sinkhorn():
    def plan(cost):
        k = (-cost / 0.5).exp()
        u = torch.ones_like(cost[:, 0])
        for _ in range(6):
            v = 1 / (k.t() @ u)
            u = 1 / (k @ v)
        return u[:, None] * k * v

    return plan, [(rand(4, 5),) for _ in range(N)]


@program
def time_warping():
    def distance(a, b):
        cost = (a[:, None] - b).abs()
        rows = [cost[0].cumsum(0)]
        for i in range(1, len(a)):
            row = [rows[-1][0] + cost[i, 0]]
            for j in range(1, len(b)):
                row.append(cost[i, j] + torch.minimum(torch.minimum(rows[-1][j], rows[-1][j - 1]), row[-1]))
            rows.append(torch.stack(row))
        return rows[-1][-1]

    return distance, [(randn(4), randn(4)) for _ in range(N)]


@program
def pages_until_they_settle():
    def rank(links):
        p = torch.full((links.shape[0],), 1 / links.shape[0], device=links.device)
        for _ in range(50):
            new = 0.15 / links.shape[0] + 0.85 * links @ p
            if (new - p).abs().sum() < 1e-3:
                break
            p = new
        return p

    return rank, [((lambda m: m / m.sum(0))(rand(5, 5)),) for _ in range(N)]


@program
def quasi_newton_history():
    class Solver:
        def __init__(self):
            self.s, self.y, self.x, self.g = [], [], randn(4), None

        def step(self, target):
            g = 2 * (self.x - target)
            d = -g
            for s, y in zip(reversed(self.s), reversed(self.y), strict=True):
                d = d - (s @ d) / (s @ y + 1e-6) * y
            new = self.x + 0.3 * d
            if self.g is not None:
                self.s, self.y = (self.s + [new - self.x])[-2:], (self.y + [g - self.g])[-2:]
            self.x, self.g = new, g
            return new

    return Solver().step, [(randn(4),) for _ in range(N)]


@program
def sketch_of_counts():
    table = torch.zeros(2, 16, dtype=torch.long, device="cuda")
    a = torch.tensor([[3], [7]], device="cuda")

    def add(keys):
        at = (keys * a + 5) % 16
        table.scatter_add_(1, at, torch.ones_like(at))
        return table.gather(1, at).amin(0)

    return add, [(torch.randint(100, (6,), device="cuda"),) for _ in range(N)], lambda: [table]


@program
def leapfrog_with_half_steps():
    class Orbit:
        def __init__(self):
            self.q, self.p, self.started = randn(3, 2), randn(3, 2), False

        def force(self):
            return -self.q / (self.q.norm(dim=-1, keepdim=True) ** 3 + 0.1)

        def advance(self, dt):
            if not self.started:
                self.p += 0.5 * dt * self.force()
                self.started = True
            self.q += dt * self.p
            self.p += dt * self.force()
            return self.q.norm(dim=-1)

    orbit = Orbit()
    return orbit.advance, [(0.01,) for _ in range(N)], lambda: [orbit.q, orbit.p]


if __name__ == "__main__":
    fresh_programs.PROGRAMS, fresh_programs.__doc__ = PROGRAMS, __doc__
    sys.exit(fresh_programs.main())
