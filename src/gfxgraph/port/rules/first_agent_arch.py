"""The architecture is read from the first agent that rocminfo lists."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX018",
    code="first-agent-arch",
    severity=Severity.MEDIUM,
    phase=0,
    fix=Fix.SUGGEST,
    en=Text(
        "The architecture is read from the first agent that rocminfo lists",
        "{text}",
        "With an APU beside a card the first agent may be the integrated GPU, and newer releases also print generic names such as gfx9-4-generic.",
        "Ask each visible device: torch.cuda.get_device_properties(i).gcnArchName, or list every agent.",
    ),
    zh=Text(
        "从 rocminfo 的第一个 agent 读取架构",
        "{text}",
        "既有 APU 又有独立显卡时，第一个 agent 可能是核显；较新版本还会打印 gfx9-4-generic 这类通用名。",
        "逐个询问可见设备：torch.cuda.get_device_properties(i).gcnArchName，或列出所有 agent。",
    ),
    path="build.sh",
    bad="ARCH=$(rocminfo | grep -o 'gfx[0-9a-f]*' | head -1)\n",
    good="ARCHS=$(rocminfo | grep -o 'gfx[0-9a-f]*' | sort -u)\n",
    needs=("rocminfo", "rocm_agent_enumerator"),
)
_FIRST = r"rocminfo\b[^|]*\|.{0,60}(head\s+-n?\s*1\b|-m\s*1\b|awk.{0,60}exit|sed.{0,40}1q)"


def _scan(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(_FIRST):
        yield entry_hit(f, entry, "rocminfo", text=match.group()[:80])


check_docker = check_shell = check_make = check_cmake = check_yaml = _scan


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node in f.nodes(ast.Constant):
        if isinstance(node.value, str) and re.search(_FIRST, node.value) and not f.is_docstring(node):
            yield hit(node, text=node.value[:80])
