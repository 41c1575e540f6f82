"""Sixty programs in users' manner through ``graphed``, each against eager.

Servers, samplers, training, RL, signals, science.

    python benchmarks/fresh_programs.py [--out FILE] [--only NAME] [--platform hip|cuda]

Written on 2026-11-26 before any of them was run, without a look at ``callables/``. Each makes its
own objects and returns a function and the arguments of its calls; it is made twice from one seed, run eagerly and
through ``graphed``, and every result and the state named by ``state`` must be the same. A call counts as whole where
one graph was replayed for it, in pieces where Python ran between graphs, eager otherwise; a program is whole if most
of its calls after the third are.
"""

from __future__ import annotations

import argparse
import collections
import json
import math
import os
import random
import subprocess
import sys
import traceback
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import gfxgraph

PROGRAMS = {}
N = 12


def program(make):
    PROGRAMS[make.__name__] = make
    return make


def rand(*size):
    return torch.rand(*size, device="cuda")


def randn(*size):
    return torch.randn(*size, device="cuda")


# -- servers ----------------------------------------------------------------------------------------------------


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


# -- samplers ---------------------------------------------------------------------------------------------------


@program
def ddim_step_index():
    class Ddim:
        def __init__(self):
            self.alphas = torch.linspace(0.99, 0.1, 20, device="cuda")
            self.i = 19
            self.net = nn.Linear(4, 4).cuda()

        def step(self, x):
            a, b = self.alphas[self.i], self.alphas[self.i - 1]
            eps = self.net(x)
            self.i -= 1
            return b.sqrt() * (x - (1 - a).sqrt() * eps) / a.sqrt() + (1 - b).sqrt() * eps

    return Ddim().step, [(randn(3, 4),) for _ in range(N)]


@program
def euler_with_sigmas():
    net = nn.Linear(4, 4).cuda()

    def step(x, sigma, next_sigma):
        d = (x - net(x)) / sigma
        return x + d * (next_sigma - sigma)

    sigmas = [14.6 * 0.8**i for i in range(N + 1)]
    return step, [(randn(2, 4), sigmas[i], sigmas[i + 1]) for i in range(N)]


@program
def guidance_scale():
    class Guided:
        def __init__(self):
            self.net, self.scale = nn.Linear(4, 4).cuda(), 7.5

        def __call__(self, x, cond):
            a, b = self.net(torch.cat([x, x + cond])).chunk(2)
            return a + self.scale * (b - a)

    return Guided(), [(randn(2, 4), randn(2, 4)) for _ in range(N)]


@program
def multistep_history():
    class Solver:
        def __init__(self):
            self.old = None
            self.net = nn.Linear(4, 4).cuda()

        def step(self, x):
            d = self.net(x)
            out = x + d if self.old is None else x + 1.5 * d - 0.5 * self.old
            self.old = d
            return out

    return Solver().step, [(randn(2, 4),) for _ in range(N)]


@program
def langevin():
    def step(x, noise):
        energy_gradient = x * (x.pow(2).sum(-1, keepdim=True) - 1)
        return x - 0.01 * energy_gradient + math.sqrt(0.02) * noise

    return step, [(randn(4, 2), randn(4, 2)) for _ in range(N)]


@program
def metropolis_count():
    class Chain:
        def __init__(self):
            self.x = torch.zeros(8, device="cuda")
            self.accepted = torch.zeros(8, device="cuda")

        def step(self, proposal, u):
            new = self.x + proposal
            keep = u < torch.exp(self.x.pow(2) / 2 - new.pow(2) / 2)
            self.x = torch.where(keep, new, self.x)
            self.accepted += keep
            return self.x, self.accepted.mean()

    return Chain().step, [(randn(8), rand(8)) for _ in range(N)]


@program
def hmc_leapfrog():
    def leapfrog(q, p, n_steps=4, dt=0.1):
        for _ in range(n_steps):
            p = p - dt / 2 * q
            q = q + dt * p
            p = p - dt / 2 * q
        return q, p

    return leapfrog, [(randn(6), randn(6)) for _ in range(N)]


