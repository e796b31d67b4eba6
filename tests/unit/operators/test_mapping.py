"""Mapped instances get channels of their own, or an error."""

from __future__ import annotations

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


def check(kind: Any, partial: dict[str, Any], expand: dict[str, Any] | list[dict[str, Any]]) -> None:
    """Run the check in the first mapped instance."""
    with DAG("d", schedule=None):
        start = kind.partial(task_id="t", **partial)
        mapped = start.expand(**expand) if isinstance(expand, dict) else start.expand_kwargs(expand)
    first = {k: v[0] for k, v in expand.items()} if isinstance(expand, dict) else expand[0]
    require_distinct_channels(mapped.unmap(first), context(map_index=0))


@pytest.mark.parametrize(
    ("partial", "expand"),
    [
        ({"table": "T"}, {"channel": ["a", "b"]}),
        ({"channel": "c"}, {"table": ["T", "U"]}),
        ({"table": "T", "channel": "c_{{ ti.map_index }}"}, {"offset_token": ["a:1", "a:1"]}),
        ({"table": "T"}, [{"channel": "a"}, {"channel": "b"}]),
        ({}, [{"channel": "a", "table": "T"}, {"channel": "a", "table": "U"}]),
        ({"table": "T"}, {"channel": ["a", "b"], "offset_token": ["a:1"]}),
        ({"table": "T"}, [{"channel": "a"}, {"channel": None}, {"channel": None}]),
    ],
)
def test_different_channels_are_fine(partial, expand):
    check(SnowpipeOpenChannelOperator, partial, expand)


@pytest.mark.parametrize(
    ("partial", "expand", "text"),
    [
        ({"table": "T", "channel": "c"}, {"offset_token": ["a:1", "a:2"]}, "channel='c', table='T'"),
        ({"table": "T"}, {"channel": ["a", "a"]}, "channel='a'"),
        ({"table": "T"}, {"channel": ["a", "b"], "offset_token": ["a:1", "a:2"]}, "channel='a', table='T'"),
        ({"table": "T"}, [{"channel": "a"}, {"channel": "a"}], "channel='a'"),
    ],
)
def test_one_channel_for_two_instances_is_refused(partial, expand, text):
    with pytest.raises(ConfigurationError, match=text):
        check(SnowpipeOpenChannelOperator, partial, expand)


ARGUMENT = "the group's argument"


def check_in_group(**given: Any) -> None:
    """Run the check in the second instance of a mapped group, whose function has the argument ``one``."""
    with DAG("d", schedule=None) as dag:

        @task_group
        def each(one: Any) -> None:
            arguments = {name: one if value == ARGUMENT else value for name, value in given.items()}
            SnowpipeAppendRowsOperator(task_id="t", rows=one, **arguments)

        each.expand(one=["a", "b"])
    require_distinct_channels(dag.task_dict["each.t"], context(map_index=1))


@pytest.mark.parametrize(
    "given",
    [
        {"table": "T"},
        {"table": "T", "channel": ARGUMENT},
        {"table": ARGUMENT, "channel": "c"},
        {"table": "T", "channel": "c_{{ ti.map_index }}"},
        {"table": "T", "channel": "{{ ti.xcom_pull('each.name', map_indexes=ti.map_index) }}"},
    ],
)
def test_different_channels_of_a_mapped_group_are_fine(given):
    check_in_group(**given)


@pytest.mark.parametrize("channel", ["c", "c_{{ ds }}"])
def test_one_channel_for_all_instances_of_a_mapped_group_is_refused(channel):
    """The second instance's rows would pass for those of the first: they have the same batch."""
    with pytest.raises(ConfigurationError, match="every instance would use channel='c"):
        check_in_group(table="T", channel=channel)


