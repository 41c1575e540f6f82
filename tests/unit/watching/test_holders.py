"""The search for who holds an input."""

from __future__ import annotations

import types

import torch

from gfxgraph.watching.holders import HolderSearch

WEIGHT = torch.ones(2)


def seen_from(value: object) -> set[int]:
    search = HolderSearch([])
    search._meet(value, None, None, False, "value")
    search._walk()
    return set(search._seen)


def test_a_librarys_functions_lead_to_what_they_wrap_alone():
    """Not to all that their modules name, thousands of objects for each capture; a program's own do lead on."""
    assert len(seen_from(torch.einsum)) == 1

    box, own = types.SimpleNamespace(weight=WEIGHT), {}
    own["box"] = box
    program = types.FunctionType((lambda: box).__code__.replace(co_freevars=(), co_names=("box",)), own)
    assert id(box) in seen_from(program)
    assert id(box) in seen_from(torch.no_grad()(program))
