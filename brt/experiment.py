"""An experiment: what a gin configuration describes, built as far as shapes.

    experiment = Experiment.from_gin()                  # after brt.config.parse(...)
    model = experiment.bind(experiment.init_params())   # or the params of load_run(folder)

Building reads every binding any mode of a run may use, so what is left unread is a mistake.
"""

import functools
import inspect
import os
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import gin
import jax
import jax.numpy as jnp
import numpy as np
from absl import logging
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from brt import config
from brt.corpus_checks import check_documents, check_files, check_folder, check_size
from brt.data.mixture import MixedStore
from brt.data.stores.token_store import TokenStore
from brt.data.stores.verification import verify_once
from brt.data.streams.batch import DTYPES, Batch, document_segments
from brt.data.streams.labelled import LabelledDocuments
from brt.evaluation.evaluator import check_evaluation
from brt.evaluation.settings import Evaluation
from brt.models.caches import check_caches
from brt.models.counts import count_parameters
from brt.models.model import Model, Reader
from brt.storage.paths import absolute, as_path
from brt.training.checkpoints.parameters import check_step, load_params, merged
from brt.training.settings import Trainer
from brt.training.sharding import AnyMesh, check_divisible, shardings
from brt.training.train_step import TrainState, make_loss, make_train_step

UNLIKE_ANY = 7919
"""A number of rows that no other axis of a cache has."""


