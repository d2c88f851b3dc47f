"""A GGUF file with its matrices in another type: the files that bench/compare_generate.py compares.

usage: gguf_as.py IN.gguf OUT.gguf F32|BF16|Q8_0|...      (needs the `gguf` package from PyPI)
"""

from __future__ import annotations

import sys

import gguf
import numpy as np


def main() -> None:
    source, target, name = sys.argv[1:4]
    reader = gguf.GGUFReader(source)
    wanted = gguf.GGMLQuantizationType[name]
    writer = gguf.GGUFWriter(target, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        is_array = field.types[0] == gguf.GGUFValueType.ARRAY
        writer.add_key_value(key, field.contents(), field.types[0], field.types[-1] if is_array else None)
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape([int(n) for n in reversed(tensor.shape)])
        if values.ndim == 1 or wanted == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(tensor.name, values)
        else:
            writer.add_tensor(tensor.name, gguf.quants.quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
