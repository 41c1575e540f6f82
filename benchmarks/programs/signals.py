"""Signals, pictures, geometry, tables of data."""

from __future__ import annotations

import collections
import functools
import math

import torch
import torch.nn.functional as F
from programs.registry import N, program, rand, randn
from torch import nn

# -- signals -------------------------------------------------------------------------------------------------------


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


# -- signals, science, data ----------------------------------------------------------------------------------------


@program
def overlap_add():
    tail, window = torch.zeros(8, device="cuda"), torch.hann_window(16, device="cuda")

    def block(x):
        y = torch.fft.irfft(torch.fft.rfft(torch.cat([x, x]) * window) * 0.5, n=16)
        out = y[:8] + tail
        tail.copy_(y[8:])
        return out

    return block, [(randn(8),) for _ in range(N)]


@program
def mel_features():
    bank = rand(9, 5)

    def features(wave):
        spectrum = torch.stft(wave, 16, 8, window=torch.hann_window(16, device=wave.device), return_complex=True)
        return (spectrum.abs().square().transpose(-1, -2) @ bank).clamp(min=1e-5).log10()

    return features, [(randn(64),) for _ in range(N)]


@program
def non_maximum_suppression():
    def keep(boxes, scores, limit=0.5):
        order = scores.argsort(descending=True)
        boxes = boxes[order]
        low, high = torch.maximum(boxes[:, None, :2], boxes[:, :2]), torch.minimum(boxes[:, None, 2:], boxes[:, 2:])
        shared = (high - low).clamp(min=0).prod(-1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
        overlap = shared / (area[:, None] + area - shared)
        kept = torch.ones(len(boxes), dtype=torch.bool, device=boxes.device)
        for i in range(len(boxes)):
            kept &= ~((overlap[i] > limit) & kept[i] & (torch.arange(len(boxes), device=boxes.device) > i))
        return order[kept]

    def boxes():
        corner = rand(6, 2)
        return torch.cat([corner, corner + 0.2 + rand(6, 2)], -1)

    return keep, [(boxes(), rand(6)) for _ in range(N)]


@program
def molecular_forces():
    def energy(positions):
        apart = positions[:, None] - positions
        squared = apart.square().sum(-1) + torch.eye(len(positions), device=positions.device)
        return ((1 / squared**6 - 1 / squared**3) * (1 - torch.eye(len(positions), device=positions.device))).sum()

    return torch.func.grad(energy), [(randn(5, 3) * 2,) for _ in range(N)]


@program
def verlet_with_history():
    state = {"positions": randn(4, 2), "before": randn(4, 2), "time": 0.0}

    def step(force):
        dt = 0.1
        new = 2 * state["positions"] - state["before"] + force * dt**2
        state["before"], state["positions"] = state["positions"], new
        state["time"] += dt
        return new, state["time"]

    return step, [(randn(4, 2),) for _ in range(N)]


@program
def shallow_water():
    @functools.lru_cache
    def stencil(device):
        return torch.tensor([[[[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]]]], device=device)

    height, speed = rand(1, 1, 8, 8), torch.zeros(1, 1, 8, 8, device="cuda")

    def step(rain):
        speed.add_(F.conv2d(F.pad(height, (1, 1, 1, 1), mode="circular"), stencil(height.device)), alpha=0.1)
        height.add_(speed * 0.1 + rain)
        return height.mean(), height.amax()

    return step, [(rand(1, 1, 8, 8) / 100,) for _ in range(N)]


@program
def newton_square_root():
    def root(matrix, n_steps=6):
        y, z = matrix / matrix.norm(), torch.eye(len(matrix), device=matrix.device)
        identity = torch.eye(len(matrix), device=matrix.device)
        for _ in range(n_steps):
            t = (3 * identity - z @ y) / 2
            y, z = y @ t, t @ z
        return y * matrix.norm().sqrt()

    def positive():
        a = randn(4, 4)
        return a @ a.T + torch.eye(4, device="cuda")

    return root, [(positive(),) for _ in range(N)]


@program
def histogram_equalisation():
    def equalise(image):
        counts = torch.bincount(image.flatten(), minlength=16)
        table = (counts.cumsum(0) * 15 // image.numel()).to(image.dtype)
        return table[image]

    return equalise, [(torch.randint(16, (6, 6), device="cuda"),) for _ in range(N)]


@program
def scaler_of_columns():
    class Scaler:
        def __init__(self):
            self.mean = self.std = None

        def fit(self, x):
            self.mean, self.std = x.mean(0), x.std(0)
            return self

        def __call__(self, x):
            if self.mean is None:
                self.fit(x)
            return (x - self.mean) / (self.std + 1e-6)

    return Scaler(), [(randn(5, 3),) for _ in range(N)]


@program
def particle_filter():
    particles = randn(32)

    def update(measured):
        particles.add_(torch.randn_like(particles) * 0.1)
        weight = (-(particles - measured).square()).softmax(0)
        chosen = torch.searchsorted(
            weight.cumsum(0), (torch.arange(32, device="cuda") + torch.rand(1, device="cuda")) / 32
        )
        particles.copy_(particles[chosen.clamp(max=31)])
        return particles.mean(), particles.var()

    return update, [(randn(()),) for _ in range(N)]


@program
def images_of_two_layouts():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    net = net.cuda().eval().to(memory_format=torch.channels_last)
    layouts = [torch.channels_last, torch.contiguous_format]
    return net, [(randn(2, 3, 6, 6).contiguous(memory_format=layouts[i // 6]),) for i in range(N)]


@program
def retry_with_a_smaller_step():
    def descend(x, gradient):
        try:
            if not math.isfinite(float(gradient.shape[0])):
                raise ArithmeticError
            step = 0.1
        except ArithmeticError:
            step = 0.01
        x = x - step * gradient
        assert x.shape == gradient.shape, "shapes"
        return x

    return descend, [(randn(4), randn(4)) for _ in range(N)]


# -- signals, pictures, geometry -----------------------------------------------------------------------------------


@program
def pid_controller():
    class Controller:
        def __init__(self):
            self.integral, self.last = 0.0, torch.zeros((), device="cuda")

        def __call__(self, error, dt):
            self.integral = self.integral + error * dt
            slope = (error - self.last) / dt
            self.last = error
            return 1.2 * error + 0.5 * self.integral + 0.1 * slope

    return Controller(), [(randn(()), 0.1) for _ in range(N)]


@program
def warp_by_flow():
    def warp(image, flow):
        h, w = image.shape[-2:]
        y, x = torch.meshgrid(torch.linspace(-1, 1, h), torch.linspace(-1, 1, w), indexing="ij")
        grid = torch.stack((x, y), -1).to(image.device)[None] + flow
        return F.grid_sample(image, grid, align_corners=True)

    return warp, [(randn(1, 2, 5, 6), 0.1 * randn(1, 5, 6, 2)) for _ in range(N)]


@program
def stereo_cost_volume():
    def disparity(left, right):
        costs = [(left - right.roll(d, -1)).abs().mean(1) for d in range(4)]
        weight = (-torch.stack(costs, 1)).softmax(1)
        return (weight * torch.arange(4, device=left.device)[:, None, None]).sum(1)

    return disparity, [(randn(1, 2, 4, 6), randn(1, 2, 4, 6)) for _ in range(N)]


@program
def ray_marching():
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 4)).cuda()

    def render(origin, direction):
        t = torch.linspace(0, 1, 8, device=origin.device)
        out = net(origin[:, None] + direction[:, None] * t[:, None])
        alpha = 1 - (-F.relu(out[..., 3]) / 8).exp()
        through = torch.cumprod(torch.cat((torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-6), 1), 1)[:, :-1]
        return ((through * alpha)[..., None] * out[..., :3].sigmoid()).sum(1)

    return render, [(randn(4, 3), randn(4, 3)) for _ in range(N)]


@program
def haar_wavelet():
    def transform(x):
        parts = []
        while x.shape[-1] > 1:
            a, b = x[..., ::2], x[..., 1::2]
            parts.append((a - b) / math.sqrt(2))
            x = (a + b) / math.sqrt(2)
        return torch.cat((x, *reversed(parts)), -1)

    return transform, [(randn(2, (8, 16)[i % 2]),) for i in range(N)]


@program
def streaming_quantile():
    class Quantile:
        def __init__(self):
            self.estimate, self.n = None, 0

        def update(self, x):
            self.n += 1
            if self.estimate is None:
                self.estimate = x.median()
            rate = 1 / math.sqrt(self.n)
            self.estimate = self.estimate + rate * (0.9 - (x < self.estimate).float().mean())
            return self.estimate

    return Quantile().update, [(randn(9),) for _ in range(N)]
