"""The adapter of MIGraphX around AMD's own ``migraphx`` module, on its ``ref`` target, which computes on the host.

What AMD's graphs for decode promise (ROCm/AMDMIGraphX, pull request 5019), in so far as it needs no GPU: off is the
program itself; on gives the same bytes; a program without a graph says why; errors are the module's own; quantized
programs run. Each test is a process of its own, in the simulator, because an adapter is for a whole process.

On the ``gpu`` target, in AMD's emulator and beside a torch built for ROCm, its launches are captured and replayed.

Skipped where the module is not there: Debian and Ubuntu ship its libraries (``libmigraphx-c3``) without the module.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from test_hip_driver import TIMEOUT_S, emulator  # noqa: E402, F401

torch = pytest.importorskip("torch")

_found = importlib.util.find_spec("migraphx")
_folder = (
    Path(_found.origin).parent if _found is not None and _found.origin and _found.origin.endswith(".so") else None
)
pytestmark = [
    pytest.mark.timeout(TIMEOUT_S + 30),
    pytest.mark.skipif(_folder is None, reason="needs AMD's Python module: no extension module migraphx on sys.path"),
]

PROGRAM = """
import json
import numpy as np
import torch  # gfxgraph run switches graphs on when torch is there
import migraphx

NAMES = {"float16": "half", "float32": "float"}


def program(offload_copy=False, quantize=None, kind="float16"):
    made = migraphx.program()
    main = made.get_main_module()
    x = main.add_parameter("x", migraphx.shape(type=NAMES[kind], lens=[2, 4]))
    weight = main.add_literal((np.arange(12).reshape(4, 3) / 50).astype(kind))
    y = main.add_instruction(migraphx.op("dot"), [x, weight])
    main.add_return([main.add_instruction(migraphx.op("tanh"), [y])])
    if quantize:
        quantize(made)
    made.compile(migraphx.get_target("ref"), offload_copy=offload_copy)
    return made


def inputs(seed, kind="float16", lens=(2, 4)):
    return np.random.default_rng(seed).standard_normal(lens).astype(kind)


def answers(made, **options):
    runs = [made.run({"x": migraphx.argument(inputs(seed, **options))}) for seed in range(4)]
    runs.append(made.run_async({"x": inputs(9, **options)}, 0, "ihipStream_t"))
    return [np.array(result).tobytes().hex() for results in runs for result in results]


def raised(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def say(**facts):
    print("FACTS " + json.dumps(facts))


"""


ON_GPU = """
import json
import torch
import migraphx
import numpy as np

LENS = [2, int(__import__("sys").argv[1])]
made = migraphx.program()
main = made.get_main_module()
x = main.add_parameter("x", migraphx.shape(type="float", lens=LENS))
weight = main.add_literal(np.linspace(-1, 1, 2 * LENS[1], dtype=np.float32).reshape(LENS))
y = main.add_instruction(migraphx.op("mul"), [x, weight])
main.add_return([main.add_instruction(migraphx.op("tanh"), [y])])
made.compile(migraphx.get_target("gpu"), offload_copy=False)
memory = {name: torch.zeros(shape.lens(), device="cuda") for name, shape in made.get_parameter_shapes().items()}
params = {
    name: migraphx.argument_from_pointer(shape, memory[name].data_ptr())
    for name, shape in made.get_parameter_shapes().items()
}
weight = torch.linspace(-1, 1, 2 * LENS[1]).view(LENS)
right = []
for turn in range(6):
    memory["x"].fill_(turn + 1.0)
    torch.cuda.synchronize()  # the program's own stream waits for no other
    if turn % 2:
        made.run_async(params, torch.cuda.current_stream().cuda_stream, "ihipStream_t")
    else:
        made.run(params)
    torch.cuda.synchronize()
    migraphx.gpu_sync()
    right.append(torch.allclose(memory["main:#output_0"].cpu(), torch.tanh((turn + 1.0) * weight), atol=1e-5))
import gfxgraph

stats = gfxgraph.stats()
say = {name: stats[name] for name in ("capture_count", "fallback_count", "validations", "validation_failures")}
print("FACTS " + json.dumps({**say, "right": right}))
"""


def facts(folder: Path, code: str, *, graphs: bool) -> dict[str, Any]:
    """What ``code`` hands to ``say``, run in the simulator with MIGraphX's graphs switched on or off."""
    if torch.version.hip is not None:
        pytest.skip("the simulator is for a CPU build of torch")
    script = folder / "program.py"
    script.write_text(PROGRAM + code, encoding="utf-8")
    environ = {**os.environ, "MIGRAPHX_ENABLE_HIPGRAPH": "1" if graphs else "0"}
    environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent.parent / "src"), str(_folder)])
    done = subprocess.run(
        [sys.executable, "-m", "gfxgraph", "run", "--simulate", str(script)],
        capture_output=True, text=True, timeout=TIMEOUT_S, env=environ,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("FACTS ")]
    assert done.returncode == 0 and len(lines) == 1, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
    said: dict[str, Any] = json.loads(lines[0].removeprefix("FACTS "))
    return said | {"stderr": done.stderr}


def test_the_module_has_every_name_that_the_adapter_needs() -> None:
    """And the stand-in of the other tests has no name that the module lacks, but for what came after 2.14."""
    import migraphx  # type: ignore[import-not-found,unused-ignore]

    from gfxgraph.adapters.migraphx import ADAPTER

    for needed in ADAPTER.needs["migraphx"]:
        owner = migraphx
        for name in needed.name.split("."):
            owner = getattr(owner, name)


