"""What a program with SQLAlchemy does, against the service that the environment names.

Needs snowflake-sqlalchemy and the variables of ``snowpipe-local env``. Prints the versions.
"""

import datetime as dt
import os
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import snowflake.sqlalchemy
import sqlalchemy as sa
from cryptography.hazmat.primitives import serialization
from snowflake.sqlalchemy import TIMESTAMP_NTZ, URL, VARIANT, MergeInto
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, relationship


class Base(DeclarativeBase):
    """Tables of this program."""


class Customer(Base):
    """One customer; numbers come from a sequence."""

    __tablename__ = "alchemy_customers"
    id: Mapped[int] = mapped_column(sa.Sequence("alchemy_numbers"), primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(50), comment="who")


class Order(Base):
    """One order of a customer."""

    __tablename__ = "alchemy_orders"
    id: Mapped[int] = mapped_column(sa.Sequence("alchemy_numbers"), primary_key=True)
    customer_id: Mapped[int] = mapped_column(sa.ForeignKey(Customer.id))
    price: Mapped[Decimal] = mapped_column(sa.Numeric(9, 2))
    at: Mapped[dt.datetime] = mapped_column(TIMESTAMP_NTZ)
    day: Mapped[dt.date]
    clock: Mapped[dt.time]
    weight: Mapped[float]
    is_paid: Mapped[bool] = mapped_column(server_default=sa.text("TRUE"))
    content: Mapped[bytes | None]
    more: Mapped[Any | None] = mapped_column(VARIANT)
    customer: Mapped[Customer] = relationship()


def connect() -> sa.Engine:
    """Return an engine with the key pair."""
    address = urlsplit(os.environ["SNOWPIPE_LOCAL_URL"])
    where = {"host": address.hostname, "port": address.port, "database": "LOCAL", "schema": "PUBLIC"}
    url = URL(account=os.environ["SNOWPIPE_LOCAL_ACCOUNT"], user=os.environ["SNOWPIPE_LOCAL_USER"], **where)
    pem = Path(os.environ["SNOWPIPE_LOCAL_PRIVATE_KEY_FILE"]).read_bytes()
    key = serialization.load_pem_private_key(pem, None).private_bytes(
        serialization.Encoding.DER, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return sa.create_engine(url, connect_args={"authenticator": "SNOWFLAKE_JWT", "private_key": key})


def objects(engine: sa.Engine) -> None:
    """Objects inserted, queried, changed and deleted."""
    at = dt.datetime(2026, 1, 2, 3, 4, 5, 678000)
    order = {
        "price": Decimal("1.25"), "at": at, "day": at.date(), "clock": dt.time(1, 2, 3), "weight": 1.5,
        "content": b"ab",
    }  # fmt: skip
    with Session(engine) as session:
        ann, bob = Customer(name="ann"), Customer(name="bob")
        session.add_all([ann, bob])
        session.flush()
        session.add(Order(customer=ann, **order))
        session.commit()
        found = session.scalars(sa.select(Order)).one()
        assert {name: getattr(found, name) for name in order} == order
        assert (found.customer.name, found.is_paid, found.more) == ("ann", True, None)
        bob.name = "bobby"
        session.commit()
        session.delete(bob)
        session.commit()
        assert session.scalars(sa.select(Customer.name)).all() == ["ann"]


def rows(engine: sa.Engine) -> None:
    """A merge, and how many rows it changes."""
    table = Customer.__table__
    assert isinstance(table, sa.Table)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE OR REPLACE TABLE alchemy_news (id INT, name VARCHAR)"))
        connection.execute(sa.text("INSERT INTO alchemy_news VALUES (-1, :name)"), {"name": "new"})
        news = sa.table("alchemy_news", sa.column("id"), sa.column("name"))
        merge = MergeInto(target=table, source=news, on=table.c.id == news.c.id)
        merge.when_matched_then_update().values(name=news.c.name)
        merge.when_not_matched_then_insert().values(id=news.c.id, name=news.c.name)
        assert tuple(connection.execute(merge).one()) == (1, 0)


def reflection(engine: sa.Engine) -> None:
    """What the inspector and reflected tables report."""
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE OR REPLACE VIEW alchemy_view AS SELECT id FROM alchemy_orders"))
    found = sa.inspect(engine)
    assert {"alchemy_customers", "alchemy_orders"} <= set(found.get_table_names())
    assert (found.has_table("alchemy_orders"), found.has_table("alchemy_nothing")) == (True, False)
    assert "alchemy_view" in found.get_view_names()
    assert "alchemy_numbers" in found.get_sequence_names()
    assert "public" in found.get_schema_names()
    (name,) = [column for column in found.get_columns("alchemy_customers") if column["name"] == "name"]
    assert (str(name["type"]), name["nullable"], name["comment"]) == ("VARCHAR(50)", False, "who")
    columns = sa.Table("alchemy_orders", sa.MetaData(), autoload_with=engine).columns
    assert columns.keys() == [column.name for column in Order.__table__.columns]
    kinds = (sa.Numeric, sa.Date, sa.Time, sa.Float, sa.Boolean, sa.BINARY, VARIANT)
    names = ("price", "day", "clock", "weight", "is_paid", "content", "more")
    for column, kind in zip(names, kinds, strict=True):
        assert isinstance(columns[column].type, kind), (column, columns[column].type)


def main() -> None:
    """Run everything; a failure ends the process."""
    engine = connect()
    Base.metadata.drop_all(engine)
    Base.metadata.create_all(engine)
    Base.metadata.create_all(engine)
    objects(engine)
    rows(engine)
    reflection(engine)
    Base.metadata.drop_all(engine)
    engine.dispose()
    print(sa.__version__, snowflake.sqlalchemy.__version__)


if __name__ == "__main__":
    main()