@pytest.mark.parametrize(
    ("channel", "is_refused"),
    [(None, False), ("c", True), ("c_{{ ds }}", True), ("c_{{ ti.map_index }}", False),
     ("{{ task.op_kwargs['one'] }}", False)],
)  # fmt: skip
def test_one_channel_for_all_instances_of_a_mapped_function_is_refused(channel, is_refused):
    with DAG("d", schedule=None) as dag:

        @snowpipe_append_task(table="T", channel=channel)
        def rows(one: int) -> list[Any]:
            return [one]

        rows.expand(one=[1, 2])
    instance = dag.task_dict["rows"].unmap({"op_kwargs": {"one": 2}})
    if not is_refused:
        require_distinct_channels(instance, context(map_index=1))
        return
    with pytest.raises(ConfigurationError, match=r"every instance would use channel='c.*Leave channel out"):
        require_distinct_channels(instance, context(map_index=1))


def test_one_channel_outside_of_a_mapped_group_is_fine():
    with DAG("d", schedule=None) as dag:
        SnowpipeAppendRowsOperator(task_id="t", rows=[], table="T", channel="c")

    require_distinct_channels(dag.task_dict["t"], context())


class TestAppends:
    """Rows of two tasks with one channel and one batch have the same positions."""

    def check(self, one: dict[str, Any], other: dict[str, Any], **dag: Any) -> None:
        usual = {"table": "T", "channel": "c"}
        with DAG("d", schedule=None, **dag):
            tasks = [
                SnowpipeAppendRowsOperator(task_id=f"t{number}", rows=[], **{**usual, **given})
                for number, given in enumerate((one, other))
            ]
        require_own_batch(tasks[1].prepare_for_execution(), context())

    @pytest.mark.parametrize(
        ("one", "other"),
        [
            ({}, {"channel": "d"}),
            ({}, {"table": "U"}),
            ({}, {"table": None, "pipe": "P"}),
            ({}, {"snowflake_conn_id": "other"}),
            ({}, {"batch": 1}),
            ({"batch": 1}, {"batch": 2}),
            ({"batch": "{{ ts_nodash }}0"}, {"batch": "{{ ts_nodash }}1"}),
            ({}, {"token_column": "ID"}),
            ({"token_column": "ID"}, {"token_column": "ID"}),
            ({"channel": None}, {"channel": None}),
            ({"channel": "{{ task.task_id }}"}, {"channel": "{{ task.task_id }}"}),
            ({"channel": "{{ ti.task_id }}"}, {"channel": "{{ ti.task_id }}"}),
            ({"channel": "{{ ti.xcom_pull(key='c') }}"}, {"channel": "{{ ti.xcom_pull(key='c') }}"}),
            (
                {"channel": "{{ params.c }}", "params": {"c": "a"}},
                {"channel": "{{ params.c }}", "params": {"c": "b"}},
            ),
            ({"batch": "{{ macros.time.time() }}"}, {"batch": "{{ macros.time.time() }}"}),
        ],
    )
    def test_with_positions_of_their_own_are_fine(self, one: dict[str, Any], other: dict[str, Any]) -> None:
        self.check(one, other)

    @pytest.mark.parametrize(
        "given",
        [
            {},
            {"batch": 5},
            {"batch": "{{ ds_nodash }}"},
            {"channel": "c_{{ ds }}"},
            {"channel": "c_{{ params.c }}"},
            {"channel": "task"},
            {"channel": "{{ ti.xcom_pull(task_ids='name') }}"},
            {"channel": "c_{{ ti.map_index }}"},
        ],
    )
    def test_with_the_same_positions_are_refused(self, given: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError, match="tasks 't1' and 't0' append to one channel"):
            self.check(given, given, params={"c": "x"})

    def test_that_are_branches_are_refused_and_so_is_a_number_beside_its_text(self) -> None:
        with pytest.raises(ConfigurationError, match="batch='7'"):
            self.check({"batch": 7}, {"batch": "7", "trigger_rule": "one_failed"})

    def test_outside_of_a_dag_and_of_two_dags_are_fine(self) -> None:
        require_own_batch(SnowpipeAppendRowsOperator(task_id="t", rows=[], table="T", channel="c"), context())
        for name in ("d", "e"):
            with DAG(name, schedule=None):
                task = SnowpipeAppendRowsOperator(task_id="t", rows=[], table="T", channel="c")
            require_own_batch(task, context())

    def test_by_a_decorated_function_are_compared_and_what_opens_the_channel_is_not(self) -> None:
        with DAG("d", schedule=None):
            opened = SnowpipeOpenChannelOperator(task_id="open", table="T", channel="c")
            task = SnowpipeAppendRowsOperator(task_id="t", rows=[], table="T", channel="c")
            require_own_batch(task, context())

            @snowpipe_append_task(table="T", channel="c")
            def rows() -> list[Any]:
                return []

            rows()
        require_own_batch(opened, context())
        with pytest.raises(ConfigurationError, match="'t' and 'rows'"):
            require_own_batch(task, context())

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
        if not is_refused:
            require_own_batch(task, context())
            return
        with pytest.raises(ConfigurationError, match="'t' and 'mapped'"):
            require_own_batch(task, context())

    def test_of_one_mapped_group_are_refused(self) -> None:
        with DAG("d", schedule=None) as dag:

            @task_group
            def each(one: Any) -> None:
                SnowpipeAppendRowsOperator(task_id="a", rows=[], table="T", channel=one)
                SnowpipeAppendRowsOperator(task_id="b", rows=[], table="T", channel=one)

            each.expand(one=["a", "b"])
        with pytest.raises(ConfigurationError, match=r"'each\.b' and 'each\.a'"):
            require_own_batch(dag.task_dict["each.b"], context())

    @pytest.mark.parametrize(
        ("task_id", "given", "is_refused"),
        [
            ("t_1", {}, True),
            ("u", {"channel": "d_t_1"}, True),
            ("t_2", {}, False),
            ("t_1", {"table": "U"}, False),
            ("t_1", {"channel": "c"}, False),
        ],
    )
    @pytest.mark.parametrize("is_written_out", [True, False])
    def test_of_names_by_default_are_compared(
        self, task_id: str, given: dict[str, Any], is_refused: bool, is_written_out: bool
    ) -> None:
        with DAG("d", schedule=None):
            task = SnowpipeAppendRowsOperator(task_id=task_id, **{"rows": [], "table": "T", **given})
            rows = [[], []] if is_written_out else task.output
            mapped: Any = SnowpipeAppendRowsOperator.partial(task_id="t", table="T").expand(rows=rows)
        instance = mapped.unmap({"rows": []})

        if not is_refused:
            require_own_batch(task, context())
            require_own_batch(instance, context(map_index=1))
            return
        with pytest.raises(ConfigurationError, match=f"'t' and '{task_id}' .*channel='d_t_1' with no batch"):
            require_own_batch(instance, context(map_index=1))
        if not is_written_out:
            require_own_batch(instance, context(map_index=0))
            require_own_batch(task, context())
        else:
            with pytest.raises(ConfigurationError, match=f"'{task_id}' and 't' .*channel='d_t_1'"):
                require_own_batch(task, context())

    def test_of_names_by_default_in_a_mapped_group_have_its_index(self) -> None:
        with DAG("d", schedule=None) as dag:

            @task_group
            def each(rows: Any) -> None:
                SnowpipeAppendRowsOperator(task_id="a", rows=rows, table="T")

            each.expand(rows=[[], []])
            SnowpipeAppendRowsOperator(task_id="b", rows=[], table="T", channel="d_each.a_1")
        require_own_batch(dag.task_dict["each.a"], context(map_index=0))
        with pytest.raises(ConfigurationError, match=r"channel='d_each\.a_1'"):
            require_own_batch(dag.task_dict["each.a"], context(map_index=1))

    def test_of_a_mapped_function_and_a_task_that_is_named_alike_are_refused(self) -> None:
        with DAG("d", schedule=None) as dag:

            @snowpipe_append_task(table="T")
            def load(one: int) -> list[Any]:
                return [one]

            load.expand(one=[1, 2])
            SnowpipeAppendRowsOperator(task_id="load_0", rows=[], table="T")
        with pytest.raises(ConfigurationError, match="channel='d_load_0'"):
            require_own_batch(dag.task_dict["load"].unmap({"op_kwargs": {"one": 1}}), context(map_index=0))

    def test_without_a_channel_beside_one_that_names_its_channel_are_refused(self) -> None:
        with DAG("d", schedule=None):
            task = SnowpipeAppendRowsOperator(task_id="load", rows=[], table="T")
            other = SnowpipeAppendRowsOperator(task_id="x", rows=[], table="T", channel="d_load")
        for one in (task, other):
            with pytest.raises(ConfigurationError, match="channel='d_load' with no batch"):
                require_own_batch(one, context())

    def test_are_refused_before_anything_is_sent(self, snowpipe: Any, make: Any) -> None:
        with DAG("d", schedule=None):
            task = make(SnowpipeAppendRowsOperator, rows=[{"A": 1}], channel="c")
            make(SnowpipeAppendRowsOperator, rows=[{"A": 2}], channel="c", task_id="u")

        with pytest.raises(AirflowFailException, match="Give each task a channel of its own"):
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
        ("first", "second", "given"),
        [
            ("eu/orders", "ap/orders", {}),
            ("eu/orders", "us/items", {}),
            ("eu/orders", "eu/orders", {}),
            ("eu/orders", "us/orders", {"source_name": "us"}),
            ("eu/orders", "us/orders", {"channel_prefix": "us"}),
            ("eu/orders", "us/orders", {"table": "U"}),
            ("eu/orders", "us/{{ 'orders' }}", {}),
            ("eu/orders", "no/orders", {}),
        ],
        ids=["partitions", "names", "same", "source_name", "prefix", "table", "template", "missing"],
    )
    def test_with_channels_of_their_own_are_fine(
        self, folders: Path, first: str, second: str, given: dict[str, Any]
    ) -> None:
        with DAG("d", schedule=None):
            one = self.load({"path": str(folders / first)})
            other = self.load(f"{folders}/{second}", "u", **given)
        for task in (one, other):
            require_own_channels(task, context())

    def test_beside_those_that_only_their_tasks_know_are_fine(self, folders: Path) -> None:
        with DAG("d", schedule=None):
            output = self.load({"path": "/none"}, "first").output
            task = self.load({"path": str(folders / "eu/orders")})
            others: list[Any] = [{"path": output}, FileSource(path=output), output, {"kind": "none"}, 5, "@S"]
            for number, source in enumerate(others):
                self.load(source, f"t{number}")

        require_own_channels(task, context())

    @pytest.mark.parametrize("as_text", [False, True])
    def test_of_two_tasks_with_a_channel_in_common_are_refused(self, folders: Path, as_text: bool) -> None:
        with DAG("d", schedule=None):
            task = self.load(str(folders / "eu/orders") if as_text else {"path": str(folders / "eu/orders")})
            self.load({"path": str(folders / "us/orders")}, "u")
        with pytest.raises(
            ConfigurationError, match=r"task 'u' .*/us/orders', both into channel 'd_orders_N'"
        ):
            require_own_channels(task, context())

    def test_of_two_databases_with_tables_of_one_name_are_refused(self) -> None:
        sources = [TableSource(table=f"{name}.orders", offset_column="ID") for name in ("eu", "us")]
        with DAG("d", schedule=None):
            tasks = [self.load(source, f"t{n}") for n, source in enumerate(sources)]
        with pytest.raises(ConfigurationError, match="source_name of its own"):
            require_own_channels(tasks[1], context())

    @pytest.mark.parametrize(("regions", "is_refused"), [(("eu", "us"), True), (("eu", "eu"), False)])
    def test_of_two_queries_of_one_name_are_refused(self, regions: list[str], is_refused: bool) -> None:
        sources = [
            TableSource(query=f"SELECT * FROM orders WHERE R = '{one}'", name="orders", offset_column="ID")
            for one in regions
        ]
        with DAG("d", schedule=None):
            tasks = [self.load(source, f"t{number}") for number, source in enumerate(sources)]
        if not is_refused:
            require_own_channels(tasks[1], context())
            return
        with pytest.raises(ConfigurationError, match="both into channel 'd_orders_…'"):
            require_own_channels(tasks[1], context())

    @pytest.mark.parametrize("names", [None, ["eu", "us"]])
    def test_of_mapped_instances_need_names_of_their_own(
        self, folders: Path, names: list[str] | None
    ) -> None:
        given: list[dict[str, Any]] = [
            {"source": {"path": f"{folders}/{one}/orders"}} for one in ("eu", "us")
        ]
        if names is not None:
            given = [{**one, "source_name": name} for one, name in zip(given, names, strict=True)]
        with DAG("d", schedule=None):
            mapped: Any = SnowpipeLoadOperator.partial(task_id="t", table="T").expand_kwargs(given)
        instance = mapped.unmap(given[0])
        if names is not None:
            require_own_channels(instance, context(map_index=0))
            return
        with pytest.raises(ConfigurationError, match=r"another instance .*/us/orders"):
            require_own_channels(instance, context(map_index=0))

    def test_of_instances_with_the_same_templates_are_compared(self, folders: Path) -> None:
        given = [{"source": {"path": f"{folders}/{one}/orders"}} for one in ("eu", "us")]
        with DAG("d", schedule=None):
            mapped: Any = SnowpipeLoadOperator.partial(task_id="t", table="{{ params.table }}").expand_kwargs(
                given
            )
        instance = mapped.unmap(given[1])
        instance.table = "T"

        with pytest.raises(ConfigurationError, match=r"another instance .*/eu/orders"):
            require_own_channels(instance, context(map_index=1))

    def test_of_a_product_are_compared_too(self, folders: Path) -> None:
        sources = [{"path": f"{folders}/{one}/orders"} for one in ("eu", "us")]
        with DAG("d", schedule=None):
            mapped: Any = SnowpipeLoadOperator.partial(task_id="t").expand(source=sources, table=["T", "U"])
        with pytest.raises(ConfigurationError, match="another instance"):
            require_own_channels(mapped.unmap({"source": sources[0], "table": "T"}), context(map_index=0))

    @pytest.mark.parametrize(
        ("path", "given"),
        [
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
        ],
    )
    def test_of_each_run_with_channels_of_their_own_are_fine(self, path: Any, given: dict[str, Any]) -> None:
        with DAG("d", schedule=None):
            task = self.load(path, **given)
        require_own_channels(task.prepare_for_execution(), context())

    @pytest.mark.parametrize(
        "path",
        [
            "/data/{{ ds }}/orders",
            "/data/{{ data_interval_start | ds }}/orders/",
            "/data/{{ logical_date.strftime('%Y/%m/%d') }}/orders",
            {"path": "/data/{{ dag_run.run_id }}/orders", "partitions": "all"},
            FileSource(path="/data/{{ macros.ds_add(ds, -1) }}/orders"),
        ],
    )
    @pytest.mark.parametrize("given", [{}, {"source_name": "orders"}, {"channel_prefix": "p"}])
    def test_of_each_run_in_the_same_channels_are_refused(self, path: Any, given: dict[str, Any]) -> None:
        with DAG("d", schedule=None):
            task = self.load(path, **given)
        with pytest.raises(ConfigurationError, match=r"'t' loads from path .*another folder in each run"):
            require_own_channels(task.prepare_for_execution(), context())

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
        if not is_refused:
            require_own_channels(instance, context())
            return
        with pytest.raises(ConfigurationError, match=r"'t' loads from path .*another folder in each run"):
            require_own_channels(instance, context())

    @pytest.mark.parametrize(
        ("partial", "instances", "is_refused"),
        [
            ({}, [{"source": "/data/{{ ds }}/orders"}, {"source": "/data/items"}], True),
            ({"source": FileSource(path="/data/{{ ds }}/orders")}, [{"table": "T"}, {"table": "U"}], True),
            ({}, [{"source": "/data/items"}, {"source": "/data/{{ ds }}/orders"}], False),
            ({}, [{"source": "/data/{{ ds }}/i", "source_name": "{{ ds }}"}, {"source": "/data/i"}], False),
            ({"source_name": "{{ ti.map_index }}"}, [{"source": "/data/{{ ds }}/a"}, {"source": "/b"}], True),
        ],
        ids=["own", "all", "other", "named", "index"],
    )  # fmt: skip
    def test_of_each_run_are_refused_in_the_mapped_instance_that_has_one(
        self, partial: dict[str, Any], instances: list[dict[str, Any]], is_refused: bool
    ) -> None:
        with DAG("d", schedule=None):
            mapped: Any = SnowpipeLoadOperator.partial(task_id="t", **partial).expand_kwargs(
                [{"table": "T", **one} for one in instances]
            )
        instance = mapped.unmap({"table": "T", **instances[0]})
        if not is_refused:
            require_own_channels(instance, context(map_index=0))
            return
        with pytest.raises(ConfigurationError, match=r"'t' loads from path .*another folder in each run"):
            require_own_channels(instance, context(map_index=0))


