"""The ways of saying which files a wait is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_snowpipe.bulk.stage import StageReference
from airflow_provider_snowpipe.bulk.wanted_files import WantedFiles, file_names
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, NothingStagedError


@dataclass(frozen=True, slots=True)
class FileChoice:
    """Files by name; all of a stage with a prefix; or any number of them with a prefix.

    :param files: paths below the stage, or below ``stage`` where it has a path
    :param prefix: instead of files, the start of the paths
    :param count: with it, how many different files
    :param stage: where the files are; without a count, where they are listed
    """

    files: Any = None
    prefix: str | None = None
    count: int | str | None = None
    stage: str | None = None

    def check(self) -> None:
        """Find what no rendering of templates can mend.

        :raises ConfigurationError: if the arguments do not go together
        """
        if (self.files is None) == (self.prefix is None):
            raise ConfigurationError(
                f"files is {self.files!r} and prefix is {self.prefix!r}: give one of the two"
            )
        if self.prefix is None and self.count is not None:
            raise ConfigurationError(f"count is {self.count!r} without prefix=…: leave it out with files=…")
        if self.prefix is not None and self.count is None and self.stage is None:
            raise ConfigurationError(
                f"prefix is {self.prefix!r}: give stage=…, where the files are listed, or count=…, how many "
                "there are"
            )

    def wanted(self, list_stage: Callable[[str, str], Sequence[str]]) -> WantedFiles:
        """Say which files these are.

        :param list_stage: lists the files of a stage with a prefix: their paths below the stage
        :raises NothingStagedError: if the stage has none with the prefix
        :raises ConfigurationError: if an argument is wrong
        """
        reference = StageReference.parse(self.stage) if self.stage else None
        if self.files is not None:
            names = file_names(self.files, may_be_none=True)
            return WantedFiles(tuple(reference.below(name) if reference else name for name in names))
        prefix = self.prefix or ""
        if self.count is not None:
            return WantedFiles(
                (), reference.below(prefix) if reference else prefix, number_of_files(self.count)
            )
        listed = list_stage(self.stage or "", prefix)
        if not listed:
            raise NothingStagedError(
                f"no file of stage {self.stage!r} begins with {prefix!r}: stage the files before this task "
                "runs, or give count=…, the number to wait for"
            )
        return WantedFiles(tuple(listed))


def number_of_files(count: int | str | None) -> int:
    """Take a number as a template renders it.

    :param count: the number, or its text
    :raises ConfigurationError: if it is something else
    """
    try:
        return int(str(count))
    except ValueError:
        raise ConfigurationError(f"count is {count!r}: give a number of files") from None
