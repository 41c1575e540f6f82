"""What a function of a rule needs, in one import."""
# ruff: noqa: F401, F403

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from gfxgraph.port import bounded as re
from gfxgraph.port.archs import INSTINCT3
from gfxgraph.port.engine import Context
from gfxgraph.port.fix.edits import ROCM, Edit, EditRefusal, torch_import, torch_is_bound
from gfxgraph.port.fix.edits import of as edit_of
from gfxgraph.port.guards.worlds import NVIDIA
from gfxgraph.port.model import Hit, Severity
from gfxgraph.port.project import Project, UnreadableError
from gfxgraph.port.readers.cpp import CppFile
from gfxgraph.port.readers.directives import blank_comments
from gfxgraph.port.readers.python import PyFile, argument, defaults, int_of, is_true, keyword, text_of
from gfxgraph.port.readers.requirements import RequirementFile
from gfxgraph.port.readers.text import LogicalLine, PreprocessorBranch, TextFile
from gfxgraph.port.rules._common import *
