"""Read by mypy in test_typing.py, not run: what a strict checker knows of graphed functions."""

from typing import assert_type

import gfxgraph


def step(ids: list[int], *, scale: float = 1.0) -> dict[str, int]:
    return {"n": int(len(ids) * scale)}


graphed_step = gfxgraph.graphed(step, dynamic={"ids": {0: "batch"}}, buckets=[1, 2, 4], mode="hot")
assert_type(graphed_step([1], scale=2.0), dict[str, int])
assert_type(graphed_step.stats()["replays"], int)
assert_type(graphed_step.explain(), str)


@gfxgraph.graphed(max_graphs=8)
def decorated(n: int) -> str:
    return str(n)


assert_type(decorated(3), str)


class Model:
    @gfxgraph.graphed
    def forward(self, n: int) -> bytes:
        return bytes(n)


assert_type(Model().forward(3), bytes)


class Module:
    """As ``torch.nn.Module``, whose types are not read here."""

    def named_modules(self, prefix: str = "") -> list[tuple[str, "Module"]]:
        return [(prefix, self)]

    def __call__(self, n: int) -> int:
        return n


assert_type(gfxgraph.graphed(Module(), in_place=True), Module)
assert_type(gfxgraph.Graphed.of(Module()).explain(), str)
assert_type(gfxgraph.is_enabled(), bool)

gfxgraph.graphed(step, bucket=[1])  # refused: no such option
gfxgraph.graphed(step, buckets=1.5)  # refused: no buckets
gfxgraph.graphed(step, mode="warm")  # refused: no such mode
graphed_step("x")  # refused: no list of numbers
graphed_step([1], 2.0)  # refused: by keyword only
decorated()  # refused: n is missing
Model().forward("3")  # refused: no number
