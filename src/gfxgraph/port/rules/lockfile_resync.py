"""A locked resolver runs after a ROCm torch was installed."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX006",
    code="lockfile-resync",
    severity=Severity.HIGH,
    phase=0,
    fix=Fix.SUGGEST,
    en=Text(
        "A locked resolver runs after a ROCm torch was installed",
        "{command} restores what the lock file says",
        "uv run, uv sync and their like first bring the environment in line with the lock file, so the ROCm torch installed earlier is silently replaced by the CUDA one.",
        "uv run --no-sync, uv sync --no-install-package torch, or a lock file of its own for ROCm.",
    ),
    zh=Text(
        "安装 ROCm torch 之后又运行了带锁文件的解析器",
        "{command} 会按锁文件恢复环境",
        "uv run、uv sync 等会先让环境与锁文件一致，先前安装的 ROCm torch 会被悄悄换成 CUDA 版。",
        "使用 uv run --no-sync、uv sync --no-install-package torch，或为 ROCm 单独准备锁文件。",
    ),
    path="rocm.Dockerfile",
    bad="FROM rocm/dev-ubuntu-22.04\nRUN uv pip install torch --index-url https://download.pytorch.org/whl/rocm6.4\nCMD uv run serve.py\n",
    good="FROM rocm/dev-ubuntu-22.04\nRUN uv pip install torch --index-url https://download.pytorch.org/whl/rocm6.4\nCMD uv run --no-sync serve.py\n",
    needs=("uv ", 'uv"', "poetry", "pdm", "pip"),
)
_RESYNC = re.compile(
    r'\b(uv["\', ]+run|uv["\', ]+sync|poetry["\', ]+install|pdm["\', ]+(?:sync|install)|pip3? install\s+(?:-\S+\s+)*-r)\b'
)


def _scan(f: TextFile, ctx: Context) -> Iterator[Hit]:
    installed = False
    for entry in f.entries:
        if re.search(r"whl/(?:nightly/)?rocm|\+rocm|FROM rocm/|torch.*rocm", f"{entry.keyword} {entry.text}"):
            installed = True
        elif installed and entry.keyword in ("", "RUN", "CMD", "ENTRYPOINT"):
            match = _RESYNC.search(entry.text)
            if match and not re.search(r"--no-sync|--no-deps|--no-install-package|UV_NO_SYNC=1|rocm", entry.text):
                yield entry_hit(f, entry, command=re.sub(r"[\"', ]+", " ", match.group(1)))


check_docker = check_shell = _scan
