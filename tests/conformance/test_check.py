"""``gfxgraph check module:function``: what a capture would not hold is listed, with line, reason and rewrite."""

import pytest
import torch

from gfxgraph.errors import CaptureError
from gfxgraph.reporting import check

MODULE = """
import torch

w = torch.randn(8, 8, device="cuda")


def clean(x):
    return torch.relu(x @ w)


def step(x):
    h = x @ w
    if h.sum() > 0:
        h = h * 2
    n = h.max().item()
    k = h[h > 0]
    torch.cuda.synchronize()
    return h + torch.tensor([1.0]).to("cuda"), k, n


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
        ('    return h + torch.tensor([1.0]).to("cuda"), k, n', "aten::_to_copy"): "splits",
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
