"""A custom node for ComfyUI: a model whose sampling steps run as gfxgraph's graphs.

Put this folder, or a link to it, into ComfyUI's ``custom_nodes`` and install gfxgraph in ComfyUI's environment. The
node "Model as GPU graphs" stands between a loader and a sampler. Loading the folder also puts gfxgraph behind the
graphs that ComfyUI's core captures itself; ``--disable-cuda-graphs`` of ComfyUI leaves only those of the node.

What a graph cannot hold (weights that are moved in for each step, a control net on the host) runs as before, step by
step, with the reason in ComfyUI's log and in ``gfxgraph.stats()``.

Source: ``set_model_unet_function_wrapper`` of comfy/model_patcher.py and its call in comfy/samplers.py.
"""

from __future__ import annotations

import weakref
from typing import Any

import gfxgraph

gfxgraph.enable()


class Steps:
    """What ComfyUI's sampler calls for each step in place of the model.

    Args:
        before: the wrapper that the model had already, called inside ours.
    """

    def __init__(self, before: Any = None) -> None:
        self.before = before
        self.graphed: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def __call__(self, apply_model: Any, given: dict[str, Any]) -> Any:
        owner = apply_model.__self__
        if owner not in self.graphed:
            self.graphed[owner] = gfxgraph.graphed(self.step(weakref.ref(owner), apply_model.__name__))
        return self.graphed[owner](given["input"], given["timestep"], given["c"], given.get("cond_or_uncond"))

    def step(self, owner: Any, name: str) -> Any:
        before = self.before

        def step(x: Any, timestep: Any, c: dict[str, Any], cond_or_uncond: Any) -> Any:
            apply_model = getattr(owner(), name)
            if before is None:
                return apply_model(x, timestep, **c)
            return before(apply_model, {"input": x, "timestep": timestep, "c": c, "cond_or_uncond": cond_or_uncond})

        return step


class GfxgraphModel:
    """The node: MODEL in, MODEL out; what comes in stays as it is."""

    RETURN_TYPES = ("MODEL",)
    FUNCTION = "patch"
    CATEGORY = "model/gfxgraph"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"model": ("MODEL",)}}

    def patch(self, model: Any) -> tuple[Any]:
        patched = model.clone()
        patched.set_model_unet_function_wrapper(Steps(patched.model_options.get("model_function_wrapper")))
        return (patched,)


NODE_CLASS_MAPPINGS = {"GfxgraphModel": GfxgraphModel}
NODE_DISPLAY_NAME_MAPPINGS = {"GfxgraphModel": "Model as GPU graphs"}
