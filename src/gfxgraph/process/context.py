"""The context that driver calls need in each thread.

A thread that has launched nothing through torch has none. CUDA's driver refuses a launch there, and dies of a
segmentation fault where a node of a graph exec is changed (CUDA 13.0, seen on an H100; docs/decisions/0101).
"""

from __future__ import annotations

import threading


class Contexts(threading.local):
    """What each thread has."""

    devices: frozenset[int] = frozenset()
    """Devices that this thread has used: the context of one of them is current in it."""

    def give(self, device_index: int) -> None:
        """Make a context current in this thread.

        To ask a stream whether it is done would do, too, but ends a capture of another thread.
        """
        if device_index not in self.devices:
            # lazily: callers have torch loaded
            import torch

            torch.zeros(1, device=f"cuda:{device_index}")
            self.devices |= {device_index}