class Experiment:
    """The model, the optimizer and the settings a configuration describes.

    Attributes:
        trainer: the `Trainer` settings, with the corpus.
        evaluation: the `Evaluation` settings, the trainer's or the default ones.
        model: the model with shapes instead of arrays.
        abstract_params: its parameters as a nested dictionary of shapes.
        bindings: every binding read, as text.
    """

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.evaluation: Evaluation = trainer.evaluation or Evaluation()
        self.bindings: dict[str, str] = {}
        # One key for all parameters: their shapes do not depend on it, and folding costs most.
        key = jax.random.key(0)
        rngs = types.SimpleNamespace(params=lambda: key)
        self.model = _built(trainer.model, rngs, "Trainer").for_segments(trainer.segment_length)
        _check_reader(self.model, trainer)
        self._graph, state = nnx.split(self.model, nnx.Param)
        self.abstract_params = nnx.to_pure_dict(state)
        self._evaluated = self.model
        if evaluated := self.evaluation.model:
            self._evaluated = _built(evaluated, rngs, "Evaluation")
            self._check_evaluated()
        self.schedule = functools.partial(trainer.schedule, total_steps=trainer.steps)
        self.optimizer = trainer.optimizer(self.schedule)
        if trainer.plateau:
            self.optimizer = trainer.plateau.slow(self.optimizer, self.schedule)
        if trainer.average:
            self.optimizer = trainer.average.averaging(self.optimizer)
        self.train_step = make_train_step(
            self.bind,
            self.optimizer,
            self.learning_rate,
            seed=trainer.seed,
            dropout=self.model.dropout > 0,
            skip_nonfinite=trainer.skip_nonfinite,
            **trainer.loss_settings,
        )

    @classmethod
    def from_gin(cls) -> Self:
        """Builds what gin is bound to, and refuses bindings that nothing reads.

        Raises:
            brt.config.ConfigError: a REQUIRED value is missing, or a binding is not read.
            ValueError: values that contradict one another, named.
        """
        try:
            experiment = cls(trainer := Trainer())
            check_caches(experiment.abstract_caches(UNLIKE_ANY), UNLIKE_ANY)
            state, batch = experiment.abstract_state(), experiment.abstract_batch()
            loss = make_loss(experiment.bind, **trainer.loss_settings)
            jax.eval_shape(loss, state.params, state.caches, batch, None)
            jax.eval_shape(experiment.schedule, state.step)
            check_evaluation(experiment)
        except (RuntimeError, TypeError) as error:
            if explained := config.unbuildable(error):
                raise explained from error
            raise
        config.check_all_read()
        experiment.bindings = config.read_bindings()
        return experiment

    # From parameters to values.

    def learning_rate(self, state: TrainState) -> jax.Array:
        """Returns the learning rate of the next step."""
        rate = self.schedule(state.step)
        plateau = self.trainer.plateau
        return plateau.rate(rate, state.optimizer) if plateau else rate

    def bind(self, params: Any) -> Model:
        """Returns the model with these parameters, a nested dictionary of arrays."""
        return _merged(self._graph, params)

    def evaluated_model(self, segment_length: int | None = None) -> Model:
        """Returns the model as it is evaluated, abstract, for segments of that length.

        segment_length: in tokens; None takes the evaluation's.
        """
        length = segment_length or self.evaluation.segment_length
        return self._evaluated.for_segments(length or self.trainer.segment_length)

    def bind_evaluated(self, params: Any, segment_length: int | None = None) -> Model:
        """`evaluated_model` with these parameters."""
        return _merged(nnx.graphdef(self.evaluated_model(segment_length)), params)

    def _check_evaluated(self):
        shapes = nnx.to_pure_dict(nnx.state(self._evaluated, nnx.Param))
        trees = self.abstract_params, shapes
        trained, evaluated = ({path: x.shape for path, x in _leaves(tree)} for tree in trees)
        for path in trained.keys() | evaluated.keys():
            if trained.get(path) != evaluated.get(path):
                name = jax.tree_util.keystr(path, simple=True, separator=".")
                raise ValueError(
                    f"Evaluation.model has other parameters than Trainer.model ({name}): in its "
                    "scope name the same model, and bind only what leaves the parameters as they "
                    "are, such as the length of a memory."
                )

    def init_params(self, seed: int | None = None) -> Any:
        """Fresh parameters; `seed` defaults to the trainer's."""
        seed = self.trainer.seed if seed is None else seed
        return nnx.to_pure_dict(nnx.state(self.trainer.model(nnx.Rngs(seed)), nnx.Param))

    def init_state(self, params: Any = None, given: Any = None) -> TrainState:
        """Returns the train state of step 0.

        Args:
            params: to begin with; None: fresh ones.
            given: of these, the ones that the model brings; see `Model.given_parameters`.
        """
        params = self.init_params() if params is None else params
        params = merged(params, given) if given else params
        caches = self.bind(params).init_caches(self.trainer.rows)
        return TrainState(jnp.int32(0), params, self.optimizer.init(params), caches)

    def abstract_caches(self, rows: int) -> tuple:
        """Shapes of the empty caches of `rows` documents."""
        return jax.eval_shape(
            lambda params: self.bind(params).init_caches(rows), self.abstract_params
        )

    @functools.cached_property
    def _abstract_state(self):
        # Traced once: with many layers it is a good part of a start whose step is compiled already.
        return jax.eval_shape(self.init_state, self.abstract_params)

    def abstract_state(self, mesh: jax.sharding.Mesh | None = None) -> TrainState:
        """Shapes of the train state, with shardings if there is a mesh."""
        state = self._abstract_state
        if mesh is None:
            return state
        return jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
            state,
            shardings(state, mesh),
        )

    def jit_init(self, mesh: jax.sharding.Mesh) -> Callable[..., TrainState]:
        """`init_state` compiled to make each array where it belongs.

        Called without parameters it begins with those that the model brings.
        """
        init = jax.jit(self.init_state, out_shardings=shardings(self.abstract_state(), mesh))

        def begin(params: Any = None) -> TrainState:
            return init(params, None if params is not None else self.model.given_parameters())

        return begin

    def jit_step(self, mesh: jax.sharding.Mesh) -> jax.stages.Wrapped:
        """`train_step` compiled: the state comes back where it was, and its memory is reused."""
        held = shardings(self.abstract_state(), mesh)
        everywhere = NamedSharding(mesh, PartitionSpec())
        return jax.jit(self.train_step, donate_argnums=0, out_shardings=(held, everywhere))

    def abstract_batch(self) -> Batch:
        """Shapes of a batch."""
        K = self.trainer.reread_segments + self.trainer.segments_per_step
        B = self.trainer.rows
        T = self.trainer.segment_length
        shapes = (K, B, T), (K, B, T), (K, B, T), (K, B)
        return Batch._make(map(jax.ShapeDtypeStruct, shapes, DTYPES))

    def segments(self, text: str) -> Iterator[Batch]:
        """Returns a text as the segments of one row, the last one padded.

        Yields:
            inputs_BT, targets_BT, weights_BT (1 where there is a token) and starts_B, B = 1.
        """
        tokens = self.trainer.corpus.vocabulary.encode(text.encode(), "text")
        return document_segments(tokens, self.trainer.segment_length)

    # Checks that need more than gin.

    def warn_of_warmup(self) -> None:
        """Warns of a learning rate that still rises when the run ends; for experiments of gin."""
        for name in self.bindings:
            if not name.endswith(".warmup_steps"):
                continue
            schedule = name.removesuffix(".warmup_steps")
            warmup_steps = gin.get_bindings(schedule).get("warmup_steps")  # no macro: its value
            if (warmup_steps or 0) >= self.trainer.steps:
                logging.warning(
                    "The learning rate still rises when the run ends, as %s = %s is not below "
                    "Trainer.steps = %s; it reaches %.3g. Lower %s, or raise Trainer.steps.",
                    name,
                    f"{warmup_steps:,}",
                    f"{self.trainer.steps:,}",
                    self.schedule(self.trainer.steps),
                    name,
                )

    def check_mesh(self, mesh: AnyMesh) -> None:
        """Refuses a mesh the model or the batch cannot be divided over."""
        check_divisible(mesh, self.trainer.rows, self.model.divided_sizes())

    def check_vocabulary(self) -> None:
        """Refuses a vocabulary that is not the model's, before stores are made; see `check_size`.

        Raises:
            ValueError: it has more ids than the model, or is not that of the pretrained folder.
            OSError, MissingExtra: it cannot be read.
        """
        vocabulary = self.trainer.corpus.vocabulary
        check_folder(self.model, self.trainer.corpus)
        check_size(self.model, vocabulary.size, f"The vocabulary {vocabulary.name}")

    def check_documents(self, splits: Iterable[str]) -> None:
        """Refuses missing files and fewer documents than rows, before stores are made.

        Documents are counted where this is easily done.

        Args:
            splits: to be prepared, if they are not yet.

        Raises:
            ValueError: there are fewer.
            OSError: the source cannot be read.
        """
        trainer = self.trainer
        check_files(trainer.corpus, splits)
        if trainer.stream == "documents":
            tokens = trainer.segments_per_step * trainer.segment_length
            check_documents(trainer.corpus, trainer.rows, tokens)

    def open_store(self, split: str) -> TokenStore | MixedStore:
        """Returns the token store of a split, whose vocabulary must fit the model's table.

        Raises:
            ValueError: it does not, or a file of the store is not what was written; see
                `brt.data.stores.verification`.
        """
        store = self.trainer.corpus.open(split)
        verify_once(store)
        size = store.manifest["vocabulary"]["size"]
        check_size(self.model, size, f"The vocabulary of {store.folder}")
        _check_classes(self.model, store)
        return store

    # Descriptions.

    def describe(self, mesh: jax.sharding.Mesh) -> str:
        """Parameters, operations, bytes per device and tokens per step, as aligned lines."""
        counts = count_parameters(self.model)
        state = self.abstract_state(mesh)
        flops = self.model.flops_per_token()
        rows = [
            ("parameters, embedding", f"{_millions(counts.embedding)}"),
            ("parameters, layers", f"{_millions(counts.layers)}"),
            ("parameters, cells and memory", f"{_millions(counts.recurrence)}"),
            ("parameters, non-embedding", f"{_millions(counts.non_embedding)}"),
            ("parameters, all", f"{_millions(sum(counts))}"),
            ("FLOPs per token, forward", f"{flops / 1e6:,.1f} M"),
            ("FLOPs per token, training", f"{3 * flops / 1e6:,.1f} M"),
            ("bytes per device, parameters", _bytes_per_device(state.params)),
            ("bytes per device, optimizer", _bytes_per_device(state.optimizer)),
            ("bytes per device, caches", _bytes_per_device(state.caches)),
            ("tokens per step", f"{self.trainer.tokens_per_step:,} ({self.trainer.rows} rows)"),
            ("devices, data x model", f"{mesh.shape['data']} x {mesh.shape['model']}"),
        ]
        return "\n".join(f"{name:<30} {value:>24}" for name, value in rows)


