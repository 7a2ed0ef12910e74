"""seqio tasks for PG19; `SeqioText` registers them.

    pg19_tokens    ids of T5's SentencePiece model, at T5_MODEL
    pg19_bytes     the bytes, 0 to 255

Both give `targets` (ids without an end-of-document token), `targets_pretokenized` and `title`.
"""

from absl import logging

T5_MODEL = "vocabularies/t5.spiece.model"
PG19 = "pg19:0.1.1"


def register() -> None:
    """Adds both tasks to seqio's registry, unless it has them."""
    import seqio

    for name in ("pg19_tokens", "pg19_bytes"):
        if name in seqio.TaskRegistry.names():
            logging.info("seqio task %s is registered already", name)
        elif name == "pg19_tokens":
            register_tokens(name, T5_MODEL)
        else:
            _register_bytes(name)


def register_tokens(name: str, model_file: str, tfds_name: str = PG19) -> None:
    """Adds a task of PG19's books as ids of the SentencePiece model at `model_file`."""
    import seqio

    vocabulary = seqio.SentencePieceVocabulary(model_file)
    _add(name, tfds_name, vocabulary, [_text_and_title, seqio.preprocessors.tokenize])


def _register_bytes(name):
    import seqio

    # The ids of seqio's bytes begin at 3, after the special ids.
    _add(name, PG19, seqio.PassThroughVocabulary(256), [_text_and_title, _bytes])


def _add(name, tfds_name, vocabulary, preprocessors):
    import seqio
    import tensorflow as tf

    targets = seqio.Feature(vocabulary, add_eos=False, dtype=tf.int32)
    seqio.TaskRegistry.add(
        name,
        seqio.TfdsDataSource(tfds_name=tfds_name),
        preprocessors=preprocessors,
        output_features={"targets": targets},
    )


def _text_and_title(books):
    return books.map(lambda book: {"targets": book["book_text"], "title": book["book_title"]})


def _bytes(books):
    import tensorflow as tf

    def ids(book):
        data = tf.io.decode_raw(book["targets"], tf.uint8)
        return {
            **book,
            "targets": tf.cast(data, tf.int32),
            "targets_pretokenized": book["targets"],
        }

    return books.map(ids)
