"""diagnostics.known and libraries: the case, not the class; the package that holds a missing file."""

from __future__ import annotations

import pytest

from gfxgraph.diagnostics import index, known, libraries
from gfxgraph.diagnostics.explain import explain
from gfxgraph.diagnostics.known import KnownCase, Setting, best, cases, frequencies, parse

RECORDS = [(path.stem, number, case) for path in known.FOLDER.glob("*.toml")
           for number, case in enumerate(cases(path.stem))]  # fmt: skip


def record(**fields: object) -> KnownCase:
    plain = {"signature": "frobnicate.cpp gemm_x1 widget_cache", "cause_en": "c", "fix": "f", "source": "s"}
    return parse({**plain, **fields})


def found(text: str, records: list[KnownCase], monkeypatch: pytest.MonkeyPatch, **setting: frozenset[str]) -> str:
    """The fix of the case that is told; '' if none is."""
    monkeypatch.setattr(known, "cases", lambda code: tuple(records))
    case = best("x", (), Setting(text.lower(), **setting), {"": 100})
    return case.fix["en"] if case else ""


def test_a_case_is_near_if_most_of_its_words_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words as wholes, in any case and inside paths; nothing where only a part is there."""
    whole = "error in /src/Frobnicate.cpp:12: GEMM_X1 failed, widget_cache"
    assert found(whole, [record()], monkeypatch) == "f"
    assert not found("error in frobnicate.cpp: gemm_x12", [record()], monkeypatch)
    assert known.contains("/usr/lib/libdw.so.1: cannot", "libdw.so.1") and not known.contains(
        "xlibdw.so.1", "libdw.so.1"
    )


def test_what_the_text_contradicts_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another GPU, another system; what the text does not say contradicts nothing."""
    text = "frobnicate.cpp gemm_x1 widget_cache"
    for fields, fits in (
        ({"arch": "gfx1100 RDNA3"}, True),
        ({"arch": "gfx906"}, False),
        ({"system": "linux"}, True),
        ({"system": "windows"}, False),
    ):
        here = {"gpus": frozenset({"gfx1100", "rdna3", "rdna"}), "systems": frozenset({"linux"})}
        assert bool(found(text, [record(**fields)], monkeypatch, **here)) == fits, fields


def test_of_two_that_fit_equally_none_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless they have the same fix, or one is clearly better."""
    text = "frobnicate.cpp gemm_x1 widget_cache one_more_word"
    assert not found(text, [record(fix="f1"), record(fix="f2")], monkeypatch)
    assert found(text, [record(fix="f1"), record(fix="f1", source="t")], monkeypatch) == "f1"
    better = record(signature="frobnicate.cpp gemm_x1 widget_cache one_more_word", fix="f3")
    assert found(text, [record(fix="f1"), better], monkeypatch) == "f3"


def test_the_case_replaces_the_class_in_the_answer() -> None:
    """Cause and fix of the thread first, then what is said of the class."""
    log = "import torch\ntorch._C\nImportError: libdw.so.1: cannot open shared object file\nrocm 7.1"
    text = explain(log, lang="en").format()
    assert "  case: " in text and text.partition("  do:   ")[2].startswith("sudo apt install libdw1")


def test_every_record_is_whole_and_is_found_in_its_own_log() -> None:
    """Its class exists, its texts are short; a log with its words and message tells it, or none."""
    frequency = frequencies()
    for code, number, case in RECORDS:
        assert code in index.names().ranks
        assert case.source.startswith("http") and case.fix["en"] and case.cause["en"], case.signature
        assert len(case.cause["en"]) <= 160 and len(case.fix["en"]) <= 180 and len(case.check["en"]) <= 180
        assert not case.message or len(case.message) >= 16, case.message
        gpus, systems = case.arch.lower().split(), filter(None, [case.system])
        here = Setting(case.signature.lower(), frozenset(gpus), frozenset(systems))
        assert best(code, [number] if case.message else [], here, frequency) in (case, None), (code, case.signature)


def test_no_two_records_say_the_same() -> None:
    """The same words on the same GPU and system are one case."""
    seen: dict[object, str] = {}
    for code, _, case in RECORDS:
        key = (code, *sorted(case.signature.lower().split())), case.arch, case.system
        assert key not in seen, (code, case.signature, seen[key])
        seen[key] = case.source


@pytest.mark.parametrize(
    ("line", "system", "said"),
    [
        ("ImportError: libdw.so.1: cannot open shared object file", "", "sudo apt install libdw1 "),
        ("ImportError: libdw.so.1: cannot open shared object file", "fedora", "sudo dnf install elfutils-libs "),
        ("libsuitesparseconfig.so.7: cannot open shared object file", "archlinux", "sudo pacman -S suitesparse "),
        ("librocprofiler-sdk.so.0: cannot open shared object file", "", "sudo apt install rocprofiler-sdk "),
        ("/usr/bin/ld: cannot find -lamdhip64", "", "sudo apt install hip-runtime-amd "),
        ("fatal error: 'rocrand/rocrand.h' file not found", "", "sudo apt install rocrand-dev "),
        ("fatal error: hip/hip_runtime.h: No such file or directory", "", "sudo apt install hip-dev "),
        ("  hipblas-config.cmake not found", "", "sudo apt install hipblas-dev "),
        ("ImportError: libnvrtc.so.12: cannot open shared object file", "", "pip install --force-reinstall torch "),
        ("libomp140.x86_64.dll was not found", "windows", "winget install Microsoft.VisualStudio"),
        ("VCRUNTIME140_1.dll was not found", "windows", "winget install Microsoft.VCRedist"),
        ("loaded librocblas.so.4", "", ""),
        ("libfoo.so.1: cannot open shared object file", "", ""),
    ],
)
def test_the_missing_file_names_the_package(line: str, system: str, said: str) -> None:
    """By system; a file of NVIDIA's means that a build for CUDA is installed."""
    answer = libraries.advice(line, frozenset({system}), "en")
    assert answer.startswith(said) if said else not answer
