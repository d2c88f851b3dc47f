// TensorBoard event files: TFRecord frames around Event messages in the protobuf wire format,
// scalars only.
//
// A frame is: u64 length, u32 masked crc32c of the length's bytes, the bytes, u32 masked crc32c of
// them (little endian). Fields: Event {1: double wall_time, 2: int64 step, 3: string file_version,
// 5: Summary}; Summary {1: Value, repeated}; Value {1: string tag, 2: float simple_value}.
// (tensorflow/core/util/event.proto, framework/summary.proto.)
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "telemetry/append_file.h"

namespace qkv::inline v0::telemetry {

// Castagnoli's CRC, as in iSCSI (RFC 3720): "123456789" -> 0xE3069283.
std::uint32_t crc32c(std::string_view bytes);

struct Scalar {
  std::string_view tag;
  double value = 0;
};

// One event with all the scalars of a step, framed and ready to append.
std::string scalar_event(double wall_time, std::int64_t step, std::span<const Scalar> scalars);
// The event that every file starts with.
std::string version_event(double wall_time);

// Not thread-safe.
class EventFile {
 public:
  // Cuts the file to `keep` bytes; an empty one gets the version event.
  EventFile(const std::filesystem::path& path, std::int64_t keep, double wall_time);
  void add(double wall_time, std::int64_t step, std::span<const Scalar> scalars);
  std::int64_t size() const { return file_.size(); }

 private:
  AppendFile file_;
};

}  // namespace qkv::inline v0::telemetry
