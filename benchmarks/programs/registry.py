"""What a file of programs writes its programs with; nothing of how they are judged.

A program is a function that ``program`` notes. One without a parameter returns a function, the arguments of its calls
and, where it keeps state, what reads it. One with a parameter, ``graphed``, is a whole script: it wraps what it
likes, changes what its user would change, and returns everything that its user would look at.
"""

from __future__ import annotations

import torch

N = 12
D = "cuda"
PROGRAMS = {}


def program(make):
    assert make.__name__ not in PROGRAMS, f"two programs are named {make.__name__}"
    PROGRAMS[make.__name__] = make
    return make


def rand(*size):
    return torch.rand(*size, device=D)


def randn(*size):
    return torch.randn(*size, device=D)


def weights_of(*modules):
    return [p.detach().clone() for module in modules for p in (*module.parameters(), *module.buffers())]
