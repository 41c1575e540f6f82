"""Launches of compiled kernels in one captured graph, replayed; run under the emulator.

    rocjitsu --config gfx1030.json -- python kernel_run.py FOLDER

FOLDER/plan.json says what; replay N takes its buffers from FOLDER/N.in and leaves them in FOLDER/N.out. Prints one
line of JSON. Needs the standard library and gfxgraph alone.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from ctypes import byref, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from gfxgraph.driver import locate
from gfxgraph.selftest.native.hip_calls import HipCalls

TO_DEVICE, FROM_DEVICE = 1, 2
TYPES = {"i32": ctypes.c_int32, "fp32": ctypes.c_float}


def main(folder: Path) -> dict[str, Any]:
    driver = locate("hip")
    gpu = HipCalls(driver)
    plan = json.loads((folder / "plan.json").read_text())
    sizes = plan["buffers"]
    places = [_allocated(gpu, nbytes) for nbytes in sizes]
    launches = [_prepared(gpu, folder, each, places) for each in plan["launches"]]
    stream = gpu.stream()
    driver.begin_capture(stream)
    for launch in launches:
        gpu("hipModuleLaunchKernel", *launch[:8], stream, *launch[8:])
    graph = driver.end_capture(stream)
    assert len(driver.nodes(graph)) == len(launches)
    graph_exec = driver.instantiate(graph)
    for number in range(plan["replays"]):
        given = (folder / f"{number}.in").read_bytes()
        at = 0
        for place, nbytes in zip(places, sizes):
            gpu("hipMemcpy", place, given[at : at + nbytes], c_size_t(nbytes), TO_DEVICE)
            at += nbytes
        driver.launch(graph_exec, stream)
        driver.synchronize_stream(stream)
        with (folder / f"{number}.out").open("wb") as out:
            for place, nbytes in zip(places, sizes):
                data = ctypes.create_string_buffer(nbytes)
                gpu("hipMemcpy", data, place, c_size_t(nbytes), FROM_DEVICE)
                out.write(data.raw)
    driver.destroy_exec(graph_exec)
    driver.destroy_graph(graph)
    return {"hip": ".".join(map(str, driver.version)), "nodes": len(launches)}


def _allocated(gpu: HipCalls, nbytes: int) -> int:
    made = c_void_p()
    gpu("hipMalloc", byref(made), c_size_t(nbytes))
    return made.value or 0


def _prepared(gpu: HipCalls, folder: Path, launch: dict[str, Any], places: list[int]) -> tuple[Any, ...]:
    """Arguments of hipModuleLaunchKernel but for the stream."""
    module, function = c_void_p(), c_void_p()
    gpu("hipModuleLoadData", byref(module), (folder / launch["code"]).read_bytes())
    gpu("hipModuleGetFunction", byref(function), module, launch["name"].encode())
    given: list[Any] = []
    for kind, *value in launch["arguments"]:
        given.append(c_void_p(places[value[0]] + value[1]) if kind == "pointer" else TYPES[kind](*value))
    given += [c_void_p(), c_void_p()]  # Triton's own: memory for all workgroups, and for profiling
    slots = (c_void_p * len(given))(*(ctypes.addressof(each) for each in given))
    slots.kept = given  # type: ignore[attr-defined]
    return (function.value, *launch["grid"], launch["threads"], 1, 1, launch["shared"], slots, None)


if __name__ == "__main__":
    facts = main(Path(sys.argv[1]))
    print(json.dumps({"scenario": "kernels", "facts": facts}), flush=True)
    os._exit(0)  # on a busy machine the emulator may not answer what the runtime asks at exit
