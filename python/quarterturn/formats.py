"""MXFP4 tensors in the forms that checkpoints and libraries have, exact both ways, and safetensors
files as streams.

    plain (this library's)         codes [rows, K / 2], scales [rows, K / 32]; low nibble = even
                                   element
    compressed-tensors             the same, as NAME.weight_packed, NAME.weight_scale
    gpt-oss                        NAME_blocks [..., rows, K / 32, 16], NAME_scales
    GGUF type 39 (MXFP4)           17 bytes a block: the scale, then byte i holds element i (low
                                   nibble) and element i + 16
    cuBLAS, QuTLASS, FlashInfer    scales in tiles of 128 rows x 4 blocks
    aiter, hipBLASLt (gfx950)      scales in tiles of 32 x 8, codes in 16 x 16 bytes
    QuTLASS abs_max                scales of ts34 times 4, alpha = 1/9 in a product

All are uint8 arrays of NumPy; values are E2M1 codes times 2^(scale - 127) in each but abs_max.
Conversions move bits and never round. Files are read as hostile: every offset and size is checked
before it is used.
"""

from ._checkpoints import (FORMS, TARGETS, Form, convert_file, is_quantised, matrices,
                           quantize_file, scheme_of)
from ._gguf import Gguf, write_gguf
from ._packing import (GGUF_BLOCK, QUTLASS_ALPHA, from_128x4, from_abs_max, from_aiter, from_gguf,
                       from_gpt_oss, from_shuffled, to_128x4, to_abs_max, to_aiter, to_gguf,
                       to_gpt_oss, to_shuffled)
from ._safetensors import FormatError, Safetensors, write_safetensors

__all__ = [
    "FORMS", "Form", "FormatError", "GGUF_BLOCK", "Gguf", "QUTLASS_ALPHA", "Safetensors", "TARGETS",
    "convert_file", "from_128x4", "from_abs_max", "from_aiter", "from_gguf", "from_gpt_oss",
    "from_shuffled", "is_quantised", "matrices", "quantize_file", "scheme_of", "to_128x4",
    "to_abs_max", "to_aiter", "to_gguf", "to_gpt_oss", "to_shuffled", "write_gguf",
    "write_safetensors"]
