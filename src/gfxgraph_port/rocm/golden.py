"""Golden vectors: inputs and outputs recorded on one machine, compared on another.

Inputs are made on the CPU from a seed, since the devices' random streams differ by vendor; the model is built
on the CPU under the same seed and then moved, so that weights agree without being sent. Per-layer outputs are
kept as samples, enough to name the first layer that differs. A port that only infers right is half a port: the loss
and every parameter's gradient are kept and compared too, where the model has parameters.
"""

from __future__ import annotations

import importlib.util
import inspect
import io
import pickle
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gfxgraph import files, torch_names
from gfxgraph_port.hipify import load_module

SCHEMA = "gfxgraph-golden/1"
SHAPES = ((1, 32, 512), (4, 128, 2048), (16, 512, 2048), (1, 1, 2048), (1, 2048, 2048))
TOLERANCE = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2, "float64": 1e-7}
MANY_LAYERS_BF16 = 1e-1
_SAMPLE = 4096

Model = Callable[..., object]
Inputs = tuple[object, ...]
Layers = list[tuple[str, Tensor]]


class GoldenError(Exception):
    """The target, the file or the device does not fit; the message says which."""


@dataclass(frozen=True, slots=True)
class GoldenTarget:
    """What is verified: ``build()`` makes it.

    ``inputs(shape, dtype, generator)`` and ``loss(output)`` are optional.
    """

    build: Callable[[], Model]
    inputs: Callable[..., object] | None
    loss: Callable[[object], Tensor] | None = None


def load_target(spec: str) -> GoldenTarget:
    """Load ``path/to/file.py:function``.

    Raises:
        GoldenError: the file or the function is missing.
    """
    path, _, name = spec.partition(":")
    if not Path(path).is_file():
        raise GoldenError(f"{path}: no such file; give FILE.py:FUNCTION")
    module = load_module(importlib.util.spec_from_file_location("gfxgraph_verify_target", path))
    if module is None:
        raise GoldenError(f"{path}: not a Python file")
    build = getattr(module, name or "build", None)
    if not callable(build):
        raise GoldenError(f"{path} has no function {name or 'build'!r}")
    return GoldenTarget(build, getattr(module, "inputs", None), getattr(module, "loss", None))


def tolerance(dtype: str, n_layers: int) -> float:
    """Relative and absolute tolerance by dtype; deep bf16 models get more."""
    if dtype == "bfloat16" and n_layers > 1:
        return MANY_LAYERS_BF16
    return TOLERANCE.get(dtype, 1e-4)


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in torch_names.tree_leaves(value) if isinstance(leaf, Tensor)]


def _agree(ours: Tensor | None, theirs: Tensor, allowed: float, scale: float = 1.0) -> bool:
    if ours is None or ours.shape != theirs.shape:
        return False
    return bool(torch.allclose(ours, theirs, rtol=allowed, atol=allowed * scale, equal_nan=True))


def _moved(inputs: Inputs, device: str) -> list[object]:
    return [x.to(device) if isinstance(x, Tensor) else x for x in inputs]


