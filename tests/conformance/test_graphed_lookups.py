"""What a function finds: by keys that it makes, by an ``__eq__`` of the program's, in sets, by classes it was given."""

from __future__ import annotations

import types
import weakref

import pytest
import torch
from torch import nn

import gfxgraph

pytestmark = [pytest.mark.any_platform, pytest.mark.usefixtures("platform")]
N_CALLS = 4


class Place:
    """Equal to another of the same number."""

    __slots__ = ("n",)

    def __init__(self, n: int) -> None:
        self.n = n

    def __hash__(self) -> int:
        return hash(self.n)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Place) and self.n == other.n


class Thing:
    """Equal to itself alone."""

    def method(self) -> None:
        """A bound method is another object each time, and equal to the last."""


class Described:
    """Keeps a number for each object."""

    def __init__(self) -> None:
        self.kept = weakref.WeakKeyDictionary()

    def __get__(self, owner, kind=None):
        return self.kept.get(owner, 1.0)

    def __set__(self, owner, value):
        self.kept[owner] = value


def swapped(held, value):
    """The set or list holds this alone, so it is as long as before."""
    held.clear()
    held.add(value)


def weak_keys():
    class Holder:
        gain = Described()

    holder = Holder()
    changes = [lambda v=v: setattr(holder, "gain", v) for v in (2.0, 3.0)]
    return (lambda x: x * holder.gain), changes


def a_tuple_with_an_object():
    thing, table = Thing(), {}
    changes = [lambda: table.update({(thing, 4): 2.0}), table.clear, lambda: table.update({(thing, 4): 3.0})]
    return (lambda x: x * table[(thing, 4)] if (thing, 4) in table else x - 1), changes


def equal_keys():
    table = {Place(3): 2.0}
    changes = [lambda: table.update({Place(3): 5.0}), table.clear, lambda: table.update({Place(3): 7.0})]
    return (lambda x: x * table.get(Place(3), 1.0)), changes


def an_equal_key_that_is_held():
    table, held = {Place(3): 2.0}, [Place(3)]
    changes = [lambda: held.__setitem__(0, Place(4)), lambda: table.update({Place(4): 9.0})]
    return (lambda x: x * table.get(held[0], 1.0)), changes


def methods():
    thing, table = Thing(), {}
    changes = [lambda: table.update({thing.method: 2.0}), table.clear, lambda: table.update({thing.method: 3.0})]
    return (lambda x: x * table.get(thing.method, 1.0)), changes


def a_set_of_objects():
    first, second = Thing(), Thing()
    held = {first}
    changes = [lambda: swapped(held, second), lambda: swapped(held, first)]
    return (lambda x: x * 2 if second in held else x - 1), changes


def a_set_of_equal_objects():
    held = {Place(3)}
    return (lambda x: x * 2 if Place(3) in held else x - 1), [lambda: swapped(held, Place(4))]


def a_weak_set():
    first, second = Thing(), Thing()
    held = weakref.WeakSet([first])
    return (lambda x: x * 2 if second in held else x - 1), [lambda: swapped(held, second), held.clear]


def classes_in_a_tuple():
    class First: ...

    class Second(First): ...

    held = {"value": First(), "kinds": (First,)}
    changes = [lambda: held.update(kinds=(Second,)), lambda: held.update(value=Second())]
    return (lambda x: x * 2 if isinstance(held["value"], held["kinds"]) else x - 1), changes


def a_class_in_an_object():
    config = types.SimpleNamespace(kind=nn.ReLU, kinds=[nn.Tanh])
    changes = [lambda: setattr(config, "kind", nn.Sigmoid), lambda: config.kinds.__setitem__(0, nn.SiLU)]
    return (lambda x: config.kind()(config.kinds[0]()(x))), changes


def an_object_that_is_the_key():
    first, second = Thing(), Thing()
    table, held = {first: 2.0}, [second]
    changes = [
        lambda: held.__setitem__(0, first),
        lambda: table.update({first: 5.0}),
        lambda: held.__setitem__(0, second),
    ]
    return (lambda x: x * table.get(held[0], 1.0)), changes