@program
def gumbel_choice():
    def choose(logits, u):
        gumbel = -torch.log(-torch.log(u.clamp(1e-6, 1 - 1e-6)))
        return F.one_hot((logits + gumbel).argmax(-1), logits.shape[-1]).float()

    return choose, [(randn(3, 7), rand(3, 7)) for _ in range(N)]


@program
def top_k_sampling_with_dropout_noise():
    def sample(logits):
        values, index = logits.topk(4)
        p = values.softmax(-1)
        return index.gather(-1, torch.multinomial(p, 1))

    return sample, [(randn(3, 12),) for _ in range(N)]


@program
def annealed_temperature():
    class Annealed:
        def __init__(self):
            self.temperature = 2.0

        def __call__(self, logits):
            p = (logits / self.temperature).softmax(-1)
            self.temperature = max(0.1, self.temperature * 0.9)
            return p

    return Annealed(), [(randn(3, 5),) for _ in range(N)]


# -- training ---------------------------------------------------------------------------------------------------


@program
def sgd_by_hand():
    w = randn(6, 2).requires_grad_()

    def step(x, y):
        loss = F.mse_loss(x @ w, y)
        (g,) = torch.autograd.grad(loss, w)
        with torch.no_grad():
            w.sub_(0.1 * g)
        return loss.detach()

    return step, [(randn(4, 6), randn(4, 2)) for _ in range(N)], lambda: [w]


@program
def adamw_capturable():
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).cuda()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2, capturable=True)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    calls = [(randn(4, 6), torch.randint(2, (4,), device="cuda")) for _ in range(N)]
    return step, calls, lambda: list(net.parameters())


@program
def ema_of_weights():
    net, shadow = nn.Linear(4, 4).cuda(), nn.Linear(4, 4).cuda()

    @torch.no_grad()
    def update(decay=0.9):
        for a, b in zip(shadow.parameters(), net.parameters(), strict=True):
            a.lerp_(b, 1 - decay)
        return shadow.weight.norm()

    return update, [() for _ in range(N)], lambda: list(shadow.parameters())


@program
def clip_gradients():
    def clip(a, b, limit=1.0):
        norm = torch.sqrt(a.pow(2).sum() + b.pow(2).sum())
        factor = (limit / (norm + 1e-6)).clamp(max=1.0)
        return a * factor, b * factor, norm

    return clip, [(randn(5, 3), randn(5)) for _ in range(N)]


@program
def accumulate_every_four():
    class Trainer:
        def __init__(self):
            self.w, self.g, self.n = randn(4), torch.zeros(4, device="cuda"), 0

        def step(self, x):
            self.g += x
            self.n += 1
            if self.n % 4 == 0:
                self.w = self.w - 0.1 * self.g
                self.g = torch.zeros_like(self.g)
            return self.w.sum()

    return Trainer().step, [(randn(4),) for _ in range(N)]


@program
def moco_queue():
    class Queue(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("queue", F.normalize(torch.randn(16, 4), dim=-1))
            self.register_buffer("at", torch.zeros(1, dtype=torch.long))

        def forward(self, q, k):
            logits = torch.cat([(q * k).sum(-1, keepdim=True), q @ self.queue.t()], 1)
            where = (self.at + torch.arange(4, device=q.device)) % 16
            self.queue.index_copy_(0, where, k)
            self.at.add_(4).remainder_(16)
            return logits

    calls = [(F.normalize(randn(4, 4), dim=-1), F.normalize(randn(4, 4), dim=-1)) for _ in range(N)]
    return Queue().cuda().requires_grad_(False), calls


@program
def label_smoothing():
    def loss(logits, target, eps=0.1):
        log_p = logits.log_softmax(-1)
        nll = -log_p.gather(-1, target[:, None])[:, 0]
        return ((1 - eps) * nll - eps * log_p.mean(-1)).mean()

    return loss, [(randn(4, 6), torch.randint(6, (4,), device="cuda")) for _ in range(N)]


@program
def mixup_from_random():
    rng = random.Random(3)

    def mix(x):
        lam = rng.random()
        return lam * x + (1 - lam) * x.flip(0)

    return mix, [(randn(4, 3),) for _ in range(N)]


@program
def center_loss():
    class Centers:
        def __init__(self):
            self.centers = torch.zeros(3, 4, device="cuda")

        def __call__(self, x, y):
            onehot = F.one_hot(y, 3).float()
            means = onehot.t() @ x / onehot.sum(0).clamp(min=1)[:, None]
            self.centers = 0.9 * self.centers + 0.1 * means
            return (x - self.centers[y]).pow(2).sum(-1).mean()

    return Centers(), [(randn(6, 4), torch.randint(3, (6,), device="cuda")) for _ in range(N)]


@program
def model_with_gradients():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).cuda()

    def forward(x):
        return net(x).mean()

    return forward, [(randn(5, 4),) for _ in range(N)]


