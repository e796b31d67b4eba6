"""CREATE, ALTER, DROP, SHOW and DESCRIBE of stages and file formats; PUT, GET, LIST and REMOVE."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from email.utils import formatdate
from typing import Any

from snowpipe_local.access.model import Securable
from snowpipe_local.errors import SqlError, compilation_error, object_exists, object_missing, unsupported
from snowpipe_local.loading.staging import read_blocks
from snowpipe_local.sql.copy_into import read_copy_options
from snowpipe_local.sql.reader import Reader, Target
from snowpipe_local.sql.results import OTHER, Result, ResultColumn, done, listing, status, texts
from snowpipe_local.sql.session import Session
from snowpipe_local.sql.show import Shown, placed, schemas_in_scope
from snowpipe_local.sql.stage_references import (
    access_settings,
    find_defined,
    format_path,
    read_location,
    require_access,
    resolve_location,
)
from snowpipe_local.stages.definition import (
    FileFormatDefinition,
    OptionValue,
    ReadsValue,
    Setting,
    StageDefinition,
    boolean,
    invalid_parameter,
    invalid_value,
    number,
    one_of,
    read_file_format,
    read_options,
    string,
)
from snowpipe_local.stages.files import FolderArea, Transfer
from snowpipe_local.stages.storage import Staged
from snowpipe_local.tables import NUMBER

# -- Options of CREATE STAGE and ALTER STAGE SET ---------------------------------------------------------

_SETTINGS = frozenset(
    {
        "URL", "ENDPOINT", "REGION", "STORAGE_INTEGRATION", "CREDENTIALS", "FILE_FORMAT", "COPY_OPTIONS",
        "COMMENT", "DIRECTORY", "ENCRYPTION", "AWS_ACCESS_POINT_ARN", "USE_PRIVATELINK_ENDPOINT",
    }
)  # fmt: skip
_ENCRYPTIONS = (
    "SNOWFLAKE_FULL", "SNOWFLAKE_SSE", "AWS_CSE", "AWS_SSE_S3", "AWS_SSE_KMS", "GCS_SSE_KMS", "AZURE_CSE",
    "NONE",
)  # fmt: skip
_EXTERNAL_ONLY = ("ENDPOINT", "STORAGE_INTEGRATION", "CREDENTIALS")


def with_settings(
    session: Session, stage: StageDefinition, settings: Mapping[str, Setting]
) -> StageDefinition:
    """Return a stage with the options of a statement applied.

    :raises SqlError: for an unknown option or a value that it does not take.
    """
    for name in settings:
        if name.removeprefix("STAGE_") not in _SETTINGS:
            raise invalid_parameter(name)
    # Both spellings are taken, as by the options of table stages.
    settings = {name.removeprefix("STAGE_"): value for name, value in settings.items()}
    if "URL" in settings:
        stage = dataclasses.replace(stage, url=_url(session, settings["URL"]))
    if stage.url is None and any(name in settings for name in _EXTERNAL_ONLY):
        raise compilation_error("ENDPOINT, STORAGE_INTEGRATION and CREDENTIALS need a stage with URL.")
    stage = access_settings(stage, settings)
    read = {name.lower(): read(settings[name]) for name, read in _READERS.items() if name in settings}
    stage = dataclasses.replace(stage, **read)
    if "ENCRYPTION" in settings:
        _check_encryption(settings["ENCRYPTION"])
    if "FILE_FORMAT" in settings:
        stage = _with_format(session, stage, settings["FILE_FORMAT"])
    return stage


def _check_encryption(value: Setting) -> None:
    """Refuse what ENCRYPTION does not take; what it takes has no effect, since files are not encrypted."""
    if not isinstance(value, Mapping) or not set(value) <= {"TYPE", "MASTER_KEY", "KMS_KEY_ID"}:
        raise invalid_value("ENCRYPTION", "..", "(TYPE = .. [MASTER_KEY = ..] [KMS_KEY_ID = ..])")
    if str(value.get("TYPE", "NONE")).upper() not in _ENCRYPTIONS:
        raise invalid_value("TYPE", value["TYPE"], ", ".join(_ENCRYPTIONS))


def _url(session: Session, value: Setting) -> str:
    if not isinstance(value, str):
        raise invalid_value("URL", value, "a string")
    if value.startswith("file://"):
        session.catalog.storage.allowed_folder(value)
        return str(value)
    if value.startswith(("s3://", "s3compat://")) and value.partition("://")[2].strip("/"):
        return str(value)
    raise invalid_value("URL", value, "s3://bucket/path/, s3compat://bucket/path/ or file:///folder/")


def _with_format(session: Session, stage: StageDefinition, value: Setting) -> StageDefinition:
    if isinstance(value, str):
        value = {"FORMAT_NAME": value}
    if not isinstance(value, Mapping):
        raise invalid_value("FILE_FORMAT", value, "(TYPE = .. options) or (FORMAT_NAME = name)")
    own = dict(value)
    named = own.pop("FORMAT_NAME", None)
    if named is None:
        return dataclasses.replace(stage, format_name=(), file_format=read_file_format(own).settings())
    if own:
        raise compilation_error("FORMAT_NAME and TYPE or its options are mutually exclusive in FILE_FORMAT.")
    found = find_defined(session, FileFormatDefinition, format_path(named))
    return dataclasses.replace(stage, format_name=(found.database, found.schema, found.name), file_format={})


def _is_enabled(value: Setting) -> bool:
    if not isinstance(value, Mapping) or not isinstance(value.get("ENABLE"), bool):
        raise invalid_value("DIRECTORY", "..", "(ENABLE = TRUE | FALSE ..)")
    return value["ENABLE"] is True


def _copy_options(value: Setting) -> dict[str, OptionValue]:
    if not isinstance(value, Mapping) or not all(isinstance(v, (str, int)) for v in value.values()):
        raise invalid_value("COPY_OPTIONS", "..", "(option = value ..)")
    read_copy_options(value)
    return {name: v if isinstance(v, int) else str(v) for name, v in value.items()}


_READERS: dict[str, Callable[[Setting], Any]] = {
    "COMMENT": str, "DIRECTORY": _is_enabled, "COPY_OPTIONS": _copy_options,
}  # fmt: skip


# -- PUT, GET, LIST and REMOVE: files of stages ----------------------------------------------------------

_COMPRESSIONS = {
    "AUTO_DETECT": "AUTO_DETECT", "GZIP": "GZIP", "BZ2": "BZIP2", "BROTLI": "BROTLI", "ZSTD": "ZSTD",
    "DEFLATE": "DEFLATE", "RAW_DEFLATE": "RAW_DEFLATE", "NONE": "NONE",
}  # fmt: skip
_FIELD = re.compile(r',("(?:[^"]|"")*"|[^,"]*)')
_LINE = re.compile(r'((?:"(?:[^"]|"")*"|[^"\n])+)\n')
_PUT_COLUMNS = (
    ResultColumn("source"), ResultColumn("target"), ResultColumn("source_size", NUMBER),
    ResultColumn("target_size", NUMBER), ResultColumn("source_compression"),
    ResultColumn("target_compression"), ResultColumn("status"), ResultColumn("message"),
)  # fmt: skip
_GET_COLUMNS = (
    ResultColumn("file"),
    ResultColumn("size", NUMBER),
    ResultColumn("status"),
    ResultColumn("message"),
)


def put(session: Session, reader: Reader) -> Result:
    """PUT file://path internal-stage [PARALLEL] [AUTO_COMPRESS] [SOURCE_COMPRESSION] [OVERWRITE]."""
    _check_client(session)
    local, location = _local_path(reader), read_location(session, reader)
    options = _options_of(reader)
    require_access(session, location, "WRITE")
    area, prefix = location.upload_folder()
    session.catalog.storage.create(area.root.name)
    transfer = Transfer(
        True,
        area.root.name,
        prefix,
        (local,),
        parallel=options.get("PARALLEL", 4),
        auto_compress=options.get("AUTO_COMPRESS", True),
        source_compression=_COMPRESSIONS[options.get("SOURCE_COMPRESSION", "AUTO_DETECT")],
        overwrite=options.get("OVERWRITE", False),
        threshold=options.get("THRESHOLD"),
    )
    return _answered_by_the_client(transfer)


