"""A host function that the stream calls."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX236",
    code="host-callback-frees",
    severity=Severity.MEDIUM,
    phase=2,
    tier="extended",
    confidence="verified",
    en=Text(
        "A host function that the stream calls",
        "{name}",
        "It may call no runtime function, not even through a destructor that frees: HIP hangs where CUDA mostly lets it pass.",
        "Put the handles into a list that a thread of yours frees later.",
    ),
    zh=Text(
        "由流调用的主机函数",
        "{name}",
        "其中不得调用任何运行时函数，通过析构函数释放也不行：CUDA 多半放行，HIP 会死锁。",
        "把句柄放进列表，由自己的线程稍后释放。",
    ),
    path="host.cpp",
    bad="void f(cudaStream_t s, void* p) {\n  cudaLaunchHostFunc(s, [](void* q) { cudaFree(q); }, p);\n}\n",
    good="void later(void* q);\n",
    needs=("hostfunc", "addcallback"),
)


_CALLS = re.compile(
    r"\b(?:cuda|cu|hip)(?:Free\w*|\w*Destroy|HostUnregister|\w*Synchronize|Memcpy\w*|Malloc\w*)\s*\(|\.reset\s*\(|\bdelete\b|\.pop\w*\(|\.clear\("
)


def check_cpp(f: CppFile, ctx: Context) -> Iterator[Hit]:
    for call in f.calls("cudaLaunchHostFunc", "cudaStreamAddCallback", "cuLaunchHostFunc"):
        given = call.texts[1] if len(call.texts) > 1 else ""
        body = (
            re.search(rf"\b{re.escape(given)}\s*\([^;{{}}]*\)\s*\{{", f.code) if re.fullmatch(r"\w+", given) else None
        )
        text = f.code[body.end() : f.code.find("\n}", body.end())] if body else given
        if _CALLS.search(text):
            yield cpp_hit(f, call, name=f.source(call.node)[:80])
