"""Sphinx extension: what the reference has of classes, errors, metrics, fields and commands, from the code.

Classes are autodoc's; here their parameters get types, defaults and the mark of a template field, with those
that a class takes from its bases. A line ``<!-- generated: NAME -->`` of a page becomes what the function of
that name in :data:`GENERATED` writes, before the page is parsed.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import enum
import importlib
import inspect
import json
import pkgutil
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.util import logging

from airflow_provider_snowpipe import __version__

PACKAGE = "airflow_provider_snowpipe"
_FIELD = re.compile(r"^:(?P<kind>\w+)(?: (?P<name>\w+))?: ?(?P<text>.*)$")
_MARKER = re.compile(r"^<!-- generated: (?P<name>[\w-]+)(?: (?P<kind>\w+))? -->$", re.MULTILINE)
_NEUTRAL_ROLE = re.compile(r":(?:class|func|meth|data|attr):`~?(?:[\w.]*\.)?(?P<name>\w+)`")
_QUOTED = re.compile(r"\b\w+=(?:\"[^\"]*\"|True)|\b\w+[_$]\w+\b")
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_SCHEMA_TYPES = {str: "string", float: "number", int: "integer", bool: "boolean", types.NoneType: "null"}
_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter as the reference shows it.

    :param name: its name
    :param kind: its type as the code has it, empty where a ``kwargs`` takes it
    :param default: its default as the code has it, None where it is required
    :param templated: True for a template field
    :param text: its description in the docstring, None where there is none
    """

    name: str
    kind: str
    default: str | None
    templated: bool
    text: str | None

    @property
    def facts(self) -> str:
        """Type, default and mark, as RST."""
        default = "required" if self.default is None else f"default {self.default}"
        found = [f"``{self.kind}``", default] if self.kind else []
        return ", ".join([*found, *(["template field"] if self.templated else [])])


def fields_of(docstring: str | None) -> tuple[list[str], list[tuple[str, str, list[str]]]]:
    """Cut a docstring into its body and its fields.

    :param docstring: the docstring
    :return: lines of the body; kind, name and lines of each field
    """
    body: list[str] = []
    found: list[tuple[str, str, list[str]]] = []
    for line in inspect.cleandoc(docstring or "").splitlines():
        match = _FIELD.match(line)
        if match:
            found.append((match["kind"], match["name"] or "", [match["text"]]))
        elif found and (line.startswith(" ") or not line):
            found[-1][2].append(line.strip())
        else:
            body.append(line)
    return body, found


def parameter_texts(docstring: str | None) -> dict[str, str]:
    """The description of each parameter in a docstring."""
    return {name: " ".join(lines).strip() for kind, name, lines in fields_of(docstring)[1] if kind == "param"}


def parameters(thing: Any) -> dict[str, Parameter]:
    """The parameters of a class with those of its bases in this package, or of a function."""
    if not inspect.isclass(thing):
        texts = parameter_texts(thing.__doc__)
        return {name: one for name, one in _own_parameters(thing, thing, (), texts).items() if name in texts}
    templates = tuple(getattr(thing, "template_fields", ()))
    texts = _texts(thing)
    found: dict[str, Parameter] = {}
    given: set[str] = set()
    for base in _own_bases(thing):
        made = vars(base).get("__init__")
        if made is None or (found and "kwargs" not in found):
            continue
        found.pop("kwargs", None)
        own = _own_parameters(made, base, templates, texts)
        found |= {name: one for name, one in own.items() if name not in found and name not in given}
        given |= _given_to_base(made)
    found = {name: found[name] for name in sorted(found, key=lambda one: found[one].default is not None)}
    takes_more = found.pop("kwargs", None)
    if takes_more is not None and takes_more.text and not hasattr(thing, "execute"):
        found["kwargs"] = takes_more
    for name, text in texts.items():  # what a docstring names and Airflow's own base takes
        if takes_more and name not in found and name not in given | {"kwargs"}:
            found[name] = Parameter(name, "", None, name in templates, _without_mark(text))
    return found


