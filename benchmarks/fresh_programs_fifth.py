"""Fifty-two more programs in users' manner, drawn before any was run: training loops, servers, research code.

    python benchmarks/fresh_programs_fifth.py [--out FILE] [--only WORD] [--platform hip|cuda]

Written on 2026-11-28, without a look at ``callables/``. As in users_programs.py, each makes its own objects, calls
what it wraps several times while it changes what a user would change, and returns everything that its user would look
at; it is judged as bench_users_programs.py judges, but as a user has it: with the validation of first replays that
the platform has by default. (Without it, no batch norm that is called twice before one backward raises.)
"""

from __future__ import annotations

import argparse
import collections
import copy
import dataclasses
import functools
import json
import math
import os
import platform
import random
import subprocess
import sys
import traceback
import typing
from pathlib import Path

import bench_users_programs
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

import gfxgraph

PROGRAMS = {}
D = "cuda"


def program(fn):
    PROGRAMS[fn.__name__] = fn
    return fn


def randn(*size):
    return torch.randn(*size, device=D)


def weights_of(*modules):
    return [p.detach().clone() for module in modules for p in (*module.parameters(), *module.buffers())]


# -- adversarial, siamese, contrastive -----------------------------------------------------------------------------


@program
def gan_with_batch_norms(graphed):
    """DCGAN's loop: the discriminator sees real and fake batches before one backward."""
    gen = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8), nn.Tanh()).to(D)
    dis = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.LeakyReLU(0.2), nn.Linear(16, 1)).to(D)
    g, d = graphed(gen), graphed(dis)
    opt_g, opt_d = (torch.optim.SGD(m.parameters(), lr=0.05) for m in (gen, dis))
    losses = []
    for _ in range(8):
        real, z = randn(6, 8), randn(6, 4)
        opt_d.zero_grad()
        fake = g(z)
        on_real, on_fake = d(real), d(fake.detach())
        loss_d = F.softplus(-on_real).mean() + F.softplus(on_fake).mean()
        loss_d.backward()
        opt_d.step()
        opt_g.zero_grad()
        loss_g = F.softplus(-d(fake)).mean()
        loss_g.backward()
        opt_g.step()
        losses.append((loss_d.item(), loss_g.item()))
    return losses, weights_of(gen, dis)


@program
def siamese_triplets(graphed):
    """One encoder, three calls for each loss; the margin is raised midway."""
    encoder = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 4)).to(D)
    embed = graphed(encoder)
    opt = torch.optim.SGD(encoder.parameters(), lr=0.1)
    margin, losses = 0.2, []
    for i in range(8):
        if i == 4:
            margin = 0.5
        anchor, near, far = (F.normalize(embed(randn(5, 6)), dim=-1) for _ in range(3))
        loss = F.relu((anchor - near).pow(2).sum(-1) - (anchor - far).pow(2).sum(-1) + margin).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        losses.append(loss.detach())
    return losses, weights_of(encoder)


@program
def spectral_norm_critic(graphed):
    """A critic whose weights are normalised by a power iteration that each training forward goes on with."""
    critic = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(4, 8)), nn.ReLU(), parametrizations.spectral_norm(nn.Linear(8, 1))
    ).to(D)
    run = graphed(critic)
    opt = torch.optim.SGD(critic.parameters(), lr=0.05)
    scores = []
    for i in range(9):
        critic.train(i != 6)
        gap = run(randn(4, 4)).mean() - run(randn(4, 4) + 1).mean()
        opt.zero_grad()
        gap.backward()
        opt.step()
        scores.append(gap.detach().clone())
    return scores, weights_of(critic)


@program
def wgan_gradient_penalty(graphed):
    """The penalty is the gradient of the critic at points between; the loss is differentiated through it."""
    critic = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to(D)

    @graphed
    def penalty(real, fake, alpha):
        point = (alpha * real + (1 - alpha) * fake).requires_grad_(True)
        (grad,) = torch.autograd.grad(critic(point).sum(), point, create_graph=True)
        return 10 * (grad.norm(2, dim=1) - 1).pow(2).mean()

    opt = torch.optim.SGD(critic.parameters(), lr=0.01)
    seen = []
    for _ in range(7):
        real, fake = randn(5, 4), randn(5, 4)
        loss = critic(fake).mean() - critic(real).mean() + penalty(real, fake, torch.rand(5, 1, device=D))
        opt.zero_grad()
        loss.backward()
        opt.step()
        seen.append(loss.item())
    return seen, weights_of(critic)


