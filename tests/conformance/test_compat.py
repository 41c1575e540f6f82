"""gfxgraph 1.1.0's names: each of its exports under ``gfxgraph.compat``, with its arguments and kinds of results."""

from __future__ import annotations

import importlib
import inspect
import logging
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

import gfxgraph
from gfxgraph import compat

pytestmark = pytest.mark.any_platform

DOCUMENT = Path(__file__).parents[2] / "docs/older-names.md"
CLASS = "a class"

# What gfxgraph 1.1.0 (PyPI) exports; of functions, the arguments. Ours may take more, by keyword.
EXPORTS = {
    "enable": "*, debug, validate",
    "disable": "",
    "is_enabled": "",
    "stats": "",
    "health_check": "",
    "BridgedCUDAGraph": CLASS,
    "ShapeBucketPool": "model_fn, buckets, warmup",
    "ConditionalGraph": "",
    "guard_level": "",
    "validate_layout": "t, name",
    "make_safe": "t, name",
    "make_capture_safe": "obj",
    "GfxGraphFault": CLASS,
    "is_illegal_access": "exc",
    "localize_fault": "exc, *, op, tensors",
    "RedZone": "shape, dtype, device, pad_elems",
    "apply_deep_guard_env": "",
    "compute_sanitizer_cmd": "argv",
    "explain": "error",
    "report": "error, *, context, logger",
    "diagnose": "context",
    "install_diagnostics": "",
    "environment_report": "",
    "Diagnosis": "code, severity, summary, cause, rocm_context, fix",
    "diag_lang": "",
    "detect_wave64": "text",
    "plan_software_wave": "total_rows, target_width, *, lanes, cu, min_rows_per_lane, max_kv_len",
    "should_convert": "block_threads, grid_blocks, *, lanes, cu",
    "wave_mode": "",
    "device_info": "",
    "DeviceInfo": "arch, name, cu, wavefront, vram_total_gib, vram_free_gib, overridden",
    "torch_rocm_status": "",
    "require_rocm_torch": "strict",
    "RocmTorchError": CLASS,
    "detect_accelerators": "",
    "detect_engines": "",
    "migraphx_available": "",
    "MIGraphXBackend": "",
    "hipgraph_interposer_status": "",
    "cross_engine_support": "",
}

# Its modules, and what programs import from each.
MODULES = {
    "hipgraph_bridge": "BridgedCUDAGraph ShapeBucketPool init shutdown __version__",
    "hipgraph_bridge.graph_manager": "BridgedCUDAGraph",
    "hipgraph_bridge.shape_bucketing": "ShapeBucketPool",
    "hipgraph_bridge.conditional": "ConditionalGraph",
    "hipgraph_bridge.guard": "guard_level validate_layout make_safe make_capture_safe GfxGraphFault "
    "is_illegal_access localize_fault deep_guard_env apply_deep_guard_env RedZone compute_sanitizer_cmd",
    "hipgraph_bridge.diagnostics": "Diagnosis explain report diagnose install_diagnostics environment_report lang "
    "diag_enabled",
    "hipgraph_bridge.diag_zh": "MESSAGES",
    "hipgraph_bridge.wavefront": "wave_mode detect_wave64 should_convert plan_software_wave",
    "hipgraph_bridge.hardware": "DeviceInfo RocmTorchError torch_rocm_status require_rocm_torch detect_device "
    "device_info arch_descriptor detect_accelerators detect_engines",
    "hipgraph_bridge.interop": "migraphx_available MIGraphXBackend hipgraph_interposer_status cross_engine_support",
    "hipgraph_bridge.capture_safety": "capture_lock replay_lock acquire_capture_lock release_capture_lock "
    "torch_cuda_execution_probe torch_cuda_execution_usable torch_cuda_execution_error "
    "unsafe_torch_graph_capture_enabled torch_graph_capture_block_reason",
    "hipgraph_bridge.compile_backend": "hipgraph_bridge_backend",
    "hipgraph_bridge.ops": "LIBRARY",
}