def _texts(kind: type) -> dict[str, str]:
    """The description of each parameter of a class, with those of its bases in this package."""
    docs = (vars(base).get("__doc__") for base in reversed(_own_bases(kind)))
    return {name: text for one in docs for name, text in parameter_texts(one).items()}


def _given_to_base(function: Any) -> set[str]:
    """Arguments that a constructor gives to its base itself, so that a caller cannot."""
    written = inspect.unwrap(function)
    if written.__code__.co_filename == "<string>":  # a dataclass makes its own
        return set()
    tree = ast.parse(textwrap.dedent(inspect.getsource(written)))
    return {
        one.arg
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "super().__init__"
        for one in call.keywords
        if one.arg
    }


def further_arguments(kind: type) -> str | None:
    """The class of Airflow whose arguments a class takes, too, as Airflow's documentation names it.

    None where there is none.
    """
    if not hasattr(kind, "execute") or "kwargs" not in inspect.signature(kind.__init__).parameters:
        return None
    found = next((one for one in kind.__mro__ if one not in _own_bases(kind) and _has_init(one)), None)
    if found is None:
        return None
    is_public = found.__module__.startswith("airflow.sdk.") and _exists(f"airflow.sdk.{found.__name__}")
    return f"airflow.sdk.{found.__name__}" if is_public else f"{found.__module__}.{found.__name__}"


_RELEASE = re.compile(r"^## \[(?P<version>[^\]]+)\]", re.MULTILINE)


def added_in(name: str, changelog: str, coming: str) -> str:
    """The release that first names something, or the first one of all where none does.

    :param name: what the changelog names
    :param changelog: the changelog, the newest release first
    :param coming: the version of what is not released yet
    """
    _, *parts = _RELEASE.split(changelog)
    releases = list(zip(parts[::2], parts[1::2], strict=True))
    naming = [version for version, text in releases if re.search(rf"\b{re.escape(name)}\b", text)]
    oldest = (naming or [version for version, _ in releases])[-1]
    return coming if oldest == "Unreleased" else oldest


def _has_init(kind: type) -> bool:
    return kind is not object and "__init__" in vars(kind)


def _own_bases(kind: type) -> list[type]:
    return [one for one in kind.__mro__ if one.__module__.startswith(PACKAGE)]


def _own_parameters(
    function: Any, owner: Any, templates: tuple[str, ...], texts: Mapping[str, str]
) -> dict[str, Parameter]:
    is_made = "__dataclass_fields__" in getattr(owner, "__dict__", {})  # Airflow's own base is one, too
    written = {} if is_made else _written_defaults(function)
    factories = {one.name: one for one in dataclasses.fields(owner)} if is_made else {}
    found = {}
    for name, one in inspect.signature(function).parameters.items():
        if name in ("self", "cls") or one.kind is one.VAR_POSITIONAL:
            continue
        default: str | None = None
        if name in factories and factories[name].default_factory is not dataclasses.MISSING:
            default = f"``{factories[name].default_factory()!r}``"
        elif one.default is not one.empty:
            default = _default(one.default, written.get(name))
        text = texts.get(name)
        named = one.kind is not one.VAR_KEYWORD and one.annotation is not one.empty
        kind = _in_full(str(one.annotation), sys.modules[owner.__module__]) if named else ""
        found[name] = Parameter(name, kind, default, name in templates, text and _without_mark(text))
    return found


def _in_full(kind: str, module: types.ModuleType) -> str:
    """A type with the values of what its names stand for, such as ``OnError``."""

    def values(match: re.Match[str]) -> str:
        found = vars(module).get(match[0])
        if inspect.isclass(found) and issubclass(found, enum.Enum):
            return f"Literal[{', '.join(repr(str(one.value)) for one in found)}]"
        return (
            re.sub(r"^typing\.", "", repr(found)) if typing.get_origin(found) is typing.Literal else match[0]
        )

    return re.sub(r"\b[A-Z]\w+\b(?!['\[])", values, re.sub(r"\s+", " ", kind))


def _without_mark(text: str) -> str:
    return re.sub(r",? ?\(templated\)$", "", text)


