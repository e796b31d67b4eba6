"""The page about developing offline: its hooks are run as they are printed."""

import re
import subprocess
import sys
from pathlib import Path

from tests.local_service import LocalService

_PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "develop-offline.md"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_END = "end of a block"


def test_airflows_other_hooks_reach_the_service_as_documented(
    local_service: LocalService, tmp_path: Path
) -> None:
    blocks = _BLOCK.findall(_PAGE.read_text())
    pairs = zip(blocks, [*blocks[1:], ("", "")], strict=True)
    shown = [(text, prints) for (_, text), (kind, prints) in pairs if "Hook(" in text and kind == "text"]
    assert len(shown) == _PAGE.read_text().count("Hook(")
    local_service.sql("CREATE OR REPLACE TABLE readings (station VARCHAR, celsius FLOAT)")
    local_service.sql("INSERT INTO readings VALUES ('S1', 20.5), ('S2', 21.0)")

    program, env = f"\nprint({_END!r})\n".join(text for text, _ in shown), local_service.process_env()
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)

    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    # Airflow may log before what a block prints.
    for printed, (_, prints) in zip(done.stdout.split(f"{_END}\n"), shown, strict=True):
        assert printed.endswith(prints)
