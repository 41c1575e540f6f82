"""Dispatch compiled only under WITH_CUDA."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX222",
    code="with-cuda-dispatch",
    severity=Severity.LOW,
    phase=2,
    fix=Fix.SUGGEST,
    tier="extended",
    en=Text(
        "Code compiled only under a macro named for CUDA",
        "{text}",
        'Where the ROCm build defines another macro, the call ends in "not compiled with GPU support" at run time.',
        "Define WITH_CUDA for both builds, or add the HIP macro to the test.",
    ),
    zh=Text(
        "仅在以 CUDA 命名的宏之下编译的代码",
        "{text}",
        "若 ROCm 构建定义的是另一个宏，运行时会得到“未编译 GPU 支持”。",
        "两种构建都定义 WITH_CUDA，或在判断中加入 HIP 宏。",
    ),
    path="dispatch.cpp",
    bad="#ifdef WITH_CUDA\nint run_cuda();\n#endif\n",
    good="#if defined(WITH_CUDA) || defined(WITH_HIP)\nint run_gpu();\n#endif\n",
    needs=("cuda",),
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    pattern = r"(?!__|CUDA_(?:VERSION|API|ARCH)|CUDART|CUDACC)\w*(?<![A-Za-z])CUDA(?![a-z])\w*(?<!_H)(?<!_H_)(?<!_H__)(?<!_HPP)(?<!_HPP_)(?<!_CUH)(?<!_CUH_)(?<!_HH)(?<!_INCLUDED)"
    guards = {  # ``#ifndef X`` and straight after it ``#define X``: an include guard
        b.body.split()[0] for a, b in zip(f.directives, f.directives[1:])
        if a.kind == "ifndef" and b.kind == "define" and a.body.split()[:1] == b.body.split()[:1] and b.body.split()
    }  # fmt: skip
    own = ctx.project.extension_macros  # the build of the torch extension defines these: on ROCm too, once it asks
    yield from once_a_line(
        line_hit(
            arm.line + f.offset,
            text=arm.text[:100],
            guard_free=True,
            severity=Severity.INFO if name in own else None,
        )
        for arm, name in macro_tests(f, pattern, ctx.project.macros)
        if (name not in own or ctx.project.asks_cuda_home) and name not in guards
    )


def fix_cpp(hit: Hit, f: CppFile, ctx: Context) -> Edit | EditRefusal:
    """The macro of the same name with HIP in place of CUDA is asked as well."""
    line = f.line_text(hit.line)
    match = re.fullmatch(
        r"(\s*#\s*)(?:ifdef\s+(\w+)|if\s+defined\s*\(?\s*(\w+)\s*\)?)(\s*(?://.*|/\*.*\*/\s*)?)", line
    )
    if match is None:
        return EditRefusal(hit.line, "a condition of several parts: which side AMD belongs to is a decision")
    name = match.group(2) or match.group(3)
    other = name.replace("CUDA", "HIP")
    text = f"{match.group(1)}if defined({name}) || defined({other}){match.group(4)}"
    return Edit(hit.line, 0, text, length=len(line), needs=f"the HIP build defines {other}", absent=other)