def _default(value: Any, written: ast.expr | None) -> str:
    if isinstance(written, ast.Call) and ast.unparse(written.func).startswith("conf.get"):
        section, key = (ast.literal_eval(one) for one in written.args[:2])
        return f"Airflow's setting ``[{section}] {key}``"
    if isinstance(value, str | int | float | bool | tuple | types.NoneType) and not isinstance(
        value, enum.Enum
    ):
        return f"``{value!r}``"
    return f"``{ast.unparse(written)}``" if written is not None else f"``{value!r}``"


def _written_defaults(function: Any) -> dict[str, ast.expr]:
    tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    arguments = next(
        one for one in ast.walk(tree) if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    ).args
    positional = arguments.args[len(arguments.args) - len(arguments.defaults) :]
    pairs = [*zip(positional, arguments.defaults, strict=True)]
    pairs += [
        (one, value) for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value
    ]
    return {one.arg: value for one, value in pairs}


# autodoc


def _process_docstring(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if what not in ("class", "exception", "method", "function"):
        return
    body, fields = fields_of("\n".join(lines))
    while body and not body[-1]:
        body.pop()
    if what == "class" and not _is_error(obj):
        body += _class_notes(obj)
    if what in ("class", "exception", "function") and not any("versionadded::" in line for line in body):
        body += ["", f".. versionadded:: {added_in(name.rpartition('.')[2], _changelog(), __version__)}"]
    found = {} if _is_error(obj) else parameters(obj)
    if found:
        missing = [one.name for one in found.values() if not one.text]
        if missing and what == "class":
            _log.warning("%s: the docstring does not describe %s", name, ", ".join(missing))
        body += ["", *_parameter_lines(found)]
    else:
        body.append("")
        body += [line for kind, one, text in fields if kind == "param" for line in _field(kind, one, text)]
    rest = [line for kind, one, text in fields if kind != "param" for line in _field(kind, one, text)]
    lines[:] = [*body, *rest, ""]


def _is_error(thing: Any) -> bool:
    return inspect.isclass(thing) and issubclass(thing, BaseException)


def _class_notes(kind: type) -> list[str]:
    more = further_arguments(kind)
    return ["", f"Further arguments are those of Airflow's :class:`~{more}`."] if more else []


@cache
def _changelog() -> str:
    return (Path(__file__).parents[1] / "CHANGELOG.md").read_text(encoding="utf-8")


def _parameter_lines(found: Mapping[str, Parameter]) -> Iterator[str]:
    for one in found.values():
        yield f":param {one.name}: {one.text or ''}"
        if one.facts:
            yield f":type {one.name}: {one.facts}"


def _field(kind: str, name: str, text: list[str]) -> list[str]:
    first, *others = text
    return [f":{kind}{f' {name}' if name else ''}: {first}", *(f"    {line}" for line in others)]


def _process_signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str, str] | None:
    return ("", "") if what in ("class", "exception") else None


def _resolve(app: Sphinx, env: Any, node: pending_xref, text: nodes.TextElement) -> nodes.Node | None:
    """Lead a reference of a docstring to the reference's entry; a name that only the code has stays a text.

    What neither the reference nor the module of the docstring knows is left to Sphinx, which warns.
    """
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].lstrip(".~")
    domain = env.domains["py"]
    last = target.rsplit(".", 1)[-1]
    found = sorted(one for one in domain.objects if one == target or one.endswith(f".{target}"))
    found = found or sorted(
        one for one in domain.objects if target.startswith(PACKAGE) and one.endswith(f".{last}")
    )
    if found:
        entry = domain.objects[found[0]]
        return _link(app, node, entry.docname, entry.node_id, text)
    return text if _is_known(node.get("py:module"), node.get("py:class"), target) else None


def _link(app: Sphinx, node: pending_xref, page: str, anchor: str, text: nodes.Node) -> nodes.reference:
    uri = app.builder.get_relative_uri(node["refdoc"], page) + f"#{anchor}"
    return nodes.reference("", "", text, internal=True, refuri=uri)


def _is_known(module: str | None, kind: str | None, target: str) -> bool:
    paths = [target] if target.startswith(PACKAGE) else [f"{module}.{target}", f"{module}.{kind}.{target}"]
    return any(map(_exists, paths))