def test_off_is_the_program_itself(tmp_path: Path) -> None:
    """Without MIGRAPHX_ENABLE_HIPGRAPH the module's own methods run, and the answers are the same bytes."""
    code = "say(own=type(migraphx.program.run).__name__, answers=answers(program()))\n"
    off, on = (facts(tmp_path, code, graphs=graphs) for graphs in (False, True))
    assert (off["own"], on["own"]) == ("instancemethod", "function")
    assert off["answers"] == on["answers"] and len(set(off["answers"])) == 5
    assert "MIGraphX" not in off["stderr"]


@pytest.mark.parametrize("offload_copy", [False, True])
def test_a_program_for_the_host_says_why_it_has_no_graph(tmp_path: Path, offload_copy: bool) -> None:
    """Said once, and its runs are eager from then on."""
    code = f"""
made = program(offload_copy={offload_copy})
answers(made)
import gfxgraph
stats = gfxgraph.stats()
say(names=made.get_parameter_names(), captures=stats["capture_count"], fallbacks=stats["fallback_count"])
"""
    said = facts(tmp_path, code, graphs=True)
    assert said["names"] == ["x"]
    assert (said["captures"], said["fallbacks"]) == (0, 1)
    assert said["stderr"].count("it computes on the host or copies to and from it") >= 1


def test_the_modules_own_errors_come_out(tmp_path: Path) -> None:
    """A missing argument, a wrong shape and a wrong type: the module's words, with graphs on as with them off."""
    code = """
made = program()
wrong = [{}, {"x": inputs(1, lens=(3, 4))}, {"x": inputs(1, kind="float32")}, {"x": "text"}]
say(errors=[raised(lambda: made.run(params)) for params in wrong], after=answers(made))
"""
    off, on = (facts(tmp_path, code, graphs=graphs) for graphs in (False, True))
    assert off["errors"] == on["errors"] and off["after"] == on["after"]
    assert "Parameter not found: x" in on["errors"][0] and all(on["errors"])


@pytest.mark.parametrize("kind", ["int8", "fp16"])
def test_quantized_programs_give_the_same_bytes(tmp_path: Path, kind: str) -> None:
    """Low-bit programs are not told apart: what decides is whether the program's launches can be captured."""
    quantize = {
        "int8": "lambda made: migraphx.quantize_int8(made, migraphx.get_target('ref'), "
        "[{'x': migraphx.argument(inputs(3, kind='float32'))}])",
        "fp16": "migraphx.quantize_fp16",
    }[kind]
    code = f"say(answers=answers(program(quantize={quantize}, kind='float32'), kind='float32'))\n"
    off, on = (facts(tmp_path, code, graphs=graphs) for graphs in (False, True))
    assert off["answers"] == on["answers"]


def test_programs_are_let_go(tmp_path: Path) -> None:
    """Programs of the module compare by content and have no hash; the adapter keeps none alive."""
    code = """
import gc
import weakref
first, second = program(), program()
answers(first), answers(second)
seen = weakref.ref(first)
same = first == second
del first
gc.collect()
say(same=same, gone=seen() is None, hash=migraphx.program.__hash__ is None, answers=len(answers(second)))
"""
    said = facts(tmp_path, code, graphs=True)
    assert said["same"] and said["gone"] and said["answers"] == 5


def test_arguments_are_described_as_the_adapter_reads_them(tmp_path: Path) -> None:
    """Types by the names that the adapter knows, the address of the memory, and arguments made from an address."""
    code = """
from gfxgraph.adapters.migraphx import _DTYPES, _about, _key
seen = {}
for name in ("float32", "float16", "float64", "int8", "int16", "int32", "int64", "uint8", "bool"):
    array = np.zeros((2, 3), dtype=name)
    argument = migraphx.argument(array)
    again = migraphx.argument_from_pointer(argument.get_shape(), argument.data_ptr())
    assert argument.data_ptr() == array.ctypes.data == again.data_ptr()
    assert again.get_shape().bytes() == array.nbytes and _key({"x": argument}) == _key({"x": again})
    seen[name] = _DTYPES.get(_about(argument.get_shape())[0])
turned = migraphx.argument(np.zeros((2, 3), np.float32).T)
say(seen=seen, turned=[turned.get_shape().lens(), turned.get_shape().strides()])
"""
    said = facts(tmp_path, code, graphs=False)
    assert all(name == ours for name, ours in said["seen"].items())
    assert said["turned"] == [[3, 2], [1, 3]]


@pytest.mark.emulator
@pytest.mark.parametrize(("n", "is_graph"), [(1024, True), (4, False)])
def test_on_amds_runtime(tmp_path: Path, emulator: list[str], n: int, is_graph: bool) -> None:  # noqa: F811
    """Whole workgroups are one graph, right at every replay; a part of one runs eagerly, and is right as well."""
    if torch.version.hip is None:
        pytest.skip(f"needs a torch built for ROCm: this is {torch.__version__}, without HIP")
    script = tmp_path / "program.py"
    script.write_text(ON_GPU, encoding="utf-8")
    environ = {**os.environ, "MIGRAPHX_ENABLE_HIPGRAPH": "1"}
    environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent.parent / "src"), str(_folder)])
    line = [*emulator, sys.executable, "-m", "gfxgraph", "run", str(script), str(n)]
    done = subprocess.run(line, capture_output=True, text=True, timeout=TIMEOUT_S, env=environ)
    lines = [line for line in done.stdout.splitlines() if line.startswith("FACTS ")]
    assert done.returncode == 0 and len(lines) == 1, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
    said = json.loads(lines[0].removeprefix("FACTS "))
    assert all(said["right"]) and said["validation_failures"] == 0
    assert (said["capture_count"], said["fallback_count"]) == ((1, 0) if is_graph else (0, 1))
    assert ("ends in a part of a workgroup" in done.stderr) is not is_graph
