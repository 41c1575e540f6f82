"""``gfxgraph check module:function``: what a capture would not hold is listed, with line, reason and rewrite."""

import pytest
import torch

from gfxgraph.errors import CaptureError
from gfxgraph.reporting import capture_check as check

MODULE = """
import torch

w = torch.randn(8, 8, device="cuda")
shifts = torch.ones(20)[:, None, None]


def clean(x):
    return torch.relu(x @ w)


def step(x):
    h = x @ w
    if h.sum() > 0:
        h = h * 2
    n = h.max().item()
    k = h[h > 0]
    torch.cuda.synchronize()
    return h + shifts.to("cuda"), k, n


def only_here(x):
    if torch.cuda.is_current_stream_capturing():
        raise ValueError("not like this")
    return x


def broken(x):
    return x.nowhere
"""


@pytest.fixture
def module(tmp_path, platform):
    if platform == "gpu":
        pytest.skip("a check runs in the simulator")
    path = tmp_path / "checked_module.py"
    path.write_text(MODULE)
    return path


def checked(module, name):
    fn = check.load(f"{module}:{name}")
    return check.check(fn, [torch.randn(4, 8, device="cuda")], target=name)


def line_of(text):
    return MODULE.splitlines().index(text) + 1


def test_a_clean_function_is_one_graph(module):
    """Nothing is found, and the count of operations is the function's."""
    found = checked(module, "clean")
    assert found.is_one_graph and not found.findings and (found.n_graphs, found.n_operations) == (1, 2)


def test_everything_unsafe_is_listed_with_its_line(module, capsys):
    """Each operation that splits, and each effect on the host, at its line; all that can be rewritten says how."""
    found = {(f.line, f.op): f for f in checked(module, "step").findings}
    wanted = {
        ("    if h.sum() > 0:", "Tensor.__bool__"): "splits",
        ("    n = h.max().item()", "Tensor.item"): "splits",
        ("    k = h[h > 0]", "aten::index"): "splits",
        ("    torch.cuda.synchronize()", "torch.cuda.synchronize"): "splits",
        ('    return h + shifts.to("cuda"), k, n', "aten::_to_copy"): "splits",
    }
    assert {key: f.kind for key, f in found.items()} == {(line_of(t), op): kind for (t, op), kind in wanted.items()}
    assert all(finding.reason and finding.rewrite for finding in found.values())


def test_an_error_of_captures_alone_is_a_finding(module):
    """A function that runs eagerly and raises when captured breaks there."""
    (finding,) = checked(module, "only_here").findings
    assert (finding.kind, finding.line) == ("breaks", line_of('        raise ValueError("not like this")'))


def test_what_cannot_be_checked_says_why(module):
    """A wrong name, too few arguments and a function that does not run are errors of their own, not findings."""
    with pytest.raises(check.CannotCheck, match="did you mean clean"):
        check.load(f"{module}:clen")
    with pytest.raises(check.CannotCheck, match="no file nowhere.py"):
        check.load("nowhere.py:f")
    with pytest.raises(check.CannotCheck, match="values for x: --arg"):
        check.arguments(check.load(f"{module}:clean"), [])
    with pytest.raises(check.CannotCheck, match="fails without a capture: AttributeError"):
        checked(module, "broken")


def test_every_finding_has_a_place(module, monkeypatch):
    """Where no line is known it is the function's own; what people read has the path from where they are."""
    clean = check.load(f"{module}:clean")
    finding = check._of_error(CaptureError("capture_failed"), (str(module), clean.__code__.co_firstlineno))
    monkeypatch.chdir(module.parent)
    assert finding.text().startswith(f"{module.name}:{line_of('def clean(x):')}: breaks")
    monkeypatch.chdir("/")
    assert finding.text().startswith(f"{module.parent}")


NOTES = """
import torch, logging
FACTOR = 3

def step(x, n):
    y = x * n * FACTOR
    print("step")
    logging.getLogger("mine").warning("seen")
    if y.sum() > 0:
        y = y + 1
    return y

def fails(x):
    y = x + 1
    return y.nowhere
"""


def test_what_a_reviewer_must_hear(module, capsys):
    """What a branch decided, what runs once and which numbers are baked in, each at its line, as annotations too."""
    module.write_text(NOTES)
    found = check.check(check.load(f"{module}:step"), [torch.ones(4, device="cuda"), 2])
    lines = NOTES.splitlines()
    (split,) = found.findings
    assert split.line == lines.index("    if y.sum() > 0:") + 1 and "raises GuardMismatch" in split.then
    notes = {(note.kind, note.line): note.op for note in found.notes}
    assert notes == {
        ("once", lines.index('    print("step")') + 1): "print()",
        ("once", lines.index('    logging.getLogger("mine").warning("seen")') + 1): "logging",
        ("baked in", lines.index("def step(x, n):") + 1): "n = 2, FACTOR = 3",
    }
    assert (
        split.annotation().startswith("::warning file=")
        and f",line={split.line}::splits: Tensor.__bool__" in split.annotation()
    )
    assert all(note.annotation().startswith("::notice file=") for note in found.notes)
    with pytest.raises(check.CannotCheck) as failed:
        check.check(check.load(f"{module}:fails"), [torch.ones(4, device="cuda")])
    assert failed.value.place == (str(module), lines.index("    return y.nowhere") + 1)


def test_a_scaler_of_gradients_has_its_own_remedy(module):
    """Its own ``.item()`` is answered by a fused optimizer, not by rewriting the program's line."""
    net = torch.nn.Linear(4, 4).cuda()
    scaler, optimizer = torch.amp.GradScaler("cuda"), torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.ones(2, 4, device="cuda")

    def step():
        optimizer.zero_grad(set_to_none=False)
        scaler.scale(net(x).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    (found,) = check.check(step).findings
    assert found.op == "Tensor.item of torch.amp.GradScaler" and "fused=True" in found.rewrite


class Attention(torch.nn.Module):
    """A weight, a table that no state has, and a scale that Python keeps."""

    def __init__(self):
        super().__init__()
        self.qkv, self.k_scale = torch.nn.Linear(8, 8), 0.25
        self.table = torch.randn(8, device="cuda")

    def forward(self, x):
        return self.qkv(x) * self.table * self.k_scale


def test_what_is_baked_in_has_its_places(module):
    """Inputs with who holds them, and numbers that an attribute has: in a check, and in what a graph explains."""
    net, x, graph = Attention().cuda(), torch.ones(4, 8, device="cuda"), torch.cuda.CUDAGraph()
    found = check.check(net, [x])
    assert {"Attention.qkv.weight", "Attention.qkv.bias", "Attention.table"} < set(found.inputs)
    assert [note.op for note in found.notes if note.kind == "baked in"] == ["Attention.k_scale = 0.25"]
    with torch.no_grad(), torch.cuda.graph(graph):
        net(x)
    text = str(graph.explain())
    assert "   reads " in text and "net.qkv.weight" in text and "constants: Attention.k_scale = 0.25 (" in text
