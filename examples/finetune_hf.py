"""Fine-tunes a BERT-like classifier with the Trainer of Hugging Face. Needs transformers and accelerate.

The model starts from random weights and the texts are made here, so nothing is downloaded. fp32, every text
padded to the full length however short it is, and no workers to prepare the batches.

    python examples/finetune_hf.py               # 67 M parameters, 256 tokens, batch 16: wants a GPU
    python examples/finetune_hf.py --layers 2 --width 32 --heads 2 --length 32 --vocabulary 200 --steps 20
"""

import argparse
import random
import tempfile

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

LABELS = 4
PAD, START, END, FIRST_WORD = 0, 1, 2, 3


class Texts(Dataset):
    """Texts of random words. A third of a text's words are typical of its label: that can be learnt."""

    def __init__(self, samples: int, length: int, vocabulary: int) -> None:
        dice = random.Random(0)  # noqa: S311
        typical = (vocabulary - FIRST_WORD) // LABELS
        self.length = length
        self.texts = []
        for _ in range(samples):
            label = dice.randrange(LABELS)
            first = FIRST_WORD + label * typical
            # Only some of a label's range is typical of it, as few words of a language tell much.
            words = [
                dice.randrange(first, first + max(1, typical // 10))
                if dice.random() < 1 / 3
                else dice.randrange(FIRST_WORD, vocabulary)
                for _ in range(dice.randint(length // 4, length - 2))
            ]
            self.texts.append((words, label))

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, place: int) -> dict[str, torch.Tensor]:
        words, label = self.texts[place]
        tokens = [START, *words, END]
        padding = self.length - len(tokens)
        return {
            "input_ids": torch.tensor(tokens + [PAD] * padding),
            "attention_mask": torch.tensor([1] * len(tokens) + [0] * padding),
            "labels": torch.tensor(label),
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=30522)
    parser.add_argument("--samples", type=int, default=4096)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rate", type=float, default=5e-5)
    parser.add_argument("--steps", type=int, default=500)
    chosen = parser.parse_args()
    torch.manual_seed(0)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=chosen.vocabulary,
            hidden_size=chosen.width,
            num_hidden_layers=chosen.layers,
            num_attention_heads=chosen.heads,
            intermediate_size=4 * chosen.width,
            max_position_embeddings=chosen.length,
            pad_token_id=PAD,
            num_labels=LABELS,
        )
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=model,
            args=TrainingArguments(
                output_dir=folder,
                max_steps=chosen.steps,
                per_device_train_batch_size=chosen.batch_size,
                learning_rate=chosen.rate,
                logging_steps=10,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
            ),
            train_dataset=Texts(chosen.samples, chosen.length, chosen.vocabulary),
        )
        trainer.train()


if __name__ == "__main__":
    main()
