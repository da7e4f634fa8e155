import copy
import gc
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.nn.functional as F

from infrastructure.backup.format import packs
from infrastructure.backup.format.tensor_bytes import from_bytes, to_bytes
from infrastructure.features.stackwise.training.activation_cache import trunk_hash
from infrastructure.features.stackwise.training.quantized_trunk import (
    QUANTIZATIONS,
    Quantization,
    QuantizedLinear,
    QuantizedWeight,
    _widened,
    dequantize_layers,
    quantize_layers,
    quantized_bytes,
)
from infrastructure.models.trainable_state import load_trainable_state, trainable_state

KINDS = QUANTIZATIONS.names()
# Largest part of fp32's bytes, and the error of a weight in parts of the largest of its block.
BYTES = {"nf_fp8": 0.27, "fp16": 0.5, "fp32": 1.0}
ERRORS = {"nf_fp8": 0.5 * 2**-3, "fp16": 2**-11, "fp32": 0.0}


def weight(rows: int = 64, width: int = 128, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed)) * 0.02


def plain_with(quantized: QuantizedLinear) -> torch.nn.Linear:
    plain = torch.nn.Linear(quantized.in_features, quantized.out_features)
    plain.weight.data = quantized.quantized_weight.dequantized(torch.float32)
    plain.bias.data = quantized.bias.detach().clone()
    return plain


def linear(kind: str, width: int = 128) -> QuantizedLinear:
    bias = torch.nn.Parameter(torch.linspace(-1, 1, 64))
    return QuantizedLinear(weight(width=width), bias, kind)