@program
def batch_norm_in_training():
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)).cuda().train().requires_grad_(False)
    return net, [(randn(8, 4),) for _ in range(N)], lambda: [net[1].running_mean, net[1].num_batches_tracked]


@program
def gan_losses():
    g, d = nn.Linear(3, 4).cuda(), nn.Linear(4, 1).cuda()

    @torch.no_grad()
    def losses(z, real):
        fake = d(g(z))
        true = d(real)
        return F.softplus(-true).mean() + F.softplus(fake).mean(), F.softplus(-fake).mean()

    return losses, [(randn(4, 3), randn(4, 4)) for _ in range(N)]


# -- reinforcement learning -------------------------------------------------------------------------------------


@program
def ring_buffer():
    class Buffer:
        def __init__(self):
            self.data, self.at, self.full = torch.zeros(8, 3, device="cuda"), 0, False

        def push(self, x):
            self.data[self.at] = x
            self.at = (self.at + 1) % 8
            self.full = self.full or self.at == 0
            return self.data.mean(0)

    return Buffer().push, [(randn(3),) for _ in range(N)]


@program
def epsilon_greedy():
    class Policy:
        def __init__(self):
            self.epsilon, self.q = 1.0, nn.Linear(4, 3).cuda()

        def act(self, state, u, other):
            self.epsilon = max(0.05, self.epsilon * 0.95)
            return torch.where(u < self.epsilon, other, self.q(state).argmax(-1))

    return Policy().act, [(randn(5, 4), rand(5), torch.randint(3, (5,), device="cuda")) for _ in range(N)]


@program
def target_network_every_five():
    class Agent:
        def __init__(self):
            self.net, self.target, self.n = nn.Linear(3, 2).cuda(), nn.Linear(3, 2).cuda(), 0

        @torch.no_grad()
        def values(self, state):
            self.n += 1
            if self.n % 5 == 0:
                self.target.load_state_dict(self.net.state_dict())
            return self.target(state).max(-1).values

    return Agent().values, [(randn(4, 3),) for _ in range(N)]


@program
def ppo_objective():
    def objective(new, old, advantage, clip=0.2):
        ratio = (new - old).exp()
        return -torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()

    return objective, [(randn(8), randn(8), randn(8)) for _ in range(N)]


@program
def gae_loop():
    def gae(rewards, values, gamma=0.99, lam=0.95):
        out, last = [], torch.zeros_like(rewards[0])
        for t in range(rewards.shape[0] - 1, -1, -1):
            last = rewards[t] + gamma * values[t + 1] - values[t] + gamma * lam * last
            out.append(last)
        return torch.stack(out[::-1])

    return gae, [(randn(6, 2), randn(7, 2)) for _ in range(N)]


@program
def running_normaliser():
    class Normaliser:
        def __init__(self):
            self.mean, self.var, self.count = torch.zeros(3, device="cuda"), torch.ones(3, device="cuda"), 1e-4

        def __call__(self, x):
            n = x.shape[0]
            delta = x.mean(0) - self.mean
            total = self.count + n
            self.mean = self.mean + delta * n / total
            self.var = (
                self.var * self.count + x.var(0, correction=0) * n + delta**2 * self.count * n / total
            ) / total
            self.count = total
            return (x - self.mean) / (self.var + 1e-8).sqrt()

    return Normaliser(), [(randn(5, 3),) for _ in range(N)]