def get(session: Session, reader: Reader) -> Result:
    """GET internal-stage file://folder [PARALLEL] [PATTERN]."""
    _check_client(session)
    location, local = read_location(session, reader), _local_path(reader)
    options = _options_of(reader)
    require_access(session, location, "READ")
    if location.is_external or not isinstance(location.area, FolderArea):
        raise compilation_error(f"cannot GET files from the external stage {location.name}.")
    transfer = Transfer(
        False,
        location.area.root.name,
        location.prefix,
        tuple(file.path for file in location.list(options.get("PATTERN"))),
        local_folder=local,
        parallel=options.get("PARALLEL", 10),
    )
    return _answered_by_the_client(transfer)


def list_files(session: Session, reader: Reader) -> Result:
    """LIST | LS location [PATTERN = '..']."""
    location = read_location(session, reader)
    options = _options_of(reader)
    require_access(session, location, "READ")
    files = location.list(options.get("PATTERN"))
    columns = (
        ResultColumn("name"),
        ResultColumn("size", NUMBER),
        ResultColumn("md5"),
        ResultColumn("last_modified"),
    )
    rows: list[Sequence[Any]] = [
        (location.listed_name(f), f.size, f.etag, _http_date(f.modified_ms)) for f in files
    ]
    return Result(columns, rows, OTHER)


