"""Arrays of other libraries by DLPack, from a provider made by hand here: types, strides, offsets,
lifetimes, and what is refused. JAX and PyTorch take part where they are installed."""

import ctypes as c
import gc
import os
import sys
import unittest
from unittest import mock

os.environ["JAX_PLATFORMS"] = "cpu"  # where the contexts here are
import support

support.needs_numpy()

import numpy as np

import quarterturn

NEW_NUMPY = tuple(int(part) for part in np.__version__.split(".")[:2]) >= (2, 1)


class DLTensor(c.Structure):
    """As dlpack.h has it."""
    _fields_ = [("data", c.c_void_p), ("device_type", c.c_int), ("device_id", c.c_int),
                ("ndim", c.c_int), ("code", c.c_uint8), ("bits", c.c_uint8),
                ("lanes", c.c_uint16), ("shape", c.POINTER(c.c_int64)),
                ("strides", c.POINTER(c.c_int64)), ("byte_offset", c.c_uint64)]


class Managed(c.Structure):
    pass


DELETER = c.CFUNCTYPE(None, c.c_void_p)
Managed._fields_ = [("tensor", DLTensor), ("context", c.c_void_p), ("deleter", DELETER)]


class Versioned(c.Structure):
    _fields_ = [("major", c.c_uint32), ("minor", c.c_uint32), ("context", c.c_void_p),
                ("deleter", DELETER), ("flags", c.c_uint64), ("tensor", DLTensor)]


new_capsule = c.pythonapi.PyCapsule_New
new_capsule.restype, new_capsule.argtypes = c.py_object, [c.c_void_p, c.c_char_p, c.c_void_p]
pointer_of = c.pythonapi.PyCapsule_GetPointer
pointer_of.restype, pointer_of.argtypes = c.c_void_p, [c.py_object, c.c_char_p]
FLOAT, BFLOAT, INT = 2, 4, 0
HELD = {}  # what consumers may still look at


class Provider:
    """A library's array: NumPy's memory behind a DLPack capsule, and how often it was given
    back."""

    def __init__(self, memory, shape, strides, code=FLOAT, bits=32, lanes=1, device=(1, 0),
                 offset=0, read_only=False):
        self.memory, self.device, self.read_only = memory, device, read_only
        self.deleted = 0
        self.fields = dict(data=memory.ctypes.data, device_type=device[0], device_id=device[1],
                           ndim=len(shape), code=code, bits=bits, lanes=lanes, byte_offset=offset)
        self.shape, self.strides = shape, strides

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        if self.read_only and options.get("max_version", (0, 0)) < (1, 0):
            raise BufferError("a read-only array is told in DLPack 1.0 only")
        made = (Versioned if self.read_only else Managed)()
        if self.read_only:
            made.major, made.flags = 1, 1
        for name, value in self.fields.items():
            setattr(made.tensor, name, value)
        made.tensor.shape = (c.c_int64 * len(self.shape))(*self.shape)
        made.tensor.strides = (c.c_int64 * len(self.strides))(*self.strides)

        def delete(address):  # as a consumer calls it, when it is done
            self.deleted += 1
            HELD.pop(address)

        made.deleter = DELETER(delete)
        HELD[c.addressof(made)] = made
        return new_capsule(c.addressof(made),
                           b"dltensor_versioned" if self.read_only else b"dltensor", None)


class Space:
    """An array namespace whose arrays are NumPy's, so that what arrives can be seen."""

    @staticmethod
    def from_dlpack(array):
        return "taken", np.from_dlpack(array)


class Named(Provider):
    def __array_namespace__(self):
        return Space


class DlpackTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.context = quarterturn.Context(threads=1, jit="off")
        random = np.random.default_rng(7)
        cls.x = random.normal(size=(37, 128)).astype(np.float32)
        cls.w = random.normal(size=(65, 128)).astype(np.float32)

    def given(self, x, kind=Provider, **options):
        strides = options.pop("strides", tuple(s // x.itemsize for s in x.strides))
        return kind(x, x.shape, strides, bits=8 * x.itemsize, **options)

    def test_numbers_are_those_of_numpy_arrays_and_memory_is_given_back_once(self):
        x = self.given(self.x)
        mx = self.context.quantize(x, rotation=32)
        wanted = self.context.quantize(self.x, rotation=32)
        self.assertIsInstance(mx.codes, quarterturn.Array)
        np.testing.assert_array_equal(np.from_dlpack(mx.codes), wanted.codes)
        np.testing.assert_array_equal(np.from_dlpack(mx.scales), wanted.scales)
        w = self.context.quantize(self.given(self.w), rotation=32)
        y = self.context.gemm(mx, w)
        np.testing.assert_array_equal(
            np.from_dlpack(y),
            self.context.gemm(wanted, self.context.quantize(self.w, rotation=32)))
        np.testing.assert_array_equal(
            np.from_dlpack(self.context.hadamard_gemm(self.given(self.x), self.given(self.w))),
            np.from_dlpack(y))
        gc.collect()
        self.assertEqual(x.deleted, 1)

    def test_results_are_of_the_library_that_the_operand_is_of(self):
        tag, y = self.context.hadamard_gemm(self.given(self.x, Named), self.given(self.w))
        self.assertEqual((tag, y.shape), ("taken", (37, 65)))
        mx = self.context.quantize(self.given(self.x, Named))
        self.assertEqual(mx.codes[0], "taken")
        tag, values = self.context.dequantize(mx)
        np.testing.assert_array_equal(
            values, self.context.dequantize(self.context.quantize(self.x)))

    def test_bf16_comes_and_goes_as_bf16(self):
        bits = (self.x.view(np.uint32) >> 16).astype(np.uint16)
        mx = self.context.quantize(self.given(bits, code=BFLOAT), rotation=16)
        wanted = self.context.quantize(bits, rotation=16, type="bf16")
        np.testing.assert_array_equal(np.from_dlpack(mx.codes), wanted.codes)
        values = self.context.dequantize(mx, type="bf16")
        capsule = values.__dlpack__()
        tensor = DLTensor.from_address(pointer_of(capsule, b"dltensor"))
        self.assertEqual((tensor.code, tensor.bits, tensor.lanes), (BFLOAT, 16, 1))
        shown = np.ctypeslib.as_array(c.cast(tensor.data, c.POINTER(c.c_uint16)), (37, 128))
        np.testing.assert_array_equal(shown, self.context.dequantize(wanted, type="bf16"))

    def test_f16_strides_and_offsets_are_followed(self):
        wide = np.full((37, 200), np.float16(np.nan))
        wide[:, 40:168] = self.x
        x = Provider(wide, (37, 128), (200, 1), bits=16, offset=80)
        np.testing.assert_array_equal(
            np.from_dlpack(self.context.quantize(x).codes),
            self.context.quantize(self.x.astype(np.float16)).codes)

    def test_a_read_only_array_is_only_read(self):
        x = self.given(self.x, read_only=True)
        if not NEW_NUMPY:
            with self.assertRaises(BufferError):
                self.context.quantize(x)
            return
        np.testing.assert_array_equal(np.from_dlpack(self.context.quantize(x).codes),
                                      self.context.quantize(self.x).codes)

    def test_what_cannot_be_taken_is_refused_with_its_reason(self):
        x = self.x
        for given, kind, part in (
                (Provider(x, (37, 64), (64, 1), bits=64), TypeError, "x holds float64"),
                (Provider(x, (37, 128), (128, 1), code=INT), TypeError, "x holds int32"),
                (Provider(x, (37, 64), (64, 1), bits=32, lanes=2), TypeError, "lanes of 2"),
                (Provider(x, (37, 64), (64, 1), code=17, bits=4), TypeError, "type code 17"),
                (Provider(x, (128, 37), (1, 128)), ValueError, "make it contiguous"),
                (Provider(x, (4736,), (1,)), ValueError, "1 dimensions"),
                (Provider(x, (37, 128), (128, 1), device=(4, 0)), ValueError, "device type 4"),
                (self.given(x.view(np.uint8)[:, :128].copy(), code=1), TypeError, "holds uint8"),
                ([[1.0]], TypeError, "list: a NumPy array")):
            with self.assertRaisesRegex(kind, part):
                self.context.quantize(given)
        with self.assertRaisesRegex(TypeError, "does not hold f16"):
            self.context.quantize(self.given(x), type="f16")
        with mock.patch.dict(sys.modules, torch=None):
            with self.assertRaisesRegex(TypeError, "on a GPU .* install torch"):
                self.context.quantize(self.given(x, device=(2, 0)))
        out = self.context.quantize(self.given(x)).codes
        with self.assertRaisesRegex(BufferError, r"device \(2, 0\) is asked for"):
            out.__dlpack__(dl_device=(2, 0))

    def test_a_capsule_is_taken_once(self):
        x = self.given(self.x)
        capsule = x.__dlpack__()
        x.__dlpack__ = None
        once = mock.Mock(spec=["__dlpack__", "__dlpack_device__"])
        once.__dlpack__ = lambda **ignored: capsule
        once.__dlpack_device__ = lambda: (1, 0)
        self.context.quantize(once)
        with self.assertRaisesRegex(BufferError, "nobody has taken"):
            self.context.quantize(once)

    def test_copies_are_made_where_they_are_asked_for(self):
        out = self.context.quantize(self.given(self.x)).codes
        first, second = np.from_dlpack(out), np.from_dlpack(quarterturn.Array(
            np.array(np.from_dlpack(out)), None))
        np.testing.assert_array_equal(first, second)
        self.assertEqual(repr(out), "quarterturn.Array(2368, uint8, cpu)")

    def test_pytorch_by_dlpack_alone(self):
        try:
            import torch
        except ImportError:
            self.skipTest("PyTorch is not installed")
        t = torch.from_numpy(self.x).bfloat16()
        provider = mock.Mock(spec=["__dlpack__", "__dlpack_device__"])
        provider.__dlpack__, provider.__dlpack_device__ = t.__dlpack__, t.__dlpack_device__
        mx = self.context.quantize(provider, rotation=64)
        wanted = self.context.quantize(t, rotation=64)
        self.assertTrue(torch.equal(torch.from_dlpack(mx.codes), wanted.codes))
        values = torch.from_dlpack(self.context.dequantize(mx, type="bf16"))
        self.assertEqual(values.dtype, torch.bfloat16)
        self.assertTrue(torch.equal(values, self.context.dequantize(wanted, type="bf16")))
        for shared in (t[:1].expand(37, 128), t.expand(2, 37, 128)):
            self.assertTrue(torch.equal(self.context.quantize(shared).codes,
                                        self.context.quantize(shared.contiguous()).codes))
        # And back to NumPy.
        np.testing.assert_array_equal(
            np.from_dlpack(self.context.dequantize(wanted)),
            np.from_dlpack(self.context.dequantize(mx)))

    def test_jax_gets_jax_arrays(self):
        try:
            import jax.numpy as jnp
        except ImportError:
            self.skipTest("JAX is not installed")
        for dtype in (jnp.float32, jnp.bfloat16):
            x, w = jnp.asarray(self.x, dtype), jnp.asarray(self.w, dtype)
            y = self.context.hadamard_gemm(x, w, rotation=32, type="bf16")
            self.assertEqual((type(y), y.dtype), (type(x), jnp.bfloat16))
            wanted = self.context.hadamard_gemm(
                *(np.asarray(v.astype(jnp.float32)) for v in (x, w)), rotation=32, type="bf16")
            np.testing.assert_array_equal(np.asarray(y).view(np.uint16), wanted)


if __name__ == "__main__":
    unittest.main()
