"""The training loops of public tutorials, on small data: what a newcomer copies and puts ``graphed`` round.

Trainer, Lightning and accelerate have a program each where they are installed.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import io
import math
import random
import tempfile
import warnings

import torch
import torch.nn.functional as F
from programs.registry import D, program, rand, randn, weights_of
from torch import nn
from torch.nn.utils import prune
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset


def program_with(package):
    """The program of ``package``, where it is installed."""
    return program if importlib.util.find_spec(package) else lambda make: make


def dataset(n=20, n_in=8, n_classes=3):
    return TensorDataset(torch.randn(n, n_in), torch.randint(n_classes, (n,)))


@program
def quickstart(graphed):
    """A classifier, its training loop and its test loop; the last batch is a smaller one."""
    loader = DataLoader(dataset(), batch_size=8)
    net = nn.Sequential(nn.Flatten(), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(D)
    model = graphed(net)
    loss_fn, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(model.parameters(), lr=1e-1)
    seen = []
    for _ in range(4):
        model.train()
        for x, y in loader:
            x, y = x.to(D), y.to(D)
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        test_loss, correct = 0.0, 0
        with torch.no_grad():
            for x, y in loader:
                x, y = x.to(D), y.to(D)
                pred = model(x)
                test_loss += loss_fn(pred, y).item()
                correct += (pred.argmax(1) == y).type(torch.float).sum().item()
        seen.append((test_loss, correct))
    return seen, weights_of(net)


@program
def dcgan(graphed):
    """Generator and discriminator of transposed convolutions, labels by ``full`` and ``fill_``, Adam."""

    def init(m):
        if isinstance(m, (nn.Conv2d, nn.ConvTranspose2d)):
            nn.init.normal_(m.weight, 0.0, 0.02)
        elif isinstance(m, nn.BatchNorm2d):
            nn.init.normal_(m.weight, 1.0, 0.02)
            nn.init.zeros_(m.bias)

    gen = nn.Sequential(
        nn.ConvTranspose2d(4, 8, 4, 1, 0, bias=False), nn.BatchNorm2d(8), nn.ReLU(True),
        nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False), nn.Tanh(),
    ).to(D)  # fmt: skip
    dis = nn.Sequential(
        nn.Conv2d(1, 8, 4, 2, 1, bias=False), nn.BatchNorm2d(8), nn.LeakyReLU(0.2, inplace=True),
        nn.Conv2d(8, 1, 4, 1, 0, bias=False), nn.Sigmoid(),
    ).to(D)  # fmt: skip
    net_g, net_d = graphed(gen.apply(init)), graphed(dis.apply(init))
    criterion = nn.BCELoss()
    opt_d = torch.optim.Adam(net_d.parameters(), lr=2e-3, betas=(0.5, 0.999))
    opt_g = torch.optim.Adam(net_g.parameters(), lr=2e-3, betas=(0.5, 0.999))
    history = []
    for _ in range(6):
        net_d.zero_grad()
        real = randn(5, 1, 8, 8).tanh()
        label = torch.full((5,), 1.0, device=D)
        err_real = criterion(net_d(real).view(-1), label)
        err_real.backward()
        fake = net_g(randn(5, 4, 1, 1))
        label.fill_(0.0)
        err_fake = criterion(net_d(fake.detach()).view(-1), label)
        err_fake.backward()
        opt_d.step()
        net_g.zero_grad()
        label.fill_(1.0)
        err_g = criterion(net_d(fake).view(-1), label)
        err_g.backward()
        opt_g.step()
        history.append((err_real.item() + err_fake.item(), err_g.item()))
    with torch.no_grad():
        return history, net_g(torch.ones(2, 4, 1, 1, device=D)), dis[1].running_mean.clone()


@program
def deep_q_learning(graphed):
    """Policy and target network, a replay memory, epsilon greedy, soft updates by ``load_state_dict``."""
    make = lambda: nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2)).to(D)  # noqa: E731
    policy, target = make(), make()
    target.load_state_dict(policy.state_dict())
    policy_run, target_run = graphed(policy), graphed(target)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2, amsgrad=True)
    memory, rng, state, losses = [], random.Random(0), randn(1, 4), []
    for t in range(30):
        if rng.random() > 0.9 * math.exp(-t / 10):
            with torch.no_grad():
                action = policy_run(state).max(1).indices.view(1, 1)
        else:
            action = torch.tensor([[rng.randrange(2)]], device=D)
        after = None if t % 7 == 6 else (state * 0.9 + (action - 0.5) * 0.3)
        memory.append((state, action, after, torch.tensor([1.0 if after is not None else -1.0], device=D)))
        state = randn(1, 4) if after is None else after
        if len(memory) < 8:
            continue
        states, actions, afters, rewards = zip(*rng.sample(memory, 8))
        alive = torch.tensor([s is not None for s in afters], device=D)
        values = policy_run(torch.cat(states)).gather(1, torch.cat(actions))
        following = torch.zeros(8, device=D)
        with torch.no_grad():
            following[alive] = target_run(torch.cat([s for s in afters if s is not None])).max(1).values
        loss = F.smooth_l1_loss(values, (following * 0.9 + torch.cat(rewards)).unsqueeze(1))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(policy.parameters(), 100)
        optimizer.step()
        theirs, mine = target.state_dict(), policy.state_dict()
        for key in mine:
            theirs[key] = mine[key] * 0.05 + theirs[key] * 0.95
        target.load_state_dict(theirs)
        losses.append(loss.item())
    return losses, weights_of(policy, target)


@program
def names_by_letters(graphed):
    """A recurrent cell by hand, a call a letter, names of many lengths, weights changed by ``p.data.add_``."""

    class Cell(nn.Module):
        def __init__(self, n_in, n_hidden, n_out):
            super().__init__()
            self.i2h, self.h2h = nn.Linear(n_in, n_hidden), nn.Linear(n_hidden, n_hidden)
            self.h2o, self.softmax = nn.Linear(n_hidden, n_out), nn.LogSoftmax(dim=1)

        def forward(self, letter, hidden):
            hidden = torch.tanh(self.i2h(letter) + self.h2h(hidden))
            return self.softmax(self.h2o(hidden)), hidden

    cell = Cell(6, 8, 3).to(D)
    rnn, losses = graphed(cell), []
    for i in range(8):
        line, label = F.one_hot(torch.randint(6, (3 + i % 4, 1)), 6).float().to(D), torch.tensor([i % 3], device=D)
        hidden = torch.zeros(1, 8, device=D)
        cell.zero_grad()
        for letter in line:
            output, hidden = rnn(letter, hidden)
        loss = F.nll_loss(output, label)
        loss.backward()
        for p in cell.parameters():
            p.data.add_(p.grad.data, alpha=-0.05)
        losses.append(loss.item())
    return losses, weights_of(cell)


@program
def translation_with_attention(graphed):
    """Encoder and decoder of GRUs with Bahdanau's attention, teacher forcing drawn for each batch, then greedy."""

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.gru = nn.Embedding(12, 8), nn.GRU(8, 8, batch_first=True)
            self.dropout = nn.Dropout(0.0)

        def forward(self, x):
            return self.gru(self.dropout(self.embedding(x)))

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.gru, self.out = (
                nn.Embedding(12, 8),
                nn.GRU(16, 8, batch_first=True),
                nn.Linear(8, 12),
            )
            self.Wa, self.Ua, self.Va = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)

        def forward(self, encoded, hidden, target=None):
            token, outputs = torch.zeros(encoded.size(0), 1, dtype=torch.long, device=encoded.device), []
            for i in range(4):
                query = hidden.permute(1, 0, 2)
                weights = F.softmax(
                    self.Va(torch.tanh(self.Wa(query) + self.Ua(encoded))).squeeze(2).unsqueeze(1), -1
                )
                x = torch.cat((self.embedding(token), torch.bmm(weights, encoded)), dim=2)
                x, hidden = self.gru(x, hidden)
                outputs.append(self.out(x))
                token = (
                    target[:, i].unsqueeze(1) if target is not None else outputs[-1].topk(1)[1].squeeze(-1).detach()
                )
            return F.log_softmax(torch.cat(outputs, dim=1), dim=-1), hidden

    encoder, decoder = Encoder().to(D), Decoder().to(D)
    encode, decode = graphed(encoder), graphed(decoder)
    opts = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (encoder, decoder)]
    rng, losses = random.Random(1), []
    for _ in range(8):
        source, target = torch.randint(12, (4, 5), device=D), torch.randint(12, (4, 4), device=D)
        [opt.zero_grad() for opt in opts]
        encoded, hidden = encode(source)
        result, _ = decode(encoded, hidden, target if rng.random() < 0.5 else None)
        loss = F.nll_loss(result.view(-1, 12), target.view(-1))
        loss.backward()
        [opt.step() for opt in opts]
        losses.append(loss.item())
    with torch.no_grad():
        return losses, decode(*encode(torch.arange(5, device=D).unsqueeze(0)))[0].argmax(-1)


