"""How Python tells devices apart: capabilities, names, versions, tools and FP8 kinds."""

from __future__ import annotations

from gfxgraph.port.rule_api import *

_NAMED = re.compile(
    r"(?i)(compute_?)capabilit|^(device_)?capability$|^cuda_capability|device_capability|^compute_cap|^sm_?(version|arch|major)$|^cuda_arch|^cc_major$"
)
_HELPER = re.compile(
    r"is_sm_?\d+\w*|is_sm_at_least\w*|has_cuda_capability|has_device_capability|is_device_capability\w*|is_(hopper|ampere|blackwell|ada)\w*|get_sm_version|get_cuda_arch\w*"
)


def is_capability(f: PyFile, node: ast.AST | None, depth: int = 6) -> bool:
    """Whether an expression's value comes from the device's compute capability."""
    if node is None or depth == 0:
        return False
    if isinstance(node, ast.Call):
        name = f.dotted(node.func) or (node.func.attr if isinstance(node.func, ast.Attribute) else "")
        last = name.rpartition(".")[2]
        if last in ("get_device_capability", "get_device_capability_major") or re.fullmatch(
            r"get_sm_version|get_cuda_arch\w*", last
        ):
            return True
        if last in (
            "int",
            "float",
            "str",
            "tuple",
            "Version",
            "parse",
            "map",
            "join",
            "as_version_str",
            "to_int",
        ):
            return any(is_capability(f, a, depth - 1) for a in node.args) or (
                isinstance(node.func, ast.Attribute) and is_capability(f, node.func.value, depth - 1)
            )
        return False
    if isinstance(node, ast.Attribute):
        if node.attr in ("major", "minor"):
            return _is_properties(f, node.value, depth - 1) or is_capability(f, node.value, depth - 1)
        return bool(_NAMED.search(node.attr))
    if isinstance(node, ast.Subscript):
        return is_capability(f, node.value, depth - 1)
    if isinstance(node, ast.BinOp):
        return is_capability(f, node.left, depth - 1) or is_capability(f, node.right, depth - 1)
    if isinstance(node, ast.JoinedStr):
        return any(is_capability(f, v.value, depth - 1) for v in node.values if isinstance(v, ast.FormattedValue))
    if isinstance(node, ast.Tuple):
        return bool(node.elts) and all(is_capability(f, e, depth - 1) for e in node.elts)
    if isinstance(node, ast.GeneratorExp | ast.ListComp):
        return is_capability(f, node.elt, depth - 1) or any(
            is_capability(f, g.iter, depth - 1) for g in node.generators
        )
    if isinstance(node, ast.Name):
        bound = f.lookup(node.id, node)
        if any(is_capability(f, b, depth - 1) for b in bound if b is not node):
            return True
        return bool(_NAMED.search(node.id))
    return False


def _is_item_of(f: PyFile, node: ast.AST) -> bool:
    """A loop variable over a name such as ``compute_capabilities``."""
    return isinstance(node, ast.Name) and any(
        isinstance(up, ast.For) and f.source(up.target) == node.id and _NAMED.search(f.source(up.iter))
        for up in f.ancestors(node)
    )


def _is_properties(f: PyFile, node: ast.AST, depth: int) -> bool:
    if depth <= 0:
        return False
    if isinstance(node, ast.Call):
        return f.call_name(node).rpartition(".")[2] == "get_device_properties"
    if isinstance(node, ast.Name):
        return any(_is_properties(f, b, depth - 1) for b in f.lookup(node.id, node))
    return False


def _number(node: ast.AST) -> bool:
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return bool(node.elts) and all(_number(e) for e in node.elts)
    if isinstance(node, ast.Constant):
        return (
            isinstance(node.value, int | float)
            and not isinstance(node.value, bool)
            or bool(isinstance(node.value, str) and re.fullmatch(r"(sm_?)?\d+(\.\d+)?a?", node.value))
        )
    return isinstance(node, ast.Name | ast.Attribute | ast.Call)


