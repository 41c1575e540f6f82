"""Six ordinary programs, run in forks without private names of torch: one alone, or all of a feature.

    echo NAME ... FEATURE ... | python -m tests.unit.torch_names_programs

Torch, its compiler, what these import and make once and the simulated card are there before the first fork;
gfxgraph's other rooms are imported in the forks, after the name is gone. Answers each name read with one JSON line:
what raised, or was wrong, with us and without. Programs run without us, and without the name, only where ours differ
from torch's with every name.

A name alone is taken from torch, and those programs run that ask for it where it is there: to the others it makes the
difference that its feature is off, and that is the same for each name. So all names of a feature are taken from our
table at once, while torch has them, and every program runs.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

import gfxgraph_simulator as simulator
from gfxgraph import torch_names


def a_sequential(graphed: Callable[..., Any]) -> Any:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)).cuda()
    for each in net.parameters():
        nn.init.constant_(each, 0.5)
    f = graphed(net)
    with torch.no_grad():
        return [f(torch.full((1, 3), float(i), device="cuda")).tolist() for i in range(4)]


def a_training_step(graphed: Callable[..., Any]) -> Any:
    net = nn.Linear(3, 1).cuda()
    for each in net.parameters():
        nn.init.constant_(each, 0.5)
    f, found = graphed(net), []
    for i in range(4):
        net.zero_grad()
        f(torch.full((2, 3), float(i), device="cuda")).sum().backward()
        found.append(net.weight.grad.tolist())  # type: ignore[union-attr]
    return found


def a_bucketed_call(graphed: Callable[..., Any]) -> Any:
    f = graphed(lambda x: x * 2, **({} if graphed is as_it_is else {"buckets": [4], "dynamic": "infer"}))
    return [f(torch.ones(n, 2, device="cuda")).tolist() for n in (4, 3, 2, 3, 4)]


def a_plain_capture(graphed: Callable[..., Any]) -> Any:
    x = torch.zeros(3, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2 + 1
    found = []
    for i in range(3):
        x.fill_(i)
        graph.replay()
        found.append(y.tolist())
    return found


def a_compiled_module(graphed: Callable[..., Any]) -> Any:
    net = nn.Linear(3, 1).cuda()
    for each in net.parameters():
        nn.init.constant_(each, 0.5)
    torch._dynamo.reset()
    f = torch.compile(net) if graphed is as_it_is else torch.compile(net, mode="reduce-overhead")
    with torch.no_grad():
        return [f(torch.full((1, 3), float(i), device="cuda")).tolist() for i in range(3)]


def a_whole_step(graphed: Callable[..., Any]) -> Any:
    net = nn.Linear(3, 1).cuda()
    for each in net.parameters():
        nn.init.constant_(each, 0.5)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.25)

    def step(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(x).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    if graphed is not as_it_is:
        import gfxgraph

        step = gfxgraph.TrainingStep(step)
    return [step(torch.ones(2, 3, device="cuda")).tolist() for _ in range(4)]


def as_it_is(fn: Any) -> Any:
    return fn


PROGRAMS = (
    a_sequential,
    a_training_step,
    a_bucketed_call,
    a_plain_capture,
    a_compiled_module,
    a_whole_step,
)


OF_NO_TORCH = "_of_no_torch"
Programs = Sequence[Callable[..., Any]]


def take_away(name: torch_names.Name) -> bool:
    """Delete the attribute; False where torch itself keeps it from being deleted, or has none."""
    vars(torch_names).pop(name.key, None)
    torch_names._live.pop(name.key, None)
    owner, attribute = torch_names.place(name.key)
    try:
        delattr(owner, attribute)
    except (AttributeError, TypeError):
        return False
    return True


def outcome(program: Callable[..., Any], graphed: Callable[..., Any]) -> Any:
    try:
        return program(graphed)
    except Exception as error:  # noqa: BLE001  # what a program raises is the result
        return f"raised {type(error).__name__}: {str(error)[:200]}"


def forget(name: torch_names.Name) -> None:
    """Have our table name something that no torch has."""
    torch_names.NAMES[name.key] = dataclasses.replace(name, path=name.path + OF_NO_TORCH)
    vars(torch_names).pop(name.key, None)
    torch_names._live.pop(name.key, None)


def with_names_noted(programs: Programs) -> dict[str, Any]:
    """What programs give with us, and the names that each looks up, or puts something in the place of."""
    found: dict[str, Any] = {"ours": {}, "asked": {}}
    asked: set[str] = set()
    for function in ("__getattr__", "place"):
        real = vars(torch_names)[function]
        setattr(torch_names, function, lambda key, real=real: asked.add(key) or real(key))
    for program in programs:
        for key in torch_names.NAMES:
            vars(torch_names).pop(key, None)
        with_us()
        found["ours"] |= outcomes(sys.modules["gfxgraph"].graphed, [program])
        found["asked"][program.__name__] = sorted(asked)
        asked.clear()
    return found


def without_feature(feature: str, asked: set[str]) -> dict[str, Any]:
    """What programs give where a feature is off, and none of its names is there but those that are asked for."""
    names = [each for each in torch_names.NAMES.values() if each.feature == feature and each.key not in asked]
    for name in names:
        forget(name)
    marks = {"optional", "loaded", "live"}
    due = [
        name.key for name in names if not marks & {*name.marks} and name.since <= torch_names.version() <= name.until
    ]
    missing = torch_names.missing(feature)
    torch_names.off[feature] = "off"
    return {
        "unnoticed": [key for key in due if torch_names.NAMES[key].path not in missing],
        **with_names_noted(PROGRAMS),
    }


def of_name(name: torch_names.Name, programs: Programs) -> dict[str, Any]:
    """What programs give with us and without the name."""
    found: dict[str, Any] = {"name": name.path, "gone": take_away(name)}
    import gfxgraph

    try:
        with_us()
    except Exception as error:  # noqa: BLE001
        return {**found, "enable": f"raised {type(error).__name__}: {error}"}
    return {**found, "ours": outcomes(gfxgraph.graphed, programs), "off": sorted(torch_names.off)}


def outcomes(graphed: Callable[..., Any], programs: Programs = PROGRAMS) -> dict[str, Any]:
    return {program.__name__: outcome(program, graphed) for program in programs}


def without(name: torch_names.Name, programs: Programs) -> dict[str, Any]:
    """What programs give where nothing of ours is switched on."""
    take_away(name)
    return outcomes(as_it_is, programs)


def compared(name: torch_names.Name, stock: dict[str, Any], asked: dict[str, set[str]]) -> dict[str, Any]:
    """The differences from eager execution without the name, of the programs that ask for it."""
    programs = [program for program in PROGRAMS if name.key in asked[program.__name__]]
    if not programs:
        return {"name": name.path, "programs": 0}
    found = in_fork(lambda: of_name(name, programs))
    ours = found.pop("ours", {})
    if not ours:
        return {"name": name.path, **found}
    stock = {each: stock[each] for each in ours}
    eager = stock if ours == stock else in_fork(lambda: without(name, programs))
    raised = [each for each, value in eager.items() if str(value).startswith("raised")]
    wrong = {each: [ours[each], value] for each, value in eager.items() if ours.get(each) != value}
    wrong = {each: pair for each, pair in wrong.items() if each not in raised}
    return {"name": name.path, **found, "programs": len(programs), "wrong": wrong, "raised": raised}


def with_us() -> None:
    """What ``enable(simulate="hip")`` does where the card is installed already."""
    from gfxgraph.startup import activation

    simulator.install = lambda *args, **kwargs: None
    activation.enable(simulate="hip")


def torchs_modules() -> dict[str, Any]:
    """What torch and others import on the way, which each fork would import again."""
    before = set(sys.modules)
    with_us()
    outcomes(sys.modules["gfxgraph"].graphed)
    own = ("gfxgraph", "torch._inductor.runtime.compile_tasks.")
    return {"names": [name for name in sys.modules if name not in before and not name.startswith(own)]}


def in_fork(run: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            torch.cuda._is_in_bad_fork = lambda: False  # the card is this process's memory, of which we have a copy
            found = run()
        except BaseException as error:  # noqa: BLE001
            found = {"died": f"{type(error).__name__}: {error}"}
        with os.fdopen(write, "w") as out:
            json.dump(found, out)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as given:
        text = given.read()
    status = os.waitpid(child, 0)[1]
    return json.loads(text) if text else {"died": f"status {status}"}


def main() -> Iterator[dict[str, Any]]:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    for module in ("torch._dynamo", "torch._inductor.compile_fx", "torch._inductor.scheduler"):
        importlib.import_module(module)
    for passes in ("joint_graph", "post_grad"):  # patterns, which torch makes once
        importlib.import_module(f"torch._inductor.fx_passes.{passes}").lazy_init()
    simulator.install("hip")
    stock = in_fork(lambda: outcomes(as_it_is))
    for module in in_fork(torchs_modules)["names"]:
        importlib.import_module(module)
    gc.freeze()
    asked = {each.__name__: {*in_fork(lambda: with_names_noted([each]))["asked"][each.__name__]} for each in PROGRAMS}
    whole = set().union(*asked.values())
    features: dict[str, dict[str, Any]] = {}
    for feature in torch_names.TABLE:
        if feature != "simulator":
            features[feature] = found = in_fork(lambda: without_feature(feature, whole))
            for program, keys in found.pop("asked", {}).items():
                asked[program].update(keys)
            ours = found.pop("ours", {})
            found["wrong"] = {
                each: [ours.get(each), value] for each, value in stock.items() if ours.get(each) != value
            }
    for line in sys.stdin:
        what = line.strip()
        yield features[what] if what in features else compared(torch_names.NAMES[what], stock, asked)


if __name__ == "__main__":
    for each in main():
        print(json.dumps(each), flush=True)
