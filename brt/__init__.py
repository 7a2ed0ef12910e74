"""brt: language models that read long documents segment by segment."""

__version__ = "0.1.0"