def capability_gate(f: PyFile, ctx: Context) -> Iterator[Hit]:
    hits = list(once_a_line(_all(f)))
    seen = {h.line for h in hits}
    for node in f.nodes(ast.Assign):
        if node.lineno in seen or not isinstance(node.value, ast.Call | ast.Subscript | ast.Tuple):
            continue
        asked = any(
            isinstance(n, ast.Call) and f.call_name(n).rpartition(".")[2] == "get_device_capability"
            for n in ast.walk(node.value)
        )
        scope = f.scope(node)
        gates = [i for i, h in enumerate(hits) if f.scope(h.node) is scope and h.line > node.lineno]
        if asked and gates and isinstance(scope, ast.FunctionDef):  # the question and its gates are one finding
            group = f"line {node.lineno}"
            hits = [replace(h, group=group) if i in gates else h for i, h in enumerate(hits)]
            hits.append(hit(node, expr=f.source(node)[:120], group=group))
    yield from hits


def _all(f: PyFile) -> Iterator[Hit]:
    for node in f.nodes(ast.Compare):
        sides = [node.left, *node.comparators]
        for i, side in enumerate(sides):
            others = [s for j, s in enumerate(sides) if j != i]
            if is_capability(f, side) and all(_number(o) for o in others):
                if any(isinstance(o, ast.Constant) and o.value is None for o in others):
                    continue
                yield hit(node, expr=f.source(node)[:120])
                break
    for call in f.nodes(ast.Call):
        name = f.call_name(call).rpartition(".")[2] or (
            call.func.attr if isinstance(call.func, ast.Attribute) else ""
        )
        if (
            name == "startswith"
            and isinstance(call.func, ast.Attribute)
            and call.args
            and re.fullmatch(r"\d{1,2}(\.\d?)?", text_of(call.args[0]) or "")
            and (is_capability(f, call.func.value) or _is_item_of(f, call.func.value))
        ):
            yield hit(call, expr=f.source(call)[:120])
        if _HELPER.fullmatch(name) and not name.startswith("get_"):
            yield hit(call, expr=f.source(call)[:120])


def fix_capability_gate(node: ast.expr | ast.stmt, f: PyFile, ctx: Context) -> Edit | EditRefusal | None:
    """Closed for AMD where the number is one of Hopper's or later; a demand that AMD already meets stays open."""
    if isinstance(node, ast.stmt):
        return None  # the question; its gates are edited
    if not torch_is_bound(f.tree, node, at_import=f.at_import(node)):
        return EditRefusal(node.lineno, "torch is not imported before this line")
    least = _least(f, node)
    if not isinstance(node, ast.Compare) or least is None:
        return EditRefusal(node.lineno, "which side AMD belongs to is a decision")
    if _is_demanded(f, node):
        return edit_of(node, f"({ROCM} is not None or {{old}})", needs="AMD runs what follows")
    if isinstance(node.ops[0], ast.Lt | ast.LtE) and _raises(f, node):
        return edit_of(node, f"({ROCM} is None and {{old}})", needs="AMD runs what follows")
    if not isinstance(node.ops[0], ast.Gt | ast.GtE | ast.Eq | ast.In):
        return EditRefusal(node.lineno, "which side AMD belongs to is a decision")
    if least < 9:
        return EditRefusal(
            node.lineno, "every AMD GPU of the last years passes, and most have the feature: a decision"
        )
    return edit_of(node, f"({ROCM} is None and {{old}})", needs="the feature is NVIDIA's alone")


def _least(f: PyFile, node: ast.expr) -> int | None:
    """The major version that is compared with."""
    for side in node.comparators if isinstance(node, ast.Compare) else ():
        first = side.elts[0] if isinstance(side, ast.Tuple | ast.List) and side.elts else side
        if isinstance(first, ast.Constant) and isinstance(first.value, int | float):
            value = int(first.value)
            return value // 10 if value >= 20 else value
    return None


def _is_demanded(f: PyFile, node: ast.AST) -> bool:
    """Whether a false answer stops the program: an ``assert``, or ``if not ...: raise``."""
    child, turned = node, False
    for up in f.ancestors(node):
        if isinstance(up, ast.UnaryOp) and isinstance(up.op, ast.Not):
            turned = not turned
        elif isinstance(up, ast.Assert):
            return up.test is child and not turned
        elif isinstance(up, ast.If):
            return up.test is child and turned and _stops(up.body)
        elif not isinstance(up, ast.BoolOp):
            return False
        child = up
    return False


