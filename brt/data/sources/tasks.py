"""seqio tasks for PG19; `SeqioText` registers them.

    pg19_tokens    ids of T5's SentencePiece model, at T5_MODEL
    pg19_bytes     the bytes, 0 to 255

Both give `targets` (ids without an end-of-document token), `targets_pretokenized` and `title`.
"""

T5_MODEL = "vocabularies/t5.spiece.model"


def register() -> None:
    import seqio
    import tensorflow as tf

    tasks = {
        "pg19_tokens": (seqio.SentencePieceVocabulary(T5_MODEL), seqio.preprocessors.tokenize),
        # The ids of seqio's own bytes begin at 3, after the special ids.
        "pg19_bytes": (seqio.PassThroughVocabulary(256), _bytes),
    }
    for name, (vocabulary, to_ids) in tasks.items():
        if name not in seqio.TaskRegistry.names():
            seqio.TaskRegistry.add(
                name,
                seqio.TfdsDataSource(tfds_name="pg19:0.1.1"),
                preprocessors=[_text_and_title, to_ids],
                output_features={
                    "targets": seqio.Feature(vocabulary, add_eos=False, dtype=tf.int32)
                },
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
