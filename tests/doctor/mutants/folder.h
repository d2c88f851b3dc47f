// Model folders, each with one fault.
#pragma once

#include <filesystem>
#include <vector>

namespace qkv::testing {

struct FolderMutant {
  const char* name;
  const char* id;  // of the rule that must find it first
  void (*damage)(const std::filesystem::path& folder);
};

// A small model with its tokenizer, in BERT's or in the engine's own form.
void write_model(const std::filesystem::path& folder, bool bert);
const std::vector<FolderMutant>& folder_mutants();

}  // namespace qkv::testing
