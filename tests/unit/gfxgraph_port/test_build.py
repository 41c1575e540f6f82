"""Units, the compiler's verdict and the loop, with a compiler that is a script."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from gfxgraph.cli.port import command
from gfxgraph_port import hipify
from gfxgraph_port.build import compiler as compiling
from gfxgraph_port.build import findings
from gfxgraph_port.build import judge as judging
from gfxgraph_port.build.compiler import Compiler, parse
from gfxgraph_port.build.real import BuildOutcome
from gfxgraph_port.build.units import read_tree, units_of
from gfxgraph_port.fix import compat, compiled, run
from gfxgraph_port.fix import loop as looping
from tests.unit.gfxgraph_port.conftest import write

TABLE = hipify.Hipify(
    "a table", {"cudaMalloc": "hipMalloc", "cudaFree": "hipFree"}, {"cuda_runtime.h": "hip/hip_runtime.h"}
)
SOURCE = '#include "deep/k.cuh"\n#include <cuda_runtime.h>\nvoid f(void** p) { cudaMalloc(p, 4); }\n'
CLANG = """In file included from /r/a.cu:1:
/r/k.cuh:7:3: error: use of undeclared identifier 'cudaFoo'
/r/a.cu:9:1: note: in instantiation of function template
1 error generated when compiling for host.
/r/a.cu:2:3: warning: ignoring return value of type 'hipError_t' declared with 'nodiscard' attribute [-Wunused-value]
/r/a.cu:3:1: fatal error: 'gtest/gtest.h' file not found
1 warning and 1 error generated when compiling for gfx942.
"""
# Complains of `Outer<T>::Inner` without typename, at its column; everything else compiles.
SCRIPT = """import re, sys
source = sys.argv[-1]
for n, row in enumerate(open(source), 1):
    if m := re.search(r"(?<!typename )T::Inner", row):
        sys.exit(f"{source}:{n}:{m.start() + 1}: error: missing 'typename' prior to dependent type name 'T::Inner'")
"""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    monkeypatch.setattr(hipify, "load", lambda: TABLE)
    monkeypatch.setattr(looping, "load", lambda: TABLE)
    monkeypatch.setattr("gfxgraph_port.fix.run.load_hipify", lambda: TABLE)
    script = tmp_path / "clang.py"
    script.write_text(SCRIPT)
    made = Compiler((sys.executable, str(script)), "1")
    monkeypatch.setattr(compiling, "find_compiler", lambda: made)
    return made


def test_units_have_the_folders_their_includes_need(tmp_path: Path) -> None:
    """A folder is needed because an include is found below it; compile_commands.json has the last word."""
    write(tmp_path, {"src/a.cu": SOURCE, "inc/deep/k.cuh": "#include <vector>\n", "b.cpp": "int x;\n"})
    tree = read_tree(str(tmp_path))
    (unit,) = units_of(tree)
    assert (unit.path, unit.folders) == ("src/a.cu", ("inc",))
    row = {
        "directory": str(tmp_path),
        "file": "src/a.cu",
        "command": "nvcc -Iinc -DN=2 -fplugin=x.so -o /etc/x -c src/a.cu",
    }
    (tmp_path / "compile_commands.json").write_text(json.dumps([row, {"directory": "/", "file": "etc/passwd"}]))
    (told,) = units_of(read_tree(str(tmp_path)))
    assert (told.folders, told.macros) == (("inc",), ("N=2",))


def test_diagnostics_know_their_side_and_where_they_came_from() -> None:
    """Errors, unchecked results and missing headers, each with the pass that said it."""
    first, second, third = parse(CLANG)
    assert (first.kind, first.side, first.through, len(first.notes)) == ("error", "host", (("/r/a.cu", 1),), 1)
    assert (second.kind, second.side) == ("unchecked", "gfx942")
    assert (third.kind, third.line) == ("missing header", 3)


def test_missing_headers_are_not_the_codes_fault(
    tmp_path: Path, fake: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A header of others is missing on the machine; one of CUDA's is left to port."""
    write(tmp_path / "r", {"a.cu": "// gtest/gtest.h\n", "b.cu": "// cudnn.h\n"})

    def said(
        _compiler: object, source: str, _flags: object, _archs: object
    ) -> tuple[bool, list[compiling.Diagnostic]]:
        name = Path(source).read_text()[3:].strip()
        return False, [compiling.Diagnostic(source, 1, 1, "missing header", f"'{name}' file not found")]

    monkeypatch.setattr(judging, "compile_unit", said)
    verdict = judging.judge(str(tmp_path / "r"), fake, TABLE)
    assert verdict.states == {"a.cu": "missing", "b.cu": "fails"} and list(verdict.headers) == ["gtest/gtest.h"]
    (tmp_path / "r/b.cu").unlink()
    built = CliRunner().invoke(command, ["build", str(tmp_path / "r")])
    assert built.exit_code == 1 and "0 of 1 units compile; 1 not judged" in built.output
    # The library is installed: the verdict is asked for anew.
    monkeypatch.setattr(judging, "compile_unit", lambda *_: (True, []))
    assert CliRunner().invoke(command, ["build", str(tmp_path / "r")]).exit_code == 0


