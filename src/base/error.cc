#include "qkv/error.h"

#include <fmt/core.h>

namespace qkv::inline v0 {

const char* version() {
  static const std::string text =
      fmt::format("{}.{}.{}", QKV_VERSION_MAJOR, QKV_VERSION_MINOR, QKV_VERSION_PATCH);
  return text.c_str();
}

const char* error_code_name(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInternal:
      return "internal";
    case ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case ErrorCode::kShape:
      return "shape";
    case ErrorCode::kConfig:
      return "config";
    case ErrorCode::kData:
      return "data";
    case ErrorCode::kModel:
      return "model";
    case ErrorCode::kIo:
      return "io";
    case ErrorCode::kNumeric:
      return "numeric";
    case ErrorCode::kUnsupported:
      return "unsupported";
    case ErrorCode::kInterrupted:
      return "interrupted";
  }
  return "unknown";
}

}  // namespace qkv::inline v0
