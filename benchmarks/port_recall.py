"""How many of the places that a real ROCm port changed does the audit flag beforehand?

    python benchmarks/port_recall.py CLONE COMMIT [PATH...]

Audits the parent of COMMIT in a worktree of CLONE and compares with the commit's own diff. A *site* is a hunk
(no context lines) in a kind of file the audit reads whose old or new text speaks of the GPU platform. A site
counts as flagged when a finding stands on one of its old lines, or, where lines were only inserted, within
three lines of the place. Old lines of code (no comments, no changes of white space) are counted as well: a line is
flagged when a finding stands on it.
Results need reading by hand: a hunk can mention the platform and change something else.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict

from unidiff.patch import PatchSet

from gfxgraph.port.audit import audit
from gfxgraph.port.project import kind_of

PLATFORM = re.compile(
    r"(?i)rocm|hip|amd|gfx\d|wave|warp|cuda|nvcc|nvidia|__shfl|ballot|cublas|ptx|asm\b|cutlass|triton|miopen|sm_\d|lane"
)
COMMENT = re.compile(r"\s*(//|/\*|\*|#(?!\s*(if|el|end|def|inc|pragma|undef|error)))")


def git(clone: str, *arguments: str) -> str:
    return subprocess.run(["git", "-C", clone, *arguments], check=True, capture_output=True).stdout.decode(
        "utf-8", "replace"
    )


def main(clone: str, commit: str, only: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        git(clone, "worktree", "add", "--detach", "-f", folder, f"{commit}^")
        try:
            report = audit(folder, vendored=bool(only))
        finally:
            git(clone, "worktree", "remove", "--force", folder)
    flagged: dict[str, dict[int, str]] = defaultdict(dict)
    for f in report.findings:
        for line in (f.line, *f.also):
            flagged[f.path].setdefault(line, f.rule)
    diff = git(
        clone,
        "diff",
        "--unified=0",
        "--no-renames",
        "--ignore-all-space",
        "--ignore-blank-lines",
        f"{commit}^",
        commit,
        "--",
        *only,
    )
    sites = hits = lines = line_hits = 0
    misses = []
    for file in PatchSet(diff):
        if file.is_added_file or not kind_of(file.path):
            continue
        for hunk in file:
            old = [x for x in hunk if x.is_removed and x.value.strip() and not COMMENT.match(x.value)]
            new = [x for x in hunk if x.is_added]
            text = "".join(x.value for x in (*old, *new))
            if not PLATFORM.search(text) or not text.strip():
                continue
            sites += 1
            numbers = [x.source_line_no for x in old]
            near = numbers or list(range(hunk.source_start - 2, hunk.source_start + 4))
            hit = any(n in flagged[file.path] for n in near)
            hits += hit
            lines += len(numbers)
            line_hits += sum(n in flagged[file.path] for n in numbers)
            if not hit:
                misses.append(
                    {
                        "at": f"{file.path}:{hunk.source_start}",
                        "old": [x.value.strip()[:140] for x in old[:4]],
                        "new": [x.value.strip()[:140] for x in new[:4]],
                    }
                )
    print(
        json.dumps(
            {
                "commit": commit,
                "files": report.n_files,
                "lines_audited": report.n_lines,
                "findings": len(report.findings),
                "sites": sites,
                "sites_flagged": hits,
                "old_lines": lines,
                "old_lines_flagged": line_hits,
                "misses": misses,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
