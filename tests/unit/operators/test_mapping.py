"""Mapped instances get channels of their own, or an error."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import DAG, AirflowFailException, task_group

from airflow_provider_snowpipe.decorators.append import snowpipe_append_task
from airflow_provider_snowpipe.operators.append import SnowpipeAppendRowsOperator
from airflow_provider_snowpipe.operators.channels import SnowpipeOpenChannelOperator
from airflow_provider_snowpipe.operators.load import SnowpipeLoadOperator
from airflow_provider_snowpipe.operators.own_channels import (
    require_distinct_channels,
    require_own_batch,
    require_own_channels,
)
from airflow_provider_snowpipe.operators.stream import SnowpipeStreamOperator
from airflow_provider_snowpipe.sources import FileSource, IcebergSource, KafkaSource, TableSource
from airflow_provider_snowpipe.streaming.errors import ConfigurationError
from tests.local_connection import context


def error_of(check: Callable[..., None], task: Any, map_index: int = -1) -> str:
    """What a check says of a task; empty where it is fine."""
    try:
        check(task, context(map_index=map_index))
    except ConfigurationError as error:
        return str(error)
    return ""


def assert_verdict(found: str, words: str | None, case: object) -> None:
    """Compare an error with the words that it must have; None: the case is fine."""
    assert (words in found) if words else not found, (case, found)


@pytest.mark.parametrize(
    ("partial", "expand", "words"),
    [
        ({"table": "T"}, {"channel": ["a", "b"]}, None),
        ({"channel": "c"}, {"table": ["T", "U"]}, None),
        ({"table": "T", "channel": "c_{{ ti.map_index }}"}, {"offset_token": ["a:1", "a:1"]}, None),
        ({"table": "T"}, [{"channel": "a"}, {"channel": "b"}], None),
        ({}, [{"channel": "a", "table": "T"}, {"channel": "a", "table": "U"}], None),
        ({"table": "T"}, {"channel": ["a", "b"], "offset_token": ["a:1"]}, None),
        ({"table": "T"}, [{"channel": "a"}, {"channel": None}, {"channel": None}], None),
        ({"table": "T", "channel": "c"}, {"offset_token": ["a:1", "a:2"]}, "channel='c', table='T'"),
        ({"table": "T"}, {"channel": ["a", "a"]}, "channel='a'"),
        ({"table": "T"}, {"channel": ["a", "b"], "offset_token": ["a:1", "a:2"]}, "channel='a', table='T'"),
        ({"table": "T"}, [{"channel": "a"}, {"channel": "a"}], "channel='a'"),
    ],
)
def test_one_channel_for_two_instances_is_refused(partial: Any, expand: Any, words: str | None) -> None:
    with DAG("d", schedule=None):
        start = SnowpipeOpenChannelOperator.partial(task_id="t", **partial)
        mapped: Any = start.expand(**expand) if isinstance(expand, dict) else start.expand_kwargs(expand)
    first = {k: v[0] for k, v in expand.items()} if isinstance(expand, dict) else expand[0]
    assert_verdict(error_of(require_distinct_channels, mapped.unmap(first), 0), words, expand)


ARGUMENT = "the group's argument"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"table": "T"}, None),
        ({"table": "T", "channel": ARGUMENT}, None),
        ({"table": ARGUMENT, "channel": "c"}, None),
        ({"table": "T", "channel": "c_{{ ti.map_index }}"}, None),
        ({"table": "T", "channel": "{{ ti.xcom_pull('each.name', map_indexes=ti.map_index) }}"}, None),
        ({"table": "T", "channel": "c"}, "every instance would use channel='c"),
        ({"table": "T", "channel": "c_{{ ds }}"}, "every instance would use channel='c"),
    ],
)
def test_one_channel_for_all_instances_of_a_mapped_group_is_refused(given: Any, words: str | None) -> None:
    """The second instance's rows would pass for those of the first: they have the same batch."""
    with DAG("d", schedule=None) as dag:

        @task_group
        def each(one: Any) -> None:
            arguments = {name: one if value == ARGUMENT else value for name, value in given.items()}
            SnowpipeAppendRowsOperator(task_id="t", rows=one, **arguments)

        each.expand(one=["a", "b"])
    assert_verdict(error_of(require_distinct_channels, dag.task_dict["each.t"], 1), words, given)


