"""Wrong memories for scripts/mutate_memories.py: changes of one idea each."""

import re
from pathlib import Path
from typing import NamedTuple


class Change(NamedTuple):
    """A text that occurs once in a file, and its replacement."""

    file: str
    old: str
    new: str


class Rename(NamedTuple):
    """A word that is renamed everywhere in brt/."""

    old: str
    new: str


class Mutation(NamedTuple):
    """A wrong memory; one of the architectures must break a test."""

    name: str
    edits: tuple[Change | Rename, ...]
    architectures: tuple[str, ...]


def apply(mutation: Mutation, root: Path) -> list[Path]:
    """Makes a mutation below a root and returns the changed files."""
    changed = []
    for edit in mutation.edits:
        if isinstance(edit, Change):
            path = root / edit.file
            text = path.read_text(encoding="utf-8")
            if (times := text.count(edit.old)) != 1:
                raise ValueError(
                    f"{mutation.name}: {edit.old!r} is {times} times in {edit.file}: bring the "
                    "mutation up to date with the code."
                )
            path.write_text(text.replace(edit.old, edit.new), encoding="utf-8")
            changed.append(path)
        else:
            changed += _renamed(mutation.name, edit, root)
    return changed


def _renamed(name, edit, root):
    changed = []
    for path in sorted((root / "brt").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        after = re.sub(rf"\b{edit.old}\b", edit.new, text)
        if after != text:
            path.write_text(after, encoding="utf-8")
            changed.append(path)
    if not changed:
        raise ValueError(
            f"{name}: nothing in brt/ is called {edit.old}: bring the mutation up to date with the "
            "code."
        )
    return changed


def _of(memory, file, architectures, changes, renames):
    """The mutations of a memory, most of them in one file."""
    for name, (old, new, *elsewhere) in changes.items():
        change = Change(elsewhere[0] if elsewhere else file, old, new)
        yield Mutation(f"{memory}_{name}", (change,), architectures)
    for name, (old, new) in renames.items():
        yield Mutation(f"{memory}_{name}", (Rename(old, new),), architectures[:1])


COMPRESSIVE = _of(
    "compressive",
    "brt/models/transformer_xl/compressive_memory.py",
    ("compressive_mean", "compressive_convolution"),
    {
        "pools_zeros": (
            "dropped_BTD = x_BJD[:, :T]",
            "dropped_BTD = jnp.zeros_like(x_BJD[:, :T])",
        ),
        "pools_the_newest": ("dropped_BTD = x_BJD[:, :T]", "dropped_BTD = x_BJD[:, -T:]"),
        "counts_inputs_for_vectors": (
            "cache.compressed_count_B + dropped_B // self.rate",
            "cache.compressed_count_B + dropped_B",
        ),
        "keeps_the_oldest_vectors": (
            "[:, new_BLD.shape[1] :]",
            "[:, : self.compressed]",
        ),
        "cleared_keeps_the_vectors": (
            "return empty._replace(x_BMD=self.x_BMD, count_B=self.count_B)",
            "return self",
        ),
        "cleared_forgets_the_window": (
            "return empty._replace(x_BMD=self.x_BMD, count_B=self.count_B)",
            "return empty",
        ),
        "decoding_takes_in_zeros": (
            "[cache.x_BPD for cache in caches])",
            "[jnp.zeros_like(cache.x_BPD) for cache in caches])",
            "brt/models/transformer_xl/stack.py",
        ),
    },
    {"wrong_letter": ("compressed_BLD", "compressed_BLH")},
)

CELL = _of(
    "cell",
    "brt/models/block_recurrent/cell.py",
    ("rec_fixed_skip", "rec_lstm_dual"),
    {
        "read_after_its_update": (
            "return states_BSD, (state_keys_values, mean_kept)",
            "return states_BSD, (self.keys_values(states_BSD, dtype, weights), mean_kept)",
        ),
        "sees_one_block_only": (
            "attend_by_head(q_BHSK, *tokens)",
            "attend_by_head(q_BHSK, *(x[:, :, x.shape[2] // 2 :] for x in tokens))",
        ),
        "begins_with_zeros": (
            "initial_SD = self.initial_states_SD[...]",
            "initial_SD = jnp.zeros_like(self.initial_states_SD[...])",
        ),
        "cleared_keeps_the_states": ("        return empty\n", "        return self\n"),
        "decoding_moves_rows_inside_a_block": (
            "return select_rows(full_B, self.begin_decoding(after, dtype), cache)",
            "return self.begin_decoding(after, dtype)",
            "brt/models/block_recurrent/memory.py",
        ),
    },
    {
        "wrong_letter": ("states_BSD", "states_BSA"),
        "decoding_letters_swapped": ("state_keys_BSHK", "state_keys_BSKH"),
    },
)

EXTERNAL = _of(
    "external",
    "brt/models/block_recurrent/external_memory.py",
    ("memorizing_exact", "memorizing_dense"),
    {
        "counts_one_block_a_segment": (
            "written_B=cache.written_B + T *",
            "written_B=cache.written_B + self.window *",
        ),
        "overwrites_the_newest": (
            "(cache.written_B[:, None] + jnp.arange(T)) % M",
            "(cache.written_B[:, None] - self.window + jnp.arange(T)) % M",
        ),
        "keeps_the_beginning_of_a_long_segment": (
            "jax.lax.stop_gradient(x[:, -M:])",
            "jax.lax.stop_gradient(x[:, :M])",
        ),
        "block_sees_an_overwritten_slot": (
            "in_ring_BGM = age_BM[:, None] >= before_G1",
            "in_ring_BGM = age_BM[:, None] >= before_G1 - self.window",
        ),
        "values_of_the_token_before": (
            "values_BMHK=put(cache.values_BMHK, latest[0], latest[2])",
            "values_BMHK=put(cache.values_BMHK, latest[0], jnp.roll(latest[2], 1, axis=1))",
        ),
        "cleared_keeps_the_ring": ("        return empty\n", "        return self\n"),
    },
    {"wrong_letter": ("keys_BMHK", "keys_BMKH")},
)

HIDDEN = _of(
    "hidden",
    "brt/models/transformer_xl/hidden_memory.py",
    ("txl_shaw", "txl_same_length"),
    {
        "counts_segments": ("cache.count_B + T, self.length", "cache.count_B + 1, self.length"),
        "keeps_the_oldest": (
            "jax.lax.stop_gradient(x_BJD[:, T:])",
            "jax.lax.stop_gradient(x_BJD[:, : self.length])",
        ),
        "off_by_one": (
            "jax.lax.stop_gradient(x_BJD[:, T:])",
            "jax.lax.stop_gradient(jnp.roll(x_BJD, 1, axis=1)[:, T:])",
        ),
        "decoding_keeps_padding": (
            "jnp.where(valid_BP[..., None], x_BPD, 0)",
            "x_BPD",
        ),
        "decoding_counts_rows_that_wait": (
            "cache.fill_B + jnp.asarray(reads_B, jnp.int32)",
            "cache.fill_B + 1",
        ),
    },
    {"wrong_letter": ("x_BMD", "x_BMA")},
)

TOKENS = _of(
    "tokens",
    "brt/models/memory_tokens/layout.py",
    ("rmt", "rmt_slide"),
    {
        "outputs_of_the_read_positions": (
            "y_BXD[:, end:] if self.memory_at_end",
            "y_BXD[:, :S] if self.memory_at_end",
        ),
        "zeros_at_the_end": (
            "ends = (memory_BSD,) if",
            "ends = (0 * memory_BSD,) if",
        ),
        "not_reset": (
            "return select_rows(starts_B, empty, caches)",
            "return (*select_rows(starts_B, empty, caches)[:-1], caches[-1])",
            "brt/models/caches.py",
        ),
        "cleared_keeps_the_memory": (
            "        return empty\n",
            "        return self\n",
            "brt/models/memory_tokens/memory.py",
        ),
        "decoding_never_begins_again": (
            "begins_B = reads_B & (fill_B == 0)",
            "begins_B = reads_B & (fill_B < 0)",
            "brt/models/memory_tokens/model.py",
        ),
    },
    {"wrong_letter": ("memory_BSD", "memory_BSA")},
)

TOKENS_OF_TXL = _of(
    "tokens_of_txl",
    "brt/models/memory_tokens/transformer_xl.py",
    ("rmt_txl", "memtr_txl"),
    {
        "write_positions_are_causal": ("write[:, None] | causal_XX", "causal_XX"),
        "read_positions_are_causal": ("jnp.where(read[:, None], read, ", "jnp.where(False, read, "),
        "memory_sees_the_cache": (
            "sees_Q = ~is_memory_Q | read_from_cache",
            "sees_Q = jnp.ones_like(is_memory_Q)",
        ),
    },
    {},
)

ASSOCIATIVE_TOKENS = _of(
    "associative_tokens",
    "brt/models/memory_tokens/associative.py",
    ("armt",),
    {
        "adds_without_the_difference": (
            "self.values_DD[...] - stored_BSD",
            "self.values_DD[...]",
        ),
        "counts_keys_again": ("jnp.clip(1 - known_BS, 0, 1)", "jnp.ones_like(known_BS)"),
        "two_products": ("range(1, NU + 1)", "(1, 2, 2)"),
        "writes_the_inputs": (
            "self._written(caches, [y_BXD[:, T:] for y_BXD in run.outputs])",
            "self._written(caches, [x_BXD[:, T:] for x_BXD in run.inputs])",
        ),
        "cleared_keeps_the_matrix": ("        return empty\n", "        return self\n"),
        "decoding_never_writes": (
            "full_B = opened[0].fill_B == self.period",
            "full_B = opened[0].fill_B > self.period",
        ),
    },
    {},
)

WINDOW = _of(
    "window",
    "brt/models/block_recurrent/layer.py",
    ("slide", "xl"),
    {
        "keeps_no_block": (
            "window = WindowCache(tokens.keys_BTHK[:, -W:], tokens.values_BTHK[:, -W:])",
            "window = WindowCache(*(0 * x for x in cache.window))",
        ),
        "keeps_the_first_block": (
            "window = WindowCache(tokens.keys_BTHK[:, -W:], tokens.values_BTHK[:, -W:])",
            "window = WindowCache(tokens.keys_BTHK[:, :W], tokens.values_BTHK[:, :W])",
        ),
        "off_by_one": (
            "window = WindowCache(tokens.keys_BTHK[:, -W:], tokens.values_BTHK[:, -W:])",
            "window = WindowCache(*(jnp.roll(x, 1, axis=1)[:, -W:] for x in tokens[1:3]))",
        ),
        "decoding_keeps_no_block": (
            "fill_window(full)",
            "fill_window(jax.tree.map(jnp.zeros_like, full))",
            "brt/models/caches.py",
        ),
        "decoding_off_by_one": (
            "slot_B = window.keys_BJHK.shape[1] // 2 + window.fill_B",
            "slot_B = window.keys_BJHK.shape[1] // 2 + window.fill_B - 1",
            "brt/models/caches.py",
        ),
        "decoding_keeps_padding": (
            "jnp.where(counts_BWHK, current_BWHK, 0)",
            "current_BWHK",
            "brt/models/caches.py",
        ),
    },
    {"wrong_letter": ("keys_BWHK", "keys_BHWK")},
)

LSTM = _of(
    "lstm",
    "brt/models/recurrent_networks.py",
    ("lstm",),
    {
        "hidden_not_carried": (
            "return jnp.moveaxis(hidden_TBU, 0, 1), cache",
            "return jnp.moveaxis(hidden_TBU, 0, 1), cache._replace(hidden_BU=0 * cache.hidden_BU)",
        ),
        "cell_not_carried": (
            "return jnp.moveaxis(hidden_TBU, 0, 1), cache",
            "return jnp.moveaxis(hidden_TBU, 0, 1), cache._replace(cell_BU=0 * cache.cell_BU)",
        ),
        "cleared_keeps_everything": ("        return empty\n", "        return self\n"),
    },
    {"wrong_letter": ("hidden_BU", "hidden_BH")},
)

QRNN = _of(
    "qrnn",
    "brt/models/recurrent_networks.py",
    ("qrnn",),
    {
        "last_input_not_carried": ("QRNNCache(x_BTI[:, -1], ", "QRNNCache(0 * x_BTI[:, -1], "),
        "cell_not_carried": (
            "return kept_BTU * first_BU[:, None] + added_BTU",
            "return added_BTU",
        ),
        "cleared_forgets_the_window": (
            "return self._replace(cell_BU=empty.cell_BU)",
            "return empty",
        ),
    },
    {"wrong_letter": ("last_BI", "last_BH")},
)

POOLED = _of(
    "pooled",
    "brt/pretrained/memories/pooled_memory.py",
    ("gpt2_pooled", "gpt2_pooled_attention"),
    {
        "pools_what_is_read_again": (
            "pooled_BT = pooled_BT & ~positions.again_BT",
            "pooled_BT = pooled_BT & positions.again_BT",
        ),
        "pools_empty_slots": (
            "pooled_BT = positions.real_BT",
            "pooled_BT = positions.real_BT | True",
        ),
        "keeps_sums": ("return pooled_BD / jnp.where(", "return pooled_BD * jnp.where("),
        "absent_vectors_are_seen": (
            "present_BM = cache.count_B[:, None] > ",
            "present_BM = cache.count_B[:, None] >= 0 * ",
        ),
        "one_layer_higher": ("layer == self.layer - 1", "layer == self.layer"),
        "cleared_keeps_the_vectors": ("        return empty\n", "        return self\n"),
        "overlap_keeps_the_oldest": (
            "newest = OverlapCache(x_BJD[:, T:], count_B)",
            "newest = OverlapCache(x_BJD[:, : self.overlap], count_B)",
            "brt/pretrained/language_model.py",
        ),
        "positions_count_empty_slots": (
            "return jnp.maximum(self.index_BJ, 0)",
            "return jnp.arange(self.index_BJ.shape[1]) + 0 * self.index_BJ",
            "brt/pretrained/windows.py",
        ),
        "decoding_keeps_padding": (
            "x_BJGK = jnp.where(real_BJ[..., None, None], x_BJGK, 0)",
            "x_BJGK = x_BJGK + 0",
            "brt/pretrained/language_model.py",
        ),
    },
    {"wrong_letter": ("vectors_BMD", "vectors_BDM")},
)

WINDOW_CELL = _of(
    "window_cell",
    "brt/pretrained/memories/cell_memory.py",
    ("gpt2_cell", "rmt_gpt2_cell"),
    {
        "reads_another_layer": (
            "self.token_keys(segment.keys[self.index])",
            "self.token_keys(segment.keys[self.index + 1])",
        ),
        "keys_keep_their_length": (
            "return LayerKeys(unit_heads(k_BJHK), v_BJHK)",
            "return LayerKeys(k_BJHK, v_BJHK)",
            "brt/pretrained/memories/backbone_memory.py",
        ),
        "reads_what_was_read_before": (
            "self.updated(memories, summaries, self._new(reading.keys))",
            "self.updated(memories, summaries, reading.keys)",
            "brt/pretrained/language_model.py",
        ),
    },
    {},
)

SLIDING = _of(
    "sliding",
    "brt/pretrained/sliding_model.py",
    ("llama_slide", "llama_rec"),
    {
        "sees_what_was_before_the_document": (
            "there_XJ = before_X[:, None] | ",
            "there_XJ = (before_X[:, None] >= 0) | ",
        ),
        "sees_one_more": ("(distance_WJ < W)", "(distance_WJ <= W)"),
        "keeps_the_first_block": ("keys.keys_BJGK[:, -W:]", "keys.keys_BJGK[:, :W]"),
        "states_are_not_carried": ("            states = (cache,)\n", ""),
        "decoding_keeps_the_states": (
            "states = (self._updated(states[0], filled[self.cell.index], full_B),)",
            "pass",
        ),
        "decoding_forgets_that_it_began": (
            "count_B = jnp.where(full_B, 1, begun.count_B)",
            "count_B = begun.count_B",
        ),
    },
    {},
)

MUTATIONS: tuple[Mutation, ...] = (
    *COMPRESSIVE,
    *CELL,
    *EXTERNAL,
    *HIDDEN,
    *TOKENS,
    *TOKENS_OF_TXL,
    *ASSOCIATIVE_TOKENS,
    *WINDOW,
    *LSTM,
    *QRNN,
    *POOLED,
    *WINDOW_CELL,
    *SLIDING,
)
