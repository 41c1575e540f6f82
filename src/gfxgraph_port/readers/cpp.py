"""C++ and CUDA source: every preprocessor arm parsed, macro bodies included.

Conditionals cut through statements, so a file is parsed several times, each time with one arm of every
conditional and the rest blank, until every arm was shown (``directives.selections``). Offsets never move.
The CUDA grammar is a superset of C++, so one grammar reads both.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gfxgraph_port.readers.directives import Arm, Directive, arms_of, blank_comments, check_brackets, scan, selections

if TYPE_CHECKING:
    from tree_sitter import Node

    from gfxgraph_port.archs import Arch

_WANTED = (
    "call_expression", "if_statement", "for_statement", "declaration", "init_declarator",
    "binary_expression", "field_expression", "template_type", "function_definition", "array_declarator",
    "launch_bounds", "assignment_expression", "qualified_identifier", "template_function", "while_statement",
    "parameter_declaration", "field_declaration", "optional_parameter_declaration", "kernel_call_syntax",
)  # fmt: skip
_INTERESTING_MACRO = re.compile(r"__|asm|cuda|warp|lane|shfl|ballot|0x[fF]{8}|threadIdx", re.I)
_IDENT = re.compile(r"[A-Za-z_]\w*")
_MAX_MACROS = 400


@lru_cache(maxsize=1)
def _tools() -> tuple[Any, Any]:
    import tree_sitter
    import tree_sitter_cuda

    language = tree_sitter.Language(tree_sitter_cuda.language())
    query = tree_sitter.Query(language, "\n".join(f"({name}) @{name}" for name in _WANTED))
    return language, query


@dataclass(slots=True)
class CppCall:
    """One call: the callee's last name, the arguments as text and as nodes."""

    node: Node
    name: str
    callee: str
    args: list[Node]
    texts: list[str]
    line: int
    column: int