class TestWeights:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("width", [128, 100, 7])
    def test_error_and_shape(self, kind: str, width: int) -> None:
        given = weight(width=width)
        found = QuantizedWeight(given, kind).dequantized(torch.float32)
        assert found.shape == given.shape
        assert (found - given).abs().max() <= ERRORS[kind] * given.abs().max()
        assert (kind == "fp32") == torch.equal(found, given)

    @pytest.mark.parametrize("kind", KINDS)
    def test_bytes(self, kind: str) -> None:
        assert quantized_bytes(kind, 256, 512) <= BYTES[kind] * weight(256, 512).nbytes

    def test_nf_fp8_is_what_it_is_defined_to_be(self) -> None:
        """Written out weight by weight, as whoever reads the definition would."""
        given = weight(3, 100) * torch.tensor([[1.0], [50.0], [1e-4]])
        stored = QuantizedWeight(given, "nf_fp8")
        assert stored.payload.dtype == torch.float8_e4m3fn
        assert stored.scales.dtype == torch.float16
        assert stored.scales.shape == (3, 2)
        found = stored.dequantized(torch.float32)
        for row in range(3):
            for start in (0, 64):
                block = given[row, start : start + 64]
                scale = float(stored.scales[row, start // 64])
                exact = float(block.abs().max()) / 448
                below = torch.nextafter(torch.tensor(scale).half(), torch.tensor(0.0).half())
                assert float(below) < exact <= scale
                by_hand = (block / scale).to(torch.float8_e4m3fn).float() * scale
                assert torch.equal(found[row, start : start + 64], by_hand)

    def test_no_weight_is_clipped_however_small_or_large(self) -> None:
        for exponent in range(-30, 22):
            given = weight(8, 64) * 50 * 2.0**exponent
            found = QuantizedWeight(given, "nf_fp8").dequantized(torch.float32)
            largest = given.abs().amax(dim=1)
            if exponent >= -14:  # below, the smallest scale that fp16 has
                assert ((found - given).abs().amax(dim=1) <= largest * 2**-4).all()
            assert ((found - given).abs().amax(dim=1) <= torch.clamp(largest * 2**-4, 1e-9)).all()

    def test_every_float8_is_widened_exactly(self) -> None:
        codes = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
        finite = codes[codes.float().isfinite()]
        assert len(finite) == 254
        assert torch.equal(_widened(finite), finite.float())

    def test_zeros_stay_zeros(self) -> None:
        given = weight()
        given[:, :64] = 0
        given[5] = 0
        found = QuantizedWeight(given, "nf_fp8").dequantized(torch.float32)
        assert found.isfinite().all()
        assert (found[:, :64] == 0).all()
        assert (found[5] == 0).all()
        stored = QuantizedWeight(given, "nf_fp8")
        assert (stored.payload.view(torch.uint8)[5] & 0x7F == 0).all()  # and no NaN either

    def test_what_cannot_be_held_is_refused_by_name(self) -> None:
        model = torch.nn.Sequential(torch.nn.Linear(64, 64))
        for value, kind in [(3e7, "nf_fp8"), (7e4, "fp16"), (float("nan"), "fp32")]:
            with torch.no_grad():
                model[0].weight[1, 1] = value
            with pytest.raises(
                ValueError, match=r"stackwise\.weight_cannot_be_stored.*parameter=0"
            ):
                quantize_layers(model, kind)
            assert type(model[0]) is torch.nn.Linear

    def test_an_unknown_kind_names_the_nearest(self) -> None:
        with pytest.raises(ValueError, match=r"core\.did_you_mean\(meant=nf_fp8\)"):
            quantize_layers(torch.nn.Sequential(torch.nn.Linear(64, 64)), "nffp8")


def living_tensors() -> list[torch.Tensor]:
    """By their type: to ask a weak proxy for its class fails when what it names is gone."""
    gc.collect()
    return [o for o in gc.get_objects() if issubclass(type(o), torch.Tensor)]


class TestComputing:
    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("width", [128, 100])
    def test_forward_and_gradients_are_those_of_the_dequantised_weight(
        self, kind: str, width: int
    ) -> None:
        quantized = linear(kind, width)
        plain = plain_with(quantized)
        x = torch.randn(2, 5, width, generator=torch.Generator().manual_seed(1))
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        outputs = [quantized(inputs[0]), plain(inputs[1])]
        assert torch.equal(*outputs)
        for output in outputs:
            output.square().sum().backward()
        assert torch.equal(inputs[0].grad, inputs[1].grad)  # type: ignore[arg-type]
        torch.testing.assert_close(quantized.bias.grad, plain.bias.grad)

    @pytest.mark.parametrize("kind", KINDS)
    def test_it_computes_in_the_format_of_the_activations(self, kind: str) -> None:
        quantized = linear(kind)
        plain = plain_with(quantized)
        x = torch.randn(4, 128, generator=torch.Generator().manual_seed(1))
        half = plain_with(quantized).to(torch.bfloat16)
        assert torch.equal(quantized(x.bfloat16()), half(x.bfloat16()))
        inputs = [x.clone().requires_grad_() for _ in range(2)]
        with torch.autocast("cpu", torch.bfloat16):
            outputs = [quantized(inputs[0]), plain(inputs[1])]
        assert torch.equal(*outputs)
        assert outputs[0].dtype == torch.bfloat16
        for output in outputs:
            output.sum().backward()
        assert torch.equal(inputs[0].grad, inputs[1].grad)  # type: ignore[arg-type]

    @pytest.mark.parametrize("kind", ["nf_fp8", "fp16"])
    def test_nothing_wide_is_kept_for_backward(self, kind: str) -> None:
        of_other_tests = living_tensors()  # held, so that no new one takes the id of one of them
        before = set(map(id, of_other_tests))
        quantized = linear(kind)
        x = torch.randn(4, 128, requires_grad=True)
        output = quantized(x)
        wide = quantized.in_features * quantized.out_features
        new = [tensor for tensor in living_tensors() if id(tensor) not in before]
        kept = [tensor for tensor in new if tensor.numel() == wide]
        assert [t for t in kept if t.is_floating_point() and t.itemsize >= 4] == []
        saved = 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal saved
            saved += tensor.nbytes
            return tensor.detach()

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = quantized(x)
        assert saved == 0
        output.sum().backward()
        assert x.grad is not None

    # torch's own, of its own function
    @pytest.mark.filterwarnings("ignore:.*Function.*should not be instantiated:DeprecationWarning")
    def test_a_compiled_layer_gives_the_same(self) -> None:
        quantized = linear("nf_fp8")
        compiled = torch.compile(quantized, backend="aot_eager", fullgraph=True)
        inputs = [torch.ones(4, 128).requires_grad_() for _ in range(2)]
        outputs = [compiled(inputs[0]), quantized(inputs[1])]
        torch.testing.assert_close(*outputs)
        for output in outputs:
            output.sum().backward()
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad)

    @pytest.mark.parametrize("kind", KINDS)
    def test_casting_a_model_rounds_nothing_that_is_stored(self, kind: str) -> None:
        quantized = linear(kind)
        before = trunk_hash(quantized.quantized_weight.state_dict().items())
        for cast in (quantized.bfloat16, quantized.half, quantized.float, quantized.cpu):
            assert trunk_hash(cast().quantized_weight.state_dict().items()) == before
        quantized.bfloat16()
        assert quantized.bias.dtype == torch.bfloat16
        assert quantized(torch.randn(2, 128)).dtype == torch.float32


def models() -> dict[str, Any]:
    """Tiny models whose rows are whole blocks, as those of real ones are."""
    import transformers

    sizes = {
        "vocab_size": 97,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
    gpt2 = {"vocab_size": 97, "n_embd": 64, "n_layer": 2, "n_head": 4}
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return {
        "llama": transformers.LlamaConfig(**sizes),
        "gpt2": transformers.GPT2Config(**gpt2, **dropouts),
    }


def model_of(name: str) -> Any:
    import transformers

    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(models()[name]).eval()


def layers_of(model: Any) -> Any:
    return model.transformer.h if hasattr(model, "transformer") else model.model.layers


@pytest.fixture
def input_ids() -> torch.Tensor:
    return torch.arange(3, 35).view(2, 16)


def quantized_in(model: Any) -> list[QuantizedLinear]:
    return [module for module in model.modules() if isinstance(module, QuantizedLinear)]


def frozen(model: Any) -> Any:
    return model.requires_grad_(False)


class TestModels:
    # layers × linear weights in each
    COUNTS = {"llama": 2 * 7, "gpt2": 2 * 4}  # noqa: RUF012

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("name", COUNTS)
    def test_quantised_equals_dequantised(
        self, name: str, kind: str, input_ids: torch.Tensor
    ) -> None:
        model = frozen(model_of(name))
        names = sorted(n for n, _ in model.named_parameters())
        quantize_layers(layers_of(model), kind)
        stored = quantized_in(model)
        assert len(stored) == self.COUNTS[name]
        quantize_layers(layers_of(model), kind)
        assert quantized_in(model) == stored
        logits = model(input_ids).logits
        dequantize_layers(layers_of(model), torch.float32)
        assert quantized_in(model) == []
        assert sorted(n for n, _ in model.named_parameters()) == names
        torch.testing.assert_close(model(input_ids).logits, logits, rtol=0, atol=2e-6)

    @pytest.mark.parametrize("name", COUNTS)
    def test_gradients_reach_what_lies_below(self, name: str, input_ids: torch.Tensor) -> None:
        model = frozen(model_of(name))
        quantize_layers(layers_of(model), "nf_fp8")
        plain = copy.deepcopy(model)
        dequantize_layers(layers_of(plain), torch.float32)
        gradients = []
        for one in (model, plain):
            embeddings = one.get_input_embeddings()(input_ids).detach().requires_grad_()
            one(inputs_embeds=embeddings, labels=input_ids).loss.backward()
            gradients.append(embeddings.grad)
        torch.testing.assert_close(*gradients)

    def test_lora_trains_beside_and_stays_as_it_is(self, input_ids: torch.Tensor) -> None:
        import peft

        for name, targets in [("llama", ["q_proj", "down_proj"]), ("gpt2", ["c_attn"])]:
            model = model_of(name)
            quantize_layers(layers_of(model), "nf_fp8")
            before = trunk_hash(trainable_state(model).items())
            config = peft.LoraConfig(r=4, target_modules=targets, fan_in_fan_out=False)
            tuned = peft.get_peft_model(model, config)
            trained = [p for p in tuned.parameters() if p.requires_grad]
            assert {p.dtype for p in trained} == {torch.float32}
            optimizer = torch.optim.AdamW(trained, lr=1e-2)
            losses = []
            for _ in range(6):
                loss = tuned(input_ids, labels=input_ids).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.item())
            assert losses[-1] < losses[0] - 0.05
            before_head = quantized_in(tuned)
            quantize_layers(tuned, "fp16")
            assert len(quantized_in(tuned)) == len(before_head) + 1  # the head; LoRA is none of it
            for is_safe in (False, True):  # fails instead of being lost
                with pytest.raises((RuntimeError, ValueError)):
                    tuned.merge_adapter(safe_merge=is_safe)
            dequantize_layers(tuned, torch.float32)
            tuned.merge_adapter()
            base = tuned.unload()
            quantize_layers(layers_of(base), "nf_fp8")
            assert trunk_hash(trainable_state(base).items()) != before

    def test_a_standard_folder_holds_the_dequantised_weights(
        self, tmp_path: Path, input_ids: torch.Tensor
    ) -> None:
        import transformers

        for name in self.COUNTS:
            model = frozen(model_of(name))
            quantize_layers(layers_of(model), "nf_fp8")
            logits = model(input_ids).logits
            dequantize_layers(layers_of(model), torch.float32)
            model.save_pretrained(tmp_path / name)
            loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / name)
            torch.testing.assert_close(loaded(input_ids).logits, logits, rtol=0, atol=2e-6)

    def test_one_matrix_at_a_time(self) -> None:
        """A weight that was stored is let go of before the next one is."""
        modules = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(4))
        living = []

        def store(given: torch.Tensor) -> dict[str, torch.Tensor]:
            gc.collect()
            living.append(sum(type(m) is torch.nn.Linear for m in modules))
            return {"payload": given.half()}

        counting = Quantization(store, QUANTIZATIONS.get("fp16").restore)
        with QUANTIZATIONS.registered("counting", counting):
            quantize_layers(modules, "counting")
        assert living == [4, 3, 2, 1]


