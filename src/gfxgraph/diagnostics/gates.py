"""Separates failures from text that only mentions failures, and AMD's failures from other vendors'.

Release notes, source code, lists of options and passed tests contain the same sentences that programs
print when they fail. They are distinguished by their form. The devices and packages named in a text show whose
GPU it is about.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from gfxgraph.diagnostics.lazy import Expression

AROUND = 4  # lines between items of the same list
LONGEST_SECTION = 60  # lines

# A list of changes mentions fixed failures: "- Fixed: bf16 was not supported (#123)".
# A list of options mentions possible failures: "  --flash-attn  (not supported on all GPUs)".
_CHANGELOG = Expression(
    r"^\s*[-*+\u2022]\s+(?:\[?\w+\]?:? )?"
    r"(?:fix|add|remove|improve|update|drop|support|document|warn|allow|change|deprecate|resolve|enable|avoid"
    r"|handle|make|use|prevent|introduce|bump|revert|correct|skip|clarify|disable|implement|return|raise)"
    r"(?:e?d|e?s|ing|)\b"
    r"|^\s*[-*+\u2022]\s.*\(?#\d+\)?\.?\s*$"
    r"|^\s*(?:-\w,? +)?--[a-z][\w-]+(?:,? [-A-Z<\[{]\S*)*  +\S"
    # Lists of commits: "a1b2c3d rccl: raise system error earlier", with or without a pull request's number.
    r"|^\s*[*|/\\ ]*\b(?=[0-9a-f]*\d)(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b(?: \([^)]*\))?"
    r" (?:\[(?!error|warn|info|fatal|debug)[A-Za-z][\w/ -]*\] ?)*[A-Za-z]"
    r"|^[0-9a-f]{7,40} .*\(#\d+\)\s*$"
    r"|^(?:commit [0-9a-f]{40}|Subject: \[PATCH|    (?:Merge|Revert|Signed-off-by|Reviewed-by)\b)",
    re.IGNORECASE,
)
# A program's own narration of its search, below warning level; what passed; what was skipped.
_NARRATION = Expression(
    r"\bMIOpen\(\w+\): (?:Info2?|Trace|Function|Command) \[|\blevel=(?:TRACE|DEBUG)\b"
    r"|\bINFO\b.{0,60}Unable to initialize backend|^I\d{4} \d\d:\d\d.{0,60}Unable to initialize backend"
    r"|\b(?:PASSED|SKIPPED|XFAIL|XPASS)\b|\.\.\. (?:ok|skipped|Passed)\b|\bok \d+ - |\[ +(?:OK|PASSED|SKIPPED) +\]"
    r"|\bis deprecated\b|\bhas been deprecated\b|DeprecationWarning|FutureWarning"
    r"|\b(?:[Ww]hat|[Ww]hy|[Hh]ow|[Ww]hen) (?:does|do|is|are|to|can|should)\b.{0,160}\?"
    r"|JavaScript heap|java\.lang\.OutOfMemoryError|OutOfMemoryError: Java"
)
# Of source code: statements, comments, directives, and strings that would be raised or printed.
_SOURCE = Expression(
    r"[;{]\s*(?://.*|\\n.*)?$"
    r"|^\s*(?:#\s*(?:include|define|if|elif|else|endif|pragma)\b|//|/\*|\* |\*/|\}|template\b"
    r"|static (?!assert)|const\b|def |class |import |from \w[\w.]* import|raise\b|return\b|assert\b|except\b"
    r"|elif\b|if .*[:{]\s*$|for .*:\s*$"
    r"|while .*:\s*$|try:|with .*:\s*$|case \w+:|throw\b|print\(|printf\(|fprintf\(|std::|self\.|TORCH_CHECK"
    r"|AT_ERROR|logger\.|logging\.|warnings\.|log\.|LOG\(|ROCP_\w+ <<|HIP_CHECK|@)"
    r"|^\s*[+-]\s{2,}\S.*[;{(]\s*$"
    r"|^\s*[\w.\[\]]+ = .*[({\[,]\s*$|^\s*f?[\"'].*[\"']\s*[,)]+\s*$|<<\s*\"|\?\s*\".*\"\s*:|R\"\("
)
_SOURCE_TOO = Expression(
    r"^\s+# |^# [A-Z].*[.,]$|^\s{2,}[rfb]*[\"'].*[\"'][\s,)\\]*$|\bis (?:not )?None\b|\\\s*$|^\s*\"\"\"|[\"']{3}\s*$"
    r"|^\s*\w+ = \w+(?:\.\w+)+$|^\s*\w+,$|^\s*\(?[\"'].*[\"'],|^\s*\w+\(.*\bconst \w+|^\s*\w+_t \w+\("
)
# Looks like code but is output: a time, a level, an exception, a compiler's finding.
_PRINTED_ANYHOW = Expression(
    r"^\s*[\[(]?\d{2,4}[-:/.]\d\d|\b(?:ERROR|FATAL|CRITICAL|WARN(?:ING)?)\b|\b\w*(?:Error|Exception)\b: "
    r"|:\d+(?::\d+)?: (?:fatal )?(?:error|warning|note)\b|^\s*(?:E  |\[|:\d:|\{\")|kernel:|\bwhat\(\):|^\s*error:"
    r"|\*ERROR\*|Assertion `|Assertion failed|Callback: |HSA_STATUS_ERROR\w*:|^\$ |^# ?\w+ |^\w+@"
    r"|failed with|---> |\berror\("
    r"|^(?:Error|error|Fatal|FATAL)\b"
)
_COMMIT = Expression(r"commit [0-9a-f]{7,40}$|(?:Author|Date|Merge): ")
_BULLET = Expression(r"^\s*[-*+\u2022] ")
# Such a heading is followed by prose, until a line that programs print.
_HEADING = re.compile(
    rb"^#{1,4} .{0,40}(?:changelog|release notes|known issues|resolved issues|what.s (?:new|changed)|bug fixes"
    rb"|compatibility|deprecat|limitations|added|fixed|changed|removed|optimi[sz]ed|upcoming|highlights)",
    re.IGNORECASE,
)
_PRINTED = Expression(
    r"^\s*(?:\[|\(?\w+Core|\d|\S*(?:error|exception|abort)\w*\b|traceback|:\d|E  |kernel:|file \")", re.IGNORECASE
)

TEST_BEGINS = "[ run      ]"
TEST_PASSED = "[       ok ]"
TEST_FAILED = "[  failed  ]"
"""GoogleTest's marks: output between the first and the second was expected."""


