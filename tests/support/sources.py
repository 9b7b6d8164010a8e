"""The project's Python sources, each parsed once however many tests look at it."""

import ast
import gc
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """Do not change it: others are given the same."""
    tree = ast.parse(path.read_text())
    gc.freeze()  # it stays: a collector that looks at a million nodes again and again takes as long as the tests
    return tree


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of the tree."""
    return tuple(ast.walk(tree_of(path)))