def test_every_export_is_there(platform):
    """All forty, and nothing else, under compat; every one at the top, too."""
    assert sorted(compat.__all__) == sorted(EXPORTS)
    assert len(EXPORTS) == 40
    for name in EXPORTS:
        assert getattr(compat, name) is not None
        assert name in gfxgraph.__all__ and getattr(gfxgraph, name) is not None
    assert sorted(set(dir(compat)) & set(EXPORTS)) == sorted(EXPORTS)
    with pytest.raises(AttributeError, match="no_such"):
        compat.no_such  # noqa: B018


def test_every_export_is_loaded_from_its_module():
    """The stub, which the package reads, names each from a room of compat."""
    assert {module.rpartition(".")[0] for module in compat._HOME.values()} == {"gfxgraph.compat"}


@pytest.mark.parametrize("name", [name for name, takes in EXPORTS.items() if takes is not CLASS])
def test_arguments_are_those_of_1_1_0(platform, name):
    """Names, order and which are by keyword alone; what is added has a default."""
    found = inspect.signature(getattr(compat, name)).parameters.values()
    in_order, by_keyword = (part.split(", ") if part else [] for part in parts(EXPORTS[name]))
    places = [each.name for each in found if each.kind is each.POSITIONAL_OR_KEYWORD]
    assert places[: len(in_order)] == in_order
    assert set(by_keyword) <= {each.name for each in found if each.kind is each.KEYWORD_ONLY}
    added = [each for each in found if each.name not in (*in_order, *by_keyword)]
    assert all(each.default is not each.empty or each.kind is each.VAR_KEYWORD for each in added)


def parts(takes):
    """Arguments by place, and those by keyword alone."""
    by_place, _, by_keyword = takes.partition("*, ")
    return by_place.removesuffix(", "), by_keyword


@pytest.mark.parametrize("module", MODULES)
def test_every_module_path_is_there(platform, module):
    """With the names that are public in it."""
    found = importlib.import_module(module)
    for name in MODULES[module].split():
        assert getattr(found, name) is not None


def test_the_document_names_every_export():
    """docs/older-names.md has a row for each."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert [name for name in EXPORTS if f"`{name}`" not in text] == []
    assert [module for module in MODULES if f"`{module}`" not in text] == []


# -- guard ---------------------------------------------------------------------------------------------------


def test_layouts_are_lists_and_safe_tensors_come_with_a_flag(platform):
    """A line for each problem; a contiguous part of a larger tensor is the very one, so that writes reach it."""
    whole = torch.arange(24.0, device="cuda").reshape(4, 6)
    assert compat.validate_layout(whole) == [] and compat.validate_layout(5) == []
    lines = compat.validate_layout(whole.t(), "kv")
    assert len(lines) == 1 and lines[0].startswith("kv: non-contiguous")
    assert "0-stride" in compat.validate_layout(whole[:1].expand(4, 6))[0]
    part = whole[1:3]
    assert compat.make_safe(part) == (part, False) and compat.make_safe(part)[0] is part
    safe, was_copied = compat.make_safe(whole.t())
    assert was_copied and safe.is_contiguous() and torch.equal(safe, whole.t())
    assert compat.make_safe("text") == ("text", False)
    tree, n_copied = compat.make_capture_safe({"q": whole.t(), "kv": [whole, whole.t()], "scale": 0.5})
    assert n_copied == 2 and tree["kv"][0] is whole and tree["scale"] == 0.5


def test_a_fault_names_operation_and_tensors(platform):
    """From either name; programs that catch the one catch the other."""
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    tensors = [("kv", torch.zeros(2, 8, device="cuda")), ("scale", 0.5)]
    for localize in (compat.localize_fault, gfxgraph.localize_fault):
        fault = localize(error, op="decode", tensors=tensors)
        assert type(fault) is gfxgraph.GfxGraphFault is compat.GfxGraphFault
        assert (fault.op, fault.original, fault.__cause__) == ("decode", error, error)
        assert fault.tensors[0] is tensors[0][1]
        for word in ("decode", "illegal memory access", "kv: shape=(2, 8)", "logic bug"):
            assert word in str(fault)
    for given in ({"kv": tensors[0][1]}, [tensors[0][1]]):  # a mapping; tensors without names
        fault = compat.localize_fault(error, tensors=given)
        assert fault.tensors[0] is tensors[0][1] and "shape=(2, 8)" in str(fault)
    assert compat.GfxGraphFault("wrong", tensors={"kv": 1}).tensors == [1]
    made = compat.GfxGraphFault("decode went wrong", op="decode", original=error)
    assert "decode went wrong" in str(made) and made.original is error and made.tensors == []
    assert gfxgraph.GfxGraphFault("memory_fault").op is None


def test_illegal_accesses_are_known_by_their_text():
    """Not every fault is one."""
    assert compat.is_illegal_access(RuntimeError("hipErrorIllegalAddress"))
    assert compat.is_illegal_access("CUDA error: misaligned address")
    assert not compat.is_illegal_access(RuntimeError("HIP out of memory"))


def test_guard_level_is_a_number(platform, monkeypatch):
    """The variable's words, read at each call; what is none of them is 0."""
    levels = {"": 0, "none": 0, "safe": 1, "capture": 1, "tier2": 2, "deep": 3, "all": 3, "rubbish": 0}
    for word, level in levels.items():
        monkeypatch.setenv("GFXGRAPH_GUARD", word)
        assert compat.guard_level() == level
    monkeypatch.delenv("GFXGRAPH_GUARD")
    gfxgraph.guard_level("localize")
    try:
        assert compat.guard_level() == 2
    finally:
        gfxgraph.guard_level(0)