def test_the_loop_answers_what_the_compiler_names(tmp_path: Path, fake: Compiler) -> None:
    """It fixes, compiles, inserts the keyword, compiles again; the tree itself changes only with --apply."""
    text = SOURCE + "template <class T> void g() { auto x = reinterpret_cast<T::Inner*>(0); }\n"
    write(tmp_path / "r", {"src/a.cu": text, "inc/deep/k.cuh": "\n", "CMakeLists.txt": "project(d LANGUAGES CUDA)\n"})
    options = ["fix", str(tmp_path / "r"), "--loop", "--json"]
    done = CliRunner().invoke(command, [*options, "--dry-run"])
    data = json.loads(done.output)
    assert [data["units"][k]["compile"] for k in ("before", "hipify", "after")] == [0, 0, 1], done.output
    assert (tmp_path / "r/src/a.cu").read_text() == text
    assert CliRunner().invoke(command, [*options, "--apply"]).exit_code == 0
    assert "reinterpret_cast<typename T::Inner*>" in (tmp_path / "r/src/a.cu").read_text()
    built = CliRunner().invoke(command, ["build", str(tmp_path / "r"), "--json"])
    assert built.exit_code == 0 and json.loads(built.output)["states"] == {"src/a.cu": "compiles"}


def test_the_loop_writes_an_older_folder_anew(tmp_path: Path, fake: Compiler) -> None:
    """What another version wrote below hip_compat is replaced, not taken for somebody's edit."""
    write(tmp_path / "r", {"a.cu": SOURCE, "deep/k.cuh": "\n", "Makefile": "a:\n\tnvcc a.cu\n"})
    options = ["fix", str(tmp_path / "r"), "--loop", "--apply"]
    assert CliRunner().invoke(command, options).exit_code == 0
    nvcc = tmp_path / "r/hip_compat/bin/nvcc"
    text = nvcc.read_text()
    nvcc.write_text(f"{text}# older\n")
    done = CliRunner().invoke(command, options)
    assert done.exit_code == 0 and nvcc.read_text() == text, done.output


def test_an_edit_by_which_a_unit_stops_compiling_is_withdrawn(tmp_path: Path, fake: Compiler) -> None:
    """Of two edits in one file the good one stays; the other is refused with the reason."""
    (tmp_path / "clang.py").write_text(
        "import sys\nsource = sys.argv[-1]\ntext = open(source).read()\n"
        "if '__HIP_DEVICE_COMPILE__' in text:\n    sys.exit(f\"{source}:3:14: error: no such function\")\n"
    )
    text = (
        "#include <cuda_runtime.h>\n#if defined(__CUDACC__)\nint gpu;\n#endif\n__global__ void k(int* infos) {\n"
        "#if defined(__CUDA_ARCH__)\n  infos[0] = 1;\n#else\n  infos[0] = 0;\n#endif\n}\n"
    )
    write(tmp_path / "r", {"a.cu": text, "CMakeLists.txt": "project(d LANGUAGES CUDA)\n"})
    done = CliRunner().invoke(command, ["fix", str(tmp_path / "r"), "--loop", "--apply", "--json"])
    data = json.loads(done.output)
    assert data["units"]["after"]["compile"] == 1, done.output
    assert [r["reason"] for r in data["refused"]] == ["withdrawn: a unit stops compiling"]
    new = (tmp_path / "r/a.cu").read_text()
    assert "__HIP_DEVICE_COMPILE__" not in new and "#if defined(__CUDACC__) || defined(__HIPCC__)" in new


def _said(text: str, line: int, *notes: tuple[str, int, str], path: str = "a.cu") -> judging.CompilerFinding:
    return judging.CompilerFinding("does not compile", path, line, 1, text, ("host",), (path,), notes)


