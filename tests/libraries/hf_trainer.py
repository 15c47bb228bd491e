"""transformers: Trainer with evaluation, accumulation, checkpointing of activations, a resumed run,
dropout and worker processes that load data; then generate() with a key-value cache."""

import torch
from outcome import DEVICE, FOLDER, finish
from torch.utils.data import Dataset
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)


class Counting(Dataset):
    """Sequences that count up modulo 61 in steps of their index."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        tokens = (torch.arange(24) * (index % 7 + 1) + index) % 61
        return {"input_ids": tokens, "labels": tokens.clone()}


class Watch(TrainerCallback):
    """The dropout of a step must not depend on which generator also shuffled the data."""

    def on_step_begin(self, args, state, control, **kwargs):
        torch.manual_seed(100 + state.global_step)


def model():
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=61, n_positions=64, n_embd=32, n_layer=2, n_head=2,
            bos_token_id=0, eos_token_id=None, pad_token_id=0,
        )
    )  # fmt: skip


def trainer(steps):
    set_seed(3)
    arguments = TrainingArguments(
        output_dir=str(FOLDER / "run"),
        use_cpu=DEVICE == "cpu",
        max_steps=steps,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        dataloader_num_workers=2,
        report_to="none",
        disable_tqdm=True,
    )
    return Trainer(
        model=model(),
        args=arguments,
        train_dataset=Counting(64),
        eval_dataset=Counting(9),
        callbacks=[Watch()],
    )


def main():
    first = trainer(steps=2)
    first.train()
    second = trainer(steps=6)
    second.train(resume_from_checkpoint=str(FOLDER / "run" / "checkpoint-2"))
    trained = second.model.eval()
    prompt = torch.tensor([[0, 1, 2, 3], [5, 7, 9, 11]], device=trained.device)
    with torch.no_grad():
        greedy = trained.generate(prompt, max_new_tokens=12, do_sample=False)
        torch.manual_seed(8)
        sampled = trained.generate(prompt, max_new_tokens=12, do_sample=True, top_k=20)
        beams = trained.generate(prompt, max_new_tokens=6, num_beams=3, do_sample=False)
    names = ("loss", "eval_loss", "grad_norm", "learning_rate", "step")
    finish(
        where=trained.device.type,
        log=[{k: v for k, v in entry.items() if k in names} for entry in second.state.log_history],
        weights=trained.state_dict(),
        greedy=greedy.tolist(),
        sampled=sampled.tolist(),
        beams=beams.tolist(),
    )


if __name__ == "__main__":
    main()
