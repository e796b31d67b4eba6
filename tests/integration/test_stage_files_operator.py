"""``SnowpipeStageFilesOperator`` against a real local service: PUT by the connector, once for each file."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import fsspec
import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_snowpipe.hooks.bulk import SnowpipeBulkHook, StageUpload
from airflow_provider_snowpipe.operators.copy import SnowpipeCopyOperator
from airflow_provider_snowpipe.operators.stage_files import SnowpipeStageFilesOperator
from airflow_provider_snowpipe.streaming.errors import SqlError
from tests.airflow_connections import SetConnection
from tests.airflow_version import AIRFLOW
from tests.file_pipes import PipeTarget, task_context
from tests.local_connection import connect_by_form
from tests.local_service import LocalService


def write(folder: Path, files: Mapping[str, str]) -> str:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return str(folder)


def operator(target: PipeTarget, source: Any, **arguments: Any) -> SnowpipeStageFilesOperator:
    given: dict[str, Any] = {"snowflake_conn_id": target.conn_id, "stage": f"@{target.stage}", **arguments}
    return SnowpipeStageFilesOperator(task_id="stage", source=source, **given)


def stage(target: PipeTarget, source: Any, **arguments: Any) -> dict[str, Any]:
    return operator(target, source, **arguments).execute(task_context())


def listed(target: PipeTarget) -> dict[str, int]:
    """Sizes by the names below the stage."""
    rows = target.service.sql(f"LIST @{target.stage}")
    return {str(row["name"]).partition("/")[2]: int(row["size"]) for row in rows}


class TestSources:
    def test_a_folder_keeps_its_paths_below_the_stages_and_copy_takes_its_names(
        self, target: PipeTarget, local_service: LocalService, set_connection: SetConnection, tmp_path: Path
    ) -> None:
        target.conn_id = connect_by_form(local_service, set_connection)
        source = write(tmp_path / "in", {"a.csv": "1,x\n", "ny/it's a [file] (1)?*.csv": "2,xy\n"})
        names = ["a.csv", "ny/it's a [file] (1)?*.csv"]
        context = task_context()
        done = operator(target, source, stage=f"@{target.stage}/day").execute(context)

        assert listed(target) == {f"day/{names[0]}": 4, f"day/{names[1]}": 5}
        assert (done["files"], done["uploaded"], done["skipped"]) == (names, names, [])
        assert (done["stage"], done["bytes"], done["bytes_uploaded"]) == (f"@{target.stage}/day", 9, 9)
        SnowpipeCopyOperator(
            task_id="copy",
            table=target.table,
            stage=f"@{target.stage}/day",
            files=context["ti"].xcoms["files"],
            options={"file_format": {"type": "CSV"}},
            snowflake_conn_id=target.conn_id,
        ).execute(task_context())
        assert target.ids() == [1, 2]

    @pytest.mark.skipif(AIRFLOW < (3, 2), reason="before Airflow 3.2 a provider has to bring each storage")
    def test_objects_of_a_store_are_brought_here_and_left_nowhere(
        self, target: PipeTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        store, folder = fsspec.filesystem("memory"), f"/landing/{target.table}"
        store.pipe({f"{folder}/ny/a.csv": b"1,x\n", f"{folder}/b.csv": b"2,x\n"})
        done = stage(target, f"memory://{folder}")
        assert done["files"] == ["b.csv", "ny/a.csv"]
        assert listed(target) == {"b.csv": 4, "ny/a.csv": 4}
        store.pipe({f"{folder}/b.csv": b"2,y\n"})
        assert stage(target, f"memory://{folder}")["uploaded"] == ["b.csv"]
        assert list(tmp_path.glob("snowpipe-stage-*")) == []


class TestAgain:
    def test_what_is_staged_stays_and_what_was_changed_is_replaced(
        self, target: PipeTarget, tmp_path: Path
    ) -> None:
        source = write(tmp_path / "in", {"a.csv": "1,x\n", "b.csv": "2,x\n", "c.csv": "3,x\n"})
        stage(target, source)
        write(tmp_path / "in", {"b.csv": "2,y\n", "c.csv": "3,longer\n", "d.csv": "4,x\n"})
        assert operator(target, source).preview() == [
            "would skip a.csv (4 bytes)",
            "would replace b.csv (4 bytes)",
            "would replace c.csv (9 bytes)",
            "would upload d.csv (4 bytes)",
        ]
        assert sorted(listed(target)) == ["a.csv", "b.csv", "c.csv"]
        session = SnowpipeBulkHook.sql_session
        with patch.object(SnowpipeBulkHook, "sql_session", autospec=True, side_effect=session) as opened:
            done = stage(target, source, parallel=3)

        assert [call.args[1] for call in opened.call_args_list].count("PUT") == 3
        assert done["skipped"] == ["a.csv"]
        assert done["uploaded"] == ["b.csv", "c.csv", "d.csv"]
        assert done["bytes_uploaded"] == 17
        assert listed(target)["c.csv"] == 9
        write(tmp_path / "in", {"d.csv": "ORC,x\n"})  # PUT would find it compressed
        packed = [stage(target, source, auto_compress=True) for _ in range(2)]
        assert packed[0]["uploaded"] == packed[1]["skipped"] == sorted(listed(target))[1::2]


class TestStopped:
    def test_a_file_that_cannot_be_staged_ends_it_and_a_retry_goes_on(
        self, target: PipeTarget, tmp_path: Path
    ) -> None:
        target.put({"b.csv/inner.csv": "9,x\n"})  # so that b.csv is a folder of the stage
        source = write(tmp_path / "in", {"a.csv": "1,x\n", "b.csv": "2,x\n"})
        with pytest.raises(SqlError, match="PUT"):
            stage(target, source, parallel=1)
        target.service.sql(f"REMOVE @{target.stage}/b.csv")
        assert stage(target, source)["skipped"] == ["a.csv"]

    def test_a_killed_task_begins_no_other_file(self, target: PipeTarget, tmp_path: Path) -> None:
        source = write(tmp_path / "in", {f"{number}.csv": f"{number},x\n" for number in range(3)})
        killed = operator(target, source, parallel=1)
        put = StageUpload._put

        def one_then_kill(self: StageUpload, run: Any, file: Any) -> bool:
            uploaded = put(self, run, file)
            killed.on_kill()
            return uploaded

        with pytest.MonkeyPatch.context() as killing:
            killing.setattr(StageUpload, "_put", one_then_kill)
            with pytest.raises(AirflowFailException, match="stopped"):
                killed.execute(task_context())

        assert len(listed(target)) == 1