class Configuration(NamedTuple):
    """Gin files and bindings that an experiment is built of, as often as asked.

    files, search_paths: as `brt.config.parse` takes them.
    bindings: gin lines, read after the files.
    allow_imports: modules outside brt that the files may import.
    """

    files: Sequence[str] = ()
    bindings: Sequence[str] = ()
    search_paths: Sequence[str] = ()
    allow_imports: Sequence[str] = ()

    def experiment(self, further: Sequence[str] = ()) -> Experiment:
        """Returns the experiment, with further bindings after these; gin is bound anew.

        Raises:
            As `brt.config.parse` and `Experiment.from_gin`.
        """
        bindings = [*self.bindings, *further]
        config.parse(self.files, bindings, self.search_paths, self.allow_imports)
        return Experiment.from_gin()


def _built(model, rngs, who) -> Model:
    """Returns a model that a binding names, with shapes instead of arrays."""

    refusal = ValueError(
        f"{who}.model must name a model, like @BlockRecurrentTransformer, no brackets."
    )
    if not callable(model) or (inspect.isclass(model) and not issubclass(model, Model)):
        raise refusal
    if inspect.isfunction(model) and "rngs" not in inspect.signature(model).parameters:
        raise refusal

    def build():
        built = model(rngs)
        if not isinstance(built, Model):
            raise refusal
        return built

    return nnx.eval_shape(build)


