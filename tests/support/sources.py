"""The project's Python sources, each parsed once however many tests look at it."""

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """Do not change it: others are given the same."""
    return ast.parse(path.read_text())


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of the tree."""
    return tuple(ast.walk(tree_of(path)))