class TestAppendBesideLoad:
    """A load and an append would take the rows of each other for their own."""

    @pytest.mark.parametrize(
        ("source", "channel"),
        [
            (FileSource(path="FOLDER/orders"), "d_orders_eu"),
            ({"path": "FOLDER/orders", "partitions": "all"}, "d_orders_all"),
            (KafkaSource(bootstrap_servers="k:1", topics=["orders", "o_1"]), "d_o_1_12"),
            (KafkaSource(bootstrap_servers="k:1", topic_pattern="o.*"), "d_orders_0"),
            (TableSource(table="lake.orders", offset_column="ID"), "d_orders_all"),
            (TableSource(table="orders", offset_column="ID", ranges=[5]), "d_orders_1"),
            (IcebergSource(table="lake.orders"), "d_orders_all"),
        ],
    )
    @pytest.mark.parametrize("is_default", [True, False])
    def test_on_one_channel_is_refused_in_both(
        self, tmp_path: Path, source: Any, channel: str, is_default: bool
    ) -> None:
        load, append = self.tasks(tmp_path, source, channel, is_default=is_default)

        with pytest.raises(ConfigurationError, match=f"'load' and .* share the channel '{channel}'"):
            require_own_channels(load, context())
        with pytest.raises(ConfigurationError, match=f"'load' and .* share the channel '{channel}'"):
            require_own_batch(append, context())

    @pytest.mark.parametrize(
        ("source", "channel", "given"),
        [
            (FileSource(path="FOLDER/orders"), "d_orders_us", {}),
            (FileSource(path="FOLDER/orders"), "d_orders_eu", {"table": "U"}),
            (FileSource(path="FOLDER/orders"), "d_orders_eu", {"channel_prefix": "p"}),
            (FileSource(path="FOLDER/orders"), "d_orders_eu", {"channel_prefix": "{{ 'd' }}"}),
            (FileSource(path="FOLDER/{{ 'orders' }}"), "d_orders_eu", {}),
            (KafkaSource(bootstrap_servers="k:1", topics=["orders"]), "d_orders_x", {}),
            (KafkaSource(bootstrap_servers="k:1", topics=["orders"]), "d_o_0", {}),
            (TableSource(table="orders", offset_column="ID"), "d_orders_0", {}),
            (TableSource(table="orders", offset_column="ID", partition_by="R"), "d_orders_eu", {}),
        ],
    )
    def test_on_channels_of_their_own_is_fine(
        self, tmp_path: Path, source: Any, channel: str, given: dict[str, Any]
    ) -> None:
        load, append = self.tasks(tmp_path, source, channel, is_default=False, **given)

        require_own_channels(load, context())
        require_own_batch(append, context())

    def tasks(
        self, folder: Path, source: Any, channel: str, *, is_default: bool, **given: Any
    ) -> tuple[Any, Any]:
        (folder / "orders/eu").mkdir(parents=True)
        (folder / "orders/eu/1.ndjson").write_text("{}\n")
        values = source if isinstance(source, dict) else source.as_json()
        if "partitions" in values:
            (folder / "orders/1.ndjson").write_text("{}\n")
        if "path" in values:
            values = {**values, "path": values["path"].replace("FOLDER", str(folder))}
        own = {"task_id": channel.removeprefix("d_")} if is_default else {"task_id": "a", "channel": channel}
        with DAG("d", schedule=None):
            load = SnowpipeStreamOperator(task_id="load", source=values, **{"table": "T", **given})
            append = SnowpipeAppendRowsOperator(rows=[], table="T", **own)
        return load, append
