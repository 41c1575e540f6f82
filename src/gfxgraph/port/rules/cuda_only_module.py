"""A module of this project that runs on CUDA only is imported with no fallback."""

from gfxgraph.port.rule_api import *

RULE = Rule(
    id="GFX517",
    code="cuda-only-module",
    severity=Severity.MEDIUM,
    phase=5,
    fix=Fix.SUGGEST,
    tier="extended",
    confidence="verified",
    en=Text(
        "A module of this project that needs CUDA is imported with no fallback",
        "{name} imports {needed}",
        "The import of this file fails on AMD because of what that module imports.",
        "try/except ImportError round this import, and another path where the module is None.",
    ),
    zh=Text(
        "无回退地导入本项目中仅支持 CUDA 的模块",
        "{name} 导入了 {needed}",
        "由于该模块的导入，本文件在 AMD 上无法导入。",
        "用 try/except ImportError 包住这次导入，模块为 None 时走另一条路径。",
    ),
    path="pkg/api.py",
    bad={
        "pkg/__init__.py": "",
        "pkg/api.py": "from .fast import kernel\n",
        "pkg/fast/__init__.py": "import cutlass\n",
    },
    good={
        "pkg/__init__.py": "",
        "pkg/api.py": "try:\n    from .fast import kernel\nexcept ImportError:\n    kernel = None\n",
        "pkg/fast/__init__.py": "import os\n",
    },
    needs=("import",),
)


def check_python(f: PyFile, ctx: Context) -> Iterator[Hit]:
    folder = f.path.rpartition("/")[0]
    if f.path.endswith("/__init__.py") and ctx.project.has_file(f"{folder.rpartition('/')[0]}/__init__.py"):
        return  # a package within one: reported where it is imported
    seen: set[int] = set()
    for node, module, level, names in f.import_sites:
        base = "." * level + module
        for dotted in (base, *(f"{base}.{name}" if module else base + name for name in names)):
            found = ctx.project.module_path(f.path, dotted)
            if found is None or id(node) in seen:
                continue
            needed = ctx.project.needs_of(found[0], CUDA_ONLY)
            if needed and f.at_import(node) and not ctx.project.needs_of(f.path, CUDA_ONLY, deep=False):
                seen.add(id(node))
                yield hit(node, guarded_by=import_guard(f, node), name=dotted, needed=needed)


def fix_python(node: ast.AST, f: PyFile, ctx: Context) -> Edit | EditRefusal | None:
    return optional_import(node, f)
