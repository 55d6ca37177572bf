"""Packed models of Transformers: tied weights, resizing, Conv1D and experts."""

import copy
import pickle
from typing import Any

import pytest
import torch

from gradwire.quantize import Affine
from gradwire.torch import weights
from tests.distributed.ranks import LazyModule, on

transformers = LazyModule("transformers")

FOUR = {"*": Affine(4, 64)}


def seeded(kind: str, model: str = "ForCausalLM", **options: Any) -> Any:
    """A model of 100 words, two heads and one layer."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(vocab_size=100, **options)
    return getattr(transformers, f"{kind}{model}")(config).eval()


SMALL: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
}


def gpt2() -> Any:
    sizes: dict[str, Any] = {"n_embd": 64, "n_layer": 1, "n_head": 2, "n_positions": 32}
    return seeded("GPT2", "LMHeadModel", **sizes, bos_token_id=0, eos_token_id=0)


def mixtral() -> Any:
    return seeded("Mixtral", **SMALL, num_key_value_heads=2, num_local_experts=4)


IDS = torch.arange(12).view(2, 6)


@pytest.mark.parametrize("tied", [True, False])
@on("hugging_two")
def test_embeddings_of_a_packed_model_can_be_tied_and_resized_after_unpacking(tied):
    model = seeded("Llama", **SMALL, tie_word_embeddings=tied)
    weights.pack(model, FOUR)
    before = model(IDS).logits
    model.tie_weights()
    assert (model.lm_head.packed is model.model.embed_tokens.packed) == tied
    assert torch.equal(model(IDS).logits, before)
    with pytest.raises(ValueError, match=r"packed: .*unpack\(model\)"):
        model.resize_token_embeddings(110)
    assert torch.equal(model(IDS).logits, before)
    weights.unpack(model).resize_token_embeddings(110)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    weights.pack(model, FOUR)
    assert model(IDS).logits.shape == (2, 6, 110)


@pytest.mark.parametrize("make", [gpt2, mixtral])
@on("hugging_two")
def test_conv1d_and_experts_compute_with_packed_weights(rank, make, tmp_path):
    model = make()
    report = weights.pack(model, FOUR)
    decoded = [row.name for row in report.tensors if row.held == "decoded"]
    assert all(name.endswith("gate.weight") for name in decoded)  # the routers
    dense = weights.unpack(copy.deepcopy(model))
    ours, wanted = model(IDS).logits, dense(IDS).logits
    torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=1e-4)
    assert torch.equal(pickle.loads(pickle.dumps(model))(IDS).logits, ours)
    path = tmp_path / f"{rank}.safetensors"
    weights.save(model, path)
    assert torch.equal(weights.load(path, make())(IDS).logits, ours)


@on("hugging_two")
def test_the_calibration_says_that_it_skips_conv1d():
    model = gpt2()
    with weights.Calibration(model) as seen, torch.no_grad():
        model(IDS.repeat(16, 1))
    with pytest.warns(UserWarning, match="Conv1D of Transformers"):
        weights.pack(model, FOUR, calibration=seen)
