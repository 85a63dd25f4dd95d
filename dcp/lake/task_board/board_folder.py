"""Locates the folder of a lake's task board: one folder per lake.

By default it is on the machine where the task runs, below the system's folder for temporary files
and readable by its user only. A cluster names a folder that its executors and the operator share
(``flow_control.stats_folder``), and says by its permissions who may read it.
"""

import os
import tempfile
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from dcp.errors import ConfigError
from dcp.lake.config.settings import Settings


@dataclass(frozen=True, slots=True)
class BoardFolder:
    """The folder of a lake's task board, on the machine that asks."""

    lake: str
    shared: str = ""
    """Empty: the machine's own folder."""

    @classmethod
    def of(cls, settings: Settings) -> "BoardFolder":
        root = settings.lake.schema or settings.lake.root
        if not settings.lake.schema and "://" not in root:
            root = str(Path(root).expanduser().resolve())
        kind = "schema" if settings.lake.schema else "root"
        name = sha256(f"{kind}:{root}".encode()).hexdigest()[:16]
        return cls(name, settings.flow_control.stats_folder)

    @property
    def folder(self) -> Path:
        """The folder, which need not exist."""
        if self.shared:
            return self._shared_folder() / f"dcplake-stats-{self.lake}"
        return Path(tempfile.gettempdir()) / f"dcplake-stats-{os.getuid()}" / self.lake

    def _shared_folder(self) -> Path:
        try:
            return Path(self.shared).expanduser()
        except RuntimeError as error:
            raise ConfigError(
                f"flow_control.stats_folder: found {self.shared!r}, expected a folder: {error}"
            ) from None

    def make(self) -> Path:
        """Return the folder; makes a missing one.

        Raises:
            ConfigError: another user made it, and could read or change its files.
            OSError: it cannot be made.
        """
        if self.shared:
            self.folder.mkdir(parents=True, exist_ok=True)
            return self.folder
        self.folder.parent.mkdir(mode=0o700, exist_ok=True)
        self.require_private()
        self.folder.mkdir(mode=0o700, exist_ok=True)
        return self.folder

    def require_private(self) -> None:
        """Raise ConfigError if another user can write there."""
        if self.shared:
            return
        parent = self.folder.parent
        found = parent.lstat()
        if found.st_uid != os.getuid() or found.st_mode & 0o077 or parent.is_symlink():
            raise ConfigError(
                f"{parent}: found a folder of user {found.st_uid} with mode "
                f"{found.st_mode & 0o7777:#o}, expected our own with 0o700"
            )
