"""Words of memory tell of every change to what they lie in, and of nothing else."""

from __future__ import annotations

import ctypes
import math
import types

import pytest

torch = pytest.importorskip("torch")

from gfxgraph.watching import memory_words  # noqa: E402
from gfxgraph.watching.memory_words import text_of_difference, word_of, words_of_tensor  # noqa: E402
from gfxgraph.watching.watch import HAS_TAGS, Watch, sees_attributes  # noqa: E402


def _same_storage_as_int(p):
    p.data = p.data.double() if p.requires_grad else p.data.view(torch.int32)


CHANGES = {
    "data": lambda p: setattr(p, "data", p.data.clone()),
    "dtype over the same memory": _same_storage_as_int,
    "transposed in place": lambda p: p.transpose_(0, -1),
    "another offset": lambda p: p.set_(p.untyped_storage(), 1, (1,) * p.dim(), (1,) * p.dim()),
    "memory of another": lambda p: p.set_(torch.zeros_like(p)),
    "larger": lambda p: p.data.resize_(4096),
    "one more dim": lambda p: p.unsqueeze_(0),
    "storage given up": lambda p: p.untyped_storage().resize_(0),
    "needs gradients": lambda p: p.requires_grad_(not p.requires_grad),
    "swapped": lambda p: torch.utils.swap_tensors(p, torch.nn.Parameter(torch.zeros(9), requires_grad=False)),
    "conjugate bit": lambda p: setattr(p, "data", torch.zeros(p.shape, dtype=torch.complex64).conj()),
}
NO_CHANGES = {
    "values": lambda p: p.add_(1),
    "its gradient": lambda p: setattr(p, "grad", torch.ones_like(p)),
    "an attribute": lambda p: setattr(p, "note", 3),
    "a view": lambda p: p.view(-1),
    "looked at": lambda p: (p.data_ptr(), p.shape, p.untyped_storage(), str(p)),
}


def _phases(tensor):
    found = words_of_tensor(tensor)
    assert found is not None
    return watched_words(found[0]), watched_words(found[1]), found[2]


def watched_words(addresses):
    """A function that is true while the words are as they are now."""
    names: dict[str, object] = {}
    text = text_of_difference(addresses, "w", names)
    return lambda: not eval(text, names)


@pytest.fixture(params=["as views", "gathered"])
def compared(request, monkeypatch):
    """Both ways of comparing words: few stretches, and many."""
    if request.param == "gathered":
        pytest.importorskip("numpy")
        monkeypatch.setattr(memory_words, "_MOST_VIEWS", 0)


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("shape", [(), (4,), (1, 1), (3, 5), (2, 3, 4, 2)], ids=str)
def test_every_change_of_a_tensor(shape):
    """Each change of a tensor's memory, layout or kind is seen; new values and gradients are none."""
    for is_leaf in (False, True):
        for name, change in {**CHANGES, **NO_CHANGES}.items():
            if name == "transposed in place" and shape in ((), (4,), (1, 1)):
                continue  # the very same layout
            if name == "its gradient" and not is_leaf:
                continue  # it may say "maybe": autograd takes notice of the tensor for the first time
            memory = torch.zeros(512)
            tensor = torch.nn.Parameter(memory[: math.prod(shape)].view(shape), requires_grad=is_leaf)
            pointers, behind, _held = _phases(tensor)
            with torch.no_grad():
                change(tensor)
            is_same = pointers() and behind()
            assert is_same is (name in NO_CHANGES), f"{name} of {shape}"


def test_a_tensor_that_is_let_go_of():
    """The memory behind a tensor may be given up while it is watched: that is a change, and nothing is kept alive."""
    tensor = torch.zeros(1 << 16)
    _, behind, _held = _phases(tensor)
    watcher = torch.multiprocessing.reductions.StorageWeakRef(tensor.untyped_storage())
    with torch.no_grad():
        tensor.data = torch.zeros(2)
    assert watcher.expired() and not behind()


def test_what_is_no_plain_tensor_is_asked_itself():
    """More dims than are learnt: no words."""
    assert words_of_tensor(torch.zeros((1,) * 6)) is None


def test_functions_cells_and_classes():
    """Other code, defaults, class, own dict or content of a cell is seen."""

    class Base:
        pass

    class Other(Base):
        pass

    class A(Base):
        pass

    class B:
        pass

    def function(a=1, *, b=2):
        return a

    def bare():
        return None

    thing, cell = A(), types.CellType(1)
    watched_ones = [
        (thing, "type", A, lambda: setattr(thing, "__class__", B)),
        (thing, "dict", vars(thing), lambda: setattr(thing, "__dict__", {"a": 1})),
        (cell, "cell", 1, lambda: setattr(cell, "cell_contents", 2)),
        (function, "__defaults__", function.__defaults__, lambda: setattr(function, "__defaults__", (5,))),
        (bare, "__defaults__", None, lambda: setattr(bare, "__defaults__", (5,))),
        (bare, "__kwdefaults__", None, lambda: setattr(bare, "__kwdefaults__", {"b": 5})),
        (function, "__kwdefaults__", function.__kwdefaults__, lambda: setattr(function, "__kwdefaults__", {"b": 5})),
        (A, "__mro__", A.__mro__, lambda: setattr(A, "__bases__", (Other,))),
        (function, "__code__", function.__code__, lambda: setattr(function, "__code__", (lambda a, b: b).__code__)),
    ]
    for owner, name, value, change in watched_ones:
        address = word_of(owner, name, value)
        assert address is not None, name
        is_same = watched_words([address])
        assert is_same()
        change()
        assert not is_same(), name


@pytest.mark.usefixtures("compared")
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_each_word_of_a_stretch(n):
    """Each of neighbouring words is compared, and no other; by the expression, too, that a call evaluates."""
    memory = (ctypes.c_uint64 * (n + 2))(*range(n + 2))
    is_same = watched_words(ctypes.addressof(memory) + 8 * i for i in range(1, n + 1))
    for i in range(n + 2):
        memory[i] += 1
        assert is_same() is not (1 <= i <= n)
        memory[i] -= 1
    assert is_same()


def test_a_place_that_does_not_hold_is_none():
    """A word is used only where it holds, in the very object, what it should."""
    assert word_of(types.CellType(1), "cell", object()) is None


def test_attributes_of_plain_objects():
    """Where stores to attributes are told, each one is; specialised code, other objects and deletion among them."""
    if not sees_attributes():
        pytest.skip("this Python does not tell of every store to an attribute")

    class Thing:
        pass

    def store(thing, value):
        thing.a = value

    others, thing = [Thing() for _ in range(3)], Thing()
    for i in range(100):
        store(others[i % 3], i)
    thing.a = thing.b = 0
    changes = [lambda i=i: store(thing, 1000 + i) for i in range(50)]
    changes += [lambda: setattr(thing, "c", 1), lambda: vars(thing).update(b=5), lambda: delattr(thing, "a")]
    for change in changes:
        is_same = watched(vars(thing), None)
        for other in others:
            store(other, object())
        assert is_same()
        change()
        assert not is_same()


def watched(each, names):
    watch = Watch()
    watch.watch(each, names)
    return watch.built((), ())


def test_only_names_that_were_read_count():
    """A store under another name of a watched object is no change, where Python tells the name."""
    if HAS_TAGS or not sees_attributes():
        pytest.skip("this Python tells no names")

    class Thing:
        pass

    thing = Thing()
    thing.read = thing.other = 0
    own = vars(thing)
    is_same = watched(own, ["read"])
    thing.other = 7
    assert is_same()
    thing.read = 7
    assert not is_same()