@program
def info_nce_with_queue(graphed):
    """CLIP's scale is a parameter that is clamped in place after each step; negatives come from a queue."""
    image, text = nn.Linear(6, 4).to(D), nn.Linear(5, 4).to(D)
    log_scale = nn.Parameter(torch.tensor(2.6, device=D))
    queue = F.normalize(randn(4, 12), dim=0)
    at = 0

    @graphed
    def loss_of(a, b):
        q, k = F.normalize(image(a), dim=-1), F.normalize(text(b), dim=-1)
        logits = torch.cat([(q * k).sum(-1, keepdim=True), q @ queue], 1) * log_scale.exp()
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long, device=q.device)), k.detach()

    opt = torch.optim.SGD([*image.parameters(), *text.parameters(), log_scale], lr=0.5)
    losses = []
    for _ in range(9):
        loss, keys = loss_of(randn(3, 6), randn(3, 5))
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            log_scale.clamp_(0, math.log(14))
            queue[:, at : at + 3] = keys.t()
        at = (at + 3) % 12
        losses.append(loss.item())
    return losses, queue, log_scale.detach()


# -- reinforcement learning ----------------------------------------------------------------------------------------


@program
def ppo_epochs_over_minibatches(graphed):
    """Roll out, then epochs over shuffled minibatches; the clip range decays."""

    class Agent(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk = nn.Sequential(nn.Linear(4, 16), nn.Tanh())
            self.actor, self.critic = nn.Linear(16, 3), nn.Linear(16, 1)

        def forward(self, obs):
            h = self.trunk(obs)
            return self.actor(h), self.critic(h).squeeze(-1)

    agent = Agent().to(D)
    act = graphed(agent)
    clip = 0.2

    def objective(obs, action, old_logp, advantage, target):
        logits, value = agent(obs)
        dist = torch.distributions.Categorical(logits=logits, validate_args=False)
        ratio = (dist.log_prob(action) - old_logp).exp()
        surrogate = torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
        return -surrogate + 0.5 * F.mse_loss(value, target) - 0.01 * dist.entropy().mean()

    objective = graphed(objective)
    opt = torch.optim.Adam(agent.parameters(), lr=3e-3)
    losses = []
    for iteration in range(3):
        with torch.no_grad():
            obs = randn(8, 4)
            logits, value = act(obs)
            action = logits.argmax(-1)
            logp = F.log_softmax(logits, -1).gather(-1, action[:, None])[:, 0]
            target = obs.sum(-1)
        for _ in range(2):
            order = torch.randperm(8, device=D)
            for part in order.split(4):
                advantage = (target - value)[part]
                loss = objective(obs[part], action[part], logp[part], advantage, target[part])
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
                opt.step()
                losses.append(loss.item())
        clip = 0.2 - 0.05 * (iteration + 1)
    return losses, weights_of(agent)


@program
def double_dqn_with_replay(graphed):
    """A deque of transitions, a target network synchronised every fourth step, epsilon from a schedule."""
    random.seed(5)
    online = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)).to(D)
    target = copy.deepcopy(online).requires_grad_(False)
    memory = collections.deque(maxlen=24)
    q = graphed(online)

    @graphed
    def td_error(s, a, r, s2, done):
        with torch.no_grad():
            best = online(s2).argmax(-1, keepdim=True)
            wanted = r + 0.9 * target(s2).gather(-1, best)[:, 0] * (1 - done)
        return F.smooth_l1_loss(online(s).gather(-1, a[:, None])[:, 0], wanted)

    opt = torch.optim.RMSprop(online.parameters(), lr=1e-2)
    state, losses, actions = randn(4), [], []
    for i in range(14):
        if random.random() < max(0.1, 0.8 - 0.1 * i):
            action = random.randrange(2)
        else:
            with torch.no_grad():
                action = int(q(state[None]).argmax())
        after = 0.9 * state + (0.1 if action else -0.1)
        memory.append((state, action, float(i % 3), after, float(i % 5 == 4)))
        state = after
        actions.append(action)
        if len(memory) >= 6:
            s, a, r, s2, done = zip(*random.sample(list(memory), 4))
            loss = td_error(
                torch.stack(s),
                torch.tensor(a, device=D),
                torch.tensor(r, device=D),
                torch.stack(s2),
                torch.tensor(done, device=D),
            )
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
            if len(losses) % 4 == 0:
                target.load_state_dict(online.state_dict())
    return actions, losses, weights_of(online)


