"""What a function of a rule needs, in one import."""
# ruff: noqa: F401, F403

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from gfxgraph_port import bounded as re
from gfxgraph_port.engine import Context
from gfxgraph_port.fix.edits import ROCM, Edit, EditRefusal, torch_import, torch_is_bound
from gfxgraph_port.fix.edits import of as edit_of
from gfxgraph_port.guards.worlds import NVIDIA
from gfxgraph_port.model import Hit, Severity
from gfxgraph_port.project import Project, UnreadableError
from gfxgraph_port.readers.cpp import CppFile
from gfxgraph_port.readers.directives import blank_comments
from gfxgraph_port.readers.python import PyFile, argument, defaults, int_of, is_true, keyword, text_of
from gfxgraph_port.readers.requirements import RequirementFile
from gfxgraph_port.readers.text import LogicalLine, PreprocessorBranch, TextFile
from gfxgraph_port.rules._common import *
