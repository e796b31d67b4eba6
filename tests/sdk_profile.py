"""The profile file with which Snowflake's SDK signs in to a local service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.local_service import LocalService


def write_sdk_profile(service: LocalService, path: Path, **changes: Any) -> Path:
    profile = {
        "account": service.account,
        "user": service.user,
        "url": service.url,
        "private_key": service.key_file.read_text(),
        **changes,
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(profile))
    return path
