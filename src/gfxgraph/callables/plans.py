"""What one graphed callable knows of sizes: which were seen, which buckets they give, which are proved.

    sizes seen ──learn──> buckets ──pick──> (size, bucket) ──prove──> content of the padding, cut of results
                                                             └──> refused: eager, with the reason

"auto" begins with powers of two, which need no knowledge, and learns from the sizes seen after 64 calls,
then after three times as many, and so on: each time only where the new buckets save enough to be worth
new captures. New buckets need not all be proved from the ground up: see ``Proofs``.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from gfxgraph.callables.padding.invent import Content, Pad
from gfxgraph.callables.padding.outside import reachable
from gfxgraph.callables.padding.prover import Proof, Prover, Status
from gfxgraph.core.buckets import Above, Buckets, Budget, Plan, explicit, ladder, learn_plan, powers
from gfxgraph.errors import ConfigError
from gfxgraph.process import process

LEARN_AFTER = 64
LEARN_AGAIN = 3
WORTH = 0.002
"""New buckets must save this share of the work before graphs are captured again for them."""
HOPELESS = 3
"""Buckets refused, and none proved, before a function's other buckets are refused unseen."""
TRUSTED = 6
"""Buckets proved, and none refused, before a further bucket is only compared with the truth."""
MOST_AGAIN = 4
"""Proofs of one bucket that could not tell, before it is left eager."""


class Unbounded:
    """Powers of two without end: what "auto" begins with."""

    def pick(self, n: int, /) -> int | None:
        return 1 << max(0, n - 1).bit_length()


class Sizes(Mapping[str, Any]):
    """The buckets of every dynamic dim, by its name, and the sizes that calls have had.

    Args:
        given: as the user wrote it: sizes, "auto", "powers", "ladder", a ``Plan``, what has ``pick``, a
            path of a saved plan, or one of these by dim name.
        above: what happens to calls above the largest bucket.
        budget: limits for learned buckets.
    """

    def __init__(self, given: Any, above: Above = Above.EAGER, budget: Budget | None = None) -> None:
        self.above = above
        self.budget = budget
        self.seen: Counter[tuple[int, ...]] = Counter()
        self.names: tuple[str, ...] = ()
        self.learned: Plan | None = None
        self._next_look = LEARN_AFTER
        self._n_seen = 0
        if isinstance(given, Path) or (isinstance(given, str) and given.endswith(".json")):
            given = Plan.from_json(_text_of(Path(given)), str(given))
        if isinstance(given, Plan):
            self.learned = given
            self.names, self.seen = tuple(given.dims), Counter(given.seen)
            given = dict(given.dims)
            self._next_look = 0
        self.given = given
        self.is_auto = given is None or given == "auto"
        self._by_name: dict[str, Any] = {}

    # -- Mapping: Dims asks by name -----------------------------------------------------------------

    def __getitem__(self, name: str) -> Any:
        if self.learned is not None and name in self.learned.dims:
            return self.learned.dims[name]
        found = self._by_name.get(name)
        if found is None:
            given = self.given.get(name) if isinstance(self.given, Mapping) else self.given
            found = self._by_name[name] = _rule(given, self.above)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def get(self, name: str, default: Any = None) -> Any:
        if isinstance(self.given, Mapping) and name not in self.given and self.learned is None:
            return default
        return self[name]

    # -- learning -----------------------------------------------------------------------------------

    def note(self, actual: Mapping[str, int], n_calls: int = 1) -> None:
        """Calls of these sizes came."""
        names = tuple(actual)
        if min(actual.values(), default=0) < 1:
            return
        if names != self.names:
            if not self.names:
                self.names = names
            elif set(names) != set(self.names):
                return  # a tree with other dims: it is not what the plan is about
        self.seen[tuple(actual[name] for name in self.names)] += n_calls
        self._n_seen += n_calls

    def look(self) -> bool:
        """Learn, when it is time; True where the buckets are others now."""
        if not self.is_auto or not self._next_look or self._n_seen < self._next_look:
            return False
        self._next_look *= LEARN_AGAIN
        try:
            found = learn_plan(self.names, self.seen, self.budget, above=self.above)
        except ConfigError as error:
            _report("plan_not_learned", str(error).splitlines()[0])
            return False
        old = self.plan()
        saved = old.n_elements_padded - found.n_elements_padded
        is_outgrown = any(old.pick(sizes) is None for sizes in self.seen)
        if self.learned is not None and saved < WORTH * old.n_elements_seen and not is_outgrown:
            return False
        self.learned = found
        return True

    def plan(self) -> Plan:
        """The buckets in force, with the sizes seen."""
        dims = {}
        for axis, name in enumerate(self.names):
            rule = self.get(name)
            if isinstance(rule, Buckets):
                dims[name] = rule
            elif isinstance(rule, Unbounded) or not hasattr(rule, "sizes"):
                picked = {rule.pick(sizes[axis]) for sizes in self.seen} if rule is not None else {1}
                dims[name] = Buckets(tuple(n for n in picked if n), "powers", self.above)
            else:
                dims[name] = explicit(rule.sizes, self.above)
        return Plan(dims, dict(self.seen))


