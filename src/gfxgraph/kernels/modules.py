"""`apply`: uses our kernels in a model's modules, where they match its own results and are faster on this device.

A module keeps its weights, its name and its place; its class becomes a subclass with another ``forward``, which
handles steps of one token (norms: any call) and passes everything else to the class's own. `Applied.undo` restores
the
classes. Norms, attention and layers are recognised by their parts (model_parts.py); each kind of each size is
then run against the model's own, and left alone if it is outside the tolerance or not faster.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from gfxgraph.kernels import launching, model_parts, next_token, norms, timed_choice, token_steps
from gfxgraph.kernels.attention import rotary_angles
from gfxgraph.kernels.layers import linear
from gfxgraph.kernels.model_parts import AttentionModules, Layer, Mlp, Norm, Rotary
from gfxgraph.process.measurements import Kept

Facts = Norm | Mlp | AttentionModules | Layer | Rotary | None
CHOICES = ("measured", "all")
PROBE_TOKENS = 128
"""Keys in the cache of a trial."""


@dataclass(eq=False)
class Applied:
    """What `apply` did to a model. As a context manager it undoes that on exit.

    Attributes:
        swapped: by module name, the new forward.
        left: by module name, why it was left alone.
        verdicts: by kind and size, the measurements; empty with ``choose="all"``.
        skipped: by reason, calls that the module's own forward handled.
        is_choosing: whether `greedy` and `sample` should choose the tokens, too; the model's caller has to do that.
    """

    _model: weakref.ref[Any]
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

    def compare(self, input_ids: Tensor, max_new_tokens: int = 32) -> dict[str, Any]:
        """Compare greedy tokens with the kernels and without: how many agree before the first difference.

        Args:
            input_ids: [batch, tokens] int64, on the model's device.
            max_new_tokens: tokens to generate for each row, both times.

        Returns:
            ``tokens``, new ones per row; ``same``, for each row how many of them before the first difference;
            ``logits_difference``, the largest between the scores of the last prompt token, read as a step of one
            token, relative to the largest score.
        """
        with torch.no_grad():
            ours, near = self._greedy(input_ids, max_new_tokens)
            swapped = [(held(), made, before) for held, made, before in self._classes]
            try:
                for module, _, before in swapped:
                    module.__class__ = before  # type: ignore[assignment]
                theirs, wanted = self._greedy(input_ids, max_new_tokens)
            finally:
                for module, made, _ in swapped:
                    module.__class__ = made  # type: ignore[assignment]
        differs = (ours != theirs).int()
        same = torch.where(differs.any(1), differs.argmax(1), ours.shape[1])
        distance = (near.double() - wanted.double()).abs().max() / wanted.double().abs().max().clamp_min(1e-30)
        return {"tokens": ours.shape[1], "same": same.tolist(), "logits_difference": float(distance)}

    def _greedy(self, input_ids: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """New tokens, and the scores of the first step of one token."""
        model = self.model
        made = model(input_ids[:, :-1], use_cache=True) if input_ids.shape[1] > 1 else None
        cache = None if made is None else made.past_key_values
        token, found, first = input_ids[:, -1:], [], None
        for _ in range(n):
            made = model(token, past_key_values=cache, use_cache=True)
            cache, scores = made.past_key_values, made.logits[:, -1]
            first = scores if first is None else first
            token = scores.argmax(-1, keepdim=True)
            found.append(token)
        assert first is not None
        return torch.cat(found, 1), first


def apply(model: nn.Module, *, rows: int = 1, choose: str = "measured") -> Applied:
    """Use our kernels in a transformers model, or one built like it. New in 2.0.

    Layers whose parts are known (a norm before attention, one before a gated MLP: Llama's, Mistral's, Qwen's) are
    replaced as a whole; elsewhere (Gemma 2 and 3) attention and MLP are, and everywhere norms and the output layer.

    Args:
        model: on the device where it will run. Numbers change within `structure.TOLERANCE`, so tokens may change.
        rows: sequences per step, at most 32, for which the trials run.
        choose: "measured" for only what is faster on this device; the verdicts are stored for later processes. "all"
        for everything within the tolerance.

    Returns:
        What was done, with an ``undo``.

    Raises:
        TypeError: ``model`` is not a module.
        ValueError: ``rows`` or ``choose`` is something else; kernels were already applied to the model.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"apply() expects a module, not {type(model).__name__}")
    if choose not in CHOICES or not isinstance(rows, int) or not 1 <= rows <= 32:
        raise ValueError(f"rows must be 1 to 32 and choose one of {CHOICES}, not {rows} and {choose!r}")
    if any(getattr(type(module), "_gfxgraph_kernel", "") for module in model.modules()):
        raise ValueError("this model already uses these kernels: call undo() on what apply() returned first")
    done = Applied(weakref.ref(model))
    like = next(model.parameters(), None)
    if like is None:
        return done
    work = _Work(done, rows, choose == "measured", timed_choice.kept(), _rotated_width(model), like)
    with torch.no_grad():
        heads = [model.get_output_embeddings()] if hasattr(model, "get_output_embeddings") else []
        for name, module in list(model.named_modules()):
            work.look_at(name, module, is_head=any(module is head for head in heads))
        n_scores = getattr(heads[0], "out_features", 0) if heads else 0
        done.is_choosing = bool(done.swapped and n_scores) and work.chooses(n_scores)
    return done


