"""Tokenizers of folders of the Hugging Face Hub, built from their files.

    tokenizer.json                                  whatever it says, by the `tokenizers` library
    vocab.json, merges.txt                          byte-level BPE of GPT-2 and RoBERTa
    vocab.txt                                       WordPiece of BERT
    spiece.model, spm.model, tokenizer.model        SentencePiece of T5, DeBERTa v2 and v3, Llama

The first that is there counts.
"""

from brt.data.vocabularies.library_tokenizer import (
    BPE,
    WORDPIECE,
    of_merges,
    of_tokenizer_file,
    of_word_pieces,
)
from brt.data.vocabularies.pieces_tokenizer import PIECES, PiecesTokenizer
from brt.data.vocabularies.tokenizer_contract import TOKENIZER, FolderTokenizer
from brt.data.vocabularies.tokenizer_settings import BINDING, TokenizerSettings


def folder_tokenizer(folder: str) -> FolderTokenizer:
    """Builds the tokenizer of a folder.

    Raises:
        FileNotFoundError, ValueError, ImportError: each one sentence, naming file and key.
    """
    settings = TokenizerSettings(folder)
    if settings.has(TOKENIZER):
        return of_tokenizer_file(settings)
    if all(map(settings.has, BPE)):
        return of_merges(settings)
    if settings.has(WORDPIECE):
        return of_word_pieces(settings)
    for name in PIECES:
        if settings.has(name):
            return PiecesTokenizer(settings, name)
    known = ", ".join((TOKENIZER, " with ".join(BPE), WORDPIECE, *PIECES))
    raise FileNotFoundError(
        f"{folder} has no tokenizer: it should hold {known}; copy them from where the weights "
        f"are, or bind {BINDING}."
    )