@program
def transfer_learning(graphed):
    """A frozen trunk with batch norms, a new head, StepLR, phases; the best weights are loaded at the end."""
    trunk = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    net = nn.Sequential(trunk, nn.Linear(4, 5)).to(D)
    for p in trunk.parameters():
        p.requires_grad = False
    net[1] = nn.Linear(4, 2).to(D)
    model = graphed(net)
    optimizer = torch.optim.SGD(net[1].parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.1)
    data = [(randn(4, 3, 6, 6), torch.randint(2, (4,), device=D)) for _ in range(3)]
    best, best_acc, seen = copy.deepcopy(net.state_dict()), -1.0, []
    for epoch in range(4):
        for phase in ("train", "val"):
            model.train(phase == "train")
            n_right = 0
            for x, y in data:
                optimizer.zero_grad()
                with torch.set_grad_enabled(phase == "train"):
                    outputs = model(x)
                    loss = F.cross_entropy(outputs, y)
                    if phase == "train":
                        loss.backward()
                        optimizer.step()
                n_right += torch.sum(outputs.max(1)[1] == y.data).item()
                seen.append(loss.item())
            if phase == "train":
                scheduler.step()
            elif n_right > best_acc:
                best_acc, best = n_right, copy.deepcopy(net.state_dict())
        if epoch == 2:
            for p in trunk.parameters():  # the whole net is trained from here on
                p.requires_grad = True
    net.load_state_dict(best)
    with torch.no_grad():
        return seen, best_acc, model(data[0][0])


