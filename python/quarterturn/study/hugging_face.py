"""Models of Hugging Face folders, which need the Python package transformers."""

import pathlib

import torch


def _library(folder):
    try:
        import transformers
    except ImportError:
        raise ValueError(f"{folder} is a Hugging Face folder: that needs the Python package "
                         "transformers") from None
    return transformers


def config(folder):
    return _library(folder).AutoConfig.from_pretrained(folder, local_files_only=True)


def model(folder, dtype=torch.float32):
    """The causal language model of a folder: with its weights, or, where it holds none, with new
    ones, drawn by PyTorch's generator. No cache of keys and values."""
    maker = _library(folder).AutoModelForCausalLM
    path = pathlib.Path(folder)
    if any(path.glob("*.safetensors")) or any(path.glob("*.bin")):
        out = maker.from_pretrained(folder, dtype=dtype, local_files_only=True)
    else:
        out = maker.from_config(config(folder), dtype=dtype)
    out.config.use_cache = False
    return out


def tokens(folder, text):
    """Of bytes of UTF-8, by the folder's tokenizer: int32 [tokens]."""
    try:
        tokenizer = _library(folder).AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, TypeError, KeyError, ValueError) as error:
        raise ValueError(f"{folder} has no tokenizer that can be read: {error}") from None
    words = text.decode("utf-8", "replace")
    # Piece by piece: a tokenizer takes many times the text's memory.
    out = [tokenizer(words[first:first + (1 << 20)], add_special_tokens=False)["input_ids"]
           for first in range(0, len(words), 1 << 20)]
    return torch.tensor([token for part in out for token in part], dtype=torch.int32)
