"""Splits of a whole model: the shards are the slices that numpy cuts, and they merge to the model again."""

import json

import crossrank
import pytest

numpy = pytest.importorskip("numpy")

LAYER = "model.layers.0."
# The dimension along which tensor parallelism splits each weight; None for those that every rank has.
DIMENSIONS = {
    "model.embed_tokens.weight": (0, (6, 8)), "lm_head.weight": (0, (6, 8)), "model.norm.weight": (None, (8,)),
    LAYER + "input_layernorm.weight": (None, (8,)), LAYER + "post_attention_layernorm.weight": (None, (8,)),
    **{LAYER + f"self_attn.{name}_proj.weight": (0, (8, 8)) for name in "qkv"},
    LAYER + "self_attn.o_proj.weight": (1, (8, 8)), LAYER + "mlp.gate_proj.weight": (0, (12, 8)),
    LAYER + "mlp.up_proj.weight": (0, (12, 8)), LAYER + "mlp.down_proj.weight": (1, (8, 12)),
}  # fmt: skip
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 12,
    "num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1, "vocab_size": 6,
}  # fmt: skip


@pytest.fixture
def model(tmp_path):
    """Returns the folder of a small model, and its weights."""
    folder = tmp_path / "model"
    folder.mkdir()
    generator = numpy.random.default_rng(3)
    weights = {name: generator.random(shape, numpy.float32) for name, (_, shape) in DIMENSIONS.items()}
    (folder / "config.json").write_text(json.dumps(CONFIG))
    crossrank.save(folder / "model.safetensors", weights)
    return folder, weights


def is_equal(loaded, weights):
    return set(loaded) == set(weights) and all(
        numpy.array_equal(loaded[name].numpy(), weight) for name, weight in weights.items()
    )


def slices(weights, rank, tp):
    whole = {name: weight for name, weight in weights.items() if DIMENSIONS[name][0] is None}
    parts = weights.keys() - whole.keys()
    return whole | {name: numpy.split(weights[name], tp, DIMENSIONS[name][0])[rank] for name in parts}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_shards_of_a_split_are_slices_of_the_model(ranks, tmp_path, model, count):
    folder, weights = model
    shards, merged = tmp_path / "shards", tmp_path / "merged"
    ranks(
        count,
        f"""
        summary = crossrank.split({str(folder)!r}, {str(shards)!r}, tp=2, world=world)
        assert summary.bytes > 0 and summary.files == 2, summary
        crossrank.consolidate({str(shards)!r}, {str(merged)!r}, world=world)
        """,
    )
    files = sorted(shards.rglob("*.safetensors"))
    assert len(files) == 2
    for rank, file in enumerate(files):
        assert is_equal(crossrank.load(file), slices(weights, rank, 2)), file
    assert is_equal(crossrank.load(merged), weights)


def test_convert_changes_format_and_number_of_ranks(tmp_path, model):
    folder, weights = model
    crossrank.convert(folder, tmp_path / "shards", to="torch", tp=2)
    assert not list((tmp_path / "shards").rglob("*.safetensors"))
    assert is_equal(crossrank.load(tmp_path / "shards"), weights)


def test_a_split_never_replaces_an_output_unasked(tmp_path, model):
    folder, weights = model
    crossrank.split(folder, tmp_path / "shards", tp=1)
    with pytest.raises(crossrank.UsageError):
        crossrank.split(folder, tmp_path / "shards", tp=2)
    assert is_equal(crossrank.load(tmp_path / "shards"), weights)
    crossrank.split(folder, tmp_path / "shards", tp=2, force=True)
    assert len(list((tmp_path / "shards").rglob("*.safetensors"))) == 2


def test_a_split_that_does_not_divide_a_dimension_is_refused(tmp_path, model):
    folder, _ = model
    with pytest.raises(crossrank.Error, match="5"):
        crossrank.split(folder, tmp_path / "shards", tp=5)
    assert not (tmp_path / "shards").exists()