@program
def mixed_precision_with_accumulation(graphed):
    """The recipe: autocast, GradScaler, two micro-batches a step, unscale before the clip; a rest at the end."""
    net = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 3)).to(D)
    model, scaler = graphed(net), torch.amp.GradScaler(D, init_scale=64.0, growth_interval=3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    losses = []
    for i in range(11):
        x, y = randn(4, 8), torch.randint(3, (4,), device=D)
        with torch.autocast(device_type=D, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y) / 2
        scaler.scale(loss).backward()
        if i % 2 == 1 or i == 10:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
        losses.append(round(loss.item(), 2))
    return losses, scaler.get_scale()


@program
def averaged_weights(graphed):
    """Stochastic weight averaging with an own rate, an EMA beside it, and ``update_bn`` at the end."""
    from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

    net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 2)).to(D)
    model = graphed(net)
    swa, ema = AveragedModel(net), AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    schedule, swa_schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5), SWALR(optimizer, swa_lr=0.05)
    data = [(randn(5, 6), torch.randint(2, (5,), device=D)) for _ in range(3)]
    for epoch in range(6):
        for x, y in data:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            ema.update_parameters(net)
        if epoch > 2:
            swa.update_parameters(net)
            swa_schedule.step()
        else:
            schedule.step()
    update_bn(data, swa)
    averaged = graphed(swa.eval())
    with torch.no_grad():
        return [averaged(x) for x, _ in data * 2], ema.eval()(data[0][0]), weights_of(net)