def _exists(path: str) -> bool:
    try:
        pkgutil.resolve_name(path)
    except (ImportError, AttributeError, ValueError):
        return False
    return True


# whole parts of pages


def errors() -> str:
    """A table of the error classes, and each with cause, remedy and whether another try can help."""
    classes = error_classes()
    table = [
        f"| [{one.error_id}](#{one.error_id.lower()}) | `{one.__name__}` | {_retry(one)} |" for one in classes
    ]
    return "\n".join(
        ["| code | class | can another try help |", "|---|---|---|", *table, "", *map(_error, classes)]
    )


def error_classes() -> list[Any]:
    """The error classes of the package, by their codes."""
    from airflow_provider_snowpipe.streaming import errors as module

    found = [one for one in vars(module).values() if _is_error(one) and one.__module__ == module.__name__]
    return sorted(found, key=lambda one: one.error_id)


def _error(kind: Any) -> str:
    after = "" if kind.retry_delay is None else f", after {kind.retry_delay:g} s at least"
    remedy = _QUOTED.sub(r"``\g<0>``", kind.remedy)
    lines = [
        f"({kind.error_id.lower()})=",
        f"## {kind.error_id} {kind.__name__}",
        "",
        "```{eval-rst}",
        f".. autoexception:: {kind.__module__}.{kind.__name__}()",
        "",
        f"   **Remedy:** {remedy}.",
        "",
        f"   **Another try:** {_retry(kind)}{after}. Reason: {kind.retry_reason}.",
        "```",
        "",
    ]
    return "\n".join(lines)


def _retry(kind: Any) -> str:
    own = {
        "SqlError": "where the network failed, not where Snowflake refuses",
        "FilesGivenTwiceError": "no; yes while the other load has not ended",
    }
    return own.get(kind.__name__, "yes" if kind.retryable else "no")


def metrics() -> str:
    """The metrics as a table."""
    from airflow_provider_snowpipe.metrics import METRICS

    rows = [
        f"| `snowpipe.{name}` | {one.kind} | {one.unit} | {one.meaning} |" for name, one in METRICS.items()
    ]
    return "\n".join(["| metric | kind | unit | meaning |", "|---|---|---|---|", *rows])


def connection_fields() -> str:
    """The fields of a ``snowpipe`` connection as a table, from the provider's metadata."""
    from airflow_provider_snowpipe.get_provider_info import get_provider_info

    (kind,) = get_provider_info()["connection-types"]
    behaviour = kind["ui-field-behaviour"]
    rows = []
    for name in ("host", "port", "login", "password", "schema"):
        example = behaviour["placeholders"].get(name, "")
        rows.append(
            f"| {behaviour['relabeling'].get(name, name.capitalize())} | `{name}` | | {_plain(example)} |"
        )
    for name, field in kind["conn-fields"].items():
        schema = field["schema"]
        about = _plain(field["description"])
        if choices := schema.get("enum"):
            about += f": {', '.join(f'`{one}`' for one in choices)}"
        default = f"`{schema['default']}`" if "default" in schema else ""
        rows.append(f"| {field['label']} | extra `{name}` | {default} | {about} |")
    head = ["| form field | stored as | default | meaning |", "|---|---|---|---|"]
    return "\n".join([*head, *rows])


def cost_figures() -> str:
    """The figures of the cost model as a table."""
    from airflow_provider_snowpipe.routing.cost_model import CostModel

    rows = [
        f"| `{one.name}` | {one.value:,g} | {one.unit} | {'guess: ' if one.is_guess else ''}{one.source} |"
        for one in CostModel().figures()
    ]
    return "\n".join(["| figure | default | unit | source |", "|---|---|---|---|", *rows])


def airflow_commands() -> str:
    """The commands of ``airflow snowpipe``, from their parser."""
    from airflow_provider_snowpipe.cli.definition import parser

    return "\n".join(_commands(parser(), "airflow snowpipe"))


