"""Solvers, simulations and statistics."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from programs.registry import N, program, rand, randn


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