@program
def actor_with_log_std_annealed(graphed):
    """A continuous policy; its deviation is a buffer that the training loop fills."""

    class Policy(nn.Module):
        def __init__(self):
            super().__init__()
            self.mean = nn.Linear(3, 2)
            self.register_buffer("std", torch.ones(2))

        def forward(self, obs, noise):
            mean = self.mean(obs)
            action = mean + self.std * noise
            return action, torch.distributions.Normal(mean, self.std, validate_args=False).log_prob(action).sum(-1)

    policy = Policy().to(D)
    run = graphed(policy)
    out = []
    with torch.no_grad():
        for i in range(9):
            policy.std.fill_(1.0 / (1 + i // 3))
            out.append(run(randn(4, 3), randn(4, 2)))
    return out


# -- knowledge transfer, averages, checkpoints, quantization -------------------------------------------------------


@program
def distillation_by_hidden_hints(graphed):
    """The teacher's hidden layer is taken by a forward hook; after six steps the hint is off."""
    teacher = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4)).to(D).eval()
    student = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 4)).to(D)
    kept = {}
    handles = [
        net[1].register_forward_hook(lambda module, given, out, name=name: kept.__setitem__(name, out))
        for name, net in (("teacher", teacher), ("student", student))
    ]
    beta = 1.0

    @graphed
    def loss_of(x, temperature):
        with torch.no_grad():
            soft = F.softmax(teacher(x) / temperature, -1)
        loss = F.kl_div(F.log_softmax(student(x) / temperature, -1), soft, reduction="batchmean")
        if beta:
            loss = loss + beta * F.mse_loss(kept["student"], kept["teacher"])
        return loss

    opt = torch.optim.SGD(student.parameters(), lr=0.2)
    losses = []
    for i in range(10):
        if i == 6:
            beta = 0.0
            for handle in handles:
                handle.remove()
        loss = loss_of(randn(4, 6), 2.0)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses, weights_of(student)


