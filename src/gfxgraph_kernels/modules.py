"""`apply`: uses our kernels in a model's modules, where they match its own results and are faster on this device.

A module keeps its weights, its name and its place; its class becomes a subclass with another ``forward``, which
handles steps of one token (norms: any call without gradients) and passes everything else to the class's own.
`Applied.undo` restores the classes. Modules are recognised by their parts (model_parts.py); each kind of each size is
then run against the model's own, and left alone if it is outside the tolerance or not faster.
"""

from __future__ import annotations

import inspect
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gfxgraph_kernels import launching, model_parts, next_token, norms, timed_choice, token_steps
from gfxgraph_kernels.attention import rotary_angles
from gfxgraph_kernels.layers import linear
from gfxgraph_kernels.model_parts import AttentionModules, Layer, Mlp, Norm, Rotary

PROBE_TOKENS = 128
"""Keys in the cache of a trial."""


@dataclass(eq=False)
class Applied:
    """What `apply` did to a model. As a context manager it undoes that on exit.

    Attributes:
        swapped: by module name, the new forward.
        left: by module name, why it was left alone.
        verdicts: by kind and size, the measurements.
        skipped: by reason, calls that the module's own forward handled.
        is_choosing: whether `greedy` and `sample` should choose the tokens, too; the model's caller has to do that.
    """

    _model: weakref.ref[object]
    swapped: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    verdicts: dict[str, timed_choice.TrialTimes] = field(default_factory=dict)
    skipped: Counter[str] = field(default_factory=Counter)
    is_choosing: bool = False
    _classes: list[tuple[weakref.ref[nn.Module], type, type]] = field(default_factory=list)

    @property
    def model(self) -> Any:
        """The model; None once it has been freed (this holds it weakly)."""
        return self._model()

    def undo(self) -> None:
        """Restore every module's own class. Idempotent."""
        while self._classes:
            held, made, before = self._classes.pop()
            module = held()
            if type(module) is made:
                module.__class__ = before

    def __enter__(self) -> Applied:
        return self

    def __exit__(self, *exception: object) -> None:
        self.undo()

    def report(self) -> dict[str, Any]:
        """Plain data: how many modules were changed to what, why others were not, and the measurements."""
        return {
            "swapped": dict(Counter(self.swapped.values())),
            "left": dict(Counter(self.left.values())),
            "skipped": dict(self.skipped),
            "measured": {
                name: {"ours_us": found.ours_us, "theirs_us": found.theirs_us}
                for name, found in self.verdicts.items()
            },
        }


