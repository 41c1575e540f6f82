"""GraphedProgram around programs of the stand-in: on the GPU where there is one, else in the simulator.

The stand-in has the published interface of the ``migraphx`` module, and its programs launch real work on
the stream they are given. No test here ran on MIGraphX itself.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import gfxgraph
from gfxgraph import adapters
from gfxgraph.adapters import migraphx as migraphx_adapter

pytestmark = pytest.mark.any_platform

STAND_IN = Path(__file__).parent / "stand_ins" / "migraphx"
PUBLISHED = {  # what src/py/migraphx_py.cpp defines, ROCm/AMDMIGraphX f729a52f
    "shape": "type lens strides ndim elements bytes type_string type_size dyn_dims packed transposed broadcasted "
    "standard scalar dynamic type_t dynamic_dimension",
    "argument": "get_shape data_ptr tolist save load",
    "program": "get_parameter_names get_parameter_shapes get_output_shapes is_compiled compile get_main_module "
    "create_module run run_async to_py sort print",
    "": "shape argument target instruction_ref module program op macro argument_from_pointer parse_tf "
    "get_onnx_operators parse_onnx parse_onnx_buffer load save save_buffer load_buffer get_target create_argument "
    "generate_argument fill_argument quantize_fp16 quantize_int8 quantize_fp8 autocast_fp8 quantize_bf16 allocate_gpu "
    "to_gpu from_gpu gpu_sync",
}
N = 8


@pytest.fixture
def migraphx(monkeypatch):
    """The stand-in, imported as ``migraphx``."""
    monkeypatch.syspath_prepend(STAND_IN)
    import migraphx

    yield migraphx
    adapters.uninstall("migraphx")
    del sys.modules["migraphx"]


@pytest.fixture
def here(platform, migraphx):
    """The bridge on, the stand-in there, and what a test makes of both."""
    return Machine(migraphx)


class Machine:
    """Programs and arguments of the stand-in."""

    def __init__(self, migraphx):
        self.migraphx = migraphx
        self.n_evals = 0
        self.break_at = 0
        self.shape = migraphx.shape(type="float", lens=[N])
        self.weight = torch.arange(float(N * N), device="cuda").view(N, N) / 50

    def step(self, x):
        """Several launches; one of them may be of a kind that no graph records."""
        self.n_evals += 1
        if self.n_evals == self.break_at:
            torch.cuda.current_stream().synchronize()
        y = x @ self.weight
        return [torch.tanh(y + 1) * 2]

    def compiled(self, fn=None, offload_copy=False, parameters=("x",), n_outputs=1):
        program = self.migraphx.program(
            fn or self.step, dict.fromkeys(parameters, self.shape), [self.shape] * n_outputs
        )
        program.compile(self.migraphx.get_target("gpu"), offload_copy=offload_copy)
        return program

    def graphed(self, program=None, **options):
        from gfxgraph.adapters.migraphx import GraphedProgram

        return GraphedProgram(program or self.compiled(), **{"enabled": True, "policy": "graph", **options})

    def on_gpu(self, values):
        return self.migraphx.to_gpu(self.migraphx.argument(torch.as_tensor(values, dtype=torch.float32)))

    def params(self, seed, names=("x",), n_outputs=1):
        generator = torch.Generator().manual_seed(seed)
        params = {name: self.on_gpu(torch.randn(N, generator=generator)) for name in names}
        return params | {f"main:#output_{at}": self.on_gpu(torch.zeros(N)) for at in range(n_outputs)}

    def fill(self, argument, seed):
        argument._keeps.copy_(torch.randn(N, generator=torch.Generator().manual_seed(seed)))

    def read(self, argument):
        return torch.tensor(self.migraphx.from_gpu(argument).tolist())

    def wanted(self, params):
        torch.cuda.synchronize()
        return torch.tanh(params["x"]._tensor() @ self.weight + 1).mul(2).cpu()

    def check(self, results, params):
        torch.testing.assert_close(self.read(results[-1]), self.wanted(params))


def stats():
    return gfxgraph.stats()


# -- off -------------------------------------------------------------------------------------------------------


def test_off_is_the_program_itself(here, monkeypatch):
    """Without MIGRAPHX_ENABLE_HIPGRAPH the methods are the program's own bound ones, and nothing is captured."""
    monkeypatch.delenv("MIGRAPHX_ENABLE_HIPGRAPH", raising=False)
    program = here.compiled()
    graphed = here.graphed(program, enabled=None)
    assert graphed.run == program.run and graphed.run.__self__ is program
    assert graphed.run_async == program.run_async
    assert graphed.get_parameter_names() == program.get_parameter_names()
    params = here.params(1)
    here.check(graphed.run(params), params)
    assert stats()["capture_count"] == 0
    assert "off" in graphed.why()


