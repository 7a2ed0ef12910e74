"""Small SentencePiece models."""

import io

from sentencepiece import SentencePieceTrainer

from brt.data.vocabularies.base import SentencePieceVocabulary

LINES = ["the eaten heat of tea", "ten neat hats then a hen"]


def train_pieces(path, size=40, lines=LINES, **options):
    """The vocabulary of at most so many pieces of some lines, in a file."""
    model = io.BytesIO()
    SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 20),
        model_writer=model,
        vocab_size=size,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **options,
    )
    path.write_bytes(model.getvalue())
    return SentencePieceVocabulary(str(path))
