"""Refuses ids beyond the vocabulary: a damaged store is noticed before it is a loss of NaN."""

import numpy as np

from brt.data.mixture import MixedStore
from brt.data.stores.token_store import TokenStore
from brt.data.streams.batch import Batch
from brt.data.streams.contiguous import place_in_store
from brt.token_ids import BEGIN, PADDING

PIECE = 2**20
"""Tokens of a store that are compared at once."""


def check_ids(
    batch: Batch, store: TokenStore | MixedStore, targets_are_tokens: bool = True
) -> None:
    """Refuses a batch with an id that the store's vocabulary does not have.

    Costs one pass over the targets: every input but the first of a segment is a target too.

    Args:
        batch: on the host, as the streams give it.
        store: it is from.
        targets_are_tokens: of the stream; without it the inputs are looked at, all of them.

    Raises:
        ValueError: naming the store, the document and the token.
    """
    size = store.manifest["vocabulary"]["size"]
    if targets_are_tokens:
        firsts_KB = batch.inputs_KBT[..., 0]
        read = [batch.targets_KBT, firsts_KB[firsts_KB != BEGIN]]
    else:
        read = [batch.inputs_KBT[batch.inputs_KBT != PADDING]]
    # As unsigned, what is too large for int32 is large, and not negative.
    highest = max(x.view(np.uint32).max(initial=0) for x in read)
    if highest >= size:
        check_store(store)
        raise ValueError(
            f"A batch of {store.folder} has token id {highest}, and its vocabulary has {size} ids: "
            "what reads the store is at fault, or the disk. Run the same command again."
        )


def check_store(store: TokenStore | MixedStore) -> None:
    """Refuses a store of which any id is beyond its vocabulary; reads all of it.

    Args:
        store: what to read; the stores of a mixture, one by one.

    Raises:
        ValueError: naming the store, the document and the token.
    """
    for part in store.stores if isinstance(store, MixedStore) else [store]:
        vocabulary = part.manifest["vocabulary"]
        for start in range(0, part.num_tokens, PIECE):
            tokens = part.all_tokens[start : start + PIECE]
            if tokens.max() >= vocabulary["size"]:
                number = start + int(np.argmax(tokens >= vocabulary["size"]))
                raise _beyond(part, number, vocabulary)


def _beyond(store: TokenStore, number: int, vocabulary: dict) -> ValueError:
    document, offset = place_in_store(store, np.asarray(number))
    found = store.all_tokens[number : number + 1][0]
    return ValueError(
        f"{store.folder} is damaged: token {offset:,} of document {document:,} has id "
        f"{found:,}, and the vocabulary of the store, {vocabulary['name']}, has "
        f"{vocabulary['size']:,} ids. Delete the folder and prepare it again, and check the disk."
    )
