"""Avro and Protobuf values whose schemas are in a schema registry.

Their rows become Python objects on the way: for Avro inside compiled code (fastavro and Arrow), for Protobuf
one by one.
"""

from __future__ import annotations

import io
import json
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from airflow_provider_snowpipe.spark.files.avro_container import container_of
from airflow_provider_snowpipe.spark.files.avro_types import AvroRows, rows_of
from airflow_provider_snowpipe.spark.kafka.objects import body_of, lines_of
from airflow_provider_snowpipe.spark.kafka.protobuf import MessageReader
from airflow_provider_snowpipe.spark.kafka.registry import SchemaRegistry, schema_numbers
from airflow_provider_snowpipe.spark.kafka.values import ValueWriter
from airflow_provider_snowpipe.streaming.errors import ConfigurationError, EncodingError
from airflow_provider_snowpipe.streaming.ndjson import encode_ndjson

if TYPE_CHECKING:
    from airflow_provider_snowpipe.spark.kafka.records import Records


class RegisteredValues(ValueWriter):
    """Values that name their schema.

    :param registry: where the schemas are
    """

    growth: ClassVar[int] = 8

    def __init__(self, where: str, registry: SchemaRegistry) -> None:
        super().__init__(where)
        self._registry = registry

    def objects(self, records: Records) -> tuple[pa.LargeBinaryArray, np.ndarray]:
        """Decode the values, those of each schema at once, in their order."""
        filled: np.ndarray = records.values.is_valid().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(filled)
        numbers, values = schema_numbers(records.values.drop_null())
        if (numbers < 0).any():
            raise self._refuse(
                records,
                int(rows[np.flatnonzero(numbers < 0)[0]]),
                "does not begin as the schema registry's wire format does: use the value_format that wrote "
                "it",
            )
        blocks, places = [], []
        for number in np.unique(numbers):
            chosen = np.flatnonzero(numbers == number)
            first = int(records.offsets[rows[chosen[0]]])
            lines = self._decoded(int(number), values.take(pa.array(chosen)), first)
            if len(lines) != len(chosen):
                raise self._unreadable(int(number), first, "their number differs")
            blocks.append(lines)
            places.append(rows[chosen])
        empty = np.flatnonzero(~filled)
        blocks.append(pa.array([b"{}"] * len(empty), pa.large_binary()))
        places.append(empty)
        order = np.argsort(np.concatenate(places), kind="stable")
        lines = pa.concat_arrays(blocks).take(pa.array(order))
        return lines, np.ones(len(lines), bool)

    @abstractmethod
    def _decoded(self, number: int, values: pa.LargeBinaryArray, first: int) -> pa.LargeBinaryArray:
        """Decode values of one schema.

        :param number: the schema
        :param values: the values without their heads
        :param first: offset of the first of them, for errors
        """

    def _unreadable(self, number: int, first: int, reason: str) -> EncodingError:
        return EncodingError(
            f"{self._where}: values of schema {number} from offset {first} on cannot be decoded "
            f"({reason}): they "
            "were not written with that schema"
        )


class AvroValues(RegisteredValues):
    """Avro records."""

    def __init__(self, where: str, registry: SchemaRegistry) -> None:
        super().__init__(where, registry)
        try:
            from fastavro import reader
        except ImportError as error:
            raise ConfigurationError(
                f"value_format='avro' needs fastavro ({error}): install airflow-provider-snowpipe[kafka] "
                "where Spark runs"
            ) from None
        self._reader: Any = reader
        self._known: dict[int, AvroRows] = {}

    def _decoded(self, number: int, values: pa.LargeBinaryArray, first: int) -> pa.LargeBinaryArray:
        """Decode by one call: records one behind the other are a block of an Avro file."""
        rows = self._known.get(number) or self._learn(number)
        container = container_of(rows.read_schema, len(values), bytes(body_of(values)))
        try:
            records = list(self._reader(io.BytesIO(container)))
            array = pa.array(records, pa.struct(list(rows.arrow)))
        except (ValueError, LookupError, TypeError, EOFError, pa.ArrowException) as error:
            raise self._unreadable(number, first, type(error).__name__) from None
        batch = pa.RecordBatch.from_struct_array(array)
        return lines_of(encode_ndjson(batch)) if len(batch) else pa.array([], pa.large_binary())

    def _learn(self, number: int) -> AvroRows:
        found = self._registry.schema(number)
        if found.references:
            raise EncodingError(
                f"{self._where}: Avro schema {number} refers to other schemas, which is not supported: "
                f"register "
                "it with its types inside"
            )
        try:
            self._known[number] = rows_of(json.loads(found.schema_str))
        except EncodingError as error:
            raise EncodingError(f"{self._where}: Avro schema {number}: {error}") from None
        return self._known[number]


class ProtobufValues(RegisteredValues):
    """Protobuf messages, in the JSON form that Protobuf itself defines: 64-bit integers are texts there."""

    def __init__(self, where: str, registry: SchemaRegistry) -> None:
        super().__init__(where, registry)
        self._messages = MessageReader(registry)

    def _decoded(self, number: int, values: pa.LargeBinaryArray, first: int) -> pa.LargeBinaryArray:
        from google.protobuf.message import DecodeError

        try:
            lines = [self._messages.as_json(number, value) for value in values.to_pylist()]
        except (DecodeError, IndexError) as error:
            raise self._unreadable(number, first, type(error).__name__) from None
        return pa.array(lines, pa.large_binary())
