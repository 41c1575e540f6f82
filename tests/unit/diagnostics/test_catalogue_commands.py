"""diagnostics.catalogue: every command that is advised may be run, and breaks nothing that works."""

import re
import tomllib

import pytest

from gfxgraph.diagnostics.entries import FOLDER
from gfxgraph.diagnostics.kinds import components

FILES = sorted(FOLDER.glob("*.toml"))
COMMAND = re.compile(
    r"(?:(?<=^)|(?<=[:;(,&|：；（，。、] )|(?<=[:;(,&|：；（，。、])|(?<= or ))"
    r"(?:sudo )?((?:pip|apt|dnf|docker|podman|rm|conda|modprobe|usermod|sysctl|amdgpu-install"
    r"|amdgpu-uninstall|systemctl"
    r"|setsebool|update-grub|update-initramfs|mokutil|lxc|tee|dd|mkfs|chmod|chown|kill|curl|wget)\b"
    r" (?:\[[^\]]*\]|[^;,()，。；：（）\[])*)"
)
# Packages of AMD's repositories and of Ubuntu and Debian, by the names that they have there.
APT = set(
    """hip-runtime-amd rocblas hipblaslt miopen-hip rccl comgr rocm-dev hip-dev rocm-llvm rocm-device-libs rocm-cmake
    rocm-hip-runtime composablekernel-dev miopen-hip-gfx1030kdb
    linux-firmware amdgpu-dkms-firmware amdgpu-dkms rocm-core
    libopenmpi-dev rocprofiler-sdk g++-13 libamdhip64-dev libhipblas-dev librocblas-dev hipcc
    linux-generic libtinfo5 libstdc++-12-dev libstdc++-13-dev rocm hipsparselt""".split()
)
PIP = set(
    """torch torchvision torchaudio jax-rocm7-plugin jax-rocm7-pjrt bitsandbytes PACKAGE flash-attn amd-aiter aiter
    torch[device-{arch}] torchvision[device-{arch}] rocm[libraries] rocm[devel] rocm[libraries,device-{arch}]
    /opt/rocm/share/amd_smi ./native ./gfxGRAPH vllm . sglang
    .[{extra}] gfxgraph_rocm-VERSION-py3-none-any.whl[{extra}]
    transformers onnxruntime-migraphx torchcodec cmake<4 iree-base-compiler
    """.split()
)
INDEXES = (
    "https://download.pytorch.org/whl/cpu",
    "https://download.pytorch.org/whl/rocm",
    "https://repo.amd.com/rocm/whl/",
    "https://stable.repo.amd.com/rocm/",
    "https://rocm.nightlies.amd.com/",
)
CACHES = re.compile(r"(~/\.(?:cache|config|triton|aiter|cupy)\b\S*|\$\{TMPDIR:-/tmp\}/torchinductor_\$USER)$")


def steps(path):
    """Everything in an entry that advises, in both languages."""
    table = tomllib.loads(path.read_text())
    for lang in ("en", "zh"):
        for words in (table[lang], table[lang].get("seen", {})):
            do = words.get("do", [])
            yield from [do] if isinstance(do, str) else do
            check = words.get("check", [])
            yield from [*words.get("notes", {}).values(), *([check] if isinstance(check, str) else check)]
        yield from (cause[lang]["do"] for cause in table.get("cause", []))


def commands(texts):
    for text in texts:
        for match in COMMAND.finditer(re.sub(r"^(?:@!?\w+: )+", "", text)):
            yield match[1].strip()


def test_advised_commands_may_be_run():
    """Packages exist, torch never comes from PyPI or without its siblings, only caches are deleted."""
    for path in FILES:
        advised_commands_may_be_run(path)


def advised_commands_may_be_run(path):
    for command in commands(steps(path)):
        check(command)


def test_next_steps_of_components_may_be_run():
    """The last resort advises no less carefully."""
    for part in components().values():
        for command in (*commands(part["en"]), *commands(part["zh"])):
            check(command)


def check(command):
    words = command.replace('"', "").replace("'", "").split("#")[0].split("|")[0].split("&&")[0].split()
    if words[:2] == ["pip", "install"]:
        wanted = pip_wanted(words[2:])
        assert wanted <= PIP, command
        if any(name.split("[")[0] in ("torch", "torchvision", "torchaudio") for name in wanted):
            # One of three alone breaks the others, and PyPI's are for CUDA.
            assert {name.split("[")[0] for name in wanted} >= {
                "torch",
                "torchvision",
                "torchaudio",
            } or "--no-deps" in words, command
            assert any(word.startswith(INDEXES) for word in words), command
        if "--force-reinstall" in words:
            assert "--no-deps" in words or "torch" in wanted, command
    elif words[0] == "pip" and words[1].isascii():
        assert words[1] in ("list", "show", "check", "index", "uninstall", "freeze", "wheels", "wheel"), command
    elif words[:2] == ["apt", "install"]:
        names = {word for word in words[2:] if not word.startswith("-")}
        assert names and {name for name in names if name.isascii()} - {"or", "the"} <= APT | {"linux-firmware"}, (
            command
        )
    elif words[0] == "apt":
        assert words[1] in ("update", "autoremove", "list", "purge", "remove"), command
        assert words[1] != "purge" or set(words[2:]) <= APT, command
    elif words[0] == "rm":
        assert words[1] == "-rf" and all(CACHES.match(word) for word in words[2:] if word.isascii()), command
    elif words[0] in ("docker", "podman"):
        assert "--privileged" not in words
        # Groups count by number inside a container.
        assert not re.search(r"--group-add (?:video|render)\b", command), command
    else:
        assert words[0] not in ("dd", "mkfs", "chmod", "chown", "kill", "curl", "wget"), command


def pip_wanted(words):
    names = set()
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word in ("--index-url", "--extra-index-url", "-c", "--find-links", "--no-binary"):
            skip = True
        elif not word.startswith("-") and word.isascii() and not word.startswith(("http", "...")):
            if word in ("where", "from", "over", "to", "in", "and", "or", "for", "then"):
                break
            names.add(word)
    return names


def test_the_check_would_notice():
    """What must not be advised is refused."""
    for bad in (
        "pip install --force-reinstall torch --index-url https://download.pytorch.org/whl/rocm7.2",
        "pip install torch torchvision torchaudio",
        "pip install jax[rocm]",
        "pip install gfxgraph[port]",  # on PyPI the name is another project's
        "apt install rocm-does-not-exist",
        "docker run --group-add render IMAGE",
        "chmod 666 /dev/kfd",
        "rm -rf ~",
    ):
        with pytest.raises(AssertionError):
            check(bad)
    found = list(commands(["a container: docker run --group-add render X ; sudo apt install nothing-like-it"]))
    assert len(found) == 2
