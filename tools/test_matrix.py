"""Run a short selection of tests with several versions of torch and of engines, and write docs/versions.md.

    python tools/test_matrix.py [--folder build/matrix] [--write docs/versions.md] [NAME ...]

A NAME is ``torch``, ``transformers``, ``onnxruntime``, ``vllm`` or ``sglang``, also with a version, as
``torch==2.9.1``; without any, all are run, one after the other. Each version is installed into a folder of its own,
which stands first on the path; the rest comes from the Python that runs this. Wheels of torch are gigabytes: what is
in the folder already is used. Results of single versions are kept there; the page shows all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.engines.listed import VERSIONS  # noqa: E402

_CAPTURES = ("test_basic", "test_fallbacks", "test_lifetime", "test_surface", "test_compile")
WHAT = {
    "torch": (
        ("2.9.1", "2.11.0", "2.13.0", "2.14.1", "2.15.0"),
        [f"tests/conformance/{name}.py" for name in _CAPTURES],
    ),
    "transformers": (
        ("5.17.0", "5.18.0", "5.19.0", "5.20.2", "5.21.1", "5.22.2", "5.23.0", "5.24.0"),
        ["tests/conformance/test_transformers.py"],
    ),
    "onnxruntime": (("1.31.1", "1.32.0"), ["tests/conformance/adapters/test_onnxruntime.py"]),
    "vllm": ((VERSIONS["vllm"],), ["tests/engines/test_vllm.py"]),
    "sglang": ((VERSIONS["sglang"],), ["tests/engines/test_sglang.py"]),
}
"""Newest patch of each minor version, and the tests that concern it."""
_DEPENDENCIES = {"torch"}
"""What brings its own dependencies along; the others' are this Python's."""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--folder", type=Path, default=ROOT / "build" / "matrix")
    options.add_argument("--write", type=Path, default=ROOT / "docs" / "versions.md")
    options.add_argument("names", nargs="*", default=list(WHAT))
    asked = options.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    for name in asked.names:
        what, _, version = name.partition("==")
        versions, tests = WHAT[what]
        for each in [version] if version else versions:
            _run(asked.folder, what, each, tests)
    asked.write.write_text(_page(asked.folder), encoding="utf-8")
    print(f"test_matrix: wrote {asked.write}")
    return 0


def _run(folder: Path, what: str, version: str, tests: list[str]) -> None:
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(ROOT / "src"), str(ROOT)]))  # noqa: TID251
    if what in VERSIONS:
        files = folder / "engines"
        subprocess.run([sys.executable, ROOT / "tools" / "fetch_engines.py", files], check=True)
        environment["GFXGRAPH_ENGINE_FILES"] = str(files)
    else:
        place = folder / f"{what}-{version}"
        if not (place / what).exists():
            _install(place, what, version)
        environment["PYTHONPATH"] = os.pathsep.join([str(place), environment["PYTHONPATH"]])
    probe = "import torch, gfxgraph; print(torch.__version__); gfxgraph.enable(simulate='cuda')"
    probed = subprocess.run([sys.executable, "-c", probe], env=environment, capture_output=True, text=True)
    seen = probed.stdout.strip()
    report = folder / f"{what}-{version}.xml"
    report.unlink(missing_ok=True)
    print(f"test_matrix: {what} {version}, torch {seen or 'that cannot be imported'}", flush=True)
    begun = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", *tests]
    if not probed.returncode:
        subprocess.run(command, env=environment, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)
    about = {"what": what, "version": version, "torch": seen, "python": platform.python_version()}
    about |= {"why_not": _first_line(probed.stderr) if probed.returncode else ""}
    about |= {"date": time.strftime("%Y-%m-%d"), "seconds": round(time.monotonic() - begun), **_counted(report)}
    (folder / f"{what}-{version}.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _install(place: Path, what: str, version: str) -> None:
    index = os.environ.get("TORCH_INDEX_URL")  # noqa: TID251
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", str(place)]
    pip += [] if what in _DEPENDENCIES else ["--no-deps"]
    pip += ["--index-url", index] if index and what == "torch" else []
    subprocess.run([*pip, f"{what}=={version}"], check=True)


def _counted(report: Path) -> dict[str, object]:
    """Numbers of tests by outcome, and the names of those that failed; nothing ran where there is no report."""
    if not report.exists():
        return {"passed": 0, "skipped": 0, "failed": []}
    cases = list(ElementTree.parse(report).iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    names = sorted({f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}" for case in bad})
    return {"passed": len(cases) - len(bad) - len(skipped), "skipped": len(skipped), "failed": names}


def _first_line(errors: str) -> str:
    """What the exception at the end of a traceback says, in a line."""
    raised = [line for line in errors.splitlines() if line[:1].isalpha() and ": " in line]
    what = [line.partition("what: ")[2] for line in errors.splitlines() if "what: " in line]
    return (what or [raised[-1].partition(": ")[2] if raised else "no test ran"])[-1]


def _page(folder: Path) -> str:
    known = [folder / f"{what}-{version}.json" for what, (versions, _) in WHAT.items() for version in versions]
    found = [json.loads(file.read_text(encoding="utf-8")) for file in known if file.exists()]
    lines = [
        "# Tested versions",
        "",
        "Written by `make test-matrix`. A short selection of tests ran for each version in the simulator, without a",
        "GPU, comparing results and tokens with eager execution. Other versions are not refused: see",
        "[engines](engines.md).",
        "",
        "| What | Version | torch | Python | Passed | Failed | Skipped | Date |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in found:
        cells = (one["what"], one["version"], one["torch"], one["python"], one["passed"], len(one["failed"]))
        lines.append(f"| {' | '.join(map(str, cells))} | {one['skipped']} | {one['date']} |")
    lines += [""] if any(one["why_not"] for one in found) else []
    lines += [f"Not run: {one['what']} {one['version']} ({one['why_not']})." for one in found if one["why_not"]]
    failed = [(one, name) for one in found for name in one["failed"]]
    if failed:
        lines += ["", "What failed:", ""]
        lines += [f"- {one['what']} {one['version']}: `{name}`" for one, name in failed]
    lines += ["", "The tests of each:", ""]
    for what, (_, tests) in WHAT.items():
        lines += [f"- {what}:", *(f"  - `{test}`" for test in tests)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