def test_definitions_take_the_space_of_their_declaration() -> None:
    """What the definition lacks of the declaration's attributes, behind ``template``; a type above stays."""
    text = "float S::f(int x) { return x; }\ntemplate <class T> T g(T x) { return x; }\n\nint\nk(int)\n"
    both = "__host__ function 'f' cannot overload __host__ __device__ function 'f'"
    new, done = compiled.edit("a.cu", text, [_said(both, 1), _said(both, 2), _said(both, 5)])
    assert new.split("\n")[:2] == [
        "__host__ __device__ float S::f(int x) { return x; }",
        "template <class T> __host__ __device__ T g(T x) { return x; }",
    ]
    assert [line for line, _ in done] == [1, 2] and new.endswith("int\nk(int)\n")


def test_a_definition_that_nearly_matches_gets_its_members_space() -> None:
    """Clang says no more: first what most lack, then the other; a definition of other parameters stays."""
    text, near = (
        "out-of-line definition of 'f' does not match any declaration in 'S'",
        "member declaration nearly matches",
    )
    said = [_said(text, 1, ("s.h", 3, note)) for note in (near, "type of 1st parameter differs")]
    once, _ = compiled.edit("a.cu", "void S<2>::f(float* x) {}\n", said[:1])
    twice, _ = compiled.edit("a.cu", once, said[:1])
    assert (once, twice) == (
        "__device__ void S<2>::f(float* x) {}\n",
        "__host__ __device__ void S<2>::f(float* x) {}\n",
    )
    assert compiled.edit("a.cu", "void S<2>::f(float* x) {}\n", said[1:])[1] == []


def test_brackets_of_a_launch_are_joined() -> None:
    """`k << <1, 2 >> > (x)` is a launch for nvcc alone; a shift of a template's closing stays."""
    text = "void f() {\n  k << <1, 1024 >> > (x);\n  auto v = a >> b;\n}\n"
    new, _ = compiled.edit("a.cu", text, [_said("expected expression", 2), _said("expected expression", 3)])
    assert new == "void f() {\n  k <<<1, 1024 >>> (x);\n  auto v = a >> b;\n}\n"


def test_shared_memory_with_a_bound_is_no_extern_for_amd() -> None:
    """nvcc takes both words; clang takes ``extern`` for the launch's memory alone, whose array has no bound."""
    row = "extern __shared__ float4 tile[N];"
    said = _said("__shared__ variable 'tile' cannot be 'extern'", 2)
    new, done = compiled.edit("a.cu", f"#define N 32\n{row}\nint x;\n", [said, said])
    gated = f"#if !defined(__HIP_PLATFORM_AMD__)\n{row}\n#else\n__shared__ float4 tile[N];\n#endif\n"
    assert new == f"#define N 32\n{gated}int x;\n" and len(done) == 1


def test_a_header_that_the_linked_build_found_is_not_missing(tmp_path: Path) -> None:
    """Its own options say where the header is; a unit that is not part of the build keeps the finding."""
    write(tmp_path, {"a.cu": "#include <own.h>\n", "b.cu": "#include <own.h>\n"})
    left = [
        judging.CompilerFinding("missing header", p, 1, 1, "'own.h' file not found", (), (p,))
        for p in ("a.cu", "b.cu")
    ]
    verdict = judging.Verdict(("gfx1030",), {"a.cu": "missing", "b.cu": "missing"}, left)
    data = findings.as_json(str(tmp_path), verdict, real=BuildOutcome(unbuilt=["b.cu"], is_linked=True))
    assert [f["path"] for f in data["findings"] if f["kind"] == "missing header"] == ["b.cu"]


def test_an_operator_that_amd_has_already_is_left_out_for_amd() -> None:
    """Only one that works element by element; another meaning stays, and stays a finding."""
    add = "inline void operator+=(float3 &a, float3 b)\n{\n  a.x += b.x; a.y += b.y; a.z += b.z;\n}\n"
    turn = "inline void operator*=(float4 &a, float4 b) { a = quaternion(a, b); }\n"
    sign = "use of overloaded operator '{}' is ambiguous (with operand types 'float3' and 'float3')"
    amd = ("/opt/rocm/include/hip/amd_detail/amd_hip_vector_types.h", 511, "candidate function")
    said = [
        _said(sign.format("+="), 9, amd, ("v.h", 1, "candidate function")),
        _said(sign.format("*="), 9, amd, ("v.h", 5, "candidate function")),
    ]
    assert compiled.places(said[0]) == ["a.cu", "v.h"]
    new, _ = compiled.edit("v.h", add + turn, said)
    gate = "#if !defined(__HIP_PLATFORM_AMD__)\n"
    assert new == gate + add + "#endif\n" + turn


