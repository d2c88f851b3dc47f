// Properties of safetensors files that hold for every set of tensors.
#include <cstring>

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include "base/file.h"
#include "io/safetensors.h"
#include "support/files.h"

namespace {
using namespace qkv;

Tensor any_tensor() {
  constexpr DType kTypes[] = {DType::kFloat64, DType::kFloat32, DType::kBFloat16,
                              DType::kFloat16, DType::kInt64,   DType::kInt32,
                              DType::kInt16,   DType::kInt8,    DType::kUInt8};
  std::vector<std::int64_t> dims;
  for (int n = *rc::gen::inRange(0, 5); n > 0; --n)
    dims.push_back(*rc::gen::inRange<std::int64_t>(0, 6));
  Tensor tensor =
      Tensor::empty(Shape(dims), kTypes[*rc::gen::inRange<std::size_t>(0, std::size(kTypes))]);
  const auto byte = *rc::gen::arbitrary<unsigned char>();
  auto* bytes = static_cast<unsigned char*>(tensor.raw());
  for (std::size_t i = 0; i < tensor.nbytes(); ++i)
    bytes[i] = static_cast<unsigned char>(byte + i * 7);
  return tensor;
}

RC_GTEST_PROP(SafetensorsProperties, files_bring_back_names_shapes_and_bytes, ()) {
  std::vector<std::pair<std::string, Tensor>> tensors;
  std::map<std::string, std::string> metadata;
  const int count = *rc::gen::inRange(0, 6);
  for (int i = 0; i < count; ++i)
    tensors.emplace_back("layer." + std::to_string(i) + ".\"权重\\", any_tensor());
  if (*rc::gen::arbitrary<bool>()) metadata["format"] = "pt";
  const qkv::testing::TempFolder folder;
  io::save_safetensors(folder / "a", tensors, metadata);
  const io::SafetensorsFile file = io::SafetensorsFile::open(folder / "a");
  RC_ASSERT(file.metadata() == metadata);
  RC_ASSERT(file.names().size() == tensors.size());
  std::vector<std::pair<std::string, Tensor>> back;
  for (const auto& [name, tensor] : tensors) {
    const Tensor& read = file.tensor(name);
    RC_ASSERT(read.shape() == tensor.shape());
    RC_ASSERT(read.dtype() == tensor.dtype());
    RC_ASSERT(tensor.nbytes() == 0 || std::memcmp(read.raw(), tensor.raw(), tensor.nbytes()) == 0);
    back.emplace_back(name, read);
  }
  io::save_safetensors(folder / "b", back, file.metadata());
  RC_ASSERT(read_file(folder / "a") == read_file(folder / "b"));
}

RC_GTEST_PROP(SafetensorsProperties, a_cut_file_is_refused, ()) {
  const qkv::testing::TempFolder folder;
  io::save_safetensors(folder / "a", {{"x", any_tensor()}, {"y", Tensor::zeros({3})}});
  const std::string bytes = read_file(folder / "a");
  const auto size = *rc::gen::inRange<std::size_t>(0, bytes.size());
  const auto cut = folder.write("cut", bytes.substr(0, size));
  RC_ASSERT_THROWS_AS(io::SafetensorsFile::open(cut), ModelError);
}

}  // namespace