class TestCheckpoints:
    @pytest.fixture(params=KINDS)
    def kind(self, request: pytest.FixtureRequest) -> Any:
        return request.param

    def test_our_packs_bring_back_every_bit(self, kind: str) -> None:
        source, target = model_of("llama"), model_of("llama")
        with torch.no_grad():
            for parameter in target.parameters():
                parameter.mul_(1.5)
        for model in (source, target):
            quantize_layers(layers_of(model), kind)
        state = trainable_state(source)
        stored = {name: to_bytes(tensor) for name, tensor in state.items()}
        data = b"".join(bytes(part) for part in packs.encode(stored))
        read = {name: from_bytes(tensor) for name, tensor in packs.decode(data).items()}
        load_trainable_state(target, read)
        assert trunk_hash(trainable_state(target).items()) == trunk_hash(state.items())
        ids = torch.arange(3, 19).view(1, 16)
        assert torch.equal(target(ids).logits, source(ids).logits)

    def test_safetensors_and_state_dict_bring_back_every_bit(
        self, kind: str, tmp_path: Path
    ) -> None:
        source, target = linear(kind), QuantizedLinear(weight(seed=7), None, kind)
        target.bias = torch.nn.Parameter(torch.zeros(64))
        safetensors.torch.save_file(source.state_dict(), tmp_path / "layer.safetensors")
        target.load_state_dict(safetensors.torch.load_file(tmp_path / "layer.safetensors"))
        assert trunk_hash(target.state_dict().items()) == trunk_hash(source.state_dict().items())


def _store_int8(given: torch.Tensor) -> dict[str, torch.Tensor]:
    scales = given.abs().amax(dim=1, keepdim=True).float() / 127
    return {"payload": (given / scales).round().to(torch.int8), "scales": scales}


def test_another_quantisation_can_be_added() -> None:
    def restore(stored: Any, shape: torch.Size) -> torch.Tensor:
        return stored["payload"].float() * stored["scales"]

    model = torch.nn.Sequential(torch.nn.Linear(128, 64))
    x = torch.randn(3, 128)
    before = model(x)
    with QUANTIZATIONS.registered("int8_rows", Quantization(_store_int8, restore)):
        quantize_layers(model, "int8_rows")
    assert len(quantized_in(model)) == 1
    torch.testing.assert_close(model(x), before, rtol=0.05, atol=0.02)
    assert F.mse_loss(model(x), before) > 0