@program
def bandit():
    class Bandit:
        def __init__(self):
            self.counts, self.sums = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")

        def pull(self, rewards):
            ucb = self.sums / self.counts + (2 * self.counts.sum().log() / self.counts).sqrt()
            arm = ucb.argmax()
            self.counts[arm] += 1
            self.sums[arm] += rewards[arm]
            return arm

    return Bandit().pull, [(rand(4),) for _ in range(N)]


@program
def cross_entropy_method():
    def improve(mean, std, noise):
        x = mean + std * noise
        score = -(x - 3).pow(2).sum(-1)
        best = x[score.topk(3).indices]
        return best.mean(0), best.std(0)

    return improve, [(randn(2), rand(2) + 0.5, randn(10, 2)) for _ in range(N)]


@program
def policy_with_generator():
    class Policy:
        def __init__(self):
            self.generator = torch.Generator(device="cuda")
            self.generator.manual_seed(5)
            self.net = nn.Linear(4, 3).cuda()

        @torch.no_grad()
        def act(self, state):
            p = self.net(state).softmax(-1)
            return torch.multinomial(p, 1, generator=self.generator)

    return Policy().act, [(randn(4, 4),) for _ in range(N)]


@program
def prioritised_weights():
    def weights(priorities, beta):
        p = priorities.pow(0.6)
        w = (p / p.sum() * len(p)).pow(-beta)
        return w / w.max()

    return weights, [(rand(8) + 0.1, 0.4 + 0.05 * i) for i in range(N)]


# -- signals ----------------------------------------------------------------------------------------------------


@program
def fir_with_state():
    class Fir:
        def __init__(self):
            self.taps, self.tail = randn(5), torch.zeros(4, device="cuda")

        def __call__(self, block):
            x = torch.cat([self.tail, block])
            self.tail = x[-4:].clone()
            return F.conv1d(x.view(1, 1, -1), self.taps.flip(0).view(1, 1, -1)).view(-1)

    return Fir(), [(randn(16),) for _ in range(N)]


@program
def spectrum():
    window = torch.hann_window(16, device="cuda")

    def magnitude(x):
        return torch.fft.rfft(x.unfold(0, 16, 8) * window).abs()

    return magnitude, [(randn(64),) for _ in range(N)]


@program
def lms_filter():
    class Lms:
        def __init__(self):
            self.w, self.mu = torch.zeros(4, device="cuda"), 0.05

        def __call__(self, x, wanted):
            error = wanted - self.w @ x
            self.w = self.w + self.mu * error * x
            return error

    return Lms(), [(randn(4), randn(())) for _ in range(N)]


@program
def kalman():
    class Kalman:
        def __init__(self):
            self.f = torch.tensor([[1.0, 0.1], [0.0, 1.0]], device="cuda")
            self.h = torch.tensor([[1.0, 0.0]], device="cuda")
            self.x, self.p = torch.zeros(2, 1, device="cuda"), torch.eye(2, device="cuda")

        def update(self, z):
            x, p = self.f @ self.x, self.f @ self.p @ self.f.t() + 0.01 * torch.eye(2, device="cuda")
            s = self.h @ p @ self.h.t() + 0.1
            k = p @ self.h.t() / s
            self.x, self.p = x + k * (z - self.h @ x), p - k @ self.h @ p
            return self.x[0, 0]

    return Kalman().update, [(randn(1, 1),) for _ in range(N)]


@program
def peak_above_running_level():
    class Detector:
        def __init__(self):
            self.level = torch.zeros((), device="cuda")
            self.events = collections.deque(maxlen=4)

        def __call__(self, block):
            top = block.abs().max()
            self.level = torch.maximum(self.level * 0.9, top)
            self.events.append(1)
            return top >= self.level, self.level

    return Detector(), [(randn(16),) for _ in range(N)]


@program
def autocorrelation():
    def correlate(x):
        x = x - x.mean(-1, keepdim=True)
        f = torch.fft.rfft(x, n=2 * x.shape[-1])
        return torch.fft.irfft(f * f.conj())[..., : x.shape[-1]]

    return correlate, [(randn(2, 16),) for _ in range(N)]


