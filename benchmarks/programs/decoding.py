"""Samplers and decoding: a token, a page, a beam or a picture a call."""

from __future__ import annotations

import math
import random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from programs.registry import N, program, rand, randn
from torch import nn

# -- samplers ------------------------------------------------------------------------------------------------------


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


# -- decoding ------------------------------------------------------------------------------------------------------


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


# -- sampling ------------------------------------------------------------------------------------------------------


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
