#include "doctor/mutants/folder.h"

#include <functional>
#include <limits>
#include <string>
#include <utility>

#include "qkv/tokenizer.h"

#include "base/file.h"
#include "base/json.h"
#include "io/safetensors.h"
#include "models/encoder_classifier.h"

namespace qkv::testing {
namespace {

namespace fs = std::filesystem;
using Weights = std::vector<std::pair<std::string, Tensor>>;

void edit_config(const fs::path& folder, const char* key, const Json& value) {
  Json config = Json::parse(read_file(folder / "config.json"));
  config[key] = value;
  write_file_atomic(folder / "config.json", config.dump(2));
}

void edit_weights(const fs::path& folder, const std::function<void(Weights&)>& edit) {
  Weights weights;
  {
    const auto file = io::SafetensorsFile::open(folder / "model.safetensors");
    for (const std::string& name : file.names())
      weights.emplace_back(name, file.tensor(name).clone());
  }
  edit(weights);
  io::save_safetensors(folder / "model.safetensors", weights);
}

Tensor& weight(Weights& weights, const std::string& end) {
  for (auto& [name, tensor] : weights)
    if (name.ends_with(end)) return tensor;
  throw std::runtime_error("no weight " + end);
}

void shorten(const fs::path& path, std::uintmax_t by) {
  fs::resize_file(path, fs::file_size(path) - by);
}

}  // namespace

void write_model(const fs::path& folder, bool bert) {
  EncoderConfig c;
  c.d_model = 16;
  c.num_layers = 2;
  c.num_heads = 2;
  c.d_ff = 24;
  c.max_positions = 32;
  c.vocab_size = 60;
  c.labels = {"card", "order"};
  if (bert) {
    c.norm_placement = NormPlacement::kPost;
    c.pooling = ops::Pooling::kFirst;
    c.set_placement_defaults();
  }
  EncoderClassifier(c, 1).save(folder);
  const std::vector<std::string> texts{"where is my card", "please cancel the order 12"};
  Tokenizer::train(texts, {.kind = TokenizerKind::kChar, .vocab_size = 60, .min_frequency = 1})
      .save(folder);
}

const std::vector<FolderMutant>& folder_mutants() {
  static const std::vector<FolderMutant> list{
      {"weights_cut_off", "file-damaged",
       [](const fs::path& f) { shorten(f / "model.safetensors", 100); }},
      {"weights_longer_than_their_header", "file-damaged",
       [](const fs::path& f) {
         write_file_atomic(f / "model.safetensors", read_file(f / "model.safetensors") + "more");
       }},
      {"weights_missing", "file-missing",
       [](const fs::path& f) { fs::remove(f / "model.safetensors"); }},
      {"shard_missing", "file-missing",
       [](const fs::path& f) {
         fs::remove(f / "model.safetensors");
         write_file_atomic(f / "model.safetensors.index.json",
                           R"({"weight_map": {"a": "model-00001-of-00002.safetensors"}})");
       }},
      {"config_missing", "file-missing", [](const fs::path& f) { fs::remove(f / "config.json"); }},
      {"config_cut_off", "config", [](const fs::path& f) { shorten(f / "config.json", 10); }},
      {"heads_do_not_divide", "config",
       [](const fs::path& f) { edit_config(f, "num_heads", std::int64_t{3}); }},
      {"negative_vocabulary", "config",
       [](const fs::path& f) { edit_config(f, "vocab_size", std::int64_t{-1}); }},
      {"unknown_activation", "config",
       [](const fs::path& f) { edit_config(f, "activation", "sigmoidal"); }},
      {"tokenizer_cut_off", "file-damaged",
       [](const fs::path& f) { shorten(f / "tokenizer.json", 20); }},
      {"larger_tokenizer", "vocabulary",
       [](const fs::path& f) {
         const std::vector<std::string> texts{
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:!?+-*/"};
         Tokenizer::train(texts,
                          {.kind = TokenizerKind::kChar, .vocab_size = 90, .min_frequency = 1})
             .save(f);
       }},
      {"embedding_of_another_vocabulary", "vocabulary",
       [](const fs::path& f) { edit_config(f, "vocab_size", std::int64_t{64}); }},
      {"short_position_table", "positions-table",
       [](const fs::path& f) { edit_config(f, "max_positions", std::int64_t{512}); }},
      {"one_layer_too_few", "weights-missing",
       [](const fs::path& f) { edit_config(f, "num_layers", std::int64_t{3}); }},
      {"weight_left_out", "weights-missing",
       [](const fs::path& f) {
         edit_weights(f, [](Weights& w) {
           std::erase_if(w, [](const auto& x) { return x.first == "classifier.weight"; });
         });
       }},
      {"matrix_transposed", "weights-shape",
       [](const fs::path& f) {
         edit_weights(f, [](Weights& w) {
           Tensor& x = weight(w, "feed_forward.down.weight");
           x = x.transpose(0, 1).contiguous();
         });
       }},
      {"other_hidden_width", "weights-shape",
       [](const fs::path& f) { edit_config(f, "d_ff", std::int64_t{32}); }},
      {"one_nan", "non-finite",
       [](const fs::path& f) {
         edit_weights(f, [](Weights& w) {
           weight(w, "attention.out.weight").data<float>()[7] =
               std::numeric_limits<float>::quiet_NaN();
         });
       }},
      {"one_infinity", "non-finite",
       [](const fs::path& f) {
         edit_weights(f, [](Weights& w) {
           weight(w, "classifier.bias").data<float>()[0] = std::numeric_limits<float>::infinity();
         });
       }},
      {"heads_copied", "heads-alike",
       [](const fs::path& f) {
         edit_weights(f, [](Weights& w) {
           const Tensor& x = weight(w, "attention.qkv.weight");  // 2 heads of 8 rows of queries
           x.narrow(0, 8, 8).copy_from(x.narrow(0, 0, 8));
         });
       }},
      {"zeroed_matrix", "weights-constant",
       [](const fs::path& f) {
         edit_weights(f, [](Weights& w) { weight(w, "feed_forward.up.weight").fill(0); });
       }},
  };
  return list;
}

}  // namespace qkv::testing