def test_a_red_zone_notices(platform, caplog):
    """``check_intact`` says so and logs where; ``reset`` makes it whole."""
    zone = compat.RedZone((4, 8), torch.float16, "cuda", pad_elems=16)
    zone.tensor.fill_(1.0)
    assert zone.pad >= 16 and zone.check_intact()
    zone._flat[zone.pad + 32] = 0.0
    with caplog.at_level(logging.ERROR, "gfxgraph"):
        assert zone.check_intact() is False
    assert "red zone overwritten: 2 bytes, the nearest at byte 64 of a tensor of 64 bytes" in caplog.text
    zone.reset()
    assert zone.check_intact() is True


def test_no_checker_is_none_and_its_environment_clobbers_nothing(platform, monkeypatch):
    """``compute_sanitizer_cmd`` gives None where ``gfxgraph``'s raises."""
    monkeypatch.setattr("gfxgraph.startup.sanitizer._compute_sanitizer", refuse)
    monkeypatch.setattr("gfxgraph.startup.sanitizer._debug_agent", refuse)
    assert compat.compute_sanitizer_cmd(["python", "x.py"]) is None
    monkeypatch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "mine")
    assert compat.apply_deep_guard_env() == []
    monkeypatch.delenv("PYTORCH_NO_CUDA_MEMORY_CACHING")
    assert compat.apply_deep_guard_env() == ["PYTORCH_NO_CUDA_MEMORY_CACHING=1"]


def refuse():
    raise gfxgraph.ActivationError("sanitizer_not_found", tool="any", tried=[])


# -- diagnosis -----------------------------------------------------------------------------------------------


def test_an_explanation_is_a_diagnosis_or_none(monkeypatch):
    """1.1.0's code, severity and four texts, in both languages."""
    monkeypatch.setenv("GFXGRAPH_ARCH", "gfx1031")
    found = compat.explain("warning: -mwavefrontsize64 ignored")
    assert (found.code, found.severity) == ("wave64_ignored", "info")
    assert "gfxGRAPH diagnosis [INFO: wave64_ignored]" in found.format("en") and "Cause:" in str(found)
    assert "gfxGRAPH 诊断" in found.format("zh") and "原因" in found.format("zh")
    assert set(found.localized("zh")) == {"summary", "cause", "rocm_context", "fix"}
    assert found.localized("zh")["fix"] != found.fix
    assert compat.explain("nothing that anybody knows") is None and compat.explain(None) is None
    assert compat.explain(RuntimeError("HIP out of memory. Tried to allocate 2 GiB")).code == "out_of_memory"
    own = compat.Diagnosis("mine", "error", "a", "b", "c", "d")
    assert own.localized("zh")["fix"] == "d" and "Fix: d" in own.format("en")


