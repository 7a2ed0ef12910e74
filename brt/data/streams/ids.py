"""Refuses ids outside the vocabulary: detects a damaged store before the loss is NaN."""

import numpy as np

from brt.data.mixture import MixedStore
from brt.data.stores.token_store import TokenStore
from brt.data.streams.batch import Batch
from brt.data.streams.contiguous import document_positions
from brt.token_ids import BEGIN, PADDING

PIECE = 2**20


def check_ids(
    batch: Batch, store: TokenStore | MixedStore, targets_are_tokens: bool = True
) -> None:
    """Refuses a batch with an id outside the vocabulary of its store.

    Checks the targets (every input but the first of a segment is one), or all inputs if
    `targets_are_tokens` is false.
    """
    size = store.manifest["vocabulary"]["size"]
    if targets_are_tokens:
        firsts_KB = batch.inputs_KBT[..., 0]
        read = [batch.targets_KBT, firsts_KB[firsts_KB != BEGIN]]
    else:
        read = [batch.inputs_KBT[batch.inputs_KBT != PADDING]]
    # As unsigned integers, negative ids are too large.
    highest = max(x.view(np.uint32).max(initial=0) for x in read)
    if highest >= size:
        check_store(store)
        raise ValueError(
            f"A batch of {store.folder} has token id {highest}, and its vocabulary has {size} ids: "
            "what reads the store is at fault, or the disk. Run the same command again."
        )


def check_store(store: TokenStore | MixedStore, small_alone: bool = False) -> None:
    """As `check_ids`, for a whole store; `small_alone` skips stores that are not read at once."""
    for part in store.stores if isinstance(store, MixedStore) else [store]:
        if small_alone and not part.is_small:
            continue
        vocabulary = part.manifest["vocabulary"]
        for start in range(0, part.num_tokens, PIECE):
            tokens = part.all_tokens[start : start + PIECE]
            if tokens.max() >= vocabulary["size"]:
                number = int(np.argmax(tokens >= vocabulary["size"]))
                document, offset = document_positions(part, np.asarray(start + number))
                raise ValueError(
                    f"{part.folder} is damaged: token {offset:,} of document {document:,} has id "
                    f"{tokens[number]:,}, and the vocabulary of the store, {vocabulary['name']}, "
                    f"has {vocabulary['size']:,} ids. Delete the folder and prepare it again, and "
                    "check the disk."
                )
