"""Files in a stage of a running local service, loaded by COPY or by a file pipe."""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import snowflake.connector

from airflow_provider_snowpipe.bulk.statement_client import StatementClient, StatementState
from tests.local_service import LocalService


def put(service: LocalService, folder: Path, stage: str, files: Mapping[str, str]) -> None:
    """Upload files as they are, by their paths below a stage; ``REQUESTS_CA_BUNDLE`` names who is trusted."""
    with snowflake.connector.connect(**service.connector_arguments) as connection:
        for path, content in files.items():
            local = folder / path
            local.parent.mkdir(parents=True, exist_ok=True)
            local.write_text(content)
            below = f"{stage}/{path}".rpartition("/")[0]
            connection.cursor().execute(
                f"PUT 'file://{local}' @{below} AUTO_COMPRESS = FALSE OVERWRITE = TRUE"
            )


@contextlib.contextmanager
def running_copy() -> Iterator[None]:
    """Let every COPY run on for whoever asks in this process, and only for them: it ends as it would."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StatementClient, "state", lambda client, handle, statement: StatementState(handle))
        yield