def test_reports_go_to_the_log(monkeypatch, caplog):
    """At the severity of what was found, with the context; silenced by GFXGRAPH_DIAG=0, and the answer is the same."""
    logger = logging.getLogger("of.the.program")
    with caplog.at_level(logging.INFO, logger.name):
        found = compat.report("hipErrorIllegalAddress", context="decode", logger=logger)
        assert compat.report("nothing that anybody knows", logger=logger) is None
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert caplog.records[0].getMessage().startswith("[decode] gfxGRAPH diagnosis [ERROR: illegal_address]")
    monkeypatch.setenv("GFXGRAPH_DIAG", "0")
    caplog.clear()
    assert compat.report("hipErrorIllegalAddress", logger=logger) == found
    assert not caplog.records


def test_a_block_is_diagnosed_and_its_exception_goes_on(caplog):
    """Logged with the block's name."""
    with caplog.at_level(logging.ERROR, "gfxgraph"), pytest.raises(RuntimeError), compat.diagnose("prefill"):
        raise RuntimeError("HIP error: the operation cannot be performed in the present state: illegal memory access")
    assert "[prefill] gfxGRAPH diagnosis" in caplog.text
    with compat.diagnose() as block:
        assert block.context is None


def test_installing_tells_whether_it_was_done():
    """True once, False where it was done before; in a process of its own."""
    program = "from gfxgraph.compat import install_diagnostics as f; print(f(), f())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_the_report_of_the_environment(platform, monkeypatch):
    """Has the settings, and what is installed."""
    monkeypatch.setenv("HSA_OVERRIDE_GFX_VERSION", "10.3.0")
    text = compat.environment_report()
    assert text.startswith("gfxGRAPH environment report:")
    assert "HSA_OVERRIDE_GFX_VERSION 10.3.0" in text and "torch_cuda_graph" in text and "PyTorch" in text


# -- waves and devices ---------------------------------------------------------------------------------------


def test_waves(monkeypatch):
    """Whether, and how; with given figures, so that no GPU is asked."""
    assert compat.detect_wave64("hipcc -mwavefrontsize64 x.hip").code == "wave64_ignored"
    for text in ("warpSize == 64", "__AMDGCN_WAVEFRONT_SIZE==64", "needs wave128", "wave_64 kernels"):
        assert compat.detect_wave64(text).code == "wave64_ignored", text
    assert compat.detect_wave64("64 waves of data") is None and compat.detect_wave64("") is None
    for word, mode in {"off": 0, "none": 0, "detect": 1, "warn": 1, "": 1, "auto": 2, "convert": 2}.items():
        monkeypatch.setenv("GFXGRAPH_WAVE", word)
        assert compat.wave_mode() == mode
    given = {"lanes": 32, "cu": 20}
    monkeypatch.setenv("GFXGRAPH_WAVE", "detect")
    assert compat.should_convert(32, 4, **given)[0] is True
    assert compat.should_convert(64, 4, **given)[0] is False and compat.should_convert(32, 640, **given)[0] is False
    plan = compat.plan_software_wave(4, 128, **given)
    wanted = {"W": 4, "block": 128, "grid": 4, "lanes": 32, "emulated_width": 128, "underfilled": True}
    assert {name: plan[name] for name in wanted} == wanted and plan["note"]
    assert compat.plan_software_wave(640, 128, **given)["W"] == 1
    assert compat.plan_software_wave(4, 128, max_kv_len=16, **given)["W"] == 2


def test_devices(platform, monkeypatch):
    """The GPU of this process with its memory; another one where it is asked for; one line about it."""
    found = compat.device_info()
    assert found.arch and found.wavefront in (32, 64) and not found.overridden
    assert found.vram_total_gib >= found.vram_free_gib > 0
    monkeypatch.setenv("GFXGRAPH_ARCH", "gfx942")
    asked = compat.device_info()
    assert (asked.arch, asked.wavefront, asked.overridden, asked.is_rdna) == ("gfx942", 64, True, False)
    assert asked.summary().startswith("gfx942 (GFXGRAPH_ARCH), ")
    monkeypatch.setenv("GFXGRAPH_ARCH", "gfx1030")
    assert compat.device_info().is_gfx1030 and compat.device_info().is_rdna


