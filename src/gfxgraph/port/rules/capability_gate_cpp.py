"""NVIDIA's compute capability decides in C++."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX123",
    code="capability-gate-cpp",
    severity=Severity.MEDIUM,
    phase=1,
    fix=Fix.SUGGEST,
    confidence="documented",
    en=Text(
        "NVIDIA's compute capability decides in C++",
        "{expr}",
        "hipDeviceProp_t has major and minor too, with other meaning: 9.4 is gfx942, 10.3 is gfx1030, so gates for sm_80 or sm_90 open on AMD.",
        "Ask gcnArchName on ROCm; keep the comparison for CUDA alone.",
    ),
    zh=Text(
        "C++ 中由 NVIDIA 计算能力作判断",
        "{expr}",
        "hipDeviceProp_t 也有 major 与 minor，但含义不同：9.4 是 gfx942，10.3 是 gfx1030，于是为 sm_80 或 sm_90 设的门槛在 AMD 上会打开。",
        "ROCm 上改问 gcnArchName；该比较只留给 CUDA。",
    ),
    path="gate.cpp",
    bad="bool fast(const DeviceProp& prop) {\n  return prop.major >= 8;\n}\n",
    good="bool fast(const Version& version) {\n  return version.major >= 8;\n}\n",
    needs=("major", "computecapability"),
)
_COMPARED = re.compile(
    r"\b\w*(?:[pP]rops?|[pP]ropert(?:y|ies)(?:\(\w*\))?)(?:\.|->)major\b\s*(?:[<>]=?|[=!]=|\*)|"
    r"\b\w*(?:compute_?capability|sm_?version|sm_?arch|cuda_?arch)\w*(?:\(\w*\))?\s*(?:[<>]=?|[=!]=)\s*\d|"
    r"cudaDevAttrComputeCapabilityM(?:aj|in)or",
    re.I,
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    found = []
    for number, line in enumerate(f.code.split("\n"), 1):
        match = None if line.lstrip().startswith("#") else _COMPARED.search(line)
        if match:
            found.append(line_hit(number + f.offset, match.start(), expr=line.strip()[:90]))
    yield from once_a_line(found)