class CppFile:
    """One C++ or CUDA file.

    Args:
        path: repository-relative.
        text: decoded source.
    """

    kind = "cpp"

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text.replace("\r\n", "\n").replace("\r", "\n")
        self.lines = self.text.split("\n")
        self.code = blank_comments(self.text)
        check_brackets(self.code)
        self.directives = scan(self.code)
        self.arms = arms_of(self.directives, len(self.lines))
        self._arm_at = _arm_index(self.arms)
        self.macro_values = {
            name: body
            for d in self.directives
            if d.kind == "define" and (split := define_parts(d)) and not split[1]
            for name, body in [(split[0], split[2])]
        }
        self.reached: dict[tuple[object, ...], tuple[tuple[Arch, ...], str]] = {}  # by arm and architectures
        self._nodes: dict[str, list[Node]] | None = None
        self._trees: list[Any] = []  # nodes borrow from their trees
        self._sources: dict[int, bytes] = {}
        self._calls: dict[str, list[CppCall]] | None = None
        self._idents: dict[str, list[tuple[int, int]]] | None = None
        self._functions: list[tuple[Node, str]] | None = None
        self._bare: list[str] | None = None
        self._code_lines = self.code.split("\n")
        self.n_arms_unseen = 0

    # -- arms --------------------------------------------------------------------------------------

    def arm(self, line: int) -> Arm | None:
        """The innermost arm of a line of the file."""
        return self._arm_at.get(line)

    # -- trees -------------------------------------------------------------------------------------

    def _parse(self) -> dict[str, list[Node]]:
        import tree_sitter

        language, query = _tools()
        parser = tree_sitter.Parser(language)
        found: dict[str, list[Node]] = defaultdict(list)
        conditional = {
            n
            for d in self.directives
            if d.kind not in ("define", "undef", "include", "error", "pragma")
            for n in range(d.line, d.last_line + 1)
        }
        choices = selections(self.arms)
        seen_arms: set[int] = set()
        for number, chosen in enumerate(choices):
            kept = [
                "" if i in conditional or ((a := self._arm_at.get(i)) is not None and a.index not in chosen) else line
                for i, line in enumerate(self.lines, 1)
            ]
            source = "\n".join(k if k else " " * len(line) for k, line in zip(kept, self.lines))
            tree = parser.parse(source.encode("utf-8", "replace"))
            self._trees.append(tree)
            for name, nodes in tree_sitter.QueryCursor(query).captures(tree.root_node).items():
                for node in nodes:
                    arm = self._arm_at.get(node.start_point[0] + 1)
                    if number == 0 or (arm is not None and arm.index not in seen_arms):
                        found[name].append(node)
            seen_arms |= chosen
        self.n_arms_unseen = len(self.arms) - len(seen_arms)
        self._parse_macros(parser, query, found)
        for nodes in found.values():
            nodes.sort(key=lambda n: n.start_byte)
        return found

    def _parse_macros(self, parser: Any, query: Any, found: dict[str, list[Node]]) -> None:
        import tree_sitter

        bodies = 0
        for d in self.directives:
            parts = define_parts(d) if d.kind == "define" else None
            if parts is None or not _INTERESTING_MACRO.search(parts[2]) or bodies >= _MAX_MACROS:
                continue
            bodies += 1
            body, start = parts[2], parts[3]
            row = d.line - 1 + d.body.count("\n", 0, start)
            line_start = d.body.rfind("\n", 0, start) + 1
            first = self.lines[row]
            column = start - line_start
            if row == d.line - 1:
                column += len(first) - len(d.body.split("\n")[0])
            source = "\n" * row + " " * max(0, column) + body + ";"
            tree = parser.parse(source.encode("utf-8", "replace"))
            self._trees.append(tree)
            for name, nodes in tree_sitter.QueryCursor(query).captures(tree.root_node).items():
                found[name].extend(nodes)

    def nodes(self, *kinds: str) -> Iterator[Node]:
        """Every node of these kinds over all arms and macro bodies."""
        if self._nodes is None:
            self._nodes = self._parse()
        for kind in kinds:
            yield from self._nodes.get(kind, ())

    def line(self, node: Node) -> int:
        return int(node.start_point[0]) + 1

    def column(self, node: Node) -> int:
        return int(node.start_point[1])

    @staticmethod
    def source(node: Node | None) -> str:
        if node is None or node.text is None:
            return ""
        return " ".join(node.text.decode("utf-8", "replace").replace("\\\n", " ").split())

    def line_text(self, line: int) -> str:
        index = line - 1
        return self.lines[index] if 0 <= index < len(self.lines) else ""

    @property
    def functions(self) -> list[tuple[Node, str]]:
        """Function definitions with their text, comments blank."""
        if self._functions is None:
            self._functions = []
            for node in self.nodes("function_definition"):
                first, last = int(node.start_point[0]), int(node.end_point[0])
                rows = self._code_lines[first : last + 1]
                rows[0] = " " * int(node.start_point[1]) + rows[0][int(node.start_point[1]) :] if rows else ""
                self._functions.append((node, "\n".join(rows)))
        return self._functions

    # -- questions rules ask -----------------------------------------------------------------------

    def calls(self, *names: str) -> Iterator[CppCall]:
        """Calls whose callee's last name is one of these; all calls without names."""
        if self._calls is None:
            if names and not any(name in self.code for name in names):
                return  # without parsing
            self._calls = defaultdict(list)
            for node in self.nodes("call_expression"):
                function = node.child_by_field_name("function")
                arguments = node.child_by_field_name("arguments")
                callee = self.source(function)
                bare = re.sub(r"<.*", "", callee)
                name = re.split(r"::|\.|->", bare)[-1].strip()
                args = [c for c in arguments.named_children if c.type != "comment"] if arguments else []
                self._calls[name].append(
                    CppCall(
                        node,
                        name,
                        bare,
                        args,
                        [self.source(a) for a in args],
                        self.line(node),
                        self.column(node),
                    )
                )
        if not names:
            for found in self._calls.values():
                yield from found
        for name in names:
            yield from self._calls.get(name, ())

    def calls_like(self, pattern: str) -> Iterator[CppCall]:
        """Calls whose last name matches a regular expression in full."""
        list(self.calls())
        assert self._calls is not None
        matcher = re.compile(pattern)
        for name, found in self._calls.items():
            if matcher.fullmatch(name):
                yield from found

    @property
    def bare(self) -> list[str]:
        """The lines without comments and without what strings say."""
        if self._bare is None:
            self._bare = blank_comments(self.text, strings=True).split("\n")
        return self._bare

    @property
    def idents(self) -> dict[str, list[tuple[int, int]]]:
        """Every identifier outside comments, strings and include lines, with its (line, column)s."""
        if self._idents is None:
            self._idents = defaultdict(list)
            included = {d.line for d in self.directives if d.kind in ("include", "error", "pragma")}
            for number, line in enumerate(self.bare, 1):
                if number in included:
                    continue
                for match in _IDENT.finditer(line):
                    self._idents[match.group()].append((number, match.start()))
        return self._idents

    def idents_like(self, pattern: str) -> Iterator[tuple[str, int, int]]:
        matcher = re.compile(pattern)
        for name, places in self.idents.items():
            if matcher.fullmatch(name):
                for line, column in places:
                    yield name, line, column

    def includes(self) -> Iterator[tuple[str, int]]:
        """Included headers with their lines."""
        for d in self.directives:
            if d.kind == "include":
                match = re.search(r'[<"]([^<">]+)[">]', d.body[:1000])
                if match:
                    yield match.group(1).strip(), d.line

    def conditions(self) -> Iterator[Arm]:
        """Arms that ask something."""
        for arm in self.arms:
            if arm.condition is not None:
                yield arm

    def defines(self) -> Iterator[tuple[str, bool, str, int]]:
        """Macros as (name, takes arguments, body, line)."""
        for d in self.directives:
            parts = define_parts(d) if d.kind == "define" else None
            if parts:
                yield parts[0], parts[1], parts[2], d.line

    def expand(self, text: str, depth: int = 4) -> str:
        """Replace an object-like macro or a constant of this file by its value."""
        text = _bare(text)
        while depth and re.fullmatch(r"[A-Za-z_]\w*", text):
            value = self.macro_values.get(text) or self.constants().get(text)
            if value is None:
                break
            text = _bare(value)
            depth -= 1
        return text

    def constants(self) -> dict[str, str]:
        """``const``/``constexpr`` names with their initialisers."""
        if not hasattr(self, "_constants"):
            self._constants: dict[str, str] = {}
            for node in self.nodes("declaration", "field_declaration"):
                text = self.source(node)
                if "const" not in text:
                    continue
                for match in re.finditer(r"\b([A-Za-z_]\w*)\s*=\s*([^,;{]+)", text):
                    self._constants[match.group(1)] = match.group(2)
        return self._constants

    def enclosing(self, node: Node, *kinds: str) -> Node | None:
        up = node.parent
        while up is not None and up.type not in kinds:
            up = up.parent
        return up

    def function(self, node: Node) -> Node | None:
        return self.enclosing(node, "function_definition")

    def qualifiers(self, node: Node) -> set[str]:
        """``__global__``, ``__device__``, ``__host__`` of the function round a node."""
        function = self.function(node)
        if function is None:
            return set()
        body = function.child_by_field_name("body")
        end = body.start_byte if body is not None else function.end_byte
        head = (function.text or b"")[: end - function.start_byte].decode("utf-8", "replace")
        return set(re.findall(r"__(?:global|device|host)__", head)) | (
            {"__device__"} if re.search(r"DEVICE|_KERNEL\b", head) else set()
        )


def _bare(text: str) -> str:
    """Without the parentheses round the whole."""
    text = text.strip()
    while text.startswith("(") and text.endswith(")"):
        depth = 0
        for i, c in enumerate(text):
            depth += {"(": 1, ")": -1}.get(c, 0)
            if not depth and i < len(text) - 1:
                return text
        text = text[1:-1].strip()
    return text


def define_parts(d: Directive) -> tuple[str, bool, str, int] | None:
    """A ``#define`` as (name, takes arguments, body, where the body starts in the directive's text)."""
    match = re.match(r"[ \t]*([A-Za-z_]\w*)(\([^)]*\))?", d.body)
    if not match:
        return None
    start = match.end()
    while start < len(d.body) and d.body[start] in " \t\n":
        start += 1
    return match.group(1), match.group(2) is not None, d.body[start:].rstrip(), start


def _arm_index(arms: list[Arm]) -> dict[int, Arm | None]:
    found: dict[int, Arm | None] = {}
    for arm in arms:  # outer arms come first, so inner ones overwrite
        for line in range(arm.first_line, arm.last_line + 1):
            found[line] = arm
    return found
