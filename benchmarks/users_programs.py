"""Small programs in the manner of users: servers, samplers, training loops, RL, signals.

Written before any of them was run. ``PROGRAMS`` maps a name to ``program(graphed)``, which makes its own objects,
calls what it wraps 7 to 18 times, and returns everything that its user would look at.
``bench_users_programs.py`` runs them.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import math
import random

import torch
import torch.nn.functional as F
from torch import nn

PROGRAMS = {}
D = "cuda"


def program(fn):
    PROGRAMS[fn.__name__] = fn
    return fn


def mlp(*sizes, act=nn.ReLU):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), act()]
    return nn.Sequential(*layers[:-1]).to(D)


# -- servers ------------------------------------------------------------------------------------------------------


@program
def server_classifier_with_count(graphed):
    """A service object that counts its requests and answers with probabilities."""

    class Service:
        def __init__(self):
            self.model = mlp(16, 32, 5).eval()
            self.n_requests = 0
            self.run = graphed(self.forward)

        @torch.no_grad()
        def forward(self, x):
            self.n_requests += 1
            return self.model(x).softmax(-1)

    service = Service()
    out = [service.run(torch.randn(3, 16, device=D)) for _ in range(10)]
    return out, service.n_requests


@program
def server_decode_with_position(graphed):
    """A decoder that keeps its position as an int and writes its cache in place."""

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(50, 16)
            self.qkv = nn.Linear(16, 48)
            self.out = nn.Linear(16, 50)
            self.register_buffer("k", torch.zeros(1, 32, 16))
            self.register_buffer("v", torch.zeros(1, 32, 16))
            self.pos = 0

        def forward(self, ids):
            q, k, v = self.qkv(self.emb(ids)).chunk(3, -1)
            self.k[:, self.pos] = k[:, 0]
            self.v[:, self.pos] = v[:, 0]
            self.pos += 1
            mask = torch.arange(32, device=ids.device) < self.pos
            scores = (q @ self.k.transpose(1, 2) / 4).masked_fill(~mask, float("-inf"))
            return self.out(scores.softmax(-1) @ self.v).argmax(-1)

    model = Decoder().to(D).eval()
    step = graphed(model)
    ids, said = torch.zeros(1, 1, dtype=torch.long, device=D), []
    with torch.no_grad():
        for _ in range(14):
            ids = step(ids)
            said.append(ids.clone())
    return said, model.pos


@program
def server_batches_of_any_size(graphed):
    """Requests of varying batch size; the result is a dictionary."""
    model = mlp(8, 16, 4).eval()

    @graphed
    def answer(x):
        with torch.inference_mode():
            logits = model(x)
            top = logits.topk(2, -1)
        return {"scores": top.values, "labels": top.indices}

    sizes = [1, 4, 2, 4, 1, 2, 4, 4, 1, 2, 2, 4]
    return [answer(torch.randn(n, 8, device=D)) for n in sizes]


@program
def server_with_request_log(graphed):
    """Every answer's mean goes to a list that somebody reads at the end."""
    log = []
    model = mlp(8, 8, 2)

    def handle(x):
        y = torch.sigmoid(model(x))
        log.append(float(y.mean()))
        return y

    handle = graphed(handle)
    with torch.no_grad():
        out = [handle(torch.randn(2, 8, device=D)) for _ in range(9)]
    return out, log


@program
def server_two_heads_by_name(graphed):
    """A task name in the request picks the head."""
    trunk = mlp(8, 16)
    heads = nn.ModuleDict({"sentiment": nn.Linear(16, 2), "topic": nn.Linear(16, 7)}).to(D)

    @graphed
    @torch.no_grad()
    def answer(x, task="topic", *, temperature=1.0):
        return F.softmax(heads[task](F.relu(trunk(x))) / temperature, dim=-1)

    calls = ["topic", "sentiment", "topic", "topic", "sentiment", "sentiment", "topic", "sentiment"]
    return [answer(torch.randn(2, 8, device=D), task, temperature=0.7) for task in calls]


