"""Setup scripts of torch extensions: the flags and architectures they give to nvcc."""

from __future__ import annotations

from gfxgraph_port.rule_api import *

FLAG = re.compile(
    r"(?:^|[\s\"'=;])(--?expt-(?:relaxed-constexpr|extended-lambda)|--?extended-lambda|--?use_fast_math|-Xptxas\S*|--ptxas-options\S*|-Xcudafe\S*|-Xfatbin\S*|-?-diag[-_]suppress\S*|--threads(?:[= ]\d+)?|-ccbin|--compiler-bindir|--generate-line-info|-lineinfo|--?rdc=true|--relocatable-device-code\S*|--?maxrregcount\S*|-Xcompiler\S*|--compiler-options|--default-stream\S*|--?fmad=\S+|--ftz=\S+|--prec-\S+|-extra-device-vectorization|--resource-usage|-split-compile\S*|--disable-warnings|--?forward-unknown(?:-opts|-to-host-compiler|-to-host-linker)|--forward-unknown-to-host-compiler|--?dlink-time-opt|-dlto|--device-debug|--?nvlink-options\S*|-Xnvlink\S*|--fatbin-options\S*|--cudafe-options\S*|--source-in-ptx|--keep-dir\S*|--dryrun|--(?:device-w|device-c|device-link)|--restrict|-(?:dc|dlink)(?=[\s\"']|$)|--Werror\s+(?:cross-execution-space-call|reorder|all-warnings)|--allow-unsupported-compiler|-allow-unsupported-compiler|--static-global-template-stub\S*|--expt-\S+|--cudart(?:=|\s)\S+|-cudart\s+\S+|--extra-device-vectorization|--generate-code\S*|--compress-mode\S*)"
    r"|-gencode\b|arch=compute_\d+\S*|-arch[= ]?sm_\d+\S*|--gpu-architecture\S*|code=sm_\d+|-arch=native|-arch=all\S*"
)


def nvcc_flags_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if not ctx.project.has_torch_extension:
        return  # what calls nvcc by itself calls the one that stands in
    builds = f.path.endswith("setup.py") or "nvcc" in f.text or "cpp_extension" in f.text
    for node, text in strings(f):
        match = FLAG.search(text) if len(text) <= 400 else None
        if match is None or isinstance(f.parent(node), ast.Compare):
            continue
        if match[0].lstrip().startswith(("--threads", "-lineinfo", "--disable-warnings", "-ccbin")) and not builds:
            continue
        if not any(isinstance(u, ast.Call) and last_name(f, u) == "add_argument" for u in f.ancestors(node)):
            yield hit(node, flag=match[0].strip())


_FOR_CLANG = {
    "--use_fast_math": "-ffast-math", "-use_fast_math": "-ffast-math", "-rdc=true": "-fgpu-rdc", "--rdc=true": "-fgpu-rdc",
    "--relocatable-device-code=true": "-fgpu-rdc", "-lineinfo": "-gline-tables-only",
    "--generate-line-info": "-gline-tables-only", "--fmad=false": "-ffp-contract=off", "-fmad=false": "-ffp-contract=off",
}  # fmt: skip


def fix_nvcc_flags_python(node: ast.expr, f: PyFile, ctx: Context) -> Edit | EditRefusal:
    """A flag that clang has under another name is chosen; a list of those it lacks is left out as a whole."""
    define = torch_import(f.tree, node)
    if not isinstance(node, ast.Constant) or define is None:
        return EditRefusal(node.lineno, "torch is not imported before this line")
    needs = "the build runs with the torch that the extension is for"
    up = f.parent(node)
    if node.value in _FOR_CLANG and not isinstance(up, ast.JoinedStr):
        return edit_of(node, f'("{_FOR_CLANG[node.value]}" if {ROCM} else {{old}})', needs=needs, define=define)
    if isinstance(up, ast.List) and not isinstance(f.parent(up), ast.Starred):
        elements = [e.value for e in up.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
        if len(elements) != len(up.elts):
            return EditRefusal(node.lineno, "the list is computed in part")
        kept = [_FOR_CLANG.get(e, e) for e in elements if e in _FOR_CLANG or not FLAG.search(e)]
        shown = ", ".join(f'"{e}"' for e in dict.fromkeys(kept))
        return edit_of(up, f"([{shown}] if {ROCM} else {{old}})", needs=needs, define=define)
    return EditRefusal(node.lineno, "not an element of a list of flags")
