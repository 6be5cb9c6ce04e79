"""Calls of a journal written as a Python program that uses public calls only."""

from __future__ import annotations

import base64
import math
import re
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from .._dtypes import REAL_KINDS, number_kind
from ._entries import (
    ArrayValue,
    Brought,
    DType,
    Formula,
    FunctionValue,
    HandleValue,
    Items,
    NumberValue,
    Outside,
    Pairs,
    Partial,
    Ref,
    Slice,
)
from ._restore import refs_given, refs_of, require_guard
from ._text import number_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ._entries import CallEntry, Value
    from ._reading import JournalCall

_MOST_LISTED: Final = 16
_MOST_TEXT: Final = 1 << 20

_START: Final = '''\
"""{title}"""

import importlib.util
import operator
import sys

import numpy as np
import trio

{imports}

{definitions}
async def main() -> None:
    """{doc}"""
    async with open_device({index}, backend={backend!r}) as device:
'''

_END: Final = """

if __name__ == "__main__":
    trio.run(main)
"""

_FROM_FILE: Final = '''\
def of_file(path, name):
    """A function of a program's own file."""
    spec = importlib.util.spec_from_file_location("recorded_program", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return operator.attrgetter(name)(module)


'''


class Unwritable(Exception):
    """A call cannot be written as a program; the message says why."""


