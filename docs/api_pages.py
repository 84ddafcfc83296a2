"""Build steps of the site: an MkDocs hook and a Griffe extension.

A page of `docs/reference` names an object as users import it, `::: hf.solve`. mkdocstrings reads source
files, so the hook replaces the name by the place of the definition and keeps the public name as heading
and anchor. The pages stay correct when a module moves.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import Any

import griffe

# `::: hf.solve` or `::: holdfast.report.page.write_page`, alone on a line.
_DIRECTIVE = re.compile(r"^::: (hf|holdfast)\.([\w.]+)$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page with every public name replaced by its definition."""
    return _DIRECTIVE.sub(lambda match: _directive(*match.groups()), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Return the page with places in long names, as `package.module:name`, where a line may break."""
    return re.sub(r"<code>((?:holdfast|tests/|src/)[^<]+)</code>", _breakable, html)


def _breakable(match: re.Match[str]) -> str:
    name = re.sub(r"([./:_]+)", r"\1<wbr>", match[1])
    return f"<code>{name}</code>"


def _directive(root: str, name: str) -> str:
    public = f"{root}.{name}"
    return (
        f'<a id="{public}"></a>\n\n::: {definition(name)}\n    options:\n'
        f'      heading: "{public}"\n      toc_label: "{name.rpartition(".")[2]}"\n'
    )


def definition(name: str) -> str:
    """Return the dotted path under which the source defines a public name of the package.

    Functions and classes store their module. Other objects are looked up where the directive says.
    """
    module_name, _, attribute = f"holdfast.{name}".rpartition(".")
    module = importlib.import_module(module_name)
    found = inspect.unwrap(getattr(module, attribute))
    if inspect.isroutine(found) or inspect.isclass(found):
        return f"{found.__module__}.{found.__qualname__}"
    return f"{module_name}.{attribute}"


class ExampleSections(griffe.Extension):
    """Read the section "Example:" as Griffe reads "Examples:", as doctests and not as Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rename the section in the docstring of one object."""
        if obj.docstring:
            obj.docstring.value = re.sub(
                r"^( *)Example:$", r"\1Examples:", obj.docstring.value, flags=re.MULTILINE
            )
