"""Two tenants share a model by weight, however much one of them asks for."""

from dataclasses import dataclass

import trio

from atomr_accel.patterns import Budget, open_batcher, open_fair_share


@dataclass(frozen=True)
class Request:
    """A user's prompt."""

    tenant: str
    prompt: str


async def generate(requests: list[Request]) -> list[str]:
    """Stands in for a model."""
    await trio.sleep(0.005)
    return [request.prompt.upper() for request in requests]


async def main() -> None:
    """One tenant asks for a lot at once, the other for little and later."""
    order: list[str] = []

    async with (
        open_batcher(generate, max_size=4) as model,
        open_fair_share(
            model,
            capacity=4,
            tenant=lambda request: request.tenant,
            cost=lambda request: len(request.prompt),
            weights={"paid": 3},
            budgets={"free": Budget(rate=2000, burst=400)},  # of characters, and by the second
        ) as server,
        trio.open_nursery() as nursery,
    ):

        async def client(tenant: str, number: int) -> None:
            prompt = f"prompt {number:03}"
            assert await server(Request(tenant, prompt)) == prompt.upper()
            order.append(tenant.partition("/")[0])

        for number in range(60):
            nursery.start_soon(client, "free/bob", number)
        await trio.sleep(0.02)
        for number in range(24):
            nursery.start_soon(client, "paid/ann", number)

    assert len(order) == 84
    first, last = order.index("paid"), len(order) - 1 - order[::-1].index("paid")
    others = order[first:last].count("free")
    assert others <= 24  # they waited behind all of "free", had it been one queue
    print(f"24 requests of 'paid' were answered while 'free' had {others} of its 60")


if __name__ == "__main__":
    trio.run(main)