def _rotated_width(model: nn.Module) -> int:
    """How many elements of a head are rotated; 0 if unknown."""
    for module in model.modules():
        frequencies = getattr(module, "inv_freq", None)
        if isinstance(frequencies, Tensor):
            return 2 * frequencies.shape[-1]
    return 0


@dataclass(slots=True)
class _Work:
    done: Applied
    rows: int
    is_measured: bool
    kept: Kept
    rotated: int
    like: Tensor
    """A weight, for modules without one."""
    decided: dict[Any, timed_choice.TrialTimes] = field(default_factory=dict)
    """By kind, facts and sizes."""

    def look_at(self, name: str, module: nn.Module, is_head: bool) -> None:
        for kind, facts, way, given in self._kinds(module, is_head):
            reason = self._why_not(kind, facts, module, way, given)
            if reason:
                self.done.left[name] = reason
            else:
                self.done.left.pop(name, None)
                self.done.swapped[name] = kind
                self._swap(module, kind, way)
                return

    def _kinds(self, module: nn.Module, is_head: bool) -> list[tuple[str, Facts, Way, Given]]:
        norm = model_parts.norm_of(module)
        if norm is not None:
            return [("norm", norm, _norm_way(norm), self._rows_given)]
        layer = model_parts.layer_of(module)
        if layer is not None:
            return [("layer", layer, _layer_way(layer), self._layer_given)]
        attention = model_parts.attention_of(module)
        if attention is not None:
            return [("attention", attention, _attention_way(attention), self._attention_given)]
        rotary = model_parts.rotary_of(module)
        if rotary is not None:
            return [("rotary", rotary, _rotary_way(rotary), self._positions_given)]
        mlp = model_parts.mlp_of(module)
        if mlp is not None:
            return [("mlp", mlp, _mlp_way(mlp), self._rows_given)]
        return [("head", None, _head_way, self._rows_given)] if is_head and model_parts.is_plain(module) else []

    # -- trials ----------------------------------------------------------------------------------------

    def _why_not(self, kind: str, facts: Facts, module: nn.Module, way: Way, given: Given) -> str:
        like = next(module.parameters(), self.like)
        reason = launching.why_not("apply", like)
        if reason:
            return reason
        args, kwargs = given(module, like)
        own = type(module).forward

        def theirs() -> Any:
            return own(module, *args, **kwargs)

        def ours() -> Any:
            return way(module, args, kwargs)

        if isinstance(refused := ours(), str):
            return refused
        if not model_parts.are_near(_joined(ours()), _joined(theirs())):
            return "it gives different numbers"
        held = list(module.parameters()) or [like.new_empty(0), *module.buffers()]
        sizes = [(tuple(p.shape), str(p.dtype)) for p in held]
        return "" if self._is_faster(kind, facts, sizes, like, ours, theirs) else "it is not faster on this device"

    def chooses(self, n_scores: int) -> bool:
        """Whether `greedy` is the faster choice for this many scores."""
        scores = model_parts.random(self.rows, n_scores, like=self.like, seed=5).float()
        return self._is_faster(
            "choice", None, [(tuple(scores.shape), str(scores.dtype))], scores,
            lambda: next_token.greedy(scores), lambda: torch.argmax(scores, -1),
        )  # fmt: skip

    def _is_faster(
        self, kind: str, facts: Facts, sizes: list[tuple[tuple[int, ...], str]], like: Tensor,
        ours: Callable[[], object], theirs: Callable[[], object],
    ) -> bool:  # fmt: skip
        if not self.is_measured:
            return True
        about = {"kind": kind, "facts": repr(facts), "sizes": repr(sizes), "rows": self.rows}
        key = tuple(about.values())
        if key not in self.decided:
            self.decided[key] = timed_choice.compare(about, ours, theirs, like.device, self.kept)
        verdict = self.decided[key]
        self.done.verdicts[f"{kind} {tuple(like.shape)} {str(like.dtype).removeprefix('torch.')}"] = verdict
        return verdict.is_ours

    def _rows_given(self, module: nn.Module, like: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        parameter = getattr(module, "gate_proj", module).weight
        return (model_parts.random(self.rows, 1, parameter.shape[-1], like=like, seed=1),), {}  # type: ignore[index]

    def _positions_given(self, module: nn.Module, like: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        positions = torch.arange(self.rows, device=like.device)[:, None] * 119 + 3
        return (model_parts.random(1, 1, like=like), positions), {}

    def _layer_given(self, module: Any, like: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        args, kwargs = self._attention_given(module.self_attn, like)
        return (kwargs.pop("hidden_states"),), kwargs

    def _attention_given(self, module: Any, like: Tensor) -> tuple[tuple[Any, ...], dict[str, Any]]:
        width, hidden = module.head_dim, module.q_proj.in_features
        angles = model_parts.random(1, 1, (self.rotated or width) // 2, like=like, seed=2).float()
        angles = torch.cat((angles, angles), -1)
        shared = module.k_proj.out_features // width
        cache = _ProbeCache(model_parts.random(2, self.rows, shared, PROBE_TOKENS, width, like=like, seed=3))
        mask = torch.zeros(1, 1, 1, PROBE_TOKENS + 1, dtype=like.dtype, device=like.device)
        mask[..., :3] = -torch.inf
        return (), {
            "hidden_states": model_parts.random(self.rows, 1, hidden, like=like, seed=1),
            "position_embeddings": (angles.cos().to(like.dtype), angles.sin().to(like.dtype)),
            "attention_mask": mask,
            "past_key_values": cache,
        }

    # -- in place --------------------------------------------------------------------------------------

    def _swap(self, module: nn.Module, kind: str, way: Way) -> None:
        before, skipped = type(module), self.done.skipped

        def forward(self: object, *args: object, **kwargs: object) -> Any:
            made = way(self, args, kwargs)
            if isinstance(made, str):
                skipped[f"{kind}: {made}"] += 1
                return before.forward(self, *args, **kwargs)
            return made

        names = {"forward": forward, "_gfxgraph_kernel": kind, "__module__": before.__module__}
        made = type(before.__name__, (before,), {**names, "__doc__": before.__doc__, "__slots__": ()})
        module.__class__ = made
        self.done._classes.append((weakref.ref(module), made, before))


class _ProbeCache:
    """A cache of random keys and values that does not grow."""

    def __init__(self, held: Tensor) -> None:
        self.keys, self.values = held.unbind(0)

    def update(self, keys: Tensor, values: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, Tensor]:
        return torch.cat((self.keys, keys), 2), torch.cat((self.values, values), 2)


Way = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]
"""The new forward: returns its result, or a text that says why the module's own must handle the call."""
Given = Callable[[Any, Tensor], tuple[tuple[Any, ...], dict[str, Any]]]
"""Arguments for a trial."""


def _joined(made: Any) -> Tensor:
    """The part of a result that is compared: a tensor, or of several the first and those with its shape."""
    if not isinstance(made, tuple):
        return made  # type: ignore[no-any-return]
    return torch.cat([each for each in made if isinstance(each, Tensor) and each.shape == made[0].shape])


def _only(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """The argument, if it is a single tensor."""
    return args[0] if len(args) == 1 and not kwargs and isinstance(args[0], Tensor) else None


def _norm_way(facts: Norm) -> Way:
    def way(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = _only(args, kwargs)
        if x is None or x.dtype is not module.weight.dtype:
            return "other arguments"
        return norms.norm(x, module.weight, getattr(module, "bias", None), facts.eps, facts.offset, facts.is_rms)

    return way


def _head_way(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x = _only(args, kwargs)
    if x is None:
        return "other arguments"
    return token_steps.why_not_rows(x, module.weight) or linear(x, module.weight, module.bias)


def _mlp_way(facts: Mlp) -> Way:
    def way(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = _only(args, kwargs)
        if x is None:
            return "other arguments"
        reason = token_steps.why_not_rows(x, module.gate_proj.weight)
        return reason or token_steps.mlp(facts, module, x, None, None, None)

    return way


def _rotary_way(facts: Rotary) -> Way:
    def way(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = dict(zip(("x", "position_ids"), args)) | kwargs
        x, positions = given.pop("x", None), given.pop("position_ids", None)
        if given or x is None or positions is None or positions.dim() != 2:
            return "other arguments"
        if x.dtype not in launching.DTYPES:
            return "its dtype is not that of the weights"
        return rotary_angles(positions, module.inv_freq, facts.scaling, x.dtype)

    return way


def _attention_way(facts: AttentionModules) -> Way:
    def way(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if args:
            return "other arguments"
        x = kwargs["hidden_states"]
        reason = token_steps.why_not_step(module, x, kwargs)
        if reason:
            return reason
        made = token_steps.attend(facts, module, x, None, None, kwargs)
        return linear(made, module.o_proj.weight, module.o_proj.bias), None

    return way


def _layer_way(facts: Layer) -> Way:
    def way(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = args[0] if len(args) == 1 else None
        if x is None:
            return "other arguments"
        reason = token_steps.why_not_step(module.self_attn, x, kwargs)
        if not reason and any(model_parts.has_hooks(part) for part in module.children()):
            reason = "a hook receives a part"
        return reason or token_steps.layer(facts, module, x, kwargs)

    return way