def is_source(line: str) -> bool:
    """Whether ``line`` is program text, not program output."""
    found = _SOURCE.search(line) or _SOURCE_TOO.search(line)
    return bool(found) and not _PRINTED_ANYHOW.search(line)


def is_said(line: str) -> bool:
    """Whether ``line`` mentions failures without being one, as far as one line can show."""
    return bool(_CHANGELOG.search(line) or _NARRATION.search(line)) or is_source(line)


def is_head_of_commit(line: str) -> bool:
    """Whether ``line`` belongs to the header that git prints above a commit's message."""
    return bool(_COMMIT.match(line))


def in_list(line: str, around: list[str]) -> bool:
    """Whether ``line`` is an item of a list of changes, or the message of a commit."""
    if _BULLET.match(line):
        return any(_CHANGELOG.search(other) for other in around)
    return line.startswith("    ") and any(_COMMIT.match(other) for other in around)


def section_end(line: bytes, number: int) -> int:
    """Where the prose ends that is opened by a heading in line ``number``; 0 if it opens none."""
    return number + LONGEST_SECTION if line.startswith(b"#") and _HEADING.match(line) else 0


def is_printed(line: str) -> bool:
    """Whether only programs print such a line: it ends a section of prose."""
    return bool(_PRINTED.match(line))


