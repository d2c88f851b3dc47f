// The errors of the library. Every message reads `[where] expected X, got Y`, and says what to do.
#pragma once

#include <stdexcept>
#include <string>

#include "qkv/version.h"

namespace qkv::inline v0 {

// Stable codes, shared by the command line, Python and HTTP.
enum class ErrorCode {
  kInternal = 1,         // a fault of this library
  kInvalidArgument = 2,  // a value outside its range, an option not understood
  kShape = 3,            // shapes or dtypes that do not fit together
  kConfig = 4,           // a configuration that cannot work: refused before any work
  kData = 5,             // input data: text, tables, labels
  kModel = 6,            // model files: weights, config.json, tokenizer
  kIo = 7,               // the file system said no
  kNumeric = 8,          // a NaN or infinity where none may be
  kUnsupported = 9,      // not implemented for this combination; never a silent fallback
  kInterrupted = 10,     // stopped by SIGINT or SIGTERM after saving
};

// Name of a code as used in JSON, e.g. "invalid_argument".
QKV_API const char* error_code_name(ErrorCode code);

class QKV_API Error : public std::runtime_error {
 public:
  Error(ErrorCode code, std::string where, const std::string& message)
      : std::runtime_error("[" + where + "] " + message), code_(code), where_(std::move(where)) {}
  ErrorCode code() const noexcept { return code_; }
  const std::string& where() const noexcept { return where_; }

 private:
  ErrorCode code_;
  std::string where_;
};

// One class per code, so that callers catch by type.
template <ErrorCode kCode>
class QKV_API ErrorOf : public Error {
 public:
  ErrorOf(std::string where, const std::string& message)
      : Error(kCode, std::move(where), message) {}
};

using InternalError = ErrorOf<ErrorCode::kInternal>;
using ArgumentError = ErrorOf<ErrorCode::kInvalidArgument>;
using ShapeError = ErrorOf<ErrorCode::kShape>;
using ConfigError = ErrorOf<ErrorCode::kConfig>;
using DataError = ErrorOf<ErrorCode::kData>;
using ModelError = ErrorOf<ErrorCode::kModel>;
using IoError = ErrorOf<ErrorCode::kIo>;
using NumericError = ErrorOf<ErrorCode::kNumeric>;
using UnsupportedError = ErrorOf<ErrorCode::kUnsupported>;

}  // namespace qkv::inline v0
