#!/usr/bin/env python3
"""Writes tests/golden/blocks.gguf and blocks.safetensors: blocks of every type that is read, and what they stand for by
the `gguf` package (pip install gguf safetensors numpy). Run from the root; the same numbers come out each time."""
import numpy as np
from gguf import GGMLQuantizationType as Type, GGUFWriter, GGUFValueType as Value
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

FILE = "tests/golden/blocks"
ROWS, COLUMNS = 2, 512
random = np.random.default_rng(7)


def random_blocks(kind):
    """Any bytes, with scales (fp16) that are finite."""
    elements, size = GGML_QUANT_SIZES[kind]
    blocks = random.integers(0, 256, (ROWS * COLUMNS // elements, size), dtype=np.uint8)
    offsets = {Type.Q6_K: [208], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q4_1: [0, 2], Type.Q5_1: [0, 2]}.get(kind, [0])
    for offset in offsets:
        scales = random.normal(0, 0.1, len(blocks)).astype(np.float16)
        blocks[:, offset:offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(ROWS, -1)


def main():
    writer = GGUFWriter(FILE + ".gguf", "test")
    for value, kind in [(7, Value.UINT8), (-7, Value.INT8), (60000, Value.UINT16), (-3000, Value.INT16),
                        (4000000000, Value.UINT32), (-2000000000, Value.INT32), (0.15625, Value.FLOAT32), (True, Value.BOOL),
                        ("naïve 红", Value.STRING), (2**60, Value.UINT64), (-2**60, Value.INT64), (0.1, Value.FLOAT64)]:
        writer.add_key_value("test." + kind.name.lower(), value, kind)
    writer.add_array("test.words", ["a", "", "红色"])
    writer.add_array("test.numbers", [1, -2, 3])
    writer.add_array("test.long", [float(i) for i in range(300)])
    expected = {}
    for kind in [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0, Type.Q4_K, Type.Q5_K, Type.Q6_K]:
        blocks = random_blocks(kind)
        writer.add_tensor(kind.name, blocks, raw_dtype=kind)
        expected[kind.name] = dequantize(blocks, kind).astype(np.float32)
    for kind in [Type.Q4_0, Type.Q8_0]:  # as a quantiser leaves them
        blocks = quantize(random.normal(0, 1, (ROWS, COLUMNS)).astype(np.float32), kind)
        writer.add_tensor("real." + kind.name, blocks, raw_dtype=kind)
        expected["real." + kind.name] = dequantize(blocks, kind).astype(np.float32)
    values = random.normal(0, 1, (3, 5)).astype(np.float32)
    writer.add_tensor("F32", values)
    writer.add_tensor("F16", values.astype(np.float16))
    bf16 = quantize(values, Type.BF16)
    writer.add_tensor("BF16", bf16, raw_dtype=Type.BF16)
    expected |= {"F32": values, "F16": values.astype(np.float16).astype(np.float32),
                 "BF16": dequantize(bf16, Type.BF16).astype(np.float32).reshape(3, 5)}
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    save_file(expected, FILE + ".safetensors")


if __name__ == "__main__":
    main()