def test_findings_name_the_rule_and_the_edit(tmp_path: Path, fake: Compiler) -> None:
    """A diagnostic is a finding of kind "does not compile"; verdicts are kept by content."""
    write(tmp_path / "r", {"a.cu": 'T::Inner x; void f() { asm("trap;"); }\n'})
    done = CliRunner().invoke(command, ["build", str(tmp_path / "r"), "--json"])
    (finding,) = json.loads(done.output)["findings"]
    assert done.exit_code == 1 and (finding["kind"], finding["line"], finding["column"]) == ("does not compile", 1, 1)
    assert finding["rule"].startswith("GFX") and finding["edit"] == "gfxgraph port fix --loop"
    (tmp_path / "clang.py").write_text("raise SystemExit(9)")
    again = CliRunner().invoke(command, ["build", str(tmp_path / "r"), "--json"])
    assert json.loads(again.output) == json.loads(done.output)


def test_one_list_has_what_no_compiler_knows(tmp_path: Path, fake: Compiler) -> None:
    """Rules stand in the build's list, in its form, behind what does not compile; a line is said once."""
    torch = 'import torch\nf = torch.compile(g, mode="reduce-overhead")\n'
    write(tmp_path / "r", {"a.cu": 'T::Inner x; void f() { asm("trap;"); }\n', "n.py": torch})
    data = json.loads(CliRunner().invoke(command, ["build", str(tmp_path / "r"), "--json"]).output)
    first, second = data["findings"]
    assert (first["kind"], first["code"]) == ("does not compile", "inline-ptx")
    assert (second["kind"], second["path"], second["line"]) == ("a rule: runs and is wrong", "n.py", 2)
    assert first.keys() <= second.keys() and second["why"] and second["do"]
    assert CliRunner().invoke(command, ["skill"]).output.startswith("---\nname: port-cuda-to-rocm")


def test_without_a_compiler_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No hipcc: build and loop refuse by name, the audit works as before."""
    monkeypatch.setattr(compiling, "find_compiler", lambda: None)
    write(tmp_path, {"a.cu": SOURCE})
    for options in (["build"], ["fix", "--loop"]):
        done = CliRunner().invoke(command, [options[0], str(tmp_path), *options[1:]])
        assert done.exit_code == 2 and "no HIP compiler" in str(done.exception) + done.output
    assert CliRunner().invoke(command, ["audit", str(tmp_path)]).exit_code == 1


def test_tables_of_torch_are_read_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names, headers and whole lines come from hipify's tables; nothing of torch is imported."""
    pytest.importorskip("torch", reason="hipify's tables come with torch")
    hipify.load.cache_clear()
    tables = hipify.load()
    assert tables.names(["cudaMallocHost", "mine"]) == {"cudaMallocHost": "hipHostMalloc"}
    assert tables.headers(["cublas_v2.h", "cub/x.cuh", "vector"]).keys() == {"cublas_v2.h", "cub/x.cuh"}
    assert (
        tables.translate("#include <cuda_runtime.h>\ncub::Sum s;\n")
        == "#include <hip/hip_runtime.h>\nhipcub::Sum s;\n"
    )


def test_two_names_of_one_function_of_hips() -> None:
    """The wrapper of a kernel is written once, whichever of CUDA's names asks for it."""
    table = hipify.Hipify(
        "a table", {"cudaFuncSetAttribute": "hipFuncSetAttribute", "cuFuncSetAttribute": "hipFuncSetAttribute"}
    )
    main = compat.headers(table.known, [], table)[compat.MAIN]
    assert main.count("inline hipError_t cuda_to_hipFuncSetAttribute(") == 1
    assert main.count("FuncSetAttribute cuda_to_hipFuncSetAttribute\n") == 2


def test_names_that_the_tables_lack_are_spelt_as_hip_does() -> None:
    """A name that no table has gets HIP's spelling, and loses it where the compiler does not know that either."""
    first = compat.respelt(
        "#define cudaFree hipFree\n", {"make_cuComplex", "CUBLAS_X_Y", "cudaFree", "other", "curl"}
    )
    assert first.endswith(f"{compat.FOUND}\n#define CUBLAS_X_Y HIPBLAS_X_Y\n#define make_cuComplex make_hipComplex\n")
    second = compat.respelt(first, {"HIPBLAS_X_Y"})
    assert second.endswith(f"{compat.FOUND}\n// HIP lacks CUBLAS_X_Y\n#define make_cuComplex make_hipComplex\n")
    assert compat.respelt(second, {"CUBLAS_X_Y"}) == second
    assert compat.respelt("text\n", {"other"}) == "text\n"


