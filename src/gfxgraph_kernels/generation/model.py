"""One accelerated model: which calls its decoders serve, by which decoder, and the decoders' lifetime.

Nothing here imports torch or transformers before a model generates.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gfxgraph import torch_names
from gfxgraph.process import bridge, process
from gfxgraph_kernels.generation import version_check

if TYPE_CHECKING:
    from gfxgraph_kernels.generation.decode import Decoder

MAX_DECODERS = 4
"""Most pairs of batch size and cache length for which a model keeps graphs and a cache."""
_GRANULE = 64
_IDLE_HOOKS = "transformers.utils.output_capturing"
"""transformers' own hooks, which stay after a call has asked for hidden states, and do nothing in other calls."""


class Accelerated:
    """One model: its decoders, and the decision which calls they serve."""

    def __init__(self, model: object) -> None:
        self._model = weakref.ref(model)
        self.lock = threading.Lock()
        self.arena: Any = None
        self.decoders: OrderedDict[tuple[int, int], Decoder] = OrderedDict()
        self.seen: tuple[Any, ...] = ()
        """The modules, the addresses of their weights, and torch's settings, at this call."""
        self.captured: tuple[Any, ...] = ()
        """The same at the capture of the first of the present graphs."""
        self.left_alone: dict[str, int] = {}
        self.counts = Counter(dict.fromkeys(("calls", "tokens", "tokens_past_end", "waits", "eager_prompts"), 0))
        """What the decoders have done; ``waits`` of the host for the device."""
        self.kernels: Any = None
        """The result of `gfxgraph.kernels.apply`."""

    @property
    def model(self) -> Any:
        """The model; kept alive by the caller of its generate."""
        return self._model()

    def leave_alone(self, reason: str) -> None:
        """Count a call that transformers' own loop serves."""
        self.left_alone[reason] = self.left_alone.get(reason, 0) + 1
        process.tell("fallback", f"generate runs without graphs: {reason}", type(self.model).__name__)

    def sample(self, original: Callable[..., object], *args: object, **kwargs: object) -> Any:
        """Serve one call of the loop, with a decoder or with transformers."""
        given = inspect.signature(original).bind(self.model, *args, **kwargs)
        given.apply_defaults()
        call = given.arguments
        call["model_kwargs"] = dict(call["model_kwargs"])
        reason = self.why_not(call)
        if not reason and not self.lock.acquire(blocking=False):
            reason = "the model is generating in another thread"
        if reason:
            self.leave_alone(reason)
            return original(*given.args, **given.kwargs)
        # lazily: adapters are listed and asked about where there is no torch
        import torch

        try:
            # Memory that graphs write must not be inference tensors, which nothing else could write then.
            with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(self.model.device):
                return self._generate(call)
        except _OutOfMemory as error:
            self.free()
            self.leave_alone(f"a cache at fixed addresses does not fit in memory ({error})")
        finally:
            self.lock.release()
        return original(*given.args, **given.kwargs)

    def _generate(self, call: dict[str, Any]) -> Any:
        # lazily: adapters are listed and asked about where there is no torch
        import torch

        from gfxgraph_kernels.generation import choice as choices
        from gfxgraph_kernels.generation.loop import Request

        config, kwargs = call["generation_config"], call["model_kwargs"]
        stops = choices.stops_of(call["stopping_criteria"])
        choice = choices.choice_of(call["logits_processor"], stops, config.do_sample, config._pad_token_tensor)
        assert stops.max_length is not None
        request = Request(
            input_ids=call["input_ids"], model_kwargs=kwargs, choice=choice, stops=stops, max_length=stops.max_length,
            streamer=call["streamer"],
        )  # fmt: skip
        try:
            decoder = self._decoder(request.input_ids.shape[0], self._cache_len(call, stops.max_length))
        except torch.OutOfMemoryError as error:
            raise _OutOfMemory(str(error).splitlines()[0]) from error
        if choice.outside:
            why = f"tokens are chosen between graphs: {', '.join(choice.outside)}"
            self.arena.state.report("eager_step", why, type(self.model).__name__)
        self.arena.follow(torch.cuda.current_stream())
        with self.arena.lock:
            return decoder.generate(request)

    def use_kernels(self, is_wanted: bool) -> None:
        """Install our kernels in the model's modules, or remove them; the changed classes show graphs that they are
        outdated.
        """
        if is_wanted and self.kernels is None:
            # lazily: adapters are listed and asked about where there is no torch
            import gfxgraph_kernels as kernels

            self.kernels = kernels.apply(self.model)
        elif not is_wanted and self.kernels is not None:
            self.kernels.undo()
            self.kernels = None

    def _cache_len(self, call: dict[str, Any], max_length: int) -> int:
        """Length of the cache; the same as transformers would use if asked for a static one."""
        needed = max_length - 1
        if call["generation_config"].cache_implementation == "static":
            return int(max(needed, self.model._previous_max_cache_length))
        granule = max(_GRANULE, 1 << max(0, needed.bit_length() - 3))
        return -(-needed // granule) * granule

    def _decoder(self, batch: int, cache_len: int) -> Decoder:
        # lazily: adapters are listed and asked about where there is no torch
        from gfxgraph.callables.arena import Arena
        from gfxgraph_kernels.generation.decode import Decoder

        model, state = self.model, bridge.process_for_callables()
        if self.arena is None or self.arena.state is not state or self.seen != self.captured:
            self.free()  # graphs depend on old addresses of weights, and on kernels chosen by old settings
            self.captured = self.seen
        if self.arena is None:
            self.arena = Arena(state, model.device.index or 0)
        key = (batch, cache_len)
        found = self.decoders.get(key)
        if found is None:
            while len(self.decoders) >= MAX_DECODERS:
                self._drop(next(iter(self.decoders)))
            found = self.decoders[key] = Decoder(model, self.arena, batch, cache_len, self.counts, self.kernels)
        self.decoders.move_to_end(key)
        return found

    def _drop(self, key: tuple[int, int]) -> None:
        # lazily: adapters are listed and asked about where there is no torch
        import torch

        torch.cuda.synchronize(self.arena.device_index)  # a stream may still be reading its memory
        del self.decoders[key]

    def free(self) -> None:
        """Free all graphs and caches."""
        for key in list(self.decoders):
            self._drop(key)
        self.arena = None

    def report(self) -> dict[str, Any]:
        """The result of `report`."""
        extra = {} if self.kernels is None else {"kernels": self.kernels.report()}
        decoders = [decoder.report() for decoder in list(self.decoders.values())]
        return {**self.counts, "decoders": decoders, "left_alone": dict(self.left_alone), **extra}

    # -- which calls to serve -----------------------------------------------------------------------------

    def why_not(self, call: dict[str, object]) -> str:
        """Why a call is left to transformers; "" if a decoder serves it."""
        reason = self._model_says() or self._modules_say() or self._call_says(call) or self._inputs_say(call)
        return reason or version_check.why_not(self.model.device)

    def _model_says(self) -> str:
        # lazily: adapters are listed and asked about where there is no torch
        import torch
        from transformers import GenerationMixin

        from gfxgraph_kernels.generation import cache as caches

        model = self.model
        if model.device.type != "cuda":
            return "the model is not on a GPU"
        if len(set(getattr(model, "hf_device_map", {}).values())) > 1:
            return "the model is spread over several devices"
        if model.config.is_encoder_decoder:
            return "the model has an encoder"
        if model.training:
            return "the model is in training mode"
        if type(model).prepare_inputs_for_generation is not GenerationMixin.prepare_inputs_for_generation:
            return "the model prepares its inputs in its own way"
        if model.config._attn_implementation not in ("sdpa", "eager"):
            return f"attention by {model.config._attn_implementation}"
        if torch.is_autocast_enabled("cuda"):
            return "it is called under autocast"
        return caches.why_not(model.config.get_text_config(decoder=True))

    def _modules_say(self) -> str:
        """Check every module for what a graph would not call or could not follow, and note the weights' addresses."""
        # lazily: adapters are listed and asked about where there is no torch

        found: list[Any] = [self.model.config._attn_implementation, *kernel_settings()]
        if torch_names._global_forward_hooks or torch_names._global_forward_pre_hooks:
            return "there are forward hooks on all modules, which a graph would not call"
        for module in self.model.modules():
            hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
            if any(getattr(hook, "__module__", "") != _IDLE_HOOKS for hook in hooks):
                return "a module has forward hooks, which a graph would not call"
            if type(module).__module__.startswith("peft."):
                return "the model has PEFT layers, whose switching cannot be noticed"
            found += (id(type(module)), module.training)
            found += [tensor.data_ptr() for tensor in module._parameters.values() if tensor is not None]
            found += [tensor.data_ptr() for tensor in module._buffers.values() if tensor is not None]
        self.seen = tuple(found)
        return ""

    def _call_says(self, call: dict[str, Any]) -> str:
        config = call["generation_config"]
        if call["synced_gpus"]:
            return "several ranks generate in step"
        if config.is_assistant:
            return "the model is the assistant of another one"
        if config.prefill_chunk_size is not None:
            return "the prompt is read in chunks"
        if config.return_dict_in_generate:
            return "more than the tokens was requested"
        if config.cache_implementation not in (None, "static"):
            return f"the requested cache is {config.cache_implementation!r}"
        if call["stopping_criteria"].max_length is None:
            return "nothing limits the length"
        return ""

    def _inputs_say(self, call: dict[str, Any]) -> str:
        # lazily: adapters are listed and asked about where there is no torch
        from transformers.cache_utils import DynamicCache, StaticCache

        # lazily: it imports transformers
        from gfxgraph_kernels.generation.cache import CACHE

        ids, kwargs = call["input_ids"], call["model_kwargs"]
        cache = kwargs.get(CACHE)
        if getattr(cache, "_is_user_defined", False):
            return "the cache was passed by the caller"
        if type(cache) not in (DynamicCache, StaticCache) or not kwargs.get("use_cache"):
            return "there is no cache" if cache is None else f"the cache is a {type(cache).__name__}"
        if getattr(cache, "offloading", False):
            return "the cache is kept in host memory"
        if ids.device != self.model.device:
            return f"the tokens are on {ids.device}"
        if ids.ndim != 2 or not ids.shape[1]:
            return "the prompt is not made of tokens"
        mask, positions = kwargs.get("attention_mask"), kwargs.get("position_ids")
        # None means a mask of ones (transformers drops those from 5.18 on), or a model that takes none.
        if mask is None and "attention_mask" not in inspect.signature(self.model.forward).parameters:
            return "the model takes no attention mask"
        if mask is not None and mask.shape != ids.shape:
            return "the attention mask does not have one number per token"
        if positions is not None and positions.ndim != 2:
            return "positions have more than one number per token"
        given = ("attention_mask", "position_ids", CACHE)
        others = [name for name, value in kwargs.items() if name not in given
                  and not isinstance(value, (bool, int, float, str, type(None)))]  # fmt: skip
        return f"the model takes {', '.join(sorted(others))}" if others else ""


def kernel_settings() -> tuple[Any, ...]:
    """Settings by which torch chooses kernels, besides the tensors: a graph keeps the kernels of its capture."""
    # lazily: adapters are listed and asked about where there is no torch
    import torch

    from gfxgraph.callables.signature import matmul_precision

    backends = torch.backends.cuda
    return (
        backends.flash_sdp_enabled(),
        backends.mem_efficient_sdp_enabled(),
        backends.math_sdp_enabled(),
        backends.cudnn_sdp_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        matmul_precision(),
        backends.matmul.allow_fp16_reduced_precision_reduction,
        backends.matmul.allow_bf16_reduced_precision_reduction,
    )


class _OutOfMemory(Exception):
    """There is no memory for a decoder; nothing has been computed yet."""