def test_one_channel_for_all_instances_of_a_mapped_function_is_refused() -> None:
    for channel, words in {
        None: None, "c": "channel='c", "c_{{ ds }}": "Leave channel out", "c_{{ ti.map_index }}": None,
        "{{ task.op_kwargs['one'] }}": None,
    }.items():  # fmt: skip
        with DAG("d", schedule=None) as dag:

            @snowpipe_append_task(table="T", channel=channel)
            def rows(one: int) -> list[Any]:
                return [one]

            rows.expand(one=[1, 2])
            SnowpipeAppendRowsOperator(task_id="t", rows=[], table="T", channel="c")
        instance = dag.task_dict["rows"].unmap({"op_kwargs": {"one": 2}})
        assert_verdict(error_of(require_distinct_channels, instance, 1), words, channel)
        assert not error_of(require_distinct_channels, dag.task_dict["t"])


class TestAppends:
    """Rows of two tasks with one channel and one batch have the same positions."""

    def error(self, one: dict[str, Any], other: dict[str, Any], **dag: Any) -> str:
        usual = {"table": "T", "channel": "c"}
        with DAG("d", schedule=None, **dag):
            tasks = [
                SnowpipeAppendRowsOperator(task_id=f"t{number}", rows=[], **{**usual, **given})
                for number, given in enumerate((one, other))
            ]
        return error_of(require_own_batch, tasks[1].prepare_for_execution())

    def test_with_positions_of_their_own_are_fine(self) -> None:

        for one, other in (
            ({}, {"channel": "d"}),
            ({}, {"table": "U"}),
            ({}, {"table": None, "pipe": "P"}),
            ({}, {"snowflake_conn_id": "other"}),
            ({}, {"batch": 1}),
            ({"batch": 1}, {"batch": 2}),
            ({"batch": "{{ ts_nodash }}0"}, {"batch": "{{ ts_nodash }}1"}),
            ({}, {"token_column": "ID"}),
            (
                {"channel": "{{ params.c }}", "params": {"c": "a"}},
                {"channel": "{{ params.c }}", "params": {"c": "b"}},
            ),
            *(
                (same, same)
                for same in (
                    {"token_column": "ID"},
                    {"channel": None},
                    {"channel": "{{ task.task_id }}"},
                    {"channel": "{{ ti.task_id }}"},
                    {"channel": "{{ ti.xcom_pull(key='c') }}"},
                    {"batch": "{{ macros.time.time() }}"},
                )
            ),
        ):
            assert self.error(one, other) == "", (one, other)

    def test_with_the_same_positions_are_refused(self) -> None:
        for given in (
            {}, {"batch": 5}, {"batch": "{{ ds_nodash }}"}, {"channel": "c_{{ ds }}"}, {"channel": "task"},
            {"channel": "c_{{ params.c }}"}, {"channel": "{{ ti.xcom_pull(task_ids='name') }}"},
            {"channel": "c_{{ ti.map_index }}"},
        ):  # fmt: skip
            assert "'t1' and 't0'" in self.error(given, given, params={"c": "x"}), given
        assert "batch='7'" in self.error({"batch": 7}, {"batch": "7", "trigger_rule": "one_failed"})

    def test_outside_of_a_dag_and_of_two_dags_are_fine(self) -> None:
        alone = SnowpipeAppendRowsOperator(task_id="t", rows=[], table="T", channel="c")
        assert not error_of(require_own_batch, alone)
        for name in ("d", "e"):
            with DAG(name, schedule=None):
                task = SnowpipeAppendRowsOperator(task_id="t", rows=[], table="T", channel="c")
            assert not error_of(require_own_batch, task)

    def test_by_a_decorated_function_are_compared_and_what_opens_the_channel_is_not(self) -> None:
        with DAG("d", schedule=None) as dag:
            opened = SnowpipeOpenChannelOperator(task_id="open", table="T", channel="c")
            task = SnowpipeAppendRowsOperator(task_id="t", rows=[], table="T", channel="c")
            assert not error_of(require_own_batch, task)

            @snowpipe_append_task(table="T", channel="c")
            def rows() -> list[Any]:
                return []

            @snowpipe_append_task(table="T")
            def load(one: int) -> list[Any]:
                return [one]

            rows()
            load.expand(one=[1, 2])
            SnowpipeAppendRowsOperator(task_id="load_0", rows=[], table="T")
        assert not error_of(require_own_batch, opened)
        assert "'t' and 'rows'" in error_of(require_own_batch, task)
        instance = dag.task_dict["load"].unmap({"op_kwargs": {"one": 1}})
        assert "channel='d_load_0'" in error_of(require_own_batch, instance, 0)

    @pytest.mark.parametrize(
        ("expand", "is_refused"),
        [
            ({"rows": [[], []]}, True),
            ({"channel": ["a", "c"]}, True),
            ({"channel": ["a", "b"]}, False),
            ([{"channel": "a"}, {"channel": "c"}], True),
            ("channel", False),
            ("rows", True),
        ],
    )
    def test_of_mapped_instances_are_compared_where_they_are_written_out(
        self, expand: Any, is_refused: bool
    ) -> None:
        with DAG("d", schedule=None):
            task = SnowpipeAppendRowsOperator(task_id="t", rows=[], table="T", channel="c")
            channel = {} if "channel" in expand or isinstance(expand, list) else {"channel": "c"}
            start = SnowpipeAppendRowsOperator.partial(task_id="mapped", table="T", **channel)
            if isinstance(expand, list):
                start.expand_kwargs(expand)
            elif isinstance(expand, str):
                start.expand(**{expand: task.output})
            else:
                start.expand(**expand)
        assert_verdict(error_of(require_own_batch, task), "'t' and 'mapped'" if is_refused else None, expand)

    def test_of_one_mapped_group_are_refused(self) -> None:
        with DAG("d", schedule=None) as dag:

            @task_group
            def each(one: Any) -> None:
                SnowpipeAppendRowsOperator(task_id="a", rows=[], table="T", channel=one)
                SnowpipeAppendRowsOperator(task_id="b", rows=[], table="T", channel=one)
                SnowpipeAppendRowsOperator(task_id="c", rows=one, table="T")

            each.expand(one=["a", "b"])
            SnowpipeAppendRowsOperator(task_id="d", rows=[], table="T", channel="d_each.c_1")
        assert "'each.b' and 'each.a'" in error_of(require_own_batch, dag.task_dict["each.b"])
        assert not error_of(require_own_batch, dag.task_dict["each.c"], 0)
        assert "channel='d_each.c_1'" in error_of(require_own_batch, dag.task_dict["each.c"], 1)

    @pytest.mark.parametrize("is_written_out", [True, False])
    def test_of_names_by_default_are_compared(self, is_written_out: bool) -> None:
        for task_id, given, is_refused in (
            ("t_1", {}, True),
            ("u", {"channel": "d_t_1"}, True),
            ("t_2", {}, False),
            ("t_1", {"table": "U"}, False),
            ("t_1", {"channel": "c"}, False),
        ):
            with DAG("d", schedule=None):
                task = SnowpipeAppendRowsOperator(task_id=task_id, **{"rows": [], "table": "T", **given})
                rows = [[], []] if is_written_out else task.output
                mapped: Any = SnowpipeAppendRowsOperator.partial(task_id="t", table="T").expand(rows=rows)
            instance = mapped.unmap({"rows": []})
            words = "channel='d_t_1'" if is_refused else None

            assert_verdict(error_of(require_own_batch, instance, 1), words, given)
            assert_verdict(error_of(require_own_batch, task), words if is_written_out else None, given)
            assert not error_of(require_own_batch, instance, 0) or is_written_out

    def test_without_a_channel_beside_one_that_names_its_channel_are_refused_before_anything_is_sent(
        self, snowpipe: Any, make: Any
    ) -> None:
        with DAG("d", schedule=None):
            tasks = [
                make(SnowpipeAppendRowsOperator, rows=[{"A": 1}], task_id="load"),
                make(SnowpipeAppendRowsOperator, rows=[{"A": 2}], task_id="x", channel="d_load"),
            ]
        for task in tasks:
            with pytest.raises(AirflowFailException, match="channel='d_load'"):
                task.execute(context())
        assert not snowpipe.channels


