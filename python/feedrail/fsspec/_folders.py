"""Names with slashes as files in directories."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class Folders:
    """The directories that names of files make."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names: dict[str, dict[str, None]] = {"": {}}
        for name in names:
            while name:
                parent = name.rpartition("/")[0]
                siblings = self._names.setdefault(parent, {})
                if name in siblings:
                    break
                siblings[name] = None
                name = parent

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def names_in(self, folder: str) -> list[str]:
        """Names of the files and directories of a directory."""
        return list(self._names[folder])