def _commands(parser: argparse.ArgumentParser, name: str, about: str = "") -> Iterator[str]:
    inner = [one for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    for action in inner:
        helps = {one.dest: one.help or "" for one in action._choices_actions}
        for word, command in action.choices.items():
            yield from _commands(command, f"{name} {word}", helps.get(word, ""))
    arguments = [one for one in parser._actions if one.dest != "help" and one not in inner]
    if not about or (inner and not arguments):
        return
    description = f" {parser.description}" if parser.description and parser.description != about else ""
    yield from [f"### `{name}`", "", f"{_sentence(about)}{description}", ""]
    if arguments:
        yield from ["| argument | default | meaning |", "|---|---|---|"]
        yield from (_argument(one) for one in arguments)
        yield ""


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


def _argument(action: argparse.Action) -> str:
    value = ""
    if action.nargs != 0:
        choices = "|".join(map(str, action.choices)) if action.choices else None
        value = f" {action.metavar or choices or action.dest.upper()}"
    flags = ", ".join(action.option_strings)
    name = f"{flags}{value}" if flags else str(action.metavar or action.dest)
    required = action.required and action.nargs != argparse.REMAINDER
    default = "required" if required else ""
    is_silent = action.default in (None, argparse.SUPPRESS, []) or action.default is False
    if not is_silent and not required:
        default = f"`{action.default}`"
    about = re.sub(r"\s+", " ", (action.help or "").replace("%(default)s", str(action.default)))
    return f"| `{_cell(name)}` | {default} | {_cell(_plain(about))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _plain(text: str) -> str:
    """A text of the code as Markdown: nothing in it is markup, and what it quotes of a command is code."""
    parts = re.split(r"(\{.*\}|--[\w-]+(?:=\w+)?|[\w.]+://[\w:/.]+)", text)
    return "".join(
        f"`{part}`" if number % 2 else re.sub(r"([<>*_@`])", r"\\\1", part)
        for number, part in enumerate(parts)
    )


def load_plan_schema() -> dict[str, Any]:
    """The JSON schema of a load plan, from the classes that a plan is made of."""
    found = _schema(_class_named("LoadPlan"))
    number = {"type": "number"}
    found["properties"]["expected"] = {
        "description": "what the load operator expects to load; other plans have none",
        "type": "object",
        "properties": {"rows": number, "bytes": number},
        "required": ["rows", "bytes"],
        "additionalProperties": False,
    }
    return {"$schema": _DRAFT, "title": "Load plan of airflow-provider-snowpipe", **found}


def job_plan_schema() -> dict[str, Any]:
    """The JSON schema of the Spark job's plan, from its class and those of the sources."""
    from airflow_provider_snowpipe import sources
    from airflow_provider_snowpipe.spark.driver.plan import PLAN_VERSION

    found = _schema(_class_named("JobPlan"), only_required=True)
    found["required"] = ["plan_version", *(one for one in found["required"] if one != "source_name")]
    kinds = [getattr(sources, name) for name in sources.__all__ if name.endswith("Source")]
    specs = [_schema(kind, only_required=True) for kind in kinds]
    for spec in specs:
        del spec["properties"]["kind"]["default"]
        spec["properties"].pop("conn_id", None)  # the job has no Airflow connections
        spec["required"] = [one for one in spec["required"] if one != "conn_id"]
        if spec["properties"]["kind"]["enum"] != ["files"]:
            spec["required"].append("kind")
    found["properties"] = {"plan_version": {"const": PLAN_VERSION}, **found["properties"]}
    found["properties"]["source"] = {"description": "what to read", "oneOf": specs}
    return {"$schema": _DRAFT, "title": "Job plan of airflow-provider-snowpipe", **found}


def _schema(kind: Any, *, only_required: bool = False) -> dict[str, Any]:
    arguments = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (tuple, Sequence):
        return {"type": "array", "items": _schema(arguments[0], only_required=only_required)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema(arguments[1])}
    if origin in (types.UnionType, typing.Union):
        values = any(map(dataclasses.is_dataclass, arguments))  # whose dictionaries a mapping stands for
        kept = [one for one in arguments if not (values and typing.get_origin(one) is Mapping)]
        return {"anyOf": [_schema(one, only_required=only_required) for one in kept]}
    if dataclasses.is_dataclass(kind):
        return _object_schema(kind, only_required)
    if inspect.isclass(kind) and issubclass(kind, enum.Enum):
        return {"enum": [one.value for one in kind]}
    return {"type": _SCHEMA_TYPES[kind]} if kind in _SCHEMA_TYPES else {}


def _object_schema(kind: Any, only_required: bool) -> dict[str, Any]:
    texts = _texts(kind)
    hints = typing.get_type_hints(kind)
    properties: dict[str, Any] = {}
    required = []
    if isinstance(name := getattr(kind, "type", None), str) and name:
        properties["type"] = {"const": name}
        required.append("type")
    for one in dataclasses.fields(kind):
        text = _NEUTRAL_ROLE.sub(r"\g<name>", texts[one.name]).replace("``", "")
        properties[one.name] = {"description": text, **_schema(hints[one.name], only_required=only_required)}
        if only_required and one.default is not dataclasses.MISSING:
            properties[one.name]["default"] = (
                list(one.default) if isinstance(one.default, tuple) else one.default
            )
        elif not only_required or one.default_factory is dataclasses.MISSING:
            required.append(one.name)
    return {
        "type": "object",
        "description": fields_of(kind.__doc__)[0][0],
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def fields(name: str) -> str:
    """The fields of a class of values as a table.

    :param name: the class's name, wherever the package has it
    """
    rows = []
    for one in parameters(_class_named(name)).values():
        about = _NEUTRAL_ROLE.sub(r"`\g<name>`", one.text or "").replace("``", "`")
        default = "required" if one.default is None else one.default.replace("``", "`")
        rows.append(f"| `{one.name}` | `{_cell(one.kind)}` | {_cell(default)} | {_cell(about)} |")
    return "\n".join(["| field | type | default | meaning |", "|---|---|---|---|", *rows])


def _class_named(name: str) -> type:
    import_public_modules()
    for path, module in sorted(sys.modules.items()):
        found = vars(module).get(name) if path.startswith(f"{PACKAGE}.") else None
        if inspect.isclass(found) and not f"{found.__module__}.".startswith(f"{PACKAGE}.local."):
            return found
    raise LookupError(f"no module of {PACKAGE} has a class {name}")


def import_public_modules() -> list[types.ModuleType]:
    """Import the modules that the provider's metadata and the documentation name."""
    from airflow_provider_snowpipe.get_provider_info import get_provider_info

    info = get_provider_info()
    names = [
        name
        for kind in ("hooks", "operators", "sensors", "triggers")
        for entry in info[kind]
        for name in entry["python-modules"]
    ]
    others = ("sources", "routing.planner", "streaming.errors", "spark.driver.plan")
    names += [f"{PACKAGE}.{name}" for name in others]
    return [importlib.import_module(name) for name in names]


GENERATED: dict[str, Callable[..., str]] = {
    "airflow-commands": airflow_commands,
    "connection-fields": connection_fields,
    "cost-figures": cost_figures,
    "errors": errors,
    "fields": fields,
    "metrics": metrics,
}


@cache
def _generated(name: str, *arguments: str) -> str:
    return GENERATED[name](*arguments)


def _fill(app: Sphinx, page: str, source: list[str]) -> None:
    source[0] = _MARKER.sub(lambda match: _generated(*filter(None, match.groups())), source[0])


def _outdated(app: Sphinx, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """The pages of the reference are written again in each build, since the code may have changed."""
    return [page for page in env.found_docs if page.startswith("reference/")]


SCHEMAS: dict[str, Callable[[], dict[str, Any]]] = {
    "load-plan": load_plan_schema,
    "job-plan": job_plan_schema,
}
"""By the name of the file beside the page that shows it."""


def main() -> None:
    """Write the schemas of plans."""
    for name, make in SCHEMAS.items():
        path = Path(__file__).parent / "reference" / f"{name}.schema.json"
        path.write_text(f"{json.dumps(make(), indent=2, ensure_ascii=False)}\n", encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Join the build."""
    app.connect("autodoc-process-docstring", _process_docstring)
    app.connect("autodoc-process-signature", _process_signature)
    app.connect("missing-reference", _resolve)
    app.connect("source-read", _fill)
    app.connect("env-get-outdated", _outdated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


if __name__ == "__main__":
    main()
