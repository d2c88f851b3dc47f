// Models in other layouts, or in another dtype, as Hugging Face folders.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>

#include "qkv/dtype.h"

namespace qkv::inline v0 {

struct ConvertOptions {
  // Of all floating-point tensors. None: as they are stored; quantised ones become float32.
  std::optional<DType> dtype;
  // llama2.c's tokenizer.bin. Empty: tokenizer.bin or tokSIZE.bin beside the model.
  std::filesystem::path tokenizer;
  // Called before each tensor with its number and how many there are; what it throws ends the work
  // and nothing is left behind.
  std::function<void(std::int64_t, std::int64_t)> progress;
};

struct ConvertResult {
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0;  // of model.safetensors, without its header
};

// Reads a .gguf file, a .bin file of llama2.c, or a Hugging Face folder, and writes the folder
// `out` with config.json, model.safetensors and the tokenizer's files. Of a folder, other small
// files are copied. `out` appears at once when all of it is written and flushed; it may be an empty
// folder, which is replaced (ArgumentError if it holds something). Errors: ModelError as
// WeightFiles::open; ModelError, naming the tensor, for values that the dtype cannot hold, and
// where no tokenizer is found; IoError. Tensors are converted one at a time.
ConvertResult convert_model(const std::filesystem::path& in, const std::filesystem::path& out,
                            const ConvertOptions& options = {});

}  // namespace qkv::inline v0