class TestSources:
    """Two directories of one name have channels of one name, whose tokens do not show which."""

    @pytest.fixture
    def folders(self, tmp_path: Path) -> Path:
        for address in ("eu/orders/N", "us/orders/N", "us/orders/S", "ap/orders/E", "us/items/N"):
            (tmp_path / address).mkdir(parents=True)
            (tmp_path / address / "1.ndjson").write_text("{}\n")
        return tmp_path

    def load(self, source: Any, task_id: str = "t", **given: Any) -> SnowpipeLoadOperator:
        return SnowpipeLoadOperator(task_id=task_id, source=source, **{"table": "T", **given})

    @pytest.mark.parametrize(
        ("first", "second", "given", "is_refused"),
        [
            ("eu/orders", "ap/orders", {}, False),
            ("eu/orders", "us/items", {}, False),
            ("eu/orders", "eu/orders", {}, False),
            ("eu/orders", "us/orders", {"source_name": "us"}, False),
            ("eu/orders", "us/orders", {"channel_prefix": "us"}, False),
            ("eu/orders", "us/orders", {"table": "U"}, False),
            ("eu/orders", "us/{{ 'orders' }}", {}, False),
            ("eu/orders", "no/orders", {}, False),
            ("eu/orders", "us/orders", {}, True),
        ],
    )
    def test_of_two_tasks_with_a_channel_in_common_are_refused(
        self, folders: Path, first: str, second: str, given: dict[str, Any], is_refused: bool
    ) -> None:
        for source in ({"path": str(folders / first)}, str(folders / first)):
            with DAG("d", schedule=None):
                one = self.load(source)
                other = self.load(f"{folders}/{second}", "u", **given)
            for task in (one, other):
                words = "'d_orders_N'" if is_refused else None
                assert_verdict(error_of(require_own_channels, task), words, second)

    def test_beside_those_that_only_their_tasks_know_are_fine(self, folders: Path) -> None:
        with DAG("d", schedule=None):
            output = self.load({"path": "/none"}, "first").output
            task = self.load({"path": str(folders / "eu/orders")})
            others: list[Any] = [{"path": output}, FileSource(path=output), output, {"kind": "none"}, 5, "@S"]
            for number, source in enumerate(others):
                self.load(source, f"t{number}")

        assert not error_of(require_own_channels, task)

    def test_of_two_tables_or_queries_of_one_name_are_refused(self) -> None:
        def queried(region: str) -> TableSource:
            query = f"SELECT * FROM orders WHERE R = '{region}'"
            return TableSource(query=query, name="orders", offset_column="ID")

        tables = [TableSource(table=f"{name}.orders", offset_column="ID") for name in ("eu", "us")]
        for sources, words in (
            (tables, "source_name"),
            ([queried("eu"), queried("us")], "'d_orders_…'"),
            ([queried("eu"), queried("eu")], None),
        ):
            with DAG("d", schedule=None):
                tasks = [self.load(source, f"t{n}") for n, source in enumerate(sources)]
            assert_verdict(error_of(require_own_channels, tasks[1]), words, sources)

    def test_of_mapped_instances_need_names_of_their_own(self, folders: Path) -> None:
        given = [{"source": {"path": f"{folders}/{one}/orders"}} for one in ("eu", "us")]
        named = [{**one, "source_name": name} for one, name in zip(given, ("eu", "us"), strict=True)]
        for instances, table, index, words in (
            (given, "T", 0, "/us/orders"),
            (given, "{{ params.table }}", 1, "/eu/orders"),
            (named, "T", 0, None),
        ):
            with DAG("d", schedule=None):
                partial: Any = SnowpipeLoadOperator.partial(task_id="t", table=table)
                mapped = partial.expand_kwargs(instances)
            instance = mapped.unmap(instances[index])
            instance.table = "T"
            assert_verdict(error_of(require_own_channels, instance, index), words, table)
        with DAG("d", schedule=None):
            sources = [one["source"] for one in given]
            mapped = SnowpipeLoadOperator.partial(task_id="t").expand(source=sources, table=["T", "U"])
        instance = mapped.unmap({"source": sources[0], "table": "T"})
        assert "another instance" in error_of(require_own_channels, instance, 0)

    def test_of_each_run_with_channels_of_their_own_are_fine(self) -> None:
        for path, given in (
            ("/data/{{ ds }}", {}),
            ("/data/{{ ds }}/", {}),
            ("/data/orders", {}),
            ("/data/{{ params.root }}/orders", {}),
            ("{{ dag_run.conf['root'] }}/orders", {}),
            ("/data/{{ var.value.data_dir }}/orders", {}),
            ("/data/{{ ds }}/orders", {"source_name": "orders_{{ ds }}"}),
            ("/data/{{ ds }}/orders", {"channel_prefix": "{{ dag_run.run_id }}"}),
            ("/data/{{ ds }}/orders", {"on_data_loss": "skip"}),
            ({"path": "/d/{{ ds }}/orders", "partitions": {"type": "key", "key": "day"}}, {}),
            ("@S/{{ ds }}/orders", {}),
        ):
            with DAG("d", schedule=None):
                task = self.load(path, **given)
            assert not error_of(require_own_channels, task.prepare_for_execution()), path

    def test_of_each_run_in_the_same_channels_are_refused(self) -> None:
        for path, given in (
            ("/data/{{ ds }}/orders", {}),
            ("/data/{{ data_interval_start | ds }}/orders/", {"source_name": "orders"}),
            ("/data/{{ logical_date.strftime('%Y/%m/%d') }}/orders", {"channel_prefix": "p"}),
            ({"path": "/data/{{ dag_run.run_id }}/orders", "partitions": "all"}, {}),
            (FileSource(path="/data/{{ macros.ds_add(ds, -1) }}/orders"), {"source_name": "orders"}),
        ):
            with DAG("d", schedule=None):
                task = self.load(path, **given)
            assert "each run" in error_of(require_own_channels, task.prepare_for_execution()), path

    @pytest.mark.parametrize(
        ("grouping", "file", "is_refused"),
        [
            ({"type": "name", "regex": "(?P<partition>[a-z]+)_[0-9]+.+"}, "eu_1.ndjson", True),
            ({"type": "name", "regex": "(?P<partition>.+)[.]ndjson"}, "eu_20260131.ndjson", False),
            ({"type": "key", "key": "region"}, "region=eu/1.ndjson", True),
            ({"type": "key", "key": "day"}, "day=31/1.ndjson", False),
            ({"type": "name", "regex": "(?P<partition>.+)"}, "", False),
        ],
    )
    def test_of_each_run_in_partitions_without_a_number_are_refused(
        self, tmp_path: Path, grouping: dict[str, Any], file: str, is_refused: bool
    ) -> None:
        path = tmp_path / "2026-01-31/orders" / file
        path.parent.mkdir(parents=True)
        if file:
            path.write_text("{}\n")
        with DAG("d", schedule=None):
            task = self.load({"path": f"{tmp_path}/{{{{ ds }}}}/orders", "partitions": grouping})
        instance = task.prepare_for_execution()
        instance.source = {"path": f"{tmp_path}/2026-01-31/orders", "partitions": grouping}
        assert_verdict(error_of(require_own_channels, instance), "each run" if is_refused else None, file)

    def test_of_each_run_are_refused_in_the_mapped_instance_that_has_one(self) -> None:
        daily = "/data/{{ ds }}/orders"
        for partial, instances, is_refused in (
            ({}, [{"source": daily}, {"source": "/data/items"}], True),
            ({"source": FileSource(path=daily)}, [{"table": "T"}, {"table": "U"}], True),
            ({}, [{"source": "/data/items"}, {"source": daily}], False),
            ({}, [{"source": "/data/{{ ds }}/i", "source_name": "{{ ds }}"}, {"source": "/data/i"}], False),
            ({"source_name": "{{ ti.map_index }}"}, [{"source": daily}, {"source": "/b"}], True),
        ):
            with DAG("d", schedule=None):
                mapped: Any = SnowpipeLoadOperator.partial(task_id="t", **partial).expand_kwargs(
                    [{"table": "T", **one} for one in instances]
                )
            instance = mapped.unmap({"table": "T", **instances[0]})
            words = "each run" if is_refused else None
            assert_verdict(error_of(require_own_channels, instance, 0), words, instances)


