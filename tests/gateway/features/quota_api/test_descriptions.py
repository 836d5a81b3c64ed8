"""The queue of long descriptions: one at a time, in slices."""

import asyncio

from gateway.features.quota_api.descriptions import DescribeQueue


async def run_until(event, queue):
    """Run the queue's task until the event, and then cancel the task."""
    task = asyncio.create_task(queue.run())
    async with asyncio.timeout(20):
        await event.wait()
    task.cancel()
    await asyncio.wait([task])


async def test_event_loop_has_a_turn_within_a_description():
    queue, other_work, done = DescribeQueue(), asyncio.Event(), asyncio.Event()

    def steps():
        asyncio.get_running_loop().call_soon(other_work.set)
        while not other_work.is_set():
            yield
        done.set()

    queue.add(steps())
    await run_until(done, queue)


async def test_descriptions_are_made_one_after_the_other():
    queue, seen, done = DescribeQueue(), [], asyncio.Event()

    def steps(name, end):
        for _ in range(500):
            seen.append(name)
            yield
        end()

    queue.add(steps("a", lambda: None))
    queue.add(steps("b", done.set))
    await run_until(done, queue)
    assert seen == ["a"] * 500 + ["b"] * 500


async def test_description_goes_on_after_a_restart_of_its_task():
    queue, begun, done = DescribeQueue(), asyncio.Event(), asyncio.Event()
    restarted = False

    def steps():
        while not restarted:
            begun.set()
            yield
        done.set()

    queue.add(steps())
    await run_until(begun, queue)
    restarted = True
    await run_until(done, queue)
