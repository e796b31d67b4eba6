import stat
import time
from typing import Any

import jwt
import pytest
from snowpipe_local.accounts import Account, ensure_account, sign_key_pair_jwt
from snowpipe_local.datadir import DataDirectory
from snowpipe_local.errors import Refusal


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = DataDirectory(tmp_path_factory.mktemp("home") / "data")
    home.create()
    ensure_account(home)
    return home


@pytest.fixture
def account(home):
    return ensure_account(home)


def _token(home: DataDirectory, account: Account, **changes: Any) -> str:
    now = int(time.time())
    claims: dict[str, Any] = {
        "iss": f"LOCAL.DEMO.{account.fingerprint}", "sub": "LOCAL.DEMO", "iat": now, "exp": now + 3540,
    }  # fmt: skip
    claims.update(changes)
    claims = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(claims, home.key_file.read_bytes(), algorithm="RS256")


def test_key_pair_jwts_in_seconds_or_milliseconds_are_accepted_and_private_files_are_private(home, account):
    now = int(time.time())
    assert account.verify_key_pair(_token(home, account)) == "DEMO"
    assert account.verify_key_pair(_token(home, account, iat=now * 1000, exp=(now + 3540) * 1000)) == "DEMO"
    assert account.verify_key_pair(sign_key_pair_jwt(home)) == "DEMO"
    for file in (home.key_file, home.token_secret_file):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.root.stat().st_mode) == 0o700
    assert "secret" not in repr(account)
    assert ensure_account(home) == account  # which a second start keeps


def test_a_scoped_token_opens_the_ingest_host_only(home, account):
    scoped = account.issue_scoped_token("127.0.0.1")
    assert account.verify_scoped_token(scoped) == account.verify_any(scoped) == "DEMO"
    assert jwt.decode(scoped, options={"verify_signature": False})["exp"] > time.time() + 3000
    with pytest.raises(Refusal):
        account.verify_key_pair(scoped)
    with pytest.raises(Refusal):
        account.verify_scoped_token(_token(home, account))
    with pytest.raises(Refusal) as refusal:
        account.issue_scoped_token("evil.example.com")
    assert refusal.value.status == 400
