"""The identity gate: no edit that changes NVIDIA's path passes, and the shapes of our own fixes do."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gfxgraph.port.fix.gate import check_cpp, check_python

CONSTANTS = ["1", "2", "'a'", "'reduce-overhead'", "True", "[8, 16]", "f(3)", "x.y", "(9, 0)"]
GUARDS_AMD = ["torch.version.hip", "torch.version.hip is not None", "is_rocm", "not (torch.version.hip is None)",  # fmt: skip
              "bool(torch.version.hip)", "getattr(torch.version, 'hip', None)", "torch.version.cuda is None"]  # fmt: skip
GUARDS_OTHER = [
    "unknown()",
    "FLAG",
    "is_amd_maybe",
    "os.environ.get('X')",
    "torch.cuda.is_available()",
    "hip",
    "x",
]
HEAD = "import torch\nimport os\nis_rocm = torch.version.hip is not None\n"


@st.composite
def programs(draw: st.DrawFn) -> list[str]:
    """Straight-line statements with constants that an edit can name: ``v3 = @2`` marks where value 2 stands."""
    lines = []
    for i in range(draw(st.integers(2, 6))):
        value = draw(st.sampled_from(CONSTANTS))
        form = draw(st.sampled_from(["v{i} = {v}", "g(a, k={v})", "def h{i}(p={v}):\n    return {v}", "if x > {i}:\n    w{i} = {v}\nelse:\n    w{i} = 0"]))  # fmt: skip
        lines.append(form.format(i=i, v=value))
    return lines


def text(lines: list[str]) -> str:
    return HEAD + "\n".join(lines) + "\n"


@st.composite
def harmful(draw: st.DrawFn) -> tuple[str, str]:
    """A program and an edit of it that changes what NVIDIA runs."""
    old = draw(programs())
    at = draw(st.integers(0, len(old) - 1))
    amd, other = draw(st.sampled_from(GUARDS_AMD)), draw(st.sampled_from(GUARDS_OTHER))
    fresh = draw(st.sampled_from(["changed()", "-77", "'other'"]))
    new = list(old)
    kind = draw(st.integers(0, 13))
    body = "\n".join("    " + row for row in old[at].splitlines())
    if kind == 0:
        new.insert(at, f"z = {fresh}")
    elif kind == 1:
        new[at] = f"z = {fresh}"
    elif kind == 2:
        del new[at]
    elif kind == 3:  # arms swapped: NVIDIA gets the new value
        new.insert(at, f"z = 1 if {amd} else {fresh}")
    elif kind == 4:  # a guard nobody vouches for
        new.insert(at, f"if {other}:\n    z = {fresh}")
    elif kind == 5:  # the old statement moved under AMD alone
        new[at] = f"if {amd}:\n{body}"
    elif kind == 6:  # moved to where a guard cannot be known
        new[at] = f"if {other}:\n{body}"
    elif kind == 7:  # torch is not torch
        new.insert(0, "torch = fake()")
        new.insert(1, f"if {amd}:\n    z = {fresh}")
    elif kind == 8:  # the guard's name is bound again
        new.insert(at, "is_rocm = FLAG")
        new.append(f"if is_rocm:\n    z = {fresh}")
    elif kind == 9:  # or: NVIDIA runs the second term
        new.insert(at, f"if {amd} or {other}:\n    z = {fresh}")
    elif kind == 10:
        new.insert(at, f"if not ({amd}):\n    z = {fresh}")
    elif kind == 11:  # the test itself has an effect
        new.insert(at, f"if {other} and {amd}:\n    pass")
    elif kind == 12:
        new.append(old[at] + "\nz = " + fresh)
    else:  # the else arm of an AMD test
        new.insert(at, f"if {amd}:\n    pass\nelse:\n    z = {fresh}")
    return text(old), text(new)


@settings(max_examples=1000, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(harmful())
def test_no_harmful_edit_passes(pair: tuple[str, str]) -> None:
    """Of 1,000 generated edits that change NVIDIA's path, none passes."""
    old, new = pair
    assert not check_python(old, new).passes


@st.composite
def harmless(draw: st.DrawFn) -> tuple[str, str]:
    """A program and an edit of it that only AMD sees."""
    old = draw(programs())
    at = draw(st.integers(0, len(old) - 1))
    amd = draw(st.sampled_from(GUARDS_AMD))
    new = list(old)
    body = "\n".join("    " + row for row in old[at].splitlines())
    kind = draw(st.integers(0, 4))
    if kind == 0:
        new.insert(at, f"if {amd}:\n    z = fresh()")
    elif kind == 1:
        new[at] = f"if not ({amd}):\n{body}"
    elif kind == 2:
        new[at] = f"if {amd}:\n    z = fresh()\nelse:\n{body}"
    elif kind == 3:
        old.append("z = 5")
        new.append(f"z = 6 if {amd} else 5")
    else:
        old.append("z = big > (9, 0)")
        new.append(f"z = (not ({amd})) and big > (9, 0)")
    return text(old), text(new)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(harmless())
def test_guarded_edits_pass(pair: tuple[str, str]) -> None:
    """An edit that stands under a ROCm guard passes, or the gate would be of no use."""
    old, new = pair
    verdict = check_python(old, new)
    assert verdict.passes, verdict.reason


CPP = [
    "int a = 1;",
    "#ifdef USE_CUDA\nint b;\n#else\nint c;\n#endif",
    "#if __CUDA_ARCH__ >= 800\nint d;\n#endif",
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
        f"#if defined({macro})\nint z;\n#elif 0 == 1 || defined({macro})\n#endif",
    ]
    bad = [
        "int z = 9;",
        f"#ifndef {macro}\nint z = 9;\n#endif",
        f"#if defined({macro}) || FLAG\nint z = 9;\n#endif",
        "#ifdef MY_HIP\nint z = 9;\n#endif",
        f"#ifdef {macro}\n#else\nint z = 9;\n#endif",
        "#ifdef __CUDACC__\nint z = 9;\n#endif",
    ]
    options = [(g, True) for g in good[:3]] + [(b, False) for b in bad]
    added, passes = options[kind % len(options)]
    old = "\n".join(parts) + "\n"
    new = "\n".join([*parts[:at], added, *parts[at:]]) + "\n"
    assert check_cpp(old, new).passes is passes
