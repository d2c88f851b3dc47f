// One libFuzzer program per target: QKV_FUZZ_TARGET is the function.
#include <cstdint>
#include <string_view>

#include "support/fuzz_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  qkv::testing::QKV_FUZZ_TARGET({reinterpret_cast<const char*>(data), size});
  return 0;
}
