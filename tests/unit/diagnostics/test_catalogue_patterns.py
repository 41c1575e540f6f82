"""diagnostics.catalogue: what the expressions match, and what they must not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pydoc_data.topics import topics  # type: ignore[import-untyped]
from re import _constants as sre  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import pytest

from gfxgraph.diagnostics.explainer import explain
from gfxgraph.diagnostics.expression_index import Item, rows
from gfxgraph.diagnostics.literals import needed
from gfxgraph.hardware import advice

PROSE = sorted(set(re.findall(r"[a-z]{3,}", " ".join(topics.values()).lower())))
EXPRESSIONS = [item for item in rows() if item.kind in ("strong", "weak", "unless", "combo")]


def is_wild(node: Any) -> bool:
    """Whether anything may stand here: a gap of several characters, or nothing."""
    op, value = node
    repeats = op in (sre.MAX_REPEAT, sre.MIN_REPEAT) and value[1] > 1
    return bool(repeats) and list(value[2])[0][0] is sre.ANY


def open_words(nodes: Iterable[Any], left: bool = True, right: bool = True) -> Iterator[str]:
    """Runs of letters with a gap, or an end of the expression, on both sides."""
    nodes = list(nodes)
    at = 0
    while at < len(nodes):
        stop = at
        while stop < len(nodes) and nodes[stop][0] is sre.LITERAL and chr(nodes[stop][1]).isalpha():
            stop += 1
        end = max(stop, at + 1)
        sides = (is_wild(nodes[at - 1]) if at else left, is_wild(nodes[end]) if end < len(nodes) else right)
        if stop > at:
            if all(sides):
                yield "".join(chr(value) for _, value in nodes[at:stop]).lower()
        else:
            op, value = nodes[at]
            if op is sre.SUBPATTERN:
                yield from open_words(value[3], *sides)
            elif op is sre.BRANCH:
                for arm in value[1]:
                    yield from open_words(arm, *sides)
        at = end


def test_short_words_are_bounded() -> None:
    """RMA is in every "information": a word of up to four letters is bounded where prose has it inside another."""
    for item in EXPRESSIONS:
        short_words_are_bounded(item)


def short_words_are_bounded(item: Item) -> None:
    for word in open_words(parser.parse(item.regex)):
        inside = [other for other in PROSE if word in other[1:] and len(word) <= 4]
        begins = [other for other in PROSE if other.startswith(word) and other != word and len(word) <= 3]
        assert not inside + begins, (word, inside + begins)


def test_a_ring_timeout_is_no_memory_error() -> None:
    """The commonest kernel log of AMD's users; and a memory error is still one."""
    log = (
        "amdgpu 0000:03:00.0: amdgpu: ring gfx_0.0.0 timeout, signaled seq=12, emitted seq=14\n"
        "amdgpu 0000:03:00.0: amdgpu: Process information: process game pid 4242 thread game:cs0 pid 4243\n"
        "amdgpu 0000:03:00.0: amdgpu: GPU reset begin!\n"
    )
    assert [match.code for match in explain(log).matches] == ["ring_timeout_reset"]
    assert explain("amdgpu 0000:03:00.0: amdgpu: RAS poison consumption is detected").code == "ecc_error"
    assert explain("amdgpu: bad page threshold exceeded, device enters RMA state").code == "ecc_error"


def test_what_a_gpu_has_is_not_denied() -> None:
    """AITER is made for gfx950; switching it off is not the first advice there, and it is on RDNA."""
    failed = "[aiter] RuntimeError: build failed: module_gemm"
    cdna, rdna = (advice.explain(f"{arch} {failed}", lang="en").format() for arch in ("gfx950", "gfx1100"))
    assert cdna.startswith("aiter_unsupported: ") and "not on AITER" not in cdna
    assert "not support this GPU" not in cdna and "do:   turn it off" in rdna


def test_a_setting_that_the_text_has_is_not_advised() -> None:
    """Who runs with the variable set is not told to set it."""
    failed = "gfx1031 on /dev/kfd\nRuntimeError: HIP error: invalid device function"
    text = f"$ HSA_OVERRIDE_GFX_VERSION=10.3.0 python a.py\n{failed}"
    assert "HSA_OVERRIDE_GFX_VERSION=10.3.0" in advice.explain(failed, lang="en").format()
    assert "export HSA_OVERRIDE_GFX_VERSION=10.3.0" not in advice.explain(text, lang="en").format()


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("UserWarning: expandable_segments not supported on this platform\n"
         "ImportError: libMIOpen.so.1: cannot open shared object file", "missing_shared_library"),
        ("hipcc\nx.cpp:3: error: unknown type name 'custom_t'", None),
        ("hipcc\nx.cpp:3:7: error: use of undeclared identifier 'current'", "source_rocm_mismatch"),
        ("gfx1030\nLLVM ERROR: wave64 is not supported on GFX10", "wavefront_mismatch"),
    ],
)  # fmt: skip
def test_the_right_line_and_class(text: str, code: str | None) -> None:
    """An error before a warning; errors of C++ are none of device code; wave64 is no question of the override."""
    found = advice.explain(text, lang="en")
    assert found.code == code and "HSA_OVERRIDE" not in found.format()


def test_no_alternative_of_a_whole_expression_is_short() -> None:
    """`_rocm_init|rocm_sdk...(not found)` finds the bare name: a bracket is missing. Names of statuses may do so."""
    for item in EXPRESSIONS:
        nodes = list(parser.parse(item.regex)) if item.kind in ("strong", "weak") else []
        for arm in nodes[0][1][1] if len(nodes) == 1 and nodes[0][0] is sre.BRANCH else ():
            text = "".join(chr(value) if op is sre.LITERAL else " " for op, value in arm)
            assert " " in text or text.startswith(("nccl", "hip")), (item.code, item.regex)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("ggml_rocm_init: found 1 ROCm devices", None),
        ("\tlibnvrtc.so.12 => /usr/lib/x86_64-linux-gnu/libnvrtc.so.12 (0x00007f)\ngfx1100 ROCm", None),
        ("rocm\nRuntimeError: operator torchvision::nms does not exist", "companion_mismatch"),
        ("rocm gfx1100\nRuntimeError: Could not load libtorchcodec. Likely causes:", "companion_mismatch"),
        ("gfx1100\nNotImplementedError: Could not run 'torchvision::nms' with arguments from the 'CUDA' backend",
         "companion_mismatch"),
    ],
)  # fmt: skip
def test_what_was_called_something_else(text: str, code: str | None) -> None:
    """Harmless lines that were called failures, and common failures that were not known."""
    assert explain(text).code == code


def test_every_expression_is_found_by_its_literals() -> None:
    """What ``needed`` says of an expression is in each text that the expression matches."""
    for regex, text in (
        ("(?:ab|cd)x+[Ee]rror", "CDxError"),
        ("a{0,3}b[0-9]", "b7"),
        ("x|yz", "yz"),
        ("[.]ab?c", ".ac"),
    ):
        found = needed(parser.parse(regex))
        assert re.search(regex, text, re.IGNORECASE) and any(one in text.lower() for one in found), (regex, found)
