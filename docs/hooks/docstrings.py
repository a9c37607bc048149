"""Docstrings as the reference shows them: plain text, as in help(), with what Markdown would misread mended."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

import griffe

# A star before a word, as in (*batch, n), and an underscore before one, as in _sample, are no emphasis here; nor is
# curves["loss"]["train"] a reference.
_MARK = re.compile(r"(?<![\w*_`\\])([*_])(?=\w)")
_SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields|Note|Warns|Receives|Cost|Source):$")
_CODE_SPAN = re.compile(r"(`[^`]*`)")


class Readable(griffe.Extension):
    """Escapes stars, sets examples as code, and shows the options of samplers with their help and default."""

    _mark: Sequence[griffe.Decorator] = ()

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = readable(obj.docstring.value)

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """Leave out attributes without a docstring: the signature and docstring of the class say what they are."""
        if any("Enum" in str(base) for base in cls.bases):
            return
        for name, member in list(cls.members.items()):
            if isinstance(member, griffe.Attribute) and member.docstring is None and "property" not in member.labels:
                cls.del_member(name)

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        call = attr.value
        if not isinstance(call, griffe.ExprCall) or str(call.function) != "option":
            return
        given = {a.name: a.value for a in call.arguments if isinstance(a, griffe.ExprKeyword)}
        attr.value = given.get("default")
        if attr.docstring is None and "help" in given:
            attr.docstring = griffe.Docstring(option_text(given), parent=attr)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Mark the subclasses of `Sampler` as the keyword-only dataclasses that it makes of them."""
        if pkg.name == "samplers" and isinstance(sampler := pkg["base.Sampler"], griffe.Class):
            self._mark = sampler.decorators
        for module in _modules(pkg):
            for member in module.members.values():
                if not isinstance(member, griffe.Class) or member.decorators:
                    continue
                if any(str(base).endswith("Sampler") for base in member.bases):
                    member.decorators += self._mark


def _modules(module: griffe.Module) -> Iterator[griffe.Module]:
    yield module
    for member in module.members.values():
        if isinstance(member, griffe.Module):
            yield from _modules(member)


def option_text(given: dict[str, Any]) -> str:
    """The help of an option, and what values it takes."""
    text = str(given["help"])[1:-1]
    limits = [
        f"{word} {given[name]}" for name, word in (("minimum", "at least"), ("maximum", "at most")) if name in given
    ]
    choices = [f"one of {str(given['choices']).strip('()').rstrip(',')}"] if "choices" in given else []
    return "; ".join([text[:1].upper() + text[1:], *choices, *limits]) + "."


def readable(text: str) -> str:
    """The docstring with marks of emphasis escaped outside code, and `Example:` followed by a code block."""
    lines, in_section = [], False
    for line in text.split("\n"):
        if line and not line[0].isspace():
            in_section = bool(_SECTION.match(line))
            if line == "Example:":
                lines.append("Example:")
                line = ""
        code = line.startswith("    ") and not in_section
        lines.append(line if code else _escaped(line))
    return "\n".join(lines)


def _escaped(line: str) -> str:
    parts = _CODE_SPAN.split(line)
    return "".join(part if part.startswith("`") else _MARK.sub(r"\\\1", part).replace("][", r"]\[") for part in parts)
