// A published model: its folder or file, read into the trunk and written back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "io/weight_files.h"
#include "models/transformer.h"

namespace qkv::inline v0 {

struct LoadOptions {
  // Another head than the file's. kNone leaves the head's weights unread. What the file lacks for
  // the others starts with random values, a pure function of the seed: fine-tuning.
  std::optional<HeadKind> head;
  std::vector<std::string> labels;  // with head kSequence or kTokens
  // With head kSequence: a linear layer over tokens pooled like this, in place of the family's own
  // head. config.json says so by model_type "qkv", for transformers has no such model.
  std::optional<ops::Pooling> pooling;
  bool fresh_classifier = false;  // the last layer starts anew, whatever the file holds of one
  std::function<void(TransformerConfig&)> adjust;  // of what leaves shapes alone: dropout
  std::uint64_t seed = 0;
  // Weights of the file's own type and shape stay where they are in the mapped file: nothing is
  // copied, and no gradients can be asked for. For inference.
  bool read_only = false;
  // With read_only: matrices stay in the file's types, quantised ones too, and are multiplied as
  // they are (ops/quantized.h); their parameters have shapes without values. Whether their numbers
  // are finite is then seen in what comes out.
  bool keep_stored = false;
};

struct Checkpoint {
  Json config;  // config.json; says which head the model has now
  Transformer model;
  std::vector<std::string> fresh;  // parameters that the file did not hold
};

// Any family of models/families. ModelError naming the key of config.json that is unknown or out of
// range; the tensor whose shape is not what config.json says, with both; all missing and surplus
// tensors; a value that is not finite. Nothing is allocated before names and shapes are known to
// be good.
Checkpoint load_checkpoint(const io::WeightFiles& files, const LoadOptions& options = {});
Checkpoint load_checkpoint(const std::filesystem::path& path, const LoadOptions& options = {});

// Whether config.json names a family that load_checkpoint() reads.
bool is_known_family(const Json& config);

// config.json and model.safetensors under the family's names, each written whole or not at all.
// Loading gives back the same bits, saving again the same bytes. A tied matrix is written once.
void save_checkpoint(const Json& config, const Transformer& model,
                     const std::filesystem::path& folder);
inline void save_checkpoint(const Checkpoint& checkpoint, const std::filesystem::path& folder) {
  save_checkpoint(checkpoint.config, checkpoint.model, folder);
}

}  // namespace qkv::inline v0
