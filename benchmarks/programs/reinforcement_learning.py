"""Policies, bandits, searches and replay buffers."""

from __future__ import annotations

import collections
import math

import torch
from programs.registry import N, program, rand, randn
from torch import nn

# -- reinforcement learning ----------------------------------------------------------------------------------------


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


# -- reinforcement learning, bandits -------------------------------------------------------------------------------


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


# -- reinforcement learning ----------------------------------------------------------------------------------------


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