@program
def server_with_running_stats(graphed):
    """Inputs are normalised by statistics of what came before, kept as attributes."""

    class Normaliser:
        def __init__(self, n):
            self.mean = torch.zeros(n, device=D)
            self.var = torch.ones(n, device=D)

        def __call__(self, x):
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
            self.var = 0.9 * self.var + 0.1 * x.var(0)
            return (x - self.mean) / (self.var + 1e-5).sqrt()

    norm, model = Normaliser(6), mlp(6, 12, 3)
    run = graphed(lambda x: model(norm(x)))
    with torch.no_grad():
        out = [run(torch.randn(5, 6, device=D)) for _ in range(11)]
    return out, norm.mean, norm.var


@program
def server_ab_test(graphed):
    """Half of the requests go to the new model, by a random number of Python's."""
    random.seed(3)
    old, new = mlp(4, 8, 2), mlp(4, 8, 2)

    @graphed
    @torch.no_grad()
    def answer(x):
        return old(x) if random.random() < 0.5 else new(x)

    return [answer(torch.randn(2, 4, device=D)) for _ in range(12)]


@program
def server_reloads_weights(graphed):
    """A server that loads a new checkpoint now and then."""
    model = mlp(4, 8, 2).eval()
    states = [copy.deepcopy(mlp(4, 8, 2).state_dict()) for _ in range(2)]
    run = graphed(model)
    out = []
    with torch.no_grad():
        for i in range(12):
            if i in (4, 8):
                model.load_state_dict(states[i // 8])
            out.append(run(torch.randn(2, 4, device=D)))
    return out


# -- samplers -----------------------------------------------------------------------------------------------------


@program
def sampler_ddim(graphed):
    """A diffusion sampler object whose step counts down."""

    class Sampler:
        def __init__(self, net, n):
            self.net, self.n, self.i = net, n, n
            self.alphas = torch.linspace(0.99, 0.1, n + 1).to(D)

        def step(self, x):
            self.i -= 1
            a, b = self.alphas[self.i + 1], self.alphas[self.i]
            eps = self.net(x)
            x0 = (x - (1 - a).sqrt() * eps) / a.sqrt()
            return b.sqrt() * x0 + (1 - b).sqrt() * eps

    sampler = Sampler(mlp(6, 12, 6), 12)
    step = graphed(sampler.step)
    x, seen = torch.randn(2, 6, device=D), []
    with torch.no_grad():
        for _ in range(12):
            x = step(x)
            seen.append(x.clone())
    return seen, sampler.i


@program
def sampler_euler_with_sigmas(graphed):
    """The schedule is a Python list; the step gets sigma and the next one as floats."""
    net = mlp(4, 8, 4)
    sigmas = [10.0 * 0.7**i for i in range(13)] + [0.0]

    @graphed
    def euler(x, sigma, to):
        d = (x - net(x / math.sqrt(sigma**2 + 1))) / sigma
        return x + d * (to - sigma)

    x = torch.randn(3, 4, device=D) * sigmas[0]
    out = []
    with torch.no_grad():
        for a, b in zip(sigmas, sigmas[1:]):
            x = euler(x, a, b)
            out.append(x)
    return out


@program
def sampler_top_k(graphed):
    """Tokens are drawn from the best k, on the device."""
    lm = mlp(8, 16, 20)
    emb = nn.Embedding(20, 8).to(D)

    @graphed
    @torch.no_grad()
    def sample(token, temperature: float = 1.0, k: int = 5):
        logits = lm(emb(token)) / temperature
        best = logits.topk(k, -1)
        choice = torch.multinomial(best.values.softmax(-1), 1)
        return best.indices.gather(-1, choice)[:, 0]

    token, out = torch.zeros(2, dtype=torch.long, device=D), []
    for _ in range(12):
        token = sample(token, temperature=0.8)
        out.append(token)
    return out


@program
def sampler_with_generator(graphed):
    """The object holds a torch.Generator of its own."""

    class Noiser:
        def __init__(self):
            self.gen = torch.Generator(device=D).manual_seed(5)
            self.scale = 0.3

        def add(self, x):
            return x + self.scale * torch.randn(x.shape, generator=self.gen, device=x.device)

    noiser = Noiser()
    add = graphed(noiser.add)
    return [add(torch.zeros(4, device=D)) for _ in range(9)]


@program
def sampler_langevin(graphed):
    """Langevin dynamics with the energy's gradient taken inside."""
    energy = mlp(3, 16, 1, act=nn.Tanh)

    def langevin(x, step=0.01):
        x = x.detach().requires_grad_(True)
        grad = torch.autograd.grad(energy(x).sum(), x)[0]
        return (x - step * grad + math.sqrt(2 * step) * torch.randn_like(x)).detach()

    langevin = graphed(langevin)
    x, out = torch.randn(5, 3, device=D), []
    for _ in range(10):
        x = langevin(x)
        out.append(x)
    return out


@program
def sampler_metropolis(graphed):
    """Metropolis-Hastings with a count of acceptances on the device."""

    class Chain:
        def __init__(self):
            self.x = torch.zeros(64, device=D)
            self.accepted = torch.zeros((), device=D)

        def log_p(self, x):
            return -0.5 * (x - 1) ** 2

        def step(self):
            proposal = self.x + 0.5 * torch.randn_like(self.x)
            ok = torch.rand_like(self.x).log() < self.log_p(proposal) - self.log_p(self.x)
            self.x = torch.where(ok, proposal, self.x)
            self.accepted = self.accepted + ok.float().mean()
            return self.x

    chain = Chain()
    step = graphed(chain.step)
    return [step().clone() for _ in range(12)], chain.accepted


@program
def sampler_class_counter(graphed):
    """A sampler class that counts all draws of all its objects."""

    class Gumbel:
        n_draws = 0

        def __init__(self, tau):
            self.tau = tau

        def draw(self, logits):
            Gumbel.n_draws += 1
            noise = -torch.log(-torch.log(torch.rand_like(logits) + 1e-9) + 1e-9)
            return ((logits + noise) / self.tau).softmax(-1)

    one = Gumbel(0.5)
    draw = graphed(one.draw)
    return [draw(torch.randn(2, 6, device=D)) for _ in range(10)], Gumbel.n_draws


@program
def sampler_annealed_tau(graphed):
    """A temperature that is annealed by a global schedule."""
    state = {"tau": 1.0}

    @graphed
    def soft(logits):
        return F.softmax(logits / state["tau"], -1)

    out = []
    for _ in range(10):
        out.append(soft(torch.randn(3, 5, device=D)))
        state["tau"] = max(0.1, state["tau"] * 0.9)
    return out


# -- training loops ------------------------------------------------------------------------------------------------


@program
def training_ema_of_weights(graphed):
    """An exponential mean of the weights, updated by a graphed function after each step."""
    model, ema = mlp(4, 8, 2), None
    ema = copy.deepcopy(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)

    @graphed
    @torch.no_grad()
    def update():
        for a, b in zip(ema.parameters(), model.parameters()):
            a.lerp_(b, 0.1)

    for _ in range(9):
        opt.zero_grad()
        model(torch.randn(8, 4, device=D)).square().mean().backward()
        opt.step()
        update()
    return [p.detach().clone() for p in ema.parameters()]


@program
def training_plain_loss(graphed):
    """The loss function alone is graphed; backward and the optimizer are the program's."""
    model = mlp(6, 12, 3)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)

    @graphed
    def loss_of(x, y):
        return F.cross_entropy(model(x), y, label_smoothing=0.1)

    losses = []
    for _ in range(10):
        x, y = torch.randn(8, 6, device=D), torch.randint(3, (8,), device=D)
        opt.zero_grad(set_to_none=True)
        loss = loss_of(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(loss.item())
    return losses, [p.detach().clone() for p in model.parameters()]


@program
def training_whole_step(graphed):
    """A whole step in one function, SGD with momentum."""
    model = mlp(5, 10, 1)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(x, y):
        opt.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    step = graphed(step)
    losses = [step(torch.randn(6, 5, device=D), torch.randn(6, 1, device=D)).clone() for _ in range(9)]
    return losses, [p.detach().clone() for p in model.parameters()]


@program
def training_adam_step_only(graphed):
    """Only optimizer.step() of an ordinary Adam is graphed."""
    model = mlp(4, 8, 1)
    opt = torch.optim.Adam(model.parameters(), lr=0.01)
    take_step = graphed(lambda: opt.step())
    for _ in range(8):
        opt.zero_grad()
        model(torch.randn(4, 4, device=D)).square().mean().backward()
        take_step()
    return [p.detach().clone() for p in model.parameters()]


@program
def training_lr_warmup_by_hand(graphed):
    """A hand-written SGD with a learning rate that a Python schedule sets."""

    class Trainer:
        def __init__(self):
            self.w = torch.randn(5, 1, device=D)
            self.lr, self.it = 0.0, 0

        def schedule(self):
            self.it += 1
            self.lr = 0.1 * min(1.0, self.it / 5)

        def step(self, x, y):
            grad = x.t() @ (x @ self.w - y) / len(x)
            self.w -= self.lr * grad
            return ((x @ self.w - y) ** 2).mean()

    trainer, losses = Trainer(), []
    step = graphed(trainer.step)
    for _ in range(12):
        trainer.schedule()
        losses.append(step(torch.randn(6, 5, device=D), torch.randn(6, 1, device=D)))
    return losses, trainer.w


@program
def training_centers_loss(graphed):
    """Centre loss: the centres move with each batch and are replaced."""

    class CenterLoss(nn.Module):
        def __init__(self, n, dim):
            super().__init__()
            self.centers = torch.zeros(n, dim, device=D)

        def forward(self, z, y):
            one_hot = F.one_hot(y, len(self.centers)).float()
            sums = one_hot.t() @ z.detach()
            counts = one_hot.sum(0).clamp(min=1)[:, None]
            self.centers = 0.5 * self.centers + 0.5 * sums / counts
            return ((z - self.centers[y]) ** 2).sum(-1).mean()

    module = CenterLoss(4, 3)
    loss = graphed(module)
    out = []
    for _ in range(9):
        z = torch.randn(6, 3, device=D, requires_grad=True)
        value = loss(z, torch.randint(4, (6,), device=D))
        value.backward()
        out += [value.detach(), z.grad]
    return out, module.centers


@program
def training_evaluation(graphed):
    """Evaluation between epochs: train() and eval() alternate on one module with dropout and batch norm."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2)).to(D)
    predict = graphed(model)
    out = []
    with torch.no_grad():
        for epoch in range(12):
            model.train(epoch % 3 == 0)
            out.append(predict(torch.randn(6, 4, device=D)))
    return out, model[1].running_mean


@program
def training_metrics(graphed):
    """A metrics object: sums on the device, number of batches in Python."""

    class Metrics:
        def __init__(self):
            self.total, self.batches = torch.zeros((), device=D), 0

        def update(self, logits, y):
            self.total += (logits.argmax(-1) == y).float().mean()
            self.batches += 1

        def value(self):
            return self.total / self.batches

    metrics, model = Metrics(), mlp(4, 6, 3)

    @graphed
    @torch.no_grad()
    def evaluate(x, y):
        logits = model(x)
        metrics.update(logits, y)
        return F.cross_entropy(logits, y)

    out = [evaluate(torch.randn(5, 4, device=D), torch.randint(3, (5,), device=D)) for _ in range(10)]
    return out, metrics.value()


# -- reinforcement learning ----------------------------------------------------------------------------------------


@program
def rl_replay_buffer(graphed):
    """A ring buffer with its write position as an int."""

    class Replay:
        def __init__(self, size, dim):
            self.data = torch.zeros(size, dim, device=D)
            self.size, self.i, self.full = size, 0, False

        def add(self, row):
            self.data[self.i] = row
            self.i = (self.i + 1) % self.size
            self.full = self.full or self.i == 0

    replay = Replay(6, 3)
    add = graphed(replay.add)
    for _ in range(15):
        add(torch.randn(3, device=D))
    return replay.data, replay.i, replay.full


@program
def rl_epsilon_greedy(graphed):
    """Epsilon falls with every action."""

    class Agent:
        def __init__(self):
            self.q, self.eps = mlp(4, 16, 3), 1.0

        def act(self, state):
            greedy = self.q(state).argmax(-1)
            anything = torch.randint(3, greedy.shape, device=D)
            explore = torch.rand(greedy.shape, device=D) < self.eps
            self.eps = max(0.05, self.eps * 0.95)
            return torch.where(explore, anything, greedy)

    agent = Agent()
    act = graphed(agent.act)
    with torch.no_grad():
        return [act(torch.randn(8, 4, device=D)) for _ in range(12)], agent.eps


@program
def rl_gae(graphed):
    """Generalised advantages by a loop over time."""

    @graphed
    def gae(rewards, values, done, gamma=0.99, lam=0.95):
        advantage = torch.zeros_like(rewards[0])
        out = []
        for t in reversed(range(len(rewards))):
            keep = 1 - done[t]
            delta = rewards[t] + gamma * values[t + 1] * keep - values[t]
            advantage = delta + gamma * lam * keep * advantage
            out.insert(0, advantage)
        return torch.stack(out)

    make = lambda: (  # noqa: E731
        torch.randn(6, 4, device=D), torch.randn(7, 4, device=D), (torch.rand(6, 4, device=D) < 0.1).float(),
    )  # fmt: skip
    return [gae(*make()) for _ in range(8)]


@program
def rl_target_network(graphed):
    """Every fourth update copies the online network to the target, by a counter."""

    class DQN:
        def __init__(self):
            self.online, self.target, self.n = mlp(3, 8, 2), mlp(3, 8, 2), 0

        @torch.no_grad()
        def td_error(self, s, r, s2):
            self.n += 1
            if self.n % 4 == 0:
                for a, b in zip(self.target.parameters(), self.online.parameters()):
                    a.copy_(b)
            return r + 0.9 * self.target(s2).max(-1).values - self.online(s).max(-1).values

    dqn = DQN()
    error = graphed(dqn.td_error)
    make = lambda: (torch.randn(5, 3, device=D), torch.randn(5, device=D), torch.randn(5, 3, device=D))  # noqa: E731
    return [error(*make()) for _ in range(13)]


@program
def rl_frame_stack(graphed):
    """The last four frames in a deque with a bound."""
    frames = collections.deque([torch.zeros(4, 4, device=D)] * 4, maxlen=4)
    net = nn.Conv2d(4, 2, 3).to(D)

    @graphed
    def observe(frame):
        frames.append(frame)
        return net(torch.stack(list(frames))[None])

    with torch.no_grad():
        return [observe(torch.randn(4, 4, device=D)) for _ in range(9)]


@program
def rl_environment(graphed):
    """A vectorised pendulum whose state is replaced by each step."""

    @dataclasses.dataclass
    class Pendulum:
        theta: torch.Tensor
        omega: torch.Tensor
        t: int = 0

        def step(self, torque):
            self.omega = self.omega + 0.05 * (15 * torch.sin(self.theta) + 3 * torque.clamp(-2, 2))
            self.theta = self.theta + 0.05 * self.omega
            self.t += 1
            reward = -(self.theta**2 + 0.1 * self.omega**2 + 0.001 * torque**2)
            return torch.stack([self.theta.cos(), self.theta.sin(), self.omega], -1), reward

    env = Pendulum(torch.rand(16, device=D), torch.zeros(16, device=D))
    step = graphed(env.step)
    return [step(torch.randn(16, device=D)) for _ in range(14)], env.t


@program
def rl_reward_normaliser(graphed):
    """Welford's algorithm with a Python count and tensors on the device."""

    class Welford:
        def __init__(self):
            self.n, self.mean, self.m2 = 0, torch.zeros((), device=D), torch.zeros((), device=D)

        def __call__(self, r):
            self.n += 1
            delta = r.mean() - self.mean
            self.mean = self.mean + delta / self.n
            self.m2 = self.m2 + delta * (r.mean() - self.mean)
            std = (self.m2 / max(self.n - 1, 1)).sqrt() + 1e-6
            return (r - self.mean) / std

    norm = Welford()
    run = graphed(norm.__call__)
    return [run(torch.randn(8, device=D)) for _ in range(12)], norm.n


@program
def rl_bandit(graphed):
    """A UCB bandit whose counts are small CPU tensors."""
    counts, sums = torch.zeros(4), torch.zeros(4)
    means = torch.tensor([0.1, 0.5, 0.3, 0.8], device=D)

    @graphed
    def bonus(t):
        return means + (2 * math.log(1 + 3) / (counts.to(D) + 1)).sqrt() + 0 * t

    out = []
    for t in range(10):
        scores = bonus(torch.zeros((), device=D))
        arm = int(scores.argmax())
        counts[arm] += 1
        sums[arm] += t
        out.append(scores)
    return out, counts


# -- signal processing ---------------------------------------------------------------------------------------------


@program
def signal_stft_denoise(graphed):
    """Spectral gating of blocks of audio."""
    window = torch.hann_window(32, device=D)

    @graphed
    def denoise(x, threshold=0.5):
        spec = torch.stft(x, 32, 16, window=window, return_complex=True)
        mask = (spec.abs() > threshold).float()
        return torch.istft(spec * mask, 32, 16, window=window, length=x.shape[-1])

    return [denoise(torch.randn(2, 128, device=D)) for _ in range(8)]


@program
def signal_stateful_fir(graphed):
    """A FIR filter that keeps the tail of the last block."""

    class Fir(nn.Module):
        def __init__(self, taps):
            super().__init__()
            self.register_buffer("taps", taps.flip(0)[None, None])
            self.register_buffer("tail", torch.zeros(1, 1, len(taps) - 1))

        def forward(self, block):
            x = torch.cat([self.tail, block], -1)
            self.tail = x[..., -self.tail.shape[-1] :]
            return F.conv1d(x, self.taps)

    fir = Fir(torch.randn(5)).to(D)
    run = graphed(fir)
    with torch.no_grad():
        return [run(torch.randn(1, 1, 16, device=D)) for _ in range(11)], fir.tail


@program
def signal_overlap_add(graphed):
    """Overlap-add: the overlapping half is kept in place."""
    overlap = torch.zeros(8, device=D)
    window = torch.hann_window(16, periodic=True, device=D)

    def block(x):
        y = window * x
        out = y[:8] + overlap
        overlap.copy_(y[8:])
        return out

    block = graphed(block)
    return [block(torch.randn(16, device=D)) for _ in range(10)], overlap


@program
def signal_phase_oscillator(graphed):
    """An oscillator whose phase is a Python float."""

    class Osc:
        def __init__(self, freq, rate=48000):
            self.phase, self.step = 0.0, 2 * math.pi * freq / rate

        def render(self, n):
            t = torch.arange(n, device=D) * self.step + self.phase
            self.phase = (self.phase + n * self.step) % (2 * math.pi)
            return torch.sin(t)

    osc = Osc(440)
    render = graphed(osc.render)
    return [render(64) for _ in range(9)], osc.phase


@program
def signal_kalman(graphed):
    """A Kalman filter that replaces its mean and covariance."""

    class Kalman:
        def __init__(self):
            self.x, self.p = torch.zeros(2, device=D), torch.eye(2, device=D)
            self.f = torch.tensor([[1.0, 0.1], [0.0, 1.0]], device=D)
            self.h, self.q, self.r = torch.tensor([[1.0, 0.0]], device=D), 0.01, 0.5

        def update(self, z):
            x, p = self.f @ self.x, self.f @ self.p @ self.f.t() + self.q * torch.eye(2, device=D)
            s = self.h @ p @ self.h.t() + self.r
            k = p @ self.h.t() / s
            self.x = x + (k * (z - self.h @ x)).squeeze(-1)
            self.p = p - k @ self.h @ p
            return self.x

    kalman = Kalman()
    update = graphed(kalman.update)
    return [update(torch.randn(1, device=D)).clone() for _ in range(13)], kalman.p


@program
def signal_agc(graphed):
    """Automatic gain: the gain of the last block is passed in and out, in place of state."""

    @graphed
    def agc(x, gain):
        level = (x * gain).abs().mean()
        gain = gain * (1 + 0.1 * (1 - level))
        return x * gain, gain

    gain, out = torch.ones((), device=D), []
    for _ in range(10):
        y, gain = agc(torch.randn(64, device=D), gain)
        out.append(y)
    return out, gain


@program
def signal_window_function(graphed):
    """Moving spectra of a stream, a view of the argument among the results."""
    win = {256: None}

    @graphed
    def spectrum(x, n=16):
        if n not in win:
            win[n] = torch.hann_window(n, device=x.device)
        frames = x.unfold(-1, n, n // 2)
        return frames, torch.fft.rfft(frames * win[n]).abs().mean(-2)

    return [spectrum(torch.randn(64, device=D)) for _ in range(8)]


@program
def signal_lms(graphed):
    """An adaptive filter whose weights and error history are updated in place."""

    class Lms:
        def __init__(self, n, mu=0.05):
            self.w, self.mu = torch.zeros(n, device=D), mu
            self.errors = torch.zeros(20, device=D)
            self.t = 0

        def step(self, x, d):
            e = d - self.w @ x
            self.w.add_(self.mu * e * x)
            self.errors[self.t % 20] = e
            self.t += 1
            return e

    lms = Lms(4)
    step = graphed(lms.step)
    return [step(torch.randn(4, device=D), torch.randn((), device=D)) for _ in range(18)], lms.w, lms.errors
