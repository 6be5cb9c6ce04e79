"""Forms, operands and numbers of expressions, separated and joined again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .expression import Expression

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .expression import Operand


def parts_of(root: Operand) -> Iterator[Any]:
    """Yield each part of an expression once, after its own parts.

    It uses no recursion, because expressions can be deeper than the stack.
    """
    done: set[int] = set()
    waiting: list[Any] = [root]
    while waiting:
        each = waiting[-1]
        if id(each) in done:
            waiting.pop()
            continue
        if type(each) is Expression:
            missing = [arg for arg in each.args if id(arg) not in done]
            if missing:
                waiting += reversed(missing)
                continue
        waiting.pop()
        done.add(id(each))
        yield each


def apart(root: Expression) -> tuple[tuple[object, ...], list[Any], list[int]]:
    """Separate an expression's form from its operands and numbers.

    Returns:
        The form, which is equal for expressions that differ only in operands and numbers; shapes of
        functions' results follow from those of the operands. Then the operands, and the numbers as
        words of four bytes.
    """
    form: list[object] = []
    operands: list[Any] = []
    words: list[int] = []
    places = {id(root): 0}
    found: list[Any] = [root]
    for each in found:  # which grows meanwhile
        if type(each) is not Expression:
            operands.append(each)
            form.append(None)
            continue
        kind = each.kind
        if kind == "ufunc":
            form += (each.name, each.dtype)
        elif kind == "constant":
            words += each.params[1]
            form.append(each.dtype)
            continue
        else:
            form += (kind, each.name, each.params, each.shape, each.dtype)
        for arg in each.args:
            at = places.setdefault(id(arg), len(found))
            if at == len(found):
                found.append(arg)
            form.append(at)
    return tuple(form), operands, words


def joined(root: Expression, operands: Sequence[Any], words: Sequence[Any]) -> Expression:
    """Return an expression with the operands and numbers replaced that ``apart`` returned."""
    places: dict[int, Any] = {id(root): None}
    given, numbers = iter(operands), iter(words)
    found: list[Any] = [root]
    for each in found:
        if type(each) is not Expression:
            places[id(each)] = next(given)
            continue
        if each.kind == "constant":
            params = each.params[0], tuple([next(numbers) for _ in each.params[1]])
            places[id(each)] = Expression("constant", "", (), params, (), each.dtype)
        for arg in each.args:
            if id(arg) not in places:
                places[id(arg)] = None
                found.append(arg)
    for each in parts_of(root):
        if type(each) is Expression and each.kind != "constant":
            args = tuple([places[id(arg)] for arg in each.args])
            made = (each.kind, each.name, args, each.params, each.shape, each.dtype)
            places[id(each)] = Expression(*made)
    result: Expression = places[id(root)]
    return result