class Proofs:
    """What is proved of one function, by tree, bucket and size.

    The first buckets are proved in full; where all of them held, a further one is compared with the truth
    on each new size, as any size is when it is first seen. A size that was compared in one bucket and a
    bucket that was compared with another size need no third look, unless something was ever refused.

    Args:
        fn: the function, whose reachable state is watched.
        pads: content of the padding by argument path, or one for all.
    """

    def __init__(self, fn: Callable[..., Any], pads: Any = None) -> None:
        self.fn = fn
        self.pads = _pads(pads)
        self.refusals: dict[str, Proof] = {}
        self._provers: dict[Any, Prover] = {}
        self._known: dict[Any, Proof] = {}
        self._n_again: Counter[Any] = Counter()
        self._refused: dict[Any, Proof] = {}
        self._by_size: dict[Any, Proof] = {}

    def already(self, structure: Any, actual: Mapping[str, int], bucket: Mapping[str, int]) -> Proof | None:
        """The proof that follows from what was proved of this size and of this bucket singly."""
        key = _key(structure, actual, bucket)
        size = self._by_size.get((structure, tuple(sorted(actual.items()))))
        known = self._known.get(key)
        if size is None or known is None or self._was_refused(key):
            return None
        if known.is_of_one_row and not _is_of_one_row(actual, key):
            return None
        if size.content != known.content or size.may_learn_more != known.may_learn_more:
            return None
        return size

    def _was_refused(self, key: Any) -> bool:
        return any(tree == key[0] for tree, _, _ in self._refused)

    def examine(
        self,
        call: Callable[[list[Tensor]], Any],
        structure: Any,
        names: Sequence[str],
        dims: Mapping[int, Mapping[int, str]],
        tensors: list[Tensor],
        actual: Mapping[str, int],
        bucket: Mapping[str, int],
        *,
        is_transparent: bool,
    ) -> Proof:
        """Run the call eagerly and say whether its bucket would have given the same."""
        prover = self._provers.get(structure)
        if prover is None:
            pads = {i: self._pad_of(names[i]) for i in dims}
            chosen = {i: pad for i, pad in pads.items() if pad is not None}
            prover = self._provers[structure] = Prover(
                call, names, dims, chosen, outside=lambda: reachable(self.fn), fn=self.fn
            )
        prover.call = call
        prover.is_transparent = is_transparent
        key = _key(structure, actual, bucket)
        padded = key[2]
        is_of_one_row = _is_of_one_row(actual, key)
        known = self._known.get(key)
        if known is not None and known.is_of_one_row and not is_of_one_row:
            known = None
        refused = self._refused.get(key)
        if refused is None and known is None:
            alike = [p for (tree, _, dims_), p in self._refused.items() if (tree, dims_) == (structure, padded)]
            if len(alike) >= HOPELESS and not any(k[0] == structure and k[2] == padded for k in self._known):
                refused = alike[-1]
        if refused is not None:
            return Proof(
                Status.REFUSED, call(tensors), reason=refused.reason, op=refused.op, where=refused.where
            )
        basis = known
        if basis is None and not self._was_refused(key):
            others = [
                p
                for (tree, _, dims_), p in self._known.items()
                if (tree, dims_) == (structure, padded) and not p.is_of_one_row
            ]
            if len(others) >= TRUSTED and all(p.content == others[0].content for p in others):
                basis = others[0]
        proof = prover.confirm(tensors, actual, bucket, basis) if basis else prover.prove(tensors, actual, bucket)
        if proof.status is Status.AGAIN:
            self._n_again[key] += 1
            if self._n_again[key] > MOST_AGAIN:
                proof.status = Status.REFUSED
                proof.reason = proof.reason or "the arguments never had two different values to prove it with"
        if proof.is_proved:
            proof.is_of_one_row = is_of_one_row and (basis is None or basis.is_of_one_row)
            if known is None:
                self._known[key] = proof
            self._by_size[(structure, tuple(sorted(actual.items())))] = proof
        if proof.status is Status.REFUSED:
            if basis is None:
                self._refused[key] = proof
            else:
                self._refused.setdefault((structure, None, padded), proof)
            label = ", ".join(f"{name}={n} in {bucket[name]}" for name, n in actual.items())
            self.refusals[label] = proof
        return proof

    def forget(self, proof: Proof) -> None:
        """Have it proved again with the next call."""
        self._known = {key: known for key, known in self._known.items() if known is not proof}
        self._by_size = {key: known for key, known in self._by_size.items() if known is not proof}

    def _pad_of(self, name: str) -> Content | None:
        return self.pads.get(name, self.pads.get(""))


