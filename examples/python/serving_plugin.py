"""A sketch of a quantisation method for a serving engine of vLLM's kind, over quarterturn's
operators.

The two classes have the methods that vLLM's QuantizationConfig and LinearMethodBase ask for, and
are derived from them where vllm can be imported. The test (tests/python/serving_test.py) runs them
by a small stand-in for the engine's layer: loading, processing, applying, tensor-parallel shards.
It has not been run inside vLLM; names of that interface change between its versions.

A checkpoint of `qturn quantize` says in its config.json:

    "quantization_config": {"quant_method": "quarterturn", "rotation": 32, "scale_rule": "rceil",
                            "activations": "mxfp4", "ignore": ["lm_head"]}

activations "mxfp4": x is rotated and quantised as the weight was, at every call. "none": a file
without an activation scheme runs weight-only, x as it is; its weights must not be rotated then.
Before a CUDA graph is captured, call the model once at each batch size, as engines do.
"""

import fnmatch

import torch

import quarterturn.torch_ops  # noqa: F401  (defines the operators)

try:
    from vllm.model_executor.layers.linear import LinearMethodBase
    from vllm.model_executor.layers.quantization import register_quantization_config
    from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
except ImportError:  # the same classes, for another engine or for reading
    LinearMethodBase = QuantizationConfig = object

    def register_quantization_config(name):
        return lambda cls: cls


OPS = torch.ops.quarterturn


@register_quantization_config("quarterturn")
class QuarterturnConfig(QuantizationConfig):
    """What a checkpoint says of its MXFP4 weights."""

    def __init__(self, rotation, scale_rule, activations, ignore=()):
        super().__init__()
        if activations not in ("mxfp4", "none"):
            raise ValueError(f"activations = {activations!r}: mxfp4 or none")
        if activations == "none" and rotation:
            raise ValueError(f"rotation = {rotation} without an activation scheme: x would have to "
                             "be rotated as well; quantise the checkpoint with rotation 0")
        self.rotation, self.scale_rule = rotation, scale_rule
        self.activations, self.ignore = activations, tuple(ignore)

    def get_name(self):
        return "quarterturn"

    def get_supported_act_dtypes(self):
        return [torch.bfloat16, torch.float16]

    @classmethod
    def get_min_capability(cls):
        return 80

    @staticmethod
    def get_config_filenames():
        return []

    @classmethod
    def from_config(cls, config):
        known = {"quant_method", "rotation", "scale_rule", "activations", "ignore"}
        unknown = sorted(set(config) - known)
        if unknown:
            raise ValueError(f"quantization_config has '{unknown[0]}', which is not known: "
                             f"{', '.join(sorted(known))}")
        return cls(config["rotation"], config["scale_rule"], config["activations"],
                   config.get("ignore", ()))

    def get_quant_method(self, layer, prefix):
        if any(fnmatch.fnmatchcase(prefix, f"*{pattern}*") for pattern in self.ignore):
            return None  # the engine's own method
        return QuarterturnLinearMethod(self)


def _parameter(rows, columns, loader):
    made = torch.nn.Parameter(torch.empty(rows, columns, dtype=torch.uint8), requires_grad=False)
    # How an engine's loader divides them among ranks: axis 0 are outputs, axis 1 (packed) inputs.
    made.output_dim, made.input_dim = 0, 1
    if loader is not None:
        made.weight_loader = loader
    return made


class QuarterturnLinearMethod(LinearMethodBase):
    """A linear layer in MXFP4: the weight as the checkpoint has it, products by operators."""

    def __init__(self, config):
        self.config = config

    def create_weights(self, layer, input_size_per_partition, output_partition_sizes, input_size,
                       output_size, params_dtype, **extra):
        unit = max(32, self.config.rotation)
        if input_size_per_partition % unit:
            raise ValueError(
                f"{input_size_per_partition} in features on each of "
                f"{input_size // input_size_per_partition} ranks: a multiple of {unit} (the MX "
                "block and the rotation) is needed; use fewer ranks or a smaller rotation")
        rows = sum(output_partition_sizes)
        loader = extra.get("weight_loader")
        layer.register_parameter("weight_packed",
                                 _parameter(rows, input_size_per_partition // 2, loader))
        layer.register_parameter("weight_scale",
                                 _parameter(rows, input_size_per_partition // 32, loader))

    def process_weights_after_loading(self, layer):
        for name in ("weight_packed", "weight_scale"):
            value = getattr(layer, name).data.contiguous()
            setattr(layer, name, torch.nn.Parameter(value, requires_grad=False))

    def apply(self, layer, x, bias=None):
        flat = x.reshape(-1, x.shape[-1])
        weight = layer.weight_packed, layer.weight_scale
        if self.config.activations == "none":
            y = OPS.weight_gemm(flat, *weight, bias)
        else:
            rotation, rule = self.config.rotation, self.config.scale_rule
            codes, scales = OPS.quantize(flat, rotation=rotation, scale_rule=rule)
            y = OPS.gemm(codes, scales, *weight, bias, rotation=rotation, scale_rule=rule,
                         dtype=x.dtype)
        return y.view(*x.shape[:-1], y.shape[-1])
