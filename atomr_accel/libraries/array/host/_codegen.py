"""CUDA C++ of kernels of expressions.

A kernel gets one struct of words: pointers, then sizes and strides, then the numbers of the
expression. So its source depends on its form alone.

A kernel that reduces runs over each row as often as reductions depend on others, and once more for
results of one element each. Elements of a row stay in registers meanwhile if they fit, and so do
values that take long to compute; all others are computed again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from ...._dtypes import DTYPES
from ...._errors import Unsupported
from ....executors.device_code import CudaSource
from ....wire.ufuncs import ARG_REDUCTIONS, PAIRS, REDUCTIONS, UFUNCS
from ._elements import CHEAP, EXACT, LONG, OF_COMPLEX, OVER, SMALL, STORED, register

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..wire._program import Access, KernelForm, KernelNode

PRELUDE: Final = CudaSource("atomr_accel.libraries.array.host", "expressions.cuh")
NAME: Final = "expression"

_MOST_WORDS: Final = 80
_MOST_WORDS_OF_MANY: Final = 48
"""Words of a row that each thread may keep; in large blocks there are fewer registers for each."""

FIXED: Final = 3
"""Numbers before the sizes: rows, length of a row, length of a part."""


def source_of(form: KernelForm) -> str:
    """Return the source of a kernel; its name is ``NAME``.

    Raises:
        Unsupported: a function that is not computed for such a dtype.
        ValueError: a form that no program sends.
    """
    return PRELUDE.text + _KernelWriter(form).text()


def body_of(form: KernelForm) -> str:
    """The source without the part that all kernels share."""
    return _KernelWriter(form).text()


@final
class _KernelWriter:
    """Writes one kernel."""

    def __init__(self, form: KernelForm) -> None:
        self._form: Final = form
        self._lines: Final[list[str]] = []
        count = form.kept + form.reduced
        self._first_number: Final = len(form.operands) + len(form.outputs)
        self._strides: Final = self._first_number + FIXED + count
        accesses = [*form.operands, *form.outputs]
        self._scalars: Final = self._strides + len(accesses) * count
        each = form.layout == "each"
        self._varies: Final[list[bool]] = []
        self._stage: Final[list[int]] = []
        for at, node in enumerate(form.nodes):
            self._check(at, node)
            if node.kind in ("load", "index"):
                access = form.operands[node.args[0]]
                self._varies.append(not access.fixed if each else access.varies)
                self._stage.append(0)
            elif node.kind == "scalar":
                self._varies.append(False)
                self._stage.append(0)
            else:
                reduces = node.kind in ("reduce", "arg")
                args = node.args
                self._varies.append(not reduces and any(self._varies[arg] for arg in args))
                self._stage.append(max(self._stage[arg] for arg in args) + reduces)
        self._kept: Final[set[int]] = set()
        self._quick = False
        self._width: Final = form.vector if form.layout == "columns" else 1
        words = [
            node.args[0] + -(-DTYPES[node.dtype].itemsize // 8)
            for node in form.nodes
            if node.kind == "scalar"
        ]
        self._words: Final = self._scalars + max(words, default=0)

    def _check(self, at: int, node: KernelNode) -> None:
        form = self._form
        if node.kind in ("load", "index"):
            known = 0 <= node.args[0] < len(form.operands)
        elif node.kind == "scalar":
            known = 0 <= node.args[0] < 1 << 12
        else:
            known = bool(node.args) and all(0 <= arg < at for arg in node.args)
            if node.kind == "ufunc":
                name, _, which = node.name.partition(":")
                known &= name in (*UFUNCS, "real", "imag") if not which else name in PAIRS
            elif node.kind == "reduce":
                known &= node.name in REDUCTIONS
            elif node.kind == "arg":
                known &= node.name in ARG_REDUCTIONS
        if not known or node.dtype not in STORED:
            raise ValueError(f"there is no such value in a kernel: {node}")

    # --- pieces ---------------------------------------------------------------------------

    def _add(self, *lines: str) -> None:
        self._lines.extend(lines)

    def _number(self, at: int) -> str:
        return f"(I)a.words[{self._first_number + at}]"

    def _extent(self, axis: int) -> str:
        """Return the extent of a kept axis, or of a reduced one after them."""
        return self._number(FIXED + axis)

    def _stride(self, access: int, axis: int) -> str:
        count = self._form.kept + self._form.reduced
        return f"(I)a.words[{self._strides + access * count + axis}]"

    def _access(self, access: int) -> Access:
        operands = self._form.operands
        inputs = len(operands)
        return operands[access] if access < inputs else self._form.outputs[access - inputs]

    def _pointer(self, access: int, *, const: bool = True) -> str:
        stored = STORED[self._access(access).dtype]
        return f"(({'const ' if const else ''}{stored}*)a.words[{access}])"

    @property
    def _inner(self) -> int:
        """The axis along which several elements are taken at once."""
        form = self._form
        return form.kept + form.reduced - 1 if form.layout == "rows" else form.kept - 1

    def _offset(self, access: int, axes: Iterable[int]) -> str:
        terms = [f"c{axis} * {self._stride(access, axis)}" for axis in axes]
        return " + ".join(terms) or "0"

    def _decoded(self, index: str, axes: list[int], vector: int) -> Iterator[str]:
        """Lines that make coordinates of a linear index, of vectors along the last axis."""
        scale = f" * {vector}" if vector > 1 else ""
        if len(axes) == 1:
            yield f"const I c{axes[0]} = {index}{scale};"
            return
        for number, axis in enumerate(reversed(axes)):
            before = index if number == 0 else f"q{axes[-number]}"
            if number == len(axes) - 1:
                yield f"const I c{axis} = (I)({before});"
                return
            extent = f"(U)({self._extent(axis)})"
            if number == 0 and vector > 1:
                extent = f"({extent} / {vector})"
            yield f"const U q{axis} = (U)({before}) / {extent};"
            step = scale if number == 0 else ""
            yield f"const I c{axis} = (I)((U)({before}) - q{axis} * {extent}){step};"

    def _ref(self, at: int, lane: str) -> str:
        """A value, where ``lane`` is the number of the column."""
        if self._form.nodes[at].kind == "scalar" or self._varies[at]:
            return f"v{at}"
        return f"v{at}[{lane if self._width > 1 else 0}]"

    def _computed(self, at: int, lane: str) -> str:
        """Return the code that computes a value."""
        node = self._form.nodes[at]
        nodes = self._form.nodes
        args = [self._ref(arg, lane) for arg in node.args]
        if node.kind == "cast":
            text = f"to<{register(node.dtype)}>::of({args[0]})"
            widens = nodes[node.args[0]].dtype == "bool"
            return text if widens else self._rounded(node.dtype, text)
        if node.kind == "where":
            return f"f_where({', '.join(args)})"
        takes = nodes[node.args[0]].dtype
        if takes.startswith("complex") and node.name not in OF_COMPLEX:
            raise Unsupported(f"{node.name} of complex numbers is not computed on CUDA devices")
        if node.name in ("nextafter", "spacing") and takes in SMALL:
            raise Unsupported(f"{node.name} of {takes} is not computed on CUDA devices")
        name = node.name.replace(":", "_")
        if self._quick and self._is_over(at):
            name, args = f"over<{STORED[node.dtype]}>", [*args, "sure"]
        text = f"f_{name}({', '.join(args)})"
        if node.name in EXACT:
            return text
        return self._rounded(node.dtype, text)

    def _is_over(self, at: int) -> bool:
        """Return whether it is a quotient of an element and a value of its whole row."""
        node = self._form.nodes[at]
        if node.name != "divide" or node.dtype not in OVER or at in self._kept:
            return False
        return self._varies[at] and not self._varies[node.args[1]]

    @staticmethod
    def _rounded(dtype: str, text: str) -> str:
        return f"round_to<{STORED[dtype]}>({text})" if dtype in SMALL else text

    def _needed(self, wanted: Iterable[int]) -> list[int]:
        """The values of each element that some others are made of, in order."""
        found: set[int] = set()
        waiting = [at for at in wanted if self._varies[at]]
        while waiting:
            at = waiting.pop()
            if at not in found:
                found.add(at)
                if at not in self._kept and self._form.nodes[at].kind not in ("load", "index"):
                    waiting += [arg for arg in self._form.nodes[at].args if self._varies[arg]]
        return sorted(found)

    def _common(self, wanted: Iterable[int]) -> list[int]:
        """The values, but numbers, that are the same for all elements and that some are made of."""
        found: set[int] = set()
        seen: set[int] = set()
        waiting = [*wanted]
        while waiting:
            at = waiting.pop()
            node = self._form.nodes[at]
            if at in seen or node.kind == "scalar":
                continue
            seen.add(at)
            if not self._varies[at]:
                found.add(at)
            if node.kind not in ("load", "index"):
                waiting += node.args
        return sorted(found)

    def _loads(self, values: Iterable[int]) -> list[int]:
        return [at for at in values if self._form.nodes[at].kind == "load"]

    # --- elements -------------------------------------------------------------------------

    def _load(self, at: int, target: str, base: str) -> Iterator[str]:
        """Lines that read what one thread takes at once."""
        operand = self._form.nodes[at].args[0]
        access, vector = self._form.operands[operand], self._form.vector
        pointer, stored = self._pointer(operand), STORED[access.dtype]
        if access.vector and vector > 1:
            yield f"{target} = *(const pack<{stored}, {vector}>*)({pointer} + ({base}));"
        elif access.fixed or vector == 1:
            yield f"{target}.v[0] = {pointer}[{base}];"
        else:
            stride = self._stride(operand, self._inner)
            yield "#pragma unroll"
            yield (
                f"for (int j = 0; j < {vector}; ++j) "
                f"{target}.v[j] = {pointer}[{base} + j * {stride}];"
            )

    def _element(self, at: int, packs: str, base: str, lane: str) -> str:
        """The line that declares a value of an element."""
        node = self._form.nodes[at]
        kind = register(node.dtype)
        if at in self._kept:
            return f"const {kind} v{at} = get(k{at}[i].v[j]);"
        if node.kind == "load":
            access = self._form.operands[node.args[0]]
            number = "0" if access.fixed or self._form.vector == 1 else "j"
            return f"const {kind} v{at} = get({packs.format(at)}.v[{number}]);"
        if node.kind == "index":
            operand = node.args[0]
            step = f" + j * {self._stride(operand, self._inner)}" if self._form.vector > 1 else ""
            return f"const {kind} v{at} = (i64)({base.format(operand)}{step});"
        return f"const {kind} v{at} = {self._computed(at, lane)};"

    def _pack(self, at: int) -> str:
        access, vector = self._form.operands[self._form.nodes[at].args[0]], self._form.vector
        width = 1 if access.fixed else vector
        return f"pack<{STORED[access.dtype]}, {width}>"

    def _store(self, output: int, base: str) -> Iterator[str]:
        """Lines that write what one thread has made."""
        access, vector = self._form.outputs[output], self._form.vector
        at = len(self._form.operands) + output
        pointer, stored = self._pointer(at, const=False), STORED[access.dtype]
        if access.vector and vector > 1:
            yield f"*(pack<{stored}, {vector}>*)({pointer} + ({base})) = o{output};"
        elif vector == 1:
            yield f"{pointer}[{base}] = o{output}.v[0];"
        else:
            stride = self._stride(at, self._inner)
            yield "#pragma unroll"
            yield (
                f"for (int j = 0; j < {vector}; ++j) {pointer}[{base} + j * {stride}] = "
                f"o{output}.v[j];"
            )

    def _outputs(self, outputs: list[int], packs: str, base: str, offset: str) -> Iterator[str]:
        """Lines that compute and write some outputs of one element each."""
        form = self._form
        for output in outputs:
            stored = STORED[form.outputs[output].dtype]
            yield f"pack<{stored}, {form.vector}> o{output};"
        values = self._needed([form.results[output] for output in outputs])

        def computed() -> Iterator[str]:
            yield "#pragma unroll"
            yield f"for (int j = 0; j < {form.vector}; ++j) {{"
            for at in values:
                yield self._element(at, packs, base, "j")
            for output in outputs:
                stored = STORED[form.outputs[output].dtype]
                yield f"o{output}.v[j] = put<{stored}>({self._ref(form.results[output], 'j')});"
            yield "}"

        self._quick = any(map(self._is_over, values))
        if self._quick:
            yield "bool sure = true;"
            yield from computed()
            self._quick = False
            yield "if (!sure) {"
            yield from computed()
            yield "}"
        else:
            yield from computed()
        for output in outputs:
            yield from self._store(output, offset.format(output))

    # --- kernels --------------------------------------------------------------------------

    def text(self) -> str:
        """Return the source of the kernel."""
        form = self._form
        index, unsigned = ("i64", "u64") if form.wide else ("int", "unsigned")
        self._add(
            "",
            f"typedef {index} I;",
            f"typedef {unsigned} U;",
            f"struct Arguments {{ u64 words[{max(1, self._words)}]; }};",
            f"__global__ void __launch_bounds__({form.threads}) {NAME}(const Arguments a) {{",
        )
        for at, node in enumerate(form.nodes):
            if node.kind == "scalar":
                where = f"a.words + {self._scalars + node.args[0]}"
                self._add(
                    f"const {register(node.dtype)} v{at} = "
                    f"get(number_at<{STORED[node.dtype]}>({where}));"
                )
        if form.layout == "each":
            self._each()
        else:
            self._reducing()
        self._add("}", "")
        return "\n".join(self._lines)

    def _each(self) -> None:
        form = self._form
        axes = [*range(form.kept)]
        values = self._needed(form.results)
        common = self._common(form.results)
        loads = self._loads([*values, *common])
        outputs = [*range(len(form.outputs))]
        first = f"(I)blockIdx.x * {form.threads * form.items} + (I)threadIdx.x"
        self._add(f"const I count = {self._number(0)};", f"const I first = {first};")
        self._add(*(f"{self._pack(at)} x{at}[{form.items}];" for at in loads))

        def steps(lines: Iterator[str]) -> None:
            self._add(
                "#pragma unroll",
                f"for (int i = 0; i < {form.items}; ++i) {{",
                f"const I q = first + i * {form.threads};",
                "if (q < count) {",
                *(self._decoded("q", axes, form.vector) if axes else ()),
                *lines,
                "}",
                "}",
            )

        def reads() -> Iterator[str]:
            for at in loads:
                operand = form.nodes[at].args[0]
                yield from self._load(at, f"x{at}[i]", self._offset(operand, axes))

        def writes() -> Iterator[str]:
            bases = {
                operand: self._offset(operand, axes)
                for operand in (
                    form.nodes[at].args[0]
                    for at in (*values, *common)
                    if form.nodes[at].kind == "index"
                )
            }
            for operand, base in bases.items():
                yield f"const I b{operand} = {base};"
            for at in common:  # once for all that a thread takes along the innermost axis
                node = form.nodes[at]
                if node.kind == "load":
                    value = f"get(x{at}[i].v[0])"
                elif node.kind == "index":
                    value = f"(i64)b{node.args[0]}"
                else:
                    value = self._computed(at, "0")
                yield f"{register(node.dtype)} v{at}[1];"
                yield f"v{at}[0] = {value};"
            for output in outputs:
                yield f"const I w{output} = {self._offset(len(form.operands) + output, axes)};"
            yield from self._outputs(outputs, "x{}[i]", "b{}", "w{}")

        if loads:
            steps(reads())
        steps(writes())

    def _reducing(self) -> None:
        form = self._form
        self._place()
        self._rows_loaded()
        self._row_values(0)
        last = max(self._stage, default=0)
        inner = [
            output for output, access in enumerate(form.outputs) if access.varies and not form.split
        ]
        passes = [
            [
                at
                for at, node in enumerate(form.nodes)
                if node.kind in ("reduce", "arg") and self._stage[at] == stage
            ]
            for stage in range(1, last + 1)
        ]
        wanted = [[arg for at in each for arg in form.nodes[at].args] for each in passes]
        wanted.append([form.results[output] for output in inner])
        for stage, reductions in enumerate(passes, 1):
            self._accumulate(reductions, self._kept_after(wanted[stage - 1 :]))
            if not form.split:
                self._row_values(stage)
        if form.split:
            self._parts()
            return
        if inner:
            self._each_of_row(inner)
        outer = [output for output in range(len(form.outputs)) if output not in inner]
        if outer:
            self._rows_stored(outer)

    def _place(self) -> None:
        """Which row, and which of its elements; what a part of a row is."""
        form = self._form
        kept = [*range(form.kept)]
        beside = form.threads // form.group
        if form.layout == "rows":
            self._add(
                f"const int lane = threadIdx.x % {form.group};",
                f"const I given = (I)blockIdx.x * {beside} + (I)threadIdx.x / {form.group};",
                f"const bool valid = given < {self._number(0)};",
                "const I row = valid ? given : 0;",
                *(self._decoded("row", kept, 1) if kept else ()),
            )
        else:
            inner = kept[-1]
            extent = self._extent(inner)
            self._add(
                f"const int lane = threadIdx.x / {beside};",
                f"const U tiles = ((U)({extent}) + {beside * form.vector - 1}) / "
                f"{beside * form.vector};",
                "const U outer = blockIdx.x / tiles;",
                f"const I given = ((I)(blockIdx.x - outer * tiles) * {beside} + "
                f"(I)threadIdx.x % {beside}) * {form.vector};",
                f"const bool valid = given < {extent};",
                f"const I c{inner} = valid ? given : 0;",
                f"const I row = (I)outer * {extent} + c{inner};",
                *(self._decoded("outer", kept[:-1], 1) if kept[:-1] else ()),
            )
        if form.split:
            self._add(
                f"const I begin = (I)blockIdx.y * {self._number(2)};",
                f"const I length = {self._number(1)};",
                f"const I end = length - begin < {self._number(2)} ? length : "
                f"begin + {self._number(2)};",
            )
        else:
            self._add(f"const I begin = 0, end = {self._number(1)};")
        wide = max([16, *(24 for node in form.nodes if node.kind == "arg")])
        slots = 32 if form.layout == "rows" else form.threads
        if form.layout == "columns" or form.group > 32:
            self._add(f"alignas(16) __shared__ unsigned char shared[{wide * slots}];")
        for operand, access in enumerate(form.operands):
            if access.varies:
                self._add(f"const I s{operand} = {self._offset(operand, kept)};")
        for output, access in enumerate(form.outputs):
            if access.varies and not form.split:
                at = len(form.operands) + output
                self._add(f"const I t{output} = {self._offset(at, kept)};")

    def _rows_loaded(self) -> None:
        """Read the values that all of a row share, and the elements that fit into registers."""
        form = self._form
        kept = [*range(form.kept)]
        for at, node in enumerate(form.nodes):
            if node.kind not in ("load", "index") or self._varies[at]:
                continue
            operand = node.args[0]
            step = f" + w * {self._stride(operand, kept[-1])}" if self._width > 1 else ""
            where = f"{self._offset(operand, kept)}{step}"
            value = f"get({self._pointer(operand)}[{where}])"
            if node.kind == "index":
                value = f"(i64)({where})"
            self._add(
                f"{register(node.dtype)} v{at}[{self._width}];",
                "#pragma unroll",
                f"for (int w = 0; w < {self._width}; ++w) v{at}[w] = {value};",
            )
        if form.items:
            loads = [at for at in self._loads(range(len(form.nodes))) if self._varies[at]]
            self._add(*(f"{self._pack(at)} x{at}[{form.items}];" for at in loads))
            self._items(loads, ())

    def _steps(self) -> tuple[list[str], list[str]]:
        """Return the lines around the code for each piece of a row."""
        form = self._form
        axes = [*range(form.kept, form.kept + form.reduced)]
        vector = form.vector if form.layout == "rows" else 1
        decoded = [*self._decoded("q", axes, vector)] if axes else []
        if form.items:
            head = [
                "#pragma unroll",
                f"for (int i = 0; i < {form.items}; ++i) {{",
                f"const I q = lane + i * {form.group};",
                "if (q < end) {",
            ]
            return [*head, *decoded], ["}", "}"]
        head = [
            "#pragma unroll 4",
            f"for (I q = begin + lane; q < end; q += {form.group}) {{",
        ]
        return [*head, *decoded], ["}"]

    def _items(self, loads: list[int], lines: Iterable[str]) -> None:
        """Write a loop over a row that reads, unless that is done, and computes."""
        form = self._form
        axes = [*range(form.kept, form.kept + form.reduced)]
        head, tail = self._steps()
        self._add(*head)
        for at in loads:
            operand = form.nodes[at].args[0]
            base = f"s{operand} + {self._offset(operand, axes)}"
            if form.items:
                self._add(*self._load(at, f"x{at}[i]", base))
            else:
                self._add(f"{self._pack(at)} x{at};", *self._load(at, f"x{at}", base))
        self._add(*lines, *tail)

    def _bases(self, values: Iterable[int]) -> Iterator[str]:
        form = self._form
        axes = [*range(form.kept, form.kept + form.reduced)]
        indices = {form.nodes[at].args[0] for at in values if form.nodes[at].kind == "index"}
        for operand in sorted(indices):
            yield f"const I b{operand} = s{operand} + {self._offset(operand, axes)};"

    def _kept_after(self, wanted: list[list[int]]) -> list[int]:
        """Return the values of a pass that later passes need, and that are worth keeping.

        Args:
            wanted: the values that this pass and the later ones want.
        """
        form = self._form
        if not form.items:
            return []
        made = {*self._needed(wanted[0])} - self._kept
        later = {at for each in wanted[1:] for at in self._needed(each)}
        beyond = later - made
        used = {arg for at in beyond for arg in form.nodes[at].args} | {
            at for each in wanted[1:] for at in each
        }
        kept = [at for at in sorted(made & used) if self._cost(at) >= LONG]
        before = {*self._kept}
        self._kept.update(kept)
        held = {at for each in wanted[1:] for at in self._needed(each)}
        self._kept.intersection_update(before)
        nodes = form.nodes
        held = {at for at in held if nodes[at].kind == "load" or at in (*kept, *before)}
        size = sum(DTYPES[nodes[at].dtype].itemsize for at in held) * form.vector * form.items
        most = _MOST_WORDS if form.threads <= 512 else _MOST_WORDS_OF_MANY
        return kept if size <= 4 * most else []

    def _cost(self, at: int) -> int:
        """Return the cost of a value of an element, computed from values in registers."""
        nodes = self._form.nodes
        return sum(
            1 if nodes[each].kind != "ufunc" or nodes[each].name in CHEAP else LONG
            for each in self._needed([at])
            if nodes[each].kind not in ("load", "index") and each not in self._kept
        )

    def _accumulate(self, reductions: list[int], kept: list[int]) -> None:
        """Write one pass over the row, and combine the results of its threads.

        Args:
            reductions: the reductions that it computes.
            kept: the values of each element that are kept for later passes.
        """
        form = self._form
        nodes = form.nodes
        width = self._width
        for at in reductions:
            kind = self._kind_of_sum(at)
            self._add(
                f"{kind} a{at}[{width}];",
                "#pragma unroll",
                f"for (int w = 0; w < {width}; ++w) "
                f"a{at}[w] = r_{nodes[at].name}::identity<{kind}>();",
            )
        values = self._needed(arg for at in reductions for arg in nodes[at].args)
        for at in kept:
            self._add(f"pack<{STORED[nodes[at].dtype]}, {form.vector}> k{at}[{form.items}];")
        packs = "x{}[i]" if form.items else "x{}"
        lane = "j" if width > 1 else "0"

        def lines() -> Iterator[str]:
            yield from self._bases(values)
            yield "#pragma unroll"
            yield f"for (int j = 0; j < {form.vector}; ++j) {{"
            for at in values:
                yield self._element(at, packs, "b{}", "j")
                if at in kept:
                    yield f"k{at}[i].v[j] = put<{STORED[nodes[at].dtype]}>(v{at});"
            for at in reductions:
                node = nodes[at]
                value = self._ref(node.args[0], "j")
                if node.kind == "arg":
                    number = f"(i64)q * {form.vector} + j" if form.layout == "rows" else "(i64)q"
                    if len(node.args) > 1:
                        number = self._ref(node.args[1], "j")
                    kind = self._kind_of_sum(at)
                    yield f"{kind} p{at};"
                    yield f"p{at}.v = {value};"
                    yield f"p{at}.at = {number};"
                    value = f"p{at}"
                yield f"a{at}[{lane}] = r_{node.name}::of(a{at}[{lane}], {value});"
            yield "}"

        self._items([] if form.items else self._loads(values), lines())
        self._kept.update(kept)
        beside = form.threads // form.group
        for at in reductions:
            kind, node = self._kind_of_sum(at), nodes[at]
            function = f"reduce_row<r_{node.name}, {form.group}>"
            if form.layout == "columns":
                function = f"reduce_column<r_{node.name}, {form.group}, {beside}>"
            shared = "(void*)0" if form.layout == "rows" and form.group <= 32 else "shared"
            member = ".at" if node.kind == "arg" and not form.split else ""
            result = kind if form.split else register(node.dtype)
            self._add(
                f"{result} v{at}[{width}];",
                "#pragma unroll",
                f"for (int w = 0; w < {width}; ++w) "
                f"v{at}[w] = {function}(a{at}[w], ({kind}*){shared}){member};",
            )

    def _kind_of_sum(self, at: int) -> str:
        node = self._form.nodes[at]
        if node.kind == "arg":
            return f"placed<{register(self._form.nodes[node.args[0]].dtype)}>"
        return register(node.dtype)

    def _row_values(self, stage: int) -> None:
        """Compute the values that depend on a row's reductions up to a stage."""
        for at, node in enumerate(self._form.nodes):
            made = node.kind in ("ufunc", "cast", "where") and not self._varies[at]
            if made and self._stage[at] == stage:
                self._add(
                    f"{register(node.dtype)} v{at}[{self._width}];",
                    "#pragma unroll",
                    f"for (int w = 0; w < {self._width}; ++w) "
                    f"v{at}[w] = {self._computed(at, 'w')};",
                )

    def _each_of_row(self, outputs: list[int]) -> None:
        form = self._form
        axes = [*range(form.kept, form.kept + form.reduced)]
        values = self._needed(form.results[output] for output in outputs)

        def lines() -> Iterator[str]:
            yield from self._bases(values)
            for output in outputs:
                at = len(form.operands) + output
                yield f"const I w{output} = t{output} + {self._offset(at, axes)};"
            body = self._outputs(outputs, "x{}[i]" if form.items else "x{}", "b{}", "w{}")
            yield "if (valid) {"
            yield from body
            yield "}"

        self._items([] if form.items else self._loads(values), lines())

    def _rows_stored(self, outputs: list[int]) -> None:
        form = self._form
        kept = [*range(form.kept)]
        self._add("if (valid && lane == 0) {")
        for output in outputs:
            at = len(form.operands) + output
            stored = STORED[form.outputs[output].dtype]
            step = f" + w * {self._stride(at, kept[-1])}" if self._width > 1 else ""
            value = self._ref(form.results[output], "w")
            self._add(
                "#pragma unroll",
                f"for (int w = 0; w < {self._width}; ++w) {self._pointer(at, const=False)}"
                f"[{self._offset(at, kept)}{step}] = put<{stored}>({value});",
            )
        self._add("}")

    def _parts(self) -> None:
        """Write the results of a part of each row, with the index for positions."""
        form = self._form
        self._add("if (valid && lane == 0) {")
        seen: set[int] = set()
        for output, result in enumerate(form.results):
            stored = STORED[form.outputs[output].dtype]
            at = len(form.operands) + output
            value = f"v{result}[w]"
            if form.nodes[result].kind == "arg":
                value += ".at" if result in seen else ".v"
                seen.add(result)
            self._add(
                "#pragma unroll",
                f"for (int w = 0; w < {self._width}; ++w) {self._pointer(at, const=False)}"
                f"[(i64)blockIdx.y * {self._number(0)} + row + w] = put<{stored}>({value});",
            )
        self._add("}")