def _raises(f: PyFile, node: ast.AST) -> bool:
    up = f.parent(node)
    return isinstance(up, ast.If) and up.test is node and _stops(up.body)


def _stops(body: list[ast.stmt]) -> bool:
    last = body[-1]
    if isinstance(last, ast.Expr) and isinstance(last.value, ast.Call):
        return ast.unparse(last.value.func) in ("sys.exit", "exit", "pytest.skip", "quit")
    return isinstance(last, ast.Raise)


_PARSERS = frozenset({"int", "float", "parse", "Version", "LooseVersion", "StrictVersion", "TorchVersion"})


def torch_version_cuda_parse(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for version in f.nodes(ast.Attribute, ast.Name):
        node: ast.AST = version
        if not _is_version(f, node):
            continue
        up = f.parent(node)
        if isinstance(up, ast.BoolOp | ast.Call) and _defaulted(f, up, node):
            node, up = up, f.parent(up)
        if _taken_apart(f, up, node):
            yield hit(node, expr=f.source((f.parent(up) if isinstance(up, ast.Attribute) else up) or node)[:120])
        elif isinstance(version, ast.Attribute) and isinstance(up, ast.FormattedValue | ast.Dict | ast.keyword):
            scope = f.function(version) or f.statement(version)
            if scope is None or "version.hip" not in f.source(scope):
                yield hit(node, severity=Severity.INFO, expr=f.source(f.statement(version) or up)[:120])


def _taken_apart(f: PyFile, up: ast.AST | None, node: ast.AST) -> bool:
    return (
        isinstance(up, ast.Attribute)
        or (isinstance(up, ast.Subscript) and up.value is node)
        or (isinstance(up, ast.Call) and node in up.args and last_name(f, up) in _PARSERS)
        or (isinstance(up, ast.BinOp) and isinstance(up.op, ast.Add))
        or (isinstance(up, ast.Compare) and any(isinstance(o, ast.Lt | ast.LtE | ast.Gt | ast.GtE) for o in up.ops))
    )


def _is_version(f: PyFile, node: ast.AST) -> bool:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return False
    return "torch" in f.text and any(
        isinstance(part, ast.Attribute) and f.dotted(part) in ("torch.version.cuda", "version.cuda")
        for one in meanings(f, node)
        for part in (one.values if isinstance(one, ast.BoolOp) else [one])
    )


def _defaulted(f: PyFile, up: ast.AST, node: ast.AST) -> bool:
    """``os.environ.get(K, torch.version.cuda)`` and ``X or torch.version.cuda``."""
    if isinstance(up, ast.BoolOp):
        return isinstance(up.op, ast.Or)
    return isinstance(up, ast.Call) and f.call_name(up) in ("os.environ.get", "os.getenv") and node in up.args[1:]


_CARD = re.compile(r"(?i)\b(nvidia|geforce|[ahblt]\d{2,3}|gh200|gb200|rtx|tesla|quadro|v100|a800|h800|h20)\b")


def device_name_gate(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node in f.nodes(ast.Compare):
        sides = [node.left, *node.comparators]
        if any(_CARD.search(t) for s in sides for t in _texts(s)) and any(_is_name(f, s) for s in sides):
            yield hit(node, expr=f.source(node)[:120])
    for call in f.calls("*.startswith", "*.find", "*.search", "*.match"):
        asked = [*call.args, *([call.func.value] if isinstance(call.func, ast.Attribute) else [])]
        if any(_CARD.search(text_of(a) or "") for a in call.args) and any(_is_name(f, a) for a in asked):
            yield hit(call, expr=f.source(call)[:120])
    for table in f.nodes(ast.Dict):
        keys = [text_of(k) or "" for k in table.keys]
        cards = [k for k in keys if re.search(r"(?i)\b(a100|h100|h200|v100|l40s?|a800|h800|b200)\b", k)]
        if len(cards) >= 2 and not any(re.search(r"(?i)mi\d{3}|radeon|gfx|amd", k) for k in keys):
            yield hit(table, expr="{" + ", ".join(cards[:5]) + "}")


def _texts(node: ast.AST) -> list[str]:
    items = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return [t for i in items if (t := text_of(i))]


def _is_name(f: PyFile, node: ast.AST) -> bool:
    for one in meanings(f, node):
        while isinstance(one, ast.Call) and last_name(f, one) in ("lower", "upper", "strip", "str"):
            one = one.func.value if isinstance(one.func, ast.Attribute) else one.args[0] if one.args else one.func
        if isinstance(one, ast.Call) and last_name(f, one) in ("get_device_name", "device_name"):
            return True
        if isinstance(one, ast.Attribute) and one.attr == "name" and "propert" in f.source(one.value):
            return True
        if isinstance(one, ast.Name) and re.search(r"(?i)(gpu|device|dev|card)_?name|gpu_type", one.id):
            return True
    return False


VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def stores(f: PyFile) -> Iterator[tuple[ast.AST, str, str]]:
    """Allocator settings that are stored, not only read, as (node, variable, text)."""
    for node, key, value in env_writes(f):
        text = text_of(value)
        if key in VARIABLES and text:
            yield value or node, key, text
    for call in f.calls(
        "torch.cuda.memory._set_allocator_settings",
        "torch._C._accelerator_setAllocatorSettings",
        "torch.cuda.memory.set_allocator_settings",
    ):
        text = text_of(argument(call, 0, "env"))
        if text:
            yield call.args[0], "allocator", text


def is_both(text: str) -> bool:
    return "max_split_size_mb" in text and bool(re.search(r"expandable_segments\s*:\s*True", text))


def alloc_conf_combo_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, name, text in stores(f):
        if is_both(text):
            yield hit(node, name=name, value=text)


def alloc_conf_combo_text(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(r"\b(PYTORCH_(?:CUDA_|HIP_)?ALLOC_CONF)\s*[=: ]\s*[\"']?([^\s\"']+)"):
        if is_both(match.group(2)):
            yield entry_hit(f, entry, match.group(1), name=match.group(1), value=match.group(2))


def fix_alloc_conf_combo(node: ast.expr, f: PyFile, ctx: Context) -> Edit | EditRefusal:
    return gated(node, f, f'("expandable_segments:True" if {ROCM} else {{old}})')


TOOL = re.compile(r"(?:^|[\s/\"'`(|;&])(nvidia-smi|nvcc|cuobjdump|nvdisasm|ptxas|nsys|ncu)(?=$|[\s\"'`)|;&.])")
_RUNNERS = (
    "subprocess.run", "subprocess.Popen", "subprocess.check_output", "subprocess.check_call", "subprocess.call",
    "subprocess.getoutput", "subprocess.getstatusoutput", "os.popen", "os.system", "shutil.which", "distutils.spawn.find_executable",
)  # fmt: skip
_AMD_TOOL = re.compile(r"rocm[-_]smi|amd-smi|rocminfo|hipcc|rocm_agent")


def nvidia_tool_subprocess_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    has_amd = bool(_AMD_TOOL.search(f.text))
    for call in f.calls(*_RUNNERS):
        parts = [*call.args[:1], *[k.value for k in call.keywords if k.arg in ("args", "cmd")]]
        inner = [n for part in parts for item in meanings(f, part) for n in ast.walk(item)]
        texts = [t for n in inner if (t := text_of(n))]
        found = next((m.group(1) for t in texts if (m := TOOL.search(t))), "")
        if not found or (found == "nvcc" and re.search(r"-V\b|--version", " ".join(texts))):
            continue  # the version probe has a rule of its own
        tried = f.caught(call, "FileNotFoundError", "OSError", "CalledProcessError", "SubprocessError")
        guarded = f"line {tried.lineno}: try" if tried else ""
        scope = f.function(call)
        if not guarded and scope is not None and _AMD_TOOL.search(f.source(scope)):
            guarded = "an AMD tool is tried in the same function"
        asked = not guarded and f.call_name(call).endswith(("which", "find_executable"))
        if not (asked and has_amd):  # else asking whether a tool is there is the guard
            yield hit(
                call, severity=Severity.LOW if asked else None, group="asked" if asked else "", guarded_by=guarded,
                tool=found,
            )  # fmt: skip


def nvidia_tool_subprocess_shell(f: TextFile, ctx: Context) -> Iterator[Hit]:
    for entry, match in f.matching(TOOL.pattern) if not _AMD_TOOL.search(f.text) else ():
        yield entry_hit(f, entry, re.escape(match.group(1)), severity=Severity.LOW, tool=match.group(1))


def fp8_e4m3fn_hardcoded(f: PyFile, ctx: Context) -> Iterator[Hit]:
    if is_test_file(f.path):
        return
    for node in f.nodes(ast.Attribute, ast.Constant):
        name = f.dotted(node) if isinstance(node, ast.Attribute) else text_of(node) or ""
        if name in _FP8 and not f.is_docstring(node) and not _is_harmless(f, node):
            severity = None if isinstance(node, ast.Attribute) else Severity.MEDIUM
            yield hit(node, severity=severity, group="types", expr=f.source(f.parent(node) or node)[:100])


_FP8 = frozenset(
    "torch.float8_e4m3fn torch.float8_e5m2 float8_e4m3fn fp8_e4m3fn fp8_e4m3 e4m3fn torch.float8_e4m3fn".split()
)


def _is_harmless(f: PyFile, node: ast.AST) -> bool:
    """Comparing with a type, or listing and mapping types, chooses nothing."""
    for up in f.ancestors(node):
        if isinstance(up, ast.Compare | ast.Assert | ast.Dict | ast.Set | ast.Tuple | ast.List | ast.Subscript):
            return True
        if isinstance(up, ast.IfExp):
            return "fnuz" in f.source(up)
        if isinstance(up, ast.stmt):
            return isinstance(up, ast.If) or in_function_named(f, node, r"fnuz|normalize|convert")
    return False


_SM = re.compile(r"sm_?(?:[5-9]\d|1[0-2]\d)a?")
_FLAG = re.compile(
    r"(?i)_*(?:(?:has|have|is|use|uses|with|enable|build|support|supports|supported|compile|need|needs|any)_*)*"
    r"sm_?(?:[5-9]\d|1[0-2]\d)a?(?:_*(?:enabled|available|plus|or_later|or_higher|supported|and_above|only|flag))*"
)


def sm_label_gate(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node in f.nodes(ast.Compare):
        for side in (node.left, *node.comparators):
            items = side.elts if isinstance(side, ast.Tuple | ast.List | ast.Set) else [side]
            if items and all(_SM.fullmatch(text_of(i) or "") for i in items):
                yield hit(node, expr=f.source(node)[:120])
                break
    for joined in f.nodes(ast.JoinedStr):
        first = text_of(joined.values[0]) if joined.values else None
        if first is not None and re.search(r"(?:^|[^A-Za-z])(?:sm|compute)_?$", first):
            yield hit(joined, expr=f.source(joined)[:120])
    for asked in f.nodes(ast.If, ast.IfExp, ast.Assert, ast.While):
        for part in ast.walk(asked.test):
            name = part.id if isinstance(part, ast.Name) else part.attr if isinstance(part, ast.Attribute) else ""
            if name and _FLAG.fullmatch(name):
                yield hit(asked.test, expr=f.source(asked.test)[:120])
                break


_GFX = re.compile(r"gfx[0-9a-f]{1,5}")


def hardcoded_gfx(f: PyFile, ctx: Context) -> Iterator[Hit]:
    for node, text in strings(f) if not is_test_file(f.path) else ():
        up = f.parent(node)
        asked = isinstance(up, ast.Compare) or (isinstance(up, ast.Call) and last_name(f, up) == "startswith")
        if up is not None and asked and _GFX.fullmatch(text) and len(set(_GFX.findall(around(f, node)))) == 1:
            yield hit(node, name=text, expr=f.source(up)[:100])
