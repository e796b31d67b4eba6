"""Avro and Protobuf values whose schemas are in a schema registry.

Their rows become Python objects on the way: for Avro inside compiled code (fastavro and Arrow), for Protobuf
one by one.
"""

from __future__ import annotations

import io
import json
from abc import abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_snowpipe.spark.sources.files.avro_types import AvroRows, rows_of
from airflow_provider_snowpipe.spark.sources.kafka.objects import body_of, lines_of
from airflow_provider_snowpipe.spark.sources.kafka.protobuf import MessageReader
from airflow_provider_snowpipe.spark.sources.kafka.registry import SchemaRegistry, schema_numbers
from airflow_provider_snowpipe.spark.sources.kafka.values import Faults, ValueWriter
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, EncodingError
from airflow_provider_snowpipe.streaming.ndjson import encode_ndjson
from airflow_provider_snowpipe.streaming.table_ddl import column_type, common_types

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.sources.kafka.records import Records

_NO_HEAD = "does not begin as the schema registry's wire format does: use the value_format that wrote it"


class RegisteredValues(ValueWriter):
    """Values that name their schema.

    :param registry: where the schemas are
    """

    growth: ClassVar[int] = 8

    def __init__(self, where: str, registry: SchemaRegistry) -> None:
        super().__init__(where)
        self._registry = registry

    def objects(self, records: Records) -> tuple[pa.LargeBinaryArray, np.ndarray, Faults]:
        """Decode the values, those of each schema at once, in their order."""
        filled: np.ndarray = records.values.is_valid().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(filled)
        numbers, values = schema_numbers(records.values.drop_null())
        faults = dict.fromkeys(map(int, rows[numbers < 0]), _NO_HEAD)
        rows, numbers = rows[numbers >= 0], numbers[numbers >= 0]
        blocks, places = [], []
        for number in np.unique(numbers):
            chosen = np.flatnonzero(numbers == number)
            lines, unreadable = self._lines(int(number), values.take(pa.array(chosen)))
            blocks.append(lines)
            places.append(rows[chosen])
            faults.update((int(rows[chosen[one]]), reason) for one, reason in unreadable.items())
        empty = np.setdiff1d(np.arange(len(records)), rows)
        blocks.append(pa.array([b"{}"] * len(empty), pa.large_binary()))
        places.append(empty)
        order = np.argsort(np.concatenate(places), kind="stable")
        lines = pa.concat_arrays(blocks).take(pa.array(order))
        return lines, np.ones(len(lines), bool), faults

    def _lines(self, number: int, values: pa.LargeBinaryArray) -> tuple[pa.LargeBinaryArray, Faults]:
        """Decode values of one schema at once, and one by one where some of them cannot be decoded."""
        try:
            return self._decoded(number, values), {}
        except EncodingError:
            lines, faults = [], {}
        for row in range(len(values)):
            try:
                lines.append(self._decoded(number, values.slice(row, 1)))
            except EncodingError as error:
                lines.append(pa.array([b"{}"], pa.large_binary()))
                faults[row] = str(error)
        return pa.concat_arrays(lines), faults

    @abstractmethod
    def _decoded(self, number: int, values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        """Decode values of one schema.

        :param number: the schema
        :param values: the values without their heads
        :raises EncodingError: if one of them cannot be decoded
        """


def _unreadable(number: int, reason: str) -> EncodingError:
    return EncodingError(f"was not written with schema {number}, which it names ({reason})")


class AvroValues(RegisteredValues):
    """Avro records."""

    def __init__(self, where: str, registry: SchemaRegistry) -> None:
        super().__init__(where, registry)
        try:
            import fastavro
        except ImportError as error:
            raise ConfigurationError(
                f"value_format='avro' needs fastavro ({error}): install airflow-provider-snowpipe[kafka] "
                "where Spark runs"
            ) from None
        self._avro: Any = fastavro
        self._known: dict[int, AvroRows] = {}

    def _decoded(self, number: int, values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        """Decode records one behind the other, each of which must end where its value does."""
        rows = self._known.get(number) or self._learn(number)
        stream = io.BytesIO(body_of(values))
        read, schema, place = self._avro.schemaless_reader, rows.read_schema, stream.tell
        records = []
        try:
            for end in np.cumsum(pc.binary_length(values)).tolist():
                records.append(read(stream, schema, None))
                if place() != end:
                    raise _unreadable(number, "it is too long or too short")
            array = pa.array(records, pa.struct(list(rows.arrow)))
        except (ValueError, LookupError, TypeError, EOFError, pa.ArrowException) as error:
            raise _unreadable(number, type(error).__name__) from None
        batch = pa.RecordBatch.from_struct_array(array)
        return lines_of(encode_ndjson(batch)) if len(batch) else pa.array([], pa.large_binary())

    def _learn(self, number: int) -> AvroRows:
        found = self._registry.schema(number)
        if found.references:
            raise EncodingError(
                f"names the Avro schema {number}, which refers to others, which is not supported: register "
                "it with its types inside"
            )
        try:
            rows = rows_of(json.loads(found.schema_str))
        except EncodingError as error:
            raise EncodingError(f"names the Avro schema {number}: {error}") from None
        types = {field.name: kind for field in rows.arrow if (kind := column_type(field.type))}
        self.types = common_types(self.types, types)
        self._known[number] = replace(rows, read_schema=self._avro.parse_schema(rows.read_schema))
        return self._known[number]


class ProtobufValues(RegisteredValues):
    """Protobuf messages, in the JSON form that Protobuf itself defines: 64-bit integers are texts there."""

    def __init__(self, where: str, registry: SchemaRegistry) -> None:
        super().__init__(where, registry)
        self._messages = MessageReader(registry)
        self.types = self._messages.types

    def _decoded(self, number: int, values: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
        from google.protobuf.message import DecodeError

        try:
            lines = [self._messages.as_json(number, value) for value in values.to_pylist()]
        except (DecodeError, IndexError) as error:
            raise _unreadable(number, type(error).__name__) from None
        return pa.array(lines, pa.large_binary())
