"""The server of bench_serving that is LitServe's. Its workers import the program that starts it."""

from __future__ import annotations

import sys

import litserve
from bench_serving import SIZE, WAIT, predict


class Api(litserve.LitAPI):  # type: ignore[misc, unused-ignore] # untyped
    """One number in, one out."""

    def setup(self, device: str) -> None:
        """Load nothing."""

    def decode_request(self, request):  # type: ignore[no-untyped-def] # FastAPI reads the types
        """Return the number that the client sent."""
        return float(request["input"])

    def batch(self, inputs: list[float]) -> list[float]:
        """Return the inputs unchanged."""
        return inputs

    def predict(self, x: list[float]) -> list[float]:
        """All at once."""
        answers: list[float] = predict(x)
        return answers

    def unbatch(self, output: list[float]) -> list[float]:
        """Return the outputs unchanged."""
        return output

    def encode_response(self, output: float) -> dict[str, float]:
        """Return the response for the client."""
        return {"output": output}


if __name__ == "__main__":
    api = Api(max_batch_size=SIZE, batch_timeout=WAIT)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=1)
    server.run(
        host="127.0.0.1", port=int(sys.argv[1]), log_level="error", generate_client_file=False
    )
