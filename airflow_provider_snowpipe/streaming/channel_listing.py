"""One listing of a pipe's channels for everyone in an event loop who wants to know of new ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from weakref import WeakKeyDictionary, WeakValueDictionary

LIST_SECONDS = 60.0
"""Longest time for one listing, with signing in for it."""

ListNames = Callable[[], Awaitable[Sequence[str]]]


class ChannelListing:
    """The names of a pipe's channels, asked for no more often than somebody wants them anew.

    :param list_names: lists them
    """

    def __init__(self, list_names: ListNames) -> None:
        self._list_names = list_names
        self._lock = asyncio.Lock()
        self._names: tuple[str, ...] = ()
        self._listed_at = float("-inf")

    async def names(self, oldest: float) -> tuple[str, ...]:
        """The channels' names.

        :param oldest: seconds; a listing that is older is made anew
        :raises TimeoutError: if it takes too long
        """
        async with self._lock:
            now = asyncio.get_running_loop().time
            if now() - self._listed_at > oldest:
                async with asyncio.timeout(LIST_SECONDS):
                    self._names = tuple(await self._list_names())
                self._listed_at = now()
            return self._names


_listings: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[Hashable, ChannelListing]] = (
    WeakKeyDictionary()
)


def shared_listing(key: Hashable, list_names: ListNames) -> ChannelListing:
    """Find the running event loop's listing of a pipe, or make it; it lives as long as somebody holds it.

    :param key: what connection and pipe are told apart by
    :param list_names: lists the channels' names
    """
    listings = _listings.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    listing = listings.get(key)
    if listing is None:
        listing = listings[key] = ChannelListing(list_names)
    return listing