def test_off_needs_no_torch(tmp_path):
    """Off, wrapping and running a program imports no torch."""
    code = (
        "import sys\n"
        "from gfxgraph.adapters.migraphx import GraphedProgram\n"
        "class Program:\n"
        "    def run(self, params): return [params]\n"
        "    run_async = None\n"
        "given = {'x': 1}\n"
        "assert GraphedProgram(Program()).run(given)[0] is given\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_variable_switches_it_on(here, monkeypatch):
    """MIGRAPHX_ENABLE_HIPGRAPH=1 is MIGraphX's own name for it, and is honoured."""
    monkeypatch.setenv("MIGRAPHX_ENABLE_HIPGRAPH", "1")
    graphed = here.graphed(enabled=None)
    params = here.params(1)
    here.check(graphed.run(params), params)
    assert stats()["capture_count"] == 1


# -- on: the first run, and those after it ---------------------------------------------------------------------


def test_first_run_computes_and_later_runs_are_one_launch(here):
    """The first run captures and then launches; later ones evaluate nothing and follow their inputs."""
    graphed = here.graphed()
    params = here.params(1)
    here.check(graphed.run(params), params)
    n_evals = here.n_evals
    for seed in range(2, 6):
        here.fill(params["x"], seed)
        here.check(graphed.run(params), params)
    assert here.n_evals == n_evals == 1
    assert (stats()["capture_count"], stats()["replay_count"], stats()["fallback_count"]) == (1, 5, 0)


def test_results_are_kept(here):
    """Every run hands out the results of the captured one: the same memory, as the program's own do."""
    graphed = here.graphed()
    params = here.params(1)
    first, second = graphed.run(params), graphed.run(params)
    assert [one.data_ptr() for one in first] == [one.data_ptr() for one in second]
    assert first[-1].data_ptr() == params["main:#output_0"].data_ptr()
    assert first is not second


def test_run_async_keeps_the_streams_order(here):
    """On a stream of the caller's, between work of the caller's on that stream."""
    graphed = here.graphed()
    params = here.params(1)
    stream = torch.cuda.Stream()
    for seed in range(3):
        with torch.cuda.stream(stream):
            here.fill(params["x"], seed)
            results = graphed.run_async(params, stream.cuda_stream, "ihipStream_t")
            copy = results[-1]._tensor().clone()
            params["x"]._keeps.zero_()
        stream.synchronize()
        here.fill(params["x"], seed)
        torch.testing.assert_close(copy.cpu(), here.wanted(params))
    assert stats()["capture_count"] == 1


def test_a_launch_waits_for_the_last_on_another_stream(here, monkeypatch):
    """The program's graphs share memory: on two streams in turn each launch follows the one before it."""
    graphed, params = here.graphed(), here.params(1)
    streams, waits = [torch.cuda.Stream(), torch.cuda.Stream()], []
    wait = torch.cuda.Stream.wait_event
    for turn in range(6):
        stream = streams[turn // 2 % 2]
        if turn == 1:
            monkeypatch.setattr(
                torch.cuda.Stream, "wait_event", lambda self, event: waits.append(turn) or wait(self, event)
            )
        here.fill(params["x"], turn)
        torch.cuda.synchronize()
        results = graphed.run_async(params, stream.cuda_stream, "ihipStream_t")
        stream.synchronize()
        here.check(results, params)
    assert waits == [2, 4] and graphed.n_captures == 1


def test_validated_first_replays(here):
    """Where the first replays are validated they are compared with eager runs, and then no more."""
    gfxgraph.enable(validate=True, allow_cuda=torch.cuda.is_available() or None, simulate=here_platform())
    graphed = here.graphed()
    params = here.params(1)
    for seed in range(6):
        here.fill(params["x"], seed)
        here.check(graphed.run(params), params)
    assert stats()["validations"] == 3 and stats()["validation_failures"] == 0
    assert here.n_evals == 1 + 3


def here_platform():
    from gfxgraph.process import process

    return process.current().settings.simulate or None


def test_a_graph_that_computes_something_else_is_not_used(here):
    """A program that reads a host value as it launches: its graph has frozen it. Validation notices."""
    gfxgraph.enable(validate=True, allow_cuda=torch.cuda.is_available() or None, simulate=here_platform())

    def frozen(x):
        here.n_evals += 1
        return [x * here.n_evals]

    graphed = here.graphed(here.compiled(frozen))
    params = here.params(1)
    x = here.read(params["x"])
    for run in (2, 3, 4):
        results = graphed.run(params)
        assert torch.equal(here.read(results[-1]), x * run)
    assert stats()["validation_failures"] == 1
    assert "different results" in graphed.why()


# -- arguments that move ---------------------------------------------------------------------------------------


def test_other_addresses_are_noticed(here):
    """Two sets of buffers, in turn: each has its graph, and no run reads the other's memory."""
    graphed = here.graphed()
    sets = [here.params(1), here.params(2)]
    for seed in range(6):
        params = sets[seed % 2]
        here.fill(params["x"], seed)
        results = graphed.run(params)
        here.check(results, params)
        assert results[-1].data_ptr() == params["main:#output_0"].data_ptr()
    assert graphed.n_captures == 2 and here.n_evals == 2


def test_an_input_that_keeps_moving_is_copied(here):
    """A new input at every run: past four addresses it is copied to a fixed one, and the output stays the caller's."""
    graphed, output, kept = here.graphed(), here.on_gpu(torch.zeros(N)), []
    for seed in range(40):
        params = here.params(seed) | {"main:#output_0": output}
        kept.append(params)
        here.check(graphed.run(params), params)
        torch.testing.assert_close(here.read(output), here.wanted(params))
    assert graphed.n_captures == 5 and here.n_evals == 5
    assert graphed.why() == "1 graph, copying x"


def test_outputs_that_keep_moving_run_eagerly_until_they_settle(here, monkeypatch):
    """A graph for each until there were too many; every result where the caller has it; then a graph once more."""
    monkeypatch.setattr(migraphx_adapter, "MOST_CAPTURES", 6)
    graphed = here.graphed()
    kept = [here.params(seed) for seed in range(12)]
    for params in kept:
        (result,) = graphed.run(params)
        here.migraphx.gpu_sync()
        assert result.data_ptr() == params["main:#output_0"].data_ptr()
        torch.testing.assert_close(here.read(params["main:#output_0"]), here.wanted(params))
    assert graphed.n_captures == 6 and here.n_evals == 12 and "keep to a few addresses" in graphed.why()
    for seed in range(40):
        here.fill(params["x"], seed)
        here.check(graphed.run(params), params)
    assert graphed.n_captures == 7 and here.n_evals == 13 and "eager" not in graphed.why()


def test_arguments_that_share_memory_go_on_sharing_it(here):
    """A cache that is read and written in place, at another address each time, and then no longer shared."""

    def append(cache, x):
        here.n_evals += 1
        return [cache + x]

    graphed = here.graphed(here.compiled(append, parameters=("cache", "x")))
    x = here.on_gpu(torch.ones(N))
    for seed in range(8):
        cache = here.on_gpu(torch.full((N,), float(seed)))
        graphed.run({"cache": cache, "x": x, "main:#output_0": cache})
        assert torch.equal(here.read(cache), torch.full((N,), seed + 1.0))
    for seed in range(3):
        cache, output = here.on_gpu(torch.full((N,), float(seed))), here.on_gpu(torch.zeros(N))
        graphed.run({"cache": cache, "x": x, "main:#output_0": output})
        assert torch.equal(here.read(output), torch.full((N,), seed + 1.0))
        assert torch.equal(here.read(cache), torch.full((N,), float(seed)))


@pytest.mark.parametrize("moves", [False, True])
def test_shapes_and_types_tell_runs_apart(here, moves):
    """The same bytes as [2, 8], [4, 4] and [8, 2], in more shapes than have graphs: each answer is its shape's own."""
    shape = here.migraphx.shape

    def sums(x):
        here.n_evals += 1
        return [x.sum(0, keepdim=True).expand_as(x).contiguous()]

    free = shape(type="float", dyn_dims=[shape.dynamic_dimension(1, 16)] * 2)
    program = here.migraphx.program(sums, {"x": free}, [free])
    program.compile(here.migraphx.get_target("gpu"), offload_copy=False)
    memory = torch.zeros(16, device="cuda")
    graphed, kept = here.graphed(program), []
    lens = [[2, 8], [2, 8], [4, 4], [8, 2], [2, 8], [1, 16], [16, 1], [2, 2], [4, 4], [2, 8]]
    for turn, each in enumerate(lens * 2):
        x = torch.randn(16, device="cuda")
        kept.append(x)
        if not moves:
            x = memory.copy_(x)
        out = torch.zeros(16, device="cuda")
        if not moves:
            out = kept[0].zero_()
        kept.append(out)
        where = shape(type="float", lens=each)
        pointers = {"x": x.data_ptr(), "main:#output_0": out.data_ptr()}
        params = {name: here.migraphx.argument_from_pointer(where, at) for name, at in pointers.items()}
        results = graphed.run(params)
        torch.cuda.synchronize()
        n = where.elements()
        wanted = x[:n].view(each).sum(0, keepdim=True).expand(each).flatten()
        torch.testing.assert_close(out[:n], wanted, msg=f"turn {turn}: {each}")
        assert results[0].get_shape().lens() == each
    assert graphed.n_captures >= 5 and not graphed.why_eager
    assert len(graphed._graphs) <= 4


# -- fallback --------------------------------------------------------------------------------------------------


def test_a_capture_that_fails_is_right_at_once_and_tried_once_more(here):
    """The first capture dies of a wait inside the program; that run's result is right, the next one captures."""
    graphed = here.graphed()
    here.break_at = 1
    params = here.params(1)
    for seed in range(1, 5):
        here.fill(params["x"], seed)
        here.check(graphed.run(params), params)
    assert graphed.n_captures == 1 and graphed.why_eager == ""
    assert stats()["fallback_count"] == 1


def test_a_program_that_cannot_be_captured_runs_as_ever(here):
    """After two captures that failed no more is tried, and every result was right."""

    def waits(x):
        here.n_evals += 1
        torch.cuda.current_stream().synchronize()
        return here.step(x)

    graphed = here.graphed(here.compiled(waits))
    params = here.params(1)
    for seed in range(1, 6):
        here.fill(params["x"], seed)
        here.check(graphed.run(params), params)
    assert graphed.n_captures == 0
    assert "cannot be captured" in graphed.why()
    after = torch.ones(3, device="cuda") + torch.rand(3, device="cuda")  # the process is as it was
    assert float(after.min()) >= 1


def test_a_program_with_host_copies_runs_as_ever(here):
    """offload_copy=True waits for the device inside the program: it is not captured at all."""
    graphed = here.graphed(here.compiled(offload_copy=True))
    x = here.migraphx.generate_argument(here.shape, 3)
    (result,) = graphed.run({"x": x})
    torch.testing.assert_close(torch.tensor(result.tolist()), here.wanted({"x": here.migraphx.to_gpu(x)}))
    assert "offload_copy=False" in graphed.why()
    assert stats()["capture_count"] == 0


@pytest.mark.parametrize(("launch", "is_graph"), [("global=4,local=1024", False), ("global=2048,local=1024", True)])
def test_a_part_of_a_workgroup_is_in_no_graph(here, launch, is_graph):
    """A graph of AMD's runtime would run the rest of the workgroup as well, and write beyond the results."""
    text = f"@4 = gpu::code_object[code_object=4736,symbol_name=mul_tanh_kernel,{launch},](x,@2,main:#output_0)"
    program = here.migraphx.program(here.step, {"x": here.shape}, [here.shape], text)
    program.compile(here.migraphx.get_target("gpu"), offload_copy=False)
    graphed, params = here.graphed(program), here.params(1)
    here.check(graphed.run(params), params)
    assert (graphed.n_captures, "workgroup" in graphed.why()) == (int(is_graph), not is_graph)


def test_a_program_that_launches_elsewhere_runs_as_ever(here):
    """Nothing on the stream it was given: an empty graph would compute nothing, and is not used."""
    elsewhere = torch.cuda.Stream()

    class Elsewhere(type(here.compiled())):
        def run_async(self, params, stream, stream_name):
            return [params["main:#output_0"]] if torch.cuda.is_current_stream_capturing() else self.run(params)

    program = Elsewhere(here.step, {"x": here.shape}, [here.shape])
    program.compile(here.migraphx.get_target("gpu"), offload_copy=False)
    graphed = here.graphed(program)
    params = here.params(1)
    here.check(graphed.run(params), params)
    here.check(graphed.run(params), params)
    assert "launched nothing" in graphed.why()
    del elsewhere


def test_the_programs_own_errors_come_out(here):
    """A missing argument is the program's error, and the next run has its graph."""
    graphed = here.graphed()
    params = here.params(1)
    with pytest.raises(RuntimeError, match="Parameter not found"):
        graphed.run({"main:#output_0": params["main:#output_0"]})
    here.check(graphed.run(params), params)
    assert graphed.n_captures == 1 and graphed.why_eager == ""


def test_inside_another_capture_it_is_part_of_it(here):
    """Run while the caller captures, the program's launches belong to the caller's graph."""
    graphed = here.graphed()
    params = here.params(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        stream = torch.cuda.current_stream().cuda_stream
        graphed.run_async(params, stream, "ihipStream_t")
    assert graphed.n_captures == 0
    here.fill(params["x"], 9)
    graph.replay()
    torch.testing.assert_close(here.read(params["main:#output_0"]), here.wanted(params))


# -- eager or graph --------------------------------------------------------------------------------------------


def test_adaptive_keeps_what_was_measured(here):
    """Timings decide, not names: a program whose graph is slower stays eager, and says from what."""
    from gfxgraph.core.eager_or_graph import Way

    graphed = here.graphed(policy="adaptive")
    params = here.params(1)
    here.check(graphed.run(params), params)
    choice = graphed._timed().choice
    for _ in range(32):
        choice.add(Way.EAGER, 10.0)
        choice.add(Way.GRAPH, 21.0)
    n_evals = here.n_evals
    for seed in range(3):
        here.fill(params["x"], seed)
        here.check(graphed.run(params), params)
    assert here.n_evals == n_evals + 3
    assert "the graph is slower" in graphed.why()


def test_adaptive_decides_by_itself(here):
    """Run often enough, both ways are timed until one is chosen; every result on the way is right."""
    graphed = here.graphed(policy="adaptive")
    params = here.params(1)
    for seed in range(200):
        here.fill(params["x"], seed)
        here.check(graphed.run(params), params)
        if graphed._timed().choice.decision is not None:
            break
    assert graphed._timed().choice.decision is not None
    assert here.n_evals > 1


# -- the adapter -----------------------------------------------------------------------------------------------


def test_installed_every_program_goes_by_graph(here):
    """With the adapter in place programs are captured as they run, each by itself, and die when dropped."""
    import gc
    import weakref

    adapters.install("migraphx")
    programs = [here.compiled() for _ in range(2)]
    params = here.params(1)
    for seed in range(3):
        here.fill(params["x"], seed)
        for program in programs:
            here.check(program.run(params), params)
    assert stats()["capture_count"] == 2
    gone = weakref.ref(programs.pop())
    del program
    gc.collect()
    assert gone() is None
    adapters.uninstall("migraphx")
    before = here.n_evals
    here.check(programs[0].run(params), params)
    assert here.n_evals == before + 1


def test_installed_by_itself_only_where_asked(monkeypatch):
    """A process that gfxgraph was switched on in installs it only under MIGRAPHX_ENABLE_HIPGRAPH=1."""
    from gfxgraph import config

    adapter = adapters.get("migraphx")
    assert not adapter.wanted(config.load({"GFXGRAPH": "1"}))
    assert adapter.wanted(config.load({"GFXGRAPH": "1", "MIGRAPHX_ENABLE_HIPGRAPH": "1"}))


def test_the_stand_in_invents_nothing(migraphx):
    """Every public name of the stand-in is one that MIGraphX publishes."""
    for owner, published in PUBLISHED.items():
        names = vars(getattr(migraphx, owner) if owner else migraphx)
        mine = {name for name in names if not name.startswith("_")} - {"torch", "annotations"}
        assert mine <= set(published.split()), owner


def test_available_without_importing(monkeypatch):
    """migraphx_available() finds the module of a ROCm tree on the path, which has no package metadata."""
    found = []
    for present in (False, True):
        if present:
            monkeypatch.syspath_prepend(STAND_IN)
        found.append(gfxgraph.migraphx_available())
    assert found == [False, True]
    assert "migraphx" not in sys.modules
