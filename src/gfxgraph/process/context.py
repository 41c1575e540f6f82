"""The context that driver calls need in each thread.

A thread that has launched nothing through torch has none. There CUDA's driver refuses a launch, and crashes with a
segmentation fault if a node of a graph exec is updated (CUDA 13.0, seen on an H100; docs/decisions/0101).
"""

from __future__ import annotations

import threading


class Contexts(threading.local):
    """The devices used by each thread."""

    devices: frozenset[int] = frozenset()
    """Devices that this thread has used: the context of one of them is current in it."""

    def give(self, device_index: int) -> None:
        """Make a context current in this thread.

        Querying a stream would do this as well, but ends a capture of another thread.
        """
        if device_index not in self.devices:
            # lazily: callers have torch loaded
            import torch

            torch.zeros(1, device=f"cuda:{device_index}")
            self.devices |= {device_index}