@final
class ProgramWriter:
    """Writes a program of some calls.

    Buffers that none of them makes are zeros.

    Args:
        arrays: contents of arrays, by hash.
        contents: arrays of buffers that were there before the journal, by the buffer's number.
        paths: where the program that was recorded looked for modules.
    """

    def __init__(
        self,
        arrays: Mapping[bytes, np.ndarray[Any, Any]],
        contents: Mapping[int, ArrayValue],
        paths: Sequence[str] = (),
    ) -> None:
        self._arrays: Final = arrays
        self._contents: Final = contents
        self._paths: Final = [each for each in paths if not _is_pythons(each)]
        self._functions: set[str] = set()
        self._lines: list[str] = []
        self._imports: set[str] = set()
        self._names: dict[int, str] = {}
        self._definitions: dict[str, str] = {}
        self._shapes: dict[int, tuple[str, tuple[int, ...], int]] = {}
        self._whole: dict[int, Ref] = {}

    def program(
        self,
        recalls: Sequence[JournalCall],
        *,
        brought: Mapping[int, Outside | Brought],
        made: Mapping[int, Ref],
        backend: str,
        title: str,
        with_inputs: bool = True,
    ) -> str:
        """Return the text of a program.

        ``brought`` are buffers and facades that existed before the calls, by number. Without
        ``with_inputs`` earlier buffers have zeros.
        """
        self._lines, self._imports, self._names, self._definitions = [], set(), {}, {}
        self._functions = set()
        self._imports.add("from atomr_accel import open_device")
        self._whole = dict(made)
        for recall in recalls:
            call = recall.call
            given = [*refs_given(call).values()]
            for ref in given:
                if ref.id not in self._names:
                    self._bring(ref, brought.get(ref.id) if with_inputs else None)
            handles = [call.target] if isinstance(call.target, HandleValue) else []
            for handle in handles:
                if handle.id not in self._names:
                    self._bring_handle(handle, brought.get(handle.id))
            self._call(call, recall.done.result if recall.done is not None else None)
        imports = "\n".join(sorted(self._imports))
        if self._functions:
            if self._paths:
                imports += f"\n\nsys.path += {self._paths!r}  # those of what was recorded\n"
            imports = "\n".join([imports, *sorted(self._functions)])
        definitions = "".join(self._definitions.values())
        start = _START.format(
            title=title,
            doc="Do what the journal tells, as far as it matters.",
            imports=imports,
            definitions=f"\n{definitions}" if definitions else "",
            index=0,
            backend=backend,
        )
        body = "".join(f"        {line}\n" for line in self._lines) or "        pass\n"
        return _without_unused(start + body + _END)

    # --- what is there ----------------------------------------------------------------------

    def _bring(self, ref: Ref, entry: Outside | Brought | None) -> None:
        """Write the making of a buffer that no call of the program has made."""
        name = self._names[ref.id] = f"x{ref.id}"
        array = self._contents.get(ref.id) if isinstance(entry, Outside) else None
        if array is not None and array.hash in self._arrays:
            assert isinstance(entry, Outside)
            kind = ", sealed=True" if entry.sealed else ", durable=True" if entry.durable else ""
            self._lines.append(f"{name} = await device.put({self._array(array)}{kind})")
            return
        whole = self._whole.get(ref.id, ref)
        self._whole[ref.id] = whole
        self._lines.append(f'{name} = await device.zeros({whole.shape!r}, "{whole.dtype}")')

    def _bring_handle(self, handle: HandleValue, entry: Outside | Brought | None) -> None:
        """Write the making of a generator or a fused function."""
        if not isinstance(entry, Brought) or entry.kind not in ("generator", "fused"):
            raise Unwritable(f"nothing tells how #{handle.id} was made")
        name = self._names[handle.id] = f"{entry.kind}{handle.id}"
        if entry.kind == "fused":
            self._lines.append(f"{name} = device.fuse({self._value(entry.made_of)})")
            return
        assert isinstance(entry.made_of, Pairs)
        state = {str(key): item for key, item in entry.made_of.items}
        given = [f"{key}={self._value(state[key])}" for key in ("kind", "ordering", "dimensions")]
        self._lines.append(f"{name} = device.rng.default_rng({', '.join(given)})")

    # --- a call -----------------------------------------------------------------------------

    def _call(self, call: CallEntry, result: Value) -> None:
        if isinstance(call.target, HandleValue):
            target = self._names[call.target.id]
        else:
            target = "device" if call.target == "device" else f"device.{call.target}"
        if call.state is not None:
            self._lines.append(f"{target}.state = {self._value(call.state)}")
        given = [self._value(each) for each in call.args]
        given += [f"{name}={self._value(each)}" for name, each in call.kwargs.items()]
        method = "" if call.method == "__call__" else f".{call.method}"
        text = f"await {target}{method}({', '.join(given)})"
        names = self._results(result)
        self._lines.append(f"{names} = {text}" if names else text)

    def _results(self, result: Value) -> str:
        """Return the target that a result is assigned to; "" if later calls do not use it."""
        if isinstance(result, Ref | HandleValue):
            if result.id in self._names:
                return ""
            if isinstance(result, Ref):
                self._whole[result.id] = result
            name = self._names[result.id] = f"x{result.id}"
            return name
        if isinstance(result, Items) and result.items:
            names = [self._results(each) or "_" for each in result.items]
            return f"({', '.join(names)},)"
        if any(True for _ in refs_of(result)):
            raise Unwritable("its result holds buffers in a type of its own")
        return ""

    # --- arguments --------------------------------------------------------------------------

    def _value(self, value: Value) -> str:
        if value is None or isinstance(value, bool | int | str):
            return repr(value)
        if isinstance(value, float):
            return repr(value) if math.isfinite(value) else f'float("{value}")'
        if isinstance(value, Ref):
            return self._ref(value)
        if isinstance(value, HandleValue):
            if value.id not in self._names:
                raise Unwritable(f"nothing tells how #{value.id} was made")
            return self._names[value.id]
        if isinstance(value, ArrayValue):
            return self._array(value)
        if isinstance(value, FunctionValue):
            return self._function(value)
        if isinstance(value, Partial):
            self._imports.add("from functools import partial")
            parts = [self._value(value.function), *map(self._value, value.args)]
            parts += [f"{name}={self._value(each)}" for name, each in value.kwargs.items()]
            return f"partial({', '.join(parts)})"
        if isinstance(value, Items):
            inside = ", ".join(map(self._value, value.items))
            if value.kind == "list":
                return f"[{inside}]"
            return f"({inside},)" if len(value.items) == 1 else f"({inside})"
        if isinstance(value, Pairs):
            inside = ", ".join(f"{self._value(a)}: {self._value(b)}" for a, b in value.items)
            return f"{{{inside}}}"
        if isinstance(value, NumberValue):
            if value.dtype == "int":
                return hex(number_of(value))  # the decimal digits of a huge one are refused
            if value.dtype in ("complex", "bytes", "str"):
                return repr(number_of(value))
            number = number_of(value)
            if number_kind(number.dtype) in REAL_KINDS and np.isfinite(number):
                return f"{self._dtype(value.dtype)}({number.item()!r})"
            return f"np.frombuffer({value.data!r}, {self._dtype(value.dtype)})[0]"
        if isinstance(value, DType):
            return self._dtype(value.name)
        if isinstance(value, Slice):
            if value.start == "...":
                return "..."
            return f"slice({', '.join(map(self._value, (value.start, value.stop, value.step)))})"
        if isinstance(value, Formula):
            return self._formula(value)
        raise Unwritable(f"{type(value).__name__}: the journal holds no more than its name")

    def _ref(self, ref: Ref) -> str:
        """Return the text for a buffer, or for a view of it."""
        name, whole = self._names[ref.id], self._whole.get(ref.id)
        if whole is None or (
            (ref.shape, ref.dtype, ref.offset, ref.strides)
            == (whole.shape, whole.dtype, whole.offset, whole.strides)
        ):
            return name
        self._imports.add("from atomr_accel.replay import view_of")
        text = f'view_of({name}, {ref.shape!r}, "{ref.dtype}"'
        if ref.offset:
            text += f", offset={ref.offset}"
        if ref.strides is not None:
            text += f", strides={ref.strides!r}"
        return f"{text})"

    def _array(self, array: ArrayValue) -> str:
        content = self._arrays.get(array.hash)
        dtype = self._dtype(array.dtype)
        if content is None:
            return f"np.zeros({array.shape!r}, {dtype})"
        if (
            content.size
            and (content == content.reshape(-1)[0]).all()
            and np.isfinite(content.reshape(-1)[0])
        ):
            return f"np.full({array.shape!r}, {content.reshape(-1)[0].item()!r}, {dtype})"
        short = content.size <= _MOST_LISTED and number_kind(content.dtype) in REAL_KINDS
        if short and np.isfinite(content.astype(np.float64)).all():
            return f"np.array({content.tolist()!r}, {dtype})"
        if content.nbytes > _MOST_TEXT:
            raise Unwritable(f"an array of {content.nbytes} bytes is too long for a program")
        self._imports.add("import base64")
        text = base64.b85encode(content.tobytes()).decode()
        return f'np.frombuffer(base64.b85decode("{text}"), {dtype}).reshape({array.shape!r})'

    def _dtype(self, name: str) -> str:
        if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"):
            self._imports.add("import ml_dtypes")
            return f"ml_dtypes.{name}"
        return "np.bool_" if name == "bool" else f"np.{name}"

    def _function(self, function: FunctionValue) -> str:
        main = function.module == "__main__"
        if "<" in function.name or not function.module or (main and not function.file):
            raise Unwritable(f"function {function.name} has no name to import it by")
        if main:
            try:
                require_guard(function.file)
            except ImportError as error:
                raise Unwritable(str(error)) from error
            self._definitions["of_file"] = _FROM_FILE
            name = function.name.replace(".", "_")
            self._definitions[name] = (
                f"{name} = of_file({function.file!r}, {function.name!r})\n\n\n"
            )
            return name
        if function.module == "builtins":
            return function.name
        outer, _, _ = function.name.partition(".")
        self._functions.add(f"from {function.module} import {outer}")
        return function.name

    def _formula(self, formula: Formula) -> str:
        """Return the text of an expression with NumPy's functions."""
        made: list[str] = []
        for step in formula.steps:
            args = (
                [made[at] for at in step.args] if step.kind not in ("operand", "constant") else []
            )
            if step.kind == "operand":
                made.append(self._ref(formula.operands[step.args[0]]))
            elif step.kind == "constant":
                made.append(self._value(formula.constants[step.args[0]]))
            elif step.kind == "ufunc":
                module = "np" if hasattr(np, step.name) else "scipy.special"
                if module != "np":
                    self._imports.add("import scipy.special")
                made.append(f"{module}.{step.name}({', '.join(args)})")
            elif step.kind == "cast":
                made.append(f"{args[0]}.astype({self._dtype(step.dtype)})")
            elif step.kind == "where":
                made.append(f"np.where({', '.join(args)})")
            elif step.kind == "reduce" and hasattr(np, step.name):
                axes = f"axis={step.axes!r}, keepdims={step.keepdims!r}"
                made.append(f"np.{step.name}.reduce({args[0]}, {axes})")
            else:
                raise Unwritable(f"an expression with {step.kind} {step.name}")
        return made[formula.result]


def _is_pythons(path: str) -> bool:
    """Return True if this interpreter finds modules of this path by itself."""
    own = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return any(Path(path).is_relative_to(each) for each in own)


def _without_unused(text: str) -> str:
    """Return a program without its unused imports."""
    lines = text.split("\n")
    kept = []
    for line in lines:
        used = line
        if line.startswith(("import ", "from ")):
            name = line.rsplit(" ", 1)[-1].partition(".")[0]
            body = "\n".join(each for each in lines if not each.startswith(("import ", "from ")))
            if not re.search(rf"\b{name}\b", body):
                continue
        kept.append(used)
    return "\n".join(kept)
