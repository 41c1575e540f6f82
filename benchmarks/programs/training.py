"""A step of training a call: losses, optimizers, meters, schedules."""

from __future__ import annotations

import contextlib
import dataclasses
import random

import torch
import torch.nn.functional as F
from programs.registry import N, program, rand, randn
from torch import nn
from torch.utils.checkpoint import checkpoint


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


@program
def checkpointed_blocks():

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
