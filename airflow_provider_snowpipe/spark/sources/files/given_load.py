"""A load that COPY or a pipe was given in one entry of the source log."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, field

from airflow_provider_snowpipe.bulk.stage import plain_name
from airflow_provider_snowpipe.spark.sources.files.log import Loader, Unit
from airflow_provider_snowpipe.spark.sources.files.spec import SourceFile


@dataclass(frozen=True, slots=True)
class GivenLoad:
    """Units that COPY or a pipe was given, and is not known to have loaded.

    :param source: the source's path
    :param entry: the number of the log's entry
    :param units: with their files as they are now
    :param since: when they were given
    :param run: the run that gave them
    :param gone: numbers of those whose files are not there any more
    :param changed: numbers of those whose files have other content, or more
    :param paths: where the files are staged: a unit never changes, so its path always has the same content
    """

    source: str
    log_id: str
    entry: int
    loader: Loader
    units: tuple[tuple[Unit, SourceFile], ...]
    since: dt.datetime
    run: str
    gone: frozenset[int] = frozenset()
    changed: frozenset[int] = frozenset()
    paths: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        end = ".ndjson.gz" if self.loader.takes_rows else ""
        paths = (f"{self.log_id}/{one.number}/{plain_name(one.file)}{end}" for one, _ in self.units)
        object.__setattr__(self, "paths", tuple(paths))

    @property
    def files(self) -> list[SourceFile]:
        """The files, as they are now."""
        return [file for _, file in self.units]

    def units_of(self, paths: Collection[str]) -> list[Unit]:
        """The units that are staged at some paths."""
        staged = zip(self.units, self.paths, strict=True)
        return [unit for (unit, _), path in staged if path in paths]

    def details(self, paths: Collection[str]) -> str:
        """What the ledger keeps of some files: their units, by which a lost log is made again."""
        return json.dumps([asdict(one) for one in self.units_of(paths)])
