"""What is wrong with a record, in Snowflake's words."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_snowpipe.local.errors import SqlError
from airflow_provider_snowpipe.local.tables import TEMPORARY, Column, Table

UNREADABLE, TOO_MANY_FIELDS, TOO_FEW_FIELDS = -1, -2, -3
CONVERSION, TOO_LONG, MISSING = 0, 1, 2
KINDS = 4
_SHOWN_CHARACTERS = 100
_CONTINUE = (
    "If you would like to continue loading when an error is encountered, use other values such as "
    "'SKIP_FILE' or 'CONTINUE' for the ON_ERROR option. For more information on loading options, please run "
    "'info loading_data' in a SQL client."
)
# Numbers as in Snowflake's messages of failed loads.
_UNCONVERTED = {
    "NUMBER": ("100038", "Numeric value '{}' is not recognized"),
    "FLOAT": ("100038", "Numeric value '{}' is not recognized"),
    "BOOLEAN": ("100037", "Boolean value '{}' is not recognized"),
    "DATE": ("100040", "Date '{}' is not recognized"),
    "TIME": ("100108", "Time '{}' is not recognized"),
    "BINARY": ("100115", "The following string is not a legal hex-encoded value: '{}'"),
    "VARIANT": ("100069", "Error parsing JSON: {}"),
    "OBJECT": ("100071", "Failed to cast variant value {} to OBJECT"),
    "ARRAY": ("100071", "Failed to cast variant value {} to ARRAY"),
}


@dataclass(frozen=True, slots=True)
class RowError:
    """One record that could not be loaded.

    :param code: Snowflake error number as six digits.
    :param sqlstate: five-character SQLSTATE.
    :param message: what is wrong.
    :param row: number of the record, counting from 1.
    :param line: line of the file.
    :param character: character of the line.
    :param column: column as FIRST_ERROR_COLUMN_NAME shows it, or None.
    :param record: the record, as far as it is shown; None where nobody asked.
    """

    code: str
    sqlstate: str
    message: str
    row: int
    line: int
    character: int
    column: str | None
    record: str | None = None

    def abort(self, file: str) -> SqlError:
        """Return the error of a statement that this record aborts."""
        place = f"\n  File '{file}', line {self.line}, character {self.character}\n  Row {self.row}"
        where = f"{place}, column {self.column}" if self.column else place
        return SqlError(self.code, self.sqlstate, f"{self.message}{where}\n  {_CONTINUE}")


def describe(
    bad: int, shown: str | None, columns: tuple[Column, ...], fields: int, found: int
) -> tuple[str, str, str]:
    """Return number, SQLSTATE and message.

    :param bad: reason code of the staged record.
    :param shown: the value, or why the record is unreadable.
    :param columns: columns that the statement fills.
    :param fields: fields that a record must have.
    :param found: fields that the record has.
    """
    text = (shown or "")[:_SHOWN_CHARACTERS]
    if bad == UNREADABLE:
        code = "100069" if text.startswith("Error parsing JSON") else "100016"
        return code, "22P02" if code == "100069" else "22000", text
    if bad in (TOO_MANY_FIELDS, TOO_FEW_FIELDS):
        return (
            "100080",
            "22000",
            f"Number of columns in file ({found}) does not match that of the corresponding table ({fields}), "
            "use file format option error_on_column_count_mismatch=false to ignore this error",
        )
    column, kind = columns[bad // KINDS], bad % KINDS
    if kind == MISSING:
        return "100072", "22000", "NULL result in a non-nullable column"
    if kind == TOO_LONG:
        return (
            "100074",
            "54000",
            f"User character length limit ({column.type.length}) exceeded by string '{text}'",
        )
    if shown is None:
        return "100038", "22018", f"the expression for column {column.name} failed on this record"
    code, message = _UNCONVERTED.get(column.type.kind, ("100035", "Timestamp '{}' is not recognized"))
    return (
        code,
        "22018" if code == "100038" else "22007" if code in {"100035", "100040"} else "22000",
        (message.format(text)),
    )


def column_name(table: Table, bad: int, columns: tuple[Column, ...], fields: int, found: int) -> str | None:
    """Return the column of an error as Snowflake shows it: ``"TABLE"["COLUMN":number]``."""
    if bad == UNREADABLE:
        return None
    shown = table.name.partition(TEMPORARY)[0]
    if bad == TOO_MANY_FIELDS:
        return f'"{shown}"[{fields + 1}]'
    number = found if bad == TOO_FEW_FIELDS else bad // KINDS
    if number >= len(columns):
        return f'"{shown}"[{number + 1}]'
    column = columns[number]
    ordinal = 1 + next(n for n, known in enumerate(table.columns) if known.name == column.name)
    return f'"{shown}"["{column.name}":{ordinal}]'
