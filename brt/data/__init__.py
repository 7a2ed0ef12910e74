"""What is read: sources, vocabularies, token stores and the streams of segments over them."""
