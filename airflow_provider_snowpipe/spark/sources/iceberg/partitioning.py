"""To which partition of the source a data file belongs, by the table's own partitioning."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from airflow_provider_snowpipe.spark.sources.iceberg.history import DataFile
from airflow_provider_snowpipe.spark.sources.iceberg.spec import IcebergSourceSpec
from airflow_provider_snowpipe.spark.sources.tables.partition_values import ONLY
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, SourcePositionError


@dataclass(frozen=True, slots=True)
class Partitioning:
    """Names the partitions of data files.

    :param address: the table, for errors
    :param by: the field whose values are the partitions, None for one partition
    :param specs: PyIceberg's ``PartitionSpec`` by id; files keep the one they were written under
    :param schema: the table's columns
    """

    address: str
    by: str | None
    specs: dict[int, Any]
    schema: Any

    @classmethod
    def of(cls, metadata: Any, spec: IcebergSourceSpec) -> Partitioning:
        """Take the partitioning from a table's metadata.

        :param metadata: PyIceberg's ``TableMetadata``
        :param spec: the source
        :raises ConfigurationError: if the table has no such partition field
        """
        specs = metadata.specs()
        known = {field.name for one in specs.values() for field in one.fields}
        by = spec.partition_by
        if by is not None and by not in known:
            raise ConfigurationError(
                f"source partition_by is {by!r}, but {spec.address!r} is partitioned by "
                f"{sorted(known) or 'nothing'}: name one of its partition fields, or leave it out for one "
                "channel"
            )
        return cls(spec.address, by, specs, metadata.schema())

    def names(self, found: Iterable[str]) -> list[str]:
        """The partitions of the source.

        :param found: those that have files
        :raises SourcePositionError: if there is none, because only files tell their names
        """
        names = list(found) if self.by is not None else [ONLY]
        if not names:
            raise SourcePositionError(
                f"{self.address!r} has no rows, so that {self.by!r} tells no partition: run again when it has"
            )
        return names

    def by_name(self, files: Iterable[tuple[Any, int]]) -> dict[str, list[tuple[DataFile, int]]]:
        """Sort files into partitions; their order stays.

        :param files: PyIceberg's ``DataFile``, each with its sequence number
        :raises ConfigurationError: if one is in no partition, or not in Parquet
        """
        found: dict[str, list[tuple[DataFile, int]]] = defaultdict(list)
        for file, version in files:
            if file.file_format.value != "PARQUET":
                raise ConfigurationError(
                    f"data file {file.file_path!r} of {self.address!r} is {file.file_format.value}: this "
                    "source reads Parquet; rewrite the table's files"
                )
            values = self._values(file)
            facts = DataFile(
                file.file_path, file.record_count, file.file_size_in_bytes, self._constants(values)
            )
            found[self._name(file, values)].append((facts, version))
        return found

    def _values(self, file: Any) -> list[tuple[Any, Any]]:
        """The fields of the partitioning that the file was written under, with its values."""
        fields = self.specs[file.spec_id].fields
        return [(one, file.partition[place]) for place, one in enumerate(fields)]

    def _name(self, file: Any, values: list[tuple[Any, Any]]) -> str:
        if self.by is None:
            return ONLY
        for one, value in values:
            if one.name == self.by and value is not None:
                return str(one.transform.to_human_string(self.schema.find_type(one.source_id), value))
        raise ConfigurationError(
            f"data file {file.file_path!r} of {self.address!r} has no value of the partition field "
            f"{self.by!r}, which names its channel: it holds NULL, or was written before the table had that "
            "field. Rewrite the table's files, or load it through one channel. Nothing was sent"
        )

    def _constants(self, values: list[tuple[Any, Any]]) -> tuple[tuple[int, Any], ...]:
        from pyiceberg.transforms import IdentityTransform

        return tuple(
            (one.source_id, value)
            for one, value in values
            if value is not None and isinstance(one.transform, IdentityTransform)
        )