def test_a_copy_has_hips_names(tmp_path: Path, fake: Compiler) -> None:
    """``--hipify`` writes a new tree with HIP's names and links kept; the sources keep their bytes."""
    write(tmp_path / "r", {"a.cu": SOURCE, "deep/k.cuh": "\n", "m.bin": b"\x00\x01"})
    (tmp_path / "r/link").symlink_to("m.bin")
    options = ["fix", str(tmp_path / "r"), "--hipify"]
    done = CliRunner().invoke(command, [*options, str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    assert (tmp_path / "r/a.cu").read_text() == SOURCE and "hipMalloc(p, 4)" in (tmp_path / "out/a.cu").read_text()
    assert (tmp_path / "out/m.bin").read_bytes() == b"\x00\x01" and (tmp_path / "out/link").is_symlink()
    for place in ("out", "r/deep/new"):
        assert CliRunner().invoke(command, [*options, str(tmp_path / place)]).exit_code == 2
    assert not (tmp_path / "r/deep/new").exists()


def test_what_hip_lacks_is_included_by_a_torch_extension(tmp_path: Path) -> None:
    """Below the include under the fewest conditions, for ROCm alone; a project's own function is its own."""
    setup = "from torch.utils.cpp_extension import CUDAExtension\nCUDAExtension('m', ['csrc/k.cu'])\n"
    kernel = "#include <a.h>\n#ifdef X\n#include <b.h>\n#endif\n__device__ int f(int x) { return __vsubss4(x, 1); }\n"
    reduce = "#include <cooperative_groups/reduce.h>\n"
    own = "__device__ int __dp4a(int a, int b, int c) { return a; }\nint g() { return __dp4a(1, 2, 3); }\n"
    write(tmp_path, {"setup.py": setup, "csrc/k.cu": kernel, "csrc/own.cu": own, "csrc/r.cu": reduce})
    made = {f.path: f for f in run.fix(str(tmp_path)) if f.new != f.old}
    rows = made["csrc/k.cu"].new.splitlines()
    assert rows[1:4] == ["#if defined(USE_ROCM) && defined(__HIPCC__)",
                         '#include "../hip_compat/include/cuda_functions.h"', "#endif"]  # fmt: skip
    assert made["hip_compat/include/cuda_functions.h"].new.endswith(
        "#define __vsubss4 cuda_to_hip__vsubss4\n#endif\n"
    )
    assert "hip_compat/include/cuda_warp.h" in made
    assert "csrc/own.cu" not in made
    ours = '#include "../hip_compat/include/cooperative_groups/reduce.h"'
    assert made["csrc/r.cu"].new == f"#if defined(USE_ROCM)\n{ours}\n#else\n{reduce}#endif\n"
    assert "shfl_xor" in made["hip_compat/include/cooperative_groups/reduce.h"].new
    run.write_all(str(tmp_path), list(made.values()))
    assert not [f for f in run.fix(str(tmp_path)) if f.new != f.old]


def test_macros_that_the_tree_demands(tmp_path: Path) -> None:
    """A switch of CMake's has two values; a macro of the GPU's without which a header stops is defined."""
    cmake = (
        "if(GPU)\n target_compile_definitions(a USE_CUDA=1 MPI=0)\nelse()\n add_definitions(-DUSE_CUDA=0 -DMPI=1)\n"
    )
    header = (
        "#ifdef HAVE_GPU\n#include <x.h>\n#else\n#error needs a GPU\n#endif\n#ifndef CUDA_VERSION\n#error\n#endif\n"
    )
    write(tmp_path, {"CMakeLists.txt": cmake, "a.h": header, "a.cu": '#include "a.h"\n'})
    (unit,) = units_of(read_tree(str(tmp_path)))
    assert unit.macros == ("HAVE_GPU=1", "MPI=0", "USE_CUDA=1")


def test_units_get_what_the_makefile_gives_and_what_a_number_demands(tmp_path: Path) -> None:
    """A macro outside conditions, the first of a name, and the first number that ``#error`` allows."""
    made = "CUDA = -DCUDA #-DCHECK\nP = -DPRECISION=2\nQ = -DPRECISION=1\nifdef MPI\nF = -DMPI\nendif\nR = -DA=$(B)\n"
    real = "#if REAL == 8\ntypedef double T;\n#elif REAL == 4\ntypedef float T;\n#else\n# error no\n#endif\n"
    write(tmp_path, {"Makefile": made, "real.h": real, "k.cu": "#include <real.h>\n__global__ void k(T*) {}\n"})
    (unit,) = units_of(read_tree(str(tmp_path)))
    assert {"CUDA", "PRECISION=2", "REAL=8"} == set(unit.macros)
