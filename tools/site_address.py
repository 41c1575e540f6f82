"""A hook of mkdocs: the site's version, and its link to the repository where pyproject.toml has the address."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def on_config(config: Any) -> Any:
    """Called by mkdocs with its configuration."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    config.site_description = project["description"]
    config.copyright = f"gfxgraph {project['version']}"
    config.repo_url = project.get("urls", {}).get("Repository")
    if config.repo_url:
        config.repo_name = "gfxgraph"
    return config
