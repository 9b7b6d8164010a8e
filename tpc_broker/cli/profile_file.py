"""Addresses and settings under names: `$XDG_CONFIG_HOME/tpc/profiles.json`, which only its owner may read."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path


class ProfileError(Exception):
    """One line: what is wrong with the file or with a name."""


@dataclass(slots=True)
class Profile:
    """`properties` are settings of librdkafka."""

    bootstrap: str
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Profiles:
    """`current` is meant where none is named; "": none."""

    current: str = ""
    profiles: dict[str, Profile] = field(default_factory=dict)

    def find(self, name: str) -> Profile:
        found = self.profiles.get(name)
        if found is None:
            known = ", ".join(sorted(self.profiles)) or "none"
            raise ProfileError(f"there is no profile {name!r} in {profiles_path()}; there are: {known}")
        return found


def profiles_path() -> Path:
    """As the XDG Base Directory Specification has it."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "tpc" / "profiles.json"


def load_profiles() -> Profiles:
    path = profiles_path()
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        profiles = {
            str(name): Profile(str(one["bootstrap"]), {str(k): str(v) for k, v in one["properties"].items()})
            for name, one in told["profiles"].items()
        }
        return Profiles(str(told["current"]), profiles)
    except FileNotFoundError:
        return Profiles()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ProfileError(f"{path} cannot be read as profiles: {error}") from None


def save_profiles(profiles: Profiles) -> None:
    """Whole or not at all."""
    path = profiles_path()
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(f"{path.name}.{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(asdict(profiles), file, indent=1)
    new.replace(path)