def _key(structure: Any, actual: Mapping[str, int], bucket: Mapping[str, int]) -> tuple[Any, Any, Any]:
    """What a proof holds for: one tree, one bucket, one set of padded dims."""
    padded = frozenset(name for name, n in actual.items() if bucket[name] != n)
    return structure, tuple(sorted(bucket.items())), padded


def _is_of_one_row(actual: Mapping[str, int], key: tuple[Any, Any, Any]) -> bool:
    return any(actual[name] == 1 for name in key[2])


def refusal(proof: Proof, bucket: Mapping[str, int]) -> ConfigError:
    """The refusal in words; made for its text, not raised."""
    return ConfigError(
        "padding_refused",
        bucket=", ".join(f"{name}={n}" for name, n in bucket.items()),
        reason=proof.reason,
        op=proof.op or "no operation",
        where=proof.where or "the function's result",
    )


def _rule(given: Any, above: Above) -> Any:
    if given is None or given in ("auto", "powers_of_two"):
        return Unbounded()
    if given == "powers":
        return Unbounded() if above is Above.EAGER else powers(512, above)
    if given == "ladder":
        return ladder(above=above)
    if isinstance(given, str):
        raise ConfigError("bad_buckets", given=repr(given), problem="there is no rule of that name")
    if hasattr(given, "pick"):
        return given
    return explicit(given, above)


def _pads(given: Any) -> dict[str, Content | None]:
    """By argument path; "" for all others."""
    if isinstance(given, Mapping):
        return {name: _pad(each) for name, each in given.items()}
    return {"": _pad(given)}


def _pad(given: Any) -> Content | None:
    if given is None or given == "auto":
        return None
    if isinstance(given, str):
        try:
            return Pad(given)
        except ValueError:
            raise ConfigError(
                "bad_setting", variable="pad", value=given, allowed="zero | last | auto | a number"
            ) from None
    return given  # type: ignore[no-any-return]


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError("bucket_plan_unreadable", path=str(path), problem=str(error.strerror)) from error


def _report(kind: str, reason: str) -> None:
    state = process.current()
    if state is not None:
        state.report(kind, reason, level=logging.INFO)
