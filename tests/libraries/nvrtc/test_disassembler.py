"""Machine code as text, where the toolkit's programs are."""

from __future__ import annotations

import pytest

from atomr_accel import LibraryError, LibraryMissing, Unsupported
from atomr_accel.libraries.nvrtc.host import _disassembler, _program
from atomr_accel.libraries.nvrtc.host._cuda import CudaCompiler
from atomr_accel.libraries.nvrtc.wire.messages import Compile, Disassemble
from atomr_accel.wire.toolkit import find_tool
from tests.harness import opened

SOURCE = 'extern "C" __global__ void k(int* x) { x[0] = 3; }'


@pytest.mark.headers
def test_machine_code() -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    if find_tool("cuobjdump") is None or find_tool("nvdisasm") is None:
        pytest.skip("cuobjdump and nvdisasm are not installed")
    image = _program.compile_module(Compile(SOURCE, ("k",)), (9, 0)).image
    text = CudaCompiler._disassemble(Disassemble(image))
    assert "Function : k" in text
    assert "EXIT" in text
    with pytest.raises(LibraryError, match="cuobjdump -sass ended with") as caught:
        _disassembler.disassemble(b"no image")
    assert caught.value.library == "cuobjdump"


def test_without_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_disassembler, "find_tool", lambda _name: None)
    with pytest.raises(LibraryMissing, match="pip install nvidia-cuda-cuobjdump"):
        _disassembler.disassemble(b"")


async def test_functions_have_none() -> None:
    async with opened(backend="cpu") as device:
        module = await device.nvrtc.compile_module(SOURCE, ["k"], cpu=len)
        with pytest.raises(Unsupported, match="no machine code"):
            await module.sass()
