"""From the text of `perfci.yaml` to a Policy."""

from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from perfci.model.base import Loc, Mistake, UsageError
from perfci.model.policy import KEY, Policy, line_of, spelled
from perfci.model.suite import ENTRIES
from perfci.model.text import count, did_you_mean, one_line

FILE = "perfci.yaml"
LONGEST = 256 << 10
"""Characters: YAML takes a second for 100 kB, and a stranger's change may bring one."""
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
    """Refuses a key written twice, of which the second would win, and aliases, by which a few lines become millions."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError as error:  # a date of the 13th month, a number of 5000 digits
            raise yaml.constructor.ConstructorError(None, None, one_line(error), node.start_mark) from None

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
    """Read a policy from the file `name`. Raises UsageError."""
    if len(text) > LONGEST:
        raise UsageError(f"{name}: is longer than {LONGEST >> 10} KiB: name cases by globs")
    data, lines = _read(text, name)
    if not isinstance(data, dict):
        raise UsageError(f"{name}: is not a policy: begin with `version: 1` and `suite: [kernels/*.py]`")
    try:
        policy = Policy.model_validate(data)
    except ValidationError as error:
        raise UsageError(_first(error, lines, name)) from None
    policy.read_from(lines)
    return policy


def _read(text: str, name: str) -> tuple[Any, dict[Loc, int]]:
    """With the line of each value."""
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        return loader.construct_document(node), dict(_lines(node, node.start_mark.line + 1))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        lead = "not valid YAML: " if isinstance(error, yaml.scanner.ScannerError | yaml.parser.ParserError) else ""
        raise UsageError(f"{name}{line}: {lead}{error.problem}") from None
    except yaml.reader.ReaderError as error:
        line = f":{text.count(chr(10), 0, error.position) + 1}"
        raise UsageError(f"{name}{line}: not valid YAML ({one_line(error, 120)})") from None
    except (yaml.YAMLError, RecursionError) as error:
        line = f":{loader.line + 1}" if loader else ""
        raise UsageError(f"{name}{line}: not valid YAML ({one_line(error, 120)})") from None
    finally:
        if loader:
            loader.dispose()


def _lines(node: yaml.Node, line: int, loc: Loc = ()) -> Iterator[tuple[Loc, int]]:
    """A value that spans lines stands where it begins; a block, where its name is."""
    yield loc, line
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            name = key.start_mark.line + 1
            yield (*loc, key.value, KEY), name
            block = isinstance(value, yaml.CollectionNode) and not value.flow_style
            yield from _lines(value, name if block else value.start_mark.line + 1, (*loc, key.value))
    elif isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            yield from _lines(item, item.start_mark.line + 1, (*loc, index))


def _first(error: ValidationError, lines: dict[Loc, int], name: str) -> str:
    # An unknown field explains a missing one: it comes first.
    found: list[Any] = [
        dict(one, loc=tuple(part for part in one["loc"] if part not in ENTRIES))
        for one in error.errors(include_url=False)
    ]
    details = sorted(found, key=lambda detail: detail["type"] != "extra_forbidden")
    wheres = [_where(detail, lines) for detail in details]
    message = _message(details[0], wheres[0])
    lead = f"{wheres[0]}: " if wheres[0] else ""
    more = {*wheres} - {wheres[0]}
    return f"{name}:{line_of(_loc(details[0]), lines)}: {lead}{message}" + (
        f" (and {count(len(more), 'more mistake')})" if more else ""
    )


def _loc(detail: Any) -> Loc:
    below = error.loc if isinstance(error := detail.get("ctx", {}).get("error"), Mistake) else ()
    return (*detail["loc"], *below, *([KEY] if detail["type"] == "extra_forbidden" else []))


def _where(detail: Any, lines: dict[Loc, int]) -> str:
    """Without a union's branch, and the index in a list of which the only item was written."""
    loc = tuple(part for part in _loc(detail) if part != KEY)
    end = next(end for end in range(len(loc), -1, -1) if loc[:end] in lines)
    return spelled(loc if detail["type"] == "missing" else loc[:end])


def _level(loc: Loc) -> type[BaseModel]:
    """The model of the last name of `loc`, or the nearest above it."""
    model: type[BaseModel] = Policy
    inside: Any = Policy
    for part in loc[:-1]:
        if inside is model:
            inside = model.model_fields[str(part)].annotation if part in model.model_fields else None
        else:  # an index of a list, a name of a mapping
            inside = _last(inside)
        if isinstance(inside, type) and issubclass(inside, BaseModel):
            model = inside
    return model


def _last(annotation: Any) -> Any:
    """What a list or mapping holds; of a union the last."""
    inside = next(reversed(get_args(annotation)), None)
    while (origin := get_origin(inside)) in (Annotated, Union, UnionType):
        inside = get_args(inside)[0 if origin is Annotated else -1]
    return inside


def _message(detail: Any, where: str) -> str:
    kind, model = detail["type"], _level(detail["loc"])
    if kind == "extra_forbidden":
        field = str(detail["loc"][-1])
        known = list(model.model_fields)
        return f"unknown field: {did_you_mean(field, known, 'known are ' + ', '.join(known))}"
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
