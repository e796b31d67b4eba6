import uuid

import pyarrow as pa

from airflow_provider_snowpipe.spark.sources.iceberg.reader import with_uuid_text


def test_uuids_become_their_text_and_nulls_stay():
    values = [uuid.UUID(int=number * 0x0123456789ABCDEF0F1E2D3C4B5A6978 % (1 << 128)) for number in range(50)]
    column = pa.array([None if one.int % 7 == 0 else one.bytes for one in values], pa.uuid())
    rows = pa.table({"A": list(range(50)), "U": column}).slice(3, 40)

    changed = with_uuid_text(rows)

    expected = [None if one.int % 7 == 0 else str(one) for one in values][3:43]
    assert changed.column("U").to_pylist() == expected
    assert changed.column("A") == rows.column("A")
