"""The identity gate: no edit that changes NVIDIA's path passes, and the shapes of our own fixes do."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gfxgraph_port.fix.edits import ROCM, apply_python, of
from gfxgraph_port.fix.gate import check, check_cmake, check_cpp

CPP = [
    "int a = 1;",
    "#ifdef USE_CUDA\nint b;\n#else\nint c;\n#endif",
    "#if __CUDA_ARCH__ >= 800\nint d;\n#endif",
    "#if defined(USE_ROCM)\nint e;\n#elif defined(X)\nint g;\n#endif",
    "f(0xffffffff);",
]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(CPP), min_size=1, max_size=5), st.integers(0, 9), st.data())
def test_cpp_gate(parts: list[str], kind: int, data: st.DataObject) -> None:
    """In C++ only arms that ROCm's macros open may differ."""
    at = data.draw(st.integers(0, len(parts)))
    macro = data.draw(st.sampled_from(["USE_ROCM", "__HIPCC__", "__HIP_PLATFORM_AMD__"]))
    good = [
        f"#ifdef {macro}\nint z = 9;\n#endif",
        f"#if defined({macro}) && FLAG\nint z = 9;\n#endif",
        f"#ifndef {macro}\n#else\nint z = 9;\n#endif",
    ]
    bad = [
        "int z = 9;",
        f"#ifndef {macro}\nint z = 9;\n#endif",
        f"#if defined({macro}) || FLAG\nint z = 9;\n#endif",
        "#ifdef MY_HIP\nint z = 9;\n#endif",
        f"#ifdef {macro}\n#else\nint z = 9;\n#endif",
        "#ifdef __CUDACC__\nint z = 9;\n#endif",
    ]
    options = [(g, True) for g in good] + [(b, False) for b in bad]
    added, passes = options[kind % len(options)]
    old = "\n".join(parts) + "\n"
    new = "\n".join([*parts[:at], added, *parts[at:]]) + "\n"
    assert check_cpp(old, new).passes is passes
    if passes:
        replaced = f"#if defined({macro})\nint z;\n#else\n{parts[0]}\n#endif"
        assert check_cpp(old, "\n".join([replaced, *parts[1:]]) + "\n").passes
        assert not check_cpp(old, "\n".join([replaced.replace("#else\n", "#else\nint y;"), *parts[1:]])).passes


@pytest.mark.parametrize("value", ["[9, 0]", "True", "f(3)", "'a'"])
@pytest.mark.parametrize(
    ("form", "passes"),
    [
        (f"({ROCM} is None and {{old}})", True),
        (f"({ROCM} is not None or {{old}})", True),
        (f"(1 if {ROCM} else {{old}})", True),
        (f"({ROCM} is None or {{old}})", False),
        (f"({{old}} if {ROCM} else 1)", False),
        ("(hip is None and {old})", False),
        ("1", False),
    ],
)
def test_python_gate(form: str, passes: bool, value: str) -> None:
    """Of the forms of an expression those pass that have the old value where torch.version.hip is None."""
    old = f"x = {value}\n"
    edit = of(ast.parse(old).body[0].value, form)
    new = apply_python(old, [edit])
    assert check("m.py", old, new, [edit]).passes is passes
    if passes:
        torch = type("torch", (), {"version": type("version", (), {"hip": None})})
        scopes = [{"torch": torch, "f": str}, {"torch": torch, "f": str}]
        for text, scope in zip((old, new), scopes):
            exec(text, scope)  # noqa: S102
        assert scopes[0]["x"] == scopes[1]["x"]


def test_cmake_gate() -> None:
    """With USE_HIP off the commands are the same, also those under conditions of several lines."""
    old = "project(a LANGUAGES CUDA)\nif(X AND\n   Y)\n  add_library(a a.cu)\nendif()\n"
    head = 'option(USE_HIP "" OFF)\nif(USE_HIP)\n  project(a LANGUAGES HIP)\nelse()\n  project(a LANGUAGES CUDA)\nendif()\n'
    assert check_cmake(old, old.replace("project(a LANGUAGES CUDA)\n", head)).passes
    assert not check_cmake(
        old, old.replace("project(a LANGUAGES CUDA)\n", head.replace("  project(a LANGUAGES CUDA)\n", ""))
    ).passes
    assert not check_cmake(old, old + "if(USE_HIP)\nelse()\nadd_library(x y.cu)\nendif()\n").passes
    assert not check_cmake(old + "# USE_HIP\n", old).passes