def objects_that_are_one():
    first, second = Thing(), Thing()
    held = {"left": first, "right": first}
    changes = [lambda: held.update(left=second), lambda: held.update(right=second), lambda: held.update(left=first)]
    return (lambda x: x * 2 if held["left"] is held["right"] else x - 1), changes


def an_object_in_a_list():
    first, second = Thing(), Thing()
    held = {"one": second}
    changes = [lambda: held.update(one=first), lambda: held.update(one=second)]
    return (lambda x: x * 2 if held["one"] in [first] else x - 1), changes


def a_class_that_says_what_its_instances_are():
    answer = [True]

    class Kind(type):
        def __instancecheck__(cls, value):
            return answer[0]

    class Asked(metaclass=Kind): ...

    return (lambda x: x * 2 if isinstance(answer, Asked) else x - 1), [lambda: answer.__setitem__(0, False)]


def a_parameter_that_is_given_an_attribute():
    weight = nn.Parameter(torch.ones(4, device="cuda"))
    changes = [lambda: setattr(weight, "scale", 3.0), lambda: delattr(weight, "scale")]
    return (lambda x: x * weight * (weight.scale if hasattr(weight, "scale") else 1.0)), changes


def a_marker():
    """What stands for nothing: a plain object that is only compared."""
    missing = object()
    state = types.SimpleNamespace(last=missing)
    changes = [lambda: setattr(state, "last", object()), lambda: setattr(state, "last", missing)]
    return (lambda x: x * 2 if state.last is missing else x - 1), changes


def a_list_that_is_the_default():
    default = []
    state = types.SimpleNamespace(log=default)
    changes = [lambda: setattr(state, "log", []), lambda: setattr(state, "log", default)]
    return (lambda x: x * 2 if state.log is default else x - 1), changes


def objects_that_may_be_equal():
    first, second = types.SimpleNamespace(k=1), types.SimpleNamespace(k=1)
    state = types.SimpleNamespace(pair=(first, second))
    changes = [lambda: setattr(state, "pair", (second, first)), lambda: setattr(state, "pair", (first, first))]
    return (lambda x: x * 2 if state.pair[0] is first else x - 1), changes


def functions_of_one_code():
    first, second = ((lambda k: lambda x: x * k)(2.0) for _ in range(2))
    state = types.SimpleNamespace(act=first)
    changes = [lambda: setattr(state, "act", second), lambda: setattr(state, "act", first)]
    return (lambda x: x * 2 if state.act is first else x - 1), changes


def a_tuple_that_is_the_default():
    default = (1, 2)
    state = types.SimpleNamespace(size=default)
    changes = [lambda: setattr(state, "size", tuple([1, 2])), lambda: setattr(state, "size", default)]
    return (lambda x: x * 2 if state.size is default else x - 1), changes


def equal_objects():
    first, second = Thing(), Thing()
    state = types.SimpleNamespace(now=first, last=first)
    changes = [lambda: setattr(state, "now", second), lambda: setattr(state, "last", second)]
    return (lambda x: x * 2 if state.now == state.last else x - 1), changes


def an_object_in_a_set():
    first, second = Thing(), Thing()
    state = types.SimpleNamespace(now=first, done={first})
    changes = [lambda: setattr(state, "now", second), lambda: state.done.add(second)]
    return (lambda x: x * 2 if state.now in state.done else x - 1), changes


def an_object_as_a_key():
    first, second = Thing(), Thing()
    state = types.SimpleNamespace(now=first, scales={first: 2.0, second: 3.0})
    changes = [lambda: setattr(state, "now", second), lambda: state.scales.update({second: 5.0})]
    return (lambda x: x * state.scales[state.now]), changes


def an_object_of_two_names():
    first, second = types.SimpleNamespace(gain=2.0), types.SimpleNamespace(gain=3.0)
    state, kept = types.SimpleNamespace(now=first), {"best": [first]}
    changes = [lambda: setattr(state, "now", second), lambda: kept["best"].__setitem__(0, second)]
    return (lambda x: x * kept["best"][0].gain - state.now.gain), changes