@program
def median_filter():
    def median(image):
        p = F.pad(image[None, None], (1, 1, 1, 1), mode="reflect")
        return p.unfold(2, 3, 1).unfold(3, 3, 1).reshape(*image.shape, 9).median(-1).values

    return median, [(rand(6, 6),) for _ in range(N)]


@program
def automatic_gain():
    class Gain:
        gain = 1.0

        def __call__(self, block):
            level = block.pow(2).mean().sqrt().item()
            self.gain = 0.9 * self.gain + 0.1 / max(level, 1e-3)
            return block * self.gain

    return Gain(), [(randn(32),) for _ in range(N)]


# -- science ----------------------------------------------------------------------------------------------------


@program
def n_body():
    def step(x, v, dt=0.01):
        d = x[None] - x[:, None]
        a = (d / (d.pow(2).sum(-1, keepdim=True) + 0.1).pow(1.5)).sum(1)
        v = v + dt * a
        return x + dt * v, v

    return step, [(randn(6, 3), randn(6, 3)) for _ in range(N)]


@program
def heat_in_place():
    field = rand(10, 10)

    def step():
        inner = field[1:-1, 1:-1]
        inner.add_(0.1 * (field[2:, 1:-1] + field[:-2, 1:-1] + field[1:-1, 2:] + field[1:-1, :-2] - 4 * inner))
        return field.sum()

    return step, [() for _ in range(N)], lambda: [field]


@program
def game_of_life():
    kernel = torch.ones(1, 1, 3, 3, device="cuda")
    kernel[0, 0, 1, 1] = 0

    def step(board):
        n = F.conv2d(F.pad(board[None, None], (1, 1, 1, 1), mode="circular"), kernel)[0, 0]
        return ((n == 3) | ((n == 2) & (board == 1))).float()

    return step, [((rand(8, 8) > 0.5).float(),) for _ in range(N)]


@program
def power_iteration_to_tolerance():
    def eigen(a, x, tolerance=1e-2):
        for _ in range(8):
            y = a @ x
            y = y / y.norm()
            if (y - x).abs().max() < tolerance:
                break
            x = y
        return x @ a @ x

    return eigen, [
        ((lambda m: m @ m.t() + torch.eye(4, device="cuda"))(randn(4, 4)), F.normalize(randn(4), dim=0))
        for _ in range(N)
    ]


@program
def lorenz_runge_kutta():
    def f(s):
        x, y, z = s.unbind(-1)
        return torch.stack([10 * (y - x), x * (28 - z) - y, x * y - 8 / 3 * z], -1)

    def step(s, dt=0.01):
        a = f(s)
        b = f(s + dt / 2 * a)
        c = f(s + dt / 2 * b)
        return s + dt / 6 * (a + 2 * b + 2 * c + f(s + dt * c))

    return step, [(randn(4, 3),) for _ in range(N)]


@program
def ode_with_time():
    class Ode:
        def __init__(self):
            self.t, self.dt = 0.0, 0.1

        def step(self, x):
            y = x + self.dt * (math.sin(self.t) - x)
            self.t += self.dt
            return y

    return Ode().step, [(randn(4),) for _ in range(N)]


@program
def ising_checkerboard():
    spins = (rand(6, 6) > 0.5).float() * 2 - 1
    black = ((torch.arange(6, device="cuda")[:, None] + torch.arange(6, device="cuda")) % 2).bool()

    def sweep(u):
        for mask in (black, ~black):
            field = sum(spins.roll(s, d) for s in (1, -1) for d in (0, 1))
            flip = mask & (u < torch.exp(-spins * field))
            spins.copy_(torch.where(flip, -spins, spins))
        return spins.mean()

    return sweep, [(rand(6, 6),) for _ in range(N)], lambda: [spins]


@program
def k_means():
    class KMeans:
        def __init__(self):
            self.centers = randn(3, 2)
            self.log = []

        def step(self, x):
            label = torch.cdist(x, self.centers).argmin(-1)
            onehot = F.one_hot(label, 3).float()
            self.centers = onehot.t() @ x / onehot.sum(0).clamp(min=1)[:, None]
            self.log.append(len(self.log))
            return label

    return KMeans().step, [(randn(12, 2),) for _ in range(N)]


