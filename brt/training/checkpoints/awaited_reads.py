"""Makes Orbax wait for all reads of a restore, one of which has failed."""

import asyncio
from typing import Any


def await_all_reads(handler: Any) -> None:
    """Makes an Orbax handler of arrays end its reads before it raises the error of one of them.

    Orbax gathers the reads and closes their event loop at the first error. The others would then
    print tracebacks whenever they end, or are collected as garbage.
    """
    deserialize = type(handler).deserialize

    async def deserialize_all(*args, **options):
        before = asyncio.all_tasks()
        try:
            return await deserialize(handler, *args, **options)
        except BaseException:
            while reads := asyncio.all_tasks() - before:
                await asyncio.gather(*reads, return_exceptions=True)
            raise

    handler.deserialize = deserialize_all
