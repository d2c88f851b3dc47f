// From our parameters to the tensors of a file, by a family's map.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "models/families/family.h"
#include "nn/module.h"

namespace qkv::inline v0 {

// Rows of one parameter, and the names under which a file may hold them, the one to write first.
struct StoredPart {
  const nn::Parameter* parameter;
  std::int64_t start = 0, rows = 0;  // rows of the parameter
  bool transposed = false;           // the tensor is the part's transpose
  std::vector<std::string> names;

  Shape shape() const;   // of the tensor
  Tensor value() const;  // view of the parameter, shaped as the tensor
};

// What stands before the names of the trunk, and of the head, in a file.
struct FilePrefix {
  std::string trunk, outer;
};
// Tries the family's prefix, none, and what wrappers put in front ("module.", "_orig_mod.", ...).
// Without a match the family's own.
FilePrefix find_prefix(const WeightMap& map, const std::function<bool(const std::string&)>& has);

// The parts of every parameter of the module. InternalError if the map lacks a parameter.
std::vector<StoredPart> stored_parts(const WeightMap& map, const TransformerConfig& config,
                                     const nn::Module& module, const FilePrefix& prefix);

// Whether a name is of a head's weight, or one of those that are no weights.
bool is_head_name(const WeightMap& map, const FilePrefix& prefix, std::string_view name);
bool is_ignored(const WeightMap& map, std::string_view name);

}  // namespace qkv::inline v0
