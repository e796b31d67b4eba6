"""Open, drop and reset against a real local service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowFailException

from airflow_provider_snowpipe.operators.channels import (
    ChannelOperator,
    SnowpipeDropChannelOperator,
    SnowpipeOpenChannelOperator,
    SnowpipeResetOffsetOperator,
)
from airflow_provider_snowpipe.streaming.auth import KeyPair
from airflow_provider_snowpipe.streaming.client import SnowpipeClient
from airflow_provider_snowpipe.streaming.errors import (
    ChannelFencedError,
    ChannelInvalidError,
    ConfigurationError,
    UncommittedRowsError,
    WriterActiveError,
)
from airflow_provider_snowpipe.streaming.names import PipeName
from tests.local_connection import append, commit, committed, context, ids, writer_at_work
from tests.local_service import LocalService

Make = Callable[..., Any]


@pytest.fixture
def make(conn_id: str, table: str) -> Make:
    def operator(kind: type[ChannelOperator], **options: Any) -> ChannelOperator:
        return kind(
            **{"task_id": "t", "channel": "c", "table": table, "snowflake_conn_id": conn_id, **options}
        )

    return operator


def run(operator: Any) -> dict[str, Any]:
    value: dict[str, Any] = operator.execute(context())
    return value


class TestOpen:
    def test_a_new_channel_starts_with_the_token(
        self, local_service: LocalService, make: Make, table: str
    ) -> None:
        value = run(make(SnowpipeOpenChannelOperator, offset_token="a:7"))

        assert value == {
            "channel": "c",
            "pipe": f"LOCAL.PUBLIC.{table}-STREAMING",
            "action": "create",
            "committed": "a:7",
        }
        assert committed(local_service, table, "c") == "a:7"

    def test_a_second_run_leaves_the_channel_and_its_writer_alone(
        self, local_service: LocalService, make: Make, table: str
    ) -> None:
        run(make(SnowpipeOpenChannelOperator, offset_token="a:0"))
        with local_service.client(table) as client:
            continuation = client.open_channel("c").continuation_token
            value = run(make(SnowpipeOpenChannelOperator, offset_token="a:0"))
            client.append_rows(
                "c",
                b'{"ID": 1}\n',
                continuation_token=continuation,
                start_token="a:1",
                end_token="a:1",
                content_encoding=None,
                raw_length=10,
            )

        assert value["action"] == "skip"

    def test_fence_shuts_out_an_older_writer(
        self, local_service: LocalService, make: Make, table: str
    ) -> None:
        with local_service.client(table) as client:
            continuation = client.open_channel("c").continuation_token

            assert run(make(SnowpipeOpenChannelOperator, if_exists="fence"))["action"] == "fence"
            with pytest.raises(ChannelFencedError):
                client.append_rows(
                    "c",
                    b'{"ID": 1}\n',
                    continuation_token=continuation,
                    start_token="a:1",
                    end_token="a:1",
                    content_encoding=None,
                    raw_length=10,
                )

    def test_the_token_of_an_existing_channel_is_never_changed(
        self, local_service: LocalService, make: Make, table: str
    ) -> None:
        commit(local_service, table, "c", ["a:1", "a:2"])

        assert run(make(SnowpipeOpenChannelOperator, offset_token="a:0"))["committed"] == "a:2"

    def test_a_channel_without_the_wanted_token_is_refused(
        self, local_service: LocalService, make: Make, table: str
    ) -> None:
        run(make(SnowpipeOpenChannelOperator))

        with pytest.raises(AirflowFailException, match=r"ConfigurationError: channel 'c' exists without"):
            run(make(SnowpipeOpenChannelOperator, offset_token="a:7"))

    def test_dry_run_says_what_would_happen_and_does_nothing(
        self, local_service: LocalService, make: Make, table: str
    ) -> None:
        assert make(SnowpipeOpenChannelOperator, offset_token="a:7").preview() == [
            f"would create channel 'c' of pipe LOCAL.PUBLIC.{table}-STREAMING, token a:7"
        ]
        assert committed(local_service, table, "c") is None

    def test_dry_run_is_logged(self, make: Make, capsys: pytest.CaptureFixture[str]) -> None:
        make(SnowpipeOpenChannelOperator).dry_run()

        assert "dry run: would create channel 'c'" in capsys.readouterr().out


class TestDrop:
    def test_waits_for_the_commit_then_drops(
        self, local_service: LocalService, faults: Callable[[str], None], make: Make, table: str
    ) -> None:
        faults("commit-delay=0.5")
        append(local_service, table, "c", ["a:1", "a:2"])

        value = run(make(SnowpipeDropChannelOperator))

        assert (value["existed"], value["committed"], value["discarded"]) == (True, "a:2", False)
        assert ids(local_service, table) == [0, 1]

    def test_a_commit_that_takes_too_long_leaves_the_channel(
        self, local_service: LocalService, make: Make, table: str
    ) -> None:
        with local_service.held_commits():
            append(local_service, table, "c", ["a:1"])

            with pytest.raises(UncommittedRowsError):
                run(make(SnowpipeDropChannelOperator, commit_timeout=0.3))
        with local_service.client(table) as client:
            assert client.channel_statuses(["c"])["c"].exists

    def test_force_drops_at_once_and_says_what_is_lost(
        self, local_service: LocalService, make: Make, table: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with local_service.held_commits():
            append(local_service, table, "c", ["a:1"])

            value = run(make(SnowpipeDropChannelOperator, force=True))

        assert value["discarded"] is True
        assert "offset token NULL; uncommitted rows discarded: yes" in capsys.readouterr().out
        assert ids(local_service, table) == []

    def test_a_channel_that_is_gone_is_success(self, make: Make) -> None:
        assert run(make(SnowpipeDropChannelOperator))["existed"] is False

    def test_dry_run_names_the_token_that_would_be_lost(
        self, local_service: LocalService, make: Make, table: str
    ) -> None:
        commit(local_service, table, "c", ["a:1"])

        (line,) = make(SnowpipeDropChannelOperator).preview()

        assert "once its rows are committed; its offset token a:1 would be lost (1 rows stay" in line
        assert make(SnowpipeDropChannelOperator, channel="x").preview() == [
            "channel 'x' does not exist; nothing would be dropped"
        ]


class TestReset:
    @pytest.fixture
    def reset(self, make: Make) -> Make:
        def operator(**options: Any) -> Any:
            return make(
                SnowpipeResetOffsetOperator,
                **{"offset_token": "a:1", "offset_format": "file:line", "observe_seconds": 0.2, **options},
            )

        return operator

    def test_sets_the_token_and_shows_old_and_new(
        self,
        local_service: LocalService,
        reset: Make,
        table: str,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        commit(local_service, table, "c", ["a:1", "a:2", "a:3"])

        value = run(reset())

        assert (value["old"], value["new"]) == ("a:3", "a:1")
        assert committed(local_service, table, "c") == "a:1"
        printed = capsys.readouterr().out
        assert "offset token of channel 'c': a:3 -> a:1" in printed
        assert "rows after the new token will be sent AGAIN" in printed

    @pytest.mark.parametrize("token", ['it\'s "quoted" \\ 100%', "tab\tand\nline ß€"])
    def test_a_token_is_a_value_and_never_sql(
        self, local_service: LocalService, reset: Make, table: str, token: str
    ) -> None:
        commit(local_service, table, "c", ["a:1"])

        run(reset(offset_token=token, offset_format=None))

        assert committed(local_service, table, "c") == token

    def test_a_channel_with_an_odd_name_is_found(
        self, local_service: LocalService, reset: Make, table: str
    ) -> None:
        name = 'it\'s "odd" / 100%'
        commit(local_service, table, name, ["a:1"])

        assert run(reset(channel=name, offset_token="a:9"))["new"] == "a:9"
        assert committed(local_service, table, name) == "a:9"

    def test_a_channel_of_a_pipe_that_somebody_created_is_reset(
        self, local_service: LocalService, reset: Make, table: str
    ) -> None:
        local_service.sql(
            f"CREATE PIPE P_{table} AS COPY INTO {table} FROM (SELECT $1:ID::INTEGER, $1:NAME::VARCHAR "
            "FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')))"
        )
        credentials = KeyPair(local_service.account, local_service.user, local_service.key_file.read_bytes())
        pipe = PipeName("LOCAL", "PUBLIC", f"P_{table}")
        ca_bundle = str(local_service.ca_file)
        with SnowpipeClient(local_service.url, credentials, pipe, ca_bundle=ca_bundle) as client:
            client.open_channel("c", offset_token="a:1")

            run(reset(table=None, pipe=f"P_{table}", offset_token="a:9"))

            assert client.channel_statuses(["c"])["c"].committed == "a:9"

    def test_refuses_while_somebody_writes_and_changes_nothing(
        self, local_service: LocalService, reset: Make, table: str
    ) -> None:
        commit(local_service, table, "c", ["a:1"])
        with (
            writer_at_work(local_service, table, "c"),
            pytest.raises(WriterActiveError, match="'c'"),
        ):
            run(reset(offset_token="z:1", observe_seconds=20))
        assert not (committed(local_service, table, "c") or "").startswith("z")

    def test_refuses_uncommitted_rows_unless_told(
        self, local_service: LocalService, reset: Make, table: str
    ) -> None:
        with local_service.held_commits():
            append(local_service, table, "c", ["a:5"])

            with pytest.raises(WriterActiveError, match="not committed"):
                run(reset())
            assert run(reset(allow_active_writer=True))["new"] == "a:1"
        assert ids(local_service, table) == []

    def test_an_idle_writer_is_shut_out_so_that_the_new_token_stays(
        self, local_service: LocalService, reset: Make, table: str
    ) -> None:
        commit(local_service, table, "c", ["a:1"])
        with local_service.client(table) as client:
            continuation = client.open_channel("c").continuation_token

            run(reset(offset_token="a:9"))

            with pytest.raises(ChannelFencedError):
                client.append_rows(
                    "c",
                    b'{"ID": 1}\n',
                    continuation_token=continuation,
                    start_token="a:2",
                    end_token="a:2",
                    content_encoding=None,
                    raw_length=10,
                )

    def test_a_token_of_another_format_is_refused(
        self, local_service: LocalService, reset: Make, table: str
    ) -> None:
        commit(local_service, table, "c", ["a:1"])

        with pytest.raises(AirflowFailException, match=r"OffsetTokenError: channel 'c'.*'nonsense'"):
            run(reset(offset_token="nonsense"))

    def test_a_channel_that_does_not_exist_is_said_so(self, reset: Make) -> None:
        with pytest.raises(ChannelInvalidError, match="open it with that offset token instead"):
            run(reset(channel="x"))

    def test_dry_run_shows_both_tokens(self, local_service: LocalService, reset: Make, table: str) -> None:
        commit(local_service, table, "c", ["a:1"])

        (line,) = reset(offset_token="a:4").preview()

        assert line.endswith("a:1 -> a:4 (forward: rows between the two will NOT be read)")
        assert committed(local_service, table, "c") == "a:1"


class TestArguments:
    def test_all_names_are_templates(self) -> None:
        operator = SnowpipeResetOffsetOperator(
            task_id="t", channel="{{ x }}", offset_token="{{ x }}:1", table="{{ x }}"
        )
        operator.render_template_fields({"x": "v"})

        assert (operator.channel, operator.offset_token, operator.table) == ("v", "v:1", "v")

    @pytest.mark.parametrize(
        "kind", [SnowpipeOpenChannelOperator, SnowpipeDropChannelOperator, SnowpipeResetOffsetOperator]
    )
    def test_constructor_looks_nothing_up(self, kind: Any) -> None:
        extra = {"offset_token": "a:1"} if kind is SnowpipeResetOffsetOperator else {}
        operator = kind(task_id="t", channel="c", table="T", snowflake_conn_id="none_such", **extra)

        assert [name for name in operator.template_fields if not hasattr(operator, name)] == []

    def test_wrong_ones_are_refused_when_the_dag_is_read(self) -> None:
        with pytest.raises(ConfigurationError, match="if_exists is 'x'"):
            SnowpipeOpenChannelOperator(task_id="t", channel="c", table="T", if_exists="x")
        with pytest.raises(ConfigurationError, match="both given"):
            SnowpipeOpenChannelOperator(task_id="t", channel="c", table="T", pipe="P")
