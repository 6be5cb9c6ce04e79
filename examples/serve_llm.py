"""A language model behind HTTP, whose streams survive faults of its device.

The model is tiny and has random weights, so that the program runs on any machine. Eight clients
stream text, the device faults in the middle, and each text is the same as without the fault.
"""

import json
import tempfile
import warnings
from pathlib import Path

import numpy as np
import trio
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from atomr_accel import CpuFallbackWarning, open_device
from atomr_accel.llm import LanguageModelServer, open_language_model, serve_language_model
from atomr_accel.testing import poison

HIDDEN, LAYERS, TOKENS = 32, 2, 256


def make_folder(folder: Path) -> None:
    """Write a Llama with random weights and a tokenizer of bytes, in Hugging Face's form."""
    folder.mkdir()
    config = {
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "max_position_embeddings": 256,
        "num_attention_heads": 4,
        "num_hidden_layers": LAYERS,
        "tie_word_embeddings": True,
        "vocab_size": TOKENS,
    }
    (folder / "config.json").write_text(json.dumps(config))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens": (TOKENS, HIDDEN),
        "model.norm": (HIDDEN,),
    }
    for layer in (f"model.layers.{at}" for at in range(LAYERS)):
        shapes |= {f"{layer}.{at}_layernorm": (HIDDEN,) for at in ("input", "post_attention")}
        shapes |= {f"{layer}.self_attn.{name}_proj": (HIDDEN, HIDDEN) for name in "qkvo"}
        shapes |= {f"{layer}.mlp.{name}_proj": (2 * HIDDEN, HIDDEN) for name in ("gate", "up")}
        shapes[f"{layer}.mlp.down_proj"] = (HIDDEN, 2 * HIDDEN)
    rng = np.random.default_rng(7)
    tensors = {
        f"{name}.weight": rng.standard_normal(shape, dtype=np.float32) / HIDDEN**0.5
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors")


async def stream(server: LanguageModelServer, seed: int) -> str:
    """Ask for a stream, and return its text."""
    body = json.dumps(
        {
            "model": "tiny",
            "prompt": f"Client {seed} says",
            "max_tokens": 24,
            "seed": seed,
            "stream": True,
        }
    )
    head = f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\n"
    head += "content-type: application/json\r\nconnection: close\r\n"
    head += f"content-length: {len(body)}\r\n\r\n"
    async with await trio.open_tcp_stream("127.0.0.1", server.port) as connection:
        await connection.send_all(head.encode() + body.encode())
        answer = b"".join([part async for part in connection]).decode()
    assert answer.startswith("HTTP/1.1 200 ")
    assert "data: [DONE]" in answer
    lines = [line for line in answer.splitlines() if line.startswith("data: {")]
    return "".join(json.loads(line[6:])["choices"][0]["text"] for line in lines)


async def streams(server: LanguageModelServer) -> list[str]:
    """Return the texts of eight streams at once."""
    texts: dict[int, str] = {}

    async def one(seed: int) -> None:
        texts[seed] = await stream(server, seed)

    async with trio.open_nursery() as nursery:
        for seed in range(8):
            nursery.start_soon(one, seed)
    return [texts[seed] for seed in range(8)]


async def main() -> None:
    """Serve, ask, fault, and compare."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "tiny")
        make_folder(folder)
        async with (
            open_device(0) as device,
            open_language_model(device, folder, page_size=16, pages=256) as model,
            serve_language_model(model) as server,
        ):
            expected = await streams(server)
            begun = model.statistics().tokens
            texts: list[str] = []

            async def again() -> None:
                texts.extend(await streams(server))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(again)
                while model.statistics().tokens < begun + 8 * 8:
                    await trio.lowlevel.checkpoint()
                fault = await poison(device)  # in the middle of all streams
            assert texts == expected
            assert server.statistics().failed == 0
            print(f"fault: {fault.status_name}; generation {device.generation}")
            print(f"{len(texts)} streams went on, each with the text that it would have had")


if __name__ == "__main__":
    warnings.simplefilter("ignore", CpuFallbackWarning)
    trio.run(main)