def remove_files(session: Session, reader: Reader) -> Result:
    """REMOVE | RM location [PATTERN = '..']."""
    location = read_location(session, reader)
    options = _options_of(reader)
    require_access(session, location, "WRITE")
    files = location.list(options.get("PATTERN"))
    location.remove(files)
    rows: list[Sequence[Any]] = [(location.listed_name(f), "removed") for f in files]
    return Result((ResultColumn("name"), ResultColumn("result")), rows, OTHER)


def staged_bindings(session: Session, address: str) -> dict[str, dict[str, Any]]:
    """Return the bound values that a client uploaded, because they are many, as it would have sent them.

    :param address: ``@stage/path``; below it are CSV files in which an empty field is NULL and ``""``
        is empty (observed with connector 4.8.1).
    """
    location, rest = resolve_location(session, address)
    if rest:
        raise compilation_error(f"invalid location '{address[:60]}' of bound values.")
    require_access(session, location, "READ")
    rows: list[list[str | None]] = []
    for file in sorted(location.list(), key=lambda one: (len(one.path), one.path)):
        with location.local_copy(file) as path:
            text = b"".join(read_blocks(path, file.path, "AUTO")).decode()
        rows += [
            [None if not field else _plain_field(field) for field in _FIELD.findall("," + line)]
            for line in _LINE.findall(text)
        ]
    return {
        str(number): {"type": "TEXT", "value": list(column)}
        for number, column in enumerate(zip(*rows, strict=True), start=1)
    }


def _plain_field(field: str) -> str:
    return field[1:-1].replace('""', '"') if field.startswith('"') else field


def _check_client(session: Session) -> None:
    if not session.moves_files:
        raise unsupported("PUT and GET through the SQL API; use the Python connector")


def _answered_by_the_client(transfer: Transfer) -> Result:
    # Connector 5.2.0 shows the client's own rows under these names, 4.8.1 brings the names as well.
    columns = _PUT_COLUMNS if transfer.is_upload else _GET_COLUMNS
    return Result(columns, [], OTHER, transfer)


def _local_path(reader: Reader) -> str:
    url = reader.string() if reader.is_at_string else reader.until()
    if not url.startswith("file://") or len(url) == len("file://"):
        raise compilation_error(f"invalid local path '{url[:60]}'; write file:///path.")
    return url.removeprefix("file://")


def _threshold(name: str, value: Setting) -> int | None:
    written = str(value)
    if written and not written.isdigit():
        raise invalid_value(name, written, "a number of bytes")
    return int(written) if written else None


_FILE_OPTIONS: dict[str, dict[str, ReadsValue]] = {
    "PUT": {
        "PARALLEL": number(1, 99), "AUTO_COMPRESS": boolean, "OVERWRITE": boolean, "THRESHOLD": _threshold,
        "SOURCE_COMPRESSION": one_of(*_COMPRESSIONS),
    },
    "GET": {"PARALLEL": number(1, 99), "PATTERN": string},
    "LIST": {"PATTERN": string},
    "REMOVE": {"PATTERN": string},
}  # fmt: skip


def _options_of(reader: Reader) -> dict[str, Any]:
    """Read the options of PUT, GET, LIST or REMOVE, to the end of the statement."""
    settings = reader.settings()
    reader.end()
    return read_options(settings, _FILE_OPTIONS[reader.verb])