_AMD = Expression(
    r"rocm|roc(?:blas|fft|rand|sparse|solver|prof|tracer|minfo|thrust|alution)|\bhip(?![a-z]*(?:ster|po"
    r"|s\b))[A-Za-z_]*\b"
    r"|hip(?:blas|fft|rand|sparse|solver|rtc|ify)|gfx\d|amdgpu|\bAMD\b(?! (?:ryzen|epyc|threadripper|athlon))|radeon"
    r"|instinct|\bMI[23]\d\d[AXP]?\b|\bhsa[_k]|\bkfd\b|miopen|migraphx|\brccl|\baiter\b|composable.kernel|therock"
    r"|amdhip|amd-?smi|\bvega\b|\bnavi ?\d|strix (?:halo|point)|\b8[0-9]{2}[05]S\b|\bRX ?\d{3,4}\b|\bRDNA"
    r"|\bCDNA|\bROCk\b"
    r"|comgr|tensile|/dev/kfd|\bckernel|\bAMDKFD|libhsa|thunk_proxy|dxgkio",
    re.IGNORECASE,
)
_NOT_AMD = Expression(
    r"\bN/A\b|Could not collect|Unable to initialize backend|is_rocm\W+False|hip\W{1,4}None|ROCm: (?:no|false)"
    r"|(?:rocm|hip|amd\w*).{0,20}(?:not found|not available|False)|\brelationship|AuthenticAMD",
    re.IGNORECASE,
)
_OTHER_DEVICE = Expression(
    r"geforce|\bRTX ?(?:PRO|[A-Z]?\d{3,4})|\bGTX ?\d{3,4}|quadro|\bTesla[ -][A-Z]?\d|\bTITAN (?:V|X|RTX)"
    r"|nvidia jetson"
    r"|\b(?:A100|H100|H200|H20|H800|A800|B200|B300|GB200|GH200|V100|P100|A10G|A6000|L40S|DGX)\b"
    r"|NVIDIA (?:Graphics|[ABHLTV]\d|GPU device|GB|Thor|DRIVE)|\bNVRM\b|\bNVIDIA-SMI\b|dkms/nvidia"
    r"|nvidia\.com/(?!Download|download)"
    r"|nvidia-(?:dkms|driver-\d|container-toolkit|fabricmanager)|Driver Version: \d{3}\.|CUDA Version: 1\d"
    r"|detected platform cuda|platform names are: .{0,20}CUDA|Current capability: [78]\d|sm_(?:[5-9]\d|1[02]\d)\b"
    r"|compute_\d\d|\bnvcc fatal|Compute capability:? [5-9]\.\d|\bXid \("
    r"|Intel\(R\) (?:Arc|Data Center GPU|UHD|Iris)|\bIntel Arc\b|\bxpu\b|\bxccl\b|oneCCL|level[_ -]zero"
    r"|\bze_|ZE_RESULT"
    r"|\bSYCL\b|\bMPS\b|\bMetal\b|\bApple M\d|\bMTL\w+|\bMoore Threads|\bAscend\b|\bNPU\b|\bCANN\b|TPU v\d",
)
_OTHER_PACKAGE = Expression(
    r"\+cu1\d\d\b|/usr/local/cuda|nvidia-(?:cublas|cudnn|cuda|nccl)-|CUDA (?:compiler|runtime|toolkit).{0,20}1[0-9]\."
    r"|torch\.version\.cuda\W+1\d|\bcu1[12]\d\b",
    re.IGNORECASE,
)
# Printed on machines without an NVIDIA GPU by programs built for one, whatever packages the text lists.
_SAYS_NO_NVIDIA = frozenset({"framework_not_rocm", "not_rocm_cuda_torch", "no_device", "driver_library_not_found"})


def is_of_others(lines: list[str]) -> Callable[[str], bool]:
    """Return a function that tells for a code whether it is another vendor's failure in a text with ``lines``."""
    if any(map(names_amd, lines)):
        return lambda code: False
    if any(map(_OTHER_DEVICE.search, lines)):
        return lambda code: True
    packages = any(map(_OTHER_PACKAGE.search, lines))
    return lambda code: packages and code not in _SAYS_NO_NVIDIA


def names_amd(line: str) -> bool:
    """Whether ``line`` names an AMD device, driver or library as present."""
    return bool(_AMD.search(line)) and not _NOT_AMD.search(line)