CASES = [
    an_object_of_two_names, a_marker, a_list_that_is_the_default, objects_that_may_be_equal, functions_of_one_code,
    a_tuple_that_is_the_default, equal_objects, an_object_in_a_set, an_object_as_a_key, an_object_that_is_the_key,
    objects_that_are_one, an_object_in_a_list, a_class_that_says_what_its_instances_are,
    a_parameter_that_is_given_an_attribute,
    weak_keys, a_tuple_with_an_object, equal_keys, an_equal_key_that_is_held, methods, a_set_of_objects,
    a_set_of_equal_objects, a_weak_set, classes_in_a_tuple, a_class_in_an_object,
]  # fmt: skip


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_what_is_found_is_what_is_there_now(make):
    """Between calls the key appears, goes, or has another value; the set, other members; the class is another."""
    fn, changes = make()
    g = gfxgraph.graphed(fn)
    with torch.no_grad():
        for change in (lambda: None, *changes):
            change()
            for i in range(N_CALLS):
                x = torch.arange(4.0, device="cuda") + i - 2
                assert g(x).tolist() == fn(x).tolist()


@pytest.mark.parametrize("make", [a_tuple_with_an_object, a_set_of_objects, objects_that_are_one])
def test_it_is_still_a_graph(make):
    """What was made to be noticed does not cost the graph, where Dynamo can trace it at all."""
    fn, _ = make()
    try:
        one = Thing()  # a function of its own: graphed may have left the other's code to Python for good
        if make is a_set_of_objects:
            torch.compile(lambda x: x * (one in {one}), backend="eager", fullgraph=True)(torch.ones(4, device="cuda"))
    except torch._dynamo.exc.Unsupported:
        pytest.skip("this torch's Dynamo cannot look an object up in a set (2.9)")
    g = gfxgraph.graphed(fn)
    for i in range(N_CALLS):
        g(torch.ones(4, device="cuda") + i)
    assert g.stats()["replays"] >= N_CALLS - 2


def test_what_others_compile_keeps_dynamos_rules():
    """Neither has the rules of the other, whichever is traced first: Dynamo keeps its handlers of builtins."""

    class Kind(type):
        def __instancecheck__(cls, value):
            return True

    class Asked(metaclass=Kind): ...

    held = [True]

    def fn(x):
        return x * 2 if isinstance(held, Asked) else x - 1

    x = torch.ones(4, device="cuda")
    for _ in range(2):
        torch._dynamo.reset()
        torch.compile(lambda x: fn(x), backend="eager", fullgraph=True)(x)
        graphed = gfxgraph.graphed(lambda x: fn(x))
        for _ in range(4):
            graphed(x)
        ways = graphed.stats()["pieces"] | graphed.stats()["eager"]
        assert any("__instancecheck__" in why for why in ways), graphed.explain()


def test_a_forward_that_the_call_sets_is_called_in_the_same_call():
    """Dynamo of torch 2.11 goes on calling the class's."""
    module = torch.nn.Linear(4, 4).cuda()

    def fn(x, i):
        if i == 3:
            module.forward = lambda x: x * 3
        return module(x)

    graphed = gfxgraph.graphed(fn)
    for i in range(6):
        x = torch.ones(2, 4, device="cuda") + i
        assert torch.equal(graphed(x, i), module(x)), i


def test_an_attribute_added_to_a_tensor_costs_nothing_where_none_is_looked_up():
    """Only a function that looks up attributes by name runs eagerly with such an argument."""
    x = torch.ones(3, device="cuda")
    x.note = "the program's own"
    plain, asking = (
        gfxgraph.graphed(lambda x: x * 2),
        gfxgraph.graphed(lambda x: x * (2 if hasattr(x, "none") else 3)),
    )
    for _ in range(N_CALLS):
        assert plain(x).tolist() == [2.0] * 3 and asking(x).tolist() == [3.0] * 3
    assert plain.stats()["replays"] >= 2, plain.explain()
    assert any("added attributes" in why for why in asking.stats()["eager"]), asking.explain()