def _http_date(epoch_ms: int) -> str:
    # Snowflake writes days without a zero.
    return formatdate(epoch_ms // 1000, usegmt=True).replace(", 0", ", ")


# -- What stages and file formats have in common: temporary ones hide others, and belong to nobody ---------


def _is_visible(session: Session, known: StageDefinition | FileFormatDefinition) -> bool:
    return known.temporary or session.can_see(known.KIND, *known.path)


def _found(session: Session, head: Target, kind: type[Staged]) -> Staged | None:
    try:
        return find_defined(session, kind, head.path)
    except SqlError as error:
        if head.is_tolerant and error.code == "002003":
            return None
        raise


def _create(
    session: Session,
    reader: Reader,
    head: Target,
    kind: type[Staged],
    make: Callable[[str, str, str, int, bool], Staged],
) -> Result:
    """CREATE of either; a temporary one needs no privilege.

    :param make: gets database, schema, name, time of creation, and whether it is temporary.
    """
    session.transaction.commit()
    database, schema, name = session.resolve(head.path)
    if head.is_tolerant and _found(session, head, kind) is not None:
        return status(f"{name} already exists, statement succeeded.")
    new = make(database.name, schema, name, database.clock.now_ms(), reader.is_temporary)
    if reader.is_temporary:
        temporary = session.temporary.of(kind)
        old = temporary.get(new.path)
        if old is not None and not reader.is_replacing:
            raise object_exists(str(new))
        session.catalog.storage.create(*new.folders)
        temporary[new.path] = new
        session.catalog.storage.remove(old.folders if old is not None else ())
    else:
        session.require(f"CREATE {kind.KIND}", "SCHEMA", database.name, schema)
        if reader.is_replacing and database.stages.of(kind).find(schema, name) is not None:
            session.require("OWNERSHIP", kind.KIND, *new.path)
        database.stages.put(new, replace=reader.is_replacing)
        session.created(kind.KIND, *new.path)
    return status(f"{kind.MADE} {name} successfully created.")


def _alter(
    session: Session, reader: Reader, kind: type[Staged], read: Callable[[], Callable[[Staged], Staged]]
) -> Result:
    """ALTER of either; ``read`` reads what stands behind SET, and returns what it does."""
    head = reader.target()
    verb = reader.accept("RENAME TO", "SET", "UNSET COMMENT")
    if not verb:
        raise unsupported(f"ALTER {reader.kind} .. {reader.word}")
    renamed = reader.path() if verb == "RENAME TO" else ()
    change = read() if verb == "SET" else lambda known: dataclasses.replace(known, comment=None)
    reader.end()
    session.transaction.commit()
    old = _found(session, head, kind)
    if old is None:
        return done()
    if not old.temporary:
        session.require("OWNERSHIP", kind.KIND, *old.path)
    if renamed:
        target, schema, name = session.resolve(renamed)
        if target.name != old.database:
            raise unsupported(f"ALTER {reader.kind} .. RENAME TO another database")
        if schema != old.schema and not old.temporary:
            session.require(f"CREATE {kind.KIND}", "SCHEMA", target.name, schema)
        new = dataclasses.replace(old, schema=schema, name=name)
    else:
        new = change(old)
    if not old.temporary:
        session.catalog.database(old.database).stages.of(kind).change(old, new)
        if old.path != new.path:
            session.catalog.access.renamed(Securable(kind.KIND, old.path), Securable(kind.KIND, new.path))
        return done()
    temporary = session.temporary.of(kind)
    if old.path != new.path and new.path in temporary:
        raise object_exists(str(new))
    del temporary[old.path]
    temporary[new.path] = new
    return done()


def drop(kind: type[Staged]) -> Callable[[Session, Reader], Result]:
    """Return DROP STAGE or FILE FORMAT [IF EXISTS] name; the files of an internal stage are deleted."""

    def handler(session: Session, reader: Reader) -> Result:
        head = reader.last_target()
        session.transaction.commit()
        known = find_defined(session, kind, head.path)
        if known.temporary:
            del session.temporary.of(kind)[known.path]
            session.catalog.storage.remove(known.folders)
        else:
            session.require("OWNERSHIP", kind.KIND, *known.path)
            session.catalog.database(known.database).stages.drop(known)
            session.dropped(kind.KIND, *known.path)
        return status(f"{known.name} successfully dropped.")

    return handler


def _in_scope(session: Session, shown: Shown, kind: type[Staged]) -> list[Staged]:
    """Return what SHOW lists, by database, schema and name."""
    scope = {(database.name, schema): database for database, schema in schemas_in_scope(session, shown)}
    databases = {database.name: database for database in scope.values()}
    lasting = (database.stages.of(kind) for database in databases.values())
    return sorted(
        (
            known
            for known in itertools.chain(*lasting, session.temporary.of(kind).values())
            if (known.database, known.schema) in scope
            and shown.matches(known.name)
            and _is_visible(session, known)
        ),
        key=lambda known: (known.name, known.database, known.schema),
    )


def _described(session: Session, reader: Reader, kind: type[Staged]) -> Staged:
    known = find_defined(session, kind, reader.last_path())
    if not _is_visible(session, known):
        raise object_missing(kind.WORD, str(known))
    return known


# -- CREATE, ALTER, DROP, SHOW and DESCRIBE of stages ----------------------------------------------------

_DESCRIBED = ("parent_property", "property", "property_type", "property_value", "property_default")


def create_stage(session: Session, reader: Reader) -> Result:
    """CREATE [OR REPLACE] [TEMPORARY] STAGE [IF NOT EXISTS] name [URL = ..] [FILE_FORMAT = (..)] .."""
    head = reader.target()
    settings = _stage_settings(reader)

    def make(database: str, schema: str, name: str, now_ms: int, temporary: bool) -> StageDefinition:
        empty = StageDefinition(database, schema, name, now_ms, temporary=temporary)
        return with_settings(session, empty, settings)

    return _create(session, reader, head, StageDefinition, make)


def alter_stage(session: Session, reader: Reader) -> Result:
    """ALTER STAGE [IF EXISTS] name SET .. | RENAME TO new | UNSET COMMENT."""

    def read() -> Callable[[StageDefinition], StageDefinition]:
        settings = _stage_settings(reader, needed=True)

        def changed(stage: StageDefinition) -> StageDefinition:
            if "URL" in settings and not stage.is_external:
                raise compilation_error(f"the internal stage {stage} cannot get a URL; create another stage.")
            return with_settings(session, stage, settings)

        return changed

    return _alter(session, reader, StageDefinition, read)


def show_stages(session: Session, shown: Shown) -> Result:
    """SHOW STAGES [LIKE ..] [IN ACCOUNT | DATABASE d | SCHEMA s]."""
    found = _in_scope(session, shown, StageDefinition)
    return listing("SHOW STAGES", (_shown(session, stage) for stage in found))


def describe_stage(session: Session, reader: Reader) -> Result:
    """DESCRIBE STAGE name; credentials are masked."""
    stage = _described(session, reader, StageDefinition)
    rows: list[Sequence[Any]] = [
        *_format_rows(stage),
        *(("STAGE_COPY_OPTIONS", name, *typed(value), "") for name, value in stage.copy_options.items()),
        ("STAGE_LOCATION", "URL", "String", f'["{stage.url}"]' if stage.url else "", ""),
        ("STAGE_LOCATION", "ENDPOINT", "String", stage.endpoint or "", ""),
        ("STAGE_INTEGRATION", "STORAGE_INTEGRATION", "String", stage.storage_integration or "", ""),
        *(("STAGE_CREDENTIALS", name, "String", "****", "") for name in sorted(stage.credentials)),
        ("DIRECTORY", "ENABLE", "Boolean", str(stage.directory).lower(), "false"),
    ]
    return texts(_DESCRIBED, rows)


def _stage_settings(reader: Reader, *, needed: bool = False) -> dict[str, Setting]:
    settings = reader.settings(needed=needed)
    if reader.accept("WITH TAG", "TAG"):
        # Tags have no effect here.
        reader.parenthesized()
    reader.end()
    return settings


def typed(value: OptionValue) -> tuple[str, str]:
    """Return type and text of an option, as DESCRIBE shows them."""
    if isinstance(value, bool):
        return "Boolean", str(value).lower()
    if isinstance(value, int):
        return "Integer", str(value)
    if isinstance(value, tuple):
        return "List", "[" + ", ".join(_escaped(entry) for entry in value) + "]"
    return "String", "NONE" if value is None else _escaped(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")


def _format_rows(stage: StageDefinition) -> list[tuple[str, ...]]:
    if stage.format_name:
        return [("STAGE_FILE_FORMAT", "FORMAT_NAME", "String", ".".join(stage.format_name), "")]
    own = dict(stage.file_format)
    described = read_file_format({"TYPE": str(own.pop("TYPE", "CSV"))}, stage.file_format)
    return [
        ("STAGE_FILE_FORMAT", "TYPE", "String", described.type, "CSV"),
        *(
            ("STAGE_FILE_FORMAT", name, *typed(described[name]), typed(described.default(name))[1])
            for name in described
        ),
    ]


def _shown(session: Session, stage: StageDefinition) -> dict[str, Any]:
    kind = "EXTERNAL" if stage.is_external else "INTERNAL"
    return dict(
        placed(*stage.path), created_on=stage.created_on_ms, url=stage.url or "",
        has_credentials=bool(stage.credentials), owner=session.owner(stage.KIND, *stage.path),
        comment=stage.comment or "", region=stage.region,
        type=f"{kind} TEMPORARY" if stage.temporary else kind, cloud=stage.cloud,
        storage_integration=stage.storage_integration, endpoint=stage.endpoint,
        directory_enabled=stage.directory,
    )  # fmt: skip


# -- CREATE, ALTER, DROP, SHOW and DESCRIBE of file formats ----------------------------------------------


def create_file_format(session: Session, reader: Reader) -> Result:
    """CREATE [OR REPLACE] [TEMPORARY] FILE FORMAT [IF NOT EXISTS] name [TYPE = ..] [options] ..."""
    head = reader.target()
    settings, comment = _file_formats_settings(reader)

    def make(database: str, schema: str, name: str, now_ms: int, temporary: bool) -> FileFormatDefinition:
        chosen = read_file_format(settings).settings()
        return FileFormatDefinition(database, schema, name, now_ms, chosen, comment, temporary)

    return _create(session, reader, head, FileFormatDefinition, make)


def alter_file_format(session: Session, reader: Reader) -> Result:
    """ALTER FILE FORMAT [IF EXISTS] name SET options | RENAME TO new | UNSET COMMENT."""

    def read() -> Callable[[FileFormatDefinition], FileFormatDefinition]:
        settings, comment = _file_formats_settings(reader)
        return lambda old: _changed(old, settings, comment)

    return _alter(session, reader, FileFormatDefinition, read)


def show_file_formats(session: Session, shown: Shown) -> Result:
    """SHOW FILE FORMATS [LIKE ..] [IN ACCOUNT | DATABASE d | SCHEMA s]."""
    rows = (
        dict(
            placed(*known.path), created_on=known.created_on_ms, type=known.settings["TYPE"],
            owner=session.owner(known.KIND, *known.path), comment=known.comment or "",
            format_options=_options(known),
        )
        for known in _in_scope(session, shown, FileFormatDefinition)
    )  # fmt: skip
    return listing("SHOW FILE FORMATS", rows)


def describe_file_format(session: Session, reader: Reader) -> Result:
    """DESCRIBE FILE FORMAT name."""
    known = _described(session, reader, FileFormatDefinition)
    described = read_file_format({}, known.settings)
    rows: list[Sequence[Any]] = [
        ("TYPE", "String", described.type, "CSV"),
        *((name, *typed(described[name]), typed(described.default(name))[1]) for name in described),
    ]
    return texts(("property", "property_type", "property_value", "property_default"), rows)


def _options(known: FileFormatDefinition) -> str:
    described = read_file_format({}, known.settings)
    return json.dumps({"TYPE": described.type, **dict(described)})


def _file_formats_settings(reader: Reader) -> tuple[dict[str, Setting], str | None]:
    settings = reader.settings()
    reader.end()
    comment = settings.pop("COMMENT", None)
    if comment is not None and not isinstance(comment, str):
        raise invalid_value("COMMENT", comment, "a string")
    return settings, None if comment is None else str(comment)


def _changed(
    old: FileFormatDefinition, settings: dict[str, Setting], comment: str | None
) -> FileFormatDefinition:
    if str(settings.get("TYPE", old.settings["TYPE"])).upper() != old.settings["TYPE"]:
        raise compilation_error("the TYPE of a file format cannot be changed; create another one.")
    merged = read_file_format(settings, old.settings).settings()
    return dataclasses.replace(old, settings=merged, comment=old.comment if comment is None else comment)