@program
def conjugate_gradient():
    def solve(a, b):
        x = torch.zeros_like(b)
        r = p = b
        for _ in range(4):
            ap = a @ p
            alpha = r @ r / (p @ ap)
            x = x + alpha * p
            new = r - alpha * ap
            p = new + (new @ new) / (r @ r) * p
            r = new
        return x, r.norm()

    return solve, [((lambda m: m @ m.t() + 4 * torch.eye(5, device="cuda"))(randn(5, 5)), randn(5)) for _ in range(N)]


@program
def online_covariance():
    class Covariance:
        def __init__(self):
            self.n = torch.zeros((), device="cuda")
            self.mean, self.m2 = torch.zeros(3, device="cuda"), torch.zeros(3, 3, device="cuda")

        def __call__(self, x):
            self.n += 1
            d = x - self.mean
            self.mean += d / self.n
            self.m2 += torch.outer(d, x - self.mean)
            return self.m2 / self.n

    return Covariance(), [(randn(3),) for _ in range(N)]


# -- the measurement --------------------------------------------------------------------------------------------


def made(name):
    torch.manual_seed(1234)
    random.seed(1234)
    step, calls, *state = PROGRAMS[name]()
    return step, calls, state[0] if state else list


def kept(value):
    flat = torch.utils._pytree.tree_leaves(value)
    return [each.detach().clone() if isinstance(each, torch.Tensor) else each for each in flat]


def same(a, b):
    if len(a) != len(b):
        return False
    for x, y in zip(a, b, strict=True):
        if isinstance(x, torch.Tensor):
            if (
                x.shape != y.shape
                or x.dtype != y.dtype
                or not torch.allclose(x.double(), y.double(), 1e-4, 1e-5, True)
            ):
                return False
        elif x != y:
            return False
    return True


def judge(name):
    """Verdict on one program, and how its calls ran."""
    step, calls, state = made(name)
    torch.manual_seed(99)
    eager = [(kept(step(*args)), kept(state())) for args in calls]
    step, calls, state = made(name)
    graphed = gfxgraph.graphed(step)
    torch.manual_seed(99)
    counts = []
    for i, args in enumerate(calls):
        before = graphed.stats()
        try:
            got = kept(graphed(*args)), kept(state())
        except Exception as error:  # noqa: BLE001  # whatever it is, it is the verdict
            return {
                "verdict": "raised",
                "at": i,
                "error": "".join(traceback.format_exception_only(error)).strip()[:300],
            }
        if not (same(got[0], eager[i][0]) and same(got[1], eager[i][1])):
            return {"verdict": "wrong", "at": i, "why": str(graphed.explain())[:400]}
        after = graphed.stats()
        if sum(after["pieces"].values()) > sum(before["pieces"].values()):
            counts.append("pieces")
        elif after["replays"] > before["replays"]:
            counts.append("whole")
        else:
            counts.append("eager")
    late = collections.Counter(counts[3:])
    verdict = late.most_common(1)[0][0]
    return {"verdict": verdict, "calls": counts, "eager": dict(graphed.stats()["eager"])}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only")
    parser.add_argument("--platform", default="hip")
    options = parser.parse_args()
    if torch.cuda.is_available():
        gfxgraph.enable(allow_cuda=True)
        device = torch.cuda.get_device_name()
    else:
        gfxgraph.enable(simulate=options.platform)
        device = f"simulator ({options.platform})"
    rows = {}
    for name in [options.only] if options.only else PROGRAMS:
        rows[name] = judge(name)
        print(name, rows[name]["verdict"], rows[name].get("error", "") or rows[name].get("eager", ""), flush=True)
    count = collections.Counter(row["verdict"] for row in rows.values())
    commit = os.environ.get("BENCH_COMMIT") or subprocess.getoutput("git rev-parse --short HEAD")
    kinds = ("whole", "pieces", "eager", "wrong", "raised")
    result = {
        "what": __doc__.splitlines()[0],
        "device": device,
        "torch": torch.__version__,
        "commit": commit,
        "programs": len(rows),
        **{kind: count[kind] for kind in kinds},
        "rows": rows,
    }
    print({kind: result[kind] for kind in ("programs", *kinds)})
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
