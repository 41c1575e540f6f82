"""Bring the engines' own graph files here, for `make test-engines`: FOLDER, by default build/engines.

Each engine's wheel is downloaded with pip from wherever this machine's pip gets packages, the listed files
are taken out of it with the hashes that the wheel states for them, and the wheel is thrown away. About 200 KB
stay, of vLLM and SGLang, both under the Apache licence 2.0. They never enter a commit.

For a machine without network: run this where there is one, carry FOLDER over, and set GFXGRAPH_ENGINE_FILES.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.engines.listed import REAL, VERSIONS  # noqa: E402


def main() -> int:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/engines")
    folder.mkdir(parents=True, exist_ok=True)
    for engine, version in VERSIONS.items():
        about = folder / f"{engine}.json"
        if about.exists() and json.loads(about.read_text(encoding="utf-8"))["version"] == version:
            print(f"fetch_engines: {engine} {version} is here already")
            continue
        with tempfile.TemporaryDirectory() as wheels:
            print(f"fetch_engines: downloading {engine} {version}")
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
            pip += ["--only-binary", ":all:", "--dest", wheels, f"{engine}=={version}"]
            done = subprocess.run(pip, check=False)
            if done.returncode != 0:
                print(f"fetch_engines: {engine} {version} could not be downloaded; its tests will be skipped")
                continue
            take(next(Path(wheels).glob("*.whl")), engine, version, folder)
    return 0


def take(wheel: Path, engine: str, version: str, folder: Path) -> None:
    """Unpack the listed modules of one wheel, and note the hashes that it states for them."""
    hashes = {}
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        record = next(name for name in names if name.endswith(".dist-info/RECORD"))
        stated = {row[0]: row[1] for row in csv.reader(io.StringIO(archive.read(record).decode())) if len(row) > 1}
        for module in REAL[engine]:
            base = module.replace(".", "/")
            name = next(one for one in (f"{base}.py", f"{base}/__init__.py") if one in names)
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))
            digest = stated[name].removeprefix("sha256=")
            hashes[name] = base64.urlsafe_b64decode(digest + "=" * (-len(digest) % 4)).hex()
    about = {"version": version, "wheel": wheel.name, "sha256": hashes}
    (folder / f"{engine}.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
