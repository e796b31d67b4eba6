"""The form of the connection type where Airflow asks the hook for it."""

import json
import subprocess
import sys

import pytest

from airflow_provider_snowpipe.get_provider_info import get_provider_info
from tests.airflow_version import AIRFLOW

pytestmark = pytest.mark.skipif(AIRFLOW >= (3, 2), reason="Airflow reads forms from the metadata since 3.2")

CONNECTION_TYPE = get_provider_info()["connection-types"][0]
FIELDS = CONNECTION_TYPE["conn-fields"]


@pytest.mark.skipif(AIRFLOW >= (3, 0), reason="the form of Airflow 2")
def test_airflow_2_shows_every_field_of_the_metadata():
    from airflow.providers_manager import ProvidersManager
    from wtforms import Form, PasswordField

    manager, prefix = ProvidersManager(), "extra__snowpipe__"
    found = manager.connection_form_widgets.items()
    widgets = {name.removeprefix(prefix): one.field for name, one in found if name.startswith(prefix)}
    form, behaviour = type("Shown", (Form,), widgets)(), manager.field_behaviours["snowpipe"]

    assert set(widgets) == set(FIELDS)
    assert (form.auth.data, form.account.label.text) == ("key_pair", "Account")
    assert isinstance(form.private_key_content, PasswordField)
    assert behaviour["relabeling"]["host"] == "Account URL"
    assert behaviour["hidden_fields"] == CONNECTION_TYPE["ui-field-behaviour"]["hidden-fields"]


FORM = """
from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService

(found,) = [one for one in HookMetaService.hook_meta_data() if one.connection_type == "snowpipe"]
print("form", found.model_dump_json())
"""


@pytest.mark.skipif(AIRFLOW < (3, 0), reason="the form of Airflow 3.1")
def test_airflow_3_1_shows_every_field_of_the_metadata():
    # Airflow asks the hooks once in a process, which another test may have made it do without its own fields.
    printed = subprocess.run([sys.executable, "-c", FORM], capture_output=True, text=True, check=True).stdout
    (line,) = [one for one in printed.splitlines() if one.startswith("form ")]
    form = json.loads(line.removeprefix("form "))

    fields, standard = form["extra_fields"], form["standard_fields"]
    assert set(fields) == set(FIELDS)
    assert fields["auth"]["schema"]["enum"] == ["key_pair", "programmatic_access_token", "oauth"]
    assert fields["private_key_content"]["schema"]["format"] == "password"
    assert (standard["url_schema"] is None, standard["host"]["title"]) == (False, "Account URL")
