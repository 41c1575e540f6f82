"""Whether a function takes random numbers from the device's default generator, seen in one run of it.

torch tags its operations that may (``nondeterministic_seeded``). A run without one of them takes none, whatever
other threads take meanwhile. Attention is tagged for its dropout: there, in others' operations, and in compiled code,
which no dispatch mode sees into, the generator's offset tells, and a draw of another thread counts as one of the
function's. The host's default generator likewise.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class Draws(TorchDispatchMode):
    """Watches the run inside; then ``none`` says that it took no random numbers, ``of_host`` that it took the host's.

    Args:
        is_opaque: the run is of compiled code.
    """

    supports_higher_order_operators = True

    def __init__(self, device_index: int, *, is_opaque: bool = False) -> None:
        super().__init__()
        self._generator = torch.cuda.default_generators[device_index]
        self._may_draw = is_opaque
        self.none = False
        self.of_host = False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True  # otherwise compiled code would run, and stay, eager

    def __enter__(self) -> Draws:
        self._offset = self._generator.get_offset()
        self._host = torch.get_rng_state()
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, at)
        self.none = not self._may_draw or self._generator.get_offset() == self._offset
        self.of_host = self._may_draw and not torch.equal(self._host, torch.get_rng_state())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_torchs = getattr(func, "namespace", "") in _TAGGED
        if not is_torchs or torch.Tag.nondeterministic_seeded in func.tags:
            self._may_draw = True
        return func(*args, **(kwargs or {}))


_TAGGED = ("aten", "prims", "prim")