ORDERS = FileSource(path="FOLDER/orders")


@pytest.mark.parametrize(
    ("source", "channel", "given", "is_refused"),
    [
        (ORDERS, "d_orders_eu", {}, True),
        ({"path": "FOLDER/orders", "partitions": "all"}, "d_orders_all", {}, True),
        (KafkaSource(bootstrap_servers="k:1", topics=["orders", "o_1"]), "d_o_1_12", {}, True),
        (KafkaSource(bootstrap_servers="k:1", topic_pattern="o.*"), "d_orders_0", {}, True),
        (TableSource(table="lake.orders", offset_column="ID"), "d_orders_all", {}, True),
        (TableSource(table="orders", offset_column="ID", ranges=[5]), "d_orders_1", {}, True),
        (IcebergSource(table="lake.orders"), "d_orders_all", {}, True),
        (ORDERS, "d_orders_us", {}, False),
        (ORDERS, "d_orders_eu", {"table": "U"}, False),
        (ORDERS, "d_orders_eu", {"channel_prefix": "p"}, False),
        (ORDERS, "d_orders_eu", {"channel_prefix": "{{ 'd' }}"}, False),
        (FileSource(path="FOLDER/{{ 'orders' }}"), "d_orders_eu", {}, False),
        (KafkaSource(bootstrap_servers="k:1", topics=["orders"]), "d_orders_x", {}, False),
        (KafkaSource(bootstrap_servers="k:1", topics=["orders"]), "d_o_0", {}, False),
        (TableSource(table="orders", offset_column="ID"), "d_orders_0", {}, False),
        (TableSource(table="orders", offset_column="ID", partition_by="R"), "d_orders_eu", {}, False),
    ],
)
def test_an_append_beside_a_load_on_one_channel_is_refused_in_both(
    tmp_path: Path, source: Any, channel: str, given: dict[str, Any], is_refused: bool
) -> None:
    """A load and an append would take the rows of each other for their own."""
    (tmp_path / "orders/eu").mkdir(parents=True)
    (tmp_path / "orders/eu/1.ndjson").write_text("{}\n")
    values = source if isinstance(source, dict) else source.as_json()
    if "partitions" in values:
        (tmp_path / "orders/1.ndjson").write_text("{}\n")
    if "path" in values:
        values = {**values, "path": values["path"].replace("FOLDER", str(tmp_path))}
    named = ({"task_id": "a", "channel": channel}, {"task_id": channel.removeprefix("d_")})
    for own in named if is_refused else named[:1]:
        with DAG("d", schedule=None):
            load = SnowpipeStreamOperator(task_id="load", source=values, **{"table": "T", **given})
            append = SnowpipeAppendRowsOperator(rows=[], table="T", **own)
        words = f"channel '{channel}'" if is_refused else None
        assert_verdict(error_of(require_own_channels, load), words, own)
        assert_verdict(error_of(require_own_batch, append), words, own)
