"""All benchmarks that have a goal, one after the other: one table of one day, in about a quarter of an hour.

python -m benchmarks                  # prints the table; 1 where a goal is missed or a benchmark failed
python -m benchmarks --page           # and writes table and chart of docs/reference/speed.md
python -m benchmarks --only wire      # those whose command has this word
"""

from __future__ import annotations

import argparse
import csv
import datetime as dt
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path
from xml.sax.saxutils import escape

from benchmarks.measuring import Target, table_of

_ROOT = Path(__file__).resolve().parents[1]
_PAGE = _ROOT / "docs/reference/speed.md"
_DAY = re.compile(r"(?<=<!-- measured -->).*?(?=<!-- /measured -->)")
_SENDER = ("sender", "wire", "distance", "exactly-once")
_COMMANDS = (
    ("benchmarks/spark_to_channel.py", "--rows", "200000", "--rounds", "3", "--only", "files", "frames"),
    ("benchmarks/spark_to_channel.py", "--rows", "300000", "--rounds", "3", "--only", "sender", "wire"),
    (
        "benchmarks/spark_to_channel.py",
        "--rows",
        "300000",
        "--rounds",
        "3",
        "--only",
        "distance",
        "exactly-once",
    ),
    ("benchmarks/small_load.py", "--rounds", "5", "--only", "spark", "rows", "nothing new"),
    ("benchmarks/object_storage.py", "--megabytes", "100", "--rounds", "3"),
    ("benchmarks/crossover.py", "--rows", "100", "10000", "100000", "300000", "--rounds", "3"),
    ("snowpipe-local/benchmarks/local_service.py", "--rounds", "5", "--soak-seconds", "60"),
    ("benchmarks/parse_time.py", "--rounds", "3"),
)
_WIDTH, _LEFT, _ROW, _UNIT = 760, 400, 24, 200


def measured(command: tuple[str, ...]) -> list[Target]:
    """Run one benchmark; its results.

    :raises SystemExit: if it ends without a result
    """
    began = time.monotonic()
    print(f"==> {' '.join(command)}", file=sys.stderr, flush=True)
    done = subprocess.run(
        [sys.executable, *command], cwd=_ROOT, stdout=subprocess.PIPE, text=True, check=False
    )
    try:
        found = json.loads(done.stdout.splitlines()[-1])["results"]
    except (IndexError, ValueError, LookupError):
        raise SystemExit(
            f"{command[0]} ended with {done.returncode} and no result:\n{done.stdout[-2000:]}"
        ) from None
    print(f"    {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return [Target(**one) for one in found]


def write_rows(targets: list[Target], file: Path) -> None:
    """Write the table as the documentation reads it."""
    with file.open("w", newline="") as out:
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(["what", "goal", "measured", "from"])
        for one in targets:
            sign = "at most" if one.at_most else "at least"
            goal = "none" if one.required is None else f"{sign} {one.required:g}"
            rows.writerow(
                [one.what, goal, f"{one.measured:.2f}{'' if one.is_met else ', missed'}", one.detail]
            )


def chart(targets: list[Target]) -> str:
    """What is measured as shares of the goals: longer is better."""
    shown = [one for one in targets if one.required and one.measured]
    height = _ROW * (len(shown) + 2)
    body = [f'<line x1="{_LEFT + _UNIT}" y1="0" x2="{_LEFT + _UNIT}" y2="{height - _ROW}" stroke="#888"/>']
    for number, one in enumerate(shown):
        reached = one.required / one.measured if one.at_most else one.measured / one.required
        width, y = min(_UNIT * reached, _WIDTH - _LEFT), _ROW * number + 4
        colour = "#0b7285" if one.is_met else "#c2410c"
        body.append(f'<text x="{_LEFT - 8}" y="{y + 13}" text-anchor="end">{escape(one.what)}</text>')
        body.append(f'<rect x="{_LEFT}" y="{y}" width="{width:.0f}" height="16" fill="{colour}"/>')
    body.append(f'<text x="{_LEFT + _UNIT}" y="{height - 8}" text-anchor="middle">goal</text>')
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
            'font-family="sans-serif" font-size="12" role="img">',
            "<title>What is measured, as a share of its goal; longer is better</title>",
            f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
            *body,
            "</svg>",
            "",
        ]
    )


def main() -> int:
    """Run them, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--page", action="store_true", help="write docs/reference/speed.md and its chart")
    parser.add_argument("--only", help="a word of the commands to run")
    options = parser.parse_args()
    chosen = [one for one in _COMMANDS if options.only is None or options.only in " ".join(one)]
    targets = [one for command in chosen for one in measured(command)]
    print(table_of(targets))
    when = f"{dt.datetime.now(dt.UTC):%d %B %Y}, {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}"
    if options.page:
        _PAGE.write_text(_DAY.sub(f"{when}, Python {platform.python_version()}", _PAGE.read_text()))
        write_rows(targets, _PAGE.with_suffix(".csv"))
        _PAGE.with_suffix(".svg").write_text(chart(targets))
    return int(not all(one.is_met for one in targets))


if __name__ == "__main__":
    sys.exit(main())
