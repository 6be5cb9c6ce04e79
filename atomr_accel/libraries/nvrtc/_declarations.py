"""Declarations of a source, read in one pass: its kernels and its variables.

The driver reports only sizes, and the CPU backend has no compiler, so this module reads the source
itself. It knows enough C++ to tell code from comments and literals, and to find namespaces,
templates, and code that ``#if 0`` leaves out. It does not evaluate other conditions: declarations
of all their branches count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_JOINED: Final = r"(?:\\\r?\n)*+"
"""A joint of lines, which may be anywhere."""

_RAW: Final = rf'(?: u{_JOINED}8 | [uUL] )? {_JOINED} R {_JOINED} "'

_TOKEN: Final = re.compile(
    rf"""
      (?P<plain> (?:
        (?= [^\W\d] ) (?! {_RAW} )  # the R of a name's end begins no literal
            \w (?: \w | \\\r?\n )*+
        | \.?[0-9] (?: [eEpP][+-] | '{_JOINED}\w | [\w.] | \\\r?\n )*+  # such as 1'000
        | \\\r?\n
        | [^\w/"'\\] )++ )
    | (?P<comment> /{_JOINED}/ (?: \\\r?\n | [^\n] )*+
        | /{_JOINED}\* .*? (?: \*{_JOINED}/ | \Z ) )
    | (?P<literal>
        (?: u{_JOINED}8 | [uUL] )? {_JOINED} R {_JOINED}
            "(?P<delimiter> [^\s()\\]{{0,16}} ) \( .*? (?: \) (?P=delimiter) " | \Z )
        | " (?: \\{_JOINED}[^\n] | \\\r?\n | [^"\\\n] )*+ "
        | ' (?: \\{_JOINED}[^\n] | \\\r?\n | [^'\\\n] )*+ ' )
    | (?P<other> . )
    """,
    re.VERBOSE | re.DOTALL,
)
"""Tokens that must be distinguished to find code, and no others."""

_JOINT: Final = re.compile(r"\\\r?\n")
_DIRECTIVE: Final = re.compile(r"^[ \t]*#[ \t]*(\w*)(.*)$", re.MULTILINE)

_IF, _ELSE, _ENDIF = "\1", "\2", "\3"
"""Characters that replace directives. Sources do not contain them."""

_MARK: Final = re.compile(r"[{};\1\2\3]")
_DIRECTIVES: Final = re.compile(r"[\1\2\3]")
_NAME: Final = re.compile(r"(\w+)\s*\(")
_NAMESPACE: Final = re.compile(r"\bnamespace\b\s*([\w:\s]*)$")
_LINKAGE: Final = re.compile(r'\bextern\s*""\s*$')
_TEMPLATE: Final = re.compile(r"\btemplate\s*<")
_TYPE: Final = re.compile(r"\b(?:struct|union|enum(?:\s+class)?)\s+(?:alignas\s*\(\w+\)\s*)?(\w+)")
_ATTRIBUTE: Final = re.compile(
    r"__(?:launch_bounds|cluster_dims|block_size|maxnreg|nv_pure|align|attribute)__|alignas|noexcept"
)
"""Attributes with parentheses, which look like the name of a kernel."""

_ATTRIBUTES: Final = re.compile(
    r"\[\[.*?\]\]|\b(?:__align__|alignas|__attribute__)\s*\((?:[^()]|\([^()]*\))*\)", re.DOTALL
)
_ELSEWHERE: Final = re.compile(r"\busing\b|\binline\s+namespace\b|\bnamespace\s+\w+\s*=")
"""Declarations that give names further names."""

_REQUIRES: Final = re.compile(r"\brequires\b")
_MACRO: Final = re.compile(r"[ \t]*(\w+)[ \t](.*\b__global__\b.*)")
"""A macro without parameters that contains ``__global__``."""


@dataclass(frozen=True, slots=True)
class Function:
    """A ``__global__`` function, as one place declares it.

    Attributes:
        path: its name, qualified by the named namespaces around it.
        template: the parameters of its template; None if it is not a template.
        parameters: its own parameters; None if there are directives among them.
        defined: whether it has a body here.
        surely: whether it is outside of all conditions.
    """

    path: str
    template: tuple[str, ...] | None
    parameters: tuple[str, ...] | None
    defined: bool
    surely: bool

    def takes(self, count: int) -> bool:
        """Return whether its template can take ``count`` arguments."""
        template = self.template or ()
        if any("..." in each for each in template):
            return True
        return sum("=" not in each for each in template) <= count <= len(template)


@dataclass
class Declarations:
    """The kernels and variables of a source.

    Attributes:
        source: CUDA C++.
    """

    source: str
    _functions: list[Function] = field(default_factory=list, init=False)
    _constant: set[str] = field(default_factory=set, init=False)
    _other: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        if "__global__" in self._text or "__constant__" in self._text:
            self._scan()

    @cached_property
    def _text(self) -> str:
        """The code alone: no comments, no texts, no directives."""
        macros: dict[str, str] = {}
        text = "".join(_without_directives("".join(_code(self.source)), macros))
        for name, meaning in macros.items():
            text = re.sub(rf"\b{name}\b", lambda _, meaning=meaning: meaning, text)  # type: ignore[misc]
        return text

    @cached_property
    def types(self) -> frozenset[str]:
        """The names of the structs, unions and enumerations that the source declares."""
        return frozenset(_TYPE.findall(self._text))

    def kernels(self) -> list[str]:
        """The names of all kernels that the source defines, without its templates.

        Returns:
            Each once, in the order of their first definitions, qualified by namespaces.
        """
        plain = (each for each in self._functions if each.template is None and each.defined)
        return [*dict.fromkeys(each.path for each in plain)]

    def functions(self, name: str) -> list[Function]:
        """Return the functions to which a kernel's name may refer.

        Args:
            name: as in C++, perhaps qualified or with template arguments.

        Returns:
            All declarations of that name: several if it is overloaded, or if conditions choose.
            Empty if it comes from an include or a macro.
        """
        plain, template, arguments = name.partition("<")
        plain = "".join(plain.split()).removeprefix("::")
        bare = plain.rpartition("::")[2]
        alike = [each for each in self._functions if each.path.rpartition("::")[2] == bare]
        if template:
            count = len(split(arguments.rpartition(">")[0]))
            fitting = [each for each in alike if each.template is not None and each.takes(count)]
        else:
            fitting = [each for each in alike if each.template is None]
        found = fitting or alike
        # A namespace may have other names, or none to be said, or be there under a condition only.
        exact = [each for each in found if each.path == plain]
        certain = any(each.surely for each in exact) and not _ELSEWHERE.search(self._text)
        return exact if certain else found

    def is_constant(self, name: str) -> bool:
        """Return whether all declarations of a variable are ``__constant__``."""
        name = "".join(name.split()).removeprefix("::")
        return name in self._constant and name not in self._other

    def _scan(self) -> None:
        text = self._text
        scopes: list[str | None] = []  # None: the inside of a function or a type
        # Of the conditions that are open: the scopes before, and the deepest after a branch.
        outside: list[tuple[list[str | None], list[str | None] | None]] = []
        head = nested = 0
        for mark in _MARK.finditer(text):
            kind, declared = mark[0], text[head : mark.start()]
            if kind == "{" and (nested or _goes_on(declared)):
                nested += 1
            if nested:  # braces within a declaration
                nested -= kind == "}"
                continue
            if kind in _IF + _ELSE + _ENDIF:
                # A condition may be within a declaration, or choose between several of them.
                whole = "__global__" in declared and declared.rstrip().endswith(")")
                if whole and self._add(declared, scopes, defined=True, surely=False):
                    head = mark.end()
                if kind == _IF:
                    outside.append(([*scopes], None))
                elif outside:
                    before, deepest = outside.pop()
                    if deepest is not None and len(deepest) >= len(scopes):
                        scopes = deepest
                    if kind == _ELSE:
                        outside.append((before, scopes))
                        scopes = [*before]
                continue
            head = mark.end()
            if "__global__" in declared:
                self._add(declared, scopes, defined=kind == "{", surely=not outside)
            elif "__constant__" in declared or "__device__" in declared:
                self._add_variables(declared, scopes)
            if kind == "{":
                declared = _DIRECTIVES.sub(" ", declared)
                space, linkage = _NAMESPACE.search(declared), _LINKAGE.search(declared)
                if space is not None:
                    scopes.append("".join(re.sub(r"\binline\b", "", space[1]).split()))
                else:
                    scopes.append("" if linkage is not None else None)
            elif kind == "}" and scopes:
                scopes.pop()

    def _add(self, declared: str, scopes: list[str | None], *, defined: bool, surely: bool) -> bool:
        """Note the kernels that a declaration may declare. Return whether there are any."""
        before, _, after = _ATTRIBUTES.sub(" ", declared).rpartition("__global__")
        names = [each for each in _calls(after) if not _ATTRIBUTE.fullmatch(each[0])]
        for at, (name, inside) in enumerate(names, 1):
            # A name with parentheses before another may be a macro. Without a request by name,
            # the last one is the kernel.
            self._functions.append(
                Function(
                    _path(scopes, name),
                    _template_of(before + after),
                    None if _DIRECTIVES.search(inside) else tuple(split(inside)),
                    defined and at == len(names) and None not in scopes,
                    surely,
                )
            )
        return bool(names)

    def _add_variables(self, declared: str, scopes: list[str | None]) -> None:
        declared = _ATTRIBUTES.sub(" ", declared)
        _, constant, names = declared.partition("__constant__")
        if constant:
            names, _, _ = names.partition("=")
            self._constant.update(_path(scopes, each) for each in re.findall(r"\w+", names))
        else:
            self._other.update(_path(scopes, each) for each in re.findall(r"\w+", declared))


def split(text: str) -> list[str]:
    """Split text at commas outside of brackets."""
    parts, begun = [], 0
    for at, depth in _depths(text):
        if text[at] == "," and not depth:
            parts.append(text[begun:at])
            begun = at + 1
    parts = [part.strip() for part in (*parts, text[begun:])]
    return [part for part in parts if part not in ("", "void")]


def _depths(text: str) -> Iterator[tuple[int, int]]:
    """Commas and brackets, each with how many brackets are open before it."""
    opened: list[str] = []
    for bracket in re.finditer(r"<<=?|<=|>=|->|[()\[\]{}<>,]", text):
        kind = bracket[0]
        yield bracket.start(), len(opened)
        if kind in "([{" or (kind == "<" and (not opened or opened[-1] == "<")):
            opened.append(kind)
        elif kind in ")]}":
            while opened and opened.pop() == "<":
                """Drop unclosed ``<`` inside of parentheses: they compare."""
        elif kind == ">" and opened and opened[-1] == "<":
            opened.pop()


def _code(source: str) -> Iterator[str]:
    """Yield the code of a source, without comments and without the contents of literals."""
    for token in _TOKEN.finditer(source):
        if token["plain"] is not None:
            plain = token["plain"]
            yield _JOINT.sub("", plain) if "\\" in plain else plain
        elif token["comment"] is not None:
            yield " "
        elif token["literal"] is not None:
            yield '""'
        else:
            yield token[0]


def _without_directives(text: str, macros: dict[str, str]) -> Iterator[str]:
    """Yield code with marks for its conditions, and without branches that are never compiled.

    Args:
        text: the code.
        macros: gets the macros that contain ``__global__``.
    """
    at = 0
    taken: list[bool] = []  # whether what comes may be compiled, for each condition that is open
    sure: list[bool] = []  # whether an earlier branch of it surely was
    marked: list[bool] = []  # whether it is known to be chosen from
    for directive in _DIRECTIVE.finditer(text):
        if all(taken):
            yield text[at : directive.start()]
        at = directive.end()
        word, condition = directive[1], directive[2].strip()
        never, always = condition in ("0", "false"), condition in ("1", "true")
        if word in ("if", "ifdef", "ifndef"):
            taken.append(not (word == "if" and never))
            sure.append(word == "if" and always)
            marked.append(not (word == "if" and (never or always)))
            if marked[-1]:
                yield _IF
        elif word in ("elif", "elifdef", "elifndef", "else") and taken:
            if word == "else":
                never, always = False, True
            taken[-1] = not sure[-1] and not never
            sure[-1] = sure[-1] or always
            if taken[-1] and marked[-1]:
                yield _ELSE
            elif taken[-1] and not always:
                marked[-1] = True
                yield _IF
        elif word == "endif" and taken:
            taken.pop()
            sure.pop()
            if marked.pop():
                yield _ENDIF
        elif word == "define" and (macro := _MACRO.fullmatch(directive[2])) is not None:
            macros[macro[1]] = macro[2]
    if all(taken):
        yield text[at:]


def _calls(text: str) -> Iterator[tuple[str, str]]:
    """Yield each name outside of parentheses, with the contents of the parentheses behind it."""
    at = 0
    while (found := _NAME.search(text, at)) is not None:
        inside = _until_closed(text, found.end())
        yield found[1], inside
        at = found.end() + len(inside)


def _goes_on(declared: str) -> bool:
    """Return whether a brace behind this is in parentheses, a template or ``requires``.

    Any other brace begins a body.
    """
    # Brackets that are open before a kernel begins are ignored, so that they do not hide it.
    kernel = declared[max(0, declared.rfind("__global__")) :]
    if kernel.count("(") > kernel.count(")"):
        return True
    template = _TEMPLATE.search(kernel)
    if template is not None and template.end() + len(_template_in(kernel)) == len(kernel):
        return True
    *_, rest = (None, *_REQUIRES.split(declared)[1:])
    if rest is None:
        return False
    rest = rest.strip()
    return not rest or (rest[0] == "(" and len(_until_closed(rest, 1)) == len(rest) - 2)


def _until_closed(text: str, start: int) -> str:
    """Return the text from ``start`` to the parenthesis that closes the one before it."""
    depth = 1
    for bracket in re.finditer(r"[()]", text[start:]):
        depth += 1 if bracket[0] == "(" else -1
        if not depth:
            return text[start : start + bracket.start()]
    return text[start:]


def _template_in(declared: str) -> str:
    """Return the text between the brackets of a declaration's template."""
    found = _TEMPLATE.search(declared)
    inside = "" if found is None else declared[found.end() :]
    for at, depth in _depths(f"<{inside}"):
        if at and depth == 1 and inside[at - 1] == ">":
            return inside[: at - 1]
    return inside


def _template_of(declared: str) -> tuple[str, ...] | None:
    if _TEMPLATE.search(declared) is None:
        return None
    inside = _template_in(declared)
    if "void" in inside.split():  # a comparison, perhaps: it takes anything
        return ("...",)
    return tuple(split(_DIRECTIVES.sub(" ", inside)))


def _path(scopes: list[str | None], name: str) -> str:
    return "::".join([*filter(None, scopes), name])