@program
def ema_swapped_in_for_evaluation(graphed):
    """The average's tensors are put into the model for an evaluation, and the trained ones back."""
    model = nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 2)).to(D)
    shadow = {name: p.detach().clone() for name, p in model.named_parameters()}
    run = graphed(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    held_out, seen = randn(6, 5), []
    for i in range(9):
        loss = run(randn(6, 5)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                shadow[name].lerp_(p, 0.3)
        if i % 3 == 2:
            backup = {name: p.data for name, p in model.named_parameters()}
            for name, p in model.named_parameters():
                p.data = shadow[name]
            model.eval()
            with torch.inference_mode():
                seen.append(run(held_out).clone())
            model.train()
            for name, p in model.named_parameters():
                p.data = backup[name]
        seen.append(loss.item())
    return seen, weights_of(model), list(shadow.values())


@program
def checkpointed_encoder(graphed):
    """Blocks recomputed in the backward; recomputation is switched off for the last steps."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 8), nn.GELU()) for _ in range(3))
            self.saves_memory = True

        def forward(self, x):
            for block in self.blocks:
                x = x + (checkpoint(block, x, use_reentrant=False) if self.saves_memory else block(x))
            return x.mean(1)

    model = Encoder().to(D)
    run = graphed(model)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for i in range(9):
        model.saves_memory = i < 6
        loss = (run(randn(2, 4, 8)) - 1).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses, weights_of(model)


@program
def quantization_aware_training(graphed):
    """An observer follows the range while it is enabled; fake quantization begins after some steps."""

    class Quantized(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 6)
            self.register_buffer("low", torch.tensor(0.0))
            self.register_buffer("high", torch.tensor(0.0))
            self.is_observing, self.is_quantizing = True, False

        def forward(self, x):
            y = self.linear(x)
            if self.is_observing:
                with torch.no_grad():
                    self.low.copy_(torch.minimum(self.low, y.min()))
                    self.high.copy_(torch.maximum(self.high, y.max()))
            if self.is_quantizing:
                scale = ((self.high - self.low) / 255).clamp(min=1e-8)
                zero = (-self.low / scale).round().clamp(0, 255).int()
                y = torch.fake_quantize_per_tensor_affine(y, scale, zero, 0, 255)
            return y

    model = Quantized().to(D)
    run = graphed(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for i in range(10):
        model.is_observing, model.is_quantizing = i < 7, i >= 4
        loss = run(randn(4, 6)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses, weights_of(model)


@program
def int4_weights_packed_two_a_byte(graphed):
    """Weights are unpacked from bytes at each call; another layer is packed and swapped in."""

    class Packed(nn.Module):
        def __init__(self, dense):
            super().__init__()
            w = dense.weight.detach()
            scale = w.abs().amax(1, keepdim=True) / 7
            q = (w / scale).round().clamp(-8, 7).to(torch.int32) + 8
            self.register_buffer("packed", (q[:, ::2] | (q[:, 1::2] << 4)).to(torch.uint8))
            self.register_buffer("scale", scale)
            self.bias = dense.bias

        def forward(self, x):
            p = self.packed.to(torch.int32)
            q = torch.stack([p & 15, p >> 4], -1).flatten(1) - 8
            return F.linear(x, q * self.scale, self.bias)

    net = nn.Sequential(Packed(nn.Linear(8, 8).to(D)), nn.ReLU(), nn.Linear(8, 3).to(D)).eval()
    run = graphed(net)
    out = []
    with torch.no_grad():
        for i in range(9):
            if i == 5:
                net[0] = Packed(nn.Linear(8, 8).to(D))
            out.append(run(randn(2, 8)))
    return out


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


# -- meta-learning, torch.func -------------------------------------------------------------------------------------


@program
def maml_inner_steps(graphed):
    """Two inner steps by functional_call with gradients of gradients; the outer step by an optimizer."""
    net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).to(D)
    inner_lr = 0.1

    @graphed
    def outer_loss(x, y, x2, y2):
        fast = dict(net.named_parameters())
        for _ in range(2):
            loss = F.mse_loss(torch.func.functional_call(net, fast, (x,)), y)
            grads = torch.autograd.grad(loss, list(fast.values()), create_graph=True)
            fast = {name: p - inner_lr * g for (name, p), g in zip(fast.items(), grads)}
        return F.mse_loss(torch.func.functional_call(net, fast, (x2,)), y2)

    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for i in range(8):
        inner_lr = 0.1 if i < 5 else 0.05
        loss = outer_loss(randn(4, 3), randn(4, 1), randn(4, 3), randn(4, 1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses, weights_of(net)


@program
def per_example_clipping_by_vmap(graphed):
    """Differentially private gradients: one gradient an example, clipped, averaged, noise added."""
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).to(D)

    def loss_of(weights, x, y):
        return F.cross_entropy(torch.func.functional_call(net, weights, (x[None],)), y[None])

    each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))

    @graphed
    def clipped(weights, x, y, limit):
        grads = each(weights, x, y)
        norm = torch.stack([g.flatten(1).norm(dim=1) for g in grads.values()]).norm(dim=0)
        factor = (limit / (norm + 1e-6)).clamp(max=1.0)
        return {name: torch.einsum("b,b...->...", factor, g) / len(x) for name, g in grads.items()}

    weights = {name: p.detach() for name, p in net.named_parameters()}
    for i in range(9):
        grads = clipped(weights, randn(5, 3), torch.randint(2, (5,), device=D), 1.0 if i < 6 else 0.3)
        weights = {name: w - 0.2 * grads[name] for name, w in weights.items()}
    return list(weights.values())


@program
def ensemble_by_stacked_state(graphed):
    """Five networks as one, by vmap over stacked weights; one member is reset midway."""
    members = [nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2)).to(D) for _ in range(5)]
    params, buffers = torch.func.stack_module_state(members)
    base = copy.deepcopy(members[0]).to("meta")

    @graphed
    @torch.no_grad()
    def predict(x):
        one = lambda p, b: torch.func.functional_call(base, (p, b), (x,))  # noqa: E731
        said = torch.func.vmap(one)(params, buffers)
        return said.mean(0), said.var(0)

    out = []
    for i in range(9):
        if i == 5:
            with torch.no_grad():
                for p in params.values():
                    p[2].normal_()
        out.append(predict(randn(3, 4)))
    return out


@program
def jacobian_of_a_flow(graphed):
    """The log-determinant of a small map, by jacrev; its strength is an attribute."""

    class Flow:
        def __init__(self):
            self.w, self.strength = randn(3, 3) / 3, 0.5

        def one(self, x):
            return x + self.strength * torch.tanh(self.w @ x)

        def log_det(self, x):
            return torch.func.vmap(lambda each: torch.linalg.slogdet(torch.func.jacrev(self.one)(each))[1])(x)

    flow = Flow()
    run = graphed(flow.log_det)
    out = []
    for i in range(8):
        flow.strength = 0.5 if i < 4 else 0.25
        out.append(run(randn(4, 3)))
    return out


# -- loops of training ---------------------------------------------------------------------------------------------


@program
def accumulation_with_last_partial(graphed):
    """Gradients are summed over three batches; the last batch of an epoch is smaller; the loss is divided."""
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(D)
    opt = torch.optim.SGD(net.parameters(), lr=0.2, momentum=0.9, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.3, total_steps=6)

    @graphed
    def loss_of(x, y):
        return F.cross_entropy(net(x), y, label_smoothing=0.1) / 3

    losses = []
    for i in range(12):
        n = 2 if i % 6 == 5 else 4
        loss = loss_of(randn(n, 4), torch.randint(3, (n,), device=D))
        loss.backward()
        if i % 3 == 2:
            opt.step()
            opt.zero_grad(set_to_none=i > 6)
            schedule.step()
        losses.append(loss.item())
    return losses, weights_of(net), schedule.get_last_lr()


@program
def mixed_precision_with_scaler(graphed):
    """Autocast around the graphed model, a scaler whose scale grows every third step, one overflow."""
    net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 1)).to(D)
    run = graphed(net)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cuda", init_scale=16.0, growth_interval=3)
    scales, losses = [], []
    for i in range(10):
        x = randn(4, 6)
        if i == 5:
            x[0, 0] = math.inf
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = run(x)
        loss = y.float().square().mean()
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        scales.append(scaler.get_scale())
        losses.append(round(loss.item(), 2) if i != 5 else None)
    return scales, losses, weights_of(net)


@program
def optimizer_step_inside(graphed):
    """The whole step is one function: zero, forward, backward, Adam, and a metric on the host."""
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1)).to(D)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)

    @graphed
    def step(x, y):
        opt.zero_grad(set_to_none=True)
        loss = F.mse_loss(net(x), y)
        loss.backward()
        opt.step()
        return loss.detach()

    losses = []
    for i in range(9):
        if i == 6:
            opt.param_groups[0]["lr"] = 1e-3
        losses.append(step(randn(4, 4), randn(4, 1)))
    return losses, weights_of(net), [state["step"] for state in opt.state.values()]


@program
def stochastic_depth_residuals(graphed):
    """Blocks are dropped by Python's random, and samples of a block by a mask of torch's."""
    random.seed(11)

    class Residual(nn.Module):
        def __init__(self, p):
            super().__init__()
            self.body, self.p = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 6)), p

        def forward(self, x):
            if not self.training:
                return x + self.body(x)
            if random.random() < self.p / 2:
                return x
            keep = (torch.rand(len(x), 1, device=x.device) >= self.p / 2).to(x) / (1 - self.p / 2)
            return x + keep * self.body(x)

    net = nn.Sequential(*(Residual(0.2 * i) for i in range(1, 4))).to(D)
    run = graphed(net)
    seen = []
    for i in range(12):
        net.train(i < 9)
        net.zero_grad()
        y = run(randn(4, 6))
        y.square().mean().backward()
        seen.append((y.detach(), [p.grad is not None for p in net.parameters()]))
    return seen


@program
def early_exit_by_confidence(graphed):
    """Heads after each layer; the first that is sure enough answers; exits are counted by layer."""

    class Exits(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
            self.heads = nn.ModuleList(nn.Linear(6, 3) for _ in range(3))
            self.sure, self.left_at = 0.6, []

        def forward(self, x):
            for i, (layer, head) in enumerate(zip(self.layers, self.heads)):  # noqa: B007  it is used after the loop
                x = layer(x).relu()
                p = head(x).softmax(-1)
                if p.max(-1).values.min().item() > self.sure:
                    break
            self.left_at.append(i)
            return p

    net = Exits().to(D).eval()
    run = graphed(net)
    out = []
    with torch.no_grad():
        for i in range(10):
            net.sure = 0.6 if i < 5 else 0.4
            out.append(run(2 * randn(1, 6)))
    return out, net.left_at


@program
def rnn_unrolled_with_teacher_forcing(graphed):
    """A decoder unrolled in Python over a list; its own answers are fed back at random."""
    random.seed(2)
    emb, cell, head = nn.Embedding(7, 6).to(D), nn.LSTMCell(6, 6).to(D), nn.Linear(6, 7).to(D)

    @graphed
    def loss_of(tokens, forced):
        h = c = torch.zeros(tokens.shape[0], 6, device=tokens.device)
        token, loss = tokens[:, 0], 0.0
        for i, use_truth in enumerate(forced, 1):
            h, c = cell(emb(token), (h, c))
            logits = head(h)
            loss = loss + F.cross_entropy(logits, tokens[:, i])
            token = tokens[:, i] if use_truth else logits.argmax(-1)
        return loss / len(forced)

    modules = nn.ModuleList([emb, cell, head])
    opt = torch.optim.SGD(modules.parameters(), lr=0.3)
    losses = []
    for i in range(10):
        n = 3 if i < 6 else 4
        loss = loss_of(torch.randint(7, (2, n + 1), device=D), [random.random() < 0.7 for _ in range(n)])
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    return losses, weights_of(modules)


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


# -- the measurement -----------------------------------------------------------------------------------------------


def run(make):
    """The verdict on one program, how its calls ran, and why not by a graph."""
    torch.manual_seed(0)
    try:
        expected = make(lambda fn: fn)
    except Exception as error:  # noqa: BLE001  outside of what is graphed: the simulator lacks something
        return {"outcome": "raised in eager", "why": f"{type(error).__name__}: {str(error)[:200]}", "reasons": {}}
    made = []

    def graphed(fn):
        call = gfxgraph.graphed(fn)
        made.append(gfxgraph.Graphed.of(call) if isinstance(call, nn.Module) else call)
        return call

    torch.manual_seed(0)
    outcome = why = ""
    try:
        why = bench_users_programs.difference(make(graphed), expected)
        outcome = "wrong" if why else ""
    except Exception as error:  # noqa: BLE001  it is what is counted
        lines = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
        outcome, why = "raised", f"{type(error).__name__}: {str(error)[:300]} at {Path(lines[-1]).name}"
    counts, reasons, n_replays = collections.Counter(), collections.Counter(), 0
    for each in made:
        stats, eager = each.stats(), collections.Counter(each._eager)
        n_replays += stats["replays"]
        counts["by a graph"] += each._n_replays() + each._worlds.n_one_graph
        counts["in pieces"] += sum(stats["pieces"].values())
        counts["warm-up"] += eager.pop("warm-up", 0)
        counts["eager"] += sum(eager.values())
        reasons += collections.Counter(stats["pieces"]) + eager
    others, whole = counts["in pieces"] + counts["eager"], counts["by a graph"]
    is_whole = not others and whole >= counts["warm-up"]
    outcome = outcome or ("whole" if is_whole else "in part" if whole else "in pieces" if n_replays else "eager")
    return {
        "outcome": outcome,
        "why": why,
        **counts,
        "reasons": {each[:200]: n for each, n in reasons.most_common(4)},
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="a part of the names to run")
    parser.add_argument("--platform", default="hip", choices=("hip", "cuda"), help="where there is no GPU")
    options = parser.parse_args()
    if torch.cuda.is_available():
        gfxgraph.enable(allow_cuda=True)
        device = torch.cuda.get_device_name()
    else:
        gfxgraph.enable(simulate=options.platform)
        device = f"simulator ({options.platform})"
    rows = {}
    for name, each in PROGRAMS.items():
        if options.only in name:
            torch._dynamo.reset()  # a program has its process for itself
            print(f"{name} ... ", end="", flush=True)
            rows[name] = run(each)
            print(rows[name]["outcome"], rows[name]["why"] or rows[name]["reasons"] or "", flush=True)
    counted = dict(collections.Counter(row["outcome"] for row in rows.values()))
    print(counted)
    if options.out:
        about = {
            "what": __doc__.splitlines()[0],
            "device": device,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "commit": os.environ.get("BENCH_COMMIT") or subprocess.getoutput("git rev-parse --short HEAD"),
            "command": " ".join(["python", "benchmarks/fresh_programs_fifth.py", "--platform", options.platform]),
            "programs": len(rows),
            "counted": counted,
            "rows": rows,
        }
        options.out.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
