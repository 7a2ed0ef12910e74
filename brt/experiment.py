"""An experiment: model, optimizer and settings of a gin config, built as far as shapes.

    experiment = Experiment.from_gin()                  # after brt.config.parse(...)
    model = experiment.bind(experiment.init_params())   # or the params of load_run(folder)

Building reads every binding that any mode of a run may use, so an unread one is an error.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from brt import config
from brt.bindings.errors import building
from brt.bindings.read_bindings import check_all_read, read_bindings
from brt.checks import checked_arguments
from brt.data.mixture import MixedStore
from brt.data.stores.token_store import TokenStore
from brt.data.streams.batch import Batch, Segment, document_segments
from brt.models.contract import check_caches
from brt.models.model import Model
from brt.training.checkpoints.parameters import merged
from brt.training.evaluation_settings import Evaluation
from brt.training.experiment_checks import (
    abstract_batch,
    check_classes,
    check_evaluation,
    check_reader,
    check_same_parameters,
    check_size,
    check_trainer,
)
from brt.training.settings import Trainer
from brt.training.sharding import AnyMesh, check_divisible, shardings
from brt.training.train_step import TrainState, bind, make_loss, make_train_step

UNLIKE_ANY = 7919
"""A number of batch elements that no other axis of a cache has."""


class OneKey(nnx.Rngs):
    """Gives all parameters the same key: shapes do not depend on it, and folding is slow."""

    def params(self) -> jax.Array:
        return jax.random.key(0)


class Experiment:
    """The model, the optimizer and the settings of a config.

    Attributes:
        trainer: the `Trainer` settings, with the corpus.
        evaluation: the `Evaluation` settings, the trainer's or the default ones.
        model: the model with shapes instead of arrays.
        abstract_params: its parameters as a nested dictionary of shapes.
        bindings: every binding read, as text.
    """

    @checked_arguments
    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        self.evaluation = trainer.evaluation or Evaluation()
        self.bindings: dict[str, str] = {}
        self.model = _built(trainer.model, "Trainer").for_segments(trainer.segment_length)
        self._graph, state = nnx.split(self.model, nnx.Param)
        self.abstract_params = nnx.to_pure_dict(state)
        evaluated = self.evaluation.model
        self._evaluated = _built(evaluated, "Evaluation") if evaluated else self.model
        self.schedule = trainer.schedule(total_steps=trainer.steps)
        self.optimizer = trainer.optimizer(self.schedule)
        if trainer.plateau:
            self.optimizer = trainer.plateau.wrap(self.optimizer, self.schedule)
        if trainer.average:
            self.optimizer = trainer.average.wrap(self.optimizer)
        self.train_step = make_train_step(
            functools.partial(bind, self._graph),
            self.optimizer,
            self.schedule,
            trainer.plateau,
            seed=trainer.seed,
            dropout=self.model.dropout > 0,
            skip_nonfinite=trainer.skip_nonfinite,
            accumulation=trainer.accumulation,
            **trainer.loss_settings,
        )

    @classmethod
    def from_gin(cls) -> Self:
        """Builds the experiment of the current gin bindings; refuses unread ones."""
        with building():
            experiment = cls(Trainer())  # type: ignore[call-arg]  # bound by gin
            experiment.check()
        check_all_read()
        experiment.bindings = read_bindings()
        return experiment

    def check(self) -> None:
        """Refuses settings that do not fit together, before a run computes anything."""
        trainer = self.trainer
        check_trainer(trainer)
        check_reader(self.model, trainer)
        check_same_parameters(self.model, self._evaluated)
        check_caches(self.abstract_caches(UNLIKE_ANY), UNLIKE_ANY)
        state, batch = self.abstract_state(), self.abstract_batch()
        loss = make_loss(self.bind, **trainer.loss_settings)
        jax.eval_shape(loss, state.params, state.caches, batch, None)
        check_evaluation(trainer, self.evaluation, self.bind_evaluated, self.abstract_params)

    def bind(self, params: Any) -> Model:
        return bind(self._graph, params)

    @property
    def evaluated_length(self) -> int:
        """T of evaluation and generation."""
        return self.evaluation.segment_length or self.trainer.segment_length

    @property
    def evaluated_shape(self) -> tuple[int, int]:
        """(B, T) of evaluation."""
        trainer = self.trainer
        tokens = trainer.tokens_per_step // trainer.accumulation
        return self.evaluation.batch_shape(tokens, trainer.segment_length)

    def evaluated_model(self, segment_length: int | None = None) -> Model:
        return self._evaluated.for_segments(segment_length or self.evaluated_length)

    def bind_evaluated(self, params: Any, segment_length: int | None = None) -> Model:
        return bind(nnx.graphdef(self.evaluated_model(segment_length)), params)

    def init_params(self) -> Any:
        model = self.trainer.model(nnx.Rngs(self.trainer.seed))
        return nnx.to_pure_dict(nnx.state(model, nnx.Param))

    def init_state(self, params: Any = None, given: Any = None) -> TrainState:
        """Returns the train state of step 0; `given` replaces some parameters.

        params: None for random ones. given: as of `Model.given_parameters`.
        """
        params = self.init_params() if params is None else params
        params = merged(params, given) if given else params
        caches = self.bind(params).init_caches(self.trainer.rows)
        return TrainState(jnp.int32(0), params, self.optimizer.init(params), caches)

    def abstract_caches(self, rows: int) -> tuple:
        return jax.eval_shape(
            lambda params: self.bind(params).init_caches(rows), self.abstract_params
        )

    @functools.cached_property
    def _abstract_state(self):
        # Cached: with many layers tracing takes a good part of a start.
        return jax.eval_shape(self.init_state, self.abstract_params)

    def abstract_state(self, mesh: AnyMesh | None = None) -> TrainState:
        """Returns the shapes of the train state, with shardings if there is a mesh."""
        state = self._abstract_state
        if mesh is None:
            return state
        return jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
            *(state, shardings(state, mesh)),
        )

    def jit_init(self, mesh: jax.sharding.Mesh) -> Callable[..., TrainState]:
        """Returns `init_state` compiled; without parameters it uses `Model.given_parameters`."""
        init = jax.jit(self.init_state, out_shardings=shardings(self.abstract_state(), mesh))

        def begin(params: Any = None) -> TrainState:
            return init(params, None if params is not None else self.model.given_parameters())

        return begin

    def jit_step(self, mesh: jax.sharding.Mesh) -> jax.stages.Wrapped:
        """Returns `train_step` compiled; the state is donated and keeps its sharding."""
        layout = shardings(self.abstract_state(), mesh)
        replicated = NamedSharding(mesh, PartitionSpec())
        return jax.jit(self.train_step, donate_argnums=0, out_shardings=(layout, replicated))

    def abstract_batch(self) -> Batch:
        K = self.trainer.reread_segments + self.trainer.segments_per_step
        return abstract_batch(K, self.trainer.rows, self.trainer.segment_length)

    def segments(self, text: str) -> Iterator[Segment]:
        """Yields a text as segments (1, T), the last one padded with weights of 0."""
        tokens = self.trainer.corpus.vocabulary.encode(text.encode(), "text")
        return document_segments(tokens, self.trainer.segment_length)

    def check_mesh(self, mesh: AnyMesh) -> None:
        rows = self.trainer.rows // self.trainer.accumulation
        check_divisible(mesh, rows, self.model.divided_sizes())

    def open_store(self, split: str) -> TokenStore | MixedStore:
        """Returns the token store of a split, a small one read whole; refuses a vocabulary that
        does not fit.
        """
        store = self.trainer.corpus.open(split)
        for part in store.stores if isinstance(store, MixedStore) else [store]:
            if part.is_small:
                part.read_all()
        size = store.manifest["vocabulary"]["size"]
        check_size(self.model, size, f"The vocabulary of {store.folder}")
        check_classes(self.model, store)
        return store


class Configuration(NamedTuple):
    files: Sequence[str] = ()
    bindings: Sequence[str] = ()
    search_paths: Sequence[str] = ()
    allow_imports: Sequence[str] = ()

    def experiment(self, further: Sequence[str] = ()) -> Experiment:
        bindings = [*self.bindings, *further]
        config.parse(self.files, bindings, self.search_paths, self.allow_imports)
        return Experiment.from_gin()


def _built(model, who) -> Model:
    def build():
        built = model(OneKey(0))
        if not isinstance(built, Model):
            raise ValueError(
                f"{who}.model must name a model, like @BlockRecurrentTransformer, no brackets."
            )
        return built

    return nnx.eval_shape(build)
