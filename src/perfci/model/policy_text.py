"""From the text of `perfci.yaml` to a Policy; every mistake is one line with file, line, field and remedy."""

import re
from difflib import get_close_matches
from typing import Any, cast

import yaml
from pydantic import BaseModel, ValidationError

from perfci.model.base import UsageError
from perfci.model.policy import Command, Limit, Policy
from perfci.model.renamed import renamed

FILE = "perfci.yaml"
LONGEST = 256 << 10
"""Characters of a policy at most: reading YAML takes a second for 100 kB, and a stranger's change may bring one."""
_LIMIT = re.compile(r"limits\[([0-9]+)\](?:\.([a-z_]+))?")
_MODELS: dict[str, type[BaseModel]] = {"limits": Limit, "commands": Command}
_WANTED = {
    "list_type": "write a list, such as [a, b]",
    "dict_type": "write fields with values (name: value)",
    "model_type": "write fields with values (name: value)",
    "string_type": "write text; put it in quotes",
    "int_type": "write a whole number",
    "int_parsing": "write a whole number",
    "int_from_float": "write a whole number",
    "float_parsing": "write a number",
    "bool_parsing": "write true or false",
    "string_too_short": "must not be empty",
    "too_short": "must not be empty",
}


class _Loader(yaml.SafeLoader):
    """SafeLoader that refuses a key written twice: the second would silently win. And aliases, by which a few lines
    become millions."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "an alias (*name) is not read: write it out", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key!r} must be text: put it in quotes", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key!r} is written twice: keep one", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


def parse_policy(text: str, name: str = FILE) -> Policy:
    """Read a policy. `name` is the file as it is to be named in errors. Raises UsageError."""
    if len(text) > LONGEST:
        raise UsageError(f"{name}: is longer than {LONGEST >> 10} KiB: name cases by globs")
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            data = loader.construct_document(node) if node is not None else None
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise UsageError(f"{name}{line}: {error.problem or 'not valid YAML'}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(f"{name}: not valid YAML ({' '.join(str(error).split())[:120]})") from None
    if not isinstance(data, dict):
        raise UsageError(f"{name}: is not a policy: begin with `version: 1` and `suite: [kernels/*.py]`")
    try:
        return Policy.model_validate(data)
    except ValidationError as error:
        raise UsageError(_first(error, cast(yaml.Node, node), name)) from None


def _first(error: ValidationError, node: yaml.Node, name: str) -> str:
    """The first mistake as one line."""
    details = error.errors(include_url=False)
    # An unknown field explains a missing one: it comes first.
    details.sort(key=lambda d: d["type"] != "extra_forbidden")
    detail = details[0]
    where, line = _locate(tuple(detail["loc"]), node)
    message = _message(cast(dict[str, Any], detail), where)
    if not where and (place := _LIMIT.match(message)):  # what only the whole policy tells, such as a metric's unit
        line = _locate(("limits", int(place[1]), *filter(None, [place[2]])), node)[1]
    lead = f"{where}: " if where and not message.startswith(where) else ""
    more = {_locate(tuple(d["loc"]), node)[0] for d in details} - {where}
    return f"{name}:{line}: {lead}{message}" + (f" (and {len(more)} more)" if more else "")


def _locate(loc: tuple[Any, ...], node: yaml.Node) -> tuple[str, int]:
    """A pydantic location as `limits[0].cases` with its line in the file."""
    text, line = "", node.start_mark.line + 1
    here: yaml.Node | None = node
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
            inside = here.value if isinstance(here, yaml.SequenceNode) else []
            here = inside[part] if part < len(inside) else None
        elif here is None or isinstance(here, yaml.MappingNode):
            pairs = here.value if here is not None else []
            match = next(((k, v) for k, v in pairs if k.value == part), None)
            if here is None and text:
                break  # below a scalar: the branch of a union, no field
            text += f".{part}" if text else str(part)
            if match:
                line, here = match[0].start_mark.line + 1, match[1]
            else:
                here = None
            continue
        else:
            break
        if here is not None:
            line = here.start_mark.line + 1
    return text, line


def _message(detail: dict[str, Any], where: str) -> str:
    kind = detail["type"]
    model = _MODELS.get(str(detail["loc"][0]), Policy) if len(detail["loc"]) > 1 else Policy
    if old := renamed(model, detail):
        return old
    if kind == "extra_forbidden":
        field = str(detail["loc"][-1])
        known = list(model.model_fields)
        close = get_close_matches(field, known, 1)
        return "unknown field: " + (f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}")
    if kind == "missing":
        remedy = "version: 1" if where == "version" else f"{detail['loc'][-1]}: …"
        return f"is required: add `{remedy}`"
    if kind == "literal_error":
        return f"{detail['input']!r} is not allowed: write {detail['ctx']['expected']}"
    if kind in _WANTED:
        return f"{detail['input']!r} does not fit: {_WANTED[kind]}"[:300]
    if kind == "value_error":
        return str(detail["ctx"]["error"])
    if kind == "string_pattern_mismatch":
        return f"{detail['input']!r} is no plain name: use letters, digits, '_', '.' and '-'"
    text = detail["msg"][0].lower() + detail["msg"][1:]
    return f"{detail['input']!r} does not fit: {text}"[:300]
