"""Whole scripts of training: adversaries, agents, teachers, loops."""

from __future__ import annotations

import collections
import copy
import math
import random

import torch
import torch.nn.functional as F
from programs.registry import D, program, randn, weights_of
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

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