def _sample(tensor: Tensor) -> Tensor:
    """Up to 4096 evenly spaced elements, on the CPU in float32."""
    flat = tensor.detach().reshape(-1)
    step = max(1, flat.numel() // _SAMPLE)
    return flat[::step][:_SAMPLE].float().cpu()


def _make_inputs(target: GoldenTarget, shape: Sequence[int], dtype: torch.dtype, seed: int) -> Inputs:
    generator = torch.Generator().manual_seed(seed)
    if target.inputs is not None:
        made = target.inputs(tuple(shape), dtype, generator)
        return made if isinstance(made, tuple) else (made,)
    return (torch.randn(*shape, generator=generator, dtype=torch.float32).to(dtype),)


def _build(target: GoldenTarget, dtype: torch.dtype, device: str, seed: int) -> Model:
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise GoldenError(
            f"torch {torch.__version__} sees no GPU here: run this on the machine with the GPU, or add --device cpu "
            "to try the files"
        )
    torch.manual_seed(seed)
    try:
        made = target.build()
    except TypeError as error:
        raise GoldenError(f"the function that builds the model must need no arguments: {error}") from error
    if isinstance(made, torch.nn.Module):
        made = made.eval().to(dtype).to(device)
    return made


def _run(model: Model, inputs: Inputs, device: str) -> tuple[list[Tensor], Layers]:
    """Outputs, and a sample of every leaf module's first output in the order they ran."""
    layers: Layers = []
    handles = []
    if isinstance(model, torch.nn.Module):
        for name, module in model.named_modules():
            if name and not list(module.children()):

                def hook(_m: object, _a: object, out: object, name: str = name) -> None:
                    found = _tensors(out)
                    if found and found[0].is_floating_point():
                        layers.append((name, _sample(found[0])))

                handles.append(module.register_forward_hook(hook))
    try:
        with torch.no_grad():
            out = model(*_moved(inputs, device))
    finally:
        for handle in handles:
            handle.remove()
    return [t.detach().cpu() for t in _tensors(out)], layers


def _backward(target: GoldenTarget, model: Model, inputs: Inputs, device: str) -> dict[str, Any]:
    """The loss of one step and a sample of every gradient; ``reason`` says why there are none."""
    if not isinstance(model, torch.nn.Module) or not any(p.requires_grad for p in model.parameters()):
        return {"reason": "no parameters to train"}
    model.zero_grad(set_to_none=True)
    try:
        out = model(*_moved(inputs, device))
        if target.loss is not None:
            value = target.loss(out)
        else:
            floats = [t for t in _tensors(out) if t.is_floating_point() and t.requires_grad]
            if not floats:
                return {"reason": "no output depends on a parameter"}
            value = torch.stack([t.float().square().mean() for t in floats]).sum()
        value.backward()
        gradients = {
            n: _sample(p.grad.to_dense() if p.grad.is_sparse else p.grad)
            for n, p in model.named_parameters()
            if p.grad is not None
        }
        return {"loss": float(value.detach()), "gradients": gradients}
    except (RuntimeError, ValueError, TypeError) as error:
        return {"reason": f"{type(error).__name__}: {str(error).splitlines()[0][:160]}"}
    finally:
        model.zero_grad(set_to_none=True)


def _compare_training(ours: dict[str, Any], theirs: dict[str, Any] | None, allowed: float) -> dict[str, Any]:
    """``outcome``, the loss's relative error, and the first gradient to differ on the way back."""
    if theirs is None or "gradients" not in theirs:
        why = theirs.get("reason", "") if theirs is not None else "recorded before losses and gradients were"
        return {"outcome": "skipped", "reason": why, "loss_error": 0.0, "first_gradient": ""}
    if "gradients" not in ours:
        return {"outcome": "failed", "reason": ours["reason"], "loss_error": 0.0, "first_gradient": ""}
    error = abs(ours["loss"] - theirs["loss"]) / max(1e-12, abs(theirs["loss"]))
    sizes = {name: float(b.abs().max()) if b.numel() else 0.0 for name, b in theirs["gradients"].items()}
    wrong = (name for name, b in reversed(theirs["gradients"].items())
             if not _agree(ours["gradients"].get(name), b, allowed, max(sizes[name], 1e-8)))  # fmt: skip
    first = next(wrong, "")
    bad = bool(first) or not error <= allowed
    return {"outcome": "failed" if bad else "passed", "reason": "", "loss_error": error, "first_gradient": first}


def _run_case(model: Model, inputs: Inputs, device: str, shape: Sequence[int]) -> tuple[list[Tensor], Layers]:
    """Run one recorded shape.

    Raises:
        GoldenError: the model does not take the shape.
    """
    try:
        return _run(model, inputs, device)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        size = "x".join(map(str, shape))
        raise GoldenError(
            f"the model fails on an input of {size} ({type(error).__name__}: {str(error).splitlines()[0][:160]}); "
            "give the shapes it takes with --shape, or define inputs(shape, dtype, generator) beside the function"
        ) from error


def record(
    target: GoldenTarget, *, dtype: str = "float32", device: str = "cpu", seed: int = 0,
    shapes: Sequence[Sequence[int]] = SHAPES,
) -> dict[str, Any]:  # fmt: skip
    """Run the target on golden inputs and keep what came out.

    Raises:
        GoldenError: there is no such device here, or the model does not take a shape.
    """
    kind = getattr(torch, dtype)
    model = _build(target, kind, device, seed)
    cases = []
    for shape in shapes:
        inputs = _make_inputs(target, shape, kind, seed)
        outputs, layers = _run_case(model, inputs, device, shape)
        cases.append(
            {
                "shape": list(shape),
                "inputs": list(inputs),
                "outputs": outputs,
                "layers": layers,
                "training": _backward(target, model, inputs, device),
            }
        )
    return {"schema": SCHEMA, "dtype": dtype, "seed": seed, "made_on": machine(device), "cases": cases}


def machine(device: str) -> dict[str, str]:
    """What the vectors were made on."""
    name = torch.cuda.get_device_name() if device.startswith("cuda") and torch.cuda.is_available() else "cpu"
    return {
        "torch": str(torch.__version__),
        "hip": str(torch.version.hip or ""),
        "cuda": str(torch.version.cuda or ""),
        "device": name,
    }


def loaded_from(model: object) -> dict[str, str]:
    """The files that are really in use: the model's own, and the packages that replace kernels."""
    found = {}
    kind = type(model) if not inspect.isfunction(model) else model
    try:
        found["model"] = inspect.getfile(kind)
    except (TypeError, OSError):
        found["model"] = "built in"
    for name in ("torch", "triton", "flash_attn", "aiter", "xformers", "apex"):
        module = sys.modules.get(name)
        if module is not None and getattr(module, "__file__", None):
            found[name] = str(module.__file__)
    return found


def save(golden: dict[str, Any], path: str) -> None:
    buffer = io.BytesIO()
    torch.save(golden, buffer)
    files.write(Path(path), buffer.getvalue())


def load(path: str) -> dict[str, Any]:
    """Read golden vectors; nothing in the file is executed.

    Raises:
        GoldenError: missing, or not golden vectors.
    """
    try:
        data: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, TypeError, LookupError, EOFError, pickle.UnpicklingError) as error:
        raise GoldenError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not _is_whole(data):
        raise GoldenError(f"{path}: not golden vectors of {SCHEMA}")
    return data


