"""Recipes as data: texts, presets, refusals. Needs neither NumPy nor PyTorch."""

import dataclasses
import json
import pathlib
import tempfile
import unittest

import support  # noqa: F401

from quarterturn import recipes
from quarterturn.recipes import HIGH, Operand, Product, Recipe


class RecipeTest(unittest.TestCase):
    def test_text_and_recipe_are_one(self):
        for recipe in recipes.PRESETS.values():
            self.assertEqual(recipes.from_json(recipe.to_json()), recipe)
            self.assertEqual(recipes.from_json(recipe.to_json(indent=2)), recipe)
            self.assertEqual(recipes.load(recipe.name), recipe)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "mine.json")
            path.write_text('{"name": "mine", "wgrad": {"rotation": 64, '
                            '"a": {"rounding": "sr16"}}}')
            mine = recipes.load(str(path))
        self.assertEqual(mine, Recipe("mine", wgrad=Product(rotation=64, a=Operand("sr16"))))

    def test_presets_say_what_their_papers_say(self):
        amazon = recipes.amazon_rht_sr
        self.assertFalse(amazon.fprop.quantized)
        self.assertEqual((amazon.dgrad.rotation, amazon.dgrad.signs, amazon.wgrad.a.scale_rule),
                         (64, "per_call", "ts34"))
        self.assertTrue(amazon.wgrad.a.draws and amazon.wgrad.b.draws)
        for product in ("fprop", "dgrad", "wgrad"):
            amd = getattr(recipes.amd_det_h16, product)
            self.assertEqual((amd.rotation, amd.signs, amd.draws), (16, "none", False))
        nvidia = recipes.nvidia_like
        signs = [1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1]
        self.assertEqual(int(nvidia.wgrad.signs.partition(":")[2], 16),
                         sum(1 << j for j, sign in enumerate(signs) if sign < 0))
        self.assertEqual((nvidia.fprop.rotation, nvidia.fprop.b.scale_block), (0, "32x32"))
        self.assertEqual(recipes.quartet.fprop.a.scale_rule, "quest")
        self.assertEqual(recipes.quartet.dgrad.b.scale_rule, "ts34")
        self.assertFalse(recipes.te_mxfp4.draws)
        for name, text in recipes.DESCRIPTIONS.items():
            self.assertIn(name, recipes.PRESETS)
            self.assertGreater(len(text), 50)

    def test_what_cannot_be_is_refused(self):
        for make, words in (
                (lambda: Product(rotation=48), "48.*256"),
                (lambda: Product(signs="fixed"), "fixed:<hex"),
                (lambda: Product(signs="per_call"), "without a rotation"),
                (lambda: Product(rotation=16, b=Operand(scale_block="32x32")), "transpose"),
                (lambda: Product(a=Operand("sr16", "even")), "biased"),
                (lambda: Product(a=Operand("rne", "ts34")), "both"),
                (lambda: Operand("up"), "'up'.*sr16"),
                (lambda: recipes.load("no such"), "neither a file nor a preset")):
            with self.assertRaisesRegex(ValueError, words):
                make()
        Product(a=Operand("sr16", "even"), biased=True)

    def test_texts_are_read_strictly(self):
        for given, words in (({"name": "a", "fprop": {"rotations": 16}},
                              "fprop has no 'rotations'"),
                             ({"name": "a", "keep_last": "2"}, "keep_last = '2': int"),
                             ({"name": "a", "wgrad": {"rotation": True}}, "rotation = True: int"),
                             ({"name": "a", "wgrad": 3}, "an object is needed"),
                             ({"fprop": {}}, "name"),
                             ({"name": "a", "fprop": {"a": {"rounding": 1}}}, "rounding = 1: str")):
            with self.assertRaisesRegex(ValueError, words):
                recipes.from_json(json.dumps(given))

    def test_layers_are_chosen_by_name_and_place(self):
        names = [f"block{i}.{part}" for i in range(5) for part in ("qkv", "up")] + ["lm_head"]
        recipe = Recipe("r", Product(), keep=("*lm_head*", "*.up"))
        self.assertEqual(recipe.layers(names), [f"block{i}.qkv" for i in range(5)])
        ends = dataclasses.replace(recipe, keep_first=1, keep_last=2)
        self.assertEqual(ends.layers(names), ["block1.qkv", "block2.qkv"])
        self.assertEqual(len(dataclasses.replace(recipe, keep_tail=0.2).layers(names)), 4)

    def test_units_are_those_of_the_products_that_contract_features(self):
        self.assertEqual(Recipe("r", Product(rotation=64), HIGH, Product(rotation=256)).unit,
                         (64, 1))
        self.assertEqual(Recipe("r", HIGH, Product(rotation=16), HIGH).unit, (1, 32))
        self.assertEqual(recipes.nvidia_like.unit, (32, 32))


if __name__ == "__main__":
    unittest.main()
