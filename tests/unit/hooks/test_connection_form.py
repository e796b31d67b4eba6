"""The form of the connection type where Airflow asks the hook for it."""

import json
import subprocess
import sys

import pytest

from airflow_provider_snowpipe.get_provider_info import get_provider_info
from tests.airflow_version import AIRFLOW

pytestmark = pytest.mark.skipif(AIRFLOW >= (3, 2), reason="Airflow reads forms from the metadata since 3.2")

CONNECTION_TYPE = get_provider_info()["connection-types"][0]
FIELDS, BEHAVIOUR = CONNECTION_TYPE["conn-fields"], CONNECTION_TYPE["ui-field-behaviour"]


@pytest.mark.skipif(AIRFLOW >= (3, 0), reason="the form of Airflow 2")
def test_airflow_2_shows_every_field_of_the_metadata():
    from airflow.providers_manager import ProvidersManager
    from wtforms import Form, PasswordField

    manager = ProvidersManager()
    widgets = {
        name.removeprefix("extra__snowpipe__"): info.field
        for name, info in manager.connection_form_widgets.items()
        if name.startswith("extra__snowpipe__")
    }

    assert set(widgets) == set(FIELDS)
    form = type("Shown", (Form,), widgets)()
    assert form.auth.data == "key_pair"
    assert isinstance(form.private_key_content, PasswordField)
    assert form.account.label.text == "Account"
    assert manager.field_behaviours["snowpipe"]["relabeling"]["host"] == "Account URL"
    assert manager.field_behaviours["snowpipe"]["hidden_fields"] == BEHAVIOUR["hidden-fields"]


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
