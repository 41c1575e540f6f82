"""How many of the lines that a real ROCm port changed does the audit flag beforehand?

    python benchmarks/port_recall.py MIRRORS [--set read|unread|dev|held|held2|fresh2 ...] [--only NAME]

MIRRORS holds one git directory a repository of ``port_repos.toml``, as ``owner+name/repo``. For each row the
parent of the port's commits is unpacked, audited and compared with what the commits changed.

What counts; the definition was narrowed once while misses were being read:

- Only files that exist before the port, in a kind the audit reads. New files, documentation, recipes of CI
  services and vendored copies are no part of it.
- A **changed line** is a line of code of the old file of which at least one token is gone or replaced after the
  port, or into which tokens were put. Blank lines, comments, white space, line breaks moved, and lines that the
  port only moved do not count.
- A **guarded line** is a line of code that stands unchanged in the new file, but there under a condition, or in
  an arm, that AMD does not reach and that it did not stand under before. A run of guarded lines is one place (in
  Python only where the run touches lines that the port put in: a function that is no longer called is no run):
  the port judged the run, not its lines. It is flagged where a finding stands on one of its lines.
- A change is *for ROCm* when the hunk (no context lines), old or new, speaks of the GPU platform: the word list
  ``PLATFORM``. Lines that a reader judged to be about something else, before seeing what the audit says, are
  named in ``port_repos.toml`` with the reason.
- Names made neutral do not count: a line whose only change is that an identifier of the project's own lost or
  changed its vendor word (``CHECK_CUDA_ERROR`` to ``CHECK_DEVICE_ERROR``) works as it was. CUDA's own names count.
  So it is with an ``#include`` of a header that the repository holds itself (``cuda_utils.hpp`` to
  ``gpu_utils.hpp``); ``--renamed-headers`` counts those, as the figures before 2026-11-21, 16:00, did.
- An import statement that only gained names is an insertion. A line that already names AMD's platform is ROCm
  code being maintained, not ported. What a condition hides because the condition itself was edited is counted at
  the condition.
- Hunks that rewrite launches to ``hipLaunchKernelGGL``, for compilers of before 2019, do not count: hipcc takes
  ``<<<>>>``.
- Lines only *inserted* (a new helper, an import, an option) have no old line and do not count.

A line is flagged when a finding stands on it, or when the statement that a finding names spans it.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from unidiff.patch import PatchSet

from gfxgraph_port.archs import select
from gfxgraph_port.audit import audit
from gfxgraph_port.guards.cpp import Macros, excluding_arm
from gfxgraph_port.guards.python import PyGuards
from gfxgraph_port.guards.worlds import DeviceKind
from gfxgraph_port.model import Finding
from gfxgraph_port.project import Project, kind_of
from gfxgraph_port.readers.directives import arms_of, blank_comments, scan
from gfxgraph_port.readers.python import PyFile

PLATFORM = re.compile(
    r"(?i)rocm|hip|amd|gfx\d|wave|warp|cuda|nvcc|nvidia|__shfl|ballot|cublas|cu(dnn|rand|fft|sparse|solver)|ptx|asm\b|"
    r"cutlass|triton|miopen|sm_\d|lane|nccl|nvml|nvtx|cub\b|thrust|rccl|\bpopc|__ldg|flash|xformers|capability|\bgpu"
)
COMMENT = re.compile(r"\s*(//|/\*|\*(?![\w(]+.*;)|#(?!\s*(if|el|end|def|inc|pragma|undef|error|line)))")
CI = re.compile(r"(^|/)\.(github|circleci|gitlab|buildkite|jenkins)|azure-pipelines|\.travis\.yml|appveyor")
APIS = re.compile(
    r"cu(da|blas|fft|rand|sparse|solver|dnn)[A-Z]|(CU|CUDA|cuda|cuda_runtime|cublas_v2)$|CUDA_(VERSION|HOME|ARCH)|__CUDA|-|\""
)
IMPORT = re.compile(r"\s*(from\s+[\w.]+\s+import\b|import\s)")
AMD = re.compile(r"(?i)rocm|(?<![a-z])hip|\bamd|rccl|miopen|\bgfx\d")
TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\w+|[^\w\s]')
CODE = re.compile(r"\w")


@dataclass
class Score:
    """What one port changed and what of it was flagged."""

    changed: int = 0
    changed_hit: int = 0
    places: int = 0
    places_hit: int = 0
    findings: int = 0
    lines: int = 0
    misses: list[str] = field(default_factory=list)

    def add(self, other: Score) -> None:
        for name in ("changed", "changed_hit", "places", "places_hit", "findings", "lines"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def bare(text: str) -> str:
    """A line without its trailing comment."""
    return re.sub(r"\s//.*$|/\*.*?(\*/|$)|(?<=\s)#\s.*$|(?<=endif)\s+\w.*$", "", text)


def git(clone: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(clone), *arguments], check=True, capture_output=True)
    return done.stdout.decode("utf-8", "replace")


def unpack(clone: Path, revision: str, folder: str) -> None:
    """Write the files that the audit reads; one that the mirror lacks (large data) is named on stderr."""
    git(clone, f"--work-tree={folder}", "read-tree", f"--index-output={folder}.index", revision)
    names = [n for n in git(clone, "ls-tree", "-r", "-z", "--name-only", revision).split("\0") if n]
    wanted = "\0".join(n for n in names if kind_of(n) or n.rpartition("/")[2] == ".gitignore")
    subprocess.run(
        ["git", "-C", str(clone), f"--work-tree={folder}", "checkout-index", "-z", "--stdin", "-q"],
        input=wanted.encode(), check=False, env={**os.environ, "GIT_INDEX_FILE": f"{folder}.index"},
    )  # fmt: skip
    Path(f"{folder}.index").unlink()


def changed_in(old: list[tuple[int, str]], new: list[str]) -> set[int]:
    """Numbers of the old lines of a hunk of which a token is gone, replaced or parted."""
    left = [(t, n) for n, text in old for t in TOKEN.findall(bare(text))]
    right = [t for text in new for t in TOKEN.findall(bare(text))]
    matcher = difflib.SequenceMatcher(None, [t for t, _ in left], right, autojunk=False)
    found: set[int] = set()
    for tag, a, b, _, _ in matcher.get_opcodes():
        if tag in ("replace", "delete"):
            found |= {n for _, n in left[a:b]}
        elif tag == "insert" and 0 < a < len(left) and left[a - 1][1] == left[a][1]:
            found.add(left[a][1])
        elif tag == "insert" and left and new:  # put at the beginning or the end of a line that stays
            found |= _at_edge(left, a, old, new)
    return found


def _at_edge(left: list[tuple[str, int]], at: int, old: list[tuple[int, str]], new: list[str]) -> set[int]:
    """The old line that tokens were put at the edge of: it is in no new line as it was."""
    near = {left[at - 1][1]} if at else set()
    near |= {left[at][1]} if at < len(left) else set()
    whole = {" ".join(TOKEN.findall(t)) for t in new}
    texts = dict(old)
    return {n for n in near if " ".join(TOKEN.findall(texts[n])) not in whole}


def neutral(text: str, headers: frozenset[str] = frozenset()) -> str:
    """A line with the vendor's words taken out of every identifier that is not CUDA's own.

    ``headers`` are the file names that the repository holds before or after the port.
    """
    parts = []
    if text.lstrip().startswith("#"):
        named = re.match(r"\s*#\s*include\s*[\"<]([^\">]+)", text)
        if named and named[1].rpartition("/")[2] in headers:
            return "#include " + re.sub(r"(?i)_?(cuda|gpu|device|nvidia|hip|rocm)_?", "", named[1].rpartition("/")[2])
        return text
    for token in TOKEN.findall(text):
        if not APIS.match(token):
            token = re.sub(r"(?i)cuda|gpu|device|nvidia|hip|rocm", "", token)
        parts.append(token)
    return " ".join(parts)


def hidden_cpp(text: str, edited: frozenset[int] = frozenset()) -> set[int]:
    """Lines of a C++ file that no AMD build reaches, by its preprocessor."""
    code = blank_comments(text)
    arms = arms_of(scan(code), code.count("\n") + 1)
    world = DeviceKind(select("gfx90a")[0])
    found: set[int] = set()
    for arm in arms:
        if not edited.isdisjoint({arm.line, *(a.line for a in arm.earlier)}):
            continue
        if excluding_arm(arm, world, Macros()) is not None:
            found |= set(range(arm.first_line, arm.last_line + 1))
    return found


def hidden_python(text: str, path: str) -> set[int]:
    """Lines of a Python file whose statement AMD does not reach."""
    try:
        file = PyFile(path, text)
    except (SyntaxError, ValueError, RecursionError):
        return set()
    guards = PyGuards(file, Project("."))
    archs = select("gfx90a,gfx1100")
    found: set[int] = set()
    for node in ast.walk(file.tree):
        if isinstance(node, ast.stmt) and not guards.reaching(node, archs)[0]:
            found |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return found


def guarded_runs(old: str, new: str, path: str, added: set[int], edited: frozenset[int]) -> list[list[int]]:
    """Runs of old lines that stand unchanged in the new text under a guard they did not stand under."""
    kind = kind_of(path)
    if kind == "cpp":
        before, after = hidden_cpp(old), hidden_cpp(new, edited)
    elif kind == "python":
        before, after = hidden_python(old, path), hidden_python(new, path)
    else:
        return []
    olds, news = old.splitlines(), new.splitlines()
    matcher = difflib.SequenceMatcher(None, [x.strip() for x in olds], [x.strip() for x in news], autojunk=False)
    lines, twin = [], {}
    for a, b, size in matcher.get_matching_blocks():
        for i in range(size):
            text = olds[a + i]
            if a + i + 1 in before or b + i + 1 not in after:
                continue
            if CODE.search(text) and not COMMENT.match(text):
                lines.append(a + i + 1)
                twin[a + i + 1] = b + i + 1
    runs: list[list[int]] = []
    for n in lines:
        if runs and not any(CODE.search(x) and not COMMENT.match(x) for x in olds[runs[-1][-1] : n - 1]):
            runs[-1].append(n)
        else:
            runs.append([n])
    if kind == "python":
        runs = [
            r for r in runs if added & {*range(twin[r[0]] - 3, twin[r[0]]), *range(twin[r[-1]] + 1, twin[r[-1]] + 3)}
        ]
    return runs


def flagged_lines(report: object) -> dict[str, dict[int, str]]:
    found: dict[str, dict[int, str]] = {}
    for f in report.findings:  # type: ignore[attr-defined]
        rows = found.setdefault(f.path, {})
        for line in (*range(f.line, max(f.line, f.end_line) + 1), *f.lines):
            rows.setdefault(line, f.rule)
    return found


@dataclass(frozen=True)
class Change:
    """A counted line, or a counted place of several lines that the port guarded."""

    path: str
    lines: tuple[int, ...]
    text: str
    became: str
    guarded: bool


def clone_of(mirrors: Path, name: str) -> Path:
    clone = mirrors / name.replace("/", "+") / "repo"
    return clone / ".git" if (clone / ".git").exists() else clone


def own_headers(clone: Path, *revisions: str) -> frozenset[str]:
    names: set[str] = set()
    for revision in revisions:
        listed = git(clone, "ls-tree", "-r", "-z", "--name-only", revision).split("\0")
        names |= {n.rpartition("/")[2] for n in listed if kind_of(n) == "cpp"}
    return frozenset(names)


def changes(clone: Path, row: dict[str, object], *, renamed_headers: bool = False) -> list[Change]:
    """What a port changed for ROCm, by the definition above; no audit is run for it."""
    paths, commit = [str(p) for p in row.get("paths", [])], str(row["commit"])  # type: ignore[attr-defined]
    base = str(row.get("base") or f"{commit}^")
    other = {str(x) for x in row.get("not_rocm", [])}  # type: ignore[attr-defined]
    options = ["--unified=0", "-M", "--ignore-all-space", "--ignore-blank-lines"]
    patches = PatchSet(git(clone, "diff", *options, base, commit, "--", *paths))
    headers = frozenset() if renamed_headers else own_headers(clone, base, commit)
    fresh = [file for file in patches if file.is_added_file]
    moved = {" ".join(TOKEN.findall(bare(x.value))) for file in fresh for h in file for x in h if x.is_added}
    found: list[Change] = []
    for file in patches:
        path = file.source_file.removeprefix("a/")
        if file.is_added_file or file.is_binary_file or not kind_of(path) or file.is_removed_file or CI.search(path):
            continue
        added = {" ".join(TOKEN.findall(bare(x.value))) for h in file for x in h if x.is_added}
        gone: set[int] = set()
        for hunk in file:
            old = [(x.source_line_no or 0, x.value) for x in hunk if x.is_removed]
            new = [x.value for x in hunk if x.is_added and not COMMENT.match(x.value)]
            if not PLATFORM.search("".join([*(t for _, t in old), *new])) or "hipLaunchKernelGGL" in "".join(new):
                continue
            touched = changed_in([o for o in old if not COMMENT.match(o[1])], new)
            neutrals = {neutral(x, headers) for x in new}
            for n, text in old:
                if n not in touched:
                    continue
                if not CODE.search(text) or " ".join(TOKEN.findall(bare(text))) in added | moved:
                    continue
                if f"{path}:{n}" in other or AMD.search(text) or neutral(text, headers) in neutrals:
                    continue
                if IMPORT.match(text) and any(set(TOKEN.findall(text)) <= set(TOKEN.findall(x)) for x in new):
                    continue
                gone.add(n)
                found.append(Change(path, (n,), text.strip()[:130], " ".join(" ".join(new).split())[:150], False))
        before = git(clone, "show", f"{base}:{path}")
        after = git(clone, "show", f"{commit}:{file.path}")
        inserted = {x.target_line_no or 0 for h in file for x in h if x.is_added}
        edited = frozenset(
            x.target_line_no or 0
            for h in file
            if any(x.is_removed and re.match(r"\s*#\s*(if|el)", x.value) for x in h)
            for x in h
            if x.is_added
        )
        for run in guarded_runs(before, after, path, inserted, edited):
            if any(f"{path}:{n}" in other for n in run) or set(run) <= gone:
                continue
            text = before.splitlines()[run[0] - 1].strip()[:130]
            found.append(Change(path, tuple(run), text, "guarded", True))
    return found


def keepsake(finding: Finding, folder: Path) -> dict[str, object]:
    """A finding with the lines round it, for a person to judge later (port_noise.py)."""
    lines = (folder / finding.path).read_text(errors="replace").splitlines()
    near = range(max(1, finding.line - 2), min(len(lines), finding.line + 2) + 1)
    return {**finding.as_json(), "values": dict(finding.values), "near": [[n, lines[n - 1][:160]] for n in near]}


def score(mirrors: Path, row: dict[str, object], *, renamed_headers: bool = False, keep: Path | None = None) -> Score:
    """Audit the state before a port and compare with its diff."""
    name = str(row["repo"])
    clone = clone_of(mirrors, name)
    with tempfile.TemporaryDirectory() as folder:
        unpack(clone, str(row.get("base") or f"{row['commit']}^"), folder)
        report = audit(folder, vendored=bool(row.get("paths")))
        if keep is not None:
            kept = [keepsake(f, Path(folder)) for f in report.findings]
            keep.mkdir(parents=True, exist_ok=True)
            (keep / f"{name.replace('/', '+')}@{row['commit']}.json").write_text(json.dumps(kept))
    flagged = flagged_lines(report)
    result = Score(findings=len(report.findings), lines=report.n_lines)
    for change in changes(clone, row, renamed_headers=renamed_headers):
        here = flagged.get(change.path, {})
        hit = [here[n] for n in change.lines if n in here]
        if change.guarded:
            result.places += 1
            result.places_hit += bool(hit)
        else:
            result.changed += 1
            result.changed_hit += bool(hit)
        place = "-".join(str(n) for n in sorted({change.lines[0], change.lines[-1]}))
        result.misses.append(
            f"{hit[0] if hit else 'MISS'}\t{name}\t{change.path}:{place}\t{change.text}\t=> {change.became}"
        )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("mirrors", type=Path)
    drawn = ["held", "held2", "fresh2", "fresh3", "fresh4", "fresh5"]
    parser.add_argument("--set", choices=["read", "unread", "dev", *drawn])
    parser.add_argument("--only", default="")
    parser.add_argument("--misses", type=Path, help="write every counted line with the rule that flags it")
    parser.add_argument(
        "--keep", type=Path, help="a folder to write every repository's findings to, for port_noise.py"
    )
    parser.add_argument("--renamed-headers", action="store_true", help="count renamed headers of the project's own")
    options = parser.parse_args()
    rows = tomllib.loads((Path(__file__).parent / "port_repos.toml").read_text())["port"]
    total, details, shares = Score(), [], []
    for row in rows:
        if options.set not in (None, row["set"]) or options.only not in row["repo"]:
            continue
        one = score(options.mirrors, row, renamed_headers=options.renamed_headers, keep=options.keep)
        total.add(one)
        details += one.misses
        counted = one.changed + one.places
        shares += [(one.changed_hit + one.places_hit) / counted] if counted else []
        show(f"{row['repo']} {row['commit'][:9]}", one)
    show("all", total)
    print(json.dumps({"repos": len(shares), "mean_share": f"{100 * sum(shares) / max(1, len(shares)):.0f}%"}))
    if options.misses:
        options.misses.write_text("\n".join(details) + "\n")


def show(name: str, s: Score) -> None:
    counted, hit = s.changed + s.places, s.changed_hit + s.places_hit
    share = f"{100 * hit / counted:.0f}%" if counted else "-"
    data = {"repo": name, "lines": s.lines, "findings": s.findings, "changed": s.changed, "flagged": s.changed_hit,
            "guarded_places": s.places, "places_flagged": s.places_hit, "share": share}  # fmt: skip
    print(json.dumps(data))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
