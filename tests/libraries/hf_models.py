"""transformers beyond Trainer: models of several kinds saved and loaded by `device_map`, LoRA with
peft, layers kept on the host by accelerate, pipelines' batches, an AdamW loop of each."""

import accelerate
import torch
from outcome import DEVICE, FOLDER, finish
from peft import LoraConfig, get_peft_model
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

HOME = {"": DEVICE}


def loop(model, batches, steps=3):
    """Losses of `steps` steps of AdamW over what is trainable."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    losses = []
    for step in range(steps):
        batch = {k: v.to(DEVICE, non_blocking=True) for k, v in batches(step).items()}
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    return losses


def stored(cls, config, name):
    """The model through a folder of safetensors and back by `device_map`."""
    torch.manual_seed(1)
    cls(config).save_pretrained(FOLDER / name)
    return cls.from_pretrained(FOLDER / name, device_map=HOME).train()


def text(step, rows=3, length=10):
    tokens = (torch.arange(rows * length).view(rows, length) * (step + 2)) % 50 + 1
    return {"input_ids": tokens, "labels": tokens.clone()}


def llama():
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
        bos_token_id=1, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = stored(LlamaForCausalLM, config, "llama")
    torch.manual_seed(2)
    tuned = get_peft_model(
        model, LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    )
    losses = loop(tuned, text)
    tuned.save_pretrained(str(FOLDER / "lora"))
    merged = tuned.merge_and_unload().eval()
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]], device=DEVICE)
    prompt = torch.tensor([[0, 0, 5, 6, 7], [9, 8, 7, 6, 5]], device=DEVICE)
    tokens = merged.generate(prompt, attention_mask=mask, max_new_tokens=8, do_sample=False)
    # Half of the layers stay on the host; accelerate's hooks bring them over for each call.
    split = {"model.embed_tokens": DEVICE, "model.layers.0": DEVICE, "model.layers.1": "cpu",
             "model.norm": DEVICE, "model.rotary_emb": DEVICE, "lm_head": DEVICE}  # fmt: skip
    merged.save_pretrained(FOLDER / "merged")
    offloaded = LlamaForCausalLM.from_pretrained(FOLDER / "merged", device_map=split).eval()
    with torch.no_grad():
        difference = (offloaded(prompt).logits - merged(prompt).logits).abs().max().item()
    return {"losses": losses, "tokens": tokens.tolist(), "offloaded": difference,
            "weights": merged.state_dict()}  # fmt: skip


def bert():
    config = BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=48, max_position_embeddings=32, num_labels=3,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip

    def batch(step):
        mask = torch.ones(3, 10, dtype=torch.long)
        mask[1, 6:] = 0
        return {**text(step), "labels": torch.tensor([0, 1, 2]), "attention_mask": mask}

    model = stored(BertForSequenceClassification, config, "bert")
    return {"losses": loop(model, batch), "weights": model.state_dict()}


def vit():
    config = ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        image_size=16, patch_size=4, num_labels=3,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip

    def batch(step):
        torch.manual_seed(step)
        return {"pixel_values": torch.randn(3, 3, 16, 16), "labels": torch.tensor([2, 0, 1])}

    model = stored(ViTForImageClassification, config, "vit")
    return {"losses": loop(model, batch), "weights": model.state_dict()}


def t5():
    config = T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=63,
    )  # fmt: skip
    model = stored(T5ForConditionalGeneration, config, "t5")
    losses = loop(model, text)
    tokens = model.eval().generate(text(0)["input_ids"].to(DEVICE), max_new_tokens=6, num_beams=2)
    return {"losses": losses, "tokens": tokens.tolist(), "weights": model.state_dict()}


def whisper():
    config = WhisperConfig(
        vocab_size=64, num_mel_bins=8, d_model=32, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=48,
        decoder_ffn_dim=48, max_source_positions=20, max_target_positions=32, dropout=0.0,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip

    def batch(step):
        torch.manual_seed(step)
        return {"input_features": torch.randn(2, 8, 40), "labels": text(step, 2, 6)["labels"]}

    model = stored(WhisperForConditionalGeneration, config, "whisper")
    return {"losses": loop(model, batch), "weights": model.state_dict()}


def main():
    accelerate.utils.set_seed(9)
    kinds = (llama, bert, vit, t5, whisper)
    finish(where=DEVICE, **{kind.__name__: kind() for kind in kinds})


if __name__ == "__main__":
    main()