def test_torch_is_told_about_and_required(platform, monkeypatch):
    """With 1.1.0's keys; what ``enable`` raises is what programs catch."""
    status = compat.torch_rocm_status()
    assert list(status) == ["installed", "is_rocm", "torch_version", "hip_version", "message", "cuda_available"]
    assert status["installed"] is True and status["torch_version"].split("+")[0] == torch.__version__.split("+")[0]
    monkeypatch.delenv("GFXGRAPH_SIMULATE", raising=False)
    monkeypatch.delenv("GFXGRAPH_ALLOW_CUDA", raising=False)
    if not status["is_rocm"]:
        with pytest.raises(compat.RocmTorchError):
            compat.require_rocm_torch()
    assert compat.require_rocm_torch(strict=False)["message"] == status["message"]


def test_what_is_installed_is_named(platform):
    """Libraries and engines by 1.1.0's keys, true or false."""
    names = "torch_cuda_graph torch_compile migraphx aiter triton aotriton onnxruntime gfxgraph_native"
    found = compat.detect_accelerators()
    assert " ".join(found) == names and set(map(type, found.values())) == {bool} and found["torch_cuda_graph"]
    assert list(compat.detect_engines()) == ["vllm", "sglang", "llama_cpp_python", "llama_cpp_bin", "candle_bin"]
    assert list(compat.migraphx_available()) == ["available", "python", "driver", "note"]
    with pytest.raises(NotImplementedError, match="migraphx.program"):
        compat.MIGraphXBackend().compile()
    with pytest.raises(NotImplementedError, match="migraphx.program"):
        compat.MIGraphXBackend().compile(None)
    assert list(compat.hipgraph_interposer_status()) == ["built", "lib", "note"]
    assert set(compat.cross_engine_support()) >= {"llama.cpp", "candle", "any engine"}


# -- graphs --------------------------------------------------------------------------------------------------


def test_counters_and_health_have_no_none(platform):
    """Of 1.1.0's keys; unknown figures are 0, unknown names "unknown"."""
    counted = compat.stats()
    assert {"enabled_at", "capture_count", "replay_count", "fallback_count", "validation_failures"} <= set(counted)
    assert isinstance(counted["avg_replay_us"], float)
    health = compat.health_check()
    assert list(health) == ["ok", "gpu", "rocm", "native_bridge", "vram_total_mb", "vram_free_mb", "details"]
    assert None not in health.values() and health["ok"] is True


def test_buckets_above_the_largest_are_minus_one(platform):
    """``select_bucket`` and ``route_bucket`` as 1.1.0's; the call itself runs eagerly."""
    model = torch.nn.Linear(8, 4).cuda()
    pool = compat.ShapeBucketPool(model, buckets=[4, 2])
    assert pool.route_bucket(3) == (4, 1) and pool.select_bucket(2) == 2
    assert pool.route_bucket(5) == (-1, 2) and pool.select_bucket(9) == -1
    x = torch.randn(3, 8, device="cuda")
    for _ in range(3):  # a bucket is warmed up, and its padding proved, before it is captured
        assert torch.allclose(pool(x), model(x))
    assert pool.route_bucket(3) == (4, 0)
    big = torch.randn(9, 8, device="cuda")
    assert torch.allclose(pool(big), model(big))
    with pytest.raises(TypeError):
        compat.ShapeBucketPool("no function")


def test_branches_refuse_as_1_1_0_did(platform):
    """KeyError for an unknown one, RuntimeError before the capture, and for one that comes after it."""
    branches = compat.ConditionalGraph()
    branches.add_branch("double", lambda x: x * 2)
    with pytest.raises(TypeError):
        branches.add_branch("none", None)
    with pytest.raises(RuntimeError, match="capture"):
        branches.run("double")
    x = torch.ones(4, device="cuda")
    branches.capture(x)
    assert torch.equal(branches.run("double", x), x * 2)
    with pytest.raises(KeyError, match="double"):
        branches.run("triple", x)
    with pytest.raises(RuntimeError, match="after capture"):
        branches.add_branch("late", lambda x: x)