def _check_reader(model: Model, trainer: Trainer) -> None:
    """Refuses labelled documents for a model that does not answer, and the reverse."""
    name = type(model).__name__
    if trainer.stream != "labelled":
        if isinstance(model, Reader):
            raise ValueError(
                f"{name} reads labelled documents, and Trainer.stream = {trainer.stream!r} has "
                'none: bind Trainer.stream = "labelled", or another model.'
            )
        return
    if not isinstance(model, Reader):
        raise ValueError(
            f'{name} does not answer, which Trainer.stream = "labelled" asks for: bind '
            "Trainer.model to a model that reads labelled documents, or another stream."
        )
    asked = (trainer.labelled or LabelledDocuments()).targets
    if model.targets != asked:
        raise ValueError(
            f'{name} answers with {model.targets}, and LabelledDocuments.targets = "{asked}" asks '
            "for something else: bind one of them otherwise."
        )


def _check_classes(model: Model, store: TokenStore | MixedStore) -> None:
    """Refuses a store of other classes than a model tells apart."""
    asked = model.num_classes if isinstance(model, Reader) else None
    if asked is None or isinstance(store, MixedStore):
        return
    classes = store.manifest["source"].get("classes") or []
    if classes and len(classes) != asked:
        raise ValueError(
            f"{store.folder} has {len(classes)} classes ({', '.join(classes)}), and the model "
            f"tells {asked} apart: bind {type(model).__name__}.classes = {len(classes)}."
        )


def _merged(graph, params) -> Model:
    # Without `nnx.Param` around the leaves the graph's own parameters take them, with their marks.
    flat = [(tuple(key.key for key in path), leaf) for path, leaf in _leaves(params)]
    return nnx.merge(graph, nnx.from_flat_state(flat))


_leaves = jax.tree_util.tree_leaves_with_path


def load_run(
    folder: str,
    bindings: Sequence[str] = (),
    allow_imports: Sequence[str] = (),
    step: int | str | None = None,
) -> tuple[Experiment, Any, int]:
    """Builds the experiment of a run folder and reads the parameters of a checkpoint.

    Args:
        folder: a run folder of `brt.train`; none of its code is run.
        bindings: further gin lines, read after the run's own.
        allow_imports: modules outside brt that its config may import; see `brt.config.parse`.
        step: of a checkpoint that is kept; "best", "newest", or None for the best one of a run that
            keeps it (`CheckpointPolicy.keep_best`), else the newest valid one.

    Returns:
        (experiment, params, step): params a nested dictionary on the default device.

    Raises:
        FileNotFoundError: if it is no run folder or holds no checkpoint.
        CheckpointError: the checkpoint that was asked for is not kept, or cannot be read.
        brt.config.ConfigError: its config imports a module that is not allowed.
    """
    folder, step = absolute(folder), check_step(step)
    own = os.path.join(folder, "config.gin")
    if not as_path(own).is_file():
        raise FileNotFoundError(f"{folder} is not a run folder: it has no config.gin.")
    experiment = Configuration([own], bindings, allow_imports=allow_imports).experiment()
    device = SingleDeviceSharding(jax.devices()[0])
    abstract = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device),
        experiment.abstract_state(),
    )
    state, _ = load_params(folder, abstract, step)
    return experiment, state.params, int(state.step)


def _millions(count):
    return f"{count / 1e6:,.1f}M ({count:,})"


def _bytes_per_device(tree):
    def size(leaf):
        shape = leaf.sharding.shard_shape(leaf.shape)
        return int(np.prod(shape)) * leaf.dtype.itemsize

    total = sum(size(leaf) for leaf in jax.tree.leaves(tree))
    return f"{total / 2**20:,.1f} MiB"
