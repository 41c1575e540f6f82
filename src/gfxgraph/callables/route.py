"""Where calls of one exact signature go: to an entry, padded or not; above every bucket; or to the function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from gfxgraph.callables.buckets import Bucketed
from gfxgraph.callables.fast_path.writer import Fast
from gfxgraph.callables.padding.content import Content
from gfxgraph.callables.padding.judge import Padded, Refusal
from gfxgraph.callables.signature import RunEagerly

if TYPE_CHECKING:
    from gfxgraph.callables.entry import Captures

REFUSED = "padding refused"


class Route:
    """Where calls of one exact signature go."""

    __slots__ = (
        "bucketed", "content", "entry", "fast", "fast_of", "has_views", "mark", "padded", "result_sizes", "too_large",
        "why_eager",
    )  # fmt: skip

    def __init__(self, entry: Captures | None, bucketed: Bucketed | None = None, why_eager: str = "") -> None:
        self.entry = entry
        self.bucketed = bucketed
        self.why_eager = why_eager
        self.fast: Fast | None = None
        self.fast_of: tuple[object, ...] = ()
        self.mark = object()
        """Stands for the route where a reference to it would be a cycle."""
        self.padded: Padded | None = None
        """How the bucket serves this size; None until that is known, and where nothing is padded."""
        self.content: Sequence[Content] | None = None
        """What the padding of each argument holds."""
        self.result_sizes: Sequence[Sequence[int] | None] | None = None
        self.too_large: TooLarge | None = None
        self.has_views = True
        """Whether a result may be a view of an argument that lies differently than the bucket's buffer."""

    def cut_to(self, entry: Captures) -> None:
        """Make out how a replay's results are cut to the call's size.

        Raises:
            RunEagerly: they cannot be.
        """
        assert self.padded is not None and entry.first is not None
        results = entry.results
        sizes: list[Sequence[int] | None] = []
        if self.padded.structure != entry.first.outputs.structure:
            self.entry, self.why_eager = None, "the captured function returned something else than before"
            raise RunEagerly(self.why_eager)
        for size, result in zip(self.padded.sizes, results):
            if result.of_input >= 0 and not result.layout[0]:
                self.entry, self.why_eager = None, "a result is a view of a padded argument"
                raise RunEagerly(self.why_eager)
            made = result.made
            sizes.append(size if made is not None and tuple(made.size()) != tuple(size) else None)
        self.result_sizes = sizes

    def look_for_views(self, entry: Captures, tensors: Sequence[Tensor]) -> None:
        """See whether results are views of arguments, which the strides of other calls in the bucket do not fit.

        Raises:
            RunEagerly: one is.
        """
        for result in entry.results:
            if result.of_input >= 0 and not result.layout[0]:
                if tensors[result.of_input].stride() != entry.statics[result.of_input].tensor.stride():
                    self.entry, self.why_eager = None, "a result is a view of an argument of another layout"
                    raise RunEagerly(self.why_eager)
        self.has_views = False


class TooLarge:
    """A call above the largest bucket: which dim, every dim's size, and how pieces are joined, once known."""

    __slots__ = ("dims", "joints", "name", "pieces", "refusal", "sizes")

    def __init__(self, name: str, sizes: Mapping[str, int]) -> None:
        self.name = name
        self.sizes = sizes
        self.pieces: tuple[int, ...] = ()
        self.dims: Mapping[int, Mapping[int, str]] = {}
        self.joints: list[int] | None = None
        self.refusal: Refusal | None = None
