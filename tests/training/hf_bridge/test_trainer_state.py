"""What of a Trainer's model travels in a checkpoint."""

from peft import LoraConfig

from infrastructure.training.hf_bridge.trainer_state import _adapter_config


def test_a_lora_s_configuration_is_written_as_json_can_hold_it() -> None:
    written = _adapter_config(LoraConfig(r=3, target_modules={"q_proj"}))
    assert (written["r"], written["target_modules"]) == (3, ["q_proj"])