@program
def small_gpt(graphed):
    """Micro-steps, rates by cosine, decay for matrices alone, losses estimated in eval, a checkpoint resumed."""

    class Block(nn.Module):
        def __init__(self, n=16, n_heads=2):
            super().__init__()
            self.ln_1, self.ln_2, self.n_heads = nn.LayerNorm(n), nn.LayerNorm(n), n_heads
            self.qkv, self.proj = nn.Linear(n, 3 * n), nn.Linear(n, n)
            self.mlp = nn.Sequential(nn.Linear(n, 4 * n), nn.GELU(), nn.Linear(4 * n, n))

        def forward(self, x):
            b, t, c = x.size()
            q, k, v = (p.view(b, t, self.n_heads, -1).transpose(1, 2) for p in self.qkv(self.ln_1(x)).split(c, dim=2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(y.transpose(1, 2).contiguous().view(b, t, c))
            return x + self.mlp(self.ln_2(x))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe, self.h = nn.Embedding(20, 16), nn.Embedding(8, 16), nn.ModuleList([Block(), Block()])
            self.ln_f, self.lm_head = nn.LayerNorm(16), nn.Linear(16, 20, bias=False)
            self.wte.weight = self.lm_head.weight

        def forward(self, idx, targets=None):
            x = self.wte(idx) + self.wpe(torch.arange(idx.size(1), device=idx.device))
            for block in self.h:
                x = block(x)
            logits = self.lm_head(self.ln_f(x if targets is not None else x[:, [-1]]))
            loss = None if targets is None else F.cross_entropy(logits.view(-1, 20), targets.view(-1))
            return logits, loss

    def optimizer_of(net):
        params = [p for p in net.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in params if p.dim() >= 2], "weight_decay": 0.1},
            {"params": [p for p in params if p.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))

    def batch():
        data = torch.randint(20, (3, 9), device=D)
        return data[:, :-1], data[:, 1:].contiguous()

    net = GPT().to(D)
    model, optimizer, seen, saved = graphed(net), optimizer_of(net), [], None
    for it in range(10):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (it + 1) / 3 if it < 2 else 1e-3 + 0.5 * (1 + math.cos(math.pi * it / 10)) * 9e-3
        if it % 4 == 0:
            model.eval()
            with torch.no_grad():
                seen.append(torch.tensor([model(*batch())[1].item() for _ in range(2)]).mean().item())
            model.train()
        for _ in range(2):
            loss = model(*batch())[1] / 2
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seen.append(loss.item())
        if it == 5:
            saved = io.BytesIO()
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, saved)
        if it == 7:  # the run is resumed from its checkpoint
            saved.seek(0)
            state = torch.load(saved)
            net = GPT().to(D)
            net.load_state_dict(state["model"])
            model, optimizer = graphed(net), optimizer_of(net)
            optimizer.load_state_dict(state["optimizer"])
    model.eval()
    idx = torch.zeros(1, 1, dtype=torch.long, device=D)
    with torch.no_grad():
        for _ in range(6):
            idx = torch.cat((idx, model(idx[:, -8:])[0][:, -1].argmax(-1, keepdim=True)), dim=1)
    return seen, idx


@program
def variational_autoencoder(graphed):
    """``randn_like`` inside the forward, a loss of sums, samples between the epochs."""

    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1, self.mu, self.logvar = nn.Linear(12, 8), nn.Linear(8, 2), nn.Linear(8, 2)
            self.fc3, self.fc4 = nn.Linear(2, 8), nn.Linear(8, 12)

        def decode(self, z):
            return torch.sigmoid(self.fc4(F.relu(self.fc3(z))))

        def forward(self, x):
            h = F.relu(self.fc1(x.view(-1, 12)))
            mu, logvar = self.mu(h), self.logvar(h)
            z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
            return self.decode(z), mu, logvar

    net = VAE().to(D)
    model, optimizer, seen = graphed(net), torch.optim.Adam(net.parameters(), lr=1e-2), []
    for _ in range(3):
        for n in (4, 4, 3):
            x = rand(n, 3, 4)
            optimizer.zero_grad()
            recon, mu, logvar = model(x)
            loss = F.binary_cross_entropy(recon, x.view(-1, 12), reduction="sum")
            loss = loss - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
            loss.backward()
            optimizer.step()
            seen.append(loss.item())
        with torch.no_grad():
            seen.append(net.decode(torch.ones(2, 2, device=D)).clone())
    return seen


