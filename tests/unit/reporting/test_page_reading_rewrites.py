"""Folding, demangling and rewrites: plain functions of the report."""

import re

from gfxgraph.core.unsafe import BY_NAME
from gfxgraph.reporting.page import Fold, folded
from gfxgraph.reporting.read_capture import demangled, short
from gfxgraph.reporting.rewrites import in_chinese, rewrite, why_unsafe


def test_repeated_layers_are_folded():
    """The longest repetition wins, the shortest period of it; what does not repeat stays; nothing is lost."""
    layer = ["norm", "mm", "mm", "gelu"]
    assert folded(["embed", *layer * 3, "head"]) == [Fold(0, 1, 1), Fold(1, 4, 3), Fold(13, 1, 1)]
    assert folded([]) == []
    for items in (list("aabbaabb"), list("abcabd"), list("aaaa"), list("abacabad")):
        folds = folded(items)
        assert [fold.start for fold in folds[1:]] + [len(items)] == [fold.end for fold in folds]
        for fold in folds:
            first = items[fold.start : fold.start + fold.period]
            assert items[fold.start : fold.end] == first * fold.n_times


def test_names_are_demangled_and_shortened():
    """C++ names are readable, and short ones keep what tells two kernels apart; others stay as they are."""
    mangled = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3EEEEviT0_T1_"
    whole = demangled(mangled)
    assert whole.startswith("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>")
    assert short(whole) == "vectorized_elementwise_kernel<CUDAFunctor_add>"
    assert demangled("triton_poi_fused_add_0") == short("triton_poi_fused_add_0") == "triton_poi_fused_add_0"
    assert short("void (anonymous namespace)::softmax<float>(float*, int)") == "softmax"


def test_every_unsafe_operation_has_a_reason_and_a_rewrite():
    """Whatever the table of unsafe operations names comes with why and what to write, in both languages."""
    for name in BY_NAME:
        assert why_unsafe(name) and rewrite(name)
        left = f"{why_unsafe(name)} {rewrite(name)}"
        for english, chinese in in_chinese():
            left = left.replace(english, chinese if english != chinese else "the same")
        assert not re.search(r"(?<![\w:./])[a-z]+ [a-z]+ [a-z]+", left), left
