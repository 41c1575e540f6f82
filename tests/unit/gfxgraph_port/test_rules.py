"""Every rule fires on its bad example, and no rule fires on any good example."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from gfxgraph_port import registry
from gfxgraph_port.archs import select
from gfxgraph_port.audit import audit
from gfxgraph_port.model import Fix, fill
from gfxgraph_port.registry import Loaded, load

RULES = load()


def fired(files: dict[str, str], root: Path, *, diff: bool = False) -> set[str]:
    """Rules that report something about a small repository."""
    for name, body in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(body, encoding="utf-8")
    if diff:  # rules about changes see every line as added
        import subprocess

        git = ["git", "-C", str(root), "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
        subprocess.run([*git, "init", "-q"], check=True)
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "start"], check=True)
        subprocess.run([*git, "add", "-A"], check=True)
        return {f.rule for f in audit(str(root), jobs=1, diff="HEAD").findings}
    return {f.rule for f in audit(str(root), jobs=1).findings}


@pytest.mark.parametrize("loaded", RULES, ids=lambda r: r.rule.code)
def test_bad_example_fires(loaded: Loaded, tmp_path: Path) -> None:
    """A rule's bad example makes that rule fire."""
    diff = loaded.rule.code == "ungated-rocm-change"
    assert loaded.rule.id in fired(loaded.rule.files("bad"), tmp_path, diff=diff)


@pytest.mark.parametrize("loaded", RULES, ids=lambda r: r.rule.code)
def test_good_example_is_silent(loaded: Loaded, tmp_path: Path) -> None:
    """A rule's good example makes no rule at all fire."""
    assert fired(loaded.rule.files("good"), tmp_path) == set()
    diff = tmp_path / "diff"
    diff.mkdir()
    if loaded.rule.code == "ungated-rocm-change":
        assert fired(loaded.rule.files("good"), diff, diff=True) == set()


def test_every_rule_was_right_somewhere() -> None:
    """Ids and codes are a rule's own; each names a place of a public repository."""
    ids, names = [r.rule.id for r in RULES], [r.rule.code for r in RULES]
    assert len(set(ids)) == len(ids) and len(set(names)) == len(names)
    for loaded in RULES:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+(@\w+|#\d+)?:\S+", loaded.rule.seen), loaded.rule.code


def test_every_function_of_a_rule_is_named_by_a_table() -> None:
    """A public function of a module of rules is a check or an edit of a rule."""
    used = {f.__name__ for r in RULES for f in (*r.checks.values(), *r.edits.values())}
    for path in sorted((Path(registry.__file__).parent / "rules").glob("[a-z]*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        public = {n.name for n in tree.body if isinstance(n, ast.FunctionDef) and n.args.args[-1].arg == "ctx"}
        assert {name for name in public if name[0] != "_"} <= used, path.name


@pytest.mark.parametrize("loaded", RULES, ids=lambda r: r.rule.code)
def test_texts(loaded: Loaded) -> None:
    """Both languages are there, with the same placeholders and no line breaks."""
    rule = loaded.rule
    fields = [re.findall(r"{(\w+)}", t.what) for t in (rule.en, rule.zh)]
    assert sorted(fields[0]) == sorted(fields[1])
    for text in (rule.en, rule.zh):
        for part in (text.title, text.what, text.why, text.do):
            assert part and "\n" not in part and part == part.strip()
    assert re.search(r"[\u4e00-\u9fff]", rule.zh.why + rule.zh.do)
    assert not re.search(r"[\u4e00-\u9fff]", rule.en.title + rule.en.why + rule.en.do)
    assert rule.phase == int(rule.id[3])
    assert rule.checks if hasattr(rule, "checks") else loaded.checks


def test_findings_fill_their_placeholders(tmp_path: Path) -> None:
    """What a finding says has no placeholder left open."""
    for loaded in RULES:
        root = tmp_path / loaded.rule.code
        root.mkdir()
        files = loaded.rule.files("bad")
        for name, body in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(body, encoding="utf-8")
        found = audit(str(root), jobs=1).findings
        for f in found:
            if f.rule == loaded.rule.id:
                assert "?" not in fill(loaded.rule.en.what, f.values).replace("?=", ""), loaded.rule.code


def test_refuted_claims_are_not_made() -> None:
    """Claims that evidence refutes stay out: see decision 0051."""
    by_code = {r.rule.code: r.rule for r in RULES}
    assert not {"alloc-conf-max-split", "tf32-flag"} & set(by_code)
    assert by_code["warp-size-32"].archs.names() == tuple(a.name for a in select(None) if a.wavefront == 64)
    assert "gfx1250" in by_code["wave-64-hardcoded"].archs.names()
    assert "always" not in by_code["compile-reduce-overhead"].en.why.replace("not always", "")


def test_safe_fixes_are_few() -> None:
    """Only fixes that keep NVIDIA's value literally are applied by default."""
    safe = {r.rule.id for r in RULES if r.rule.fix is Fix.SAFE}
    assert safe == {"GFX107", "GFX601", "GFX603", "GFX604"}