def test_two_models_capture_in_one_process(platform):
    """Threads that capture at once take turns: each graph replays its own model's results."""
    models = [torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(6))).cuda() for _ in range(2)]
    results: dict[int, tuple] = {}
    together = threading.Barrier(2)

    def session(at: int) -> None:
        with torch.no_grad():
            pool = compat.ShapeBucketPool(models[at], buckets=[2, 4, 8])
            together.wait()
            for n in (1, 3, 7, 2, 8):
                x = torch.full((n, 8), float(at + n), device="cuda")
                results[at, n] = pool(x), models[at](x)

    threads = [threading.Thread(target=session, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 10
    assert all(torch.allclose(got, wanted, rtol=1e-5, atol=1e-6) for got, wanted in results.values())


def test_the_lock_around_captures(platform):
    """While it is held no other thread captures; replays do not ask for it."""
    from hipgraph_bridge import capture_safety

    order = []

    def capture() -> None:
        graph = torch.cuda.CUDAGraph()
        x = torch.ones(2, device="cuda")
        order.append("asked")
        with torch.cuda.graph(graph):
            order.append("captures")
            x.mul_(2)

    thread = threading.Thread(target=capture)
    with capture_safety.capture_lock(), capture_safety.replay_lock():
        thread.start()
        time.sleep(0.3)  # not in a join: whoever waits for a thread does not make it wait
        order.append("released")
    thread.join()
    assert order == ["asked", "released", "captures"]
    capture_safety.acquire_capture_lock()
    capture_safety.release_capture_lock()
    capture_safety.release_capture_lock()
    assert capture_safety.torch_graph_capture_block_reason() == ""


@pytest.mark.parametrize(
    ("program", "is_usable", "says"),
    [
        ("pass", True, "the GPU computes"),
        ("raise SystemExit(3)", False, "exit status 3"),
        ("import os; os.kill(os.getpid(), 9)", False, "signal 9"),
        ("1 / 0", False, "ZeroDivisionError"),
    ],
)
def test_the_look_at_the_gpu_outlives_what_it_finds(monkeypatch, program, is_usable, says):
    """In a process of its own, so that a GPU that kills its process is an answer; asked once."""
    from hipgraph_bridge import capture_safety

    capture_safety.torch_cuda_execution_probe.cache_clear()
    monkeypatch.setattr(capture_safety.process, "current", lambda: None)
    monkeypatch.setattr(capture_safety, "_PROBE", program)
    assert capture_safety.torch_cuda_execution_usable() is is_usable
    assert says in capture_safety.torch_cuda_execution_error()
    capture_safety.torch_cuda_execution_probe.cache_clear()


def test_the_operation_and_the_backend_of_1_1_0(platform):
    """``torch.ops.gfxgraph.conditional_select``, and a compiled model by the older name."""
    importlib.import_module("hipgraph_bridge.ops")
    a, b = torch.ones(3, device="cuda", requires_grad=True), torch.zeros(3, device="cuda")
    chosen = torch.ops.gfxgraph.conditional_select(torch.tensor(1, device="cuda"), a, b)
    assert torch.equal(chosen, a)
    chosen.sum().backward()
    assert torch.equal(a.grad, torch.ones(3, device="cuda"))
    importlib.import_module("hipgraph_bridge.compile_backend")
    compiled = torch.compile(lambda x: (x * 2).relu(), backend="hipgraph_bridge")
    with torch.no_grad():
        assert torch.equal(compiled(a), a * 2)


def test_the_package_of_1_1_0_needs_no_native_library(platform, monkeypatch, tmp_path):
    """``init`` and ``shutdown`` say -1 where there is none."""
    import hipgraph_bridge

    monkeypatch.setenv("GFXGRAPH_LIB", str(tmp_path / "none.so"))
    assert hipgraph_bridge.init() == hipgraph_bridge.shutdown() == -1
