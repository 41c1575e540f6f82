"""transformers: ``model.generate`` with its decoding steps as graphs.

    from gfxgraph.adapters import transformers as gfx
    model = gfx.accelerate(model)
    model.generate(**inputs, max_new_tokens=128)     # same call, same tokens

``generate`` prepares everything as before; only the loop that it then calls is replaced. Greedy
decoding and sampling run as graphs over a cache at fixed addresses (gfxgraph_kernels.generation). Anything else (beam
search, an assistant, a cache of the caller's own...) is left to transformers, counted as a fallback and logged once
with its reason.

In transformers only the loop, ``GenerationMixin._sample``, is replaced, and those of beam search and assisted
generation, to count them; for models that were not accelerated they call the originals. The last ``restore`` puts the
originals back. With ``GFXGRAPH_TRANSFORMERS=on``, ``gfxgraph.enable()`` does this for every model.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gfxgraph import torch_names
from gfxgraph.adapters._needs import NeededName
from gfxgraph.adapters.adapter import Adapter
from gfxgraph.config import Config
from gfxgraph.core.replaced import Replaced
from gfxgraph.errors import ActivationError, naming_a_missing_package
from gfxgraph.process import bridge
from gfxgraph.process.process import Process

if TYPE_CHECKING:
    from gfxgraph_kernels.generation.model import Accelerated

_lock = threading.RLock()
_accelerated: weakref.WeakKeyDictionary[object, Accelerated] = weakref.WeakKeyDictionary()
_LEFT_ALONE = {"_beam_search": "beam search is left to transformers",
               "_assisted_decoding": "assisted generation is left to transformers"}  # fmt: skip


class TransformersAdapter(Adapter):
    """Replaces transformers' loops; for all models if it was installed, else for accelerated ones."""

    name = "transformers"
    module = "transformers"
    needs = {
        "transformers.generation.utils": (
            NeededName(
                "GenerationMixin._sample",
                takes="input_ids logits_processor stopping_criteria generation_config synced_gpus streamer",
            ),
            NeededName("GenerationMixin._optimize_model_for_decode"),
            NeededName(
                "GenerationMixin.prepare_inputs_for_generation",
                takes="input_ids next_sequence_length is_first_iteration",
            ),
            *(NeededName(f"GenerationMixin.{name}") for name in _LEFT_ALONE),
        )
    }
    tested = ">=5.17,<5.25"

    takes_all = False

    def wanted(self, settings: Config) -> bool:
        return settings.transformers

    def install(self) -> None:
        """Make every model's ``generate`` decode through graphs.

        Raises:
            ActivationError: `engine_missing`, `engine_layout`, `package_missing`.
        """
        _accelerated_kind()
        super().install()
        self.takes_all = True

    def install_when_imported(self) -> None:
        try:
            _accelerated_kind()
        except ActivationError as error:
            self.refuse(error)
            return
        self.takes_all = True
        super().install_when_imported()

    def install_for_some(self) -> None:
        """Replace the loops for accelerated models only, unless they are already replaced for all."""
        _accelerated_kind()
        super().install()

    def uninstall(self) -> None:
        """Restore transformers; graphs and caches are freed."""
        self.takes_all = False
        for model in list(_accelerated):
            restore(model)
        super().uninstall()

    def put_in_place(self, undo: Replaced, part: Any) -> None:
        for name in ("_sample", *_LEFT_ALONE):
            undo.replace(part.GenerationMixin, name, _ours(name, getattr(part.GenerationMixin, name)))


ADAPTER = TransformersAdapter()


def beside_enable(torch: object, state: Process) -> None:
    """Called by ``gfxgraph.enable``: installs the adapter if ``GFXGRAPH_TRANSFORMERS`` asks for it."""
    if ADAPTER.wanted(state.settings) and not torch_names.why_off("generate"):
        bridge.undo.append(ADAPTER.uninstall)
        ADAPTER.install_when_imported()


def accelerate(model: object, *, fast: bool | None = None) -> Any:
    """Make ``model.generate`` decode through graphs. New in 2.0.

    Args:
        model: a causal language model of transformers. If it is not on a GPU, or its kind of attention has no fixed
        cache, its calls run as before, counted as fallbacks.
        fast: True: use `gfxgraph.kernels` in the model's modules where they are faster on this device: nearly the
        same numbers, and so sooner or later a different token. By default unchanged, at first False.

    Returns:
        The model itself. Calling it again changes nothing.

    Raises:
        ActivationError: `engine_missing`, `engine_layout`, `engine_object`, `package_missing`.
    """
    if torch_names.why_off("generate"):
        return model
    with _lock:
        ADAPTER.install_for_some()
        from transformers import GenerationMixin

        if not isinstance(model, GenerationMixin):
            _step_aside()
            raise ActivationError(
                "engine_object", engine=ADAPTER.name, wanted="generate()", given=type(model).__name__
            )
        found = _accelerated.get(model)
        if found is None:
            found = _accelerated[model] = _accelerated_kind()(model)
        if fast is not None:
            found.use_kernels(fast)
    return model


def restore(model: object = None) -> None:
    """Undo `accelerate` for one model or, without an argument, for all.

    Its graphs and caches are freed. If no accelerated model is left, and the adapter was not installed
    for all, transformers is restored.
    """
    with _lock:
        for each in list(_accelerated) if model is None else [model]:
            found = _accelerated.pop(each, None)
            if found is not None:
                found.use_kernels(False)
                found.free()
        _step_aside()


def _step_aside() -> None:
    if not _accelerated and not ADAPTER.takes_all:
        Adapter.uninstall(ADAPTER)


def is_accelerated(model: object) -> bool:
    """True if the model's ``generate`` decodes through graphs."""
    return model in _accelerated


def report(model: object) -> dict[str, object]:
    """What has been captured for a model and what its calls have done.

    Returns:
        ``calls``, ``tokens``, ``tokens_past_end`` (computed and cut off), ``waits`` (of the host for the
        device), ``eager_prompts`` (too long, or of too many lengths, for a graph), ``left_alone`` (calls by reason)
        and ``decoders``; each of these says ``batch``, ``cache_len``, ``cache_bytes``, how many ``prompts``,
        ``forwards`` and ``choices`` are captured, the ``nodes`` of each forward, and ``why_eager``, the reasons why
        parts do not run as graphs. With ``fast=True`` also ``kernels``,
        `Applied.report` of them.
    """
    found = _accelerated.get(model)
    return (_accelerated_kind()(model) if found is None else found).report()


def _accelerated_kind() -> type[Accelerated]:
    with naming_a_missing_package():
        # lazily: adapters are listed and asked about where that package was left out
        from gfxgraph_kernels.generation.model import Accelerated
    return Accelerated


def _found(model: object) -> Accelerated | None:
    found = _accelerated.get(model)
    if found is None and ADAPTER.takes_all:
        with _lock:
            found = _accelerated.setdefault(model, _accelerated_kind()(model))
    return found


def _ours(name: str, original: Callable[..., object]) -> Callable[..., object]:
    # generate() reads the signature, which functools.wraps preserves.
    @functools.wraps(original)
    def loop(model: object, *args: object, **kwargs: object) -> object:
        found = _found(model)
        if found is None:
            return original(model, *args, **kwargs)
        if name in _LEFT_ALONE:
            found.leave_alone(_LEFT_ALONE[name])
            return original(model, *args, **kwargs)
        return found.sample(original, *args, **kwargs)

    return loop