@program
def pruned_and_fine_tuned(graphed):
    """The pruning tutorial: masks put on, weights trained under them, pruned again, made permanent."""
    net = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 2)).to(D)
    model, optimizer, seen = graphed(net), torch.optim.SGD(net.parameters(), lr=0.1), []

    def train():
        for _ in range(5):
            optimizer.zero_grad()
            loss = F.mse_loss(model(randn(4, 6)), torch.ones(4, 2, device=D))
            loss.backward()
            optimizer.step()
            seen.append(loss.item())

    train()
    prune.l1_unstructured(net[0], "weight", amount=0.3)
    prune.random_unstructured(net[2], "bias", amount=1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    train()
    prune.ln_structured(net[0], "weight", amount=0.2, n=2, dim=0)
    train()
    prune.remove(net[0], "weight")
    with torch.no_grad():
        return seen, model(torch.ones(3, 6, device=D)), (net[0].weight == 0).sum().item()


@program
def lora_with_checkpointing(graphed):
    """Adapters put round the linear layers of a frozen net, blocks recomputed in the backward, merged at the end."""

    class LoRA(nn.Module):
        def __init__(self, base, r=2, alpha=4.0):
            super().__init__()
            self.base, self.scale = base.requires_grad_(False), alpha / r
            self.a = nn.Parameter(torch.randn(r, base.in_features, device=D) * 0.1)
            self.b = nn.Parameter(torch.zeros(base.out_features, r, device=D))

        def forward(self, x):
            return self.base(x) + (x @ self.a.T @ self.b.T) * self.scale

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(
                nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Dropout(0.0), nn.Linear(12, 6)) for _ in range(2)
            )
            self.head = nn.Linear(6, 2)

        def forward(self, x):
            for block in self.blocks:
                x = x + (checkpoint(block, x, use_reentrant=False) if self.training else block(x))
            return self.head(x)

    net = Net().to(D)
    for block in net.blocks:
        block[0], block[3] = LoRA(block[0]), LoRA(block[3])
    model = graphed(net)
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=2e-2)
    seen = []
    for i in range(8):
        loss = F.cross_entropy(model(randn(5, 6)), torch.randint(2, (5,), device=D))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
        if i == 4:
            model.eval()
            with torch.no_grad():
                seen.append(model(torch.ones(2, 6, device=D)))
            model.train()
    model.eval()
    probe = torch.ones(2, 6, device=D)
    with torch.no_grad():
        before = model(probe)
        for block in net.blocks:
            for i in (0, 3):
                block[i].base.weight += block[i].b @ block[i].a * block[i].scale
                block[i] = block[i].base
        return seen, before, model(probe)


@program
def fast_gradient_sign(graphed):
    """The gradient of the input, perturbed examples, one accuracy per epsilon."""
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(D).eval()
    model, seen = graphed(net), []
    for epsilon in (0.0, 0.1, 0.3):
        n_right = 0
        for x, target in DataLoader(dataset(6), batch_size=1):
            x, target = x.to(D), target.to(D)
            x.requires_grad = True
            output = model(x)
            first = output.max(1, keepdim=True)[1]
            loss = F.cross_entropy(output, target)
            net.zero_grad()
            loss.backward()
            again = model(x + epsilon * x.grad.sign())
            n_right += (again.max(1, keepdim=True)[1] == first).sum().item()
            seen.append(x.grad.clone())
        seen.append(n_right)
    return seen


