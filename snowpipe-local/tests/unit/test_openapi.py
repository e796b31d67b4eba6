import json

import jsonschema

from tests import described_routes


def test_the_service_serves_what_is_described_with_one_operation_for_each_route():
    document = described_routes.document()
    operations = [one["operationId"] for path in document["paths"].values() for one in path.values()]
    assert len(operations) == len(set(operations)) == len(described_routes.ROUTES)
    served = described_routes.FILE.read_text()
    assert json.loads(served) == document
    assert served == described_routes.written(), "run: python -m tests.described_routes"
    used = {"Error"}
    for route in described_routes.ROUTES:
        used |= {name for name in (route.body, route.answer, *route.statuses.values()) if name}
    assert used == set(described_routes.SCHEMAS)
    for schema in described_routes.SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
