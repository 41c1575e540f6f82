"""Make the virtual environment that the Makefile uses, around the torch that the machine already has.

A ROCm torch is gigabytes and chosen with care, so an existing one is used in place and never replaced: the
new environment sees it, pip does not touch it. Only where no suitable Python has a torch is one installed,
a CPU build unless TORCH_INDEX_URL says otherwise.

    python3 tools/make_venv.py FOLDER

Runs under any Python 3, so that an old one gets a message and not a syntax error.
"""

import json
import os
import shutil
import subprocess
import sys

NEEDED = (3, 11)
TORCH = "torch==2.13.0"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
ROCM_INDEX = "https://download.pytorch.org/whl/rocm7.2"
KINDS = ("none", "cpu", "cuda", "rocm")  # the later, the rather

# Run by each Python found: what it is and which torch it has. torch is imported for real, because one
# that is found but does not load is no use.
PROBE = """
import json, sys
found = {"version": list(sys.version_info[:2]), "executable": sys.executable,
         "in_venv": sys.prefix != sys.base_prefix,
         "torch": "none", "torch_version": "", "torch_path": ""}
try:
    import os, torch
    kind = "rocm" if torch.version.hip else "cuda" if torch.version.cuda else "cpu"
    found.update(torch=kind, torch_version=torch.__version__,
                 torch_path=os.path.dirname(os.path.dirname(os.path.abspath(torch.__file__))))
except Exception:
    pass
print(json.dumps(found))
"""


def main(folder):
    """Make ``folder``, or bring it up to date."""
    folder = os.path.abspath(folder)
    python = os.path.join(folder, "Scripts" if os.name == "nt" else "bin", "python")
    if not os.path.exists(python) or probe(python) is None:
        source = choose()
        create(folder, source, python)
    say("installing gfxgraph into " + os.path.relpath(folder))
    pip(python, "install", "--editable", ".")
    found = probe(python)
    if found["torch"] == "none":
        install_torch(python)
        found = probe(python)
    if found["torch"] == "none":
        fail("torch was installed but cannot be imported; try: " + python + " -c 'import torch'")
    say("ready, with torch {torch_version} ({torch})".format(**found))


def choose():
    """Return what ``probe`` says of the Python to build on: the one with the best torch."""
    asked = os.environ.get("PYTHON")
    names = [asked] if asked else candidates()
    found = [result for result in map(probe, names) if result is not None]
    suitable = [result for result in found if tuple(result["version"]) >= NEEDED]
    if not suitable:
        seen = ", ".join("{executable} is {version[0]}.{version[1]}".format(**r) for r in found) or "none found"
        fail(f"gfxgraph needs Python 3.11 or newer ({seen}); name one: make PYTHON=/path/to/python3")
    # max() keeps the first of equals: the user's own python3 before others.
    best = max(suitable, key=lambda result: KINDS.index(result["torch"]))
    if best["torch"] != "none":
        say("using torch {torch_version} ({torch}) of {executable}, as it is".format(**best))
    return best


def candidates():
    """Names and paths of Pythons that may have a torch, the likeliest first."""
    names = []
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        if os.environ.get(variable):
            names.append(os.path.join(os.environ[variable], "bin", "python"))
    names += ["python3", sys.executable]
    names += [f"python3.{minor}" for minor in (14, 13, 12, 11)]
    names += ["/usr/bin/python3", "/opt/venv/bin/python3"]  # ROCm's own containers have torch in the latter
    return names


_PROBED = {}


def probe(name):
    """Return what the Python called ``name`` says of itself, or None where there is none."""
    path = shutil.which(name)
    if path is None:
        return None
    if path not in _PROBED:
        done = subprocess.run([path, "-c", PROBE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=os.sep)
        lines = done.stdout.decode().strip().splitlines()
        _PROBED[path] = json.loads(lines[-1]) if done.returncode == 0 and lines else None
    return _PROBED[path]


def create(folder, source, python):
    """Make the environment, from which the torch of ``source`` can be seen."""
    options = ["--system-site-packages"] if source["torch"] != "none" and not source["in_venv"] else []
    done = subprocess.run([source["executable"], "-m", "venv", "--clear", *options, folder], stdout=subprocess.PIPE)
    if done.returncode != 0:
        fail("{executable} -m venv failed; on Debian and Ubuntu: apt install python3-venv".format(**source))
    _PROBED.clear()
    if source["torch"] != "none" and source["in_venv"]:
        # "System" packages would be those below that environment, not its own: it is named instead.
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        where = subprocess.check_output([python, "-c", ask])
        with open(os.path.join(where.decode().strip(), "torch_of_this_machine.pth"), "w") as file:
            file.write(source["torch_path"] + "\n")


def install_torch(python):
    """Install a torch: from TORCH_INDEX_URL; else a wheel that pip was told of; else the CPU build."""
    index = os.environ.get("TORCH_INDEX_URL")
    if index:
        say("installing torch from " + index)
        pip(python, "install", "torch", "--index-url", index)
        return
    if os.path.exists("/dev/kfd"):
        say("this machine has an AMD GPU; for a torch that uses it:")
        say("  make clean venv TORCH_INDEX_URL=" + ROCM_INDEX)
    say("no torch on this machine: installing its CPU build")
    # A wheel at hand first (PIP_FIND_LINKS, pip.conf), without asking any index.
    if pip(python, "install", "--no-index", "--no-deps", TORCH, may_fail=True):
        pip(python, "install", TORCH)
    else:
        pip(python, "install", TORCH, "--extra-index-url", CPU_INDEX)
    pip(python, "install", "numpy")


def pip(python, *args, may_fail=False):
    """Run pip quietly; return whether it succeeded."""
    _PROBED.clear()
    command = [python, "-m", "pip", "-qq", "--disable-pip-version-check", *args]
    done = subprocess.run(command, stderr=subprocess.DEVNULL if may_fail else None)
    if done.returncode != 0 and not may_fail:
        fail("failed: " + " ".join(command))
    return done.returncode == 0


def say(text):
    print("venv: " + text, flush=True)


def fail(text):
    sys.exit("venv: " + text)


if __name__ == "__main__":
    main(sys.argv[1])