@program
def language_model_of_encoder_layers(graphed):
    """A TransformerEncoder under a square mask, batches cut from a stream of text, clipped, rate by plateau."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0)
            self.embedding, self.encoder = nn.Embedding(20, 8), nn.TransformerEncoder(layer, 2)
            self.register_buffer("pe", torch.sin(torch.arange(16).unsqueeze(1) / torch.arange(1, 9)).unsqueeze(1))
            self.linear = nn.Linear(8, 20)

        def forward(self, src):
            mask = nn.Transformer.generate_square_subsequent_mask(len(src)).to(src.device)
            x = self.embedding(src) * math.sqrt(8)
            return self.linear(self.encoder(x + self.pe[: x.size(0)], mask))

    net = Model().to(D)
    model, text, seen = graphed(net), torch.randint(20, (31, 2), device=D), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    for _ in range(3):
        model.train()
        total = 0.0
        for i in range(0, 30, 7):  # the last one is shorter
            n = min(7, 30 - i)
            loss = F.cross_entropy(model(text[i : i + n]).view(-1, 20), text[i + 1 : i + 1 + n].reshape(-1))
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            total += n * loss.item()
        schedule.step(total)
        model.eval()
        with torch.no_grad():
            seen.append((total, model(text[:7])[-1].clone()))
    return seen


@program_with("accelerate")
def trainer_with_dynamic_padding(graphed):
    """Hugging Face's Trainer on a small BERT; the collator pads to the longest of a batch, it evaluates an epoch."""
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    rows = [{"input_ids": torch.randint(50, (3 + i % 5,)).tolist(), "labels": i % 2} for i in range(12)]

    def collate(batch):
        n = max(len(row["input_ids"]) for row in batch)
        ids = torch.tensor([row["input_ids"] + [0] * (n - len(row["input_ids"])) for row in batch])
        return {
            "input_ids": ids,
            "attention_mask": (ids != 0).long(),
            "labels": torch.tensor([row["labels"] for row in batch]),
        }

    net = BertForSequenceClassification(config).to(D)
    model = graphed(net)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = {"per_device_train_batch_size": 4, "num_train_epochs": 3, "learning_rate": 1e-3, "logging_steps": 1}
        given |= {"save_strategy": "no", "report_to": [], "disable_tqdm": True, "eval_strategy": "epoch"}
        arguments = TrainingArguments(output_dir=folder, **given)
        trainer = Trainer(model, arguments, collate, train_dataset=rows, eval_dataset=rows[:6])
        trainer.log = lambda *args, **kwargs: None
        trained = trainer.train().training_loss
        return trained, trainer.evaluate()["eval_loss"], weights_of(net)[-1]


@program_with("lightning")
def lightning_module(graphed):
    """A LightningModule whose network is graphed; the Trainer clips, accumulates and validates."""
    import lightning

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(D)
            self.net, self.seen = graphed(net), []

        def training_step(self, batch, i):
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            self.seen.append(loss.item())
            return loss

        def validation_step(self, batch, i):
            self.seen.append(F.cross_entropy(self.net(batch[0]), batch[1]).item())

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=1e-2)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]

    model, loader = Lit(), DataLoader(dataset(), batch_size=4)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=2, accelerator="gpu", devices=1, accumulate_grad_batches=2, gradient_clip_val=0.5,
            num_sanity_val_steps=0, enable_model_summary=False, default_root_dir=folder, **quiet,
        )  # fmt: skip
        trainer.fit(model, loader, loader)
    return model.seen, weights_of(model)


@program_with("accelerate")
def accelerate_loop(graphed):
    """accelerate's loop: ``prepare``, ``accumulate``, ``backward``, a clip at each step."""
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=2)
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).to(D)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: 1 / (1 + i))
    model, optimizer, loader, schedule = accelerator.prepare(
        graphed(net), optimizer, DataLoader(dataset(), batch_size=4), schedule
    )
    seen = []
    for _ in range(3):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(x.to(D)), y.to(D))
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                seen.append(loss.item())
    return seen, weights_of(net)


@program
def whole_step_in_one_function(graphed):
    """Forward, loss, backward and the optimizer in one function, its gradients set to zero inside; two rates."""
    net = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 2)).to(D)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    loss_of = functools.partial(F.huber_loss, delta=0.5)

    def train_step(x, y):
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    step, seen = graphed(train_step), []
    for i in range(10):
        if i == 6:
            optimizer.param_groups[0]["lr"] = 0.01
        seen.append(step(randn(4, 6), randn(4, 2)).item())
    return seen, weights_of(net)
