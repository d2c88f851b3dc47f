#include "io/model_tokenizer.h"

#include <vector>

#include "base/check.h"
#include "base/path.h"
#include "io/weight_impl.h"
#include "text/embedded_vocabulary.h"

namespace qkv::inline v0::io {
namespace {
namespace fs = std::filesystem;

// llama2.c keeps vocabularies in files of their own: tokenizer.bin, tok512.bin.
bool is_llama2c_vocabulary(const fs::path& path) {
  return path.extension() == ".bin" && path.filename().string().starts_with("tok");
}

fs::path vocabulary_beside(const fs::path& model) {
  const fs::path folder = model.parent_path().empty() ? fs::path(".") : model.parent_path();
  if (path_exists(folder / "tokenizer.bin")) return folder / "tokenizer.bin";
  std::vector<fs::path> found;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    if (is_llama2c_vocabulary(entry.path())) found.push_back(entry.path());
  }
  require<ModelError>(found.size() == 1, "tokenizer",
                      "expected one tokenizer.bin or tok*.bin beside '{}', got {}", model.string(),
                      found.size());
  return found.front();
}

}  // namespace

Tokenizer load_tokenizer(const fs::path& model) {
  if (is_folder(model)) return Tokenizer::load(resolve_cache_folder(model));
  if (model.extension() == ".gguf") {
    const std::optional<text::EmbeddedVocabulary> vocabulary =
        gguf_vocabulary(GgufFile::open(model));
    require<ModelError>(vocabulary.has_value(), "tokenizer",
                        "expected a vocabulary in '{}', got none (no tokenizer.ggml.tokens)",
                        model.string());
    return text::make_tokenizer(vocabulary.value_or(text::EmbeddedVocabulary{}));
  }
  if (model.extension() == ".bin") {
    const fs::path file = is_llama2c_vocabulary(model) ? model : vocabulary_beside(model);
    return text::make_tokenizer(text::read_llama2c_vocabulary(file));
  }
  return Tokenizer::load(model);
}

}  // namespace qkv::inline v0::io
