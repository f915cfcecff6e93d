"""Hugging Face folders in the study and in evaluation, on a tiny Llama that is made here."""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest

import support

support.needs_torch()

import torch

try:
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
except ImportError as missing:
    support.skip(f"{missing.name} is not installed")

from quarterturn import evaluate
from quarterturn.study import __main__ as study
from quarterturn.study import report


def write_llama(folder, weights=True):
    config = transformers.LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64)
    if weights:
        torch.manual_seed(5)
        transformers.LlamaForCausalLM(config).save_pretrained(folder)
    else:
        config.save_pretrained(folder)
    words = {word: i for i, word in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(vocab=words, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)


class HuggingFaceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.data = cls.folder / "text"
        cls.data.write_bytes(support.sums_as_text())
        cls.llama = cls.folder / "llama"
        write_llama(cls.llama)
        torch.set_num_threads(1)

    def quiet(self, main, *words):
        out, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            code = main([str(word) for word in words])
        self.assertEqual(code, 0, error.getvalue())
        return out.getvalue()

    def study(self, out, model, *more):
        self.quiet(study.main, "--out", out, "--model", model, "--data", self.data, "--seeds", "0",
                   "--steps", "20", "--rate", "3e-3", "--batch", "4", "--device", "cpu", "--jit",
                   "off", *more)
        return report.read(out)

    def test_a_folder_is_trained_under_recipes_and_only_its_own_linears_follow_them(self):
        runs = self.study(self.folder / "study", self.llama, "--arms", "bf16,fdw_rht32_sr",
                          "--layers", "*mlp*", "--keep-models")
        for arm in ("bf16", "fdw_rht32_sr"):
            losses = runs[arm][0]["losses"]
            self.assertLess(losses[-1], losses[0] - 0.5)
        self.assertNotEqual(runs["bf16"][0]["losses"][0], runs["fdw_rht32_sr"][0]["losses"][0])
        told = json.loads(self.quiet(
            evaluate.main, self.folder / "study" / "models" / "bf16-0.safetensors", "--data",
            self.data, "--recipe", "bf16", "--device", "cpu", "--jit", "off", "--windows", "4",
            "--json"))
        # What was trained is what is read back, and it beats the folder's own random weights.
        self.assertLess(told["outcomes"][0]["loss"], 5.0)

    def test_a_folder_without_weights_starts_from_the_seed(self):
        bare = self.folder / "bare"
        write_llama(bare, weights=False)
        first, again = (self.study(self.folder / name, bare, "--arms", "bf16", "--steps", "1")
                        ["bf16"][0]["losses"] for name in ("one", "two"))
        self.assertEqual(first, again)

    def test_a_folder_is_evaluated_with_the_same_bits_again(self):
        def told(*words):
            return json.loads(self.quiet(
                evaluate.main, self.llama, "--data", self.data, "--device", "cpu", "--jit", "off",
                "--windows", "6", "--json", *words))
        first, again = (told("--recipe", "te_mxfp4") for _ in range(2))
        self.assertEqual(first["outcomes"][0]["digest"], again["outcomes"][0]["digest"])
        self.assertEqual(first["context"], 64)
        self.assertIn("model.layers.1.mlp.down_proj", first["outcomes"][0]["layers"])
        split = {told("--recipe", "te_mxfp4", "--batch-invariant", "--batch", batch)
                 ["outcomes"][0]["digest"] for batch in (1, 4)}
        self.assertEqual(len(split), 1)

    def test_a_folder_without_a_tokenizer_is_refused(self):
        from quarterturn.study import hugging_face
        bare = self.folder / "speechless"
        bare.mkdir()
        (bare / "config.json").write_text((self.llama / "config.json").read_text())
        with self.assertRaisesRegex(ValueError, "no tokenizer"):
            hugging_face.tokens(bare, b"text")


if __name__ == "__main__":
    unittest.main()