def _is_whole(data: dict[str, Any]) -> bool:
    """Whether every part of golden vectors is of its kind."""

    def is_case(case: object) -> bool:
        if not isinstance(case, dict):
            return False
        match case:
            case {"shape": [*shape], "inputs": [*_], "outputs": [*outputs], "layers": [*layers]}:
                names, samples = zip(*layers) if layers else ((), ())
                training = case.get("training") or {"reason": ""}
                if training.keys() >= {"loss", "gradients"}:
                    samples = (*samples, torch.tensor(float(training["loss"])), *training["gradients"].values())
                numbers, texts = (*shape, data["seed"]), (*names, str(training.get("reason", "")))
                tensors = all(isinstance(each, torch.Tensor) for each in (*outputs, *samples))
                return tensors and all(type(n) is int for n in numbers) and all(isinstance(t, str) for t in texts)
        return False

    try:
        kind = getattr(torch, data["dtype"])
        return (
            isinstance(kind, torch.dtype)
            and isinstance(data["made_on"], dict)
            and all(map(is_case, [*data["cases"]]))
        )
    except (AttributeError, TypeError, ValueError, LookupError, RuntimeError):
        return False


def compare(
    target: GoldenTarget, golden: dict[str, Any], *, device: str = "cpu", iterations: int = 100
) -> dict[str, Any]:
    """Run the target here and compare with the golden outputs.

    Returns:
        ``passed``, and by shape: the largest errors, the first layer that differs, and stability.
    """
    kind = getattr(torch, golden["dtype"])
    model = _build(target, kind, device, golden["seed"])
    rows = []
    for case in golden["cases"]:
        inputs = tuple(case["inputs"])
        started = time.perf_counter()
        outputs, layers = _run_case(model, inputs, device, case["shape"])
        first_s = time.perf_counter() - started
        started = time.perf_counter()
        _run_case(model, inputs, device, case["shape"])
        again_s = time.perf_counter() - started
        allowed = tolerance(golden["dtype"], len(case["layers"]))
        worst, bad, n_nan = 0.0, len(outputs) != len(case["outputs"]), 0
        for ours, theirs in zip(outputs, case["outputs"]):
            a, b = ours.float(), theirs.float()
            bad |= not _agree(a, b, allowed)
            if a.shape == b.shape:
                n_nan += int(torch.isnan(a).sum() - torch.isnan(b).sum())
                worst = max(worst, float((a - b).abs().max()) if a.numel() else 0.0)
        stability = _stability(model, inputs, device, iterations)
        training = _compare_training(_backward(target, model, inputs, device), case.get("training"), allowed)
        rows.append(
            {
                "shape": case["shape"],
                "passed": not bad and not n_nan and stability["n_nan"] == 0 and training["outcome"] != "failed",
                "training": training,
                "first_run_s": round(first_s, 3),  # compiling, tuning and filling caches
                "next_run_s": round(again_s, 3),
                "tolerance": allowed,
                "max_abs_error": worst,
                "n_nan": n_nan,
                "first_layer": _first_layer(layers, case["layers"], allowed) if bad or n_nan else "",
                "stability": stability,
            }
        )
    return {
        "passed": all(r["passed"] for r in rows),
        "dtype": golden["dtype"],
        "made_on": golden["made_on"],
        "compared_on": machine(device),
        "loaded": loaded_from(model),
        "cases": rows,
    }


def _first_layer(ours: Layers, theirs: Layers, allowed: float) -> str:
    for (name, a), (other, b) in zip(ours, theirs):
        if name != other:
            return f"{other} ran as {name}"
        if not _agree(a, b, allowed):
            return name
    return "after the last layer" if len(ours) == len(theirs) else "a different number of layers ran"


def _stability(model: Model, inputs: Inputs, device: str, iterations: int) -> dict[str, int]:
    """Run again and again; the same input must give the same bits, and never NaN."""
    first, _ = _run(model, inputs, device)
    changed = n_nan = 0
    for _i in range(iterations):
        again, _ = _run(model, inputs, device)
        changed += any(not torch.equal(a, b) for a, b in zip(first, again))
        n_nan += any(bool(torch.isnan(t).any()) for t in again if t.is_floating_point())
    return {"iterations": iterations, "n_changed": changed, "n_nan": n_nan}
