"""What a crash at this moment would leave of a core that lives: a copy of its folder."""

import contextlib
import shutil
from pathlib import Path


def copy_as_crashed(source: Path, target: Path) -> None:
    """Nothing of Python's runs meanwhile, but a helper thread may be in the middle of a rename or a removal: what has
    gone since the folder was listed is not in the copy, as if the crash had come then.
    """
    shutil.copytree(source, target, copy_function=_copy_if_it_is_there)


def _copy_if_it_is_there(source: str, target: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        shutil.copy2(source, target)
