"""The work queue for asyncio."""

import asyncio

from lapse_client.aio import Publisher, QueueSubscriber

JOBS = 20


async def main() -> None:
    async with Publisher() as publisher:
        jobs = [publisher.publish("jobs", f"job {number}", key=str(number), ttl_ms=60_000) for number in range(JOBS)]
        print("published up to", max(await asyncio.gather(*jobs)))
    async with QueueSubscriber("jobs", max_backlog=16) as subscriber:
        async for delivery in subscriber.messages(timeout=5):
            async with delivery:
                await asyncio.sleep(0.01)
                print((delivery.value or b"").decode(), "from", delivery.bookmark)


if __name__ == "__main__":
    asyncio.run(main())
