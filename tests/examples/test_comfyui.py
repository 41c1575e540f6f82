"""The custom node for ComfyUI, called as its node loader and its sampler call it; no file of ComfyUI runs here."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import gfxgraph  # noqa: E402

FOLDER = Path(__file__).parents[2] / "examples" / "comfyui"


class BaseModel(torch.nn.Module):
    """What ``model.apply_model`` belongs to, with the arguments that the sampler gives it."""

    def __init__(self):
        super().__init__()
        self.diffusion_model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.SiLU(), torch.nn.Linear(16, 8))

    def apply_model(self, x, t, c_crossattn=None, transformer_options=None, **kwargs):
        scale = 2.0 if transformer_options["cond_or_uncond"] == [1, 0] else 1.0
        return self.diffusion_model(x + t[:, None] + c_crossattn) * scale


class ModelPatcher:
    """As much of comfy.model_patcher.ModelPatcher as nodes and the sampler use here."""

    def __init__(self, model, model_options=None):
        self.model, self.model_options = model, dict(model_options or {})

    def clone(self):
        return ModelPatcher(self.model, self.model_options)

    def set_model_unet_function_wrapper(self, wrapper):
        self.model_options["model_function_wrapper"] = wrapper


def sampled(patcher, seed, batch=2, steps=5):
    """Steps as comfy.samplers takes them."""
    generator = torch.Generator().manual_seed(seed)
    x, context = (torch.randn(batch, 8, generator=generator).cuda() for _ in range(2))
    for index in range(steps):
        timestep = torch.full((batch,), 1.0 - index / steps, device="cuda")
        options = {"cond_or_uncond": [1, 0], "sigmas": timestep}
        c = {"c_crossattn": context, "transformer_options": options}
        wrapper = patcher.model_options.get("model_function_wrapper")
        if wrapper is None:
            made = patcher.model.apply_model(x, timestep, **c)
        else:
            given = {"input": x, "timestep": timestep, "c": c, "cond_or_uncond": [1, 0]}
            made = wrapper(patcher.model.apply_model, given)
        x = x - 0.1 * made
    return x


@pytest.fixture
def node(monkeypatch):
    """The folder as ComfyUI imports it, in the simulator where there is no GPU."""
    if not torch.cuda.is_available():
        monkeypatch.setenv("GFXGRAPH_SIMULATE", "cuda")
    monkeypatch.setenv("GFXGRAPH_ALLOW_CUDA", "1")
    spec = importlib.util.spec_from_file_location("custom_nodes_gfxgraph", FOLDER / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with torch.no_grad():
        yield module.NODE_CLASS_MAPPINGS["GfxgraphModel"]
    gfxgraph.disable()


def test_steps_run_as_graphs_with_the_same_results(node):
    """All steps of later runs are replays; another batch has its own; the model that came in is not changed."""
    stock = ModelPatcher(BaseModel().cuda().eval())
    assert node.INPUT_TYPES()["required"] == {"model": ("MODEL",)} and node.RETURN_TYPES == ("MODEL",)
    (patched,) = getattr(node(), node.FUNCTION)(stock)
    assert "model_function_wrapper" not in stock.model_options
    for seed, batch in enumerate((2, 2, 4, 4, 2)):
        torch.testing.assert_close(sampled(patched, seed, batch), sampled(stock, seed, batch))
    assert gfxgraph.stats()["replay_count"] >= 15 and not gfxgraph.stats()["fallbacks"]


def test_a_wrapper_that_was_there_is_called(node):
    """Another node's wrapper stays, inside the graph."""
    stock = ModelPatcher(BaseModel().cuda().eval())
    stock.set_model_unet_function_wrapper(
        lambda apply_model, given: apply_model(given["input"] * 2, given["timestep"], **given["c"]) + 1
    )
    (patched,) = node().patch(stock)
    for seed in range(3):
        torch.testing.assert_close(sampled(patched, seed), sampled(stock, seed))
    assert gfxgraph.stats()["replay_count"] >= 10
