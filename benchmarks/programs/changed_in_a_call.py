"""Python's own means, many of which a call itself changes at some call of twelve.

Those are eager, or in pieces, for longer than programs that are changed from outside.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import math
import random
import types
import weakref

import torch
import torch.nn.functional as F
from programs.registry import N, program, randn
from torch import nn


@program
def logits_processors_in_a_list():
    class Temp:
        def __init__(self, t):
            self.t = t

        def __call__(self, ids, x):
            return x / self.t

    class TopK:
        def __init__(self, k):
            self.k = k

        def __call__(self, ids, x):
            kth = x.topk(self.k).values[..., -1:]
            return x.masked_fill(x < kth, -math.inf)

    class Ban:
        def __init__(self, bad):
            self.bad = torch.tensor(bad, device="cuda")

        def __call__(self, ids, x):
            return x.index_fill(-1, self.bad, -1e9)

    chain = [Temp(0.7), Ban([1, 3])]

    def run(ids, x, step):
        if step == 6:
            chain.append(TopK(4))
        for each in chain:
            x = each(ids, x)
        return x.softmax(-1)

    return run, [(torch.zeros(2, dtype=torch.long, device="cuda"), randn(2, 12), i) for i in range(N)]


@program
def scheduler_objects_with_property():
    class Sched:
        def __init__(self):
            self.i = 0
            self.table = torch.linspace(1, 0.1, 20).tolist()

        @property
        def sigma(self):
            return self.table[self.i]

        def step(self):
            self.i += 1

    s = Sched()

    def denoise(x):
        out = x * s.sigma
        s.step()
        return out

    return denoise, [(randn(4),) for _ in range(N)]


@program
def kv_cache_list_of_tensors():
    past = []

    def attend(q, k, v):
        past.append((k, v))
        ks, vs = torch.stack([p[0] for p in past[-4:]]), torch.stack([p[1] for p in past[-4:]])
        return (q @ ks.t()).softmax(-1) @ vs

    return attend, [(randn(8), randn(8), randn(8)) for _ in range(N)]


@program
def defaultdict_of_counts():
    seen = collections.defaultdict(int)

    def f(x, name):
        seen[name] += 1
        return x * seen[name]

    return f, [(randn(3), "ab"[i % 2]) for i in range(N)], lambda: [seen["a"], seen["b"]]


@program
def enum_modes():
    class Mode(enum.Enum):
        FAST = "fast"
        SLOW = "slow"

    def f(x, mode):
        if mode is Mode.FAST:
            return x.relu()
        return x.sigmoid()

    return f, [(randn(5), (Mode.FAST, Mode.SLOW)[i // 3 % 2]) for i in range(N)]


@program
def namedtuple_state():
    State = collections.namedtuple("State", "mean var n")

    def f(state, x):
        n = state.n + 1
        mean = state.mean + (x - state.mean) / n
        return State(mean, state.var + (x - state.mean) * (x - mean), n)

    return f, [
        (State(torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda"), float(i)), randn(3)) for i in range(N)
    ]


@program
def cached_mask_by_lru():
    @functools.lru_cache(None)
    def mask(n):
        return torch.ones(n, n, device="cuda").tril().bool()

    def f(x):
        return x.masked_fill(~mask(x.shape[-1]), -1e9).softmax(-1)

    return f, [(randn(2, (4, 6)[i % 2], (4, 6)[i % 2]),) for i in range(N)]


@program
def running_max_on_self():
    class R(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("peak", torch.zeros(()))

        def forward(self, x):
            self.peak = torch.maximum(self.peak, x.abs().max())
            return x / self.peak.clamp(min=1e-6)

    m = R().cuda()
    return m, [(randn(6),) for _ in range(N)], lambda: [m.peak]


@program
def swapaxes_and_strides():
    def f(x):
        y = x.transpose(0, 1)
        return y, y.contiguous(), y[:, ::2]

    return f, [(randn(4, 6),) for _ in range(N)]


@program
def global_flag_toggle():
    ns = {"scale": 1.0, "debug": False}

    def f(x, i):
        if i == 5:
            ns["debug"] = True
        y = x * ns["scale"]
        if ns["debug"]:
            y = y.clamp(-1, 1)
        return y

    return f, [(randn(4), i) for i in range(N)]


@program
def gradient_penalty():
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).cuda()

    def f(x):
        x = x.detach().requires_grad_(True)
        y = net(x).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        p = ((g.norm(dim=1) - 1) ** 2).mean()
        for q in net.parameters():
            q.grad = None
        p.backward()
        return p.detach(), net[0].weight.grad.clone()

    return f, [(randn(3, 4),) for _ in range(N)]


@program
def early_exit_layers():
    layers = nn.ModuleList([nn.Linear(6, 6) for _ in range(4)]).cuda()

    def f(x, depth):
        for i, layer in enumerate(layers):
            if i >= depth:
                break
            x = layer(x).relu()
        return x

    return f, [(randn(2, 6), 1 + i % 4) for i in range(N)]


@program
def python_deque_window():
    window = collections.deque(maxlen=3)

    def f(x):
        window.append(x.mean())
        return torch.stack(list(window)).mean()

    return f, [(randn(5),) for _ in range(N)]


@program
def dict_of_caches_by_user():
    caches = {}

    def f(user, x):
        h = caches.get(user)
        h = x if h is None else 0.5 * h + x
        caches[user] = h
        return h * 2

    return f, [(("a", "b")[i % 2], randn(4)) for i in range(N)]


@program
def tensor_or_float_arg():
    def f(x, scale):
        return x * scale + 1

    return f, [(randn(3), (2.0, torch.tensor(3.0, device="cuda"), 2.5)[i % 3]) for i in range(N)]


@program
def optional_mask():
    def f(q, mask=None):
        s = q @ q.t()
        if mask is not None:
            s = s + mask
        return s.softmax(-1)

    return f, [((randn(4, 4),) if i % 2 else (randn(4, 4), randn(4, 4))) for i in range(N)]


@program
def quantile_clip():
    def f(x):
        lo, hi = torch.quantile(x, torch.tensor([0.1, 0.9], device="cuda"))
        return x.clamp(lo, hi)

    return f, [(randn(20),) for _ in range(N)]


@program
def numpy_schedule():
    import numpy as np

    betas = np.linspace(0.1, 0.9, 20)

    def f(x, t):
        return x * float(betas[t]) + np.sqrt(1 - betas[t] ** 2)

    return f, [(randn(4), i) for i in range(N)]


@program
def list_arg_lengths():
    def f(xs):
        return torch.cat([x.sum(0, keepdim=True) for x in xs])

    return f, [([randn(3, 2) for _ in range(1 + i % 3)],) for i in range(N)]


@program
def scatter_to_slots():
    slots = torch.zeros(8, 3, device="cuda")

    def f(ids, x):
        slots[ids] = x
        return slots.sum(0)

    return f, [(torch.randint(0, 8, (4,), device="cuda"), randn(4, 3)) for _ in range(N)], lambda: [slots]


@program
def counter_on_class():
    class C:
        n = 0

        @classmethod
        def tick(cls):
            cls.n += 1
            return cls.n

    def f(x):
        return x + C.tick()

    return f, [(randn(2),) for _ in range(N)], lambda: [C.n]


@program
def generator_function():
    def parts(x):
        for i in range(3):
            yield x[i] * (i + 1)

    def f(x):
        return sum(parts(x))

    return f, [(randn(3, 4),) for _ in range(N)]


@program
def context_manager_of_user():
    depth = [0]

    @contextlib.contextmanager
    def deeper():
        depth[0] += 1
        try:
            yield depth[0]
        finally:
            depth[0] -= 1

    def f(x):
        with deeper() as a, deeper() as b:
            return x * a + b

    return f, [(randn(3),) for _ in range(N)], lambda: list(depth)


@program
def try_except_shape():
    def f(x, y):
        try:
            return x @ y
        except RuntimeError:
            return x.sum() * y.sum()

    return f, [(randn(3, 4), randn((4, 5)[i % 2], 2)) for i in range(N)]


@program
def in_place_on_argument_list():
    def f(xs):
        for x in xs:
            x.mul_(0.5)
        return xs

    return f, [([randn(3), randn(4)],) for _ in range(N)]


@program
def returns_python_numbers():
    def f(x, i):
        return x * i, i * 2, f"step {i}"

    return f, [(randn(3), i) for i in range(N)]


@program
def sorted_by_item():
    def f(x):
        order = sorted(range(3), key=lambda i: x[i].item())
        return x[order[0]] * 2, order[0]

    return f, [(randn(3),) for _ in range(N)]


@program
def dataclass_config_replaced():
    @dataclasses.dataclass(frozen=True)
    class Cfg:
        gain: float = 1.0
        act: str = "relu"

    holder = {"cfg": Cfg()}

    def f(x, i):
        if i == 4:
            holder["cfg"] = dataclasses.replace(holder["cfg"], gain=2.0)
        if i == 8:
            holder["cfg"] = dataclasses.replace(holder["cfg"], act="tanh")
        c = holder["cfg"]
        return getattr(torch, c.act)(x) * c.gain

    return f, [(randn(3), i) for i in range(N)]


@program
def parametrized_weight():
    lin = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)).cuda()

    def f(x, i):
        if i == 5:
            with torch.no_grad():
                lin.bias.add_(1)
        return lin(x)

    return f, [(randn(2, 4), i) for i in range(N)]


@program
def lstm_stateful():
    rnn = nn.LSTM(4, 5, batch_first=True).cuda()
    state = [None]

    def f(x):
        y, s = rnn(x, state[0])
        state[0] = tuple(t.detach() for t in s)
        return y

    return f, [(randn(2, 3, 4),) for _ in range(N)]


@program
def sgd_momentum_optimizer():
    w = nn.Parameter(randn(4))
    opt = torch.optim.SGD([w], lr=0.1, momentum=0.9)

    def f(x):
        opt.zero_grad()
        loss = ((w - x) ** 2).sum()
        loss.backward()
        opt.step()
        return loss.detach()

    return f, [(randn(4),) for _ in range(N)], lambda: [w.detach()]


@program
def lr_scheduler_steps():
    w = nn.Parameter(randn(4))
    opt = torch.optim.SGD([w], lr=0.1)
    sched = torch.optim.lr_scheduler.StepLR(opt, 3, 0.5)

    def f(x):
        opt.zero_grad()
        loss = ((w - x) ** 2).sum()
        loss.backward()
        opt.step()
        sched.step()
        return loss.detach()

    return f, [(randn(4),) for _ in range(N)], lambda: [w.detach(), sched.get_last_lr()[0]]


@program
def weight_swap_state_dict():
    m = nn.Linear(3, 3).cuda()
    other = {k: randn(*v.shape) for k, v in m.state_dict().items()}

    def f(x, i):
        if i == 6:
            m.load_state_dict(other)
        return m(x)

    return f, [(randn(2, 3), i) for i in range(N)]


@program
def closure_nonlocal_alpha():
    alpha = 1.0

    def f(x):
        nonlocal alpha
        alpha *= 0.9
        return x * alpha

    return f, [(randn(3),) for _ in range(N)], lambda: [alpha]


@program
def complex_fft_filter():
    def f(x, cut):
        s = torch.fft.rfft(x)
        s[..., cut:] = 0
        return torch.fft.irfft(s, n=x.shape[-1])

    return f, [(randn(2, 16), 3 + i // 4) for i in range(N)]


@program
def bool_mask_compaction():
    def f(x):
        keep = x > 0
        return x[keep].sum(), keep.sum()

    return f, [(randn(10),) for _ in range(N)]


@program
def zip_weights_lerp():
    a, b = nn.Linear(3, 3).cuda(), nn.Linear(3, 3).cuda()

    def f(x, i):
        with torch.no_grad():
            for p, q in zip(a.parameters(), b.parameters()):
                q.lerp_(p, 0.1 if i < 6 else 0.2)
        return b(x)

    return f, [(randn(2, 3), i) for i in range(N)], lambda: [b.weight.detach()]


@program
def string_keyed_ops():
    ops = {"add": torch.add, "mul": torch.mul}

    def f(x, y, name):
        return ops[name](x, y)

    return f, [(randn(3), randn(3), ("add", "mul")[i % 2]) for i in range(N)]


@program
def set_of_done():
    done = set()

    def f(x, i):
        if i % 3 == 2:
            done.add(i)
        return x * len(done)

    return f, [(randn(3), i) for i in range(N)], lambda: [len(done)]


@program
def time_embedding_int():
    def f(x, t):
        half = 4
        freq = torch.exp(-math.log(10000) * torch.arange(half, device=x.device) / half)
        e = torch.cat([(t * freq).sin(), (t * freq).cos()])
        return x + e

    return f, [(randn(8), i * 10) for i in range(N)]


@program
def autocast_inside():
    lin = nn.Linear(6, 6).cuda()

    def f(x, i):
        with torch.autocast("cuda", torch.bfloat16, enabled=i % 4 < 2):
            return lin(x).float()

    return f, [(randn(2, 6), i) for i in range(N)]


@program
def train_eval_toggle():
    m = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).cuda()

    def f(x, i):
        m.train(i % 6 < 3)
        return m(x).detach()

    return f, [(randn(5, 4), i) for i in range(N)], lambda: [m[1].running_mean, m[1].num_batches_tracked]


@program
def hook_added_later():
    m = nn.Linear(4, 4).cuda()

    def f(x, i):
        if i == 4:
            m.register_forward_hook(lambda mod, a, out: out * 2)
        return m(x)

    return f, [(randn(3, 4), i) for i in range(N)]


@program
def parameter_frozen_and_grads():
    m = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)).cuda()

    def f(x, i):
        if i == 5:
            m[0].requires_grad_(False)
        m.zero_grad()
        m(x).sum().backward()
        g = m[0].weight.grad
        return m[1].weight.grad.clone(), g is None, None if g is None else g.clone()

    return f, [(randn(3, 4), i) for i in range(N)]


@program
def partial_of_method():
    class A:
        def __init__(self):
            self.w = randn(4)
            self.k = 2

        def go(self, x, *, gain):
            return x * self.w * gain**self.k

    a = A()
    f = functools.partial(a.go, gain=1.5)

    def g(x, i):
        if i == 6:
            a.k = 3
        return f(x)

    return g, [(randn(4), i) for i in range(N)]


@program
def deep_copy_of_module():
    m = nn.Linear(4, 4).cuda()

    def f(x, i):
        c = copy.deepcopy(m) if i % 3 == 0 else m
        return c(x)

    return f, [(randn(2, 4), i) for i in range(N)]


@program
def views_written_through():
    base = torch.zeros(4, 4, device="cuda")
    row = base[1]

    def f(x):
        row.add_(x)
        return base.sum(0), row

    return f, [(randn(4),) for _ in range(N)], lambda: [base]


@program
def same_tensor_twice():
    def f(a, b):
        a = a * 2
        return a + b, a is b

    xs = [randn(4) for _ in range(N)]
    return f, [(x, x if i % 2 else randn(4)) for i, x in enumerate(xs)]


@program
def overlapping_views_in_place():
    buf = torch.zeros(10, device="cuda")

    def f(x, i):
        v = buf[i % 3 : i % 3 + 4]
        v += x
        return buf.clone()

    return f, [(randn(4), i) for i in range(N)], lambda: [buf]


@program
def dtype_switch():
    m = nn.Linear(4, 4).cuda()

    def f(x, i):
        if i == 5:
            m.double()
        return m(x.to(m.weight.dtype))

    return f, [(randn(2, 4), i) for i in range(N)]


@program
def monkeypatched_forward():
    m = nn.Linear(4, 4).cuda()

    def f(x, i):
        if i == 4:
            m.forward = lambda x: x * 3
        return m(x)

    return f, [(randn(2, 4), i) for i in range(N)]


@program
def descriptor_and_slots():
    class P:
        __slots__ = ("w", "n")

        def __init__(self):
            self.w = randn(4)
            self.n = 0

        @property
        def scaled(self):
            return self.w * self.n

        def go(self, x):
            self.n = (self.n + 1) % 3
            return x + self.scaled

    return P().go, [(randn(4),) for _ in range(N)]


@program
def dict_subclass_config():
    class Cfg(dict):
        __getattr__ = dict.__getitem__
        __setattr__ = dict.__setitem__

    cfg = Cfg(alpha=0.5, on=True)

    def f(x, i):
        if i == 4:
            cfg.alpha = 0.25
        if i == 8:
            cfg.on = False
        return x * cfg.alpha if cfg.on else x

    return f, [(randn(3), i) for i in range(N)]


@program
def recursion_over_tree():
    def f(tree):
        if isinstance(tree, dict):
            return sum(f(v) for v in tree.values())
        if isinstance(tree, (list, tuple)):
            return sum(map(f, tree))
        return tree.sum()

    return f, [({"a": [randn(2), randn(3)], "b": (randn(1), {"c": randn(4)})},) for _ in range(N)]


@program
def output_aliases_input():
    def f(x, y):
        return x, y.view(-1), x[1:], y.t()

    return f, [(randn(4), randn(2, 3)) for _ in range(N)]


@program
def write_input_and_return_it():
    def f(x):
        x.clamp_(min=0)
        x[0] = 7
        return x

    return f, [(randn(5),) for _ in range(N)]


@program
def randomness_seeded_inside():
    def f(x, i):
        if i % 4 == 0:
            torch.manual_seed(i)
        return x + torch.rand_like(x)

    return f, [(randn(5), i) for i in range(N)]


@program
def python_random_choice():
    def f(x):
        return x * random.choice([1.0, 2.0, 3.0])

    return f, [(randn(5),) for _ in range(N)]


@program
def no_grad_result_used_in_grad():
    w = nn.Parameter(randn(4))

    def f(x):
        with torch.no_grad():
            t = (w * x).tanh()
        loss = ((w - t) ** 2).sum()
        w.grad = None
        loss.backward()
        return w.grad.clone()

    return f, [(randn(4),) for _ in range(N)]


@program
def custom_autograd_function():
    class Clip(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, lim):
            ctx.save_for_backward(x)
            ctx.lim = lim
            return x.clamp(-lim, lim)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * (x.abs() <= ctx.lim), None

    w = nn.Parameter(randn(5))

    def f(x, lim):
        w.grad = None
        Clip.apply(w * x, lim).sum().backward()
        return w.grad.clone()

    return f, [(randn(5), (0.5, 1.0)[i // 6]) for i in range(N)]


@program
def einsum_by_equation():
    def f(eq, a, b):
        return torch.einsum(eq, a, b)

    return f, [(("ij,jk->ik", "ij,kj->ik")[i % 2], randn(3, 3), randn(3, 3)) for i in range(N)]


@program
def accumulates_into_attribute_list():
    class Log:
        def __init__(self):
            self.losses = []
            self.total = torch.zeros((), device="cuda")

        def step(self, x):
            loss = x.square().mean()
            self.losses.append(loss)
            self.total += loss
            if len(self.losses) > 3:
                self.losses.pop(0)
            return torch.stack(self.losses).sum() if len(self.losses) == 3 else loss

    log = Log()
    return log.step, [(randn(4),) for _ in range(N)], lambda: [log.total, len(log.losses)]


@program
def while_loop_python_tol():
    def f(x):
        n = 0
        while n < 5 and float(x.abs().max()) > 0.5:
            x = x * 0.7
            n += 1
        return x, n

    return f, [(randn(4),) for _ in range(N)]


@program
def sort_unique_dynamic():
    def f(x):
        v, c = torch.unique(x, return_counts=True)
        return v[c.argmax()]

    return f, [(torch.randint(0, 4, (12,), device="cuda"),) for _ in range(N)]


@program
def non_contiguous_inputs():
    def f(x):
        return x.sum(0) + x[0]

    return f, [((randn(6, 4).t() if i % 2 else randn(4, 6)),) for i in range(N)]


@program
def bool_and_none_args():
    def f(x, causal=False, scale=None):
        s = x @ x.t() * (scale or 0.5)
        if causal:
            s = s.tril()
        return s

    opts = [(False, None), (True, None), (True, 2.0)]
    return f, [(randn(4, 4), *opts[i // 2 % 3]) for i in range(N)]


@program
def weakref_to_owner():
    class Owner:
        def __init__(self):
            self.w = randn(3)

    o = Owner()
    r = weakref.ref(o)

    def f(x):
        _ = o
        return x * r().w

    return f, [(randn(3),) for _ in range(N)]


@program
def global_rebinding_of_tensor():
    ns = types.SimpleNamespace(t=randn(3))

    def f(x, i):
        if i % 4 == 3:
            ns.t = x.clone()
        return x + ns.t

    return f, [(randn(3), i) for i in range(N)], lambda: [ns.t]


@program
def tensor_subclass_arg():
    class Tagged(torch.Tensor):
        pass

    def f(x):
        return (x * 2).sum()

    return (lambda x: f(x).as_subclass(torch.Tensor)), [(randn(3).as_subclass(Tagged),) for _ in range(N)]


@program
def mixed_cpu_gpu():
    table = torch.linspace(0, 1, 20)

    def f(x, i):
        t = table[i].to("cuda")
        return x * t

    return f, [(randn(3), i) for i in range(N)]


@program
def polyak_with_foreach():
    a = [randn(3) for _ in range(3)]
    b = [randn(3) for _ in range(3)]

    def f(x):
        torch._foreach_lerp_(b, a, 0.1)
        a[0].add_(x)
        return torch.stack([t.sum() for t in b])

    return f, [(randn(3),) for _ in range(N)], lambda: list(b)


@program
def format_of_loss():
    lines = []

    def f(x):
        loss = x.square().mean()
        lines.append(f"{loss.item():.3f}")
        return loss

    return f, [(randn(4),) for _ in range(N)], lambda: list(lines)


@program
def assert_on_value():
    def f(x):
        assert torch.isfinite(x).all(), "bad"
        return x / x.norm()

    return f, [(randn(4),) for _ in range(N)]


@program
def chunked_map():
    lin = nn.Linear(4, 2).cuda()

    def f(x, size):
        return torch.cat([lin(c) for c in x.split(size)])

    return f, [(randn(10, 4), (3, 4, 5)[i % 3]) for i in range(N)]


@program
def sliding_stats_class():
    @dataclasses.dataclass
    class Stats:
        mean: torch.Tensor
        count: int = 0

        def update(self, x):
            self.count += 1
            self.mean = self.mean + (x.mean(0) - self.mean) / self.count
            return self.mean * 1.0

    s = Stats(torch.zeros(3, device="cuda"))
    return s.update, [(randn(5, 3),) for _ in range(N)], lambda: [s.mean, s.count]


@program
def lambda_in_list():
    fs = [lambda x: x + 1, lambda x: x * 2]

    def f(x, i):
        if i == 5:
            fs[0] = lambda x: x - 1
        for g in fs:
            x = g(x)
        return x

    return f, [(randn(3), i) for i in range(N)]


@program
def one_hot_with_python_max():
    def f(ids):
        return F.one_hot(ids, num_classes=int(ids.max()) + 1).sum(0)

    return f, [(torch.randint(0, 5, (6,), device="cuda"),) for _ in range(N)]