def apply(model: nn.Module) -> Applied:
    """Use our kernels in a transformers model, or one built like it. New in 2.0.

    Layers whose parts are known (a norm before attention, one before a gated MLP: Llama's, Mistral's, Qwen's) are
    replaced as a whole; elsewhere (Gemma 2 and 3) attention and MLP are, and everywhere norms and the output layer.
    Attention needs a cache of fixed length.

    Args:
        model: on the device where it will run. Numbers change within `model_parts.TOLERANCE`, so tokens may change.

    Returns:
        What was done, with an ``undo``.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: kernels were already applied to the model.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"apply() takes a module, not {type(model).__name__}")
    if any(getattr(type(module), "_gfxgraph_kernel", "") for module in model.modules()):
        raise ValueError("this model already uses these kernels: call undo() on what apply() returned first")
    done = Applied(weakref.ref(model))
    like = next(model.parameters(), None)
    if like is None:
        return done
    work = _Work(done, _rotated_width(model), like)
    with torch.no_grad():
        head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
        for name, module in list(model.named_modules()):
            work.look_at(name, module, module is head)
        n_scores = getattr(head, "out_features", 0)
        done.is_choosing = bool(done.swapped and n_scores) and work.chooses(n_scores)
    return done


def _rotated_width(model: nn.Module) -> int:
    """How many elements of a head are rotated; 0 if unknown."""
    for module in model.modules():
        frequencies = getattr(module, "inv_freq", None)
        if isinstance(frequencies, Tensor):
            return 2 * frequencies.shape[-1]
    return 0


class Swap(NamedTuple):
    """A kind of module, and what kernels do in its place.

    Attributes:
        name: in reports.
        facts_of: what is known of a module of this kind; None for others.
        forward: of facts, module, args and kwargs: the result, or a text that says why the module's own must handle
            the call.
        given: arguments for a trial, of module, a tensor like its weights and the rotated width.
    """

    name: str
    facts_of: Callable[[nn.Module], object]
    forward: Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]
    given: Callable[[Any, Tensor, int], tuple[tuple[Any, ...], dict[str, Any]]]


@dataclass(slots=True)
class _Work:
    done: Applied
    rotated: int
    like: Tensor
    """A weight, for modules without one."""
    decided: dict[tuple[str, ...], timed_choice.TrialTimes] = field(default_factory=dict)
    """By kind, facts and sizes."""

    def look_at(self, name: str, module: nn.Module, is_head: bool) -> None:
        for kind in KINDS:
            facts = kind.facts_of(module) if is_head or kind.name != "head" else None
            if facts is None:
                continue
            reason = self._why_not(kind, facts, module)
            if reason:
                self.done.left[name] = reason
            else:
                self.done.swapped[name] = kind.name
                self._swap(module, kind, facts)
            return

    def _why_not(self, kind: Swap, facts: object, module: nn.Module) -> str:
        like = next(module.parameters(), self.like)
        reason = launching.why_not("apply", like)
        if reason:
            return reason
        args, kwargs = kind.given(module, like, self.rotated)
        own = type(module).forward

        def theirs() -> Any:
            return own(module, *args, **kwargs)

        def ours() -> Any:
            return kind.forward(facts, module, args, kwargs)

        if isinstance(refused := ours(), str):
            return refused
        if not model_parts.are_near(_joined(ours()), _joined(theirs())):
            return "it gives different numbers"
        held = list(module.parameters()) or [like.new_empty(0), *module.buffers()]
        return (
            "" if self._is_faster(kind.name, facts, held, like, ours, theirs) else "it is not faster on this device"
        )

    def chooses(self, n_scores: int) -> bool:
        """Whether `greedy` is the faster choice for this many scores."""
        scores = model_parts.random(1, n_scores, like=self.like, seed=5).float()
        return self._is_faster(
            "choice", None, [scores], scores, lambda: next_token.greedy(scores), lambda: torch.argmax(scores, -1)
        )

    def _is_faster(
        self, kind: str, facts: object, held: list[Tensor], like: Tensor, ours: Callable[[], object],
        theirs: Callable[[], object],
    ) -> bool:  # fmt: skip
        sizes = [(tuple(tensor.shape), str(tensor.dtype)) for tensor in held]
        key = kind, repr(facts), repr(sizes)
        if key not in self.decided:
            self.decided[key] = timed_choice.measured(ours, theirs, like.device)
        verdict = self.decided[key]
        self.done.verdicts[f"{kind} {tuple(like.shape)} {str(like.dtype).removeprefix('torch.')}"] = verdict
        return verdict.is_ours

    def _swap(self, module: nn.Module, kind: Swap, facts: object) -> None:
        before, skipped = type(module), self.done.skipped

        def forward(self: object, *args: object, **kwargs: object) -> Any:
            made = kind.forward(facts, self, args, kwargs)
            if isinstance(made, str):
                skipped[f"{kind.name}: {made}"] += 1
                return before.forward(self, *args, **kwargs)
            return made

        names = {"forward": forward, "_gfxgraph_kernel": kind.name, "__module__": before.__module__}
        made = type(before.__name__, (before,), {**names, "__doc__": before.__doc__, "__slots__": ()})
        module.__class__ = made
        self.done._classes.append((weakref.ref(module), made, before))


# -- arguments for trials ------------------------------------------------------------------------------


class _ProbeCache:
    """A cache of random keys and values, as `token_steps.place_in` knows them, with the last slot for the token."""

    is_initialized, is_decoding, is_full = True, True, False

    def __init__(self, held: Tensor, index: int) -> None:
        self.keys, self.values = held.unbind(0)
        self.position = torch.full((1,), PROBE_TOKENS - 1, dtype=torch.int64, device=held.device)
        self.layers, self.place = [self] * (index + 1), self

    def update(self, keys: Tensor, values: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
        self.keys[:, :, -1:], self.values[:, :, -1:] = keys, values
        return self.keys, self.values


def _rows_given(module: Any, like: Tensor, rotated: int) -> tuple[tuple[object, ...], dict[str, object]]:
    weight = getattr(module, "gate_proj", module).weight
    return (model_parts.random(1, 1, weight.shape[-1], like=like, seed=1),), {}


def _positions_given(module: object, like: Tensor, rotated: int) -> tuple[tuple[object, ...], dict[str, object]]:
    return (model_parts.random(1, 1, like=like), torch.full((1, 1), 3, device=like.device)), {}


def _attention_given(module: Any, like: Tensor, rotated: int) -> tuple[tuple[object, ...], dict[str, object]]:
    width, hidden = module.head_dim, module.q_proj.in_features
    angles = model_parts.random(1, 1, (rotated or width) // 2, like=like, seed=2).float()
    angles = torch.cat((angles, angles), -1)
    shared = module.k_proj.out_features // width
    held = model_parts.random(2, 1, shared, PROBE_TOKENS, width, like=like, seed=3)
    mask = torch.zeros(1, 1, 1, PROBE_TOKENS, dtype=like.dtype, device=like.device)
    mask[..., :3] = -torch.inf
    name = "cache" if "cache" in inspect.signature(module.forward).parameters else "past_key_values"
    return (), {
        "hidden_states": model_parts.random(1, 1, hidden, like=like, seed=1),
        "position_embeddings": (angles.cos().to(like.dtype), angles.sin().to(like.dtype)),
        "attention_mask": mask,
        name: _ProbeCache(held, module.layer_idx),
    }


def _layer_given(module: Any, like: Tensor, rotated: int) -> tuple[tuple[object, ...], dict[str, object]]:
    _, kwargs = _attention_given(module.self_attn, like, rotated)
    return (kwargs.pop("hidden_states"),), kwargs


def _joined(made: object) -> Tensor:
    """The part of a result that is compared: a tensor, or of several the first and those with its shape."""
    if not isinstance(made, tuple):
        return made  # type: ignore[no-any-return]
    return torch.cat([each for each in made if isinstance(each, Tensor) and each.shape == made[0].shape])


# -- the new forwards ----------------------------------------------------------------------------------


def _only(args: tuple[object, ...], kwargs: dict[str, object]) -> Tensor | None:
    """The argument, if it is a single tensor."""
    return args[0] if len(args) == 1 and not kwargs and isinstance(args[0], Tensor) else None


def _norm(facts: Norm, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    x = _only(args, kwargs)
    if x is None:
        return "other arguments"
    reason = token_steps.why_not_any(x, module.weight)
    return reason or norms.norm(
        x, module.weight, getattr(module, "bias", None), facts.eps, facts.offset, facts.is_rms
    )


def _head(facts: object, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    x = _only(args, kwargs)
    if x is None:
        return "other arguments"
    return token_steps.why_not_rows(x, module.weight) or linear(x, module.weight, module.bias)


def _mlp(facts: Mlp, module: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    x = _only(args, kwargs)
    if x is None:
        return "other arguments"
    reason = token_steps.why_not_rows(x, module.gate_proj.weight)
    return reason or token_steps.mlp(facts, module, x, None, None, None)


def _rotary(facts: Rotary, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    given = dict(zip(("x", "position_ids"), args)) | kwargs
    x, positions = given.pop("x", None), given.pop("position_ids", None)
    if given or x is None or positions is None or positions.dim() != 2:
        return "other arguments"
    if x.dtype not in launching.DTYPES:
        return "its dtype is not that of the weights"
    return rotary_angles(positions, module.inv_freq, facts.scaling, x.dtype)


def _attention(facts: AttentionModules, module: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    if args:
        return "other arguments"
    x = kwargs["hidden_states"]
    place = token_steps.slot_of(facts, module, x, kwargs)
    if isinstance(place, str):
        return place
    made = token_steps.attend(facts, module, x, place, None, None, kwargs)
    return linear(made, module.o_proj.weight, module.o_proj.bias), None


def _layer(facts: Layer, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    if len(args) != 1:
        return "other arguments"
    if any(model_parts.has_hooks(part) for part in module.children()):
        return "a hook receives a part"
    place = token_steps.slot_of(facts.attention, module.self_attn, args[0], kwargs)
    return place if isinstance(place, str) else token_steps.layer(facts, module, args[0], place, kwargs)


KINDS = (
    Swap("norm", model_parts.norm_of, _norm, _rows_given),
    Swap("layer", model_parts.layer_of, _layer, _layer_given),
    Swap("attention", model_parts.attention_of, _attention, _attention_given),
    Swap("rotary", model_parts.rotary_of, _rotary, _positions_given),
    Swap("mlp", model_parts.mlp_of, _mlp, _rows_given),
    Swap("head", lambda module: model_parts.is_plain(module) or None, _head, _rows_given),
)
"""Of the first that knows a module it is."""
