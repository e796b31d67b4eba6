"""The change of a database's or schema's name, as everything that holds such a name sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rename:
    """A database or a schema gets another name.

    :param old: exact path as it was: database, or database and schema.
    :param new: exact path as it is to be, of the same length.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def kind(self) -> str:
        """``DATABASE`` or ``SCHEMA``."""
        return "DATABASE" if len(self.old) == 1 else "SCHEMA"

    def moved(self, path: tuple[str, ...]) -> tuple[str, ...]:
        """Return where a path from the database down is afterwards."""
        if path[: len(self.old)] != self.old:
            return path
        return self.new + path[len(self.old) :]

    def moved_object(self, path: tuple[str, str, str]) -> tuple[str, str, str]:
        """Return where an object of a schema is afterwards."""
        database, schema, name = self.moved(path)
        return database, schema, name
